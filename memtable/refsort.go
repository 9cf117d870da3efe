package memtable

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

const refBytes = 16

// refsOf reads memory of offheap.Map, which is aligned to pages, as n refs.
func refsOf(mem []byte, n int) []ref {
	return unsafe.Slice((*ref)(unsafe.Pointer(unsafe.SliceData(mem[:n*refBytes]))), n)
}

// radixMin is the length from which a radix sort, which clears and sums 2,048
// counters, beats comparing keys in the arena.
const radixMin = 48

// refSorter sorts refs by their nodes: by 8 bytes of key at a time, the lowest
// byte first, and then again where those were equal. One pass over the highest
// byte and then comparing took six times as long: hex digits fill 16 of 256
// buckets.
type refSorter struct{ nodes }

// sort sorts refs, whose words are the first bytes of the keys. spare is as
// long as refs and is overwritten.
func (s refSorter) sort(refs, spare []ref) {
	radixSort(refs, spare)
	for i := 0; i < len(refs); {
		j := i + 1
		for j < len(refs) && refs[j].word == refs[i].word {
			j++
		}
		s.sortEqual(refs[i:j], spare[i:j])
		i = j
	}
}

// sortEqual sorts refs whose words are equal.
func (s refSorter) sortEqual(refs, spare []ref) {
	switch n := len(refs); {
	case n < 2:
	case n == 2:
		if s.compare(refs[0].node, refs[1].node) > 0 {
			refs[0], refs[1] = refs[1], refs[0]
		}
	case n < radixMin:
		slices.SortFunc(refs, s.compareRefs)
	default:
		shared, longest := s.sharedBytes(refs)
		if shared == longest {
			// One key, many versions.
			slices.SortFunc(refs, s.compareRefs)
			return
		}
		// At least two of the new words differ, or one key ends where another
		// goes on with zeros; each round leaves 8 bytes behind.
		split := false
		for i := range refs {
			refs[i].word = wordFrom(s.key(refs[i].node), shared)
			split = split || refs[i].word != refs[0].word
		}
		if !split {
			slices.SortFunc(refs, s.compareRefs)
			return
		}
		s.sort(refs, spare)
	}
}

func (s refSorter) compareRefs(a, b ref) int { return s.compare(a.node, b.node) }

// sharedBytes returns how many bytes all keys begin with, and the length of the
// longest key.
func (s refSorter) sharedBytes(refs []ref) (shared, longest int) {
	first := s.key(refs[0].node)
	shared, longest = len(first), len(first)
	for i := 1; i < len(refs); i++ {
		key := s.key(refs[i].node)
		longest = max(longest, len(key))
		k, end := 0, min(shared, len(key))
		for k+wordBytes <= end && binary.NativeEndian.Uint64(first[k:]) == binary.NativeEndian.Uint64(key[k:]) {
			k += wordBytes
		}
		for k < end && first[k] == key[k] {
			k++
		}
		shared = k
	}
	return shared, longest
}

// wordFrom returns 8 bytes of key from byte i on, padded with zeros.
func wordFrom(key []byte, i int) uint64 {
	if key = key[i:]; len(key) >= wordBytes {
		return binary.BigEndian.Uint64(key)
	}
	var w uint64
	for i, c := range key {
		w |= uint64(c) << (56 - 8*i)
	}
	return w
}

// radixSort sorts refs by word, stably. All eight histograms come from one
// pass, and bytes that are the same everywhere cost nothing more.
func radixSort(refs, spare []ref) {
	var counts [8][256]uint32
	for i := range refs {
		w := refs[i].word
		counts[0][byte(w)]++
		counts[1][byte(w>>8)]++
		counts[2][byte(w>>16)]++
		counts[3][byte(w>>24)]++
		counts[4][byte(w>>32)]++
		counts[5][byte(w>>40)]++
		counts[6][byte(w>>48)]++
		counts[7][byte(w>>56)]++
	}
	from, to := refs, spare[:len(refs)]
	for b := range counts {
		c, shift := &counts[b], 8*b
		if c[byte(from[0].word>>shift)] == uint32(len(from)) {
			continue
		}
		sum := uint32(0)
		for i, n := range c {
			c[i] = sum
			sum += n
		}
		for i := range from {
			k := byte(from[i].word >> shift)
			to[c[k]] = from[i]
			c[k]++
		}
		from, to = to, from
	}
	if &from[0] != &refs[0] {
		copy(refs, from)
	}
}
