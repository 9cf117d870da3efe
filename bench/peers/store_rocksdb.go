package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fluxkv/bench"
)

// RocksDB is driven by its own db_bench, which has other keys: numbers of 8
// bytes, most significant first, filled up with zeros. The load is one process,
// and the overwrites are another, so that counters are of these alone.

// rocksFlags are those of both processes: memtables as the others have them,
// filters of 10 bits a key, no compression, no sync.
func (o *overwriting) rocksFlags() []string {
	flags := []string{
		"--db=" + filepath.Join(o.dir, "db"),
		fmt.Sprintf("--num=%d", o.documents), fmt.Sprintf("--key_size=%d", o.keyBytes), fmt.Sprintf("--value_size=%d", o.valueSize),
		// Writers stop at two memtables: one is filled, one is flushed.
		fmt.Sprintf("--write_buffer_size=%d", o.memory/2), "--max_write_buffer_number=2",
		"--bloom_bits=10", "--compression_type=none", "--disable_wal=0", "--sync=0", "--seed=1",
	}
	return append(flags, o.extra...)
}

func (o *overwriting) rocksLoad() []string {
	return append(o.rocksFlags(), "--benchmarks=filluniquerandom,waitforcompaction", "--threads=1", fmt.Sprintf("--batch_size=%d", loadBatch))
}

func (o *overwriting) rocksOverwrite() []string {
	writes := max(o.overwrites()/int64(o.writers)/int64(o.batch), 1) * int64(o.batch)
	return append(o.rocksFlags(), "--benchmarks=overwrite,waitforcompaction", "--use_existing_db=1",
		fmt.Sprintf("--threads=%d", o.writers), fmt.Sprintf("--batch_size=%d", o.batch), fmt.Sprintf("--writes=%d", writes),
		"--histogram=1", "--statistics=1", "--report_interval_seconds=1", "--report_file="+o.rocksReportFile())
}

func (o *overwriting) rocksReportFile() string { return filepath.Join(o.dir, "report.csv") }

// rocksCommand is db_bench, which ends with this process.
func (o *overwriting) rocksCommand(flags []string) (*exec.Cmd, *lastBytes) {
	cmd := exec.Command(o.program, flags...)
	errors := &lastBytes{}
	cmd.Stderr = errors
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, errors
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct{ b []byte }

const lastBytesMax = 2000

func (l *lastBytes) Write(b []byte) (int, error) {
	l.b = append(l.b, b...)
	if n := len(l.b) - lastBytesMax; n > 0 {
		l.b = l.b[n:]
	}
	return len(b), nil
}

func (o *overwriting) runRocksDB() (f overwriteFigures, err error) {
	if err := o.loadRocksDB(); err != nil {
		return f, err
	}
	return o.rocksRun()
}

// loadRocksDB is the first process.
func (o *overwriting) loadRocksDB() error {
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	// The kernel ends db_bench with the thread that started it.
	runtime.LockOSThread()
	cmd, stderr := o.rocksCommand(o.rocksLoad())
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("load of db_bench: %w: %s", err, stderr.b)
	}
	load, err := parseRocks(bytes.NewReader(out), "filluniquerandom", nil)
	if err != nil {
		return fmt.Errorf("load of db_bench: %w", err)
	}
	if load.documents != int64(o.documents) {
		return fmt.Errorf("db_bench loaded %d of %d documents", load.documents, o.documents)
	}
	return bench.SyncDirectory(o.dir)
}

// rocksRun is the second process.
func (o *overwriting) rocksRun() (f overwriteFigures, err error) {
	cmd, stderr := o.rocksCommand(o.rocksOverwrite())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return f, err
	}
	if err := cmd.Start(); err != nil {
		return f, err
	}
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill() // may have ended
			_ = cmd.Wait()
			err = fmt.Errorf("db_bench: %w: %s", err, stderr.b)
		}
	}()
	watch := &rocksWatch{o: o, pid: cmd.Process.Pid}
	ended := make(chan time.Time, 1)
	var r rocksReport
	parsed := make(chan error, 1)
	go func() {
		var err error
		r, err = parseRocks(out, "overwrite", func() { ended <- time.Now() })
		parsed <- err
	}()
	var at time.Time // of the last batch
	for done := false; !done; {
		select {
		case at = <-ended:
			err = watch.ended()
		case err = <-parsed:
			done = true
		case <-time.After(rocksPoll):
			err = watch.poll()
		}
		if err != nil {
			return f, err
		}
	}
	if at.IsZero() {
		at = <-ended // both were ready
		if err := watch.ended(); err != nil {
			return f, err
		}
	}
	// Its counters are there until it is waited for.
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return f, fmt.Errorf("wait: %w", err)
	}
	if err := bench.SyncDirectory(o.dir); err != nil {
		return f, err
	}
	cpu, err := bench.ProcessCPU(watch.pid)
	if err != nil {
		return f, err
	}
	if err := watch.look(r.documents); err != nil {
		return f, err
	}
	if err := cmd.Wait(); err != nil {
		return f, err
	}
	f.CPUSeconds = (cpu - watch.cpu).Seconds()
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		f.MemoryBytes = u.Maxrss << 10
	}
	f.Seconds, f.Written = r.seconds, r.written
	f.P50, f.P99, f.Max = r.p50, r.p99, r.max
	// Whoever completes the next batch waited at least as long as the gap before.
	f.Stall, f.StallBound = r.max/1e6, true
	f.Worst = worst(watch.seconds, time.Duration(len(watch.seconds))*time.Second)
	f.SettleSeconds = max(watch.wrote.Sub(at).Seconds(), 0)
	size := int64(o.keyBytes + o.valueSize)
	f.LiveBytes = int64(o.documents) * size
	watch.samples[watch.last].documents = r.documents // it reports whole seconds only
	f.fill(watch.samples[:watch.last+1], watch.samples[watch.last+1:], size)
	return f, o.rocksCheck()
}

// rocksCheck reads some of the documents: db_bench knows only whether they are
// there.
func (o *overwriting) rocksCheck() error {
	reads := min(int(o.documents), spotChecks)
	cmd, stderr := o.rocksCommand(append(o.rocksFlags(), "--benchmarks=readrandom", "--use_existing_db=1", "--threads=1", fmt.Sprintf("--reads=%d", reads)))
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("db_bench: %w: %s", err, stderr.b)
	}
	if want := fmt.Sprintf("(%d of %d found)", reads, reads); !bytes.Contains(out, []byte(want)) {
		return fmt.Errorf("db_bench does not find all documents: no %q in its output", want)
	}
	return nil
}

// rocksPoll is the time between two looks at the report of db_bench.
const rocksPoll = 20 * time.Millisecond

// rocksWatch follows db_bench by the file to which it adds a line each second,
// and looks at the store with each.
type rocksWatch struct {
	o       *overwriting
	pid     int
	cpu     time.Duration // used before the first batch
	seconds []int64       // documents, by the second
	samples []sample
	last    int // the sample with the last batch; 0: there was none yet
	looked  time.Time
	// wrote is when process, of the process, was written: db_bench waits in steps
	// of 5 s for compactions to end, which is too coarse.
	wrote   time.Time
	process int64
}

// rocksNoise is what RocksDB may write without anything running: lines of its
// own log.
const rocksNoise = 64 << 10

func (w *rocksWatch) look(documents int64) error {
	s, err := look(w.o.dir, w.pid, documents)
	w.samples, w.looked = append(w.samples, s), time.Now()
	return err
}

func (w *rocksWatch) documents() (n int64) {
	for _, x := range w.seconds {
		n += x
	}
	return n
}

// poll looks at the store when there is something new.
func (w *rocksWatch) poll() (err error) {
	if w.last > 0 {
		n, err := bench.ProcessBytes(w.pid)
		if err != nil {
			return err
		}
		if n-w.process > rocksNoise {
			w.process, w.wrote = n, time.Now()
		}
		if time.Since(w.looked) < sampleEvery {
			return nil
		}
		return w.look(w.documents())
	}
	b, err := os.ReadFile(w.o.rocksReportFile())
	if errors.Is(err, os.ErrNotExist) || err == nil && len(b) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	before := len(w.seconds)
	if w.seconds, err = parseRocksSeconds(b); err != nil {
		return err
	}
	if len(w.samples) == 0 {
		if w.cpu, err = bench.ProcessCPU(w.pid); err != nil {
			return err
		}
		return w.look(0)
	}
	if len(w.seconds) > before {
		return w.look(w.documents())
	}
	return nil
}

// ended looks at the store after the last batch.
func (w *rocksWatch) ended() error {
	if err := w.poll(); err != nil {
		return err
	}
	if len(w.samples) == 0 {
		return fmt.Errorf("no %s", w.o.rocksReportFile())
	}
	err := w.look(w.documents())
	w.last = len(w.samples) - 1
	w.process = w.samples[w.last].process
	return err
}

// parseRocksSeconds reads the operations of whole seconds. An unfinished line at
// the end is left out.
func parseRocksSeconds(b []byte) (seconds []int64, err error) {
	end := bytes.LastIndexByte(b, '\n')
	for i, line := range strings.Split(string(b[:max(end, 0)]), "\n") {
		if i == 0 { // the head
			continue
		}
		_, text, _ := strings.Cut(line, ",")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d of the report of db_bench, %q: %w", i+1, line, err)
		}
		seconds = append(seconds, n)
	}
	return seconds, nil
}

// rocksReport is what db_bench says about one benchmark.
type rocksReport struct {
	documents int64
	seconds   float64
	// Latencies of a batch in microseconds, with --histogram.
	p50, p99, max float64
	written       map[string]int64 // by cause, with --statistics
}

var (
	rocksResult      = regexp.MustCompile(`^(\w+)\s*:\s+[0-9.]+ micros/op \d+ ops/sec ([0-9.]+) seconds (\d+) operations;`)
	rocksMax         = regexp.MustCompile(`^Min: .* Max: ([0-9.]+)$`)
	rocksPercentiles = regexp.MustCompile(`^Percentiles: P50: ([0-9.]+) .*\bP99: ([0-9.]+) `)
	rocksTicker      = regexp.MustCompile(`^rocksdb\.(\S+) COUNT : (\d+)$`)
)

// rocksCauses are the counters of RocksDB that become causes of writing.
var rocksCauses = map[string]string{"wal.bytes": "log", "flush.write.bytes": "flush", "compact.write.bytes": "compaction"}

// parseRocks reads the output of db_bench, and calls ended, if given, as soon as
// the benchmark has its result.
func parseRocks(in io.Reader, benchmark string, ended func()) (r rocksReport, err error) {
	found := false
	r.written = map[string]int64{}
	s := bufio.NewScanner(in)
	for s.Scan() {
		line := s.Text()
		number := func(text string) float64 {
			x, e := strconv.ParseFloat(text, 64)
			if e != nil {
				err = fmt.Errorf("%q: %w", line, e)
			}
			return x
		}
		if m := rocksResult.FindStringSubmatch(line); m != nil && m[1] == benchmark {
			if found {
				return r, fmt.Errorf("%s ran twice", benchmark)
			}
			found = true
			r.seconds, r.documents = number(m[2]), int64(number(m[3]))
			if ended != nil {
				ended()
			}
		} else if m := rocksMax.FindStringSubmatch(line); m != nil && r.max == 0 {
			r.max = number(m[1])
		} else if m := rocksPercentiles.FindStringSubmatch(line); m != nil && r.p99 == 0 {
			r.p50, r.p99 = number(m[1]), number(m[2])
		} else if m := rocksTicker.FindStringSubmatch(line); m != nil && rocksCauses[m[1]] != "" {
			r.written[rocksCauses[m[1]]] = int64(number(m[2]))
		}
	}
	switch {
	case err != nil:
		return r, err
	case s.Err() != nil:
		return r, s.Err()
	case !found:
		return r, fmt.Errorf("no result of %s in its output: another version?", benchmark)
	}
	return r, nil
}
