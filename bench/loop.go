package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fluxkv/mcbp"
)

// readBytes is what one read(2) may take: a window of 128 answers of 1 KB.
const readBytes = 256 << 10

// drainTimeout bounds the wait for the last answers after a run.
const drainTimeout = 10 * time.Second

// loop drives its connections from one thread. Between phases it belongs to
// the coordinator, during a phase to its thread.
type loop struct {
	epoll      int
	conns      []*conn
	keys       *Keys
	values     *Values
	zipf       *zipf // nil: uniform
	random     random
	getShare   float64
	noop       bool // NOOPs instead of GETs
	refill     int  // see Options.Refill
	verify     bool
	stall      time.Duration
	getHeader  [mcbp.HeaderBytes]byte
	noopHeader [mcbp.HeaderBytes]byte
	setHeader  [mcbp.HeaderBytes + setExtrasBytes]byte // flags and expiry are zero
	readBuffer []byte
	events     [128]unix.EpollEvent

	cancelled  *atomic.Bool // of the whole run
	base       time.Time
	now        int64 // nanoseconds since base, at the last look
	lastAnswer int64
	stopping   bool
	loading    bool
	loadNext   uint64
	loadEnd    uint64
	counted    bool // left says how many requests are still to be sent
	left       uint64
	open       *schedule // nil: a closed loop
	lost       int
	lostErr    error
	stats      *stats
}

func newLoop(o Options, keys *Keys, values *Values, seed uint64, base time.Time, cancelled *atomic.Bool, gap *Gap) (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	l := &loop{
		epoll: epoll, keys: keys, values: values, random: random{state: mix64(seed)},
		getShare: o.GetShare, noop: o.Workload == KindNoop, refill: o.Refill, verify: o.Verify, stall: o.StallTimeout,
		readBuffer: make([]byte, readBytes), cancelled: cancelled, base: base, stats: newStats(gap),
	}
	if o.Zipf > 0 {
		l.zipf = newZipf(o.Zipf, o.Keys)
	}
	get := mcbp.Header{Magic: mcbp.MagicRequest, Opcode: mcbp.OpGet, KeyBytes: uint16(keys.bytes), BodyBytes: uint32(keys.bytes)}
	get.Append(l.getHeader[:0])
	noop := mcbp.Header{Magic: mcbp.MagicRequest, Opcode: mcbp.OpNoop}
	noop.Append(l.noopHeader[:0])
	set := mcbp.Header{
		Magic: mcbp.MagicRequest, Opcode: mcbp.OpSet, KeyBytes: uint16(keys.bytes), ExtrasBytes: setExtrasBytes,
		BodyBytes: uint32(setExtrasBytes + keys.bytes + values.bytes),
	}
	set.Append(l.setHeader[:0])
	return l, nil
}

func (l *loop) add(c *conn) error {
	// Edge-triggered for both directions, once: a socket that blocks a write
	// reports its drain without another system call. The index of the
	// connection is the user data.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(len(l.conns))}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	l.conns = append(l.conns, c)
	return nil
}

func (l *loop) close() {
	for _, c := range l.conns {
		if !c.closed {
			unix.Close(c.fd)
		}
	}
	unix.Close(l.epoll)
}

// clock returns nanoseconds since the base of the run.
func (l *loop) clock() int64 { return int64(time.Since(l.base)) }

// choose returns the next key and operation, and false when the load is done.
func (l *loop) choose() (index uint64, op mcbp.Opcode, ok bool) {
	if l.loading {
		if l.loadNext == l.loadEnd {
			return 0, 0, false
		}
		l.loadNext++
		return l.loadNext - 1, mcbp.OpSet, true
	}
	if l.counted {
		if l.left == 0 {
			return 0, 0, false
		}
		l.left--
	}
	if l.zipf != nil {
		index = l.zipf.draw(&l.random)
	} else {
		index = l.random.below(l.keys.count)
	}
	switch {
	case l.noop:
		op = mcbp.OpNoop
	case l.getShare == 1:
		op = mcbp.OpGet
	case l.getShare == 0 || l.random.unit() >= l.getShare:
		op = mcbp.OpSet
	default:
		op = mcbp.OpGet
	}
	return index, op, true
}

// refillAt returns how much of a window must be free before it is filled again.
func (l *loop) refillAt(window int) int {
	if l.refill > 0 && !l.loading {
		return min(l.refill, window)
	}
	return (window + 1) / 2
}

var errStalled = errors.New("stalled")

// load sets the keys first..end-1 and returns when all are answered.
func (l *loop) load(first, end uint64, window int) error {
	l.loading, l.loadNext, l.loadEnd = true, first, end
	defer func() { l.loading = false }()
	return l.phase(window, func() bool { return l.loadNext == l.loadEnd && l.openRequests() == 0 })
}

// run sends the workload until the clock says end; answers from start on are
// counted. Then it waits for what is open.
func (l *loop) run(start, end int64, window int) error {
	counting := false
	err := l.phase(window, func() bool {
		switch {
		case !counting && l.now >= start:
			counting = true
			l.stats.restart(l.now)
		case counting && !l.stopping && l.now >= end:
			l.stats.freeze(l.now)
			l.stopping = true
		}
		return l.stopping && (l.openRequests() == 0 || l.now-end > int64(drainTimeout))
	})
	l.stats.unanswered += int64(l.openRequests())
	return err
}

// runOperations sends n requests of the workload and returns when all are
// answered.
func (l *loop) runOperations(n uint64, window int) error {
	l.counted, l.left = true, n
	l.stats.restart(l.clock())
	err := l.phase(window, func() bool { return l.left == 0 && l.openRequests() == 0 })
	l.stats.freeze(l.clock())
	l.stats.unanswered += int64(l.openRequests())
	return err
}

// runOpen sends requests when they are due, whatever became of those before, and
// returns when all are answered. Answers to those due from start on are counted,
// with the time since they were due. That begins when s says, also for a thread
// that begins later.
func (l *loop) runOpen(start, end int64, window int, s schedule) error {
	s.countFrom = start
	s.total = max(int64(float64(end-s.begin)/s.interval), 0)
	l.open = &s
	defer func() { l.open = nil }()
	l.stats.restart(s.begin)
	l.stats.start = start
	// Otherwise the kernel wakes a thread up to 50 us late, to save some.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // what it was
	err := l.phase(window, func() bool {
		return s.next == s.total && l.openRequests() == 0 || l.now-end > int64(drainTimeout)
	})
	l.stats.freeze(max(l.lastAnswer, end))
	l.stats.unanswered += int64(l.openRequests()) + (s.total-s.next)*int64(s.burst)
	return err
}

func (l *loop) openRequests() (n int) {
	for _, c := range l.conns {
		if !c.closed {
			n += c.open()
		}
	}
	return n
}

func (l *loop) phase(window int, done func() bool) error {
	l.stopping = false
	l.now = l.clock()
	l.lastAnswer = l.now
	for _, c := range l.conns {
		if c.closed {
			continue
		}
		c.window = window
		if err := c.refill(l); err != nil {
			l.lose(c, err)
		}
	}
	l.dispatch()
	for !done() {
		if l.cancelled.Load() {
			return context.Canceled
		}
		if l.lost == len(l.conns) {
			return fmt.Errorf("every connection is lost: %w", l.lostErr)
		}
		if l.now-l.lastAnswer > int64(l.stall) && l.openRequests() > 0 {
			return fmt.Errorf("%w: no answer for %v, %d requests open", errStalled, l.stall, l.openRequests())
		}
		n, errno := l.wait()
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("epoll: %w", errno)
		}
		if n <= 0 {
			l.now = l.clock()
			l.dispatch()
			continue
		}
		for i := range l.events[:n] {
			ev := &l.events[i]
			c := l.conns[ev.Fd]
			if c.closed {
				continue
			}
			var err error
			if ev.Events&^unix.EPOLLOUT != 0 {
				err = c.receive(l, ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
			}
			if err == nil {
				err = c.refill(l)
			}
			if err != nil {
				l.lose(c, err)
			}
		}
		l.dispatch()
	}
	return nil
}

// lose drops a connection; the run goes on with the others and says so.
func (l *loop) lose(c *conn, err error) {
	l.lost++
	l.stats.lost++
	l.stats.unanswered += int64(c.open())
	if l.lostErr == nil {
		l.lostErr = err
	}
	c.closed = true
	unix.Close(c.fd)
}

// waitMillis bounds one wait, so that ends and stalls are noticed.
const waitMillis = 5

// wait polls once without leaving the thread, and blocks only when nothing is
// ready. The raw calls keep the scheduler out: a loop owns its thread, and it
// allocates nothing that a collection would have to stop it for.
func (l *loop) wait() (int, unix.Errno) {
	if l.open != nil {
		t := unix.NsecToTimespec(min(l.open.untilNext(l.clock()), waitMillis*1e6))
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epoll),
			uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(unsafe.Pointer(&t)), 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll),
		uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), waitMillis, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func rawRead(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

func rawWrite(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}
