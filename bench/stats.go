package bench

import (
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

	misses     int64
	statuses   map[mcbp.Status]int64
	wrong      int64
	lost       int64
	unanswered int64
}

func newStats() *stats {
	return &stats{
		get:      hdrhistogram.New(latencyMinNanos, latencyMaxNanos, latencyDigits),
		set:      hdrhistogram.New(latencyMinNanos, latencyMaxNanos, latencyDigits),
		statuses: make(map[mcbp.Status]int64),
	}
}

func (s *stats) add(nanos, gets, sets int64) {
	if s.frozen {
		return
	}
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
}

func (s *stats) freeze(now int64) { s.end, s.frozen = now, true }

// merge adds other to s. The span is the widest of the two.
func (s *stats) merge(other *stats) {
	s.get.Merge(other.get)
	s.set.Merge(other.set)
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
