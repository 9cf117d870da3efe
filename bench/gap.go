package bench

import (
	"sync/atomic"
	"time"
)

// Gap finds the longest time in which nothing was completed, whoever completes
// it. Times are nanoseconds on one clock. It is safe for concurrent use, but for
// Start.
type Gap struct{ last, longest atomic.Int64 }

// Start begins anew.
func (g *Gap) Start(now int64) {
	g.last.Store(now)
	g.longest.Store(0)
}

// Done says that something was completed. Clocks read at the same time by
// others may be a little behind.
func (g *Gap) Done(now int64) {
	gap := now - g.last.Swap(now)
	for {
		longest := g.longest.Load()
		if gap <= longest || g.longest.CompareAndSwap(longest, gap) {
			return
		}
	}
}

// Longest returns the longest gap since Start.
func (g *Gap) Longest() time.Duration { return time.Duration(g.longest.Load()) }
