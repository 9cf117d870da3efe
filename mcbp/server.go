package mcbp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"fluxkv/internal/offheap"
	"fluxkv/lsm"
)

// frameBytesDefault is the longest body that is looked at at all; a frame that
// announces more ends its connection. It leaves room over the largest item.
const frameBytesDefault = 30 << 20

// Server speaks the protocol on any number of listeners in front of one store.
// All methods are safe for concurrent use.
type Server struct {
	db   *lsm.DB
	opts Options
	now  func() time.Time

	itemBytesMax      int64
	frameBytesMax     int64
	passWriteBytesMax int

	counters counters
	started  time.Time
	conns    atomic.Int64
	rolls    atomic.Int64 // runs of reads under way, of all connections
	// Large frames on their way in, and large answers on their way out, have a
	// budget each: a connection with a frame may wait for memory for its
	// answer, so whoever holds the latter must wait for nothing but its peer.
	frames    *offheap.Budget
	buffers   *offheap.Budget
	pipelines sync.Pool // *pipeline
	inputs    sync.Pool // *input
	logged    atomic.Int64

	// mu guards the fields below. Nothing is done under it but bookkeeping,
	// and conn.mu is taken inside it.
	mu        sync.Mutex
	listeners []net.Listener
	open      map[*conn]struct{}
	closing   bool
	done      chan struct{} // closed when closing is set
	serving   sync.WaitGroup
}

// ErrServerClosed: Shutdown or Close came first.
var ErrServerClosed = errors.New("mcbp: server closed")

// New returns a server for db, which must stay open until Shutdown or Close
// has returned. It listens to nothing yet.
func New(db *lsm.DB, o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("mcbp options: %w", err)
	}
	o = o.withDefaults()
	s := &Server{
		db:                db,
		opts:              o,
		now:               o.Now,
		itemBytesMax:      int64(o.MaxItemBytes),
		frameBytesMax:     max(frameBytesDefault, int64(o.MaxItemBytes)+(1<<20)),
		passWriteBytesMax: o.BatchBytesMax,
		started:           time.Now(),
		frames:            offheap.NewBudget(max(o.BufferBytes/2, int64(o.MaxItemBytes)+1<<20)),
		buffers:           offheap.NewBudget(max(o.BufferBytes/2, int64(o.MaxItemBytes)+2*answerStepBytes)),
		open:              make(map[*conn]struct{}),
		done:              make(chan struct{}),
	}
	s.pipelines.New = func() any { return newPipeline(s) }
	s.inputs.New = func() any { return &input{buf: make([]byte, inputBytes)} }
	return s, nil
}

// Listen opens a listener: network is "tcp" or "unix", address as package net
// has it. A socket file that no process listens on any more is replaced. The
// returned address has the port that was chosen for port 0.
func (s *Server) Listen(network, address string) (net.Addr, error) {
	switch network {
	case "tcp":
	case "unix":
		if err := removeStaleSocket(address); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("mcbp: listen on network %q: want tcp or unix", network)
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		if err := os.Chmod(address, 0o600); err != nil {
			l.Close()
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		l.Close()
		return nil, ErrServerClosed
	}
	s.listeners = append(s.listeners, l)
	return l.Addr(), nil
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("mcbp: %s exists and is no socket", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return fmt.Errorf("mcbp: %s: another process listens on it", path)
	}
	return os.Remove(path)
}

// socketPath returns the first unix socket that is listened on, else "NULL" as
// memcached says it.
func (s *Server) socketPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		if a, ok := l.Addr().(*net.UnixAddr); ok {
			return a.Name
		}
	}
	return "NULL"
}

// Serve accepts connections on every listener until Shutdown or Close, and
// returns nil then; or it returns the error that ended a listener.
func (s *Server) Serve() error {
	s.mu.Lock()
	listeners := append([]net.Listener(nil), s.listeners...)
	s.mu.Unlock()
	errs := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { errs <- s.accept(l) }()
	}
	var first error
	for range listeners {
		if err := <-errs; err != nil && first == nil {
			first = err
			s.stop()
		}
	}
	return first
}

// accept serves what arrives on one listener.
func (s *Server) accept(l net.Listener) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			select {
			case <-s.done:
				return nil
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Out of descriptors or memory: it passes as connections end.
			s.logEvent("accept: %v", err)
			select {
			case <-s.done:
				return nil
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s.serve(nc)
	}
}

// serve starts the goroutine of one connection.
func (s *Server) serve(nc net.Conn) {
	s.counters[totalConnections].Add(1)
	if n := s.conns.Add(1); n > int64(s.opts.MaxConns) {
		s.conns.Add(-1)
		s.counters[rejectedConnections].Add(1)
		nc.Close()
		s.logEvent("connection refused: %d are open (MaxConns)", s.opts.MaxConns)
		return
	}
	c, err := newConn(s, nc)
	if err != nil {
		s.conns.Add(-1)
		nc.Close()
		s.logEvent("connection: %v", err)
		return
	}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		s.conns.Add(-1)
		nc.Close()
		return
	}
	s.open[c] = struct{}{}
	s.serving.Add(1)
	s.mu.Unlock()
	go func() {
		c.serve()
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
		s.conns.Add(-1)
		s.serving.Done()
	}()
}

// stop closes the listeners and keeps new connections out.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.closing = true
		close(s.done)
	}
	for _, l := range s.listeners {
		l.Close()
	}
	s.listeners = nil
}

// Shutdown drains: it closes the listeners, lets every connection finish and
// answer the requests that it has read, and closes it. It returns nil when all
// are gone, or the context's error; Close ends what is left then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	s.mu.Lock()
	for c := range s.open {
		c.drain()
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes listeners and connections at once; answers may be cut. It does
// not wait for passes in progress: those end with the store's answer, or with
// lsm.ErrClosed when the store is closed next.
func (s *Server) Close() error {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		c.nc.Close()
	}
	return nil
}

// waitMemory takes n bytes of a budget and waits for them; the connection is
// not read meanwhile. It returns false when the server closes. Whoever holds
// the budget has a deadline and waits for no more of it, so it comes free; a
// full one means dozens of huge frames at once, and looking again every few
// milliseconds is all the speed that needs.
func (s *Server) waitMemory(b *offheap.Budget, n int64) bool {
	for !b.TryReserve(n) {
		select {
		case <-s.done:
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// logEvent logs at most one line a second, so that no client fills the log.
func (s *Server) logEvent(format string, args ...any) {
	now := time.Now().UnixNano()
	last := s.logged.Load()
	if now-last < int64(time.Second) || !s.logged.CompareAndSwap(last, now) {
		return
	}
	s.opts.Logf(format, args...)
}

func (s *Server) logBadMagic(m Magic) {
	s.logEvent("connection closed: first byte of a frame is 0x%02x, want 0x80 or 0x08 (only the binary protocol is served)", uint8(m))
}

func (s *Server) logInternal(op Opcode, err error) {
	s.logEvent("%v answered with an internal error: %v", op, err)
}
