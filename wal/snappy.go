package wal

import (
	"slices"

	"github.com/golang/snappy"
)

const (
	// compressBytesMin is the shortest value that is compressed. A shorter one has
	// hardly anything to repeat, and its record is mostly key, head and sum.
	compressBytesMin = 128
	// compressSavePercent is what a block must save to be kept: reading it costs
	// an inflation each time, so a few bytes less are no gain.
	compressSavePercent = 12
	// MaxInflatedBytes is the longest value that is compressed, and the most that
	// a block may declare: what the library takes memory for before it reads on.
	// No item is larger than 64 MiB.
	MaxInflatedBytes = 64 << 20
	// snappyExpansionMax: a copy of 64 bytes takes 3 bytes, so an honest block
	// grows at most 22 times. A length above that is refused before memory is
	// taken for it, which keeps a small block from asking for 64 MiB.
	snappyExpansionMax = 22
)

// Compressible reports whether AppendBlock would try a value of that length.
func Compressible(valueBytes int) bool {
	return valueBytes >= compressBytesMin && valueBytes <= MaxInflatedBytes
}

// AppendBlock appends the snappy block of value to dst, for AppendCompressedSet,
// and reports true, when the block is at least 12 % smaller than value. Otherwise
// it returns dst as it was, perhaps with more room behind it. It allocates only
// when the room of dst is short of 32 bytes and 7/6 of the value. value and dst
// must not overlap.
func AppendBlock(dst, value []byte) ([]byte, bool) {
	if !Compressible(len(value)) {
		return dst, false
	}
	n := len(dst)
	room := snappy.MaxEncodedLen(len(value))
	dst = slices.Grow(dst, room)
	// Encode uses the room it is given when that is long enough.
	block := snappy.Encode(dst[n:n+room], value)
	if 100*len(block) > (100-compressSavePercent)*len(value) {
		return dst, false
	}
	return dst[:n+len(block)], true
}

// inflatedBytes returns the length that a snappy block declares, or an error
// when nothing of that length can be in it.
func inflatedBytes(block []byte) (int, error) {
	declared, err := snappy.DecodedLen(block)
	if err != nil || declared > MaxInflatedBytes || declared > snappyExpansionMax*len(block) {
		return 0, corrupt("", 0, "compressed value declares %d bytes in %d", declared, len(block))
	}
	return declared, nil
}

// appendInflated appends the value of a snappy block to dst. After an error
// dst is returned as it was.
func appendInflated(dst, block []byte) ([]byte, error) {
	declared, err := inflatedBytes(block)
	if err != nil {
		return dst, err
	}
	n := len(dst)
	out := slices.Grow(dst, declared)[:n+declared]
	// Decode uses the room it is given when that is long enough, and fills it.
	if _, err := snappy.Decode(out[n:], block); err != nil {
		return dst, corrupt("", 0, "compressed value of %d bytes: %v", len(block), err)
	}
	return out, nil
}
