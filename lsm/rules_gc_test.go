package lsm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// gcOptions are for tests that say themselves what is flushed, merged and
// collected, and when.
func gcOptions(fs *memfs.FS) Options {
	o := testOptions(fs)
	o.VBuckets, o.KVStores, o.flushOnDemand = 1, 1, true
	return o
}

func mustCompact(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
}

func del(t testing.TB, db *DB, key string) {
	t.Helper()
	if _, err := db.Delete([]byte(key)); err != nil {
		t.Fatal(err)
	}
}

// TestR14_ReplayKeepsTombstonesAboveTheLastLevel: a kvstore may have a last
// level and nothing above it. What a replay flushes is not the bottom then.
func TestR14_ReplayKeepsTombstonesAboveTheLastLevel(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	db := mustOpen(t, "data", o)
	set(t, db, "deleted", "1")
	set(t, db, "kept", "1")
	mustCompact(t, db)
	st := db.edits.log.State()
	if n := len(st.LevelTables(0, 0)); len(st.Tables) != 1 || n != 0 {
		t.Fatalf("%d tables, %d of them in level 0: the test wants one in the last level", len(st.Tables), n)
	}
	del(t, db, "deleted")
	value := strings.Repeat("v", 200)
	for i := range 400 {
		set(t, db, fmt.Sprintf("key%d", i), value)
	}
	o.FS = fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	o.WriteCache, o.writeCacheMin = 48*kib, 16*kib
	db = mustOpen(t, "data", o)
	defer db.Close()
	if db.recovery.Spills == 0 {
		t.Fatal("replay flushed nothing")
	}
	want(t, db, "deleted", "")
	want(t, db, "kept", "1")
}

// TestR08_ADocumentIsFoundAmongManyOutputs: the documents of one segment may be
// in any number of outputs whose seqnos overlap, after many collections.
func TestR08_ADocumentIsFoundAmongManyOutputs(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", gcOptions(fs))
	const n = 20
	var b Batch
	for i := range n {
		b.Set(fmt.Appendf(nil, "key%d", i), []byte(strings.Repeat("v", 1000)), Meta{})
	}
	if _, err := db.Apply(&b, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	db.Close()
	db = mustOpen(t, "data", gcOptions(fs))
	defer db.Close()
	st := db.edits.log.State()
	victim := st.Segments[0]
	v := &version{db: db, segments: map[entry.SegmentID]*wal.Segment{}, state: &st}
	forward := manifest.Forward{From: victim.ID}
	var at [n]entry.SegmentID
	for i := range n {
		res, err := wal.Rewrite(context.Background(), wal.RewriteOptions{
			FS: db.fs, Dir: db.dir, Secret: db.secret, StoreID: db.format.StoreID, Align: db.o.LogAlign, SegmentBytes: 64 * kib,
			NextID: func() entry.SegmentID { return entry.SegmentID(db.edits.log.NextFileNumber()) },
		}, []wal.RewriteVictim{{ID: victim.ID, Kind: wal.SegmentKind(victim.Kind), End: victim.End}},
			func(r *wal.Record) bool { return string(r.Key) == fmt.Sprintf("key%d", i) })
		if err != nil || len(res.Outputs) != 1 {
			t.Fatal(len(res.Outputs), err)
		}
		defer res.Discard(fs)
		at[i] = res.Outputs[0].ID
		v.segments[at[i]] = res.Outputs[0].Segment
		forward.To = append(forward.To, manifest.ForwardRange{Segment: at[i], First: 1, Last: n})
	}
	st.Segments, st.Forwards = nil, []manifest.Forward{forward}
	for i := range n {
		s, a, err := v.find(entry.Address{Segment: victim.ID, Offset: 4096, Length: 1}, Seqno(i+1))
		if err != nil || s == nil || s.ID != at[i] || a.Segment != at[i] {
			t.Errorf("document %d of %d: segment %v, %v; want %06d", i, n, s, err, at[i])
		}
	}
	if s, _, err := v.find(entry.Address{Segment: victim.ID}, n+1); s != nil || err != nil {
		t.Errorf("a document that was given up: %v, %v", s, err)
	}
}

// segmentName is the path of a registered segment.
func segmentName(s manifest.Segment) string {
	return path.Join("data", wal.SegmentsDir, wal.SegmentName(s.ID, wal.SegmentKind(s.Kind)))
}

// garbage fills several segments of the log with documents of which one in four
// is alive in the end, and flushes. It returns what they are.
func garbage(t testing.TB, db *DB) (keys []string, value string) {
	t.Helper()
	value = strings.Repeat("v", 3000)
	for round := range 4 {
		for i := range 30 {
			set(t, db, fmt.Sprintf("hot%02d", i), value)
			if round == 0 || i%10 == 0 {
				keys = append(keys, fmt.Sprintf("cold%d-%02d", round, i))
				set(t, db, keys[len(keys)-1], value)
			}
		}
	}
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("hot%02d", i))
	}
	set(t, db, "last", "x")
	mustFlush(t, db)
	until(t, "footers", func() bool {
		n := 0
		for _, s := range db.edits.log.State().Segments {
			if !s.Sealed && !s.Ended {
				n++
			}
		}
		return n <= 2
	})
	return keys, value
}

// TestR21_ADamagedVictimIsKeptAlone: a segment with a bad record stays, with all
// its documents; every other one is collected all the same.
func TestR21_ADamagedVictimIsKeptAlone(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	o.noGC = true
	db := mustOpen(t, "data", o)
	keys, value := garbage(t, db)
	mustCompact(t, db)
	db.Close()
	o.noGC = false
	db = mustOpen(t, "data", o)
	defer db.Close()
	stopFenceClock(db)
	v := db.pin()
	all := compaction.SegmentsOf(v.version.state, func(entry.SegmentID) uint64 { return 0 })
	job, ok := compaction.PickSegments(db.gcPicture(v))
	v.release()
	if !ok || len(job.Once) < 3 {
		t.Fatalf("the test wants several victims of one collection, not %v of %+v", job.Once, all)
	}
	st := db.edits.log.State()
	bad, _ := st.Segment(job.Once[0])
	damage(t, fs, segmentName(bad), 4096+100) // in its first group
	if err := db.Compact(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("collection of a damaged segment: %v", err)
	}
	if s := db.Stats(); s.CollectionsFailed != 1 || !strings.Contains(s.CollectionError, segmentName(bad)) {
		t.Errorf("%d collections failed, %q", s.CollectionsFailed, s.CollectionError)
	}
	mustCompact(t, db)
	st = db.edits.log.State()
	if _, ok := st.Segment(bad.ID); !ok {
		t.Errorf("segment %06d was freed although it could not be read", bad.ID)
	}
	for _, id := range job.Once[1:] {
		if _, ok := st.Segment(id); ok {
			t.Errorf("segment %06d was not collected: %+v", id, db.Stats())
		}
	}
	lost := 0
	for _, key := range keys {
		it, err := db.Get(nil, []byte(key))
		if err != nil && errors.Is(err, ErrCorrupt) {
			lost++
		} else if err != nil || string(it.Value) != value {
			t.Errorf("%s: %d bytes, %v", key, len(it.Value), err)
		}
	}
	if lost > 2 {
		t.Errorf("%d documents cannot be read, but only one group is damaged", lost)
	}
	if left, err := fs.List("data/log"); err != nil || !slices.Contains(left, path.Base(segmentName(bad))) {
		t.Errorf("%v, %v: %s is gone", left, err, segmentName(bad))
	}
}

// TestR21_ADamagedTableIsFencedAlone: the merge that comes across it fails, its
// neighbours are merged without it, and nothing of it is freed.
func TestR21_ADamagedTableIsFencedAlone(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	o.VBuckets, o.KVStores = 2, 2
	db := mustOpen(t, "data", o)
	bad, good := keyOf(db, 0, 0), keyOf(db, 1, 0)
	for round := range 3 {
		set(t, db, bad, fmt.Sprint(round))
		set(t, db, good, fmt.Sprint(round))
		mustFlush(t, db)
	}
	before := db.edits.log.State()
	name := db.tableName(before.LevelTables(0, 0)[1].Number)
	db.Close()
	damage(t, fs, name, 10)
	db = mustOpen(t, "data", o)
	defer db.Close()
	stopFenceClock(db)
	failed := 0
	for failed < 5 && db.Compact() != nil {
		failed++
	}
	st := db.edits.log.State()
	if n, m := len(st.LevelTables(0, 0)), len(st.LevelTables(1, 0)); failed != 1 || n != 3 || m != 0 || len(st.Tables) != 4 {
		t.Errorf("%d compactions failed; %d and %d tables above the last level of %d, want 1 failure, 3 and 0 of 4", failed, n, m, len(st.Tables))
	}
	if len(db.sched.merges.fenced) != 1 {
		t.Errorf("%d tables are fenced, one is damaged", len(db.sched.merges.fenced))
	}
	want(t, db, good, "2")
	want(t, db, bad, "2") // the newest one is in another table
	if _, err := fs.Size(name); err != nil {
		t.Errorf("the damaged table: %v", err)
	}
	// What is flushed now goes on as ever, next to it.
	set(t, db, good, "3")
	set(t, db, bad, "3")
	mustCompact(t, db)
	want(t, db, bad, "3")
	want(t, db, good, "3")
}

// TestG9_ACloseRecordsWhereSegmentsEnd: the end of a segment is recorded by the
// run that wrote it, also when the store is closed before its footer is written.
// Without an end it would never be collected.
func TestG9_ACloseRecordsWhereSegmentsEnd(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	db := mustOpen(t, "data", o)
	fs.SetHook(func(op vfs.Op) error {
		for op.Kind == vfs.OpTruncate && strings.HasSuffix(op.Name, ".seg") && db.sched.ctx.Err() == nil {
			time.Sleep(time.Millisecond) // no footer before the store is being closed
		}
		return nil
	})
	for i := range 40 { // two segments, and some: the preparer is busy with the first
		set(t, db, fmt.Sprintf("key%d", i), strings.Repeat("v", 3000))
	}
	mustFlush(t, db)
	db.Close()
	fs.SetHook(nil)
	db = mustOpen(t, "data", o)
	defer db.Close()
	st := db.edits.log.State()
	n := 0
	for _, s := range st.Segments {
		if s.ID < st.ReplayFrom.Segment && !s.Sealed && !s.Ended {
			n++
		}
	}
	if n > 0 || len(st.Segments) < 3 {
		t.Errorf("%d of %d segments have no end", n, len(st.Segments))
	}
}
