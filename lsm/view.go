package lsm

import (
	"slices"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/memtable"
)

// kvstoresMax bounds the engine's partitions: each has memtables and tables of
// its own, and more of them make files and syncs by the ten thousand.
const kvstoresMax = 16

// table is a memtable with the views that count on it. Fields without a type
// of sync/atomic are guarded by committer.mu.
type table struct {
	*memtable.Table
	refs  atomic.Int32 // views that name it
	bytes atomic.Int64 // charged to the write cache
	// first is where the log holds the table's first version: replay must not
	// start behind it until the table is flushed (design R3). Zero while the
	// table is empty. record and padded are what the log had taken then.
	first          entry.Position
	record, padded int64
	// sealed is the highest seqno that may be in the table, once it takes no
	// more; 0 while it is active.
	sealed   Seqno
	capacity int // of its arena; 0 for one that is not used again
	// cleared is the seqno of the clear that ended the table, 0 while it counts.
	cleared Seqno
}

// view is the immutable set of memtables, tables and segments that a reader may
// touch. The DB holds one reference to the current view; readers pin it with
// one each. When the last reference goes, memtables that no other view names
// are freed, and the version is released.
type view struct {
	refs   atomic.Int64
	tables [kvstoresMax][]*table // memtables, newest first
	// clears are the seqnos of the clear records that matter to some reader,
	// ascending: a version at or below the highest one not above the read
	// seqno is absent (design R13).
	clears  []Seqno
	version *version
	db      *DB
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
	n := &view{clears: slices.Clone(v.clears), version: v.version, db: v.db}
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
	v.version.retain()
	db.docViews.Add(1)
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
				v.db.spares.free(t)
			}
		}
	}
	v.version.release()
	v.db.endDocs()
}
