package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fluxkv/mcbp"
)

// TestOpenLoopCountsWhatWaits: the server answers nothing for a while. A closed
// loop sees one slow answer, an open one every request that was due meanwhile.
func TestOpenLoopCountsWhatWaits(t *testing.T) {
	const stall = 400 * time.Millisecond
	s := startFake(t, func(n int, r *mcbp.Response) []byte {
		if n == 300 { // of 100 for the load, then about 100 for warming up
			time.Sleep(stall)
		}
		return r.Append(nil)
	})
	o := Options{
		Addr: s.addr(), Workload: KindSet, Load: true, Keys: 100, Conns: 3, Pipeline: 16, Threads: 2, Rate: 1000, Burst: 4,
		Runtime: time.Second, Warmup: 100 * time.Millisecond,
	}
	r, err := Run(context.Background(), o)
	if err != nil || len(r.Trouble()) > 0 {
		t.Fatal(err, r.Trouble())
	}
	// Two threads send a burst of 4 each 8 ms, the first one at -100, -92 .. 988 ms
	// after counting began, the second one 4 ms later.
	if r.Operations != 4*(124+125) {
		t.Errorf("%d operations, want %d", r.Operations, 4*(124+125))
	}
	// 400 of 1000 requests wait, up to 400 ms.
	if l := r.SetLatency; l.P90 < 0.5*float64(stall.Microseconds()) || l.P100 < 0.9*float64(stall.Microseconds()) {
		t.Errorf("latencies %+v do not show a stall of %v", l, stall)
	}
	// There cannot be more pauses than answers, and the two ends.
	if r.Stall*float64(r.Operations+2) < r.Seconds || r.Stall > r.Seconds {
		t.Errorf("longest stall %v s of %v s", r.Stall, r.Seconds)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "open loop of 1.00K a second in bursts of 4") ||
		!strings.Contains(text.String(), "longest time without an answer") {
		t.Errorf("%v\n%s", err, &text)
	}
}

func TestOpenLoopReportsWhatIsNeverAnswered(t *testing.T) {
	s := startFake(t, func(n int, r *mcbp.Response) []byte {
		if n > 10 {
			return []byte{}
		}
		return r.Append(nil)
	})
	_, err := Run(context.Background(), Options{
		Addr: s.addr(), Workload: KindSet, Keys: 100, Conns: 1, Pipeline: 4, Rate: 200, Runtime: 100 * time.Millisecond, StallTimeout: time.Second,
	})
	if !errors.Is(err, errStalled) {
		t.Errorf("error %v, want %v", err, errStalled)
	}
}

// TestBurstsComeInTurn: with the clock in hand, what is due goes to one
// connection after another, and waits when none has room.
func TestBurstsComeInTurn(t *testing.T) {
	l, c, _ := pair(t, Options{Workload: KindSet, Pipeline: 4, Keys: 100})
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	c2 := newConn(fds[0], 4, 1000)
	c2.window = 4
	if err := l.add(c2); err != nil {
		t.Fatal(err)
	}
	now := l.clock()
	const interval = int64(time.Hour) // the clock does not reach the next burst by itself
	l.open = &schedule{burst: 2, interval: float64(interval), begin: now - 2*interval - interval/2, total: 100}
	l.now = now
	l.dispatch()
	if s := l.open; s.next != 3 || c.open() != 4 || c2.open() != 2 || s.full || s.untilNext(now) != interval/2 {
		t.Fatalf("next burst %d, %d and %d open, full %v, %d ns to the next", s.next, c.open(), c2.open(), s.full, s.untilNext(now))
	}
	if made := c.batches[1].made; made != now-interval/2 {
		t.Errorf("the third burst counts from %d, was due at %d", made, now-interval/2)
	}
	l.now += 2 * interval // two more are due, one has room
	l.dispatch()
	if s := l.open; s.next != 4 || c2.open() != 4 || !s.full || s.untilNext(l.now) < interval {
		t.Errorf("next burst %d, %d open, full %v", s.next, c2.open(), s.full)
	}
	// An answer makes room.
	c.answered += 2
	l.dispatch()
	if s := l.open; s.next != 5 || s.full || c.open() != 4 {
		t.Errorf("next burst %d, %d open, full %v", s.next, c.open(), s.full)
	}
}
