package lsm

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"fluxkv/compaction"
)

const (
	// From paceFrom to paceEven of the garbage that the space target leaves room
	// for, writers get from paceMost times down to as much as collections win;
	// from there to paceFull down to paceLeast of it.
	paceFrom, paceEven, paceFull = 1.0, 1.05, 1.15
	paceMost, paceLeast          = 4.0, 0.5
	// gcShareMax bounds what collections may cost: writers get at least one byte
	// for so many that collections write. With a target below what the values at
	// hand can reach, space rises instead.
	gcShareMax = 3
	// paceMin is what writers get in any case, in bytes a second.
	paceMin = 4 * mib
	// paceAverage is the time over which the rate of collections is averaged.
	paceAverage = time.Second
	// paceBurst is how long a rate that nobody used may be saved up.
	paceBurst = 10 * time.Millisecond
	// A writer that is held up looks again after these times.
	paceSleepMin, paceSleepMax = 200 * time.Microsecond, 20 * time.Millisecond
)

// spaceControl turns what collections win into what writers may write, so that
// files stay at the space target when writers are faster than collections: the
// one knows no rate but that of the other. Not safe for concurrent use.
type spaceControl struct {
	won, written float64 // bytes a second
	last         time.Time
}

// collected notes a collection that ended well: its victims took so many bytes
// more than its outputs, which took written.
func (c *spaceControl) collected(start, end time.Time, won, written int64) {
	if start.Before(c.last) {
		start = c.last
	}
	seconds := max(end.Sub(start), time.Millisecond).Seconds()
	share := 1 - math.Exp(-seconds/paceAverage.Seconds())
	if c.last.IsZero() {
		share = 1
	}
	c.last = end
	c.won += share * (float64(won)/seconds - c.won)
	c.written += share * (float64(written)/seconds - c.written)
}

// rate is what writers may write in bytes a second, 0 without bound, at a
// pressure as compaction.GCJob has it.
func (c *spaceControl) rate(pressure float64) int64 {
	if pressure <= paceFrom || c.last.IsZero() {
		return 0
	}
	between := func(from, to, at, then float64) float64 {
		return at + (then-at)*min(1, (pressure-from)/(to-from))
	}
	share := between(paceFrom, paceEven, paceMost, 1)
	if pressure > paceEven {
		share = between(paceEven, paceFull, 1, paceLeast)
	}
	return int64(max(share*c.won, c.written/gcShareMax, paceMin))
}

// pacer holds all writers together to a rate. It takes the bytes of a batch from
// what has come in since, and lets it through as soon as there is any: a large
// batch is paid for by those after it.
type pacer struct {
	rate          atomic.Int64 // bytes a second, 0 without bound
	ended         atomic.Bool  // the store is closed or read-only: nobody waits any more
	slowed, nanos atomic.Int64 // writers that waited, and how long

	// mu guards the fields below; a leaf.
	mu     sync.Mutex
	tokens float64 // bytes
	at     time.Time
}

// set changes the rate. Writers that wait notice within paceSleepMax.
func (p *pacer) set(rate int64) {
	if p.rate.Load() == 0 && rate > 0 {
		p.mu.Lock()
		p.tokens, p.at = 0, time.Now()
		p.mu.Unlock()
	}
	p.rate.Store(rate)
}

// end lets writers go, whatever rate a look for segments still sets.
func (p *pacer) end() { p.ended.Store(true) }

// wait returns when n bytes may be written.
func (p *pacer) wait(n int64) {
	if p.rate.Load() == 0 {
		return
	}
	start := time.Now()
	waited := false
	for {
		pause := p.take(n, time.Now())
		if pause == 0 {
			break
		}
		waited = true
		time.Sleep(pause)
	}
	if waited {
		p.slowed.Add(1)
		p.nanos.Add(int64(time.Since(start)))
	}
}

// take takes n bytes, or says how long to wait before the next try.
func (p *pacer) take(n int64, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	rate := float64(p.rate.Load())
	if rate == 0 || p.ended.Load() {
		return 0
	}
	if now.After(p.at) { // others may have looked at the clock later
		p.tokens = min(p.tokens+now.Sub(p.at).Seconds()*rate, paceBurst.Seconds()*rate)
		p.at = now
	}
	if p.tokens > 0 {
		p.tokens -= float64(n)
		return 0
	}
	return min(max(time.Duration(-p.tokens/rate*1e9), paceSleepMin), paceSleepMax)
}

// giveBack returns n of the bytes that a batch was let through with: compressed, it
// takes less of the space that collections win.
func (p *pacer) giveBack(n int64) {
	if n == 0 || p.rate.Load() == 0 {
		return
	}
	p.mu.Lock()
	p.tokens += float64(n)
	p.mu.Unlock()
}

// paceWriters sets the rate for what a look for segments found. Writers are held
// up for a collection that runs, never for want of one.
func (db *DB) paceWriters(job *compaction.GCJob, runs bool) {
	s := &db.sched
	rate := int64(0)
	if runs {
		s.mu.Lock()
		rate = s.space.rate(job.Pressure)
		s.mu.Unlock()
	}
	db.quota.pace.set(rate)
}

// collected notes the end of a collection.
func (db *DB) collected(c *gcJob, start time.Time, err error) {
	if err != nil {
		db.quota.pace.set(0)
		return
	}
	written := int64(0)
	for i := range c.results {
		written += c.results[i].WrittenBytes
	}
	s := &db.sched
	s.mu.Lock()
	s.space.collected(start, time.Now(), c.job.Bytes-written, written)
	s.mu.Unlock()
}
