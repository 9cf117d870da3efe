package lsm

import (
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
)

// TestViewsShareSegments: a snapshot keeps the segments that a clear dropped
// over any number of views, each of which must hold its own references.
func TestViewsShareSegments(t *testing.T) {
	o := testOptions(memfs.New())
	o.InlineLimit = -1
	db := mustOpen(t, "data", o)
	mustSet(t, db, "k", "from the log")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = mustOpen(t, "data", o)
	defer db.Close()
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := db.Clear(time.Time{}); err != nil {
			t.Fatal(err)
		}
		item, err := snap.Get(nil, []byte("k"))
		if err != nil || string(item.Value) != "from the log" {
			t.Fatalf("%q, %v", item.Value, err)
		}
	}
	snap.Close()
	if s := db.Stats(); s.Memtables != db.kvstores {
		t.Errorf("%d memtables", s.Memtables)
	}
}
