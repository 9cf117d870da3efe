package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fluxkv/mcbp"
)

// patience bounds every wait for a process. It is far above what anything
// takes: only a hang reaches it.
const patience = 60 * time.Second

// buildServer builds the program as users do and returns its path.
func buildServer(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fluxkv")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// requireTool returns the path of a program that a test drives. Where it is
// missing the test is skipped, except in the runs that promise to have it.
func requireTool(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	missing(t, strings.Join(names, " or "))
	return ""
}

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" || os.Getenv("FLUXKV_REQUIRE_CLIENTS") == "1" {
		t.Fatalf("%s is missing: run scripts/install-test-deps.sh", what)
	}
	t.Skipf("%s is missing: run scripts/install-test-deps.sh", what)
}

// process is a server that runs as a process of its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	addr string // after up
	port string // after up

	mu     sync.Mutex
	output strings.Builder
	up     chan struct{} // closed when the ready line was printed
	done   chan struct{} // closed when the process ended
	err    error         // of Wait, after done
}

// readyAddress finds where the server listens in the line that says so.
var readyAddress = regexp.MustCompile(`ready on 127\.0\.0\.1:(\d+)`)

// launch starts command, whose last arguments are those of the server, without
// waiting for it. The server must be told to pick its port. The process does
// not outlive the test.
func launch(t testing.TB, command ...string) *process {
	t.Helper()
	p := &process{
		t: t, cmd: exec.Command(command[0], command[1:]...),
		up: make(chan struct{}), done: make(chan struct{}),
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			line := s.Text()
			p.mu.Lock()
			p.output.WriteString(line + "\n")
			if m := readyAddress.FindStringSubmatch(line); m != nil && p.port == "" {
				p.port, p.addr = m[1], "127.0.0.1:"+m[1]
				close(p.up)
			}
			p.mu.Unlock()
		}
	}()
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	return p
}

// start runs the server on dir and returns when it listens.
func start(t testing.TB, binary, dir string, flags ...string) *process {
	t.Helper()
	p := startUnready(t, binary, dir, flags...)
	p.waitReady()
	return p
}

func startUnready(t testing.TB, binary, dir string, flags ...string) *process {
	t.Helper()
	return launch(t, append([]string{binary, "--port", "0", "--data-dir", dir}, flags...)...)
}

func (p *process) waitReady() {
	p.t.Helper()
	select {
	case <-p.up:
	case <-p.done:
		p.t.Fatalf("the server ended before it listened: %v\n%s", p.err, p.text())
	case <-time.After(patience):
		p.t.Fatalf("the server does not listen after %v\n%s", patience, p.text())
	}
}

// text returns what the process printed so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// signal sends a signal to a process that runs.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v\n%s", s, err, p.text())
	}
}

// wait returns the exit status; a process that a signal ended has -1.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("the server still runs after %v\n%s", patience, p.text())
		return 0
	}
}

// stop ends the server with SIGTERM and requires exit status 0.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		p.t.Fatalf("exit status %d after SIGTERM, want 0\n%s", status, p.text())
	}
}

// client speaks the protocol over one connection, frame by frame, so that a
// test decides what is sent before what is read.
type client struct {
	conn net.Conn
	r    *bufio.Reader
	out  []byte
	in   []byte
}

func dialClient(addr string) (*client, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}, nil
}

// connect dials and closes the connection at the end of the test.
func (p *process) connect() *client {
	p.t.Helper()
	c, err := dialClient(p.addr)
	if err != nil {
		p.t.Fatalf("connect: %v\n%s", err, p.text())
	}
	p.t.Cleanup(c.close)
	return c
}

func (c *client) close() { _ = c.conn.Close() }

// put adds a request to what the next send writes.
func (c *client) put(r *mcbp.Request) { c.out = r.Append(c.out) }

func (c *client) send() error {
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	return err
}

// receive reads one answer. It is valid until the next call.
func (c *client) receive() (mcbp.Response, error) {
	c.in = append(c.in[:0], make([]byte, mcbp.HeaderBytes)...)
	if _, err := io.ReadFull(c.r, c.in); err != nil {
		return mcbp.Response{}, err
	}
	h := mcbp.DecodeHeader(c.in)
	c.in = append(c.in, make([]byte, h.BodyBytes)...)
	if _, err := io.ReadFull(c.r, c.in[mcbp.HeaderBytes:]); err != nil {
		return mcbp.Response{}, err
	}
	r, _, err := mcbp.DecodeResponse(c.in)
	return r, err
}

// ask sends one request and reads its answer.
func (c *client) ask(r *mcbp.Request) (mcbp.Response, error) {
	c.put(r)
	if err := c.send(); err != nil {
		return mcbp.Response{}, err
	}
	return c.receive()
}

func (c *client) set(key, value string) error {
	a, err := c.ask(&mcbp.Request{Opcode: mcbp.OpSet, Extras: make([]byte, 8), Key: []byte(key), Value: []byte(value)})
	if err == nil && a.Status != mcbp.StatusSuccess {
		err = fmt.Errorf("set %q: %v", key, a.Status)
	}
	return err
}

// stats returns the statistics that are numbers.
func (c *client) stats() (map[string]int64, error) {
	a, err := c.ask(&mcbp.Request{Opcode: mcbp.OpStat})
	all := map[string]int64{}
	for ; err == nil && len(a.Key) > 0; a, err = c.receive() {
		if a.Status != mcbp.StatusSuccess {
			return nil, fmt.Errorf("STAT: %v", a.Status)
		}
		if n, err := strconv.ParseInt(string(a.Value), 10, 64); err == nil {
			all[string(a.Key)] = n
		}
	}
	return all, err
}

var errMissing = errors.New("not found")

func (c *client) get(key string) (string, error) {
	a, err := c.ask(&mcbp.Request{Opcode: mcbp.OpGet, Key: []byte(key)})
	switch {
	case err != nil:
		return "", err
	case a.Status == mcbp.StatusNotFound:
		return "", errMissing
	case a.Status != mcbp.StatusSuccess:
		return "", fmt.Errorf("get %q: %v", key, a.Status)
	}
	return string(a.Value), nil
}

// waitUntil polls for what time alone brings about.
func waitUntil(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, patience)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
