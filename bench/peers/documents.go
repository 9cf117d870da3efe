package main

import (
	"encoding/binary"
	"encoding/hex"
)

// keyBytes is the length of every key: a word in hexadecimal digits.
const keyBytes = 16

// putKey writes the key of index, lower-case hexadecimal digits of a bijective
// mix, into dst, which holds keyBytes bytes.
func putKey(dst []byte, index uint64) {
	x := index
	x = (x ^ x>>32) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>32) * 0x94d049bb133111eb
	x ^= x >> 32
	var word [8]byte
	binary.BigEndian.PutUint64(word[:], x)
	hex.Encode(dst, word[:])
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
