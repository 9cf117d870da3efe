package bench

import (
	"bytes"
	"encoding/binary"
)

// patternBytes is how much random text the values of all keys share. It fits
// a second-level cache, and values cut from it do not compress by themselves.
const patternBytes = 256 << 10

// tagBytes is the part of a value that belongs to its key alone.
const tagBytes = 8

// Values makes the value of a key from the key's index, so that whoever knows
// the index can check the bytes. It is immutable and safe for concurrent use.
//
//	[tag: 8 bytes, hash of the index][cut from the pattern at a place that the hash names]
type Values struct {
	bytes   int
	pattern []byte
}

// NewValues returns values of n bytes, 0 or more.
func NewValues(n int) *Values {
	v := &Values{bytes: n, pattern: make([]byte, patternBytes+n)}
	x := uint64(0)
	for i := 0; i+8 <= patternBytes; i += 8 {
		x++
		binary.LittleEndian.PutUint64(v.pattern[i:], mix64(x))
	}
	for i := patternBytes; i < len(v.pattern); i += patternBytes {
		copy(v.pattern[i:], v.pattern[:patternBytes])
	}
	return v
}

// Bytes returns the length of every value, in bytes.
func (v *Values) Bytes() int { return v.bytes }

// parts returns the two pieces of the value of index.
func (v *Values) parts(index uint64) (tag [tagBytes]byte, rest []byte) {
	h := mix64(index ^ 0x5bd1e995)
	binary.LittleEndian.PutUint64(tag[:], h)
	if v.bytes <= tagBytes {
		return tag, nil
	}
	at := int(h>>32) & (patternBytes - 1)
	return tag, v.pattern[at : at+v.bytes-tagBytes]
}

// Put writes the value of index into dst, which must hold Bytes bytes.
func (v *Values) Put(dst []byte, index uint64) {
	tag, rest := v.parts(index)
	copy(dst[:v.bytes], tag[:])
	if rest != nil {
		copy(dst[tagBytes:], rest)
	}
}

// Matches reports whether part is what the value of index holds from byte at
// on. A value that arrives in pieces is checked piece by piece.
func (v *Values) Matches(index uint64, at int, part []byte) bool {
	if at < 0 || at+len(part) > v.bytes {
		return false
	}
	tag, rest := v.parts(index)
	if at < tagBytes {
		n := min(len(part), tagBytes-at)
		if !bytes.Equal(part[:n], tag[at:at+n]) {
			return false
		}
		part, at = part[n:], at+n
	}
	return len(part) == 0 || bytes.Equal(part, rest[at-tagBytes:at-tagBytes+len(part)])
}
