package wal

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
)

// FormatVersion is the version in segment headers and footers.
const FormatVersion = 1

// Bounds of the alignment of groups, in bytes. An alignment is a power of two.
const (
	AlignMin     = 512
	AlignDefault = 4096
	AlignMax     = 65536
)

// MaxSegmentBytes bounds the allocated size of a segment: offsets are u32,
// and the end of a last group rounded up to AlignMax must fit too.
const MaxSegmentBytes = 1<<32 - AlignMax

// MaxKeyBytes is the longest user key.
const MaxKeyBytes = 65535

// MaxValueBytes bounds a value as it is stored. It is far above any
// --max-item-size and only keeps damaged lengths from steering anything.
const MaxValueBytes = 1 << 30

// Secret is the store's random secret. It is under every checksum, so that
// the bytes of another store, or of an earlier use of a file, never look valid.
type Secret [16]byte

// SegmentKind says what a segment is for. The values are on disk.
type SegmentKind uint8

const (
	// SegmentLog takes the writes of users; it is replayed.
	SegmentLog SegmentKind = 1
	// SegmentGC is an output of garbage collection; it is never replayed.
	SegmentGC SegmentKind = 2
)

func (k SegmentKind) String() string {
	switch k {
	case SegmentLog:
		return "log"
	case SegmentGC:
		return "gc"
	}
	return fmt.Sprintf("SegmentKind(%d)", uint8(k))
}

// SegmentName returns the base name of a segment's file, "000041.seg" or
// "000041.gc.seg".
func SegmentName(id entry.SegmentID, kind SegmentKind) string {
	if kind == SegmentGC {
		return fmt.Sprintf("%06d.gc.seg", uint32(id))
	}
	return fmt.Sprintf("%06d.seg", uint32(id))
}

// ParseSegmentName is the inverse of SegmentName; ok is false for any name
// that SegmentName does not make.
func ParseSegmentName(base string) (id entry.SegmentID, kind SegmentKind, ok bool) {
	digits, found := strings.CutSuffix(base, ".seg")
	if !found {
		return 0, 0, false
	}
	kind = SegmentLog
	if d, gc := strings.CutSuffix(digits, ".gc"); gc {
		digits, kind = d, SegmentGC
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 {
		return 0, 0, false
	}
	id = entry.SegmentID(n)
	// Comparing refuses signs, short numbers and superfluous zeros at once.
	return id, kind, SegmentName(id, kind) == base
}

// validAlign reports whether align is a power of two within the bounds.
func validAlign(align int) bool {
	return align >= AlignMin && align <= AlignMax && align&(align-1) == 0
}

// roundUp rounds n up to a multiple of align, a power of two.
func roundUp(n int64, align int) int64 {
	a := int64(align)
	return (n + a - 1) &^ (a - 1)
}

// Domains keep sums of different things at one place apart. They are on disk.
const (
	domainGroupHeader = 0x6872
	domainGroup       = 0x6772
	domainDocument    = 0x646f_0000_0000_0000
	domainIndex       = 0x6978
	domainTail        = 0x7461
)

// mix64 is the finalizer of splitmix64: a bijection, so different places
// always have different seeds.
func mix64(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// place folds the secret and a place in the log into one word.
func place(secret *Secret, segment entry.SegmentID, offset uint32) uint64 {
	if mutant.AcceptStaleGroup {
		segment = 0
	}
	a, b := le.Uint64(secret[0:]), le.Uint64(secret[8:])
	return mix64((uint64(segment)<<32|uint64(offset))^a) + b
}

// sum64 is xxhash64 of b with a seed. The digest stays on the stack.
func sum64(seed uint64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	d.Write(b)
	return d.Sum64()
}
