package memtable

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
)

// drawKey draws keys that meet: short alphabets, shared beginnings around the
// word boundaries, and trailing zeros, which the padding must not confuse.
func drawKey(t *rapid.T) []byte {
	prefix := rapid.SampledFrom([]string{"", "a", "abcdef", "abcdefg", "user:profile:0000",
		"user:profile:00000000000000", "\x00\x00\x00", "abcd\x00\x00"}).Draw(t, "prefix")
	tail := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 'b', 0xff}), 0, 5).Draw(t, "tail")
	key := append([]byte(prefix), tail...)
	if len(key) == 0 {
		key = []byte{0}
	}
	return key
}

func drawOp(t *rapid.T, seqno entry.Seqno) Op {
	op := Op{
		VBucket: rapid.SampledFrom([]uint16{0, 1, 0x100, 0xffff}).Draw(t, "vbucket"),
		Key:     drawKey(t),
		Seqno:   seqno,
		Height:  uint8(rapid.IntRange(1, 5).Draw(t, "height")),
	}
	if rapid.IntRange(0, 9).Draw(t, "height max") == 0 {
		op.Height = HeightMax
	}
	op.Hash = hashOf(op.Key)
	if rapid.IntRange(0, 3).Draw(t, "hash collides") == 0 {
		// Any hash that is a function of the key will do.
		op.Hash = uint64(len(op.Key)) << 60
	}
	if rapid.IntRange(0, 4).Draw(t, "kind") == 0 {
		op.Kind = entry.KindDelete
		return op
	}
	some := func(label string) bool { return rapid.IntRange(0, 2).Draw(t, label) == 0 }
	if some("cas") {
		op.Meta.CAS = rapid.Uint64().Draw(t, "cas")
	}
	if some("flags") {
		op.Meta.Flags = rapid.Uint32().Draw(t, "flags")
	}
	if some("expiry") {
		op.Meta.Expiry = rapid.Uint32().Draw(t, "expiry")
	}
	if some("datatype") {
		op.Meta.Datatype = rapid.Byte().Draw(t, "datatype")
	}
	op.HasValue = !some("no value")
	if op.HasValue {
		op.Value = rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "value")
	}
	if !op.HasValue || some("address") {
		op.Address = entry.Address{Segment: entry.SegmentID(rapid.Uint32Range(1, 1<<32-1).Draw(t, "segment")),
			Offset: rapid.Uint32().Draw(t, "offset"), Length: rapid.Uint32().Draw(t, "length")}
	}
	return op
}

// hashes keeps the first hash drawn for a key: it must be the same always.
type hashes map[string]uint64

func (h hashes) fix(op *Op) {
	if old, ok := h[string(op.Key)]; ok {
		op.Hash = old
	}
	h[string(op.Key)] = op.Hash
}

func (h hashes) of(key []byte) uint64 {
	if x, ok := h[string(key)]; ok {
		return x
	}
	return hashOf(key)
}

func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, err := New(Options{Capacity: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Free()
		if rapid.Bool().Draw(t, "used before") {
			fillWithRubbish(t, table)
		}
		var (
			m       model
			scratch Scratch
			next    = entry.Seqno(1)
			h       = hashes{}
		)
		if rapid.Bool().Draw(t, "load") {
			l := table.NewLoader()
			workers := []*LoadWorker{l.Worker(), l.Worker()}
			for range rapid.IntRange(0, 200).Draw(t, "loaded") {
				op := drawOp(t, next)
				h.fix(&op)
				next++
				if err := workers[next%2].Add(&op); err != nil {
					t.Fatal(err)
				}
				m = append(m, version(&op))
			}
			if err := l.Finish(); err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(m, compareVersions)
			checkAll(t, table, m)
		}
		// Batches get their places in order and are filled in any.
		for range rapid.IntRange(0, 4).Draw(t, "rounds") {
			type batch struct {
				place uint32
				ops   []Op
			}
			var batches []batch
			for range rapid.IntRange(1, 3).Draw(t, "batches") {
				var b batch
				size := 0
				for range rapid.IntRange(1, 80).Draw(t, "ops") {
					op := drawOp(t, next)
					h.fix(&op)
					next += entry.Seqno(rapid.IntRange(1, 3).Draw(t, "gap"))
					size += op.NodeBytes()
					b.ops = append(b.ops, op)
					m = append(m, version(&op))
				}
				var ok bool
				if b.place, ok = table.Reserve(size); !ok {
					t.Fatalf("no room for %d", size)
				}
				batches = append(batches, b)
			}
			table.Prepare(100)
			order := rapid.Permutation(batches).Draw(t, "order")
			for _, b := range order {
				table.InsertBatch(b.place, b.ops, &scratch)
			}
			slices.SortFunc(m, compareVersions)
			checkAll(t, table, m)
		}
		checkGets(t, table, m, h, next)
		checkIter(t, table, m, next)
	})
}

// fillWithRubbish leaves old bytes and old slots behind, as a reused table has.
func fillWithRubbish(t *rapid.T, table *Table) {
	var scratch Scratch
	for i := range 3 {
		op := Op{Key: bytes.Repeat([]byte{0xee}, 1000+i), Seqno: 7, Height: HeightMax, Hash: uint64(i) << 60}
		place, _ := table.Reserve(op.NodeBytes())
		table.InsertBatch(place, []Op{op}, &scratch)
	}
	for i := range table.bytes[:1<<16] {
		table.bytes[i] = 0xee
	}
	if err := table.Reset(); err != nil {
		t.Fatal(err)
	}
}

func checkGets(t *rapid.T, table *Table, m model, h hashes, last entry.Seqno) {
	var gets []Get
	for range rapid.IntRange(1, 100).Draw(t, "gets") {
		g := Get{
			VBucket: rapid.SampledFrom([]uint16{0, 1, 0x100, 0xffff}).Draw(t, "vbucket"),
			At:      entry.Seqno(rapid.Uint64Range(0, uint64(last)).Draw(t, "at")),
		}
		if len(m) > 0 && rapid.Bool().Draw(t, "present") {
			v := rapid.SampledFrom([]entry.Version(m)).Draw(t, "version")
			g.VBucket, g.Key = entry.SplitKey(v.Key)
		} else {
			g.Key = drawKey(t)
		}
		g.Hash = h.of(g.Key)
		gets = append(gets, g)
		var v View
		checkView(t, m, g.VBucket, g.Key, g.At, table.Get(g.Hash, g.VBucket, g.Key, g.At, &v), &v)
	}
	across := slices.Clone(gets)
	table.GetMany(gets)
	for i := range across {
		across[i].Table = table
	}
	GetAcross(across)
	for i := range gets {
		for _, g := range []*Get{&gets[i], &across[i]} {
			checkView(t, m, g.VBucket, g.Key, g.At, g.Found, &g.View)
		}
	}
}

func checkIter(t *rapid.T, table *Table, m model, last entry.Seqno) {
	drawBound := func(label string) []byte {
		if rapid.Bool().Draw(t, label+" open") {
			return nil
		}
		key := entry.AppendKey(nil, rapid.SampledFrom([]uint16{0, 1, 0x100}).Draw(t, "vbucket"), drawKey(t))
		return key[:rapid.IntRange(0, len(key)).Draw(t, label)]
	}
	for range 5 {
		lower, upper := drawBound("lower"), drawBound("upper")
		it := table.NewIter(lower, upper)
		check := func(what string, ok bool, i int) {
			want := i < len(m) && (upper == nil || bytes.Compare(m[i].Key, upper) < 0)
			if ok != want {
				t.Fatalf("%s in [%x, %x): %t, want %t", what, lower, upper, ok, want)
			}
			if ok && show(it.Version()) != show(&m[i]) {
				t.Fatalf("%s in [%x, %x): %s\nwant %s", what, lower, upper, show(it.Version()), show(&m[i]))
			}
		}
		check("first", it.First(), m.seek(lower, entry.MaxSeqno))
		for range 5 {
			key := drawBound("seek")
			seqno := entry.Seqno(rapid.Uint64Range(0, uint64(last)).Draw(t, "seqno"))
			i := m.seek(key, seqno)
			if lower != nil {
				i = max(i, m.seek(lower, entry.MaxSeqno))
			}
			ok := it.SeekGE(key, seqno)
			check("seek", ok, i)
			for range 3 {
				if !ok {
					break
				}
				i++
				ok = it.Next()
				check("next", ok, i)
			}
			if !ok && it.Next() {
				t.Fatalf("next after the end is true")
			}
		}
		if err := it.Error(); err != nil {
			t.Fatal(err)
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
