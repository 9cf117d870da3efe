package lsm

import (
	"time"

	"pgregory.net/rapid"

	"fluxkv/internal/vfs/memfs"
)

// Reopen closes and opens the store: nothing may be lost, in any mode.
func (m *machine) Reopen(t *rapid.T) {
	if err := m.db.Close(); err != nil {
		t.Fatal(err)
	}
	m.readersEnded(t)
	m.open(t)
	if r := m.db.Stats().Recovery; !r.Clean {
		t.Fatalf("closed in order, but found %+v", r)
	}
	m.recovered(t, m.truth.Last())
}

// Crash takes the disk as a power cut at this moment would leave it.
func (m *machine) Crash(t *rapid.T) {
	durable := m.db.log.DurableSeqno()
	m.crash(t, durable)
}

// CrashWithin cuts the power at one of the next calls to the disk. What is
// written until then, and fails or not, may be there or not; what was
// acknowledged must be.
func (m *machine) CrashWithin(t *rapid.T) {
	n := int64(rapid.IntRange(1, 60).Draw(t, "calls"))
	m.disk.CrashAt(m.disk.Calls()+n, rapid.SampledFrom([]memfs.When{memfs.Before, memfs.Within}).Draw(t, "when"))
	for range 60 {
		var err error
		switch rapid.IntRange(0, 9).Draw(t, "last words") {
		case 0:
			err = m.update(t)
		case 1:
			err = m.clear(t)
		default:
			err = m.write(t)
		}
		if err != nil {
			break
		}
	}
	m.disk.CrashAt(0, memfs.Before)
	m.crash(t, m.db.log.DurableSeqno())
}

func (m *machine) crash(t *rapid.T, durable Seqno) {
	damage := rapid.SampledFrom(memfs.Damages()).Draw(t, "damage")
	image := m.disk.CrashCopy(int64(rapid.IntRange(0, 1000).Draw(t, "seed")), damage)
	m.db.Close()
	m.readersEnded(t)
	m.disk = image
	m.open(t)
	m.recovered(t, durable)
}

// recovered finds how much is there, which must be whole batches, all up to
// durable and perhaps more, and compares everything.
func (m *machine) recovered(t *rapid.T, durable Seqno) {
	v := m.db.pin()
	var end Seqno
	if len(v.clears) > 0 {
		end = v.clears[len(v.clears)-1]
	}
	st := m.db.edits.log.State()
	for k := range m.db.kvstores {
		end = max(end, st.FlushedSeqno(uint16(k)))
		for _, tab := range v.tables[k] {
			it := tab.NewIter(nil, nil)
			for ok := it.First(); ok; ok = it.Next() {
				end = max(end, it.Version().Seqno)
			}
		}
	}
	v.release()
	switch {
	case !m.pending.IsZero() && !m.o.Now().Before(m.pending):
		// It was due, and happened before anyone could look.
		m.truth.Cut(end)
		m.truth.Clear(end)
		m.pending = time.Time{}
	case end < m.truth.EndAt(durable):
		t.Fatalf("recovered up to %d, durable was %d, written %d", end, durable, m.truth.Last())
	case end != m.truth.EndAt(end):
		t.Fatalf("recovered up to %d, within a batch", end)
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
