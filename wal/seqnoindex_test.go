package wal

import (
	"errors"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestSeqnoIndexIsExact compares the index with a map over random shapes,
// gaps and sizes that cross the sampling step.
func TestSeqnoIndexIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 1500)).Draw(rt, "documents")
		seqnoGap := rapid.SampledFrom([]uint64{1, 2, 3, 100, 1 << 30}).Draw(rt, "seqno gap")
		offsetGap := rapid.SampledFrom([]uint64{12, 40, 1100, 1 << 20}).Draw(rt, "offset gap")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		b := NewIndexBuilder(n)
		want := map[entry.Seqno]uint32{}
		seqno, offset := entry.Seqno(rnd.Uint64N(1<<40)), uint64(4096)
		for range n {
			seqno += entry.Seqno(1 + rnd.Uint64N(seqnoGap))
			offset += 1 + rnd.Uint64N(offsetGap)
			if offset > MaxSegmentBytes {
				break
			}
			b.Add(seqno, uint32(offset))
			want[seqno] = uint32(offset)
		}
		enc := b.Encode(nil)
		x, err := DecodeIndex(enc)
		if err != nil {
			rt.Fatal(err)
		}
		if x.Len() != len(want) {
			rt.Fatalf("%d documents, want %d", x.Len(), len(want))
		}
		last := entry.Seqno(0)
		seen := 0
		for s, off := range x.All() {
			if s <= last || want[s] != off {
				rt.Fatalf("seqno %d at %d after %d, want %d", s, off, last, want[s])
			}
			last = s
			seen++
			for _, q := range []entry.Seqno{s - 1, s, s + 1} {
				got, ok := x.Lookup(q)
				if w, has := want[q]; ok != has || got != w {
					rt.Fatalf("lookup %d: %d %v, want %d %v", q, got, ok, w, has)
				}
			}
		}
		if seen != len(want) {
			rt.Fatalf("walked %d of %d", seen, len(want))
		}
		for _, q := range []entry.Seqno{0, 1, entry.MaxSeqno} {
			if _, ok := x.Lookup(q); ok {
				if _, has := want[q]; !has {
					rt.Fatalf("found %d", q)
				}
			}
		}
	})
}

func TestSeqnoIndexTakesTwoBytesADocument(t *testing.T) {
	b := NewIndexBuilder(100_000)
	for i := range 100_000 {
		b.Add(entry.Seqno(1000+i), uint32(4096+i*1100))
	}
	if n := len(b.Encode(nil)); n > 2*100_000 {
		t.Fatalf("%d bytes for 100,000 documents of 1,100 bytes", n)
	}
}

func TestSeqnoIndexLookupAllocatesNothing(t *testing.T) {
	b := NewIndexBuilder(10_000)
	for i := range 10_000 {
		b.Add(entry.Seqno(2*i+1), uint32(4096+i*300))
	}
	x, err := DecodeIndex(b.Encode(nil))
	if err != nil {
		t.Fatal(err)
	}
	s := entry.Seqno(0)
	if n := testing.AllocsPerRun(1000, func() { s += 7; x.Lookup(s) }); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func sealedBuilder(t testing.TB) *logBuilder {
	b := newMemBuilder(t, 512, 1<<20)
	b.roll(9)
	b.sets(3, 1000)
	b.sets(2, 10)
	b.sets(4, 300)
	b.seal(true, true)
	return b
}

func TestFooterIsFoundFromTheEndOfTheFile(t *testing.T) {
	b := sealedBuilder(t)
	f, err := b.fs.Open(b.name(9), vfs.OpenOptions{})
	b.ok(err)
	defer f.Close()
	foot, index, err := ReadFooter(f, &testSecret, 9)
	b.ok(err)
	if foot.End != b.off || foot.First != 1 || foot.Last != 9 || foot.Records != 9 || foot.Durable != 9 || foot.Segment != 9 {
		t.Fatalf("%+v", foot)
	}
	if index.Len() != 7 {
		t.Fatalf("%d documents in the index, want 7", index.Len())
	}
	if _, ok := index.Lookup(4); ok {
		t.Fatal("an inline value is in the index")
	}
	if n, _ := f.Size(); n%512 != 0 {
		t.Fatalf("file of %d bytes", n)
	}
	if _, _, err := ReadFooter(f, &testSecret, 8); !errors.Is(err, ErrNoFooter) {
		t.Fatalf("footer valid in another segment: %v", err)
	}
}

func TestEveryDamagedByteOfAFooterIsSeen(t *testing.T) {
	b := sealedBuilder(t)
	f, err := b.fs.Open(b.name(9), vfs.OpenOptions{Write: true})
	b.ok(err)
	defer f.Close()
	size, err := f.Size()
	b.ok(err)
	foot, _, err := ReadFooter(f, &testSecret, 9)
	b.ok(err)
	for off := int64(foot.End); off < size; off++ {
		inIndex := off < int64(foot.indexOffset+foot.indexBytes)
		if !inIndex && off < size-footerTailBytes {
			continue // zeros between
		}
		old := b.peek(9, off, 1)
		b.overwrite(9, off, []byte{old[0] ^ 0x40})
		if _, _, err := ReadFooter(f, &testSecret, 9); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNoFooter) {
			t.Fatalf("byte %d changed: %v", off, err)
		}
		b.overwrite(9, off, old)
	}
	_, err = f.WriteAt([]byte{1}, size)
	b.ok(err)
	if _, _, err := ReadFooter(f, &testSecret, 9); !errors.Is(err, ErrNoFooter) {
		t.Fatalf("footer not at the end: %v", err)
	}
}

func TestFooterOfTinyFiles(t *testing.T) {
	fs := memfs.New()
	f, err := fs.Create("x", vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int64{0, 1, footerTailBytes - 1, footerTailBytes, 5000} {
		if err := f.Truncate(n); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadFooter(f, &testSecret, 1); !errors.Is(err, ErrNoFooter) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// FuzzFooter decodes arbitrary tails and indexes. A sum only keeps accidents
// out, so the fuzzer may also ask for a tail whose sum is right.
func FuzzFooter(f *testing.F) {
	b := NewIndexBuilder(0)
	for i := range 600 {
		b.Add(entry.Seqno(10+i*i), uint32(4096+i*100))
	}
	foot := EncodeFooter(nil, Footer{Segment: 1, End: 1 << 20, First: 10, Last: 1 << 20}, b, 512, &testSecret)
	f.Add(foot, b.Encode(nil), false)
	f.Add(foot, NewIndexBuilder(0).Encode(nil), true)
	f.Add([]byte{}, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, tail, index []byte, resum bool) {
		size := int64(1<<20 + len(tail))
		if resum && len(tail) >= footerTailBytes {
			b := tail[len(tail)-footerTailBytes:]
			copy(b, footerMagic)
			le.PutUint32(b[12:], 1)
			le.PutUint64(b[72:], sum64(mix64(place(&testSecret, 1, uint32(size-footerTailBytes))^domainTail), b[:72]))
		}
		foot, err := DecodeFooterTail(tail, size, &testSecret, 1)
		switch {
		case err == nil:
			if int64(foot.indexOffset)+int64(foot.indexBytes) > size || foot.indexOffset < foot.End {
				t.Fatalf("%+v in %d bytes", foot, size)
			}
		case !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNoFooter):
			t.Fatal(err)
		}
		x, err := DecodeIndex(index)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		n := 0
		again := NewIndexBuilder(x.Len())
		for s, off := range x.All() {
			if got, ok := x.Lookup(s); !ok || got != off {
				t.Fatalf("lookup %d: %d %v, walked to %d", s, got, ok, off)
			}
			again.Add(s, off)
			n++
		}
		if n != x.Len() || string(again.Encode(nil)) != string(index) {
			t.Fatal("not the canonical encoding")
		}
	})
}

func BenchmarkSeqnoIndexLookup(b *testing.B) {
	x, _ := DecodeIndex(benchIndex(100_000))
	b.ReportAllocs()
	s := entry.Seqno(0)
	for b.Loop() {
		s = (s + 7919) % 100_000
		x.Lookup(s)
	}
}

func BenchmarkSeqnoIndexDecode(b *testing.B) {
	enc := benchIndex(100_000)
	b.SetBytes(int64(len(enc)))
	for b.Loop() {
		if _, err := DecodeIndex(enc); err != nil {
			b.Fatal(err)
		}
	}
}

func benchIndex(n int) []byte {
	b := NewIndexBuilder(n)
	for i := range n {
		b.Add(entry.Seqno(1+i), uint32(4096+i*1100))
	}
	return b.Encode(nil)
}
