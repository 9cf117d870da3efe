package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fluxkv/mcbp"
)

func small(addr string) Options {
	return Options{
		Addr: addr, Keys: 500, KeyBytes: 8, ValueBytes: 20, Conns: 3, Pipeline: 4,
		Runtime: 30 * time.Millisecond, Load: true, Verify: true,
	}
}

func TestRunIsCleanAgainstAServerThatIs(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
	}{
		{"get", func(o *Options) {}},
		{"set", func(o *Options) { o.Workload = KindSet }},
		{"mixed on two threads", func(o *Options) { o.Workload, o.Threads, o.Warmup = KindMixed, 2, time.Millisecond }},
		{"skewed, decimal keys", func(o *Options) { o.Zipf, o.KeyFormat = 0.99, KeyDecimal }},
		{"empty values", func(o *Options) { o.ValueBytes = -1 }},
		{"values larger than a batch", func(o *Options) { o.Keys, o.ValueBytes, o.Workload = 20, 300_000, KindMixed }},
		{"a deep window that is no power of two", func(o *Options) { o.Pipeline = 300 }},
		{"a window that is kept full", func(o *Options) { o.Pipeline, o.Refill = 16, 1 }},
		{"noop", func(o *Options) { o.Workload = KindNoop }},
		{"more connections than keys", func(o *Options) { o.Keys, o.Conns = 2, 7 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startFake(t, nil)
			o := small(s.addr())
			o.ServerPID = os.Getpid()
			c.change(&o)
			r, err := Run(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			if trouble := r.Trouble(); len(trouble) > 0 {
				t.Errorf("trouble: %v", trouble)
			}
			if n := s.documents(); n != int(o.Keys) {
				t.Errorf("%d documents were loaded, want %d", n, o.Keys)
			}
			if r.Operations == 0 || r.Operations != r.Gets+r.Sets || r.Rate <= 0 {
				t.Errorf("%d operations, %d gets, %d sets, rate %v", r.Operations, r.Gets, r.Sets, r.Rate)
			}
			if (r.Gets > 0) != (r.GetLatency != nil) || (r.Sets > 0) != (r.SetLatency != nil) {
				t.Errorf("latencies %v %v of %d gets, %d sets", r.GetLatency, r.SetLatency, r.Gets, r.Sets)
			}
			if r.ServerCPU == nil || r.ClientCPU == nil {
				t.Error("no CPU times")
			}
			var text, line, doc bytes.Buffer
			if err := errors.Join(r.WriteText(&text), r.WriteLine(&line), r.WriteJSON(&doc)); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), "clean     no errors, no misses") {
				t.Errorf("text:\n%s", text.String())
			}
			if got, want := strings.Count(line.String(), "\t"), strings.Count(LineHeader, "\t"); got != want {
				t.Errorf("line %q has %d tabs, its header %d", line.String(), got, want)
			}
			if !json.Valid(doc.Bytes()) {
				t.Errorf("not JSON: %s", doc.String())
			}
		})
	}
}

func TestRunNamesItsTroubles(t *testing.T) {
	forever := func(change func(r *mcbp.Response)) func(int, *mcbp.Response) []byte {
		return func(_ int, r *mcbp.Response) []byte {
			change(r)
			return r.Append(nil)
		}
	}
	for _, c := range []struct {
		name   string
		noLoad bool
		answer func(n int, r *mcbp.Response) []byte
		want   string
	}{
		{"misses", true, nil, "GETs missed"},
		{"a failing status", false, forever(func(r *mcbp.Response) {
			if r.Opcode == mcbp.OpSet {
				r.Status, r.Value = mcbp.StatusOutOfMemory, []byte("Out of memory")
			}
		}), "500 answers had status 0x82 Out of memory"},
		{"wrong bytes", false, forever(func(r *mcbp.Response) {
			if r.Opcode == mcbp.OpGet && len(r.Value) > 0 {
				r.Value[len(r.Value)-1] ^= 1
			}
		}), "values were not what their key says"},
		{"a wrong length", false, forever(func(r *mcbp.Response) {
			if r.Opcode == mcbp.OpGet {
				r.Value = append(r.Value, 0)
			}
		}), "values were not what their key says"},
		{"a lost connection", false, func(n int, r *mcbp.Response) []byte {
			if n == 600 {
				return nil
			}
			return r.Append(nil)
		}, "1 connections were lost: "},
		{"an answer out of step", false, func(n int, r *mcbp.Response) []byte {
			if n == 600 {
				r.Opaque++
			}
			return r.Append(nil)
		}, "1 connections were lost: protocol error: answer with magic 0x81"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startFake(t, c.answer)
			o := small(s.addr())
			o.Load = !c.noLoad
			r, err := Run(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(r.Trouble(), "\n")
			if !strings.Contains(all, c.want) {
				t.Errorf("troubles %q, want %q among them", all, c.want)
			}
			var text bytes.Buffer
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), "TROUBLE") || strings.Contains(text.String(), "clean") {
				t.Errorf("text:\n%s", text.String())
			}
		})
	}
}

func TestRunEndsWhenTheServerIsSilent(t *testing.T) {
	s := startFake(t, func(n int, r *mcbp.Response) []byte {
		if n > 100 {
			return []byte{}
		}
		return r.Append(nil)
	})
	o := small(s.addr())
	o.StallTimeout = time.Second
	_, err := Run(context.Background(), o)
	if !errors.Is(err, errStalled) {
		t.Errorf("error %v, want %v", err, errStalled)
	}
}

func TestRunEndsWhenEveryConnectionIsLost(t *testing.T) {
	s := startFake(t, func(n int, r *mcbp.Response) []byte {
		if n > 100 {
			return nil
		}
		return r.Append(nil)
	})
	_, err := Run(context.Background(), small(s.addr()))
	if err == nil || !strings.Contains(err.Error(), "every connection is lost") {
		t.Errorf("error %v, want every connection lost", err)
	}
}

func TestRunReportsARefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	if _, err := Run(context.Background(), small(addr)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v, want a refused connection", err)
	}
}

func TestRunEndsWhenItIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := startFake(t, func(n int, r *mcbp.Response) []byte {
		if n == 1000 {
			cancel()
		}
		return r.Append(nil)
	})
	o := small(s.addr())
	o.Runtime = time.Hour
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestLoadAlone(t *testing.T) {
	s := startFake(t, nil)
	o := small(s.addr())
	o.Runtime = 0
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.documents(); n != 500 || r.LoadRate <= 0 || r.Operations != 0 || len(r.Trouble()) > 0 {
		t.Errorf("%d documents, load rate %v, %d operations, troubles %v", n, r.LoadRate, r.Operations, r.Trouble())
	}
}

func TestOperationsEndARun(t *testing.T) {
	for _, threads := range []int{1, 2} {
		requests := 0
		s := startFake(t, func(n int, r *mcbp.Response) []byte {
			requests = n
			return r.Append(nil)
		})
		o := small(s.addr())
		o.Runtime, o.Operations, o.Workload, o.Threads, o.ServerPID = 0, 1237, KindSet, threads, os.Getpid()
		r, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		if requests != 500+1237 || r.Operations != 1237 || r.Sets != 1237 || r.Rate <= 0 || r.ServerCPU == nil || len(r.Trouble()) > 0 {
			t.Errorf("%d requests, %d operations, %d sets, rate %v, troubles %v", requests, r.Operations, r.Sets, r.Rate, r.Trouble())
		}
		s.mu.Unlock()
	}
}

func TestWorstSecond(t *testing.T) {
	const second = 1_000_000_000
	// at adds n answers at a time in tenths of a second.
	at := func(s *stats, tenths, n int64) { s.add(tenths*second/10, 2000, 0, n) }
	for _, c := range []struct {
		name string
		fill func(a, b *stats)
		want float64
	}{
		{"no whole second", func(a, b *stats) { at(a, 16, 5); at(b, 16, 5) }, 0},
		{"ends do not count", func(a, b *stats) {
			for i := int64(15); i < 45; i++ {
				at(a, i, 10)
				at(b, i, 1)
			}
		}, 110},
		{"a second without answers", func(a, b *stats) { at(a, 16, 5); at(a, 21, 5); at(b, 42, 5) }, 0},
		{"of both", func(a, b *stats) { at(a, 20, 5); at(b, 29, 7); at(a, 31, 20) }, 12},
	} {
		gap := new(Gap)
		a, b, total := newStats(gap), newStats(gap), newStats(gap)
		a.restart(15 * second / 10)
		b.restart(15 * second / 10)
		c.fill(a, b)
		end := int64(45) * second / 10
		if c.name == "no whole second" {
			end = 19 * second / 10
		}
		if c.name == "of both" {
			end = 40 * second / 10
		}
		a.freeze(end)
		b.freeze(end)
		total.merge(b)
		total.merge(a)
		if got := total.worstSecond(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestOptionsNameEveryProblem(t *testing.T) {
	err := Options{
		Workload: "scan", Conns: -1, Pipeline: 5000, Keys: 300, KeyBytes: 2, ValueBytes: 1 << 30, Zipf: 9,
		Runtime: -1, Warmup: -1, ServerPID: -1, StallTimeout: 1, GetShare: 2, Rate: -1, Burst: 6000, Refill: -1,
	}.Validate()
	for _, want := range []string{
		"workload", "conns", "pipeline", "keys 300", "value size", "zipf", "runtime", "warmup", "server pid", "stall", "get share", "rate", "burst", "refill",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
	if err := (Options{Operations: 1, Runtime: 1}).Validate(); err == nil || !strings.Contains(err.Error(), "operations") {
		t.Errorf("operations and a time: %v", err)
	}
	if err := (Options{}).Validate(); err == nil {
		t.Error("no load and no runtime is accepted")
	}
}

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     time.Duration
		bad      bool
	}{
		{"a plain line", "7 (flux) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 5 0 1", 3 * time.Second, false},
		{"a name with blanks and parentheses", "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20", 30 * time.Millisecond, false},
		{"cut short", "7 (flux) S 1", 0, true},
		{"no name", "7", 0, true},
	} {
		got, err := parseStat([]byte(c.in))
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestCount(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0.0", 99.94: "99.9", 99.96: "100", 950: "950", 999.6: "1.00K", 17_000: "17.0K", 99_960: "100K",
		999_600: "1.00M", 4_514_000: "4.51M", 12_340_000: "12.3M", 123_400_000: "123M",
	} {
		if got := Count(x); got != want {
			t.Errorf("Count(%v) = %q, want %q", x, got, want)
		}
	}
}

func TestDevice(t *testing.T) {
	dir := t.TempDir()
	r, err := Device(context.Background(), DeviceOptions{Dir: dir, Runtime: 20 * time.Millisecond, FileBytes: 1 << 20})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("%s does not do synced direct writes: %v", dir, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Writes == 0 || r.Rate <= 0 || r.Latency == nil {
		t.Errorf("report %+v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Device(context.Background(), DeviceOptions{}); err == nil {
		t.Error("no directory is accepted")
	}
}

// pair returns a connection of a loop whose other end is fd.
func pair(t testing.TB, o Options) (l *loop, c *conn, fd int) {
	t.Helper()
	o = o.withDefaults()
	keys, err := NewKeys(o.KeyFormat, o.KeyBytes, o.Keys)
	if err != nil {
		t.Fatal(err)
	}
	l, err = newLoop(o, keys, NewValues(o.ValueBytes), 1, time.Now(), new(atomic.Bool), new(Gap))
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	c = newConn(fds[0], o.Pipeline, mcbp.HeaderBytes+setExtrasBytes+o.KeyBytes+o.ValueBytes)
	c.window = o.Pipeline
	if err := l.add(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.close()
		unix.Close(fds[1])
	})
	return l, c, fds[1]
}

// answers writes what a server would answer to the open requests of c.
func answers(l *loop, c *conn, dst []byte) []byte {
	var value []byte
	for s := c.answered; s != c.sent; s++ {
		r := mcbp.Response{Opcode: c.slots[s&c.mask].op, Opaque: s}
		if r.Opcode == mcbp.OpGet {
			value = append(value[:0], make([]byte, l.values.bytes)...)
			l.values.Put(value, c.slots[s&c.mask].index)
			r.Extras, r.Value = make([]byte, 4), value
		}
		dst = r.Append(dst)
	}
	return dst
}

func TestAnswersMayBeCutAnywhere(t *testing.T) {
	for step := 1; step < 60; step++ {
		l, c, _ := pair(t, Options{Workload: KindMixed, Pipeline: 8, Verify: true, Keys: 100, ValueBytes: 12})
		c.make(l, 8, 0)
		b := answers(l, c, nil)
		for len(b) > 0 {
			n := min(step, len(b))
			if err := c.parse(l, b[:n]); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		c.record(l)
		if c.open() != 0 || l.stats.gets+l.stats.sets != 8 || l.stats.wrong != 0 {
			t.Fatalf("pieces of %d bytes: %d open, %d counted, %d wrong", step, c.open(), l.stats.gets+l.stats.sets, l.stats.wrong)
		}
	}
}

// TestWindowIsRefilled counts what is open after a few answers.
func TestWindowIsRefilled(t *testing.T) {
	for _, c := range []struct{ refill, answered, open int }{
		{0, 7, 9}, {0, 8, 16}, {1, 1, 16}, {5, 4, 12}, {5, 5, 16}, {16, 15, 1}, {16, 16, 16},
	} {
		l, conn, _ := pair(t, Options{Pipeline: 16, Refill: c.refill})
		conn.window = 16
		if err := conn.refill(l); err != nil || conn.open() != 16 {
			t.Fatalf("%d open at first, %v", conn.open(), err)
		}
		conn.answered += uint32(c.answered)
		if err := conn.refill(l); err != nil || conn.open() != c.open {
			t.Errorf("refill %d: %d open after %d answers, want %d; %v", c.refill, conn.open(), c.answered, c.open, err)
		}
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	for _, kind := range []Kind{KindGet, KindSet, KindMixed, KindNoop} {
		l, c, _ := pair(t, Options{Workload: kind, Pipeline: 64, Verify: true, Zipf: 0.99})
		var in []byte
		if n := testing.AllocsPerRun(200, func() {
			c.make(l, 64, 0)
			c.answered, c.batchHead = c.sent, c.batchTail
			c.out = nil
		}); n != 0 {
			t.Errorf("%s: making requests: %v allocations, want 0", kind, n)
		}
		c.make(l, 64, 0)
		in = answers(l, c, nil)
		answered, head := c.answered, c.batchHead
		if n := testing.AllocsPerRun(200, func() {
			c.answered, c.batchHead = answered, head
			if err := c.parse(l, in); err != nil {
				t.Fatal(err)
			}
			c.record(l)
		}); n != 0 {
			t.Errorf("%s: counting answers: %v allocations, want 0", kind, n)
		}
	}
}

func BenchmarkMake(b *testing.B) {
	for _, o := range []Options{{Workload: KindGet}, {Workload: KindSet}, {Workload: KindSet, ValueBytes: 1024}, {Workload: KindGet, Zipf: 0.99}} {
		o.Pipeline, o.KeyBytes = 128, 8
		b.Run(fmt.Sprintf("%s-%d-%v", o.Workload, o.ValueBytes, o.Zipf), func(b *testing.B) {
			l, c, _ := pair(b, o)
			b.ReportAllocs()
			for n := 0; n < b.N; n += 128 {
				for c.answered = c.sent; c.open() < 128; {
					c.make(l, 128-c.open(), 0)
				}
				c.batchHead = c.batchTail
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, o := range []Options{{Workload: KindGet}, {Workload: KindGet, Verify: true}, {Workload: KindSet}} {
		o.Pipeline, o.KeyBytes = 128, 8
		b.Run(fmt.Sprintf("%s-%v", o.Workload, o.Verify), func(b *testing.B) {
			l, c, _ := pair(b, o)
			c.make(l, 128, 0)
			in := answers(l, c, nil)
			answered, head := c.answered, c.batchHead
			b.ReportAllocs()
			for n := 0; n < b.N; n += 128 {
				c.answered, c.batchHead = answered, head
				if err := c.parse(l, in); err != nil {
					b.Fatal(err)
				}
				c.record(l)
			}
		})
	}
}
