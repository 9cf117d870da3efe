package compaction

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"

	"pgregory.net/rapid"
)

// player is a store without files: tables are lists of versions. It writes,
// flushes, and runs what a Picker picks, several jobs at once, and after every
// step the manifest is valid and every reader sees what it should.
type player struct {
	t      failer
	draws  *rapid.T
	picker Picker
	st     manifest.State
	tables map[uint64][]entry.Version // by entry.Compare

	kvstores   int
	keys       int
	tableLimit int // versions a table
	now        uint32
	seqno      entry.Seqno
	memtables  [][]entry.Version
	written    [][]entry.Version // all, by kvstore
	snapshots  []entry.Seqno
	running    []playJob
	hidden     bool   // as of Picture; then documents are in the log
	moved      uint64 // versions written by jobs
	jobs       int
}

type playJob struct {
	Job
	policy Policy
}

func newPlayer(t *rapid.T, picker Picker, kvstores int) *player {
	p := emptyPlayer(t, picker, kvstores)
	p.draws = t
	p.keys = rapid.SampledFrom([]int{3, 30, 300}).Draw(t, "keys")
	p.tableLimit = rapid.SampledFrom([]int{1, 4, 20}).Draw(t, "table limit")
	return p
}

func emptyPlayer(t failer, picker Picker, kvstores int) *player {
	return &player{
		t: t, picker: picker, kvstores: kvstores, st: manifest.State{NextSeqno: 1, NextFileNumber: 1}, now: 1,
		tables: map[uint64][]entry.Version{}, memtables: make([][]entry.Version, kvstores), written: make([][]entry.Version, kvstores),
	}
}

func playKey(i int) []byte { return entry.AppendKey(nil, 1, fmt.Appendf(nil, "%05d", i)) }

// horizon is what all readers can see at least; what is flushed is durable.
func (p *player) horizon() entry.Seqno {
	h := p.seqno
	for _, s := range p.snapshots {
		h = min(h, s)
	}
	return h
}

func (p *player) write(key int, del bool, expiry uint32) {
	p.seqno++
	k := key % p.kvstores
	v := entry.Version{Key: playKey(key), Seqno: p.seqno, Meta: entry.Meta{Expiry: expiry}}
	if del {
		v.Kind, v.Meta = entry.KindDelete, entry.Meta{}
	}
	p.memtables[k] = append(p.memtables[k], v)
	p.written[k] = append(p.written[k], v)
}

// writes adds some versions: scattered, ascending, or of one key.
func (p *player) writes() {
	t := p.draws
	n := rapid.IntRange(1, 40).Draw(t, "writes")
	way := rapid.IntRange(0, 3).Draw(t, "way")
	first := rapid.IntRange(0, p.keys-1).Draw(t, "first key")
	for i := range n {
		key := first
		switch way {
		case 0:
			key = rapid.IntRange(0, p.keys-1).Draw(t, "key")
		case 1:
			key = (first + i) % p.keys
		}
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		expiry := uint32(0)
		if kind == 1 {
			expiry = p.now + uint32(rapid.IntRange(0, 3).Draw(t, "expires in"))
		}
		p.write(key, kind == 0 || way == 3, expiry)
	}
}

// build is Flush and Merge.
func (p *player) build(versions []entry.Version, policy Policy, limit int, boundaries [][]byte) (out [][]entry.Version) {
	slices.SortFunc(versions, func(a, b entry.Version) int { return entry.Compare(a.Key, a.Seqno, b.Key, b.Seqno) })
	e := NewElision(policy)
	side := 0
	for i := range versions {
		v := versions[i]
		fresh := i == 0 || !bytes.Equal(versions[i-1].Key, v.Key)
		verdict := e.Decide(&v, fresh)
		if verdict.Drops() {
			continue
		}
		if verdict == Bury {
			v = entry.Version{Key: v.Key, Seqno: v.Seqno, Kind: entry.KindDelete}
		}
		n := side
		for n < len(boundaries) && bytes.Compare(boundaries[n], v.Key) <= 0 {
			n++
		}
		if len(out) == 0 || n > side || len(out[len(out)-1]) >= limit && !bytes.Equal(out[len(out)-1][len(out[len(out)-1])-1].Key, v.Key) {
			out = append(out, nil)
		}
		side = n
		out[len(out)-1] = append(out[len(out)-1], v)
	}
	return out
}

// bytesOfVersion is what one takes in a table here.
const bytesOfVersion = 100

// add names tables, one run, in an edit.
func (p *player) add(e *manifest.Edit, kvstore uint16, level, tier uint8, tables [][]entry.Version) {
	run := uint64(0)
	number := max(p.st.NextFileNumber, e.NextFile)
	for _, vs := range tables {
		x := &manifest.Table{
			Number: number, KVStore: kvstore, Level: level, LowestSeqno: entry.MaxSeqno, Smallest: vs[0].Key, Largest: vs[len(vs)-1].Key,
			Entries: uint64(len(vs)), FileBytes: int64(len(vs) * bytesOfVersion), KeyBytes: uint64(6 * len(vs)),
		}
		if level == 0 {
			if run == 0 {
				run = number
			}
			x.Run, x.Tier = run, tier
		}
		if p.hidden {
			x.Segments = []manifest.SegmentUse{{Segment: 1, Documents: uint32(len(vs)), Bytes: uint64(len(vs))}}
		}
		for _, v := range vs {
			x.LowestSeqno, x.HighestSeqno = min(x.LowestSeqno, v.Seqno), max(x.HighestSeqno, v.Seqno)
			if v.Kind == entry.KindDelete {
				x.Tombstones++
			}
		}
		e.AddTables = append(e.AddTables, x)
		p.tables[number] = vs
		number++
	}
	e.NextFile = number
}

func (p *player) apply(e *manifest.Edit) {
	st, err := p.st.Apply(e)
	if err == nil {
		err = manifest.Validate(st)
	}
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	for _, n := range e.DropTables {
		if !slices.ContainsFunc(e.AddTables, func(t *manifest.Table) bool { return t.Number == n }) {
			delete(p.tables, n)
		}
	}
	p.st = st
}

func (p *player) flush(k int) {
	if len(p.memtables[k]) == 0 {
		return
	}
	policy := Policy{Horizon: p.horizon(), Now: p.now, Bottom: len(kvstoreTables(&p.st, uint16(k))) == 0}
	e := &manifest.Edit{Flushed: []manifest.Flushed{{KVStore: uint16(k), Seqno: p.seqno}}}
	p.add(e, uint16(k), 0, 0, p.build(p.memtables[k], policy, p.tableLimit, p.picker.Boundaries(&p.st, uint16(k))))
	p.memtables[k] = nil
	p.apply(e)
}

func (p *player) picture(idle bool) Picture {
	var running []*Job
	for i := range p.running {
		running = append(running, &p.running[i].Job)
	}
	return Picture{
		State: &p.st, KVStores: p.kvstores, Idle: idle, Hidden: p.hidden, Horizon: p.horizon(), Running: running,
		Superseded: func(n uint64) (superseded uint64) {
			vs := p.tables[n]
			for i := range vs {
				if i > 0 && bytes.Equal(vs[i-1].Key, vs[i].Key) {
					superseded++
				}
			}
			return superseded
		},
		Expired: func(n uint64) (expired uint64) {
			for _, v := range p.tables[n] {
				if v.Meta.Expiry != 0 && v.Meta.Expiry <= p.now {
					expired++
				}
			}
			return expired
		},
	}
}

// pick starts the next job, if there is one.
func (p *player) pick(idle bool) bool {
	in := p.picture(idle)
	j, ok := p.picker.Pick(in)
	if !ok {
		return false
	}
	if len(j.Inputs) == 0 {
		p.t.Fatalf("empty job %s", j.describe())
	}
	busy := in.busyTables()
	var size int64
	var entries uint64
	for _, run := range j.Inputs {
		for i, x := range run {
			if i > 0 && bytes.Compare(run[i-1].Largest, x.Smallest) >= 0 {
				p.t.Fatalf("run out of order: %s", j.describe())
			}
			if x.KVStore != j.KVStore || busy(x) || p.tables[x.Number] == nil {
				p.t.Fatalf("table %d is not free: %s", x.Number, j.describe())
			}
			size += x.FileBytes
			entries += x.Entries
		}
	}
	if size != j.Bytes || entries != j.Entries {
		p.t.Fatalf("%d bytes, %d entries: %+v", size, entries, j)
	}
	p.running = append(p.running, playJob{Job: j, policy: Policy{Horizon: p.horizon(), Now: p.now, Bottom: j.Bottom}})
	p.jobs++
	return true
}

// finish installs a job.
func (p *player) finish(i int) {
	j := p.running[i]
	p.running = slices.Delete(p.running, i, i+1)
	e := j.Edit(&Result{})
	var versions []entry.Version
	for _, x := range slices.Concat(j.Inputs...) {
		versions = append(versions, p.tables[x.Number]...)
	}
	if !j.Move {
		out := p.build(versions, j.policy, p.tableLimit, j.Boundaries)
		for _, vs := range out {
			p.moved += uint64(len(vs))
		}
		p.add(e, j.KVStore, j.OutLevel, j.OutTier, out)
	}
	p.apply(e)
}

// check compares what readers see with what was written, and the order of
// levels with the order of ages (C4).
func (p *player) check() {
	for k := range p.kvstores {
		newest := map[string]entry.Seqno{} // lowest seqno of a key above the level
		above := map[string]entry.Seqno{}
		level := uint8(0)
		all := slices.Clone(p.memtables[k])
		for _, x := range kvstoreTables(&p.st, uint16(k)) {
			if x.Level != level {
				for key, s := range newest {
					above[key] = s
				}
				level = x.Level
			}
			for _, v := range p.tables[x.Number] {
				key := string(v.Key)
				if s, ok := above[key]; ok && v.Seqno >= s {
					p.t.Fatalf("key %s: seqno %d in level %d, under %d", keyName(v.Key), v.Seqno, level, s)
				}
				if s, ok := newest[key]; !ok || v.Seqno < s {
					newest[key] = v.Seqno
				}
			}
			all = append(all, p.tables[x.Number]...)
		}
		for _, at := range append([]entry.Seqno{p.seqno}, p.snapshots...) {
			got, want := p.visible(all, at), p.visible(p.written[k], at)
			if !slices.Equal(got, want) {
				p.t.Fatalf("kvstore %d at %d: %v\nwant %v", k, at, got, want)
			}
		}
	}
}

func (p *player) visible(versions []entry.Version, at entry.Seqno) (out []string) {
	newest := map[string]entry.Version{}
	for _, v := range versions {
		if old, ok := newest[string(v.Key)]; v.Seqno <= at && (!ok || v.Seqno > old.Seqno) {
			newest[string(v.Key)] = v
		}
	}
	for _, v := range newest {
		if v.Kind == entry.KindSet && (v.Meta.Expiry == 0 || v.Meta.Expiry > p.now) {
			out = append(out, fmt.Sprintf("%s#%d", keyName(v.Key), v.Seqno))
		}
	}
	slices.Sort(out)
	return out
}

// play draws a life of the store.
func (p *player) play() {
	t := p.draws
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 9).Draw(t, "step") {
		case 0, 1:
			p.writes()
		case 2, 3, 4:
			p.writes()
			p.flush(rapid.IntRange(0, p.kvstores-1).Draw(t, "kvstore"))
		case 5, 6:
			if len(p.running) < 3 {
				p.pick(rapid.Bool().Draw(t, "idle"))
			}
		case 7:
			if n := len(p.running); n > 0 {
				p.finish(rapid.IntRange(0, n-1).Draw(t, "job"))
			}
		case 8:
			if n := len(p.snapshots); n > 0 && rapid.Bool().Draw(t, "release") {
				p.snapshots = p.snapshots[:n-1]
			} else {
				p.snapshots = append(p.snapshots, p.seqno)
			}
		case 9:
			p.now++
			// A snapshot sees what expired as gone, like everybody else.
		}
		p.check()
	}
}

// settle runs jobs until there is nothing to do; writes have stopped.
func (p *player) settle(idle bool) {
	for len(p.running) > 0 {
		p.finish(0)
	}
	// Each job makes runs fewer, moves tables down, or cleans one.
	limit := 10
	for _, x := range p.st.Tables {
		limit += 8 * int(x.Entries)
	}
	for n := 0; p.pick(idle); n++ {
		if n > limit {
			p.t.Fatalf("still busy after %d jobs: %s", n, p.running[0].describe())
		}
		p.finish(0)
		p.check()
	}
}

// TestLazyPlay: no invariant of the manifest is broken, no reader sees another
// thing, jobs end when writes do, and then the runs of a range and the share
// above the last levels are what they should be (design R14, C3, C4, C8).
func TestLazyPlay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Lazy{
			MergeShare: rapid.SampledFrom([]float64{0, 0.15, 0.5}).Draw(t, "F"), Slices: rapid.IntRange(2, 8).Draw(t, "slices"),
			RunsMax: rapid.IntRange(2, 12).Draw(t, "runs"), TableBytes: 20 * bytesOfVersion,
			RangeBytesMin: int64(rapid.SampledFrom([]int{5, 20, 60}).Draw(t, "range")) * bytesOfVersion, RangeBytesMax: 1 << 20,
			FloorBytes: int64(rapid.SampledFrom([]int{-1, -1, 1000}).Draw(t, "floor")),
		}
		p := newPlayer(t, l, rapid.IntRange(1, 3).Draw(t, "kvstores"))
		if p.hidden = rapid.Bool().Draw(t, "hidden"); p.hidden {
			p.apply(&manifest.Edit{AddSegments: []manifest.AddSegment{{ID: 1, Kind: manifest.SegmentLog, Size: 1 << 20}}})
		}
		p.play()
		p.settle(false)
		in := p.picture(false)
		s := lazyStore{Lazy: l.withDefaults(), in: in, busy: in.busyTables(), rangeBytes: l.RangeBytes(&p.st)}
		var upper, lower sums
		for k := range p.kvstores {
			for _, r := range s.look(uint16(k)).ranges {
				if len(r.layers) > l.RunsMax {
					t.Fatalf("%d layers, %d allowed", len(r.layers), l.RunsMax)
				}
				r.each(func(x *manifest.Table, above bool) {
					if above {
						upper.add(x)
					} else {
						lower.add(x)
					}
				})
			}
		}
		f := cmp.Or(l.MergeShare, separatedF)
		if p.hidden {
			f /= hiddenDen
		}
		if float64(upper.entries) > f*float64(lower.entries) && upper.fileBytes > l.FloorBytes {
			t.Fatalf("%d entries above %d", upper.entries, lower.entries)
		}
		// Without readers and writers no tombstone that matters stays.
		p.snapshots = nil
		for k := range p.kvstores {
			p.flush(k)
		}
		p.settle(true)
		s.in = p.picture(true)
		for k := range p.kvstores {
			for _, r := range s.look(uint16(k)).ranges {
				if all := r.upper.entries + r.lower.entries; float64(r.garbage) >= idleShare*float64(all) {
					t.Fatalf("idle with %d of %d entries known to be garbage", r.garbage, all)
				}
			}
		}
	})
}

// TestLeveledPlay is TestLazyPlay for the other shape, on what the lazy one left
// sometimes.
func TestLeveledPlay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Leveled{
			L0Tables: rapid.IntRange(1, 4).Draw(t, "level 0"), LevelMultiplier: rapid.IntRange(2, 4).Draw(t, "multiplier"),
			BaseLevelBytes: int64(rapid.SampledFrom([]int{1, 10, 60}).Draw(t, "base")) * bytesOfVersion,
		}
		lazy := Lazy{TableBytes: 20 * bytesOfVersion, RangeBytesMin: 20 * bytesOfVersion, FloorBytes: -1}
		p := newPlayer(t, l, rapid.IntRange(1, 3).Draw(t, "kvstores"))
		for range rapid.IntRange(0, 2).Draw(t, "changes of shape") {
			p.picker = lazy
			p.play()
			for len(p.running) > 0 {
				p.finish(0)
			}
			p.picker = l
			p.play()
			for len(p.running) > 0 {
				p.finish(0)
			}
		}
		p.play()
		p.settle(false)
		in := p.picture(false)
		s := leveledStore{Leveled: l, in: in, busy: in.busyTables()}
		for k := range p.kvstores {
			for _, r := range s.level0(uint16(k)) {
				if len(r.layers) >= l.L0Tables {
					t.Fatalf("%d runs in level 0, %d merge", len(r.layers), l.L0Tables)
				}
			}
			for level := uint8(1); level < levelMax; level++ {
				if n := s.free(uint16(k), level); float64(n) > l.levelBytes(level) {
					t.Fatalf("%d bytes in level %d, %v allowed", n, level, l.levelBytes(level))
				}
			}
		}
		p.snapshots = nil
		for k := range p.kvstores {
			p.flush(k)
		}
		p.settle(true)
		in = p.picture(true)
		for _, x := range p.st.Tables {
			if x.Level > 0 && float64(in.droppable(x)+in.expired(x)+in.superseded(x)) >= idleShare*float64(x.Entries) {
				t.Fatalf("idle with %d tombstones and %d expired of %d entries", x.Tombstones, in.expired(x), x.Entries)
			}
		}
	})
}

// TestIndexCost holds what the shapes write to what they were chosen for: 2% of
// the keys in memory, uniform overwrites, every entry of one size. written
// counts versions, flushes included, for each version that a user wrote; space is
// versions in tables for each key, runs is tables that may have a key.
func TestIndexCost(t *testing.T) {
	const keys, kvstores, memory = 16_000, 4, 320
	for _, c := range []struct {
		name                 string
		picker               Picker
		written, space, runs float64 // at most
	}{
		{"lazy, F 0.15", Lazy{MergeShare: 0.15, RangeBytesMin: 200 * bytesOfVersion, TableBytes: 200 * bytesOfVersion, FloorBytes: -1}, 4.9, 1.2, 8},
		{"lazy, F 0.30", Lazy{MergeShare: 0.30, RangeBytesMin: 200 * bytesOfVersion, TableBytes: 200 * bytesOfVersion, FloorBytes: -1}, 3.6, 1.35, 8},
		{"leveled", Leveled{BaseLevelBytes: 160 * bytesOfVersion}, 9.5, 1.45, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := emptyPlayer(t, c.picker, kvstores)
			p.keys, p.tableLimit = keys, 200
			r := rand.New(rand.NewPCG(1, 2))
			var user, flushed, space, runs, looks, peak float64
			for i := range 4 * keys {
				key := i
				if i >= keys {
					key = r.IntN(keys)
				}
				p.write(key, false, 0)
				if i == 2*keys {
					user, flushed, p.moved = 0, 0, 0
				}
				user++
				if i%memory > 0 {
					continue
				}
				for k := range kvstores {
					flushed += float64(len(p.memtables[k]))
					p.written[k] = nil
					p.flush(k)
				}
				for p.pick(false) {
					p.finish(0)
				}
				if i < 2*keys {
					continue
				}
				looks++
				versions := 0.0
				for _, x := range p.st.Tables {
					versions += float64(x.Entries)
				}
				space += versions / keys
				peak = max(peak, versions/keys)
				for range 10 {
					n := r.IntN(keys)
					at := span{playKey(n), playKey(n)}
					for _, x := range kvstoreTables(&p.st, uint16(n%kvstores)) {
						if at.meets(span{x.Smallest, x.Largest}) {
							runs += 0.1
						}
					}
				}
			}
			written := (flushed + float64(p.moved)) / user
			t.Logf("%d jobs: %.2f written, space %.2f, at most %.2f, %.1f runs", p.jobs, written, space/looks, peak, runs/looks)
			if written > c.written || space/looks > c.space || runs/looks > c.runs {
				t.Errorf("allowed %.2f, %.2f, %.1f", c.written, c.space, c.runs)
			}
		})
	}
}

// TestLoadInKeyOrder: a load in the order of keys moves its slices to the last
// level, and does not leave it in crumbs.
func TestLoadInKeyOrder(t *testing.T) {
	const slices, slice, table = 400, 10, 200
	l := Lazy{RangeBytesMin: 2 * table * bytesOfVersion, TableBytes: table * bytesOfVersion, FloorBytes: -1}
	p := emptyPlayer(t, l, 1)
	p.tableLimit = table
	for i := range slices * slice {
		p.write(i, false, 0)
		if (i+1)%slice > 0 {
			continue
		}
		p.flush(0)
		for p.pick(false) {
			p.finish(0)
		}
	}
	p.check()
	written := float64(p.moved) / (slices * slice)
	t.Logf("%.2f written by merges, %d tables, %d would do", written, len(p.st.Tables), slices*slice/table)
	if written > 6 || len(p.st.Tables) > 4*slices*slice/table {
		t.Errorf("%.2f written by merges, %d tables", written, len(p.st.Tables))
	}
}
