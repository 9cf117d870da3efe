package lsm

import (
	"slices"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// kvstoresMax bounds the engine's partitions: each has memtables and tables of
// its own, and more of them make files and syncs by the ten thousand.
const kvstoresMax = 16

// table is a memtable with the views that count on it.
type table struct {
	*memtable.Table
	refs  atomic.Int32 // views that name it
	bytes atomic.Int64 // charged to the write cache
	// cleared is the seqno of the clear that ended the table, 0 while it counts.
	// Guarded by committer.mu.
	cleared Seqno
}

// view is the immutable set of memtables and segments that a reader may touch.
// The DB holds one reference to the current view; readers pin it with one each.
// When the last reference goes, tables and segments that no other view names
// are freed.
type view struct {
	refs   atomic.Int64
	tables [kvstoresMax][]*table // newest first
	// clears are the seqnos of the clear records that matter to some reader,
	// ascending: a version at or below the highest one not above the read
	// seqno is absent (design R13).
	clears []Seqno
	// segments hold the documents that the tables address without their bytes.
	segments map[entry.SegmentID]*wal.Segment
	db       *DB
}

// clearFor returns the seqno at and below which a reader at seqno sees nothing.
func (v *view) clearFor(at Seqno) Seqno {
	for i := len(v.clears) - 1; i >= 0; i-- {
		if v.clears[i] <= at {
			return v.clears[i]
		}
	}
	return 0
}

// derive copies v; the copy is changed before it is installed.
func (v *view) derive() *view {
	n := &view{clears: slices.Clone(v.clears), segments: v.segments, db: v.db}
	for i := range v.tables {
		n.tables[i] = slices.Clone(v.tables[i])
	}
	return n
}

// install makes v current. committer.mu is held, so views follow each other in
// one order; the old view must be released without the lock.
func (db *DB) installLocked(v *view) (old *view) {
	v.refs.Store(1)
	for i := range v.tables {
		for _, t := range v.tables[i] {
			t.refs.Add(1)
		}
	}
	for _, s := range v.segments {
		s.Retain() // the view before v has it, too
	}
	return db.current.Swap(v)
}

// pin returns the current view with a reference to it. It takes no lock.
func (db *DB) pin() *view {
	for {
		v := db.current.Load()
		if v == nil {
			return nil
		}
		for {
			n := v.refs.Load()
			if n == 0 {
				break // replaced and gone; load again
			}
			if v.refs.CompareAndSwap(n, n+1) {
				return v
			}
		}
	}
}

// release gives a pin back.
func (v *view) release() {
	if v == nil || v.refs.Add(-1) != 0 {
		return
	}
	for i := range v.tables {
		for _, t := range v.tables[i] {
			if t.refs.Add(-1) == 0 {
				v.db.quota.release(t.bytes.Load())
				t.Free()
			}
		}
	}
	for _, s := range v.segments {
		s.Release()
	}
}
