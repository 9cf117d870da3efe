package sstable

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
)

// drawVersions draws a table's content: keys that collide in prefixes and
// lengths, several versions, every kind of entry.
func drawVersions(t *rapid.T) []entry.Version {
	length := rapid.SampledFrom([]int{1, 3, 8, 12, 40, 300}).Draw(t, "key length")
	fixed := rapid.Bool().Draw(t, "one key length")
	alphabet := rapid.SampledFrom([]string{"ab", "0123456789abcdef", "\x00\x01\xfe\xff"}).Draw(t, "alphabet")
	versions := rapid.SampledFrom([]int{1, 1, 3, 40}).Draw(t, "versions at most")
	bits := rapid.SampledFrom([]uint{1, 8, 30, 56}).Draw(t, "seqno bits")
	values := rapid.SampledFrom([]int{0, 8, 60, 700}).Draw(t, "value bytes at most")
	kinds := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "kinds")
	n := rapid.IntRange(1, 300).Draw(t, "keys")
	seed := rapid.Uint64().Draw(t, "seed")

	rnd := rand.New(rand.NewPCG(seed, 1))
	var vs []entry.Version
	for range n {
		size := length
		if !fixed {
			size = 1 + rnd.IntN(length)
		}
		k := make([]byte, size)
		for i := range k {
			k[i] = alphabet[rnd.IntN(len(alphabet))]
			if i < size/2 && rnd.IntN(8) > 0 {
				k[i] = alphabet[0]
			}
		}
		internal := entry.AppendKey(nil, uint16(rnd.IntN(2)), k)
		for range 1 + rnd.IntN(versions) {
			v := entry.Version{Key: internal, Seqno: entry.Seqno(rnd.Uint64N(1 << bits))}
			switch rnd.IntN(kinds) {
			case 0:
				v.Value.HasBytes, v.Value.Bytes = true, make([]byte, rnd.IntN(values+1))
				if kinds == 1 {
					v.Value.Bytes = make([]byte, values)
				}
				for i := range v.Value.Bytes {
					v.Value.Bytes[i] = byte(rnd.IntN(4))
				}
			case 1:
				v.Value.Address = entry.Address{Segment: entry.SegmentID(1 + rnd.Uint32N(50)), Offset: rnd.Uint32(), Length: rnd.Uint32N(2000)}
			case 2:
				v.Kind = entry.KindDelete
			case 3:
				v.Value.HasBytes, v.Value.Bytes = true, []byte("meta")
				v.Meta = entry.Meta{CAS: rnd.Uint64N(2) << 60, Flags: rnd.Uint32N(2), Expiry: rnd.Uint32N(3) * rnd.Uint32(), Datatype: uint8(rnd.IntN(2))}
			}
			vs = append(vs, v)
		}
	}
	return sortVersions(vs)
}

// TestTablesAgreeWithASortedSlice builds random tables and asks them anything.
func TestTablesAgreeWithASortedSlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		vs := drawVersions(rt)
		o, ro := testOptions(), readerOptions()
		o.BlockBytes = rapid.SampledFrom([]int{512, 700, 4096, 16 << 10, 200 << 10}).Draw(rt, "block bytes")
		o.BloomBits = rapid.SampledFrom([]int{0, 1, 10, 16}).Draw(rt, "bloom bits")
		o.Compression = Compression(rapid.IntRange(0, 1).Draw(rt, "compression"))
		o.WriteBufferBytes = rapid.SampledFrom([]int{4096, 64 << 10}).Draw(rt, "write buffer")
		ro.PinIndex = rapid.Bool().Draw(rt, "pin index")
		ro.PinFilter = rapid.Bool().Draw(rt, "pin filter")
		fs := newFS(t)
		p := writeTable(t, fs, "idx/"+Name(testNumber), true, o, vs)
		r, err := tryOpen(fs, "idx/"+Name(testNumber), true, ro)
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		if err := r.Verify(); err != nil {
			rt.Fatal(err)
		}
		if p.Entries != uint64(len(vs)) || !bytes.Equal(p.Smallest, vs[0].Key) || !bytes.Equal(p.Largest, vs[len(vs)-1].Key) {
			rt.Fatalf("properties %+v of %d entries", p, len(vs))
		}
		var buf Buffer
		defer buf.Free()
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "asks"), 1))
		draw := func() ([]byte, entry.Seqno) {
			v := vs[rnd.IntN(len(vs))]
			k := slices.Clone(v.Key)
			switch rnd.IntN(6) {
			case 0:
				k[len(k)-1]++
			case 1:
				k = append(k, 0)
			case 2:
				if len(k) > 3 {
					k = k[:3+rnd.IntN(len(k)-3)]
				}
			case 3:
				k[2+rnd.IntN(len(k)-2)] = byte(rnd.Uint32())
			}
			switch rnd.IntN(4) {
			case 0:
				return k, v.Seqno
			case 1:
				return k, entry.Seqno(rnd.Uint64N(uint64(v.Seqno) + 1))
			case 2:
				return k, min(v.Seqno+1, entry.MaxSeqno)
			}
			return k, entry.MaxSeqno
		}
		for range 200 {
			k, seqno := draw()
			checkGet(t, r, &buf, vs, k, seqno)
		}
		ahead := rapid.SampledFrom([]int{0, 3000, 64 << 10}).Draw(rt, "read ahead")
		all := r.NewIter(IterOptions{ReadAheadBytes: ahead})
		defer all.Close()
		checkScan(t, all, vs)
		for range 20 {
			lower, _ := draw()
			upper, _ := draw()
			var io IterOptions
			inside := vs
			if rnd.IntN(4) > 0 {
				io.Upper = upper
				inside = inside[:modelSeek(inside, upper, entry.MaxSeqno)]
			}
			if rnd.IntN(4) > 0 {
				io.Lower = lower
				inside = inside[min(len(inside), modelSeek(vs, lower, entry.MaxSeqno)):]
			}
			io.ReadAheadBytes = ahead
			it := r.NewIter(io)
			checkScan(t, it, inside)
			for range 5 {
				k, seqno := draw()
				i := modelSeek(inside, k, seqno)
				ok := it.SeekGE(k, seqno)
				for steps := 0; ok && steps < 40; steps++ {
					if i >= len(inside) || !sameVersion(it.Version(), &inside[i]) {
						rt.Fatalf("seek %q at %d, step %d: %s", k, seqno, steps, show(it.Version()))
					}
					i++
					ok = it.Next()
				}
				if it.Error() != nil || !ok && i != len(inside) {
					rt.Fatalf("seek %q at %d: ended at %d of %d, %v", k, seqno, i, len(inside), it.Error())
				}
			}
			it.Close()
		}
	})
}

// TestSeparatorsLieBetween: last <= separator < next, and it is not longer
// than both.
func TestSeparatorsLieBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 'b', 0xfe, 0xff}), 1, 6)
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		if c := bytes.Compare(a, b); c > 0 {
			a, b = b, a
		} else if c == 0 {
			return
		}
		s := appendSeparator(nil, a, b)
		if bytes.Compare(s, a) < 0 || bytes.Compare(s, b) >= 0 || len(s) > max(len(a), len(b)) {
			t.Fatalf("%q is no separator of %q and %q", s, a, b)
		}
	})
}
