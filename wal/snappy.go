package wal

import (
	"slices"

	"github.com/golang/snappy"
)

// snappyExpansionMax: a copy of 64 bytes takes 3 bytes, so an honest block
// grows at most 22 times. A length above that is refused before memory is
// taken for it: the library allocates what the block declares.
const snappyExpansionMax = 22

// appendInflated appends the value of a snappy block to dst. After an error
// dst is returned as it was.
func appendInflated(dst, block []byte) ([]byte, error) {
	declared, err := snappy.DecodedLen(block)
	if err != nil || declared > MaxValueBytes || declared > snappyExpansionMax*len(block) {
		return dst, corrupt("", 0, "compressed value declares %d bytes in %d", declared, len(block))
	}
	out := slices.Grow(dst, declared)
	value, err := snappy.Decode(out[len(dst):len(dst)+declared], block)
	if err != nil {
		return dst, corrupt("", 0, "compressed value of %d bytes: %v", len(block), err)
	}
	// Decode uses the room it is given when that is long enough.
	return append(out[:len(dst)], value...), nil
}
