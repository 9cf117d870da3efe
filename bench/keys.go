package bench

import (
	"fmt"
	"math/bits"
)

// KeyFormat says how a key is written from its index.
type KeyFormat string

const (
	// KeyHex passes the index through a bijective mix and writes it as
	// lower-case hexadecimal digits: neighbours in the index are strangers in
	// the order of keys, and every digit is used.
	KeyHex KeyFormat = "hex"
	// KeyDecimal writes the index as zero-padded decimal digits: dense, in
	// order, and friendly to prefix compression.
	KeyDecimal KeyFormat = "decimal"
)

// KeyBytesMax is the longest key that the protocol carries.
const KeyBytesMax = 250

// Keys maps indexes 0..Count-1 to distinct keys of exactly Bytes bytes. It is
// immutable, and safe for concurrent use.
type Keys struct {
	format KeyFormat
	bytes  int
	count  uint64
	// bits is the width of the mix: four for each digit, 64 at most.
	bits uint
}

// NewKeys returns the key space of count keys of n bytes, 1..KeyBytesMax. It
// fails when n digits cannot tell count keys apart.
func NewKeys(format KeyFormat, n int, count uint64) (*Keys, error) {
	if n < 1 || n > KeyBytesMax {
		return nil, fmt.Errorf("key size %d: want 1 to %d bytes", n, KeyBytesMax)
	}
	if count < 1 {
		return nil, fmt.Errorf("keys 0: want at least 1")
	}
	k := &Keys{format: format, bytes: n, count: count, bits: uint(min(4*n, 64))}
	switch format {
	case KeyHex:
		if k.bits < 64 && count > 1<<k.bits {
			return nil, fmt.Errorf("keys %d: %d hexadecimal digits name only %d", count, n, uint64(1)<<k.bits)
		}
	case KeyDecimal:
		if limit, ok := pow10(n); ok && count > limit {
			return nil, fmt.Errorf("keys %d: %d decimal digits name only %d", count, n, limit)
		}
	default:
		return nil, fmt.Errorf("key format %q: want %q or %q", format, KeyHex, KeyDecimal)
	}
	return k, nil
}

// pow10 returns 10^n, and false when that is beyond 64 bits.
func pow10(n int) (uint64, bool) {
	p := uint64(1)
	for range n {
		hi, lo := bits.Mul64(p, 10)
		if hi != 0 {
			return 0, false
		}
		p = lo
	}
	return p, true
}

// Count returns the number of keys.
func (k *Keys) Count() uint64 { return k.count }

// Bytes returns the length of every key, in bytes.
func (k *Keys) Bytes() int { return k.bytes }

// Put writes the key of index into dst, which must hold Bytes bytes.
func (k *Keys) Put(dst []byte, index uint64) {
	dst = dst[:k.bytes]
	if k.format == KeyDecimal {
		for i := len(dst) - 1; i >= 0; i-- {
			dst[i] = '0' + byte(index%10)
			index /= 10
		}
		return
	}
	x := mixBits(index, k.bits)
	if k.bits < 64 {
		x <<= 64 - k.bits
	}
	for len(dst) > 0 {
		// The first word alone is distinct; longer keys go on with a hash of
		// what they have, so that no byte is constant.
		word := x
		for i := 0; i < 8 && len(dst) > 0; i++ {
			pair := hexPairs[word>>56]
			dst[0] = byte(pair >> 8)
			if len(dst) == 1 {
				return
			}
			dst[1] = byte(pair)
			dst = dst[2:]
			word <<= 8
		}
		x = mix64(x)
	}
}

// hexPairs holds the two digits of every byte value, the first one high.
var hexPairs = func() (t [256]uint16) {
	const digits = "0123456789abcdef"
	for i := range t {
		t[i] = uint16(digits[i>>4])<<8 | uint16(digits[i&15])
	}
	return t
}()

// mixBits permutes the numbers of n bits, 1..64: xor-shifts and products with
// odd constants, each of which can be undone.
func mixBits(x uint64, n uint) uint64 {
	mask := ^uint64(0) >> (64 - n)
	half := (n + 1) / 2
	x &= mask
	x ^= x >> half
	x = x * 0xbf58476d1ce4e5b9 & mask
	x ^= x >> half
	x = x * 0x94d049bb133111eb & mask
	x ^= x >> half
	return x
}

// mix64 is the finalizer of splitmix64 over x plus its increment: a good hash
// of one word that maps 0 away from 0.
func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
