package bench

import (
	"sync"
	"testing"
	"time"
)

func TestGapIsTheLongestBetweenAny(t *testing.T) {
	var g Gap
	g.Start(100)
	for _, now := range []int64{50, 150, 140, 900, 950} { // 50 is too early, 140 was read before 150
		g.Done(now)
	}
	if got := g.Longest(); got != 750 {
		t.Errorf("%d ns, want 750", got)
	}
	g.Start(1000)
	if g.Done(1001); g.Longest() != 1 {
		t.Errorf("begun anew: %d ns, want 1", g.Longest())
	}
	g.Start(0)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				g.Done(int64(time.Second))
			}
		})
	}
	wg.Wait()
	if got := g.Longest(); got != time.Second {
		t.Errorf("%v, want 1s", got)
	}
}
