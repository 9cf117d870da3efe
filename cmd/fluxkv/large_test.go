package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fluxkv/mcbp"
)

// largeMargin is what a server may have resident beyond --mem-quota: the Go
// heap, stacks, the program.
const largeMargin = 150 << 20

// large is one run of TestLarge.
type large struct {
	t      *testing.T
	d      *largeData
	binary string
	dir    string
	flags  []string
	quota  int64
	p      *process
	rss    *rssWatch

	// What the kills left behind: of each round and connection, how many of
	// its requests were sent and how many answered. Those in between were
	// settled by the first read after the kill.
	sent, acked [largeRoundsMax][largeConns]uint64
	settled     map[uint64]version
	mu          sync.Mutex // of settled
}

// TestLarge loads more documents than fit in memory, of two sizes mixed, and
// reads back every key: after the load, after a restart, and after each
// SIGKILL under durable writes. Some keys were written again or deleted much
// later than first, so that tables have older versions, which must stay
// hidden; some were never written. One client reads while the load goes on. Resident memory stays below --mem-quota
// plus 150 MiB all along.
//
// By default it is small. FLUXKV_LARGE_1K and FLUXKV_LARGE_8B are the numbers
// of documents, FLUXKV_LARGE_QUOTA and FLUXKV_LARGE_CACHE the sizes,
// FLUXKV_LARGE_ROUNDS of kills (up to 8), FLUXKV_LARGE_FLAGS more flags.
func TestLarge(t *testing.T) {
	number := func(name string, def uint64) uint64 {
		s := os.Getenv(name)
		if s == "" {
			return def
		}
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatalf("%s=%q: want a number", name, s)
		}
		return n
	}
	bytesOf := func(name, def string) (string, int64) {
		var n size
		s := os.Getenv(name)
		if s == "" {
			s = def
		}
		if err := n.Set(s); err != nil {
			t.Fatalf("%s=%q: %v", name, s, err)
		}
		return s, int64(n)
	}
	d, err := newLargeData(number("FLUXKV_LARGE_1K", 5000), number("FLUXKV_LARGE_8B", 12000), number("FLUXKV_LARGE_ROUNDS", 1))
	if err != nil {
		t.Fatal(err)
	}
	l := &large{t: t, d: d, binary: buildServer(t), dir: filepath.Join(t.TempDir(), "data"), settled: map[uint64]version{}}
	quota, n := bytesOf("FLUXKV_LARGE_QUOTA", "64MiB")
	cache, _ := bytesOf("FLUXKV_LARGE_CACHE", "1MiB")
	l.quota = n
	l.flags = append([]string{"--mem-quota", quota, "--write-cache", cache}, strings.Fields(os.Getenv("FLUXKV_LARGE_FLAGS"))...)
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 1))
	t.Logf("%d documents of %d B and %d of %d B, flags %v, seed of the kills %d",
		d.large, largeValueBytes, d.loaded-d.large, smallValueBytes, l.flags, seed)

	out := t.Output()
	fmt.Fprintln(out, "| step | operations | seconds | operations/s | RSS max, MiB | directory, MiB | tables |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|")
	l.start("--durable=false")
	l.step("load", out, l.load)
	if l.tables() == 0 {
		t.Fatal("nothing was flushed: the write cache holds all that was loaded, and what follows would prove nothing")
	}
	l.step("read all", out, l.readAll)
	l.step("restart", out, func() uint64 {
		l.p.stop()
		l.start()
		return 1
	})
	l.step("read all", out, l.readAll)
	for round := range d.rounds {
		l.step(fmt.Sprintf("write until SIGKILL %d", round+1), out, func() uint64 { return l.writeAndKill(round, rnd) })
		l.step("recover", out, func() uint64 {
			// Sometimes recovery is killed too.
			if rnd.IntN(2) == 0 {
				p := startUnready(t, l.binary, l.dir, l.flags...)
				time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				p.kill()
			}
			l.start()
			return 1
		})
		l.step("read all", out, l.readAll)
	}
	l.p.stop()
	live := l.liveBytes()
	fmt.Fprintf(out, "live keys and values: %d MiB; the directory has %.2f times as much\n",
		live>>20, float64(directoryBytes(t, l.dir))/float64(live))
}

// start runs the server and watches its memory.
func (l *large) start(flags ...string) {
	l.p = start(l.t, l.binary, l.dir, append(append([]string{}, l.flags...), flags...)...)
	l.rss = watchRSS(l.t, l.p.cmd.Process.Pid)
}

// tables is the number of tables in the store's directory.
func (l *large) tables() int {
	names, err := filepath.Glob(filepath.Join(l.dir, "idx", "*.sst"))
	if err != nil {
		l.t.Fatal(err)
	}
	return len(names)
}

// step times fn, which returns how many operations it did, and prints a row.
func (l *large) step(name string, out io.Writer, fn func() uint64) {
	began := time.Now()
	n := fn()
	took := time.Since(began).Seconds()
	rss := l.rss.max()
	rate := "-"
	if n > 1 {
		rate = fmt.Sprintf("%.0f", float64(n)/took)
	}
	fmt.Fprintf(out, "| %s | %d | %.1f | %s | %d | %d | %d |\n", name, n, took, rate, rss>>20, directoryBytes(l.t, l.dir)>>20, l.tables())
	if rss > l.quota+largeMargin {
		l.t.Errorf("%s: %d MiB resident, want at most %d MiB of quota + %d MiB", name, rss>>20, l.quota>>20, largeMargin>>20)
	}
	if l.t.Failed() {
		l.t.Fatalf("%s failed; the server said:\n%s", name, l.p.text())
	}
}

// load writes everything and ends with a SET that is answered when it is
// durable, and with it all before it. One connection reads meanwhile.
func (l *large) load() uint64 {
	var count atomic.Uint64
	var places [largeConns]atomic.Uint64 // whose first version was answered
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { l.readDuring(&done, &places) })
	err := l.p.onConnections(func(c uint64, cl *client) error {
		w := l.d.loader(c)
		var scratch []byte
		_, done, err := pipelined(cl, 256, func(r *mcbp.Request) (largeWrite, bool) {
			n, v, ok := w.next()
			if !ok {
				return largeWrite{}, false
			}
			lw := largeWrite{n: n, v: v, had: true} // the load deletes what is there
			scratch = lw.request(l.d, r, scratch)
			return lw, true
		}, func(w largeWrite, a *mcbp.Response) error {
			if w.v == 1 {
				places[c].Store(w.n/largeConns + 1)
			}
			return w.check(a)
		})
		count.Add(done)
		return err
	})
	done.Store(true)
	wg.Wait()
	if err == nil {
		durable := mcbp.Request{Opcode: mcbp.OpSet, Framing: []byte{0x11, 0x01}, Extras: setExtras[:], Key: []byte("barrier"), Value: []byte("durable")}
		var a mcbp.Response
		if a, err = l.p.connect().ask(&durable); err == nil && a.Status != mcbp.StatusSuccess {
			err = fmt.Errorf("durable SET: %v", a.Status)
		}
	}
	if err != nil {
		l.t.Fatalf("load: %v\n%s", err, l.p.text())
	}
	return count.Load()
}

// readDuring reads keys that the load writes once, half of them just written,
// until done: whatever moves from memory to tables stays in sight.
func (l *large) readDuring(done *atomic.Bool, places *[largeConns]atomic.Uint64) {
	cl, err := dialClient(l.p.addr)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer cl.close()
	var wrong largeMistakes
	var key []byte
	rnd := rand.New(rand.NewPCG(1, 1))
	_, _, err = pipelined(cl, 4, func(r *mcbp.Request) (uint64, bool) {
		c := rnd.Uint64N(largeConns)
		n := l.d.all - 1 - c // never written
		if end := places[c].Load(); end > 0 {
			back := end
			if rnd.IntN(2) == 0 {
				back = min(end, 1000)
			}
			if m := (end-1-rnd.Uint64N(back))*largeConns + c; l.d.once(m) {
				n = m
			}
		}
		key = l.d.appendKey(key[:0], n)
		r.Opcode, r.Key = mcbp.OpGet, key
		return n, !done.Load()
	}, func(n uint64, a *mcbp.Response) error {
		wrong.observe(l.d, n, a, l.d.afterLoad(n))
		return nil
	})
	if err != nil {
		l.t.Errorf("read during the load: %v", err)
	}
	l.mistakes("during the load", &wrong)
}

// mistakes fails the test when there were some.
func (l *large) mistakes(when string, m *largeMistakes) {
	if len(m.counts) > 0 {
		l.t.Errorf("%s: of %d reads: %v\n%s", when, m.read.Load(), m.counts, strings.Join(m.examples, "\n"))
	}
}

// may returns the versions that number n may have, the likely one first.
func (l *large) may(n uint64) []version {
	base := l.d.afterLoad(n)
	round, c, q, ok := l.d.roundOf(n)
	if !ok || q >= l.sent[round][c] {
		return []version{base}
	}
	wrote := l.d.roundVersion(round, q)
	if q < l.acked[round][c] {
		return []version{wrote}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, ok := l.settled[n]; ok {
		return []version{v}
	}
	return []version{base, wrote}
}

// readAll reads every key, those that were never written too, and fails when
// one of them is not what it must be.
func (l *large) readAll() uint64 {
	var wrong largeMistakes
	err := l.p.onConnections(func(c uint64, cl *client) error {
		n := c
		var key []byte
		_, _, err := pipelined(cl, 256, func(r *mcbp.Request) (uint64, bool) {
			at := n
			if at >= l.d.all {
				return 0, false
			}
			n += largeConns
			key = l.d.appendKey(key[:0], at)
			r.Opcode, r.Key = mcbp.OpGet, key
			return at, true
		}, func(n uint64, a *mcbp.Response) error {
			may := l.may(n)
			v := wrong.observe(l.d, n, a, may...)
			if len(may) > 1 {
				l.mu.Lock()
				l.settled[n] = v
				l.mu.Unlock()
			}
			return nil
		})
		return err
	})
	if err != nil {
		l.t.Fatalf("read: %v\n%s", err, l.p.text())
	}
	if got := wrong.read.Load(); got != l.d.all {
		l.t.Errorf("%d keys were read, want %d", got, l.d.all)
	}
	l.mistakes("all keys", &wrong)
	return wrong.read.Load()
}

// writeAndKill sends the writes of a round to the durable server and kills it
// among them. It returns how many were answered.
func (l *large) writeAndKill(round uint64, rnd *rand.Rand) uint64 {
	p := l.p
	total := int64(l.d.placesN / largeRoundsMax * largeConns)
	limit := total/2 + rnd.Int64N(total/3+1)
	var acked atomic.Int64
	var killed atomic.Bool
	kill := sync.OnceFunc(func() {
		killed.Store(true)
		p.kill()
	})
	err := p.onConnections(func(c uint64, cl *client) error {
		q := uint64(0)
		var scratch []byte
		sent, done, err := pipelined(cl, 64, func(r *mcbp.Request) (largeWrite, bool) {
			n, v, ok := l.d.roundWrite(round, c, q)
			if !ok {
				return largeWrite{}, false
			}
			q++
			w := largeWrite{n: n, v: v, had: l.d.afterLoad(n) != absent}
			scratch = w.request(l.d, r, scratch)
			return w, true
		}, func(w largeWrite, a *mcbp.Response) error {
			if err := w.check(a); err != nil {
				return err
			}
			if acked.Add(1) == limit {
				go kill()
			}
			return nil
		})
		l.sent[round][c], l.acked[round][c] = sent, done
		if errors.As(err, &wrongAnswer{}) || !killed.Load() {
			return err
		}
		return nil
	})
	if err != nil {
		l.t.Errorf("round %d: %v", round, err)
	}
	kill()
	open := uint64(0)
	for c := range largeConns {
		open += l.sent[round][c] - l.acked[round][c]
	}
	if open == 0 {
		l.t.Errorf("round %d: no write was open when the server was killed", round)
	}
	return uint64(acked.Load())
}

// liveBytes is the size of all keys and values that are there.
func (l *large) liveBytes() (sum int64) {
	for n := range l.d.all {
		if v := l.may(n)[0]; v != absent {
			sum += largeKeyBytes + int64(l.d.valueBytes(n, v))
		}
	}
	return sum
}

// directoryBytes is what the files below dir take on the disk.
func directoryBytes(t testing.TB, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil // the server removed it meanwhile
		}
		if st, ok := info.Sys().(*syscall.Stat_t); err == nil && ok {
			sum += st.Blocks * 512
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return sum
}

// rssWatch follows the resident memory of a process.
type rssWatch struct {
	pid  int
	mu   sync.Mutex
	most int64
}

// watchRSS looks every 50 ms until the process is gone or the test ends.
func watchRSS(t testing.TB, pid int) *rssWatch {
	w := &rssWatch{pid: pid}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			if !w.look("VmRSS:") {
				return
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
	})
	return w
}

// look reads one line of the process's status; false: there is none.
func (w *rssWatch) look(field string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b, []byte(field))
	fields := bytes.Fields(rest)
	if !ok || len(fields) == 0 {
		return false // it ended and waits to be reaped
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, kib<<10)
	return true
}

// max returns the largest figure, in bytes, since the process started: the
// kernel's own mark while it runs, the samples after its end.
func (w *rssWatch) max() int64 {
	w.look("VmHWM:")
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}
