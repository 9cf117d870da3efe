package lsm

import (
	"errors"
	"time"

	"pgregory.net/rapid"

	"fluxkv/internal/vfs/memfs"
)

// Reopen closes and opens the store, perhaps with other options: nothing may be
// lost, in any mode.
func (m *machine) Reopen(t *rapid.T) {
	other := rapid.Bool().Draw(t, "other options")
	if other {
		m.overfill(t)
	}
	if err := m.db.Close(); err != nil {
		t.Fatal(err)
	}
	m.readersClosed(t)
	m.closed(t, m.horizon())
	m.endReaders()
	if other {
		m.drawOptions(t)
	}
	m.open(t)
	if r := m.db.Stats().Recovery; !r.Clean {
		t.Fatalf("closed in order, but found %+v", r)
	}
	m.recovered(t, m.truth.Last())
}

// overfill sometimes writes more than the write cache that is drawn next takes,
// so that the start after it must flush.
func (m *machine) overfill(t *rapid.T) {
	if m.o.WriteCache < mib || rapid.Bool().Draw(t, "little to replay") {
		return
	}
	for used := int64(-1); used < 300*kib && m.db.quota.used.Load() > used; {
		used = m.db.quota.used.Load()
		m.Fill(t)
	}
}

// Crash takes the disk as a power cut at this moment would leave it.
func (m *machine) Crash(t *rapid.T) {
	m.overfill(t)
	m.crash(t)
}

// CrashWithin cuts the power at one of the next calls to the disk. What is
// written until then, and fails or not, may be there or not; what was
// acknowledged must be. Half of the time a flush is what is cut.
func (m *machine) CrashWithin(t *rapid.T) {
	flush := rapid.Bool().Draw(t, "flush")
	if flush {
		m.Load(t)
	}
	n := int64(rapid.IntRange(1, 60).Draw(t, "calls"))
	m.disk.CrashAt(m.disk.Calls()+n, rapid.SampledFrom([]memfs.When{memfs.Before, memfs.Within}).Draw(t, "when"))
	for range 60 {
		var err error
		switch word := rapid.IntRange(0, 9).Draw(t, "last words"); {
		case flush && word < 7:
			if err = m.db.Flush(); err == nil && rapid.Bool().Draw(t, "one more batch") {
				err = m.write(t)
			} else if err != nil {
				m.shape.crashedFlushes.Add(1)
			}
		case word == 0:
			err = m.update(t)
		case word == 1:
			err = m.clear(t)
		default:
			err = m.write(t)
		}
		if err != nil {
			break
		}
	}
	m.disk.CrashAt(0, memfs.Before)
	m.crash(t)
}

// crash opens the store on what a power cut left, or on what is left when the
// power is cut again while it is opened.
func (m *machine) crash(t *rapid.T) {
	durable := m.db.log.DurableSeqno()
	m.cut(t)
	m.db.Close()
	m.readersClosed(t)
	m.endReaders()
	m.filesClosed(t)
	if rapid.Bool().Draw(t, "other options") {
		m.drawOptions(t)
	}
	if rapid.IntRange(0, 2).Draw(t, "once more") == 0 {
		m.disk.CrashAt(int64(rapid.IntRange(1, 80).Draw(t, "calls")), rapid.SampledFrom([]memfs.When{memfs.Before, memfs.Within}).Draw(t, "when"))
		m.o.FS = openFiles(m.disk, &m.files)
		db, err := Open("data", m.o)
		switch {
		case err == nil:
			m.bases[db.Stats().NextSeqno] = true
			db.Close()
		case !errors.Is(err, memfs.ErrCrashed):
			t.Fatalf("open: %v", err)
		default:
			m.shape.crashedOpens.Add(1)
		}
		m.filesClosed(t)
		m.cut(t)
	}
	m.log.take()
	m.open(t)
	m.recovered(t, durable)
}

// cut replaces the disk by what a power cut leaves of it.
func (m *machine) cut(t *rapid.T) {
	damage := rapid.SampledFrom(memfs.Damages()).Draw(t, "damage")
	m.disk = m.disk.CrashCopy(int64(rapid.IntRange(0, 1000).Draw(t, "seed")), damage)
}

func (m *machine) filesClosed(t *rapid.T) {
	t.Helper()
	if n := m.files.Load(); n != 0 {
		t.Fatalf("%d files are left open", n)
	}
}

// recovered finds how much is there, which must be whole batches, all up to
// durable and perhaps more, and compares everything.
func (m *machine) recovered(t *rapid.T, durable Seqno) {
	v := m.db.pin()
	var end Seqno
	late := false // a flush has dropped what would show the end
	if len(v.clears) > 0 {
		end = v.clears[len(v.clears)-1]
	}
	st := m.db.edits.log.State()
	for k := range m.db.kvstores {
		// A flush right after a start covers the seqnos that the start left out.
		switch f := st.FlushedSeqno(uint16(k)); {
		case m.bases[f+1] && f > m.truth.Last():
			late = true
		case m.bases[f+1]:
			end = max(end, m.truth.EndAt(f))
		default:
			end = max(end, f)
		}
		for _, tab := range v.tables[k] {
			it := tab.NewIter(nil, nil)
			for ok := it.First(); ok; ok = it.Next() {
				end = max(end, it.Version().Seqno)
			}
		}
	}
	v.release()
	due := !m.pending.IsZero() && !m.o.Now().Before(m.pending)
	if late && !due {
		end = m.matchingEnd(t, max(end, m.truth.EndAt(durable)))
	}
	switch {
	case due:
		// It was due, and happened before anyone could look.
		m.truth.Cut(end)
		m.truth.Clear(end)
		m.pending = time.Time{}
	case end < m.truth.EndAt(durable):
		t.Fatalf("recovered up to %d, durable was %d, written %d\n%s", end, durable, m.truth.Last(), m.where("k"))
	case end != m.truth.EndAt(end):
		t.Fatalf("recovered up to %d, within a batch\n%s", end, m.where("k"))
	default:
		m.truth.Cut(end)
	}
	got := m.db.Stats().PendingClear
	if m.replaced && got.IsZero() {
		m.pending = got
	}
	m.replaced = false
	if !got.Equal(m.pending) {
		t.Fatalf("pending clear at %v, want %v", got, m.pending)
	}
	m.everything(t)
}

// matchingEnd returns the last end of a batch, at or above from, as of which the
// model has what the store has.
func (m *machine) matchingEnd(t *rapid.T, from Seqno) Seqno {
	// What has expired, but was not given up, must match, too.
	now := m.now.Swap(0)
	defer m.now.Store(now)
	it, err := m.db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	found := map[string]Seqno{}
	for ok := it.First(); ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil {
			t.Fatal(err)
		}
		found[string(item.Key)] = item.Seqno
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
	for at := m.truth.Last(); at >= from; at = m.truth.EndAt(at - 1) {
		n := 0
		for key, v := range m.truth.Range("", at, m.clock()) {
			if n++; found[key] != v.Seqno {
				n = -1
				break
			}
		}
		if n == len(found) {
			return at
		}
		if at == 0 {
			break
		}
	}
	t.Fatalf("no end of a batch from %d to %d explains the %d documents that were recovered", from, m.truth.Last(), len(found))
	return 0
}

// everything compares all documents, one by one and in order.
func (m *machine) everything(t *rapid.T) {
	keys := m.truth.Keys()
	var b ReadBatch
	for _, key := range keys {
		b.Add([]byte(key))
	}
	b.After(m.truth.Last())
	if err := m.db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		m.check(t, key, *b.Item(i), b.Err(i), m.truth.Last(), m.truth.Last())
	}
	b.Release()
	w := m.walkOver(t, nil, nil, nil, IterOptions{})
	for ok := w.step(t, m, w.it.First()); ok; {
		ok = w.step(t, m, w.it.Next())
	}
	w.it.Close()
}
