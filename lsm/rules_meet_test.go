package lsm

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// onceDuring runs do inside the next sync of a file whose name ends like that.
func onceDuring(fs *memfs.FS, suffix string, do func()) {
	var done atomic.Bool
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, suffix) && done.CompareAndSwap(false, true) {
			do()
		}
		return nil
	})
}

// outputs are the segments that collections made, oldest first.
func outputs(db *DB) (all []entry.SegmentID) {
	for _, s := range db.edits.log.State().Segments {
		if s.Kind == manifest.SegmentGC {
			all = append(all, s.ID)
		}
	}
	return all
}

// TestR07_WhatDiesDuringACollectionIsCarriedOver: a merge counts documents dead in
// a segment while its living ones are being copied. They are dead in the output;
// and what was deleted meanwhile, tombstone and all, stays deleted (G1, G2).
func TestR07_WhatDiesDuringACollectionIsCarriedOver(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", gcOptions(fs))
	defer db.Close()
	value := separated(t, db, "dies", "deleted", "lives")
	dies, deleted, lives := Seqno(1), Seqno(2), Seqno(3)
	once, _ := collectable(db)
	met := false
	onceDuring(fs, ".gc.seg", func() {
		met = true
		set(t, db, "dies", "new")
		del(t, db, "deleted")
		mustFlush(t, db)
		mergeAll(t, db)
		if st := db.edits.log.State(); !st.DeadSet(once[0]).Contains(dies) || !st.DeadSet(once[0]).Contains(deleted) {
			t.Error("the merge does not count the dead in the segment that is being collected")
		}
	})
	if err := collectByHand(db, once, nil); err != nil || !met {
		t.Fatal(met, err)
	}
	fs.SetHook(nil)
	st := db.edits.log.State()
	out := outputs(db)
	if len(out) != 1 {
		t.Fatalf("outputs %v", out)
	}
	if d := st.DeadSet(out[0]); d.Len() != 2 || !d.Contains(dies) || !d.Contains(deleted) || d.Contains(lives) {
		t.Errorf("dead in the output: %v, want %d and %d", d.AppendSeqnos(nil), dies, deleted)
	}
	checks := func() {
		t.Helper()
		want(t, db, "dies", "new")
		want(t, db, "deleted", "")
		want(t, db, "lives", value)
		if err := checkStore(db); err != nil {
			t.Error(err)
		}
	}
	checks()
	// They are not copied again.
	if err := collectByHand(db, nil, out); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.GCDropped != 2 {
		t.Errorf("%d documents dropped, want 2", s.GCDropped)
	}
	checks()
}

// TestR07_AMergeLooksUpAgainWhereItsDeadAre: a collection takes the segment that
// the addresses of a merge name, while the merge is being written. What the
// collection copied is dead in its output; what it gave up by itself is dead
// nowhere (R6).
func TestR07_AMergeLooksUpAgainWhereItsDeadAre(t *testing.T) {
	for _, c := range []struct {
		name   string
		copied bool
	}{{"copied", true}, {"given up", false}} {
		t.Run(c.name, func(t *testing.T) {
			fs := memfs.New()
			db := mustOpen(t, "data", gcOptions(fs))
			defer db.Close()
			value := separated(t, db, "dies", "lives")
			set(t, db, "dies", "new")
			mustFlush(t, db)
			if c.copied {
				db.memory.probe = offheap.NewBudget(0) // nobody tells the collection
			}
			met := false
			onceDuring(fs, ".sst", func() {
				met = true
				once, _ := collectable(db)
				if err := collectByHand(db, once, nil); err != nil {
					t.Error(err)
				}
			})
			if err := mergeByHand(db, allOf(db)); err != nil || !met {
				t.Fatal(met, err)
			}
			st := db.edits.log.State()
			out := outputs(db)
			if len(out) != 1 {
				t.Fatalf("outputs %v", out)
			}
			if d := st.DeadSet(out[0]); d.Contains(1) != c.copied || d.Contains(2) {
				t.Errorf("dead in the output: %v", d.AppendSeqnos(nil))
			}
			if len(st.Forwards) != 1 {
				t.Errorf("%d forwards, but the merge wrote addresses of its own version", len(st.Forwards))
			}
			want(t, db, "dies", "new")
			want(t, db, "lives", value)
			if err := checkStore(db); err != nil {
				t.Error(err)
			}

			// The next merge writes the addresses of today, and ends the forward.
			moved := db.Stats().MovedReads
			if moved == 0 {
				t.Error("no document was read under its old address")
			}
			mergeAll(t, db)
			st = db.edits.log.State()
			for _, table := range st.Tables {
				for _, use := range table.Segments {
					if _, ok := st.Segment(use.Segment); !ok {
						t.Errorf("table %06d still names segment %06d", table.Number, use.Segment)
					}
				}
			}
			want(t, db, "lives", value)
			if n := db.Stats().MovedReads; len(st.Forwards) != 0 || n != moved {
				t.Errorf("%d forwards, %d reads under old addresses after the merge", len(st.Forwards), n-moved)
			}
			if err := checkStore(db); err != nil {
				t.Error(err)
			}
		})
	}
}

// sees demands what a snapshot shows of a key; "" is nothing.
func sees(t *testing.T, s *Snapshot, key, value string) {
	t.Helper()
	it, err := s.Get(nil, []byte(key))
	if value == "" && errors.Is(err, ErrNotFound) {
		return
	}
	if err != nil || string(it.Value) != value {
		t.Errorf("the snapshot at %d sees %.20q of %s, %v, want %.20q", s.seqno, it.Value, key, err, value)
	}
}

// TestR15_MergesAndCollectionsKeepWhatASnapshotSees, and nothing else once it is
// closed.
func TestR15_MergesAndCollectionsKeepWhatASnapshotSees(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	value := separated(t, db, "large", "gone", "small")
	set(t, db, "small", "1")
	mustFlush(t, db)
	var snaps []*Snapshot
	shoot := func() {
		s, err := db.NewSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, s)
	}
	shoot()
	set(t, db, "large", value+"2")
	del(t, db, "gone")
	set(t, db, "small", "2")
	mustFlush(t, db)
	shoot()
	set(t, db, "large", value+"3")
	set(t, db, "gone", value+"3")
	set(t, db, "small", "3")
	mustFlush(t, db)
	checks := func() {
		t.Helper()
		want(t, db, "large", value+"3")
		want(t, db, "gone", value+"3")
		want(t, db, "small", "3")
		for i, s := range snaps {
			if s == nil {
				continue
			}
			n := []string{"", "2"}[i]
			sees(t, s, "large", value+n)
			sees(t, s, "gone", []string{value, ""}[i])
			sees(t, s, "small", []string{"1", "2"}[i])
		}
		if err := checkStore(db); err != nil {
			t.Error(err)
		}
	}
	checks()
	collect := func() {
		t.Helper()
		// What was just written must be in a sealed segment, or nothing of it moves.
		separated(t, db)
		for range 2 { // what tables above the last level show, then what a merge found
			once, again := collectable(db)
			if err := collectByHand(db, once, again); err != nil {
				t.Fatal(err)
			}
			checks()
			mergeAll(t, db)
		}
		checks()
	}
	versions := func(want int) {
		t.Helper()
		v := db.pin()
		defer v.release()
		n := 0
		if err := eachVersion(db, v, func(v *entry.Version) error {
			if _, key := entry.SplitKey(v.Key); slices.Contains([]string{"large", "gone", "small"}, string(key)) {
				n++
			}
			return nil
		}); err != nil || n != want {
			t.Errorf("%d versions, %v, want %d", n, err, want)
		}
	}
	collect()
	versions(9) // three of each key, "small" without the one that nobody saw
	snaps[0].Close()
	snaps[0] = nil
	collect()
	versions(5) // two of each, but nothing of "gone" that the snapshot sees
	snaps[1].Close()
	snaps[1] = nil
	collect()
	versions(3)
}

// TestC06_ASnapshotReleasedDuringAMergeChangesNothing: the horizon is taken once,
// when a merge starts.
func TestC06_ASnapshotReleasedDuringAMergeChangesNothing(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	o.TableBytes, o.tableBytesMin = 16*kib, 16*kib // the merge writes several tables
	db := mustOpen(t, "data", o)
	defer db.Close()
	value := strings.Repeat("v", 200)
	var keys []string
	for i := range 200 {
		keys = append(keys, string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	for _, k := range keys {
		set(t, db, k, value+"1")
	}
	mustFlush(t, db)
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		set(t, db, k, value+"2")
	}
	mustFlush(t, db)
	var later *Snapshot
	onceDuring(fs, ".sst", func() { // the first of them is full, the others are not begun
		snap.Close()
		if later, err = db.NewSnapshot(); err != nil {
			t.Error(err)
		}
		set(t, db, keys[0], value+"3")
	})
	// The flushes above may have made several tables each; they are neighbours in
	// age all the same.
	job := compaction.Job{Reason: compaction.ReasonIdle, OutLevel: 1, Bottom: true}
	v := db.pin()
	for _, r := range v.version.runs[0] {
		var in []*manifest.Table
		for _, f := range r.files {
			in = append(in, f.meta)
			job.Bytes, job.Entries = job.Bytes+f.meta.FileBytes, job.Entries+f.meta.Entries
		}
		job.Inputs = append(job.Inputs, in)
	}
	v.release()
	if err := mergeByHand(db, job); err != nil || later == nil {
		t.Fatal(err)
	}
	defer later.Close()
	st := db.edits.log.State()
	n := uint64(0)
	for _, x := range st.Tables {
		n += x.Entries
	}
	if len(st.Tables) < 3 || n != 2*uint64(len(keys)) {
		t.Errorf("%d tables with %d versions, want several with %d", len(st.Tables), n, 2*len(keys))
	}
	for i, k := range keys {
		sees(t, later, k, value+"2")
		if i > 0 {
			want(t, db, k, value+"2")
		}
	}
	want(t, db, keys[0], value+"3")
}

// onDisk reports whether a file of the store is there.
func onDisk(t *testing.T, fs vfs.FS, name string) bool {
	t.Helper()
	names, err := fs.List(path.Dir(name))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(names, path.Base(name))
}

// TestR20_WhatWasMergedAndCollectedGoesWithItsLastReader: an iterator goes on over
// tables and segments that were dropped long ago; then they go, and so does what
// they had in memory (C2, G4).
func TestR20_WhatWasMergedAndCollectedGoesWithItsLastReader(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", gcOptions(fs))
	defer db.Close()
	value := separated(t, db, "a", "b", "c")
	once, _ := collectable(db)
	old := db.edits.log.State()
	victim, _ := old.Segment(once[0])
	var tables []string
	for _, x := range old.Tables {
		tables = append(tables, db.tableName(x.Number))
	}
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	it.pageSize = 1
	it.viewAge = 1 << 60
	if !it.First() {
		t.Fatal(it.Error())
	}
	var b ReadBatch
	b.Add([]byte("c"))
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	set(t, db, "a", "new")
	set(t, db, "b", "new")
	mustFlush(t, db)
	if err := collectByHand(db, once, nil); err != nil {
		t.Fatal(err)
	}
	mergeAll(t, db)
	if st := db.edits.log.State(); len(st.Tables) != 1 || slices.ContainsFunc(st.Segments, func(s manifest.Segment) bool { return s.ID == victim.ID }) {
		t.Fatalf("still in the store: %+v, %+v", st.Tables, st.Segments)
	}
	there := func() (n int) {
		for _, name := range tables {
			if onDisk(t, fs, name) {
				n++
			}
		}
		if onDisk(t, fs, segmentName(victim)) && db.Stats().Log.Pooled == 0 { // or it is kept to be written again
			n++
		}
		return n
	}
	if n := there(); n != len(tables)+1 {
		t.Errorf("%d of %d files are left under two readers", n, len(tables)+1)
	}
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		x, err := it.Item()
		if err != nil || string(x.Key) < "d" && string(x.Value) != value {
			t.Errorf("%s in an old view: %d bytes, %v", x.Key, len(x.Value), err)
		}
		n++
	}
	if n < 4 || it.Error() != nil {
		t.Errorf("%d documents in an old view, %v", n, it.Error())
	}
	it.Close()
	if n := there(); n != len(tables)+1 {
		t.Errorf("%d of %d files are left under a reader", n, len(tables)+1)
	}
	if string(b.Item(0).Value) != value {
		t.Errorf("the item of a pinned view became %.20q", b.Item(0).Value)
	}
	if db.memory.probe.Used() == 0 {
		t.Error("no table was in memory for the collection")
	}
	b.Release()
	until(t, "files and memory to go", func() bool { return there() == 0 && db.memory.probe.Used() == 0 })
	want(t, db, "c", value)
}

// TestR20_ACollectionCalledOffLeavesEverything: its outputs go, its victims stay
// for readers and for the next one.
func TestR20_ACollectionCalledOffLeavesEverything(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", gcOptions(fs))
	defer db.Close()
	value := separated(t, db, "a")
	once, _ := collectable(db)
	before := db.edits.log.State()
	ctx, cancel := context.WithCancel(context.Background())
	onceDuring(fs, ".gc.seg", cancel)
	v := db.pin()
	c := &gcJob{db: db, from: v.version.retain(), job: compaction.GCJob{Once: once}}
	v.release()
	err := c.run(ctx)
	c.from.release()
	fs.SetHook(nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	names, err := fs.List(path.Join("data", wal.SegmentsDir))
	if err != nil || slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".gc.seg") }) {
		t.Errorf("left: %v, %v", names, err)
	}
	if st := db.edits.log.State(); len(st.Segments) != len(before.Segments) || len(db.victims) != 0 {
		t.Errorf("%d segments, %d before; %d are still taken", len(st.Segments), len(before.Segments), len(db.victims))
	}
	want(t, db, "a", value)
	if err := collectByHand(db, once, nil); err != nil {
		t.Fatal(err)
	}
	want(t, db, "a", value)
	if err := checkStore(db); err != nil {
		t.Error(err)
	}
}

// TestG06_WhatIsFreedTwiceIsFreedOnce: a segment has one owner that frees it, the
// set of the log. Whoever drops it again finds nothing, and no two segments are
// ever written to one file.
func TestG06_WhatIsFreedTwiceIsFreedOnce(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	value := separated(t, db, "a", "b")
	once, _ := collectable(db)
	if err := collectByHand(db, once, nil); err != nil {
		t.Fatal(err)
	}
	freed := func() int64 { s := db.log.Stats(); return int64(s.Pooled) + s.Reused + s.Removed }
	until(t, "the victims to be freed", func() bool { return freed() == int64(len(once)) })
	if err := collectByHand(db, once, nil); !errors.Is(err, errGone) {
		t.Errorf("a second collection of %v: %v", once, err)
	}
	db.log.Drop(once)
	db.log.Drop(once)
	separated(t, db) // takes what is in the pool
	separated(t, db)
	want(t, db, "a", value)
	want(t, db, "b", value)
	if n := freed(); n != int64(len(once)) {
		t.Errorf("%d files were freed of %d segments", n, len(once))
	}
	if err := checkStore(db); err != nil {
		t.Error(err)
	}
}

// TestC02_OpenReadersAreShown: whoever wonders why space does not come back sees
// how many readers hold it, and since which write.
func TestC02_OpenReadersAreShown(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	shown := func(n int, oldest Seqno) {
		t.Helper()
		if s := db.Stats(); s.Snapshots != n || s.OldestSnapshot != oldest {
			t.Errorf("%d readers since seqno %d are shown, want %d since %d", s.Snapshots, s.OldestSnapshot, n, oldest)
		}
	}
	shown(0, 0)
	first := set(t, db, "k", "1")
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	second := set(t, db, "k", "2")
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown(2, first)
	snap.Close()
	shown(1, second)
	it.Close()
	shown(0, 0)
}
