package memtable

import (
	"fmt"
	"sync/atomic"

	"fluxkv/internal/invariants"
)

// groupMax is how many searches take their steps in turn. A core has about a
// dozen cache misses in flight; more searches only bridge the compares.
const groupMax = 32

// Scratch is the working memory of inserts, about 6 KiB. Its zero value is
// ready; it serves one call at a time and may serve any table. It keeps
// references into the last tables, but reads none of them.
type Scratch struct {
	searches [groupMax]search
}

// Part is the share of one table in a batch.
type Part struct {
	Table *Table
	Place uint32 // of Table.Reserve, for exactly the sum of the ops' NodeBytes
	Ops   []Op
}

// InsertBatch writes the nodes of ops into place, which Reserve returned for
// exactly their NodeBytes, and links them. It never fails and allocates
// nothing. Batches may be inserted concurrently and in any order of seqnos; a
// (key, seqno) must not come twice. Everything is visible to readers that start
// after it returned; readers beside it see any part.
func (t *Table) InsertBatch(place uint32, ops []Op, s *Scratch) {
	f := filler{s: s}
	f.addAll(t, place, ops)
	f.flush()
}

// InsertParts is InsertBatch for a batch over several tables: the searches of
// all of them overlap, where a table's few would not.
func InsertParts(parts []Part, s *Scratch) {
	f := filler{s: s}
	for i := range parts {
		f.addAll(parts[i].Table, parts[i].Place, parts[i].Ops)
	}
	f.flush()
}

// filler collects searches and runs them group by group.
type filler struct {
	s *Scratch
	n int
}

func (f *filler) addAll(t *Table, place uint32, ops []Op) {
	for i := range ops {
		op := &ops[i]
		op.check(op.Height)
		s := &f.s.searches[f.n]
		s.t = t
		s.node, place = putNode(t.bytes, place, op, op.Height)
		s.height = int32(op.Height)
		s.hash = op.Hash
		s.target = t.target(s.node)
		if f.n++; f.n == groupMax {
			f.flush()
		}
	}
}

func (f *filler) flush() {
	group := f.s.searches[:f.n]
	f.n = 0
	// The slots are needed under the mutex. Nothing else is in this loop, so
	// that a core has as many of the loads in flight as it can.
	for i := range group {
		_ = group[i].t.slots.Load().load(group[i].hash)
	}
	searchTogether(group)
	for i := 0; i < len(group); {
		t := group[i].t
		var before *search
		t.mu.Lock()
		first := i
		for ; i < len(group) && group[i].t == t; i++ {
			t.linkLocked(&group[i], before)
			before = &group[i]
		}
		t.count.Store(t.count.Load() + int64(i-first))
		t.mu.Unlock()
	}
}

// linkLocked makes the node of s reachable, level 0 first: whoever arrives on a
// level finds all levels below it set.
func (t *Table) linkLocked(s *search, before *search) {
	if s.height > int32(t.levels.Load()) {
		// Searches that start above the list find the head's empty links.
		t.levels.Store(uint32(s.height))
	}
	for level := range int(s.height) {
		prev, next := s.nearest(s.prev[level], level, before)
		if invariants.Enabled {
			t.checkPlace(s, prev, next)
		}
		*t.link(s.node, level) = next
		atomic.StoreUint32(t.link(prev, level), s.node)
	}
	t.indexLocked(s.hash, &s.target, s.node)
}

func (t *Table) checkPlace(s *search, prev, next uint32) {
	if prev != t.head && t.compare(prev, s.node) >= 0 {
		panic(fmt.Sprintf("memtable: %q#%d linked behind %q#%d",
			t.key(s.node), t.seqno(s.node), t.key(prev), t.seqno(prev)))
	}
	if next != 0 && t.compare(s.node, next) >= 0 {
		panic(fmt.Sprintf("memtable: %q#%d linked before %q#%d",
			t.key(s.node), t.seqno(s.node), t.key(next), t.seqno(next)))
	}
}
