package bench

import "math"

// schedule says when the requests of an open loop are due: bursts at equal
// distances, each on one connection, which are served by turns. A burst that
// finds no connection with room for it waits, and its time runs.
//
//	begin        begin + interval   begin + 2 interval
//	|            |                  |
//	burst 0      burst 1            burst 2
//	conn 0       conn 1             conn 2
type schedule struct {
	burst     int     // requests
	interval  float64 // nanoseconds
	begin     int64   // on the loop's clock
	countFrom int64   // requests due earlier are not counted
	next      int64   // number of the next burst
	total     int64   // bursts
	turn      int     // connection
	full      bool    // no connection has room for the next burst
}

// due returns when the next burst is due.
func (s *schedule) due() int64 { return s.begin + int64(float64(s.next)*s.interval) }

// untilNext returns how long there is nothing to send, in nanoseconds: 0 or more.
func (s *schedule) untilNext(now int64) int64 {
	if s.next == s.total || s.full {
		return math.MaxInt64 // only an answer changes that
	}
	return max(s.due()-now, 0)
}

// dispatch sends the bursts that are due. A closed loop has none.
func (l *loop) dispatch() {
	s := l.open
	if s == nil {
		return
	}
	for s.next < s.total {
		due := s.due()
		if due > l.now {
			if l.now = l.clock(); due > l.now {
				return
			}
		}
		c := l.withRoom(s)
		if s.full = c == nil; s.full {
			return
		}
		c.make(l, s.burst, due)
		s.next++
		if _, err := c.write(); err != nil {
			l.lose(c, err)
		}
	}
}

// withRoom returns the next connection in turn that takes a burst, or nil.
func (l *loop) withRoom(s *schedule) *conn {
	for range l.conns {
		c := l.conns[s.turn]
		s.turn = (s.turn + 1) % len(l.conns)
		if !c.closed && len(c.out) == 0 && c.window-c.open() >= s.burst {
			return c
		}
	}
	return nil
}
