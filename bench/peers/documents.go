package main

import (
	"encoding/binary"
	"encoding/hex"
)

// keyBytesMax is the length of the longest key: a word in hexadecimal digits.
const keyBytesMax = 16

// putKey writes the key of index, lower-case hexadecimal digits of a bijective
// mix of as many bits as they can hold, into dst. It holds an even number of
// bytes, at most keyBytesMax.
func putKey(dst []byte, index uint64) {
	bits := 4 * len(dst)
	mask := ^uint64(0) >> (64 - bits)
	half := bits / 2
	x := index & mask
	x = (x ^ x>>half) * 0xbf58476d1ce4e5b9 & mask
	x = (x ^ x>>half) * 0x94d049bb133111eb & mask
	x ^= x >> half
	var word [8]byte
	binary.BigEndian.PutUint64(word[:], x<<(64-bits))
	hex.Encode(dst, word[:len(dst)/2])
}

// putValue fills dst with bytes that look random and follow from the index.
func putValue(dst []byte, index uint64) {
	x := index*0x9e3779b97f4a7c15 + 1
	var word [8]byte
	for len(dst) > 0 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(word[:], x*0x2545f4914f6cdd1d)
		dst = dst[copy(dst, word[:]):]
	}
}
