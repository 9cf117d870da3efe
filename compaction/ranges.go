package compaction

import (
	"bytes"
	"cmp"
	"slices"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
)

// keyRange is a smallest set of tables of a kvstore that share keys with no
// other: what is merged inside it moves no version past an older or a newer one
// elsewhere (design R14), and jobs in two of them cannot meet.
//
//	level 0   [a    1     g] [h   2  k]        [p 3 r]
//	          [a      4        i]
//	last      [b 5 d]   [f 6    j]     [m 7 n]
//	ranges     ------- 1 2 4 5 6 ----   - 7 -   - 3 -
type keyRange struct {
	kvstore           uint16
	smallest, largest []byte
	// layers of level 0 above it, newest first; their seqnos are disjoint.
	layers []layer
	// sorted levels between level 0 and the last one, newer first; none in a
	// store that was always lazy.
	between [][]*manifest.Table
	last    []*manifest.Table // by key
	busy    bool              // a job or a fenced table is in it
}

// layer is the tables of level 0 of one stretch of ages. No two of them share a
// key unless their own seqnos are disjoint.
type layer struct {
	tables       []*manifest.Table // by key
	lowest, tops entry.Seqno
	tier         uint8 // the highest of them
	fileBytes    int64
	busy         bool // one of them is; set by a picker
}

// lastLevel is the deepest level of a kvstore that has a table, at least 1.
func lastLevel(tables []*manifest.Table) uint8 {
	last := uint8(1)
	if n := len(tables); n > 0 {
		last = max(last, tables[n-1].Level)
	}
	return last
}

// kvstoreTables returns the tables of a kvstore by level and smallest key: a
// part of st.Tables.
func kvstoreTables(st *manifest.State, kvstore uint16) []*manifest.Table {
	from, _ := slices.BinarySearchFunc(st.Tables, kvstore, func(t *manifest.Table, k uint16) int { return cmp.Compare(t.KVStore, k) })
	to, _ := slices.BinarySearchFunc(st.Tables[from:], kvstore, func(t *manifest.Table, k uint16) int {
		if t.KVStore > k {
			return 1
		}
		return -1
	})
	return st.Tables[from:][:to]
}

// span is a stretch of keys, both ends included.
type span struct{ smallest, largest []byte }

// rangesOf returns the ranges of a kvstore by key. taken are spans of jobs under
// way: what they write may reach over keys between their inputs, so such a span
// is in one range with all it touches. It takes O(n log n) of the tables.
func rangesOf(st *manifest.State, kvstore uint16, taken []span) (all []keyRange, last uint8) {
	tables := kvstoreTables(st, kvstore)
	last = lastLevel(tables)
	return group(kvstore, tables, last, taken), last
}

// group is rangesOf for some tables of a kvstore, by level and smallest key.
func group(kvstore uint16, tables []*manifest.Table, last uint8, taken []span) (all []keyRange) {
	byKey := slices.Clone(tables)
	if len(tables) > 0 && tables[0].Level != tables[len(tables)-1].Level { // within a level they are sorted
		slices.SortStableFunc(byKey, func(a, b *manifest.Table) int { return bytes.Compare(a.Smallest, b.Smallest) })
	}
	taken = slices.Clone(taken)
	slices.SortFunc(taken, func(a, b span) int { return bytes.Compare(a.smallest, b.smallest) })
	for len(byKey) > 0 {
		r := keyRange{kvstore: kvstore, smallest: byKey[0].Smallest, largest: byKey[0].Largest}
		n := 1
		for grown := true; grown; {
			grown = false
			for len(taken) > 0 && bytes.Compare(taken[0].smallest, r.largest) <= 0 {
				if bytes.Compare(taken[0].largest, r.smallest) >= 0 {
					r.extend(taken[0].largest)
					r.busy = true
				}
				taken, grown = taken[1:], true
			}
			for n < len(byKey) && bytes.Compare(byKey[n].Smallest, r.largest) <= 0 {
				r.extend(byKey[n].Largest)
				n, grown = n+1, true
			}
		}
		r.sort(byKey[:n], last)
		all = append(all, r)
		byKey = byKey[n:]
	}
	return all
}

// meets reports whether two spans share a key.
func (s span) meets(o span) bool {
	return bytes.Compare(s.smallest, o.largest) <= 0 && bytes.Compare(o.smallest, s.largest) <= 0
}

func (r *keyRange) extend(largest []byte) {
	if bytes.Compare(largest, r.largest) > 0 {
		r.largest = largest
	}
}

// sort puts the tables of r, by key, to where they belong.
func (r *keyRange) sort(tables []*manifest.Table, last uint8) {
	var level0, between []*manifest.Table
	for _, t := range tables {
		switch t.Level {
		case 0:
			level0 = append(level0, t)
		case last:
			r.last = append(r.last, t)
		default:
			between = append(between, t)
		}
	}
	slices.SortStableFunc(between, func(a, b *manifest.Table) int { return cmp.Compare(a.Level, b.Level) })
	for len(between) > 0 {
		n := 1
		for n < len(between) && between[n].Level == between[0].Level {
			n++
		}
		r.between = append(r.between, between[:n:n])
		between = between[n:]
	}
	r.layers = layersOf(level0)
}

// layersOf takes tables of level 0 by key apart by age. Tables of one run stay
// together, and so do those whose seqnos overlap.
func layersOf(tables []*manifest.Table) []layer {
	if len(tables) == 0 {
		return nil
	}
	byRun := slices.Clone(tables)
	slices.SortStableFunc(byRun, func(a, b *manifest.Table) int { return cmp.Compare(a.Run, b.Run) })
	var runs []layer
	for i, t := range byRun {
		if i == 0 || byRun[i-1].Run != t.Run {
			runs = append(runs, layer{lowest: t.LowestSeqno, tops: t.HighestSeqno})
		}
		runs[len(runs)-1].add(t)
	}
	slices.SortStableFunc(runs, func(a, b layer) int { return cmp.Compare(a.lowest, b.lowest) })
	layers := runs[:1]
	for _, next := range runs[1:] {
		top := &layers[len(layers)-1]
		if next.lowest > top.tops {
			layers = append(layers, next)
			continue
		}
		for _, t := range next.tables {
			top.add(t)
		}
	}
	for i := range layers {
		slices.SortStableFunc(layers[i].tables, func(a, b *manifest.Table) int { return bytes.Compare(a.Smallest, b.Smallest) })
	}
	slices.Reverse(layers)
	return layers
}

func (l *layer) add(t *manifest.Table) {
	l.tables = append(l.tables, t)
	l.lowest, l.tops = min(l.lowest, t.LowestSeqno), max(l.tops, t.HighestSeqno)
	l.tier = max(l.tier, t.Tier)
	l.fileBytes += t.FileBytes
}

// runs are the tables of l, newest first where they share keys.
func (l *layer) runs() [][]*manifest.Table {
	byRun := map[uint64]int{}
	var runs [][]*manifest.Table
	for _, t := range l.tables {
		i, ok := byRun[t.Run]
		if !ok {
			i = len(runs)
			byRun[t.Run] = i
			runs = append(runs, nil)
		}
		runs[i] = append(runs[i], t)
	}
	highest := func(run []*manifest.Table) (s entry.Seqno) {
		for _, t := range run {
			s = max(s, t.HighestSeqno)
		}
		return s
	}
	slices.SortStableFunc(runs, func(a, b []*manifest.Table) int { return cmp.Compare(highest(b), highest(a)) })
	return runs
}

// each calls do with every table of r.
func (r *keyRange) each(do func(t *manifest.Table, above bool)) {
	for i := range r.layers {
		for _, t := range r.layers[i].tables {
			do(t, true)
		}
	}
	for _, ts := range r.between {
		for _, t := range ts {
			do(t, true)
		}
	}
	for _, t := range r.last {
		do(t, false)
	}
}

// lastBytes is the size of its tables of the last level.
func (r *keyRange) lastBytes() (n int64) {
	for _, t := range r.last {
		n += t.FileBytes
	}
	return n
}

// Ranges returns the internal keys at which the ranges of a kvstore begin, all
// but the first: what is written to level 0 is cut there (Output.Boundaries),
// so that the slices of one range merge alone. A range has about rangeBytes in
// the last level, never less than a table.
//
// A border stays where tables were cut: neighbours are joined only when they
// have rangeBytes together, and one is parted from twice rangeBytes on. Parted
// means that slices from now on are cut there; the older ones hold it together
// until they are merged.
func Ranges(st *manifest.State, kvstore uint16, rangeBytes int64) [][]byte {
	all, _ := rangesOf(st, kvstore, nil)
	return borders(all, rangeBytes)
}

func borders(all []keyRange, rangeBytes int64) (keys [][]byte) {
	size := int64(0) // of the group that the range before belongs to
	for i := range all {
		r := &all[i]
		n := r.lastBytes()
		if i > 0 && size+n > rangeBytes {
			keys = append(keys, r.smallest)
			size = 0
		}
		size += n
		keys = append(keys, r.parts(n, rangeBytes)...)
	}
	return keys
}

// parts returns where a range of size bytes is parted: at tables of the last
// level, in about equal parts.
func (r *keyRange) parts(size, rangeBytes int64) (keys [][]byte) {
	if size < 2*rangeBytes {
		return nil
	}
	part := size / (size / rangeBytes)
	sum := int64(0)
	for i, t := range r.last {
		// The middle of a table decides on which side it is.
		if i > 0 && sum+t.FileBytes/2 >= part*int64(len(keys)+1) && size-sum >= part/2 {
			keys = append(keys, t.Smallest)
		}
		sum += t.FileBytes
	}
	return keys
}
