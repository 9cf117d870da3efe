package manifest

import (
	"cmp"
	"fmt"
	"slices"

	"fluxkv/internal/entry"
)

// segmentCount says how many tables address a segment.
type segmentCount struct {
	segment entry.SegmentID
	tables  uint32
}

func compareCount(c segmentCount, id entry.SegmentID) int { return cmp.Compare(c.segment, id) }

// TablesOf returns how many tables address a segment under this id, which may
// be registered, forwarded or neither. It takes O(log n) of the segments that
// any table addresses, and is safe for concurrent use.
func (st *State) TablesOf(id entry.SegmentID) int {
	if i, ok := slices.BinarySearchFunc(st.addressed, id, compareCount); ok {
		return int(st.addressed[i].tables)
	}
	return 0
}

// countAddressed takes away what dropped tables address and adds what added
// ones do. All of dropped were counted before.
func (st *State) countAddressed(dropped, added []*Table) {
	counts := slices.Clone(st.addressed)
	find := func(id entry.SegmentID) int {
		i, ok := slices.BinarySearchFunc(counts, id, compareCount)
		if !ok {
			counts = slices.Insert(counts, i, segmentCount{segment: id})
		}
		return i
	}
	// Added first: a segment that stays addressed then never leaves the slice.
	for _, t := range added {
		for _, s := range t.Segments {
			counts[find(s.Segment)].tables++
		}
	}
	none := false
	for _, t := range dropped {
		for _, s := range t.Segments {
			c := &counts[find(s.Segment)]
			c.tables--
			none = none || c.tables == 0
		}
	}
	if none {
		counts = slices.DeleteFunc(counts, func(c segmentCount) bool { return c.tables == 0 })
	}
	st.addressed = counts
}

// checkDerived compares what is derived from the tables with the tables.
func (st *State) checkDerived() error {
	byNumber := slices.SortedFunc(slices.Values(st.Tables), compareNumbers)
	for i, t := range byNumber {
		if i > 0 && byNumber[i-1].Number == t.Number {
			return fmt.Errorf("table %06d is there twice", t.Number)
		}
	}
	var again State
	again.countAddressed(nil, st.Tables)
	if !slices.Equal(byNumber, st.byNumber) || !slices.Equal(again.addressed, st.addressed) {
		return fmt.Errorf("%d tables and what is derived from them differ", len(st.Tables))
	}
	return nil
}
