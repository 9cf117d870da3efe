package lsm

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"time"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// Check holds what is true after every action.
func (m *machine) Check(t *rapid.T) {
	m.shape.actions.Add(1)
	s := m.db.Stats()
	if s.NextSeqno != m.next || s.VisibleSeqno != m.next-1 {
		t.Fatalf("visible %d, next %d, want next %d", s.VisibleSeqno, s.NextSeqno, m.next)
	}
	if s.DurableSeqno > s.NextSeqno-1 || s.ReadOnly != "" {
		t.Fatalf("durable %d, next %d, read-only %q", s.DurableSeqno, s.NextSeqno, s.ReadOnly)
	}
	if n := len(m.snaps) + len(m.walks); s.Snapshots != n {
		t.Fatalf("%d snapshots registered, want %d", s.Snapshots, n)
	}
	if s.CorruptReads != 0 || s.TablesFenced != 0 {
		t.Fatalf("%d corrupt reads, %d damaged tables", s.CorruptReads, s.TablesFenced)
	}
	if n := s.FlushesFailed + s.CompactionsFailed + s.CollectionsFailed; n != 0 {
		t.Fatalf("%d jobs failed: %q", n, m.log.take())
	}
	gone := int64(m.db.expiryClock.Load())
	if gone < m.gone || gone > m.highest {
		t.Fatalf("versions were given up as of %d, before as of %d, the clock was never beyond %d", gone, m.gone, m.highest)
	}
	if gone > m.gone {
		m.shape.gone.Add(1)
	}
	m.gone = gone
	if s.RunsMax > 2 {
		m.shape.runs.Add(1)
	}
	v := m.db.pin()
	defer v.release()
	for _, f := range v.version.files {
		if d := m.db.log.DurableSeqno(); f.meta.HighestSeqno > d {
			t.Fatalf("table %d has seqno %d, durable is %d", f.meta.Number, f.meta.HighestSeqno, d)
		}
	}
}

// horizon is where the oldest reader reads, now and from now on.
func (m *machine) horizon() Seqno {
	h := m.plainSeqno()
	for _, s := range m.snaps {
		h = min(h, s.Seqno())
	}
	for _, w := range m.walks {
		h = min(h, w.it.at)
	}
	return h
}

// pause calls fn while no job of the store runs or begins, and the manifest
// stands still.
func (m *machine) pause(fn func()) {
	s := &m.db.sched
	for {
		s.mu.Lock()
		m.quietLocked()
		if m.db.edits.mu.TryLock() {
			break
		}
		s.mu.Unlock()
		runtime.Gosched()
	}
	defer s.mu.Unlock()
	defer m.db.edits.mu.Unlock()
	fn()
}

// quietLocked waits until no job runs. sched.mu is held.
func (m *machine) quietLocked() {
	s := &m.db.sched
	for s.running > 0 || len(s.mergesNow) > 0 || s.collecting {
		s.cond.Wait()
	}
}

// settle ends all readers and wants everything they held to be given back.
func (m *machine) settle(t *rapid.T) {
	m.endReaders()
	deadline := time.Now().Add(10 * time.Second)
	for {
		wrong := ""
		m.pause(func() { wrong = m.leftover() })
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(wrong)
		}
		m.db.sched.wake() // what is to be removed is about to
		runtime.Gosched()
	}
}

// leftover names something that is held without need.
func (m *machine) leftover() string {
	db := m.db
	v := db.current.Load()
	if n := v.refs.Load(); n != 1 {
		return fmt.Sprintf("the current view has %d references", n)
	}
	if n := v.version.refs.Load(); n != 1 {
		return fmt.Sprintf("the current version has %d references", n)
	}
	st := db.edits.log.State()
	for _, s := range st.Segments {
		if s.Sealed && v.version.segments[s.ID] == nil && st.TablesOf(s.ID) > 0 {
			return fmt.Sprintf("tables address segment %06d, which the version lacks", s.ID)
		}
	}
	if len(db.files) != len(v.version.files) || len(st.Tables) != len(db.files) {
		return fmt.Sprintf("the manifest names %d tables, %d are known, %d in the version", len(st.Tables), len(db.files), len(v.version.files))
	}
	for _, f := range v.version.files {
		if n := f.refs.Load(); n != 1 || f.dropped.Load() || db.files[f.meta.Number] != f {
			return fmt.Sprintf("table %d has %d references, dropped %v", f.meta.Number, n, f.dropped.Load())
		}
	}
	if n := db.readers.Stats().Open; n > len(db.files) {
		return fmt.Sprintf("%d tables are open, of %d", n, len(db.files))
	}
	cleared := st.ClearSeqno != 0 && st.ClearSeqno <= db.horizon()
	for _, x := range st.Tables {
		if cleared && x.HighestSeqno <= st.ClearSeqno {
			return fmt.Sprintf("table %d has nothing above %d, where the store was cleared", x.Number, st.ClearSeqno)
		}
	}
	db.commit.mu.Lock()
	defer db.commit.mu.Unlock()
	used := int64(0)
	for k := range db.kvstores {
		for i, x := range v.tables[k] {
			used += x.bytes.Load()
			if n := x.refs.Load(); n != 1 {
				return fmt.Sprintf("memtable %d of kvstore %d has %d references", i, k, n)
			}
			if i > 0 && x.cleared != 0 && x.cleared <= db.horizon() {
				return fmt.Sprintf("memtable %d of kvstore %d was cleared at %d", i, k, x.cleared)
			}
			from := st.ReplayFrom
			if at := x.first; at.Segment != 0 && (at.Segment < from.Segment || at.Segment == from.Segment && at.Offset < from.Offset) {
				return fmt.Sprintf("replay starts at %v, a memtable of kvstore %d at %v", from, k, at)
			}
		}
	}
	if n := db.quota.used.Load(); n != used {
		return fmt.Sprintf("the write cache counts %d bytes, its memtables %d", n, used)
	}
	return ""
}

// where says which versions of a key are where, for the report of a failure.
func (m *machine) where(key string) string {
	db := m.db
	v := db.pin()
	if v == nil {
		return "the store is closed"
	}
	defer v.release()
	st := db.edits.log.State()
	vb := db.vbucket([]byte(key))
	k := int(vb) % db.kvstores
	out := fmt.Sprintf("kvstore %d, flushed %d, replay from %v, cleared %d, recovered %+v, visible %d, durable %d, next after starts %v\n", k,
		st.FlushedSeqno(uint16(k)), st.ReplayFrom, st.ClearSeqno, db.recovery, db.publish.visible.Load(), db.log.DurableSeqno(), slices.Sorted(maps.Keys(m.bases)))
	internal := entry.AppendKey(nil, vb, []byte(key))
	list := func(what string, it entry.Iterator) {
		out += what + ":"
		for ok := it.SeekGE(internal, entry.MaxSeqno); ok && bytes.Equal(it.Version().Key, internal); ok = it.Next() {
			x := it.Version()
			out += fmt.Sprintf(" #%d kind %d expiry %d", x.Seqno, x.Kind, x.Meta.Expiry)
		}
		out += "\n"
	}
	for i, tab := range v.tables[k] {
		list(fmt.Sprintf("memtable %d, first %v, sealed %d, cleared %d", i, tab.first, tab.sealed, tab.cleared), tab.NewIter(nil, nil))
	}
	for _, r := range v.version.runs[k] {
		x := r.files[0].meta
		it := r.newIter(sstable.IterOptions{})
		list(fmt.Sprintf("run %d of %d tables, the first with #%d to #%d", x.Run, len(r.files), x.LowestSeqno, x.HighestSeqno), it)
		it.Close()
	}
	for _, line := range m.log.take() {
		out += line + "\n"
	}
	return out
}

// finish closes the store and looks at what it leaves.
func (m *machine) finish(t *rapid.T) {
	m.endReaders()
	if err := m.db.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	m.closed(t, m.horizon())
	m.db = nil
}

// closed looks at a store that was closed in order. h is the horizon as it was
// when the last job had ended: a flush that Close waits for makes more durable,
// and with it dead.
func (m *machine) closed(t *rapid.T, h Seqno) {
	m.filesClosed(t)
	if n := m.db.readers.Stats().Open; n != 0 {
		t.Fatalf("%d tables are left open", n)
	}
	if lines := m.log.take(); len(lines) > 0 {
		t.Fatalf("logged: %q", lines)
	}
	m.deadSets(t, h)
}

// deadSets wants every dead document to be in the index of its segment and out
// of sight of any reader from h on; every address that a reader follows to lead
// to a document; and every document below what is flushed that no table
// addresses to be dead.
func (m *machine) deadSets(t *rapid.T, h Seqno) {
	disk := m.disk.CrashCopy(0, memfs.KeepAll)
	db := m.db
	log, st, err := manifest.Open(disk, "data", db.secret)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.orphans(t, disk, &st)

	keys := map[Seqno]string{}
	for key, v := range m.truth.All() {
		keys[v.Seqno] = key
	}
	seen := func(s Seqno) bool {
		return m.truth.Visible(keys[s], s, h, entry.MaxSeqno, max(m.now.Load(), int64(st.ExpiryClock)))
	}
	indexes := map[entry.SegmentID]*wal.SeqnoIndex{}
	for _, s := range st.Segments {
		index, err := wal.ReadSeqnoIndex(context.Background(), wal.ScanOptions{
			FS: disk, Dir: "data", Secret: db.secret, StoreID: db.format.StoreID, BufferBytes: 64 * kib,
		}, s.ID, wal.SegmentKind(s.Kind), s.End)
		if err != nil {
			t.Fatalf("index of segment %06d: %v", s.ID, err)
		}
		indexes[s.ID] = index
	}
	for _, d := range st.Dead {
		for _, s := range d.AppendSeqnos(nil) {
			if _, ok := indexes[d.Segment()].Lookup(s); !ok {
				t.Fatalf("segment %06d: seqno %d is dead, but not in its index", d.Segment(), s)
			}
			if seen(s) {
				t.Fatalf("segment %06d: document %q of seqno %d is dead, but a reader at %d sees it", d.Segment(), keys[s], s, h)
			}
		}
		m.shape.dead.Add(int64(d.Len()))
	}
	addressed := map[Seqno]entry.SegmentID{}
	for _, x := range st.Tables {
		m.table(t, disk, x.Number, func(v *entry.Version) {
			if v.Value.HasBytes || v.Kind != entry.KindSet {
				return
			}
			a := v.Value.Address
			for _, id := range st.Resolve(nil, a.Segment, v.Seqno) {
				offset, ok := indexes[id].Lookup(v.Seqno)
				if !ok {
					continue
				}
				if id == a.Segment && offset != a.Offset {
					t.Fatalf("document %q of seqno %d is addressed at %v, it is at %d", keys[v.Seqno], v.Seqno, a, offset)
				}
				if st.DeadSet(id).Contains(v.Seqno) {
					t.Fatalf("segment %06d: document %q of seqno %d is dead, but table %d addresses it", id, keys[v.Seqno], v.Seqno, x.Number)
				}
				addressed[v.Seqno] = id
				return
			}
			// A collection leaves out what it knows to be replaced.
			if seen(v.Seqno) {
				t.Fatalf("document %q of seqno %d is addressed at %v, where it is not", keys[v.Seqno], v.Seqno, a)
			}
		})
	}
	for id, index := range indexes {
		for seqno := range index.All() {
			key, ok := keys[seqno]
			if ok && addressed[seqno] != id && !st.DeadSet(id).Contains(seqno) && seqno > st.ClearSeqno &&
				seqno <= st.FlushedSeqno(uint16(int(db.vbucket([]byte(key)))%db.kvstores)) {
				t.Fatalf("document %q of seqno %d is in no table, but not known to be dead in segment %06d", key, seqno, id)
			}
		}
	}
}

// table shows all versions of a table.
func (m *machine) table(t *rapid.T, disk *memfs.FS, number uint64, fn func(*entry.Version)) {
	rs := sstable.NewReaders(sstable.ReadersOptions{FS: disk, Dir: path.Join("data", TablesDir), StoreID: m.db.format.StoreID})
	h := rs.Add(number)
	r, err := h.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	it := r.NewIter(sstable.IterOptions{})
	for ok := it.First(); ok; ok = it.Next() {
		fn(it.Version())
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
	it.Close()
	h.Release()
	if err := rs.Close(); err != nil {
		t.Fatal(err)
	}
}

// orphans wants no file that the manifest does not name.
func (m *machine) orphans(t *rapid.T, disk *memfs.FS, st *manifest.State) {
	if len(m.snaps)+len(m.walks) > 0 {
		return // what they kept when the store was closed goes with the next start
	}
	tables := map[uint64]bool{}
	for _, x := range st.Tables {
		tables[x.Number] = true
	}
	names, err := disk.List(path.Join("data", TablesDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if number, ok := sstable.ParseName(n); !ok || !tables[number] {
			t.Fatalf("%s is not in the manifest", n)
		}
	}
	if names, err = disk.List(path.Join("data", wal.SegmentsDir)); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		id, _, ok := wal.ParseSegmentName(n)
		if _, known := st.Segment(id); !ok || !known {
			t.Fatalf("%s is not in the manifest", n)
		}
	}
}
