package sstable

import "math/bits"

// packedBits is the widest value of a packed column: with a shift of up to 7
// it still lies in one 8-byte word.
const packedBits = 56

// packed reads entry i of the column at off, width bits each. 8 bytes behind
// the column's last byte are readable.
func packed(b []byte, off, i int, width uint) uint64 {
	bit := uint(i) * width
	return le.Uint64(b[off+int(bit>>3):]) >> (bit & 7) & (1<<width - 1)
}

// packAppend appends the values less base as a column of width bits.
func packAppend(dst []byte, values []uint64, base uint64, width uint) []byte {
	if width == 0 {
		return dst
	}
	var word uint64
	var have uint
	for _, v := range values {
		v -= base
		word |= v << have
		have += width
		for have >= 64 {
			dst = le.AppendUint64(dst, word)
			have -= 64
			word = v >> (width - have) // the bits that did not fit
		}
	}
	for ; have >= 8; have -= 8 {
		dst = append(dst, byte(word))
		word >>= 8
	}
	if have > 0 {
		dst = append(dst, byte(word))
	}
	return dst
}

// widthOf is the width of a column whose largest difference is d.
func widthOf(d uint64) uint { return uint(bits.Len64(d)) }

// packedBytes is the length of a column of n values.
func packedBytes(n int, width uint) int { return (n*int(width) + 7) >> 3 }

// lcp is the length of the longest common prefix.
func lcp(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if d := le.Uint64(a[i:]) ^ le.Uint64(b[i:]); d != 0 {
			return i + bits.TrailingZeros64(d)>>3
		}
	}
	for ; i < n; i++ {
		if a[i] != b[i] {
			break
		}
	}
	return i
}
