package mcbp

import "sync/atomic"

// counter names one number of the server. A pass counts in memory of its own
// and adds once, so that connections do not fight for a cache line an
// operation.
type counter int

const (
	cmdGet counter = iota
	getHits
	getMisses
	cmdSet
	casHits
	casBadval
	casMisses
	deleteHits
	deleteMisses
	cmdFlush
	cmdNoop
	cmdStat
	answerErrors
	bytesRead
	bytesWritten
	passes
	totalConnections
	rejectedConnections
	counterCount
)

// counterNames are what STAT and /stats call them.
var counterNames = [counterCount]string{
	cmdGet:              "cmd_get",
	getHits:             "get_hits",
	getMisses:           "get_misses",
	cmdSet:              "cmd_set",
	casHits:             "cas_hits",
	casBadval:           "cas_badval",
	casMisses:           "cas_misses",
	deleteHits:          "delete_hits",
	deleteMisses:        "delete_misses",
	cmdFlush:            "cmd_flush",
	cmdNoop:             "cmd_noop",
	cmdStat:             "cmd_stat",
	answerErrors:        "error_answers",
	bytesRead:           "bytes_read",
	bytesWritten:        "bytes_written",
	passes:              "passes",
	totalConnections:    "total_connections",
	rejectedConnections: "rejected_connections",
}

// counters are safe for concurrent use.
type counters [counterCount]atomic.Uint64

// tally is what one pass counted.
type tally [counterCount]uint64

// add moves t into c.
func (c *counters) add(t *tally) {
	for i, n := range t {
		if n != 0 {
			c[i].Add(n)
		}
	}
	*t = tally{}
}

func (c *counters) reset() {
	for i := range c {
		c[i].Store(0)
	}
}
