package compaction

import (
	"bytes"
	"math"

	"fluxkv/internal/manifest"
)

// Lazy picks jobs for lazy leveling: slices pile up over the ranges of a sorted
// last level and are merged into it only when, over the whole store, a share F
// of it lies above it.
//
//	level 0, tier 0   -  -  -   --  -      slices, as flushed
//	         tier 1   -------   ----       8 of them in one
//	last level        =======   =======    one run, by far the most
//	                  range 1   range 2
//
// Merging n bytes above into a last level of n/F is what makes an index write
// every byte about 1 + 1/(2F) times; the range with the largest share above its
// last level is the cheapest one to merge, and with one F for all kvstores the
// budget goes to where it is used. Reads and probes bear the runs: that is what
// tiers bound. In order, a job is picked
//
//	runs      in the range with more than RunsMax layers: the neighbours of one
//	          tier that are the cheapest to make one of
//	share     while there is more than F above: the range with the largest share
//	          goes to the last level, with all that is above it
//	hidden    the same from F/2 on, while garbage in segments is too little known
//	          (Picture.Hidden)
//	slices    Slices neighbours of one tier: one of the next tier
//	garbage   where a quarter is tombstones, expired versions, and those that were
//	          kept for a snapshot which is closed
//	idle      while nobody writes: where a twentieth is garbage; on a full disk
//	          a hundredth
type Lazy struct {
	// MergeShare is F. More saves writing and costs space, a copy of the entries
	// above the last level. 0: by SpaceAmp and what values there are.
	MergeShare float64
	// SpaceAmp is the space amplification to hold, which bounds F where values
	// are inline: their garbage is all in tables. Default 1.5.
	SpaceAmp float64
	// Slices of one tier make one of the next. Default 8.
	Slices int
	// RunsMax is how many layers of level 0 a range may have. Default 12.
	RunsMax int
	// TableBytes is that of Output; a table of less than half goes along when
	// its neighbour is merged. Default 64 MiB.
	TableBytes int64
	// RangeBytesMin and RangeBytesMax bound a range, which is 1/64 of the last
	// levels: a merge holds its range twice. Default 16 MiB and 1 GiB.
	RangeBytesMin, RangeBytesMax int64
	// FloorBytes above the last levels are left alone by the rule of the share.
	// Default 1 MiB; negative: none.
	FloorBytes int64
}

func (l Lazy) withDefaults() Lazy {
	if l.SpaceAmp == 0 {
		l.SpaceAmp = 1.5
	}
	if l.Slices == 0 {
		l.Slices = 8
	}
	if l.RunsMax == 0 {
		l.RunsMax = 12
	}
	if l.TableBytes == 0 {
		l.TableBytes = tableBytesDefault
	}
	if l.RangeBytesMin == 0 {
		l.RangeBytesMin = 16 << 20
	}
	if l.RangeBytesMax == 0 {
		l.RangeBytesMax = 1 << 30
	}
	if l.FloorBytes == 0 {
		l.FloorBytes = 1 << 20
	}
	return l
}

const (
	// rangesOfStore is how many ranges the last levels together are parted into:
	// a merge under way holds one of them twice.
	rangesOfStore = 64

	// garbageShare of a range's entries is worth a merge at any time, idleShare
	// when nobody writes, crampedShare when the disk is nearly full: what is deleted
	// to make room must be found.
	garbageShare = 0.25
	idleShare    = 0.05
	crampedShare = 0.01

	// inlineShare of the bytes of values makes a store one of inline values:
	// from about there on their F costs less.
	inlineShare = 0.05
	// separatedF costs nothing in space but pinned memory; from 0.1 to 0.3 write
	// amplification is flat.
	separatedF = 0.15
	// hiddenDen parts F while garbage is hidden. What is above the last levels bounds
	// how much can be found, so less than that is not worth its writing: a store whose
	// target is below the floor of its values would merge for ever for nothing.
	hiddenDen = 2
	// staticSpaceAmp is that of a store with nothing above the last level: what its
	// entries take, 1.12 for 64 B and 1.17 for 8 B, and about 0.05 for merges under
	// way, the log of the write cache and the segments in hand.
	staticSpaceAmp = 1.2
)

// RangeBytes is the size of a range now.
func (l Lazy) RangeBytes(st *manifest.State) int64 {
	l = l.withDefaults()
	sum := int64(0)
	for i := 0; i < len(st.Tables); {
		tables := kvstoreTables(st, st.Tables[i].KVStore)
		i += len(tables)
		last := lastLevel(tables)
		for _, t := range tables {
			if t.Level == last {
				sum += t.FileBytes
			}
		}
	}
	// By powers of two, so that borders do not move with every merge.
	size := l.RangeBytesMin
	for size*2 <= min(sum/rangesOfStore, l.RangeBytesMax) {
		size *= 2
	}
	return size
}

// Boundaries are the borders of the ranges.
func (l Lazy) Boundaries(st *manifest.State, kvstore uint16) [][]byte {
	return Ranges(st, kvstore, l.RangeBytes(st))
}

// Pick returns the next job. It takes O(n log n) of the tables, and nothing
// else.
func (l Lazy) Pick(in Picture) (Job, bool) {
	l = l.withDefaults()
	s := lazyStore{Lazy: l, in: in, busy: in.busyTables()}
	s.rangeBytes = l.RangeBytes(in.State)
	for k := range in.KVStores {
		s.kvstores = append(s.kvstores, s.look(uint16(k)))
	}
	for _, rule := range []func() (Job, bool){s.byRuns, s.byShare, s.bySlices, s.byGarbage, s.byIdle} {
		if j, ok := rule(); ok {
			return j, true
		}
	}
	return Job{}, false
}

// lazyStore is the store as one Pick sees it.
type lazyStore struct {
	Lazy
	in         Picture
	busy       func(*manifest.Table) bool
	rangeBytes int64
	kvstores   []lazyKVStore
}

type lazyKVStore struct {
	kvstore uint16
	level   uint8 // the last one
	ranges  []lazyRange
	borders [][]byte
}

type lazyRange struct {
	keyRange
	busy  bool // a table of it is
	upper sums // of what is above the last level
	lower sums // of the last level
	// garbage is what is known of it, in entries.
	garbage uint64
}

func (s *lazyStore) look(kvstore uint16) lazyKVStore {
	taken := s.in.taken(kvstore)
	ranges, level := rangesOf(s.in.State, kvstore, taken)
	kv := lazyKVStore{kvstore: kvstore, level: level}
	if len(taken) == 0 {
		kv.borders = borders(ranges, s.rangeBytes)
	} else { // as flushes have them
		kv.borders = Ranges(s.in.State, kvstore, s.rangeBytes)
	}
	kv.ranges = make([]lazyRange, 0, len(ranges))
	for _, r := range ranges {
		kv.ranges = append(kv.ranges, lazyRange{keyRange: r})
		lr := &kv.ranges[len(kv.ranges)-1]
		r.each(func(t *manifest.Table, above bool) {
			lr.busy = lr.busy || s.busy(t)
			sum := &lr.lower
			if above {
				sum = &lr.upper
				// A tombstone above goes, and so does what it hides.
				lr.garbage += 2*t.Tombstones + s.in.expired(t) + s.in.superseded(t)
			} else {
				lr.garbage += s.in.droppable(t) + s.in.expired(t) + s.in.superseded(t)
			}
			sum.add(t)
		})
		for i := range lr.layers {
			l := &lr.layers[i]
			for _, t := range l.tables {
				l.busy = l.busy || s.busy(t)
			}
		}
	}
	return kv
}

// sums are what some tables have together.
type sums struct {
	entries, tombstones  uint64
	fileBytes, userBytes int64 // userBytes: of keys and inline values
}

func (s *sums) add(t *manifest.Table) {
	s.entries += t.Entries
	s.tombstones += t.Tombstones
	s.fileBytes += t.FileBytes
	s.userBytes += int64(t.KeyBytes + t.ValueBytes)
}

// byRuns bounds the runs of a range.
func (s *lazyStore) byRuns() (Job, bool) {
	var worst *lazyRange
	var of *lazyKVStore
	for k := range s.kvstores {
		kv := &s.kvstores[k]
		for i := range kv.ranges {
			r := &kv.ranges[i]
			if len(r.layers) > s.RunsMax && (worst == nil || len(r.layers) > len(worst.layers)) && mergeable(r.layers) {
				worst, of = r, kv
			}
		}
	}
	if worst == nil {
		return Job{}, false
	}
	from, to := cheapest(worst.layers)
	return s.tier(of, worst, from, to, ReasonRuns), true
}

// mergeable reports whether two neighbours are free.
func mergeable(layers []layer) bool {
	for i := 1; i < len(layers); i++ {
		if !layers[i-1].busy && !layers[i].busy {
			return true
		}
	}
	return false
}

// stretches calls do with each longest stretch of free neighbours of one tier.
func stretches(layers []layer, do func(from, to int)) {
	for from := 0; from < len(layers); {
		to := from + 1
		if !layers[from].busy {
			for to < len(layers) && !layers[to].busy && layers[to].tier == layers[from].tier {
				to++
			}
			do(from, to)
		}
		from = to
	}
}

// cheapest returns the stretch of layers that writes the least for each run it
// saves; when no two neighbours are of one tier, any two.
func cheapest(layers []layer) (from, to int) {
	least := math.Inf(1)
	try := func(a, b int) {
		if b-a < 2 {
			return
		}
		n := int64(0)
		for _, l := range layers[a:b] {
			n += l.fileBytes
		}
		if cost := float64(n) / float64(b-a-1); cost < least {
			least, from, to = cost, a, b
		}
	}
	stretches(layers, try)
	if to == 0 {
		for i := 1; i < len(layers); i++ {
			if !layers[i-1].busy && !layers[i].busy {
				try(i-1, i+1)
			}
		}
	}
	return from, to
}

// tier merges the layers [from, to) of a range to one of the next tier. When
// that is all there is, the last level takes it.
func (s *lazyStore) tier(kv *lazyKVStore, r *lazyRange, from, to int, why Reason) Job {
	if to-from == len(r.layers) && len(r.between)+len(r.last) == 0 {
		return s.down(kv, r, why)
	}
	j := Job{KVStore: kv.kvstore, Reason: why}
	for _, l := range r.layers[from:to] {
		for _, run := range l.runs() {
			j.add(run)
		}
		j.OutTier = max(j.OutTier, l.tier)
	}
	if j.OutTier < math.MaxUint8 {
		j.OutTier++
	}
	j.cutAt(kv.borders)
	return j
}

// byShare holds what is above the last levels under F.
func (s *lazyStore) byShare() (Job, bool) {
	var upper, lower sums // upper: what no job has
	values := uint64(0)
	for k := range s.kvstores {
		for i := range s.kvstores[k].ranges {
			r := &s.kvstores[k].ranges[i]
			r.each(func(t *manifest.Table, above bool) {
				values += t.ValueBytes
				switch {
				case !above:
					lower.add(t)
				case !s.busy(t):
					upper.add(t)
				}
			})
		}
	}
	f, weigh, logged := s.share(values)
	why := ReasonShare
	if s.in.Hidden && logged && weigh(&upper) <= f*weigh(&lower) {
		f, why = f/hiddenDen, ReasonHidden
	}
	if upper.fileBytes <= s.FloorBytes || weigh(&upper) <= f*weigh(&lower) {
		return Job{}, false
	}
	var most *lazyRange
	var of *lazyKVStore
	best := 0.0
	for k := range s.kvstores {
		kv := &s.kvstores[k]
		for i := range kv.ranges {
			r := &kv.ranges[i]
			if r.busy || r.upper.entries == 0 {
				continue
			}
			share := weigh(&r.upper) / weigh(&r.lower) // +Inf without a last level
			if share > best || share == best && most != nil && weigh(&r.upper) > weigh(&most.upper) {
				most, of, best = r, kv, share
			}
		}
	}
	if most == nil {
		return Job{}, false
	}
	if j, ok := s.cut(of, most); ok {
		return j, true
	}
	return s.down(of, most, why), true
}

// share returns F and the measure it is counted in: entries, or their bytes
// where values are inline. logged says that most bytes of values are in the log.
func (s *lazyStore) share(values uint64) (f float64, weigh func(*sums) float64, logged bool) {
	entries := func(t *sums) float64 { return float64(t.entries) }
	bytes := func(t *sums) float64 { return float64(t.userBytes) }
	separated := uint64(0)
	for _, t := range s.in.State.Tables {
		for _, use := range t.Segments {
			separated += use.Bytes
		}
	}
	f, weigh = separatedF, entries
	if float64(values) > inlineShare*float64(values+separated) {
		f, weigh = min(max(s.SpaceAmp/staticSpaceAmp-1, 0.1), 0.5), bytes
	}
	if s.MergeShare > 0 {
		f = s.MergeShare
	}
	return f, weigh, separated > values
}

// cut parts a range that has become too large for one merge: what is above it
// is written again in level 0, cut at the borders, so that the next merges are
// of its parts.
func (s *lazyStore) cut(kv *lazyKVStore, r *lazyRange) (Job, bool) {
	if len(r.between) > 0 || r.lower.fileBytes < 4*s.rangeBytes || r.upper.fileBytes > r.lower.fileBytes/2 {
		return Job{}, false
	}
	j := s.tier(kv, r, 0, len(r.layers), ReasonCut)
	straddles := func(t *manifest.Table) bool {
		for _, b := range j.Boundaries {
			if bytes.Compare(t.Smallest, b) < 0 && bytes.Compare(b, t.Largest) <= 0 {
				return true
			}
		}
		return false
	}
	for _, t := range r.last {
		if straddles(t) {
			return Job{}, false
		}
	}
	return j, len(j.Boundaries) > 0
}

// down merges a range into the last level, with all that is above it; or moves
// it there, when there is nothing to merge it with.
func (s *lazyStore) down(kv *lazyKVStore, r *lazyRange, why Reason) Job {
	i := 0
	for &kv.ranges[i] != r {
		i++
	}
	from, to := s.along(kv, i)
	if to-from == 1 && s.movable(r) {
		return s.moves(kv, why)
	}
	j := Job{KVStore: kv.kvstore, Reason: why, OutLevel: kv.level, Bottom: true}
	layers := 0
	for _, r := range kv.ranges[from:to] {
		layers = max(layers, len(r.layers))
	}
	// Ranges share no key, so their runs may be taken one after the other.
	for n := range layers {
		for _, r := range kv.ranges[from:to] {
			if n < len(r.layers) {
				for _, run := range r.layers[n].runs() {
					j.add(run)
				}
			}
		}
	}
	var last []*manifest.Table
	for _, r := range kv.ranges[from:to] {
		for _, run := range r.between {
			j.add(run)
		}
		last = append(last, r.last...)
	}
	j.add(last)
	j.cutAt(kv.borders)
	return j
}

// along returns the ranges [from, to) around i that are merged together:
// neighbours of one small table go along while they are no larger than what is
// merged already. A load in the order of keys would otherwise fill the last
// level with the slices of its flushes.
func (s *lazyStore) along(kv *lazyKVStore, i int) (from, to int) {
	size := kv.ranges[i].upper.fileBytes + kv.ranges[i].lower.fileBytes
	free := 2 * s.TableBytes
	small := func(n int) bool {
		r := &kv.ranges[n]
		bytes := r.upper.fileBytes + r.lower.fileBytes
		if r.busy || r.tables() != 1 || bytes > min(size, s.TableBytes/2, free) {
			return false
		}
		size += bytes
		free -= bytes
		return true
	}
	from, to = i, i+1
	for grown := true; grown; {
		grown = false
		if from > 0 && !kv.border(from) && small(from-1) {
			from, grown = from-1, true
		}
		if to < len(kv.ranges) && !kv.border(to) && small(to) {
			to, grown = to+1, true
		}
	}
	return from, to
}

// border reports whether the range i begins at a border.
func (kv *lazyKVStore) border(i int) bool {
	for _, b := range kv.borders {
		if bytes.Equal(b, kv.ranges[i].smallest) {
			return true
		}
	}
	return false
}

// tables counts them.
func (r *lazyRange) tables() (n int) {
	r.each(func(*manifest.Table, bool) { n++ })
	return n
}

// movable: one table above the last level, with nothing in it to drop.
func (s *lazyStore) movable(r *lazyRange) bool {
	return !r.busy && r.tables() == 1 && len(r.last) == 0 && r.garbage == 0
}

// moves takes all tables that can be moved to the last level: one edit does it.
func (s *lazyStore) moves(kv *lazyKVStore, why Reason) Job {
	j := Job{KVStore: kv.kvstore, Reason: why, OutLevel: kv.level, Bottom: true, Move: true}
	for i := range kv.ranges {
		r := &kv.ranges[i]
		if !s.movable(r) {
			continue
		}
		if from, to := s.along(kv, i); to-from == 1 {
			r.each(func(t *manifest.Table, _ bool) { j.add([]*manifest.Table{t}) })
		}
	}
	return j
}

// bySlices merges the fullest tier.
func (s *lazyStore) bySlices() (Job, bool) {
	var most *lazyRange
	var of *lazyKVStore
	var from, to int
	for k := range s.kvstores {
		kv := &s.kvstores[k]
		for i := range kv.ranges {
			r := &kv.ranges[i]
			stretches(r.layers, func(a, b int) {
				if b-a >= s.Slices && b-a > to-from {
					most, of, from, to = r, kv, a, b
				}
			})
		}
	}
	if most == nil {
		return Job{}, false
	}
	return s.tier(of, most, from, to, ReasonSlices), true
}

// byGarbage merges what is known to be worth it.
func (s *lazyStore) byGarbage() (Job, bool) {
	return s.worst(garbageShare, ReasonGarbage, func(r *lazyRange) float64 { return float64(r.garbage) })
}

// byIdle merges what is worth it while nobody writes. Half of what is above the
// last level is taken to replace something.
func (s *lazyStore) byIdle() (Job, bool) {
	share, ok := s.in.resting()
	if !ok {
		return Job{}, false
	}
	return s.worst(share, ReasonIdle, func(r *lazyRange) float64 {
		return float64(r.garbage) + float64(r.upper.entries-r.upper.tombstones)/2
	})
}

// worst merges the range with the largest share of garbage, from least on.
func (s *lazyStore) worst(least float64, why Reason, garbage func(*lazyRange) float64) (Job, bool) {
	var most *lazyRange
	var of *lazyKVStore
	best := least
	for k := range s.kvstores {
		kv := &s.kvstores[k]
		for i := range kv.ranges {
			r := &kv.ranges[i]
			if r.busy {
				continue
			}
			if share := garbage(r) / float64(r.upper.entries+r.lower.entries); share >= best && (share > best || most == nil) {
				most, of, best = r, kv, share
			}
		}
	}
	if most == nil {
		return Job{}, false
	}
	return s.down(of, most, why), true
}
