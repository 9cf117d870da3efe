package manifest

import (
	"maps"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/memfs"

	"pgregory.net/rapid"
)

// model says what a manifest must say, one document at a time.
type model struct {
	t     *rapid.T
	disk  *memfs.FS
	log   *Log
	docs  map[entry.SegmentID]map[entry.Seqno]bool // registered segment -> its documents, true once dead
	named map[entry.SegmentID]map[entry.Seqno]bool // every id ever used -> the seqnos of its documents
	table map[uint64]*Table
	flush map[uint16]entry.Seqno
	next  entry.Seqno
	clock uint32 // the highest time at which a version expired
}

func (m *model) apply(e *Edit) State {
	// By way of the bytes, so that nothing is shared with the test.
	decoded, err := DecodeEdit(e.Append(nil))
	if err != nil {
		m.t.Fatal(err)
	}
	st, err := m.log.Apply(&decoded)
	if err != nil {
		m.t.Fatalf("%+v: %v", e, err)
	}
	return st
}

func (m *model) pick(from []entry.SegmentID, label string) entry.SegmentID {
	slices.Sort(from)
	return rapid.SampledFrom(from).Draw(m.t, label)
}

// home is where a document lives that was written to id.
func (m *model) home(s entry.Seqno) (entry.SegmentID, bool) {
	for id, docs := range m.docs {
		if _, ok := docs[s]; ok {
			return id, true
		}
	}
	return 0, false
}

// write adds a sealed log segment and a run of one kvstore that addresses it.
func (m *model) write(*rapid.T) {
	id := entry.SegmentID(m.log.NextFileNumber())
	n := entry.Seqno(rapid.IntRange(1, 30).Draw(m.t, "documents"))
	first := m.next
	m.next += n
	m.docs[id], m.named[id] = map[entry.Seqno]bool{}, map[entry.Seqno]bool{}
	for s := first; s < m.next; s++ {
		m.docs[id][s], m.named[id][s] = false, true
	}
	kv := rapid.Uint16Range(0, 2).Draw(m.t, "kvstore")
	table := &Table{Number: m.log.NextFileNumber(), KVStore: kv, LowestSeqno: first, HighestSeqno: m.next - 1, FileBytes: 4096, Entries: uint64(n),
		Smallest: entry.AppendKey(nil, kv, []byte{byte(rapid.IntRange(0, 9).Draw(m.t, "from"))}),
		Largest:  entry.AppendKey(nil, kv, []byte{byte(rapid.IntRange(9, 20).Draw(m.t, "to"))}),
		Segments: []SegmentUse{{Segment: id, Documents: uint32(n), Bytes: 100}}}
	table.Run = table.Number
	m.table[table.Number], m.flush[kv] = table, m.next-1
	m.apply(&Edit{
		AddSegments:  []AddSegment{{ID: id, Kind: SegmentLog, Size: 65536}},
		SealSegments: []SealSegment{{ID: id, End: 8192, Last: m.next - 1, FileBytes: 8192}},
		AddTables:    []*Table{table}, Flushed: []Flushed{{KVStore: kv, Seqno: m.next - 1}},
	})
}

// die reports documents, some of them again.
func (m *model) die(t *rapid.T) {
	if len(m.docs) == 0 {
		t.Skip()
	}
	id := m.pick(slices.Collect(maps.Keys(m.docs)), "segment")
	var dead []entry.Seqno
	for _, s := range slices.Sorted(maps.Keys(m.docs[id])) {
		if rapid.IntRange(0, 2).Draw(t, "dies") == 0 {
			dead = append(dead, s)
			m.docs[id][s] = true
		}
	}
	if len(dead) > 0 {
		m.apply(&Edit{AddDead: []*DeadSet{NewDeadSet(id, dead)}})
	}
}

// collect moves the living documents of a segment to up to two new ones.
func (m *model) collect(t *rapid.T) {
	if len(m.docs) == 0 {
		t.Skip()
	}
	victim := m.pick(slices.Collect(maps.Keys(m.docs)), "victim")
	outputs := []entry.SegmentID{entry.SegmentID(m.log.NextFileNumber()), entry.SegmentID(m.log.NextFileNumber())}
	moved := map[entry.SegmentID][]entry.Seqno{}
	for _, s := range slices.Sorted(maps.Keys(m.docs[victim])) {
		if !m.docs[victim][s] {
			to := rapid.SampledFrom(outputs).Draw(t, "stream")
			moved[to] = append(moved[to], s)
		}
	}
	e := &Edit{DropSegments: []entry.SegmentID{victim}}
	f := Forward{From: victim}
	delete(m.docs, victim)
	for _, to := range outputs {
		seqnos := moved[to]
		if len(seqnos) == 0 {
			continue
		}
		e.AddSegments = append(e.AddSegments, AddSegment{ID: to, Kind: SegmentGC, Size: 65536})
		e.SealSegments = append(e.SealSegments, SealSegment{ID: to, End: 8192, Last: seqnos[len(seqnos)-1], FileBytes: 8192})
		f.To = append(f.To, ForwardRange{Segment: to, First: seqnos[0], Last: seqnos[len(seqnos)-1]})
		m.docs[to], m.named[to] = map[entry.Seqno]bool{}, map[entry.Seqno]bool{}
		for _, s := range seqnos {
			m.docs[to][s], m.named[to][s] = false, true
		}
	}
	e.AddForwards = []Forward{f}
	m.apply(e)
}

// compact writes all tables of a kvstore anew, addressing documents where they
// are now.
func (m *model) compact(t *rapid.T) {
	kv := rapid.Uint16Range(0, 2).Draw(t, "kvstore")
	out := &Table{Number: m.log.NextFileNumber(), KVStore: kv, Level: 1, FileBytes: 8192, Entries: 1}
	e := &Edit{AddTables: []*Table{out}}
	use := map[entry.SegmentID]uint32{}
	for _, n := range slices.Sorted(maps.Keys(m.table)) {
		in := m.table[n]
		if in.KVStore != kv {
			continue
		}
		e.DropTables = append(e.DropTables, n)
		if out.LowestSeqno == 0 || in.LowestSeqno < out.LowestSeqno {
			out.LowestSeqno = in.LowestSeqno
		}
		out.HighestSeqno = max(out.HighestSeqno, in.HighestSeqno)
		if out.Smallest == nil || string(in.Smallest) < string(out.Smallest) {
			out.Smallest = in.Smallest
		}
		if string(in.Largest) > string(out.Largest) {
			out.Largest = in.Largest
		}
		for _, u := range in.Segments {
			for s := range m.named[u.Segment] {
				if home, ok := m.home(s); ok {
					use[home]++
				}
			}
		}
		delete(m.table, n)
	}
	if len(e.DropTables) == 0 {
		t.Skip()
	}
	for _, id := range slices.Sorted(maps.Keys(use)) {
		out.Segments = append(out.Segments, SegmentUse{Segment: id, Documents: use[id], Bytes: 100})
	}
	m.table[out.Number] = out
	m.apply(e)
}

// forget drops the forwards that no table needs.
func (m *model) forget(t *rapid.T) {
	needed := map[entry.SegmentID]bool{}
	for _, table := range m.table {
		for _, u := range table.Segments {
			needed[u.Segment] = true
		}
	}
	e := &Edit{}
	for _, f := range m.log.State().Forwards {
		if !needed[f.From] {
			e.DropForwards = append(e.DropForwards, f.From)
		}
	}
	m.apply(e)
}

// expire gives up a version at a time before or after the last one: clocks are
// set back, and jobs finish in any order.
func (m *model) expire(t *rapid.T) {
	at := rapid.Uint32Range(1, 1000).Draw(t, "time")
	m.clock = max(m.clock, at)
	m.apply(&Edit{ExpiryClock: at})
}

func (m *model) reopen(t *rapid.T) {
	settle(m.log)
	before := m.log.State()
	l, st, err := Open(m.disk, testDir, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	if dump(st) != dump(before) {
		t.Fatalf("replay makes\n%sof\n%s", dump(st), dump(before))
	}
	m.log = l
}

func (m *model) rotate(*rapid.T) {
	grow(m.log)
}

func (m *model) check(t *rapid.T) {
	st := m.log.State()
	if err := Validate(st); err != nil {
		t.Fatal(err)
	}
	if len(st.Segments) != len(m.docs) || len(st.Tables) != len(m.table) || len(st.Flushed) != len(m.flush) {
		t.Fatalf("%d segments, %d tables, %d flushed, want %d, %d, %d", len(st.Segments), len(st.Tables), len(st.Flushed), len(m.docs), len(m.table), len(m.flush))
	}
	if st.ExpiryClock != m.clock {
		t.Fatalf("expiry clock %d, want %d", st.ExpiryClock, m.clock)
	}
	inLevels := 0
	for kv := range uint16(4) {
		if st.FlushedSeqno(kv) != m.flush[kv] {
			t.Fatalf("kvstore %d flushed up to %d, want %d", kv, st.FlushedSeqno(kv), m.flush[kv])
		}
		for level := range uint8(3) {
			for _, table := range st.LevelTables(kv, level) {
				if table.KVStore != kv || table.Level != level {
					t.Fatalf("table %d is among those of kvstore %d, level %d", table.Number, kv, level)
				}
				inLevels++
			}
		}
	}
	if inLevels != len(m.table) {
		t.Fatalf("%d tables in levels, want %d", inLevels, len(m.table))
	}
	for id, docs := range m.docs {
		var want []entry.Seqno
		for _, s := range slices.Sorted(maps.Keys(docs)) {
			if docs[s] {
				want = append(want, s)
			}
			if st.DeadSet(id).Contains(s) != docs[s] {
				t.Fatalf("document %d of segment %d: dead %v", s, id, !docs[s])
			}
		}
		if d := st.DeadSet(id); d.Len() != len(want) || !slices.Equal(d.AppendSeqnos(nil), want) {
			t.Fatalf("segment %d: dead %d, want %d", id, d.AppendSeqnos(nil), want)
		}
	}
	for n, table := range m.table {
		for _, u := range table.Segments {
			for s := range m.named[u.Segment] {
				home, ok := m.home(s)
				if found := st.Resolve(nil, u.Segment, s); ok && !slices.Contains(found, home) {
					t.Fatalf("table %d, segment %d, seqno %d resolves to %d, but it is in %d", n, u.Segment, s, found, home)
				}
			}
		}
	}
}

// TestR07_R08_StateFollowsTheDocuments applies random flushes, reports of dead
// documents, collections and compactions, with reopening and rotation between,
// and asks for each document an index names where it is.
func TestR07_R08_StateFollowsTheDocuments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := memfs.New()
		if err := disk.MkdirAll(testDir); err != nil {
			t.Fatal(err)
		}
		l, err := Create(disk, testDir, testSecret, Edit{})
		if err != nil {
			t.Fatal(err)
		}
		m := &model{t: t, disk: disk, log: l, docs: map[entry.SegmentID]map[entry.Seqno]bool{}, named: map[entry.SegmentID]map[entry.Seqno]bool{},
			table: map[uint64]*Table{}, flush: map[uint16]entry.Seqno{}, next: 1}
		t.Repeat(map[string]func(*rapid.T){
			"write": m.write, "die": m.die, "collect": m.collect, "compact": m.compact, "forget": m.forget, "expire": m.expire,
			"reopen": m.reopen, "rotate": m.rotate, "": m.check,
		})
		m.reopen(t)
	})
}
