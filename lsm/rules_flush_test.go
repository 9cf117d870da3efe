package lsm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// tableFiles returns the tables on disk.
func tablesOnDisk(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List(path.Join("data", TablesDir))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// until waits for something that the store does in the background.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for range 10_000 {
		if done() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("waited in vain: %s", what)
}

func mustFlush(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
}

// pauseFlushes lets no flush start any more.
func pauseFlushes(db *DB) {
	db.sched.mu.Lock()
	db.sched.flushes.pause.until = time.Now().Add(time.Hour)
	db.sched.mu.Unlock()
}

// keyOf returns a key of a kvstore.
func keyOf(db *DB, kvstore, n int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("key-%d-%d", n, i)
		if int(db.vbucket([]byte(key)))%db.kvstores == kvstore {
			return key
		}
	}
}

func TestR01_OnlyDurableVersionsAreFlushed(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.NonDurable = true
	o.AsyncWindow = time.Minute
	db := mustOpen(t, "data", o)
	set(t, db, "a", "1")
	release := holdWrites(fs)
	flushed := make(chan error, 1)
	go func() { flushed <- db.Flush() }()
	until(t, "a flush under way", func() bool { return db.Stats().FlushesNow > 0 })
	// The group is being written and does not get through: the flush waits.
	for range 20 {
		if st := db.edits.log.State(); len(st.Tables) > 0 || len(st.Flushed) > 0 {
			t.Fatalf("the manifest says flushed, but nothing is durable: %+v", st)
		}
		time.Sleep(time.Millisecond)
	}
	release()
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	st := db.edits.log.State()
	for _, tab := range st.Tables {
		if tab.HighestSeqno > db.log.DurableSeqno() {
			t.Errorf("table up to seqno %d, durable is %d", tab.HighestSeqno, db.log.DurableSeqno())
		}
	}
	if len(st.Tables) != 1 {
		t.Errorf("%d tables, want 1", len(st.Tables))
	}
	db.Close()
}

func TestR01_AReadOnlyStoreFlushesNothing(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	set(t, db, "a", "1")
	fail := errors.New("the disk is gone")
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteDurable {
			return fail
		}
		return nil
	})
	if _, err := db.Set([]byte("b"), nil, Meta{}); !errors.Is(err, ErrReadOnly) {
		t.Fatal(err)
	}
	if err := db.Flush(); !errors.Is(err, ErrReadOnly) {
		t.Errorf("flush of a read-only store: %v", err)
	}
	if n := tablesOnDisk(t, fs); len(n) > 0 {
		t.Errorf("tables of a read-only store: %v", n)
	}
	want(t, db, "a", "1")
}

func TestR02_AFlushWaitsForWritersOfItsMemtable(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.NonDurable = true
	db := mustOpen(t, "data", o)
	defer db.Close()
	set(t, db, "before", "0")
	// A writer that has its place in the memtable and does not get on.
	var b Batch
	b.Set([]byte("late"), []byte("1"), Meta{})
	size, memory, err := db.size(&b)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.quota.admit(memory); err != nil {
		t.Fatal(err)
	}
	place, ticket, err := db.number(&b, size, nil)
	if err != nil {
		t.Fatal(err)
	}
	flushed := make(chan error, 1)
	go func() { flushed <- db.Flush() }()
	until(t, "a flush that waits for the writer", func() bool {
		db.publish.mu.Lock()
		defer db.publish.mu.Unlock()
		return db.publish.waiting > 0
	})
	if n := tablesOnDisk(t, fs); len(n) > 0 {
		t.Errorf("flushed while a batch was being inserted: %v", n)
	}
	db.encode(&b, &place, nil)
	place.Done()
	db.insert(&b)
	db.publish.finish(ticket)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Entries != 0 || s.TableEntries != 2 {
		t.Errorf("%d versions in memory, %d in tables, want 0 and 2", s.Entries, s.TableEntries)
	}
	want(t, db, "late", "1")
}

func TestR02_FlushesOfAKVStoreFollowSealing(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.KVStores, o.VBuckets, o.Flushers = 1, 1, 4
	db := mustOpen(t, "data", o)
	db.tableBytesMax = 16 * kib // memtables rotate all the time
	for i := range 3000 {
		set(t, db, fmt.Sprintf("key%d", i%100), fmt.Sprint(i))
	}
	mustFlush(t, db)
	st := db.edits.log.State()
	last := Seqno(0)
	for _, tab := range st.Tables {
		if tab.HighestSeqno > st.FlushedSeqno(0) {
			t.Errorf("table up to %d, flushed up to %d", tab.HighestSeqno, st.FlushedSeqno(0))
		}
	}
	runs := db.current.Load().version.runs[0]
	for i := len(runs) - 1; i >= 0; i-- {
		m := runs[i].files[0].meta
		if m.LowestSeqno <= last {
			t.Errorf("run %d begins at seqno %d, the older one ends at %d", i, m.LowestSeqno, last)
		}
		last = m.HighestSeqno
	}
	for i := 2900; i < 3000; i++ {
		want(t, db, fmt.Sprintf("key%d", i%100), fmt.Sprint(i))
	}
	db.Close()
}

func TestR03_TheOldestMemtableHoldsReplayFrom(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.flushOnDemand = true
	db := mustOpen(t, "data", o)
	set(t, db, keyOf(db, 3, 0), "cold")
	cold := db.edits.log.State().ReplayFrom
	value := strings.Repeat("x", 200)
	for i := range 3000 { // several segments, all inline
		set(t, db, keyOf(db, 5, i%50), value)
	}
	if err := db.flush(context.Background(), []int{5}); err != nil {
		t.Fatal(err)
	}
	st := db.edits.log.State()
	if st.ReplayFrom.Seqno > 1 || st.ReplayFrom.Segment != cold.Segment {
		t.Errorf("replay from %v although kvstore 3 has a version at seqno 1", st.ReplayFrom)
	}
	before := len(st.Segments)
	if before < 4 {
		t.Fatalf("%d segments: the test wants more", before)
	}
	// A crash now: what kvstore 5 flushed is not loaded again, kvstore 3 is.
	crashed := o
	crashed.FS = fs.CrashCopy(1, memfs.DropAll)
	re := mustOpen(t, "data", crashed)
	if s := re.Stats(); s.Entries != 1 {
		t.Errorf("replay loaded %d versions, want 1", s.Entries)
	}
	want(t, re, keyOf(re, 3, 0), "cold")
	want(t, re, keyOf(re, 5, 7), value)
	re.Close()
	// With the cold one flushed nothing holds the segments.
	if err := db.flush(context.Background(), []int{3}); err != nil {
		t.Fatal(err)
	}
	st = db.edits.log.State()
	if st.ReplayFrom.Seqno != 3002 || len(st.Segments) > 2 {
		t.Errorf("replay from %v, %d segments of %d, want 3002 and 2", st.ReplayFrom, len(st.Segments), before)
	}
	db.Close()
}

func TestR03_ReplayFromWaitsForAClearThatIsNotRecorded(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	set(t, db, "a", "1")
	seqno, err := db.placeClear() // as of a clear that got no further
	if err != nil {
		t.Fatal(err)
	}
	if err := db.waitDurable(seqno, true); err != nil {
		t.Fatal(err)
	}
	set(t, db, "b", "2")
	mustFlush(t, db)
	if from := db.edits.log.State().ReplayFrom; from.Seqno > seqno {
		t.Errorf("replay from %v would miss the clear at %d", from, seqno)
	}
}

// deadSetsHold checks R6 by the segments themselves: every dead seqno is one of
// the segment's exact index, and no table names it.
func deadSetsHold(t testing.TB, db *DB) (dead int) {
	t.Helper()
	st := db.edits.log.State()
	r := &recoverer{db: db, ctx: context.Background()}
	for _, d := range st.Dead {
		s, ok := st.Segment(d.Segment())
		if !ok {
			t.Fatalf("dead set of segment %06d, which is not registered", d.Segment())
		}
		x, err := wal.ReadSeqnoIndex(context.Background(), r.scanOptions(), s.ID, wal.SegmentKind(s.Kind), s.End)
		if err != nil {
			t.Fatalf("index of segment %06d: %v", s.ID, err)
		}
		for _, q := range d.AppendSeqnos(nil) {
			if _, ok := x.Lookup(q); !ok {
				t.Errorf("seqno %d is dead in segment %06d, whose index does not have it", q, s.ID)
			}
			dead++
		}
	}
	v := db.pin()
	defer v.release()
	for _, f := range v.version.files {
		it := (&run{files: []*tableFile{f}}).newIter(sstable.IterOptions{})
		for ok := it.First(); ok; ok = it.Next() {
			x := it.Version()
			if a := x.Value.Address; !a.IsZero() && deadIn(&st, a.Segment).Contains(x.Seqno) {
				t.Errorf("%v names seqno %d, which is dead in segment %06d", f, x.Seqno, a.Segment)
			}
		}
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return dead
}

func deadIn(st *manifest.State, id entry.SegmentID) *manifest.DeadSet {
	for _, d := range st.Dead {
		if d.Segment() == id {
			return d
		}
	}
	return nil
}

func TestR06_DeadSeqnosAreInTheirSegments(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.noGC = true // it would collect them
	db := mustOpen(t, "data", o)
	value := strings.Repeat("v", 1000)
	for i := range 600 { // each of 60 keys ten times, and a live one in every segment
		set(t, db, fmt.Sprintf("key%d", i%60), value)
		if i%5 == 0 {
			set(t, db, fmt.Sprintf("live%d", i), value)
		}
	}
	mustFlush(t, db)
	set(t, db, "end", "x")
	// The segment that is written to has an index when it is sealed.
	for i := range 200 {
		set(t, db, fmt.Sprintf("more%d", i), value)
	}
	until(t, "the footers", func() bool {
		st := db.edits.log.State()
		for _, d := range st.Dead {
			if s, _ := st.Segment(d.Segment()); !s.Sealed {
				return false
			}
		}
		return true
	})
	if n := deadSetsHold(t, db); n != 540 {
		t.Errorf("%d documents known to be dead, want 540", n)
	}
	db.Close()
}

func TestR12_MissingOrCutTablesAreRefused(t *testing.T) {
	for _, damage := range []string{"missing", "cut", "empty"} {
		t.Run(damage, func(t *testing.T) {
			fs := memfs.New()
			o := testOptions(fs)
			db := mustOpen(t, "data", o)
			for i := range 100 {
				set(t, db, fmt.Sprintf("key%d", i), "value")
			}
			mustFlush(t, db)
			db.Close()
			name := path.Join("data", TablesDir, tablesOnDisk(t, fs)[2])
			switch damage {
			case "missing":
				if err := fs.Remove(name); err != nil {
					t.Fatal(err)
				}
			default:
				f, err := fs.Open(name, vfs.OpenOptions{Write: true})
				if err != nil {
					t.Fatal(err)
				}
				size := int64(0)
				if damage == "cut" {
					size = 4096
				}
				if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
					t.Fatal(err)
				}
			}
			before := dump(t, fs, "data", "data/log", "data/idx")
			_, err := Open("data", o)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
				t.Errorf("open: %v, want corruption of %s", err, name)
			}
			if after := dump(t, fs, "data", "data/log", "data/idx"); after != before {
				t.Error("an open that was refused changed the directory")
			}
		})
	}
}

func TestR15_AFlushKeepsWhatASnapshotSees(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	big := strings.Repeat("b", 700)
	set(t, db, "k", big+"1")
	set(t, db, "gone", "1")
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	set(t, db, "k", big+"2")
	set(t, db, "k", big+"3")
	if _, err := db.Delete([]byte("gone")); err != nil {
		t.Fatal(err)
	}
	mustFlush(t, db)
	sees := func(key, value string) {
		t.Helper()
		if it, err := snap.Get(nil, []byte(key)); err != nil || string(it.Value) != value {
			t.Errorf("the snapshot sees %d bytes of %s, %v", len(it.Value), key, err)
		}
	}
	sees("k", big+"1")
	sees("gone", "1")
	want(t, db, "k", big+"3")
	want(t, db, "gone", "")
	// Between the snapshot and the newest nobody reads, but H is the snapshot's.
	if s := db.Stats(); s.TableEntries != 5 || s.FlushDropped != 0 {
		t.Errorf("%d versions in tables, %d dropped, want 5 and 0", s.TableEntries, s.FlushDropped)
	}
	set(t, db, "k", big+"4")
	set(t, db, "k", big+"5")
	mustFlush(t, db)
	sees("k", big+"1")
	snap.Close()
	set(t, db, "k", big+"6")
	set(t, db, "k", big+"7")
	mustFlush(t, db)
	if s := db.Stats(); s.FlushDropped != 1 {
		t.Errorf("%d versions dropped after the snapshot was closed, want 1", s.FlushDropped)
	}
	want(t, db, "k", big+"7")
}

func TestR18_AViewKeepsWhatAFlushReplaces(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	set(t, db, "k", "value in a memtable")
	var b ReadBatch
	b.Add([]byte("k"))
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	used := db.Stats().WriteCacheUsed
	mustFlush(t, db)
	set(t, db, "other", "x")
	if string(b.Item(0).Value) != "value in a memtable" {
		t.Errorf("the item of a pinned view became %q", b.Item(0).Value)
	}
	if got := db.Stats().WriteCacheUsed; got < used {
		t.Errorf("memory of a pinned memtable was given back: %d of %d bytes", got, used)
	}
	b.Release()
	mustFlush(t, db)
	until(t, "the write cache to be empty", func() bool { return db.Stats().WriteCacheUsed == 0 })
}

func TestR20_ATableGoesWithItsLastReader(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	for i := range 100 {
		set(t, db, fmt.Sprintf("key%d", i), "v")
	}
	mustFlush(t, db)
	n := len(tablesOnDisk(t, fs))
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	it.First()
	var b ReadBatch
	b.Add([]byte("key1"))
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	it.Close() // it registered a seqno; b only pins a view
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if st := db.edits.log.State(); len(st.Tables) != 0 {
		t.Fatalf("%d tables after a clear", len(st.Tables))
	}
	if got := len(tablesOnDisk(t, fs)); got != n {
		t.Errorf("%d of %d tables left under a reader", got, n)
	}
	b.Release()
	until(t, "the tables to go", func() bool { return len(tablesOnDisk(t, fs)) == 0 })
}

func TestR21_ADamagedTableIsAnErrorForItsKeysAlone(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	bad, good := keyOf(db, 1, 0), keyOf(db, 2, 0)
	set(t, db, bad, "old")
	mustFlush(t, db)
	set(t, db, bad, "new")
	set(t, db, good, "fine")
	mustFlush(t, db)
	name := ""
	for _, tab := range db.edits.log.State().Tables {
		if tab.KVStore == 1 && tab.HighestSeqno > 1 {
			name = path.Join("data", TablesDir, fmt.Sprintf("%06d.sst", tab.Number))
		}
	}
	db.Close()
	damage(t, fs, name, 10) // its only data block
	db = mustOpen(t, "data", o)
	defer db.Close()
	for range 2 {
		if it, err := db.Get(nil, []byte(bad)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("a key of a damaged block: %q, %v; want an error that names %s", it.Value, err, name)
		}
	}
	want(t, db, good, "fine")
	var b ReadBatch
	b.Add([]byte(bad))
	b.Add([]byte(good))
	b.Add([]byte("none"))
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(b.Err(0), ErrCorrupt) || b.Err(1) != nil || !errors.Is(b.Err(2), ErrNotFound) {
		t.Errorf("in a batch: %v, %v, %v", b.Err(0), b.Err(1), b.Err(2))
	}
	b.Release()
	if n := db.Stats().CorruptReads; n == 0 {
		t.Error("damage was not counted")
	}
	// Writing over it heals the key, and goes on everywhere.
	set(t, db, bad, "newer")
	want(t, db, bad, "newer")
	mustFlush(t, db)
	want(t, db, bad, "newer")
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
	}
	if !errors.Is(it.Error(), ErrCorrupt) {
		t.Errorf("an iterator passed over a damaged block: %v", it.Error())
	}
}

func TestR26_TheLogToReplayIsBounded(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = mib
	db := mustOpen(t, "data", o)
	defer db.Close()
	cold := keyOf(db, 3, 0)
	set(t, db, cold, "cold")
	// One hot kvstore fills the cache again and again, and is flushed each time.
	value := strings.Repeat("x", 200)
	for i := range 40_000 {
		if _, err := db.Set([]byte(keyOf(db, 5, 0)), []byte(value), Meta{}); err != nil {
			t.Fatal(err)
		}
		if i%4000 == 0 {
			db.commit.mu.Lock()
			record, _ := db.log.PlacedLocked()
			oldest := record
			for _, ts := range &db.current.Load().tables {
				for _, tab := range ts {
					if tab.first.Segment != 0 {
						oldest = min(oldest, tab.record)
					}
				}
			}
			db.commit.mu.Unlock()
			if record-oldest > 4*o.WriteCache {
				t.Fatalf("after %d writes the log to replay has %d bytes of records", i, record-oldest)
			}
		}
	}
	until(t, "the cold kvstore to be flushed", func() bool {
		st := db.edits.log.State()
		return st.FlushedSeqno(3) > 0
	})
	want(t, db, cold, "cold")
}

func TestR26_KVStoresFlushedTogetherShareAnEditAndADirectorySync(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.flushOnDemand = true
	db := mustOpen(t, "data", o)
	defer db.Close()
	var b Batch
	for i := range 200 {
		b.Set(fmt.Appendf(nil, "key%d", i), []byte("v"), Meta{})
	}
	if _, err := db.Apply(&b, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	var syncs atomic.Int32
	var some atomic.Bool
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSyncDir && path.Base(op.Name) == TablesDir {
			syncs.Add(1)
		}
		return nil
	})
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			st := db.edits.log.State()
			if n := len(st.Tables); n != 0 && n != db.kvstores {
				some.Store(true)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	all := make([]int, db.kvstores)
	for k := range all {
		all[k] = k
	}
	if err := db.flush(context.Background(), all); err != nil {
		t.Fatal(err)
	}
	fs.SetHook(nil)
	close(stop)
	<-watched
	st := db.edits.log.State()
	if n := len(st.Tables); n != db.kvstores || syncs.Load() != 1 || len(st.Flushed) != db.kvstores {
		t.Errorf("%d tables with %d directory syncs, %d kvstores flushed, want %d, 1 and %d",
			n, syncs.Load(), len(st.Flushed), db.kvstores, db.kvstores)
	}
	// One edit: no state between none and all was ever in the manifest.
	if some.Load() {
		t.Error("the manifest had some of the tables and not all")
	}
}

func TestR23_AnIdleStoreFlushes(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.IdleFlush = 20 * time.Millisecond
	db := mustOpen(t, "data", o)
	defer db.Close()
	value := strings.Repeat("x", 200)
	for i := range 3000 {
		set(t, db, fmt.Sprintf("key%d", i), value)
	}
	until(t, "an idle flush", func() bool { return db.Stats().Entries == 0 && db.Stats().Log.Pooled == 0 })
	if n := len(db.edits.log.State().Segments); n > 2 {
		t.Errorf("%d segments of an idle store with nothing in the log", n)
	}
}
