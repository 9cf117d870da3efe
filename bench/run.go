package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fluxkv/mcbp"
)

// loadWindow is the number of open requests a connection while loading, when
// the workload itself asks for fewer.
const loadWindow = 128

const dialTimeout = 5 * time.Second

// Run loads if asked, runs the workload, and reports. The report is complete
// also when answers were wrong or failed (see Report.Trouble); an error means
// that there is no report: bad options, no connection, or a server that
// stopped answering. Cancelling ctx ends it within milliseconds, without a
// report.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	// Every loop keeps its thread busy; two more let the coordinator and the
	// runtime run beside them.
	if procs := o.Threads + 2; runtime.GOMAXPROCS(0) < procs {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	}
	keys, err := NewKeys(o.KeyFormat, o.KeyBytes, o.Keys)
	if err != nil {
		return nil, err
	}
	values := NewValues(o.ValueBytes)
	base := time.Now()
	var cancelled atomic.Bool
	var gap Gap
	defer context.AfterFunc(ctx, func() { cancelled.Store(true) })()
	var loops []*loop
	defer func() {
		for _, l := range loops {
			l.close()
		}
	}()
	window := o.Pipeline
	windowMax := window
	if o.Load {
		windowMax = max(window, loadWindow)
	}
	requestBytes := mcbp.HeaderBytes + o.KeyBytes
	if o.Load || o.Workload != KindGet {
		requestBytes += setExtrasBytes + o.ValueBytes
	}
	for i := range o.Threads {
		l, err := newLoop(o, keys, values, o.Seed*threadsMax+uint64(i), base, &cancelled, &gap)
		if err != nil {
			return nil, err
		}
		loops = append(loops, l)
	}
	for i := range o.Conns {
		fd, err := dial(ctx, o.Addr)
		if err != nil {
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, o.Conns, err)
		}
		l := loops[i%len(loops)]
		if err := l.add(newConn(fd, windowMax, requestBytes)); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	r := &Report{Options: o, Machine: thisMachine()}
	if o.Load {
		began := time.Now()
		err := each(loops, func(i int, l *loop) error {
			n := uint64(len(loops))
			return l.load(part(o.Keys, uint64(i), n), part(o.Keys, uint64(i)+1, n), windowMax)
		})
		if err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
		r.LoadSeconds = time.Since(began).Seconds()
		r.LoadRate = float64(o.Keys) / r.LoadSeconds
	}
	if o.Runtime > 0 {
		begin := int64(time.Since(base))
		start := begin + int64(o.Warmup)
		end := start + int64(o.Runtime)
		usage := make(chan cpuUsage, 1)
		go func() { usage <- measureCPU(o.ServerPID, base, start, end) }()
		gap.Start(start)
		err := each(loops, func(i int, l *loop) error {
			if o.Rate > 0 {
				// Threads take turns, each with its share.
				turn := 1e9 * float64(o.Burst) / o.Rate
				s := schedule{burst: o.Burst, interval: turn * float64(len(loops)), begin: begin + int64(float64(i)*turn)}
				return l.runOpen(start, end, window, s)
			}
			return l.run(start, end, window)
		})
		if err != nil {
			return nil, fmt.Errorf("run: %w", err)
		}
		r.usage = <-usage
	}
	if o.Operations > 0 {
		server, client, cpuErr := cpuNow(o.ServerPID)
		gap.Start(int64(time.Since(base)))
		err := each(loops, func(i int, l *loop) error {
			n := uint64(len(loops))
			return l.runOperations(part(o.Operations, uint64(i)+1, n)-part(o.Operations, uint64(i), n), window)
		})
		if err != nil {
			return nil, fmt.Errorf("run: %w", err)
		}
		server2, client2, cpuErr2 := cpuNow(o.ServerPID)
		r.usage = cpuUsage{server: server2 - server, client: client2 - client, serverErr: errors.Join(cpuErr, cpuErr2)}
	}
	total := newStats(&gap)
	for _, l := range loops {
		total.merge(l.stats)
		if r.LostReason == "" && l.lostErr != nil {
			r.LostReason = l.lostErr.Error()
		}
	}
	r.fill(total)
	if o.Runtime > 0 || o.Operations > 0 {
		r.Stall = gap.Longest().Seconds()
	}
	return r, nil
}

// part returns where piece i of n begins in 0..total.
func part(total, i, n uint64) uint64 {
	return total/n*i + min(i, total%n)
}

// each runs f for every loop on a thread of its own.
func each(loops []*loop, f func(i int, l *loop) error) error {
	errs := make([]error, len(loops))
	var wg sync.WaitGroup
	for i, l := range loops {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[i] = f(i, l)
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// dial connects and takes the socket out of the runtime's poller.
func dial(ctx context.Context, addr string) (int, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(original uintptr) {
		fd, dupErr = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(err, dupErr); err != nil {
		return 0, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// cpuUsage is what server and client used while answers were counted.
type cpuUsage struct {
	server, client time.Duration
	serverErr      error
}

// cpuNow returns what the server, if pid is not 0, and the client have used.
func cpuNow(pid int) (server, client time.Duration, err error) {
	if pid != 0 {
		server, err = ProcessCPU(pid)
	}
	return server, selfCPU(), err
}

func measureCPU(pid int, base time.Time, start, end int64) (u cpuUsage) {
	look := func(at int64) (server, client time.Duration, err error) {
		time.Sleep(time.Until(base.Add(time.Duration(at))))
		return cpuNow(pid)
	}
	server, client, err := look(start)
	server2, client2, err2 := look(end)
	return cpuUsage{server: server2 - server, client: client2 - client, serverErr: errors.Join(err, err2)}
}
