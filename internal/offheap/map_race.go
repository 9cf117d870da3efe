//go:build race

package offheap

import "unsafe"

// OnGoHeap: every piece of memory is zeroed whole when it is made.
const OnGoHeap = true

func mapBytes(n int) ([]byte, error) {
	b := make([]byte, n+AlignBytes)
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (AlignBytes - 1))
	return b[head : head+n : head+n], nil
}

func unmapBytes([]byte) {}

func smallPages([]byte) {}

func releasePages([]byte) {}
