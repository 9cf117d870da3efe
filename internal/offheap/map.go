package offheap

import (
	"fmt"
	"sync/atomic"
)

// AlignBytes is the alignment of everything Map and AlignedBuffer return: the
// page size, which is also what direct I/O asks for.
const AlignBytes = 4096

// hugeBytes is the size of a huge page on the machines we know. Larger maps
// are aligned to it, so that the kernel can back them with huge pages.
const hugeBytes = 2 << 20

// mapBytesMax bounds one map: 1 TiB is far above any quota and far below the
// 128 TiB of address space, so rounding up cannot overflow.
const mapBytesMax = 1 << 40

// mapped is what Map handed out and Unmap did not get back.
var mapped atomic.Int64

// Mapped returns the bytes of all maps of the process that were not given back,
// as asked for: pages that were never touched count, rounding does not. It is
// safe for concurrent use. In race builds it counts although the memory is the
// collector's.
func Mapped() int64 { return mapped.Load() }

// Map returns n zero bytes outside the Go heap, 1 <= n <= 1 TiB, aligned to
// AlignBytes. Pages are backed when first touched; nothing is reserved before,
// so running out of memory shows at the touch. From 2 MiB on the memory is
// aligned to huge pages and asks for them. The caller owns the slice until it
// gives exactly it (same start, same capacity) to Unmap.
func Map(n int) ([]byte, error) {
	if n <= 0 || n > mapBytesMax {
		return nil, fmt.Errorf("offheap: map of %d bytes is out of range", n)
	}
	b, err := mapBytes(n)
	if err == nil {
		mapped.Add(int64(n))
	}
	return b, err
}

// Unmap gives memory of Map back. No slice of it may be used afterwards. An
// empty b is ignored.
func Unmap(b []byte) {
	if cap(b) == 0 {
		return
	}
	mapped.Add(-int64(cap(b)))
	unmapBytes(b[:cap(b)])
}

// AlignedBuffer returns n zero bytes aligned to AlignBytes, for direct I/O.
// The caller keeps it and gives it to FreeAligned; making one costs a system
// call, so buffers are pooled.
func AlignedBuffer(n int) ([]byte, error) { return Map(n) }

// FreeAligned gives a buffer of AlignedBuffer back.
func FreeAligned(b []byte) { Unmap(b) }
