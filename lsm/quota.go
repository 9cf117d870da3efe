package lsm

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slowFrom is the share of the write cache from which writers are slowed.
	slowNum, slowDen = 3, 4
	// slowBytesPerSecond is what one writer gets just below the limit.
	slowBytesPerSecond = 32 * mib
	// slowSleepMin collects delays until they are worth a sleep.
	slowSleepMin = 200 * time.Microsecond
	// runsSlow is the number of runs of one kvstore from which writers are slowed,
	// so that merges keep up; from runsSlowest on each gets runsBytesPerSecond.
	runsSlow, runsSlowest = 24, 48
	runsBytesPerSecond    = mib
	// indexBytes is what the hash index takes for an operation, at load 1/2.
	indexBytes = 8
)

// quota bounds unflushed memtables. Above 3/4 of the limit writers are slowed
// in proportion, at the limit they stop: they wait, or are told ErrOverloaded.
type quota struct {
	limit  int64
	reject bool
	used   atomic.Int64
	debt   atomic.Int64 // nanoseconds of delay not yet slept
	runs   atomic.Int64 // most of any kvstore
	pace   pacer        // for the space target

	// mu guards the fields below; a leaf.
	mu   sync.Mutex
	cond sync.Cond
	err  error // the store is closed or read-only: nobody waits any more
	// blocked is why the cache cannot be flushed at present: who would have to
	// wait gets it instead.
	blocked error
	// full wakes whoever can make room.
	full func()

	slowed, stalled, rejected atomic.Int64 // writers
	slowedNanos, stalledNanos atomic.Int64
	stallsNow                 atomic.Int64
}

func (q *quota) init(limit int64, reject bool, full func()) {
	q.limit, q.reject, q.full = limit, reject, full
	q.cond.L = &q.mu
}

// tryReserve takes n bytes if they fit. One item may be larger than a small
// write cache; it gets through when little else is there.
func (q *quota) tryReserve(n int64) bool {
	for {
		u := q.used.Load()
		if u+n > q.limit && (n <= q.limit/2 || u > q.limit/4) {
			return false
		}
		if q.used.CompareAndSwap(u, u+n) {
			return true
		}
	}
}

// admit reserves n bytes for a batch, before it is numbered. ErrOverloaded when
// the cache is full and the store rejects; the error given to stop when the
// store ended.
func (q *quota) admit(n int64) error {
	q.pace.wait(n)
	if !q.tryReserve(n) {
		if err := q.wait(n); err != nil {
			return err
		}
	}
	if over := q.used.Load() - q.limit/slowDen*slowNum; over > 0 {
		q.slow(n, over)
	}
	if runs := q.runs.Load(); runs > runsSlow {
		share := float64(min(runs, runsSlowest)-runsSlow) / (runsSlowest - runsSlow)
		q.delay(int64(share * float64(n) / runsBytesPerSecond * 1e9))
	}
	return nil
}

// slow delays a writer of n bytes in proportion to how far the cache is over
// the mark.
func (q *quota) slow(n, over int64) {
	share := float64(over) / float64(q.limit-q.limit/slowDen*slowNum)
	q.delay(int64(share * float64(n) / slowBytesPerSecond * 1e9))
}

// delay makes a writer sleep, when delays have added up to what is worth it.
func (q *quota) delay(nanoseconds int64) {
	debt := q.debt.Add(nanoseconds)
	if debt < int64(slowSleepMin) {
		return
	}
	q.debt.Add(-debt)
	q.slowed.Add(1)
	q.slowedNanos.Add(debt)
	time.Sleep(time.Duration(min(debt, int64(100*time.Millisecond))))
}

func (q *quota) wait(n int64) error {
	if q.reject {
		q.rejected.Add(1)
		q.full()
		return ErrOverloaded
	}
	q.stalled.Add(1)
	q.stallsNow.Add(1)
	start := time.Now()
	q.full()
	q.mu.Lock()
	err := q.err
	for err == nil && !q.tryReserve(n) {
		if err = q.blocked; err == nil {
			q.cond.Wait()
			err = q.err
		}
	}
	q.mu.Unlock()
	q.stallsNow.Add(-1)
	q.stalledNanos.Add(int64(time.Since(start)))
	return err
}

// charge adds n bytes without asking: recovery and clear must not wait.
func (q *quota) charge(n int64) { q.used.Add(n) }

// release gives bytes back and lets stalled writers try again.
func (q *quota) release(n int64) {
	q.used.Add(-n)
	q.mu.Lock()
	q.cond.Broadcast()
	q.mu.Unlock()
}

// block lets no writer wait any more: what would make room fails. unblock ends
// that.
func (q *quota) block(err error) {
	q.mu.Lock()
	q.blocked = err
	q.cond.Broadcast()
	q.mu.Unlock()
}

func (q *quota) unblock() {
	q.mu.Lock()
	q.blocked = nil
	q.mu.Unlock()
}

// stop makes every stalled and later stalled writer fail with err.
func (q *quota) stop(err error) {
	q.pace.end()
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.cond.Broadcast()
	q.mu.Unlock()
}
