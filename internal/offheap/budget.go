package offheap

import (
	"fmt"
	"sync/atomic"

	"fluxkv/internal/invariants"
)

// Budget counts bytes against a limit. All methods are safe for concurrent
// use; none blocks.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns an unused budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// TryReserve takes n bytes, n >= 0, and reports true, or takes nothing when
// they do not fit below the limit.
func (b *Budget) TryReserve(n int64) bool {
	checkAmount(n)
	for {
		used := b.used.Load()
		if n > b.limit-used {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Reserve takes n bytes, n >= 0, whatever the limit says: for memory that is
// in use already, or that must be had for the store to make progress.
func (b *Budget) Reserve(n int64) {
	checkAmount(n)
	b.used.Add(n)
}

// Release gives n bytes back, at most what was taken.
func (b *Budget) Release(n int64) {
	checkAmount(n)
	if used := b.used.Add(-n); invariants.Enabled && used < 0 {
		panic(fmt.Sprintf("offheap: budget released %d bytes more than reserved", -used))
	}
}

// Used returns the bytes taken; Reserve can bring it above Limit.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limit returns the limit in bytes.
func (b *Budget) Limit() int64 { return b.limit }

func checkAmount(n int64) {
	if invariants.Enabled && n < 0 {
		panic(fmt.Sprintf("offheap: budget amount %d is negative", n))
	}
}
