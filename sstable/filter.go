package sstable

import "math/bits"

// filterKind is the only kind of filter there is; 0 means none. Frozen.
const filterKind = 1

const (
	pieceBytes = 4096
	pieceBits  = pieceBytes * 8
	probesMax  = 8

	// BloomBitsMax bounds WriterOptions.BloomBits.
	BloomBitsMax = 64
)

// probes is k, the bits set for a key. The textbook has 0.69 of the bits a
// key; fewer cost nothing measurable and are faster to ask.
func probes(bitsPerKey int) int { return min(max(bitsPerKey*6/10, 1), probesMax) }

// filterPieces is how many pieces a filter for keys has.
func filterPieces(keys, bitsPerKey int) int {
	return int((uint64(keys)*uint64(bitsPerKey) + pieceBits - 1) / pieceBits)
}

// hashChunk is how many hashes of a hashList lie together: 256 KiB.
const hashChunk = 32 << 10

// hashList collects the hashes of a table's keys, 8 bytes each: the size of
// the filter is known only when the last key is.
type hashList struct {
	full [][]uint64 // chunks
	last []uint64   // the open chunk
}

func (l *hashList) add(h uint64) {
	if len(l.last) == cap(l.last) {
		if l.last != nil {
			l.full = append(l.full, l.last)
		}
		l.last = make([]uint64, 0, hashChunk)
	}
	l.last = append(l.last, h)
}

func (l *hashList) len() int { return len(l.full)*hashChunk + len(l.last) }

// pieceOf is the piece of pieces that has the bits of hash h.
func pieceOf(h uint64, pieces uint32) uint32 {
	hi, _ := bits.Mul64(h, uint64(pieces))
	return uint32(hi)
}

// positions start the walk over the bits of hash h in its piece.
func positions(h uint64) (a, b uint32) {
	g := h * 0x9E3779B97F4A7C15
	return uint32(g >> 49), uint32(g>>32)&0x1ffff | 1
}

// pieceAdd sets the k bits of h.
func pieceAdd(piece []byte, h uint64, k int) {
	p := (*[pieceBytes]byte)(piece)
	a, b := positions(h)
	for i := range uint32(k) {
		p[a>>3&(pieceBytes-1)] |= 1 << (a & 7)
		a += b
		b += i
	}
}

// pieceHas reports whether all k bits of h are set. The bits are those of
// bits-and-blooms' BitSet; going over bytes asks no alignment of the piece and
// is a third faster.
func pieceHas(piece []byte, h uint64, k int) bool {
	p := (*[pieceBytes]byte)(piece)
	a, b := positions(h)
	for i := range uint32(k) {
		if p[a>>3&(pieceBytes-1)]&(1<<(a&7)) == 0 {
			return false
		}
		a += b
		b += i
	}
	return true
}
