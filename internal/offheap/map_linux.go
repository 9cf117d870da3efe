//go:build linux && !race

package offheap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

func roundPage(n int) uintptr {
	return uintptr(n+AlignBytes-1) &^ (AlignBytes - 1)
}

// OnGoHeap says whether memory comes from the Go heap, as in race builds: then a
// piece is zeroed whole when it is made, and costs what it has, used or not.
const OnGoHeap = false

func mapBytes(n int) ([]byte, error) {
	want := roundPage(n)
	size := want
	if n >= hugeBytes {
		// Only aligned 2 MiB can be huge: map more, cut head and tail off.
		size += hugeBytes
	}
	p, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("offheap: map %d bytes: %w", n, err)
	}
	if n >= hugeBytes {
		head := -uintptr(p) & (hugeBytes - 1)
		if head > 0 {
			if err := unix.MunmapPtr(p, head); err != nil {
				return nil, fmt.Errorf("offheap: cut map of %d bytes: %w", n, err)
			}
			p = unsafe.Add(p, head)
		}
		if tail := size - head - want; tail > 0 {
			if err := unix.MunmapPtr(unsafe.Add(p, want), tail); err != nil {
				return nil, fmt.Errorf("offheap: cut map of %d bytes: %w", n, err)
			}
		}
		// Advice only: a kernel without huge pages answers EINVAL, and the
		// memory is as good, only slower.
		_ = unix.Madvise(unsafe.Slice((*byte)(p), want), unix.MADV_HUGEPAGE)
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// smallPages takes back the wish for huge pages for b, whole pages of Map.
// Advice only, like the wish.
func smallPages(b []byte) {
	if len(b) >= hugeBytes {
		_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	}
}

func unmapBytes(b []byte) {
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), roundPage(len(b))); err != nil {
		// The kernel refuses only addresses that Map never returned.
		panic(fmt.Sprintf("offheap: unmap %d bytes: %v", len(b), err))
	}
}

func releasePages(b []byte) {
	if len(b) == 0 {
		return
	}
	if err := unix.Madvise(b, unix.MADV_DONTNEED); err != nil {
		// The kernel refuses only what is not mapped, or locked.
		panic(fmt.Sprintf("offheap: release %d bytes: %v", len(b), err))
	}
}
