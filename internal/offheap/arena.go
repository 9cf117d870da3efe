package offheap

import (
	"fmt"
	"sync/atomic"

	"fluxkv/internal/invariants"
)

const (
	// ArenaBytesMax is the largest capacity of an arena: every offset, and
	// the end of every allocation, fits a uint32 with room to spare.
	ArenaBytesMax = 4<<30 - 2<<20

	// arenaHead is never handed out, so that offset 0 can mean "none". A
	// cache line, so that the first allocation is aligned like the others.
	arenaHead = 64
)

// Arena hands out pieces of one mapping and frees them all at once. Alloc and
// Used are safe for concurrent use; Reset and Free need the caller to know
// that nobody else uses the arena.
type Arena struct {
	mem  []byte
	used atomic.Uint64
}

// NewArena reserves address space for capacity bytes, 64 < capacity <=
// ArenaBytesMax. Memory is used only as allocations are touched. In race
// builds the capacity is allocated on the Go heap.
func NewArena(capacity int) (*Arena, error) {
	if capacity <= arenaHead || capacity > ArenaBytesMax {
		return nil, fmt.Errorf("offheap: arena capacity of %d bytes is out of range", capacity)
	}
	mem, err := Map(capacity)
	if err != nil {
		return nil, err
	}
	// A store has many memtables that stay small: their first bytes must not
	// take, and zero, a huge page each.
	smallPages(mem[:min(capacity, hugeBytes)])
	a := &Arena{mem: mem}
	a.used.Store(arenaHead)
	return a, nil
}

// Alloc returns the offset in Bytes of n bytes, aligned to align, a power of
// two of at most AlignBytes. It reports false, and takes nothing, when n does
// not fit. The bytes are zero unless the arena was Reset.
func (a *Arena) Alloc(n int, align int) (off uint32, ok bool) {
	if invariants.Enabled && (n < 0 || align <= 0 || align > AlignBytes || align&(align-1) != 0) {
		panic(fmt.Sprintf("offheap: arena allocation of %d bytes aligned to %d", n, align))
	}
	if n < 0 || n > len(a.mem) {
		return 0, false
	}
	mask := uint64(align) - 1
	for {
		used := a.used.Load()
		start := (used + mask) &^ mask
		end := start + uint64(n)
		if end > uint64(len(a.mem)) {
			return 0, false
		}
		if a.used.CompareAndSwap(used, end) {
			return uint32(start), true
		}
	}
}

// Bytes returns the whole capacity. It is valid until Free. An allocation may
// be written by whoever got its offset.
func (a *Arena) Bytes() []byte { return a.mem }

// Used returns the bytes handed out, including padding and the 64 bytes at the
// start that never are.
func (a *Arena) Used() int { return int(a.used.Load()) }

// Reset takes every allocation back and keeps the pages for the next ones. It
// zeroes nothing: later allocations hold old bytes.
func (a *Arena) Reset() { a.used.Store(arenaHead) }

// Free gives the memory back. The arena is empty afterwards: every Alloc of
// more than nothing fails. Freeing again does nothing.
func (a *Arena) Free() {
	Unmap(a.mem)
	a.mem = nil
}
