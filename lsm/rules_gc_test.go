package lsm

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
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
