package compaction

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sort"

	"fluxkv/internal/manifest"
)

// Leveled picks jobs for a leveled tree, for comparison: better space than Lazy,
// and about three times the writing.
//
//	level 0   -  --  ---     runs, as flushed: L0Tables of them go to level 1
//	level 1   == == ==       BaseLevelBytes
//	level 2   == == == ==    LevelMultiplier times that, and so on to level 6
//
// A level over its size hands on the table that has the least below it. Versions
// of a key lie in one table of a level, so they move together (C4). A table with
// nothing below it moves without being written.
type Leveled struct {
	// L0Tables is how many runs of level 0 over one key start a merge. Default 4.
	L0Tables int
	// BaseLevelBytes is the size of level 1 of a kvstore. Default 64 MiB.
	BaseLevelBytes int64
	// LevelMultiplier is how much larger the next level is. More makes fewer
	// levels, and each costs more to write. Default 10.
	LevelMultiplier int
}

func (l Leveled) withDefaults() Leveled {
	if l.L0Tables == 0 {
		l.L0Tables = 4
	}
	if l.BaseLevelBytes == 0 {
		l.BaseLevelBytes = 64 << 20
	}
	if l.LevelMultiplier == 0 {
		l.LevelMultiplier = 10
	}
	return l
}

// levelMax is the deepest level; it has no size.
const levelMax = 6

// Boundaries are none: runs of level 0 are merged as they are.
func (l Leveled) Boundaries(*manifest.State, uint16) [][]byte { return nil }

// levelBytes is the size that a level may have.
func (l Leveled) levelBytes(level uint8) float64 {
	if level >= levelMax {
		return math.Inf(1)
	}
	return float64(l.BaseLevelBytes) * math.Pow(float64(l.LevelMultiplier), float64(level-1))
}

// Pick returns the next job: where a level is over its size by the most, then
// where garbage is known, and more of that while nobody writes.
func (l Leveled) Pick(in Picture) (Job, bool) {
	s := leveledStore{Leveled: l.withDefaults(), in: in, busy: in.busyTables()}
	type place struct {
		score   float64
		kvstore uint16
		level   uint8
		r       *keyRange // of level 0
	}
	var places []place
	for k := range in.KVStores {
		kvstore := uint16(k)
		level0 := s.level0(kvstore)
		for i := range level0 {
			if n := len(level0[i].layers); n >= s.L0Tables {
				places = append(places, place{float64(n) / float64(s.L0Tables), kvstore, 0, &level0[i]})
			}
		}
		for level := uint8(1); level < levelMax; level++ {
			if score := float64(s.free(kvstore, level)) / s.levelBytes(level); score > 1 {
				places = append(places, place{score, kvstore, level, nil})
			}
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(b.score, a.score) })
	for _, p := range places {
		if p.level > 0 {
			if j, ok := s.least(p.kvstore, p.level); ok {
				return j, true
			}
			continue
		}
		if j, ok := s.fromLevel0(p.r, ReasonRuns); ok {
			return j, true
		}
		if j, ok := s.within0(p.r); ok {
			return j, true
		}
	}
	if j, ok := s.garbage(garbageShare, ReasonGarbage); ok {
		return j, true
	}
	if share, ok := in.resting(); ok {
		return s.garbage(share, ReasonIdle)
	}
	return Job{}, false
}

// leveledStore is the store as one Pick sees it.
type leveledStore struct {
	Leveled
	in   Picture
	busy func(*manifest.Table) bool
}

// level0 returns what of level 0 of a kvstore must move together.
func (s *leveledStore) level0(kvstore uint16) []keyRange {
	var taken []span
	for _, j := range s.in.Running {
		if from, _ := j.levels(); j.KVStore == kvstore && from == 0 {
			taken = append(taken, j.span())
		}
	}
	all := group(kvstore, s.in.State.LevelTables(kvstore, 0), 1, taken)
	for i := range all {
		r := &all[i]
		for n := range r.layers {
			for _, t := range r.layers[n].tables {
				if s.busy(t) {
					r.busy, r.layers[n].busy = true, true
				}
			}
		}
	}
	return all
}

// free is the size of a level without what is on its way out.
func (s *leveledStore) free(kvstore uint16, level uint8) (n int64) {
	for _, t := range s.in.State.LevelTables(kvstore, level) {
		if !s.busy(t) {
			n += t.FileBytes
		}
	}
	return n
}

// overlap returns the tables of a sorted level that share keys with sp.
func (s *leveledStore) overlap(kvstore uint16, level uint8, sp span) []*manifest.Table {
	tables := s.in.State.LevelTables(kvstore, level)
	from := sort.Search(len(tables), func(i int) bool { return bytes.Compare(tables[i].Largest, sp.smallest) >= 0 })
	to := from
	for to < len(tables) && bytes.Compare(tables[to].Smallest, sp.largest) <= 0 {
		to++
	}
	return tables[from:to:to]
}

// levels returns the highest and the lowest level that j reads or writes.
func (j *Job) levels() (from, to uint8) {
	from, to = j.OutLevel, j.OutLevel
	for _, run := range j.Inputs {
		for _, t := range run {
			from, to = min(from, t.Level), max(to, t.Level)
		}
	}
	return from, to
}

// complete finishes j, whose inputs are all of its highest levels: it adds what
// lies below them in OutLevel and says whether that is the bottom. It reports
// false when something of it is taken. What jobs write reaches over the keys
// between their inputs, so two of them that have a level in common must not
// meet.
func (s *leveledStore) complete(j *Job) bool {
	sp := j.span()
	if from, _ := j.levels(); from < j.OutLevel {
		j.add(s.overlap(j.KVStore, j.OutLevel, sp))
		sp = j.span()
	}
	for _, run := range j.Inputs {
		if slices.ContainsFunc(run, s.busy) {
			return false
		}
	}
	from, to := j.levels()
	for _, o := range s.in.Running {
		if a, b := o.levels(); o.KVStore == j.KVStore && a <= to && from <= b && o.span().meets(sp) {
			return false
		}
	}
	j.Bottom = j.OutLevel > 0
	for level := to + 1; level <= levelMax && j.Bottom; level++ {
		j.Bottom = len(s.overlap(j.KVStore, level, sp)) == 0
	}
	return true
}

// fromLevel0 merges a range of level 0 into level 1.
func (s *leveledStore) fromLevel0(r *keyRange, why Reason) (Job, bool) {
	if r.busy {
		return Job{}, false
	}
	j := Job{KVStore: r.kvstore, Reason: why, OutLevel: 1}
	for i := range r.layers {
		for _, run := range r.layers[i].runs() {
			j.add(run)
		}
	}
	if !s.complete(&j) {
		return Job{}, false
	}
	j.Move = len(j.Inputs) == 1 && s.asItIs(&j)
	return j, true
}

// asItIs: nothing in the inputs would be dropped.
func (s *leveledStore) asItIs(j *Job) bool {
	for _, run := range j.Inputs {
		for _, t := range run {
			if j.Bottom && s.in.droppable(t)+s.in.expired(t) > 0 {
				return false
			}
		}
	}
	return true
}

// within0 makes one run of many that came while their range is being merged.
func (s *leveledStore) within0(r *keyRange) (job Job, ok bool) {
	stretches(r.layers, func(from, to int) {
		if ok || to-from < 2*s.L0Tables {
			return
		}
		job, ok = Job{KVStore: r.kvstore, Reason: ReasonRuns}, true
		for i := range r.layers[from:to] {
			l := &r.layers[from+i]
			for _, run := range l.runs() {
				job.add(run)
			}
			job.OutTier = max(job.OutTier, l.tier)
		}
		if job.OutTier < math.MaxUint8 {
			job.OutTier++
		}
	})
	return job, ok
}

// down merges a table into the next level.
func (s *leveledStore) down(t *manifest.Table, why Reason) (Job, bool) {
	j := Job{KVStore: t.KVStore, Reason: why, OutLevel: t.Level + 1}
	j.add([]*manifest.Table{t})
	if !s.complete(&j) {
		return Job{}, false
	}
	j.Move = len(j.Inputs) == 1 && s.asItIs(&j)
	return j, true
}

// least hands on the table of a level that has the least below it, by its size;
// of those with nothing below it, as many as the level is over.
func (s *leveledStore) least(kvstore uint16, level uint8) (Job, bool) {
	var best Job
	found := false
	ratio := math.Inf(1)
	over := float64(s.free(kvstore, level)) - s.levelBytes(level)
	for _, t := range s.in.State.LevelTables(kvstore, level) {
		below := int64(0)
		for _, o := range s.overlap(kvstore, level+1, span{t.Smallest, t.Largest}) {
			below += o.FileBytes
		}
		r := float64(below) / float64(t.FileBytes)
		if found && r >= ratio && (r > 0 || !best.Move || float64(best.Bytes) >= over) {
			continue
		}
		j, ok := s.down(t, ReasonLevel)
		if !ok {
			continue
		}
		if found && best.Move && j.Move {
			best.add(j.Inputs[0])
			best.Bottom = best.Bottom && j.Bottom
			continue
		}
		if !found || r < ratio {
			best, found, ratio = j, true, r
		}
	}
	return best, found
}

// garbage merges the table, or the range of level 0, with the largest share of
// garbage, from least on. It looks at what a table has in it: tombstones with
// what they hide below, and expired versions. At the bottom a table is written
// again where it is.
func (s *leveledStore) garbage(least float64, why Reason) (best Job, found bool) {
	consider := func(share float64, j Job, ok bool) {
		if ok && share >= least && (!found || share > least) {
			best, found, least = j, true, share
		}
	}
	for k := range s.in.KVStores {
		kvstore := uint16(k)
		level0 := s.level0(kvstore)
		for i := range level0 {
			r := &level0[i]
			dead, all := 0.0, 0.0
			r.each(func(t *manifest.Table, _ bool) {
				dead += float64(2*t.Tombstones + s.in.expired(t) + s.in.superseded(t))
				if why == ReasonIdle {
					dead += float64(t.Entries-t.Tombstones) / 2
				}
				all += float64(t.Entries)
			})
			for level := uint8(1); level <= levelMax; level++ {
				for _, t := range s.overlap(kvstore, level, span{r.smallest, r.largest}) {
					all += float64(t.Entries)
				}
			}
			if share := dead / all; share >= least {
				j, ok := s.fromLevel0(r, why)
				consider(share, j, ok)
			}
		}
		for level := uint8(1); level <= levelMax; level++ {
			for _, t := range s.in.State.LevelTables(kvstore, level) {
				share := float64(s.in.droppable(t)+s.in.expired(t)+s.in.superseded(t)) / float64(t.Entries)
				if share < least {
					continue
				}
				if j, ok := s.again(t, why); ok {
					consider(share, j, true)
				} else if level < levelMax {
					j, ok := s.down(t, why)
					consider(share, j, ok)
				}
			}
		}
	}
	return best, found
}

// again writes a table with nothing below it where it is.
func (s *leveledStore) again(t *manifest.Table, why Reason) (Job, bool) {
	j := Job{KVStore: t.KVStore, Reason: why, OutLevel: t.Level}
	j.add([]*manifest.Table{t})
	ok := s.complete(&j)
	return j, ok && j.Bottom
}
