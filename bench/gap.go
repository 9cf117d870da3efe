package bench

import (
	"sync/atomic"
	"time"
)

// Gap finds the longest time in which nothing was completed, whoever completes
// it. Times are nanoseconds on one clock. It is safe for concurrent use; Start
// comes before everything that counts.
type Gap struct{ last, longest atomic.Int64 }

// Start begins anew.
func (g *Gap) Start(now int64) {
	g.last.Store(now)
	g.longest.Store(0)
}

// Done says that something was completed. What was completed before Start, or
// before what is known already, does not count.
func (g *Gap) Done(now int64) {
	last := g.last.Load()
	for now > last && !g.last.CompareAndSwap(last, now) {
		last = g.last.Load()
	}
	for {
		longest := g.longest.Load()
		if now-last <= longest || g.longest.CompareAndSwap(longest, now-last) {
			return
		}
	}
}

// Longest returns the longest gap since Start.
func (g *Gap) Longest() time.Duration { return time.Duration(g.longest.Load()) }
