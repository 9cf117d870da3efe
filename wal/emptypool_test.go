package wal

import (
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/memfs"
)

// rollAndDrop makes n segments and drops all but the active one.
func (r *runningLog) rollAndDrop(n int) {
	r.t.Helper()
	for range n {
		r.put(1, 300)
		r.waitAll()
		r.roll()
	}
	r.footers()
	r.mu.Lock()
	active := r.active.ID
	r.mu.Unlock()
	var ids []entry.SegmentID
	for _, s := range r.segments() {
		if s.ID < active {
			ids = append(ids, s.ID)
		}
	}
	r.drop(ids...)
}

// files counts the files in the directory of the segments.
func (r *runningLog) files() int {
	r.t.Helper()
	names, err := r.fs.List("db/" + SegmentsDir)
	if err != nil {
		r.t.Fatal(err)
	}
	return len(names)
}

// TestR23_EmptyPool: an idle store keeps no freed segment, also when a reader
// lets the last one go later; a store in use does.
func TestR23_EmptyPool(t *testing.T) {
	fs := memfs.New()
	r := startRunning(t, runningOptions(fs), nil)
	defer r.close()
	r.rollAndDrop(3)
	until(t, "pooled", func() bool { s := r.Stats(); return s.Pooled == 3 && s.Open == 2 })
	if s := r.Stats(); s.PooledBytes != 3*16<<10 || s.Removed != 0 || r.files() != 5 {
		t.Fatalf("%+v, %d files", s, r.files())
	}
	r.EmptyPool()
	until(t, "emptied", func() bool { s := r.Stats(); return s.Pooled == 0 && s.Removed == 3 })
	if n := r.files(); n != 2 {
		t.Fatalf("%d files left: one active, one prepared", n)
	}

	// Idle: what is freed now goes at once.
	r.put(1, 300)
	r.roll()
	r.waitAll()
	r.footers()
	old := r.segments()[0].ID
	held := r.Acquire(old)
	until(t, "the next segment", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.ready != nil })
	r.EmptyPool()
	r.drop(old)
	if r.Acquire(old) != nil {
		t.Fatal("a dropped segment can be acquired")
	}
	held.Release()
	until(t, "removed", func() bool { return r.Stats().Removed == 4 })
	if s := r.Stats(); s.Pooled != 0 || r.files() != 2 {
		t.Fatalf("%+v, %d files", s, r.files())
	}

	// In use again.
	r.rollAndDrop(2)
	until(t, "pooled", func() bool { return r.Stats().Pooled == 2 })
}
