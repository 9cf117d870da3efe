package bench

import (
	"context"
	"sync"
	"time"
)

// Every calls look in a goroutine of its own, each time that so much time has
// passed, until ctx ends, look fails, or the stop that it returns is called. stop
// waits for a look under way, and returns what look failed with. It may be called
// again.
func Every(ctx context.Context, d time.Duration, look func() error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				failed <- nil
				return
			case <-ticker.C:
			}
			if err := look(); err != nil {
				failed <- err
				return
			}
		}
	}()
	return sync.OnceValue(func() error {
		cancel()
		return <-failed
	})
}
