package bench

import (
	"math"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"fluxkv/mcbp"
)

// Latencies are kept in nanoseconds between 1 µs and 5 minutes, to three
// digits.
const (
	latencyMinNanos = 1_000
	latencyMaxNanos = 300_000_000_000
	latencyDigits   = 3
)

// stats counts what one loop saw. Counters of trouble are never reset: an
// error during the load or the warm-up is an error of the run.
type stats struct {
	get, set   *hdrhistogram.Histogram
	gets, sets int64
	bytesIn    int64
	start, end int64 // nanoseconds on the run's clock
	frozen     bool
	// seconds counts answers by the second of the run's clock, from firstSecond
	// on.
	seconds     []int64
	firstSecond int64
	gap         *Gap // of all loops

	misses     int64
	statuses   map[mcbp.Status]int64
	wrong      int64
	lost       int64
	unanswered int64
}

func newStats(gap *Gap) *stats {
	return &stats{
		gap:      gap,
		get:      hdrhistogram.New(latencyMinNanos, latencyMaxNanos, latencyDigits),
		set:      hdrhistogram.New(latencyMinNanos, latencyMaxNanos, latencyDigits),
		statuses: make(map[mcbp.Status]int64),
	}
}

func (s *stats) add(now, nanos, gets, sets int64) {
	if s.frozen {
		return
	}
	s.gap.Done(now)
	i := now/1e9 - s.firstSecond
	for int64(len(s.seconds)) <= i {
		s.seconds = append(s.seconds, 0)
	}
	s.seconds[i] += gets + sets
	s.gets += gets
	s.sets += sets
	nanos = min(nanos, latencyMaxNanos)
	if gets > 0 {
		_ = s.get.RecordValues(nanos, gets) // in range by the line above
	}
	if sets > 0 {
		_ = s.set.RecordValues(nanos, sets)
	}
}

func (s *stats) failed(status mcbp.Status, get bool) {
	if get && status == mcbp.StatusNotFound {
		s.misses++
		return
	}
	s.statuses[status]++
}

func (s *stats) restart(now int64) {
	s.get.Reset()
	s.set.Reset()
	s.gets, s.sets, s.bytesIn = 0, 0, 0
	s.start, s.frozen = now, false
	s.seconds, s.firstSecond = s.seconds[:0], now/1e9
}

func (s *stats) freeze(now int64) {
	s.gap.Done(now)
	s.end, s.frozen = now, true
}

// worstSecond returns the fewest answers in a whole second, 0 when there was no
// whole second.
func (s *stats) worstSecond() float64 {
	from, to := s.start/1e9+1, s.end/1e9 // [from, to) are whole
	if from >= to {
		return 0
	}
	least := int64(math.MaxInt64)
	for at := from; at < to; at++ {
		n := int64(0)
		if i := at - s.firstSecond; i >= 0 && i < int64(len(s.seconds)) {
			n = s.seconds[i]
		}
		least = min(least, n)
	}
	return float64(least)
}

// merge adds other to s. The span is the widest of the two.
func (s *stats) merge(other *stats) {
	s.get.Merge(other.get)
	s.set.Merge(other.set)
	if len(s.seconds) == 0 {
		s.firstSecond = other.firstSecond
	}
	for ; s.firstSecond > other.firstSecond; s.firstSecond-- {
		s.seconds = slices.Insert(s.seconds, 0, 0)
	}
	for i, n := range other.seconds {
		at := other.firstSecond + int64(i) - s.firstSecond
		for int64(len(s.seconds)) <= at {
			s.seconds = append(s.seconds, 0)
		}
		s.seconds[at] += n
	}
	s.gets += other.gets
	s.sets += other.sets
	s.bytesIn += other.bytesIn
	s.misses += other.misses
	for status, n := range other.statuses {
		s.statuses[status] += n
	}
	s.wrong += other.wrong
	s.lost += other.lost
	s.unanswered += other.unanswered
	if s.start == 0 || other.start < s.start {
		s.start = other.start
	}
	s.end = max(s.end, other.end)
}
