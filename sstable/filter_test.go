package sstable

import (
	"math/rand/v2"
	"testing"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/cespare/xxhash/v2"
)

// TestFilterBitsAreThoseOfTheLibrary: a piece read as the words of a BitSet
// has exactly the bits that the format page names.
func TestFilterBitsAreThoseOfTheLibrary(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, k := range []int{1, 6, 8} {
		piece := make([]byte, pieceBytes)
		words := make([]uint64, pieceBytes/8)
		set := bloom.From(words, uint(k)).BitSet()
		var hashes []uint64
		for range 3000 {
			h := rnd.Uint64()
			hashes = append(hashes, h)
			pieceAdd(piece, h, k)
			g := h * 0x9E3779B97F4A7C15
			a, b := g>>49, g>>32&0x1ffff|1
			for i := range uint64(k) {
				set.Set(uint(a & 32767))
				a += b
				b += i
			}
		}
		for i, w := range words {
			if le.Uint64(piece[8*i:]) != w {
				t.Fatalf("k=%d: word %d differs", k, i)
			}
		}
		for _, h := range hashes {
			if !pieceHas(piece, h, k) {
				t.Fatalf("k=%d: %x is missing", k, h)
			}
		}
	}
}

// TestFilterErrsAsOftenAsItShould: 10 bits a key about 0.84 %, 16 about 0.06 %.
func TestFilterErrsAsOftenAsItShould(t *testing.T) {
	for _, c := range []struct {
		bits, k int
		most    float64
	}{{10, 6, 0.0100}, {16, 8, 0.0010}} {
		const keys = 200_000
		if got := probes(c.bits); got != c.k {
			t.Fatalf("%d bits: k=%d, want %d", c.bits, got, c.k)
		}
		pieces := filterPieces(keys, c.bits)
		filter := make([]byte, pieces*pieceBytes)
		at := func(h uint64) []byte { return filter[int(pieceOf(h, uint32(pieces)))*pieceBytes:][:pieceBytes] }
		var b [8]byte
		hash := func(i uint64) uint64 { le.PutUint64(b[:], i); return xxhash.Sum64(b[:]) }
		for i := range uint64(keys) {
			pieceAdd(at(hash(i)), hash(i), c.k)
		}
		wrong := 0
		for i := uint64(keys); i < 2*keys; i++ {
			if pieceHas(at(hash(i)), hash(i), c.k) {
				wrong++
			}
		}
		if rate := float64(wrong) / keys; rate > c.most {
			t.Errorf("%d bits, k=%d: %.3f %% false positives, want at most %.3f %%", c.bits, c.k, 100*rate, 100*c.most)
		}
	}
}

func TestExpiryHistogramStaysSmallAndComplete(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	var h expiryHistogram
	for range 64 {
		h.add(1_700_000_000+rnd.Uint32N(5)*100, 10)
	}
	if len(h.buckets) != 5 || h.shift != 0 {
		t.Fatalf("few times are kept exactly: %+v", h)
	}
	for range 20_000 {
		h.add(rnd.Uint32(), 10)
	}
	var n uint32
	var bytes uint64
	for i, b := range h.buckets {
		n += b.Entries
		bytes += b.Bytes
		if i > 0 && b.NotAfter <= h.buckets[i-1].NotAfter {
			t.Fatalf("not ascending: %+v", h.buckets)
		}
	}
	if len(h.buckets) > expiryBucketsMax || n != 20_064 || bytes != 10*20_064 {
		t.Fatalf("%d buckets, %d entries, %d bytes", len(h.buckets), n, bytes)
	}
}
