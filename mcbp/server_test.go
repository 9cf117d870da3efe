package mcbp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// listen serves on a loopback port until the test ends.
func listen(t testing.TB, s *Server) string {
	t.Helper()
	addr, err := s.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s)
	return addr.String()
}

func serve(t testing.TB, s *Server) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		s.serving.Wait()
	})
}

// client is one connection to a server.
type client struct {
	net.Conn
	t   testing.TB
	buf []byte
}

func dial(t testing.TB, network, addr string) *client {
	t.Helper()
	nc, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &client{Conn: nc, t: t}
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next answer, whose slices are the caller's.
func (c *client) next() (Response, error) {
	for {
		r, n, err := DecodeResponse(c.buf)
		if err == nil {
			c.buf = c.buf[n:]
			return r, nil
		}
		if !errors.Is(err, ErrShort) {
			return r, err
		}
		chunk := make([]byte, 64<<10)
		k, err := c.Read(chunk)
		c.buf = append(c.buf[:len(c.buf):len(c.buf)], chunk[:k]...)
		if err != nil && k == 0 {
			return r, err
		}
	}
}

func (c *client) ask(r Request) Response {
	c.t.Helper()
	c.send(r.Append(nil))
	got, err := c.next()
	if err != nil {
		c.t.Fatalf("%v: %v", r.Opcode, err)
	}
	return got
}

// ended reads to the end of the connection.
func (c *client) ended() bool {
	_, err := io.Copy(io.Discard, c)
	return err == nil || !os.IsTimeout(err)
}

// eventually waits for something that other goroutines bring about; it fails
// only where it would otherwise hang.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for start := time.Now(); !cond(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestSessionOverSockets(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	path := filepath.Join(t.TempDir(), "s")
	if _, err := srv.Listen("unix", path); err != nil {
		t.Fatal(err)
	}
	addr := listen(t, srv)
	for _, at := range [][2]string{{"tcp", addr}, {"unix", path}} {
		c := dial(t, at[0], at[1])
		c.ask(setRequest(OpSet, "first", "v", 0, 0))
		for _, v := range vectors {
			want := unhex(t, v.response)
			c.send(unhex(t, v.request))
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil {
				t.Fatalf("%s over %s: %v", v.name, at[0], err)
			}
			if !bytes.Equal(normalize(t, got), want) {
				t.Fatalf("%s over %s:\ngot  %x\nwant %x", v.name, at[0], got, want)
			}
		}
		if r := c.ask(Request{Opcode: OpQuit}); r.Status != StatusSuccess {
			t.Errorf("QUIT: %v", r.Status)
		}
		if !c.ended() {
			t.Errorf("open after QUIT")
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket file: %v, %v", info, err)
	}
}

func TestUnixSocketFiles(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Listen("unix", stale); err == nil {
		t.Error("took a socket that another listens on")
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := srv.Listen("unix", stale); err != nil {
		t.Errorf("stale socket: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Listen("unix", file); err == nil {
		t.Error("took the place of a file")
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Error("the file is gone")
	}
	srv.Close()
}

// gate holds back every write and sync of a disk while it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: not shut
}

func newGate(fs *memfs.FS) *gate {
	g := &gate{}
	fs.SetHook(func(op memfs.Op) error {
		if op.Kind != vfs.OpWriteDurable && op.Kind != vfs.OpWriteAt && op.Kind != vfs.OpSync {
			return nil
		}
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		if open != nil {
			<-open
		}
		return nil
	})
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	g.open = make(chan struct{})
	g.mu.Unlock()
}

func (g *gate) lift() {
	g.mu.Lock()
	close(g.open)
	g.open = nil
	g.mu.Unlock()
}

func TestR10_NoByteLeavesBeforeTheSync(t *testing.T) {
	fs := memfs.New()
	srv := testServer(t, testStore(t, fs, nil), Options{})
	c := dial(t, "tcp", listen(t, srv))
	c.ask(setRequest(OpSet, "k", "old", 0, 0))
	g := newGate(fs)
	g.shut()
	b := keyRequestFrame(OpNoop, "", setFrame(OpSetQ, "k"))
	b = keyRequestFrame(OpStat, "", keyRequestFrame(OpGet, "k", b))
	c.send(b)
	eventually(t, "the pass has run", func() bool { return srv.counters[cmdStat].Load() == 1 })
	// Another reader is not held up, and sees what is durable.
	other := dial(t, "tcp", c.RemoteAddr().String())
	if r := other.ask(keyRequest(OpGet, "k")); string(r.Value) != "old" {
		t.Errorf("another connection reads %+v", r)
	}
	c.SetReadDeadline(time.Now())
	if n, err := c.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
		t.Errorf("read %d bytes before the sync: %v", n, err)
	}
	c.SetReadDeadline(time.Time{})
	g.lift()
	for _, want := range []Opcode{OpNoop, OpGet, OpStat} {
		r, err := c.next()
		if err != nil || r.Opcode != want {
			t.Fatalf("%v, %v, want %v", r.Opcode, err, want)
		}
		if want == OpGet && string(r.Value) != "v" {
			t.Errorf("does not read its own write: %q", r.Value)
		}
	}
}

func TestShutdownAnswersWhatWasRead(t *testing.T) {
	fs := memfs.New()
	srv := testServer(t, testStore(t, fs, nil), Options{})
	addr := listen(t, srv)
	busy, idle := dial(t, "tcp", addr), dial(t, "tcp", addr)
	busy.ask(keyRequest(OpNoop, ""))
	idle.ask(keyRequest(OpNoop, ""))
	g := newGate(fs)
	g.shut()
	r := setRequest(OpSet, "k", "v", 0, 0)
	busy.send(r.Append(nil))
	eventually(t, "the SET has run", func() bool { return srv.counters[cmdSet].Load() == 1 })
	done := make(chan error, 1)
	go func() { done <- srv.Shutdown(context.Background()) }()
	if !idle.ended() {
		t.Error("an idle connection stays")
	}
	select {
	case err := <-done:
		t.Errorf("shut down with a request in flight: %v", err)
	default:
	}
	g.lift()
	if r, err := busy.next(); err != nil || r.Status != StatusSuccess {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := busy.next(); err != io.EOF {
		t.Errorf("behind the answer: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if nc, err := net.Dial("tcp", addr); err == nil {
		nc.Close()
		t.Error("still listening")
	}
	if _, err := srv.Listen("tcp", "127.0.0.1:0"); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Listen: %v", err)
	}
}

func TestShutdownGivesUpWithItsContext(t *testing.T) {
	fs := memfs.New()
	srv := testServer(t, testStore(t, fs, nil), Options{})
	c := dial(t, "tcp", listen(t, srv))
	c.ask(keyRequest(OpNoop, ""))
	g := newGate(fs)
	g.shut()
	r := setRequest(OpSet, "k", "v", 0, 0)
	c.send(r.Append(nil))
	eventually(t, "the SET has run", func() bool { return srv.counters[cmdSet].Load() == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := srv.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	srv.Close()
	if !c.ended() {
		t.Error("open after Close")
	}
	g.lift()
}

// TestClientThatDoesNotRead asks for far more than sockets hold and reads
// nothing: the server stops reading, keeps one pass of answers at most, and
// ends the connection after its deadline.
func TestClientThatDoesNotRead(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{WriteTimeout: 200 * time.Millisecond})
	addr := listen(t, srv)
	value := strings.Repeat("x", 1<<20)
	set := setRequest(OpSet, "large", value, 0, 0)
	first := dial(t, "tcp", addr)
	first.ask(set)
	first.Close()
	eventually(t, "the first connection is gone", func() bool { return srv.conns.Load() == 0 })

	c := dial(t, "tcp", addr)
	var b []byte
	for range 1000 {
		b = keyRequestFrame(OpGet, "large", b)
	}
	var most int64
	sent := make(chan int, 1)
	go func() {
		total := 0
		for {
			n, err := c.Write(b)
			total += n
			if err != nil {
				sent <- total
				return
			}
		}
	}()
	eventually(t, "the connection is closed", func() bool {
		most = max(most, srv.buffers.Used())
		return most > 0 && srv.conns.Load() == 0
	})
	c.Close()
	<-sent
	if most > passAnswerBytesMax+answerStepBytes {
		t.Errorf("%d bytes were buffered for a client that does not read", most)
	}
	eventually(t, "memory is given back", func() bool { return srv.buffers.Used() == 0 })
	if hits := srv.counters[getHits].Load(); hits > 100 {
		t.Errorf("%d answers were made for a client that does not read", hits)
	}
}

// TestIdleConnections holds many connections that have asked once: they cost a
// goroutine and bookkeeping, no buffer. FLUXKV_IDLE_CONNS sets their number.
func TestIdleConnections(t *testing.T) {
	n := 2000
	if s := os.Getenv("FLUXKV_IDLE_CONNS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	srv := testServer(t, testStore(t, nil, nil), Options{MaxConns: n})
	addr := listen(t, srv)
	value := strings.Repeat("x", 200<<10)
	set := setRequest(OpSet, "k", value, 0, 0)
	dial(t, "tcp", addr).ask(set)
	before := memoryInUse()
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, nc := range conns {
			nc.Close()
		}
	}()
	noop := keyRequestFrame(OpNoop, "", nil)
	answer := make([]byte, HeaderBytes)
	for range n - 1 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatalf("connection %d: %v", len(conns), err)
		}
		conns = append(conns, nc)
		if _, err := nc.Write(noop); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(nc, answer); err != nil {
			t.Fatal(err)
		}
	}
	each := (memoryInUse() - before) / int64(n)
	t.Logf("%d idle connections, both ends: %d bytes each", n, each)
	if each > 16<<10 && !invariants.Enabled {
		t.Errorf("an idle connection costs %d bytes", each)
	}
	if n := srv.Stats().BufferBytes; n != 0 {
		t.Errorf("%d bytes are reserved", n)
	}
}

func memoryInUse() int64 {
	for range 3 { // a pool lets go in the second collection
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestLargeFramesGrowAsTheyArrive checks that memory follows what has arrived,
// not what was announced.
func TestLargeFramesGrowAsTheyArrive(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	c := dial(t, "tcp", listen(t, srv))
	value := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	r := Request{Opcode: OpSet, Key: []byte("k"), Extras: make([]byte, 8), Value: value}
	b := r.Append(nil)
	sent := 0
	for _, upTo := range []int{HeaderBytes, 60 << 10, 100 << 10, 1 << 20, len(b)} {
		c.send(b[sent:upTo])
		sent = upTo
		if upTo == len(b) {
			break
		}
		if used := srv.frames.Used(); used > int64(len(b)) {
			t.Errorf("%d bytes are reserved after %d of %d have been sent", used, upTo, len(b))
		}
	}
	if got, err := c.next(); err != nil || got.Status != StatusSuccess {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := c.ask(keyRequest(OpGet, "k")); !bytes.Equal(got.Value, value) {
		t.Errorf("%d bytes came back", len(got.Value))
	}
	eventually(t, "memory is given back", func() bool { return srv.frames.Used() == 0 })
	// The buffers that it outgrew are empty again, whoever gets them.
	for i := range 100 {
		c := dial(t, "tcp", c.RemoteAddr().String())
		if got := c.ask(setRequest(OpSet, fmt.Sprint("behind", i), "v", 0, 0)); got.Status != StatusSuccess {
			t.Fatalf("%+v", got)
		}
		c.Close()
	}
}

func TestFrameAboveTheLimitIsAnsweredAndClosed(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	c := dial(t, "tcp", listen(t, srv))
	h := Header{Magic: MagicRequest, Opcode: OpSet, ExtrasBytes: 8, KeyBytes: 1, BodyBytes: frameBytesDefault + 1}
	c.send(h.Append(nil))
	c.send(make([]byte, 100<<10)) // a body that nobody reads must not cost the answer
	if r, err := c.next(); err != nil || r.Status != StatusTooLarge {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := c.next(); err != io.EOF {
		t.Errorf("behind the answer: %v", err)
	}
}

func TestMaxConns(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{MaxConns: 2})
	addr := listen(t, srv)
	a, b := dial(t, "tcp", addr), dial(t, "tcp", addr)
	a.ask(keyRequest(OpNoop, ""))
	b.ask(keyRequest(OpNoop, ""))
	if c := dial(t, "tcp", addr); !c.ended() {
		t.Error("a third connection stays")
	}
	if n := srv.Stats().RejectedConnections; n != 1 {
		t.Errorf("%d rejected", n)
	}
	a.Close()
	eventually(t, "the place is free", func() bool { return srv.conns.Load() == 1 })
	dial(t, "tcp", addr).ask(keyRequest(OpNoop, ""))
}

func TestDeadlines(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Options
		send []byte
	}{
		{"started header", Options{FrameTimeout: 20 * time.Millisecond}, keyRequestFrame(OpGet, "k", nil)[:10]},
		{"started body", Options{FrameTimeout: 20 * time.Millisecond}, keyRequestFrame(OpGet, "k", nil)[:HeaderBytes]},
		{"refused body", Options{FrameTimeout: 20 * time.Millisecond}, keyRequestFrame(0x70, "k", nil)[:HeaderBytes]},
		{"idle", Options{IdleTimeout: 20 * time.Millisecond}, keyRequestFrame(OpNoop, "", nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := testServer(t, testStore(t, nil, nil), tc.o)
			c := dial(t, "tcp", listen(t, srv))
			c.send(tc.send)
			if !c.ended() {
				t.Error("still open")
			}
		})
	}
}

// TestDeadlineOfAFrameIsOver checks that the deadline of a frame that came in
// time does not strike later.
func TestDeadlineOfAFrameIsOver(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{FrameTimeout: 500 * time.Millisecond})
	c := dial(t, "tcp", listen(t, srv))
	b := setFrame(OpSet, "k")
	c.send(b[:30])
	eventually(t, "the frame is started", func() bool { return srv.counters[passes].Load() > 0 })
	c.send(b[30:])
	if r, err := c.next(); err != nil || r.Status != StatusSuccess {
		t.Fatalf("%+v, %v", r, err)
	}
	time.Sleep(600 * time.Millisecond)
	if r := c.ask(keyRequest(OpNoop, "")); r.Status != StatusSuccess {
		t.Errorf("%+v", r)
	}
}

func TestOtherProtocolsAreClosed(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	srv := testServer(t, testStore(t, nil, nil), Options{Logf: func(format string, args ...any) {
		mu.Lock()
		lines = append(lines, fmt.Sprintf(format, args...))
		mu.Unlock()
	}})
	addr := listen(t, srv)
	for range 3 {
		c := dial(t, "tcp", addr)
		c.send([]byte("get some_key_of_the_text_protocol\r\n"))
		if b, _ := io.ReadAll(c); len(b) != 0 {
			t.Errorf("answered %q", b)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(lines) == 0 || !strings.Contains(lines[0], "0x67") {
		t.Errorf("log %q", lines)
	}
}

// TestPanicInAPass: the protocol's own panic costs the connection.
func TestPanicInAPass(t *testing.T) {
	saved := commands[0x71]
	commands[0x71] = command{name: "PANIC", run: func(*pipeline, *session) { panic("in a test") }, extras: noExtras}
	defer func() { commands[0x71] = saved }()
	logged := make(chan string, 10)
	srv := testServer(t, testStore(t, nil, nil), Options{Logf: func(format string, args ...any) { logged <- fmt.Sprintf(format, args...) }})
	addr := listen(t, srv)
	c := dial(t, "tcp", addr)
	c.send(keyRequestFrame(0x71, "", nil))
	if !c.ended() {
		t.Error("still open")
	}
	if line := <-logged; !strings.Contains(line, "in a test") {
		t.Errorf("logged %q", line)
	}
	dial(t, "tcp", addr).ask(keyRequest(OpNoop, ""))
	srv.Close()
	srv.serving.Wait()
}

// TestPanicInTheStore: the store's panic ends the process, since nothing in
// memory can be trusted any more.
func TestPanicInTheStore(t *testing.T) {
	if os.Getenv("FLUXKV_PANIC_CHILD") != "" {
		srv := testServer(t, nil, Options{}) // every call into the store panics
		c := dial(t, "tcp", listen(t, srv))
		c.send(setFrame(OpSet, "k"))
		c.ended()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicInTheStore$")
	cmd.Env = append(os.Environ(), "FLUXKV_PANIC_CHILD=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !bytes.Contains(out, []byte("panic:")) || !bytes.Contains(out, []byte("flushWrites")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBuffersGrowByWhatHasArrived: what a frame announces is accounted for, and
// never allocated ahead.
func TestBuffersGrowByWhatHasArrived(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	c := &conn{srv: srv, in: srv.inputs.Get().(*input), need: 20 << 20}
	for size := inputBytes; size < c.need; size = min(2*size, c.need) {
		if len(c.in.buf) != size {
			t.Fatalf("buffer of %d bytes after %d have arrived", len(c.in.buf), size/2)
		}
		c.in.end = len(c.in.buf)
		if !c.makeRoom() {
			t.Fatal("no room")
		}
		if used := srv.frames.Used(); used != int64(c.need) {
			t.Fatalf("%d bytes are accounted for, the frame has %d", used, c.need)
		}
	}
	c.releaseInput()
	if used := srv.frames.Used(); used != 0 {
		t.Errorf("%d bytes are still accounted for", used)
	}
}

// TestHalfLargeFramesDoNotLockOthersOut: clients that together announce more
// than the budget and leave half-way. Taking it in steps, they waited for each
// other with their hands full, and no large frame was read again.
func TestHalfLargeFramesDoNotLockOthersOut(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{BufferBytes: 128 << 20})
	addr := listen(t, srv)
	value := make([]byte, 19<<20)
	frame := (&Request{Opcode: OpSet, Key: []byte("k"), Extras: make([]byte, 8), Value: value}).Append(nil)
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetWriteDeadline(time.Now().Add(20 * time.Second))
			c.Write(frame[:12<<20])
		})
	}
	wg.Wait()
	c := dial(t, "tcp", addr)
	c.send(frame)
	if got, err := c.next(); err != nil || got.Status != StatusSuccess {
		t.Fatalf("a large SET after them: %+v, %v", got, err)
	}
	eventually(t, "memory is given back", func() bool { return srv.frames.Used() == 0 })
}
