package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"fluxkv/bench"
	"fluxkv/lsm"
)

// reading is one run of GETs of a store that was loaded before: some goroutines or
// threads, each of which asks for one random document after the other.
type reading struct {
	load
	engine     string
	goroutines int
	warmup     time.Duration
	runtime    time.Duration
	memory     int64        // bytes that the process may take, page cache included
	group      *memoryGroup // with that limit; nil: nothing holds it
	program    string       // db_bench, for RocksDB
	extra      []string     // more flags of it
}

// readFigures is what the GETs took.
type readFigures struct {
	Gets       int64          `json:"gets"`
	Seconds    float64        `json:"seconds"`
	CPUSeconds float64        `json:"cpu_seconds"` // of the process
	Device     bench.DeviceIO `json:"device"`      // by anyone
	ReadBytes  int64          `json:"read_bytes"`  // charged to the process by the kernel
	Resident   int64          `json:"resident"`    // most, bytes
	GroupPeak  int64          `json:"group_peak"`  // most in the group, bytes; 0: there is none
}

// caches are what engines may set aside for blocks of tables, of the memory that a
// process may take.
//
// fluxkv reads past the page cache, so that nearly all is for its own: the rest is
// the Go heap's. The others leave three eighths to their heap and to the page
// cache; RocksDB that reads past it gives its cache three quarters.
const (
	fluxkvHeap        = 96 << 20 // or a quarter, if that is less
	fluxkvWriteCache  = 8 << 20
	fluxkvInline      = 255     // the default of Options.InlineLimit
	fluxkvBuffers     = 8 << 20 // that the store reads into
	peerMemtable      = 4 << 20
	pebbleCacheEighth = 5
	rocksCacheEighth  = 5
	rocksDirectEighth = 6
)

func fluxkvQuota(memory int64) int64 { return memory - min(fluxkvHeap, memory/4) }

// openToRead opens a store that is there.
func (r *reading) openToRead() (store, error) {
	switch r.engine {
	case "fluxkv":
		o := lsm.Options{NonDurable: true, MemQuota: fluxkvQuota(r.memory), WriteCache: fluxkvWriteCache}
		if r.valueSize > fluxkvInline {
			// Tables have keys and addresses only, of 1 KB documents a fortieth of
			// the bytes: a quarter of the memory is theirs.
			o.DocumentCacheBytes = (o.MemQuota - fluxkvWriteCache - fluxkvBuffers) / 4 * 3
		}
		db, err := lsm.Open(r.dir, o)
		if err != nil {
			return nil, err
		}
		return &fluxkvStore{db: db}, nil
	case "pebble":
		o := &pebble.Options{
			FormatMajorVersion: pebble.FormatNewest, ErrorIfNotExists: true, MemTableSize: peerMemtable, Logger: silent{},
			CacheSize: r.memory / 8 * pebbleCacheEighth,
		}
		o.Levels[0].FilterPolicy = bloom.FilterPolicy(10) // and all levels below
		db, err := pebble.Open(r.dir, o)
		if err != nil {
			return nil, err
		}
		return &pebbleStore{db}, nil
	}
	return nil, fmt.Errorf("engine %q: want fluxkv, pebble, rocksdb or rocksdb-direct", r.engine)
}

// run warms up and measures. Figures come only when every document was found.
func (r *reading) run() (f readFigures, err error) {
	if r.group != nil {
		if err := r.group.join(os.Getpid()); err != nil {
			return f, err
		}
	}
	if strings.HasPrefix(r.engine, "rocksdb") {
		f, err = r.runRocksDB()
	} else {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(r.memory / 8 * 7))
		f, err = r.runEmbedded()
	}
	if err == nil && r.group != nil {
		f.GroupPeak, err = r.group.peak()
	}
	return f, err
}

func (r *reading) runEmbedded() (f readFigures, err error) {
	s, err := r.openToRead()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// What opening started ends first.
	if _, err := settle(s); err != nil {
		return f, err
	}
	var stop atomic.Bool
	counts := make([]paddedCount, r.goroutines)
	errs := make([]error, r.goroutines)
	var wg sync.WaitGroup
	for i := range counts {
		wg.Go(func() { errs[i] = r.getSome(s, uint64(i), &counts[i].n, &stop) })
	}
	sum := func() (n int64) {
		for i := range counts {
			n += counts[i].n.Load()
		}
		return n
	}
	time.Sleep(r.warmup)
	looks := readLooks{dir: r.dir, pid: os.Getpid()}
	before, first := sum(), time.Now()
	err = looks.look()
	time.Sleep(r.runtime)
	f.Gets, f.Seconds = sum()-before, time.Since(first).Seconds()
	err = errors.Join(err, looks.look())
	stop.Store(true)
	wg.Wait()
	if err := errors.Join(append(errs, err)...); err != nil {
		return f, err
	}
	looks.fill(&f)
	return f, nil
}

// paddedCount is a counter that shares its cache line with no other one.
type paddedCount struct {
	n atomic.Int64
	_ [120]byte
}

// getSome is one goroutine.
func (r *reading) getSome(s store, seed uint64, n *atomic.Int64, stop *atomic.Bool) error {
	random := rand.New(rand.NewPCG(2, seed))
	key, want := make([]byte, r.keyBytes), make([]byte, r.valueSize)
	var got []byte
	for !stop.Load() {
		i := random.Uint64N(r.documents)
		putKey(key, i)
		var ok bool
		var err error
		got, ok, err = s.get(got[:0], key)
		switch {
		case err != nil:
			return err
		case !ok || len(got) != r.valueSize:
			stop.Store(true)
			return fmt.Errorf("document %d (%s): found %v, %d bytes", i, key, ok, len(got))
		}
		// Comparing each would be a good part of the processor time.
		if i%64 == 0 {
			if putValue(want, i); !bytes.Equal(got, want) {
				stop.Store(true)
				return fmt.Errorf("document %d (%s) has another value", i, key)
			}
		}
		n.Add(1)
	}
	return nil
}

// readLooks are two looks at what counts reads of a process.
type readLooks struct {
	dir    string
	pid    int
	device []bench.DeviceIO
	io     []bench.IO
	cpu    []time.Duration
	memory bench.Memory
}

func (l *readLooks) look() error {
	var errs [4]error
	var d bench.DeviceIO
	var moved bench.IO
	var cpu time.Duration
	cpu, errs[0] = bench.ProcessCPU(l.pid)
	d, errs[1] = bench.DeviceOf(l.dir)
	moved, errs[2] = bench.ProcessIO(l.pid)
	l.memory, errs[3] = bench.ProcessMemory(l.pid)
	l.device, l.io, l.cpu = append(l.device, d), append(l.io, moved), append(l.cpu, cpu)
	return errors.Join(errs[:]...)
}

// fill sets what follows from the looks.
func (l *readLooks) fill(f *readFigures) {
	f.Device, f.ReadBytes = l.device[1].Sub(l.device[0]), l.io[1].ReadBytes-l.io[0].ReadBytes
	f.CPUSeconds, f.Resident = (l.cpu[1] - l.cpu[0]).Seconds(), l.memory.Peak
}

// rocksRead are the flags of a run that warms up first.
func (r *reading) rocksRead() []string {
	eighths, direct := int64(rocksCacheEighth), "--use_direct_reads=0"
	if r.engine == "rocksdb-direct" {
		eighths, direct = rocksDirectEighth, "--use_direct_reads=1"
	}
	flags := []string{
		"--db=" + filepath.Join(r.dir, "db"), "--use_existing_db=1",
		fmt.Sprintf("--num=%d", r.documents), fmt.Sprintf("--key_size=%d", r.keyBytes), fmt.Sprintf("--value_size=%d", r.valueSize),
		fmt.Sprintf("--write_buffer_size=%d", peerMemtable), "--bloom_bits=10", "--compression_type=none", "--seed=2",
		fmt.Sprintf("--cache_size=%d", r.memory/8*eighths), direct,
		fmt.Sprintf("--threads=%d", r.goroutines), fmt.Sprintf("--duration=%d", max(int(r.runtime/time.Second), 1)),
		"--benchmarks=readrandom,readrandom",
	}
	return append(flags, r.extra...)
}

// runRocksDB runs readrandom twice for the same time: the first one warms up.
func (r *reading) runRocksDB() (f readFigures, err error) {
	// The kernel ends db_bench with the thread that started it.
	runtime.LockOSThread()
	cmd := exec.Command(r.program, r.rocksRead()...)
	stderr := &lastBytes{}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return f, err
	}
	if err := cmd.Start(); err != nil {
		return f, err
	}
	looks := readLooks{dir: r.dir, pid: cmd.Process.Pid}
	var results []rocksReads
	err = eachRocksRead(out, func(x rocksReads) error {
		results = append(results, x)
		return looks.look()
	})
	if err != nil {
		_ = cmd.Process.Kill() // may have ended
	}
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return f, fmt.Errorf("db_bench: %w: %s", err, stderr.b)
	}
	if len(results) != 2 {
		return f, fmt.Errorf("db_bench: %d results of readrandom, want 2", len(results))
	}
	for _, x := range results {
		if x.found != x.asked || x.asked == 0 {
			return f, fmt.Errorf("db_bench found %d of %d documents", x.found, x.asked)
		}
	}
	f.Gets, f.Seconds = results[1].gets, results[1].seconds
	looks.fill(&f)
	return f, nil
}

// rocksReads is one result of readrandom. What was found is known of one of its
// threads only.
type rocksReads struct {
	gets         int64 // of all threads
	asked, found int64 // of one
	seconds      float64
}

var rocksReadResult = regexp.MustCompile(`^readrandom\s*:.*ops/sec ([0-9.]+) seconds (\d+) operations;.*\((\d+) of (\d+) found\)`)

// eachRocksRead calls do for each result in the output of db_bench as soon as it
// is there.
func eachRocksRead(in io.Reader, do func(rocksReads) error) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		m := rocksReadResult.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		var x rocksReads
		var errs [4]error
		x.seconds, errs[0] = strconv.ParseFloat(m[1], 64)
		x.gets, errs[1] = strconv.ParseInt(m[2], 10, 64)
		x.found, errs[2] = strconv.ParseInt(m[3], 10, 64)
		x.asked, errs[3] = strconv.ParseInt(m[4], 10, 64)
		if err := errors.Join(append(errs[:], do(x))...); err != nil {
			return err
		}
	}
	return lines.Err()
}
