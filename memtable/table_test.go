package memtable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
)

func TestRandomHeight(t *testing.T) {
	const n = 1 << 20
	var counts [HeightMax + 1]int
	rnd := uint64(1)
	for range n {
		counts[RandomHeight(&rnd)]++
	}
	if counts[0] != 0 {
		t.Fatalf("%d nodes of height 0", counts[0])
	}
	at := n
	for h := 1; h <= 5; h++ {
		if at < n>>(2*(h-1))*9/10 || at > n>>(2*(h-1))*11/10 {
			t.Errorf("%d nodes of height %d and more, want about %d", at, h, n>>(2*(h-1)))
		}
		at -= counts[h]
	}
}

func TestNodeBytesIsExact(t *testing.T) {
	metas := []entry.Meta{{}, {CAS: 1}, {Flags: 1}, {Expiry: 1}, {Datatype: 1},
		{CAS: 1, Flags: 1, Expiry: 1, Datatype: 1}}
	arena := make([]byte, 1<<17)
	for _, m := range metas {
		for _, key := range []int{1, 5, 6, 7, 12, 255, KeyBytesMax} {
			for _, value := range []int{-1, 0, 1, 100} {
				for _, a := range []entry.Address{{}, {Segment: 1}} {
					for _, height := range []uint8{1, 2, HeightMax} {
						op := Op{Key: make([]byte, key), Seqno: 1, Meta: m, Address: a, Height: height}
						n := 0
						if value >= 0 {
							op.HasValue, op.Value, n = true, make([]byte, value), value
						}
						_, end := putNode(arena, 64, &op, height)
						want := NodeBytes(height, key, m, n, !a.IsZero())
						if int(end)-64 != want || op.NodeBytes() != want || want%4 != 0 {
							t.Fatalf("%+v: wrote %d bytes, NodeBytes %d, Op.NodeBytes %d", op, end-64, want, op.NodeBytes())
						}
					}
				}
			}
		}
	}
}

func TestReserveStopsAtCapacity(t *testing.T) {
	table := newTable(t, 1<<16)
	if _, ok := table.Reserve(1 << 16); ok {
		t.Fatal("reserved the whole capacity beside the head")
	}
	before := table.Bytes()
	if _, ok := table.Reserve(1<<16 - before - 4); !ok {
		t.Fatal("no room for what is left")
	}
	if _, ok := table.Reserve(8); ok {
		t.Fatal("reserved beyond the capacity")
	}
	if _, err := New(Options{Capacity: 100}); err == nil {
		t.Fatal("made a table without room for its head")
	}
	if _, err := New(Options{Capacity: 1 << 40}); err == nil {
		t.Fatal("made a table above 4 GiB")
	}
}

// keyOf is a 12-byte key; equal i give equal keys.
func keyOf(buf []byte, i uint64) []byte {
	return fmt.Appendf(buf[:0], "%012x", i*0x9E3779B97F4A7C15>>16)
}

// TestIndexGrows drives the index over several sizes, and through one writer
// that never prepares.
func TestIndexGrows(t *testing.T) {
	for _, prepared := range []bool{true, false} {
		t.Run(fmt.Sprintf("prepared=%t", prepared), func(t *testing.T) {
			const keys = 4 * slotsMin
			table := newTable(t, 32<<20)
			var s Scratch
			rnd := uint64(1)
			for i := 0; i < keys; i += 64 {
				var ops []Op
				size := 0
				for j := range 64 {
					key := keyOf(nil, uint64(i+j))
					op := Op{Key: key, Hash: hashOf(key), Seqno: entry.Seqno(i + j + 1), HasValue: true,
						Value: key, Height: RandomHeight(&rnd)}
					size += op.NodeBytes()
					ops = append(ops, op)
				}
				place, ok := table.Reserve(size)
				if !ok {
					t.Fatal("full")
				}
				if prepared {
					table.Prepare(len(ops))
				}
				table.InsertBatch(place, ops, &s)
			}
			if table.lacking.Load() == prepared {
				t.Fatalf("lacking is %t", !prepared)
			}
			var v View
			var key []byte
			for i := range uint64(keys) {
				key = keyOf(key, i)
				if !table.Get(hashOf(key), 0, key, entry.MaxSeqno, &v) || v.Seqno != entry.Seqno(i+1) || !bytes.Equal(v.Value.Bytes, key) {
					t.Fatalf("key %d: %+v", i, v)
				}
				if table.Get(hashOf(key), 1, key, entry.MaxSeqno, &v) {
					t.Fatalf("key %d is in another vbucket", i)
				}
				key[11] = 'x'
				if table.Get(hashOf(key), 0, key, entry.MaxSeqno, &v) {
					t.Fatalf("key %s is there", key)
				}
			}
			bytes := table.IndexBytes()
			if err := table.Reset(); err != nil {
				t.Fatal(err)
			}
			key = keyOf(key, 1)
			if table.Len() != 0 || table.IndexBytes() > bytes || table.Get(hashOf(key), 0, key, entry.MaxSeqno, &v) {
				t.Fatal("not empty after Reset")
			}
		})
	}
}

// TestOneKeyManyVersions walks long chains and the seek that cuts them short.
func TestOneKeyManyVersions(t *testing.T) {
	for _, ascending := range []bool{true, false} {
		table := newTable(t, 8<<20)
		var s Scratch
		rnd := uint64(1)
		const n = 5000
		var ops []Op
		for i := range n {
			seqno := entry.Seqno(2 * (i + 1))
			if !ascending {
				seqno = entry.Seqno(2 * (n - i))
			}
			ops = append(ops, Op{Key: []byte("counter"), Hash: 5, Seqno: seqno})
		}
		for c := range slices.Chunk(ops, 100) {
			insert(t, table, &s, &rnd, c)
		}
		var v View
		for at := entry.Seqno(2); at <= 2*n; at += 7 {
			if !table.Get(5, 0, []byte("counter"), at, &v) || v.Seqno != at&^1 {
				t.Fatalf("at %d: %d", at, v.Seqno)
			}
		}
		if table.Get(5, 0, []byte("counter"), 1, &v) {
			t.Fatal("found a version at 1")
		}
	}
}

// TestKeyOrders inserts keys in orders that are hard on the predecessors a
// group remembers.
func TestKeyOrders(t *testing.T) {
	const n = 3000
	orders := map[string]func(i int) int{
		"ascending":   func(i int) int { return i },
		"descending":  func(i int) int { return n - i },
		"two streams": func(i int) int { return i/2 + i%2*n },
		"zigzag":      func(i int) int { return n + (i%2*2-1)*i },
		"in a group backwards": func(i int) int {
			return i/groupMax*groupMax + groupMax - 1 - i%groupMax
		},
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			table := newTable(t, 4<<20)
			var s Scratch
			rnd := uint64(3)
			var m model
			var ops []Op
			for i := range n {
				key := fmt.Appendf(nil, "%012d", order(i))
				op := Op{Key: key, Hash: hashOf(key), Seqno: entry.Seqno(i + 1)}
				ops = append(ops, op)
				m = append(m, version(&op))
			}
			for c := range slices.Chunk(ops, 128) {
				insert(t, table, &s, &rnd, c)
			}
			slices.SortFunc(m, compareVersions)
			checkAll(t, table, m)
		})
	}
}

func TestDuplicatePanics(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("invariants are off")
	}
	table := newTable(t, 1<<16)
	defer func() {
		if recover() == nil {
			t.Fatal("a version came twice")
		}
	}()
	var s Scratch
	rnd := uint64(1)
	op := Op{Key: []byte("k"), Seqno: 1}
	insert(t, table, &s, &rnd, []Op{op, op})
}

// TestConcurrent lets writers insert batches out of order, overwriting shared
// keys, while readers check what must already be there: a version is complete
// once its writer published its number.
func TestConcurrent(t *testing.T) {
	const (
		writers = 4
		batches = 150
		perOnce = 40
		keys    = 2000
	)
	table := newTable(t, 16<<20)
	other := newTable(t, 16<<20) // gets every eighth key, in the same batches
	var (
		next  atomic.Uint64 // seqnos
		done  [keys]atomic.Uint64
		write sync.WaitGroup
		read  sync.WaitGroup
		stop  atomic.Bool
	)
	keyBytes := func(k uint64) []byte { return fmt.Appendf(nil, "key:%09d", k*k) }
	for w := range writers {
		write.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			rnd := uint64(w + 1)
			var s Scratch
			for range batches {
				var ops [2][]Op
				var ids []uint64
				var size [2]int
				for range perOnce {
					k := r.Uint64N(keys)
					seqno := next.Add(1)
					key := keyBytes(k)
					op := Op{Key: key, Hash: hashOf(key), Seqno: entry.Seqno(seqno), Height: RandomHeight(&rnd),
						HasValue: true, Value: binary.BigEndian.AppendUint64(nil, seqno)}
					i := 0
					if k%8 == 0 {
						i = 1
					}
					size[i] += op.NodeBytes()
					ops[i] = append(ops[i], op)
					ids = append(ids, k<<32|seqno)
				}
				table.Prepare(len(ops[0]))
				other.Prepare(len(ops[1]))
				place, ok := table.Reserve(size[0])
				place2, ok2 := other.Reserve(size[1])
				if !ok || !ok2 {
					t.Error("full")
					return
				}
				InsertParts([]Part{{table, place, ops[0]}, {other, place2, ops[1]}}, &s)
				for _, id := range ids {
					d := &done[id>>32]
					for old := d.Load(); old < id&(1<<32-1) && !d.CompareAndSwap(old, id&(1<<32-1)); old = d.Load() {
					}
				}
			}
		})
	}
	for range 2 {
		read.Go(func() {
			r := rand.New(rand.NewPCG(9, 9))
			gets := make([]Get, 40)
			least := make([]uint64, len(gets))
			for !stop.Load() {
				for i := range gets {
					k := r.Uint64N(keys)
					least[i] = done[k].Load()
					key := keyBytes(k)
					gets[i] = Get{Table: table, Key: key, Hash: hashOf(key), At: entry.MaxSeqno}
					if k%8 == 0 {
						gets[i].Table = other
					}
				}
				GetAcross(gets)
				for i := range gets {
					g := &gets[i]
					if g.Found != (g.View.Seqno != 0) || uint64(g.View.Seqno) < least[i] {
						t.Errorf("%s: found %t #%d, %d was complete", g.Key, g.Found, g.View.Seqno, least[i])
						return
					}
					if g.Found && binary.BigEndian.Uint64(g.View.Value.Bytes) != uint64(g.View.Seqno) {
						t.Errorf("%s#%d has the value of another", g.Key, g.View.Seqno)
						return
					}
				}
				it := table.NewIter(nil, nil)
				var last entry.Version
				for ok := it.First(); ok; ok = it.Next() {
					v := it.Version()
					if last.Key != nil && compareVersions(last, *v) >= 0 {
						t.Errorf("%s#%d is before %s#%d", last.Key, last.Seqno, v.Key, v.Seqno)
						return
					}
					if binary.BigEndian.Uint64(v.Value.Bytes) != uint64(v.Seqno) {
						t.Errorf("%s#%d has the value of another", v.Key, v.Seqno)
						return
					}
					last = *v
				}
			}
		})
	}
	write.Wait()
	stop.Store(true)
	read.Wait()
	checkLevels(t, table)
	checkLevels(t, other)
	if n := table.Len() + other.Len(); n != writers*batches*perOnce {
		t.Fatalf("%d versions", n)
	}
}

func TestLoaderRefuses(t *testing.T) {
	table := newTable(t, 1<<20)
	l := table.NewLoader()
	w := l.Worker()
	for i := range 100 {
		key := fmt.Appendf(nil, "a long shared prefix %d", i%99) // 0 comes twice
		if err := w.Add(&Op{Key: key, Hash: hashOf(key), Seqno: entry.Seqno(i%99 + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Finish(); !errors.Is(err, ErrDuplicate) {
		t.Fatalf("finish: %v", err)
	}
	if err := table.Reset(); err != nil {
		t.Fatal(err)
	}
	w = table.NewLoader().Worker()
	for i := 0; ; i++ {
		err := w.Add(&Op{Key: []byte("k"), Seqno: entry.Seqno(i + 1), HasValue: true, Value: make([]byte, 1000*(i%20))})
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil || i > 10_000 {
			t.Fatalf("add %d: %v", i, err)
		}
	}
	if left := 1<<20 - table.Bytes(); left > 32<<10 {
		t.Fatalf("full with %d bytes left", left)
	}
}

// TestLoaderSorts loads keys that the radix sort has to take apart more than
// once: long shared beginnings, few distinct bytes, ends among zeros.
func TestLoaderSorts(t *testing.T) {
	cases := map[string]func(r *rand.Rand) []byte{
		"hex":            func(r *rand.Rand) []byte { return fmt.Appendf(nil, "%012x", r.Uint64()>>16) },
		"dense decimal":  func(r *rand.Rand) []byte { return fmt.Appendf(nil, "%012d", r.IntN(5000)) },
		"shared prefix":  func(r *rand.Rand) []byte { return fmt.Appendf(nil, "user:profile:settings:%d", r.IntN(5000)) },
		"zeros":          func(r *rand.Rand) []byte { return make([]byte, 1+r.IntN(200)) },
		"one key":        func(r *rand.Rand) []byte { return []byte("counter") },
		"prefixes of it": func(r *rand.Rand) []byte { return bytes.Repeat([]byte("ab"), 1+r.IntN(100)) },
	}
	for name, makeKey := range cases {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			table := newTable(t, 16<<20)
			l := table.NewLoader()
			w := l.Worker()
			var m model
			for _, i := range r.Perm(4000) {
				key := makeKey(r)
				op := Op{VBucket: uint16(r.IntN(3) * 200), Key: key, Hash: hashOf(key), Seqno: entry.Seqno(i + 1)}
				m = append(m, version(&op))
				if err := w.Add(&op); err != nil {
					t.Fatal(err)
				}
			}
			if l.Len() != len(m) {
				t.Fatalf("Len %d", l.Len())
			}
			if err := l.Finish(); err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(m, compareVersions)
			checkAll(t, table, m)
			var v View
			for i := range m {
				vb, key := entry.SplitKey(m[i].Key)
				checkView(t, m, vb, key, m[i].Seqno, table.Get(hashOf(key), vb, key, m[i].Seqno, &v), &v)
			}
			// The table goes on as any other.
			var s Scratch
			rnd := uint64(1)
			var ops []Op
			for i := range 500 {
				key := makeKey(r)
				ops = append(ops, Op{VBucket: 200, Key: key, Hash: hashOf(key), Seqno: entry.Seqno(30_000 + i)})
				m = append(m, version(&ops[i]))
			}
			insert(t, table, &s, &rnd, ops)
			slices.SortFunc(m, compareVersions)
			checkAll(t, table, m)
			if table.NewLoader().Finish() == nil {
				t.Fatal("loaded into a table with versions")
			}
		})
	}
}

func TestAllocations(t *testing.T) {
	if invariants.Enabled {
		t.Skip("checks allocate")
	}
	table := newTable(t, 64<<20)
	var s Scratch
	rnd := uint64(1)
	ops := make([]Op, 100)
	keys := make([]byte, 12*len(ops))
	gets := make([]Get, len(ops))
	seqno := entry.Seqno(0)
	for i := range ops {
		keyOf(keys[12*i:][:0:12], uint64(i))
	}
	run := func() { // new keys first, then further versions
		size := 0
		for i := range ops {
			key := keys[12*i:][:12:12]
			seqno++
			ops[i] = Op{Key: key, Hash: hashOf(key), Seqno: seqno, HasValue: true, Value: key, Height: RandomHeight(&rnd)}
			size += ops[i].NodeBytes()
			gets[i] = Get{Table: table, Key: key, Hash: ops[i].Hash, At: seqno}
		}
		place, _ := table.Reserve(size)
		table.InsertBatch(place, ops, &s)
	}
	run()
	table.Prepare(50_000)
	count := func(what string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", what, n)
		}
	}
	count("InsertBatch", run)
	parts := make([]Part, 1)
	count("InsertParts of nothing", func() {
		parts[0] = Part{Table: table}
		InsertParts(parts, &s)
	})
	var v View
	count("Get", func() {
		if !table.Get(gets[7].Hash, 0, gets[7].Key, gets[7].At, &v) {
			t.Error("not found")
		}
	})
	count("GetMany", func() {
		for i := range gets {
			gets[i].Found = false
		}
		table.GetMany(gets)
	})
	count("GetAcross", func() {
		for i := range gets {
			gets[i].Found = false
		}
		GetAcross(gets)
	})
	it := table.NewIter([]byte{0}, []byte{0xff})
	count("iteration", func() {
		n := 0
		for ok := it.First(); ok && n < 1000; ok = it.Next() {
			n += len(it.Version().Key)
		}
		it.SeekGE(gets[5].Key, 1)
	})
}
