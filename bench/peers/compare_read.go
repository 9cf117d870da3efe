package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fluxkv/bench"
)

// contender is an engine with what it runs with.
type contender struct {
	name   string
	engine string
	procs  int // GOMAXPROCS; 0: no Go
}

// store is the directory that a contender reads; some share one.
func (c *contender) store() string {
	engine, _, _ := strings.Cut(c.engine, "-")
	return engine
}

// contenders returns those of the engines named, with the counts of processors
// that each is tried with. Reads of Go programs that go to the page cache, or past
// it by system calls that block, are better with more of them.
func contenders(engines []string, cores int) (all []contender, err error) {
	for _, engine := range engines {
		var procs []int
		switch engine {
		case "fluxkv":
			procs = []int{cores, cores + 1}
		case "pebble":
			procs = []int{cores, 16}
		case "rocksdb", "rocksdb-direct":
			procs = []int{0}
		default:
			return nil, fmt.Errorf("engine %q: want some of fluxkv, pebble, rocksdb and rocksdb-direct", engine)
		}
		for _, n := range slices.Compact(procs) {
			c := contender{name: engine, engine: engine, procs: n}
			if n > 0 {
				c.name += fmt.Sprintf(", %d procs", n)
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// readTargets are what fluxkv is to reach: a ratio to the best of the others, by
// goroutines, or a share of what fio gets at that depth.
var readTargets = map[int]float64{1: 1.1, 8: 1.3, 64: 1.5}

const fioTarget = 0.9

// comparingReads is one comparison: a data set, a limit of memory.
type comparingReads struct {
	dir        string
	documents  uint64
	valueSize  int
	memory     int64
	rounds     int
	goroutines []int
	warmup     time.Duration
	runtime    time.Duration
	loadMax    time.Duration
	group      *memoryGroup
	groupDir   string
	program    string
	contenders []contender
	fio        bool
	out        io.Writer
	self       string
	invalid    int // runs
	missed     int // targets
}

// readSlack is what a run takes beside warming up and measuring, at most: opening,
// settling and ending.
const readSlack = 2 * time.Minute

// bound is how long everything may take, and usual how long it should: without
// waiting for anything that hangs.
func (c *comparingReads) bound() (usual, most time.Duration) {
	var stores []string
	for i := range c.contenders {
		if s := c.contenders[i].store(); !slices.Contains(stores, s) {
			stores = append(stores, s)
		}
	}
	runs := time.Duration(c.rounds * len(c.goroutines))
	each := c.warmup + c.runtime
	if slices.Contains(stores, "rocksdb") {
		each = max(each, 2*c.runtime)
	}
	n := runs * time.Duration(len(c.contenders))
	usual, most = n*(each+5*time.Second), n*(each+readSlack)+time.Duration(len(stores))*c.loadMax
	if c.fio {
		usual, most = usual+runs*(c.runtime+time.Second), most+runs*(c.runtime+readSlack)
	}
	return usual, most
}

// compareRead loads every engine once, and reads each by turns, every run in a
// process of its own with an empty page cache and a limit of memory.
func compareRead(args []string) error {
	c := comparingReads{out: os.Stdout, memory: 600 << 20}
	var engines, counts, group string
	flags := flag.NewFlagSet("peers compare-read", flag.ExitOnError)
	flags.StringVar(&c.dir, "dir", "", "directory that stores are made in, and removed from")
	flags.Uint64Var(&c.documents, "documents", 3_000_000, "number of documents")
	flags.IntVar(&c.valueSize, "value-size", 1024, "bytes of a value")
	flags.Func("memory", "memory of a process that reads, page cache included, as 600MiB (the default)", bytesInto(&c.memory))
	flags.StringVar(&group, "cgroup", "", "directory of an empty control group that holds processes to it; without it every run is invalid")
	flags.IntVar(&c.rounds, "rounds", 2, "runs of each")
	flags.StringVar(&counts, "goroutines", "1,8,64", "goroutines or threads that read")
	flags.DurationVar(&c.warmup, "warmup", 8*time.Second, "time before anything counts; for db_bench it is --runtime")
	flags.DurationVar(&c.runtime, "runtime", 8*time.Second, "time that counts, whole seconds")
	flags.DurationVar(&c.loadMax, "load-max", 15*time.Minute, "the longest that one load may take")
	flags.StringVar(&engines, "engines", "fluxkv,pebble,rocksdb,rocksdb-direct", "the engines, by turns; fluxkv is the one that is compared")
	flags.StringVar(&c.program, "db-bench", "db_bench", "the program that drives RocksDB")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The processes started here end with this one, even when it is killed;
	// the kernel ties that to the thread that starts them.
	runtime.LockOSThread()
	var err error
	for _, text := range strings.Split(counts, ",") {
		n, e := strconv.Atoi(text)
		if e != nil || n < 1 || n > 4096 {
			return fmt.Errorf("goroutines %q: want numbers of 1 to 4096", counts)
		}
		c.goroutines = append(c.goroutines, n)
	}
	if c.dir == "" || c.documents < 1 || c.valueSize < 1 || c.memory < 16<<20 || c.rounds < 1 || c.warmup < 0 || c.runtime < time.Second || c.loadMax <= 0 || flags.NArg() > 0 {
		return errors.New("want --dir, documents and values, --memory of 16 MiB or more, at least 1 round and a --runtime of 1s, and no arguments")
	}
	if c.contenders, err = contenders(strings.Split(engines, ","), runtime.NumCPU()); err != nil {
		return err
	}
	if group != "" {
		c.groupDir = group
		if c.group, err = openMemoryGroup(group); err == nil {
			err = c.group.limit(c.memory)
		}
		if err != nil {
			return err
		}
	}
	if c.self, err = os.Executable(); err != nil {
		return err
	}
	// db_bench writes whole batches only.
	c.documents = max(c.documents/loadBatch, 1) * loadBatch
	c.fio = haveFio()
	return c.run()
}

func (c *comparingReads) run() error {
	usual, most := c.bound()
	held := "by a control group"
	if c.group == nil {
		held = "by nothing, so no run counts: there is no --cgroup"
	}
	fmt.Fprintf(c.out, "%d documents of %d B with keys of %d B, %.0f MB; memory %d MiB, held %s; %d rounds; about %v after loading, at most %v\n\n", c.documents,
		c.valueSize, compareKeyBytes, float64(c.documents)*float64(c.valueSize+compareKeyBytes)/1e6, c.memory>>20, held, c.rounds,
		usual.Round(time.Second), most.Round(time.Second))
	defer c.clean()
	loaded := map[string]bool{}
	for i := range c.contenders {
		name := c.contenders[i].store()
		if loaded[name] {
			continue
		}
		loaded[name] = true
		began := time.Now()
		if err := c.load(name); err != nil {
			return fmt.Errorf("load of %s: %w", name, err)
		}
		disk, err := bench.DirectoryBytes(filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%s: loaded in %.0f s, %.0f MB on disk\n", name, time.Since(began).Seconds(), float64(disk)/1e6)
	}
	file := filepath.Join(c.dir, "fio")
	if c.fio {
		if err := fioFile(file, int64(c.documents)*int64(c.valueSize+compareKeyBytes)); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(c.out, "no fio: nothing to compare with the device (Debian's package fio)")
	}
	fmt.Fprintln(c.out)
	readHead(c.out)
	runs := map[string]map[int][]readFigures{}
	fio := map[int][]float64{}
	var failed []string
	for _, goroutines := range c.goroutines {
		for round := range c.rounds {
			if c.fio {
				f, err := fioReads(file, goroutines, c.runtime)
				if err != nil {
					return err
				}
				fio[goroutines] = append(fio[goroutines], f.Rate)
				fmt.Fprintf(c.out, "| %d fio, io_uring | %d | %.0f | %.1f | 1.000 | 4096 | 4096 | - | p50 %.0f us |\n", round+1, goroutines, f.Rate, f.CPUSeconds*1e6/float64(f.Reads), f.P50)
			}
			for i := range c.contenders {
				who := &c.contenders[i]
				if slices.Contains(failed, who.name) {
					continue
				}
				f, err := c.read(who, goroutines)
				if err != nil {
					fmt.Fprintf(c.out, "| %d %s | %d | - | - | - | - | - | - | INVALID: %v |\n", round+1, who.name, goroutines, err)
					failed = append(failed, who.name)
					c.invalid++
					continue
				}
				trouble := c.judge(&f)
				if trouble != "" {
					c.invalid++
					trouble = "INVALID: " + trouble
				} else {
					trouble = "valid"
				}
				readRow(c.out, fmt.Sprintf("%d %s", round+1, who.name), goroutines, f, trouble)
				if trouble != "valid" {
					continue // medians are of runs that count
				}
				if runs[who.name] == nil {
					runs[who.name] = map[int][]readFigures{}
				}
				runs[who.name][goroutines] = append(runs[who.name][goroutines], f)
			}
		}
	}
	fmt.Fprintln(c.out)
	c.medians(runs, fio)
	if c.invalid > 0 || c.missed > 0 {
		return fmt.Errorf("%d runs are invalid, %d targets missed", c.invalid, c.missed)
	}
	return nil
}

// clean removes what this comparison made.
func (c *comparingReads) clean() {
	for i := range c.contenders {
		if err := removeStore(filepath.Join(c.dir, c.contenders[i].store())); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if err := removeFile(filepath.Join(c.dir, "fio")); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// load fills the store of an engine.
func (c *comparingReads) load(name string) error {
	_, err := c.child(c.loadMax, nil, "load", "--engine", name, "--dir", filepath.Join(c.dir, name), "--documents", fmt.Sprint(c.documents),
		"--key-size", fmt.Sprint(compareKeyBytes), "--value-size", fmt.Sprint(c.valueSize), "--writers", "8", "--db-bench", c.program)
	return err
}

// read is one run.
func (c *comparingReads) read(who *contender, goroutines int) (f readFigures, err error) {
	store := filepath.Join(c.dir, who.store())
	if err := bench.DropCached(store); err != nil {
		return f, err
	}
	args := []string{"read", "--engine", who.engine, "--dir", store, "--documents", fmt.Sprint(c.documents), "--key-size", fmt.Sprint(compareKeyBytes),
		"--value-size", fmt.Sprint(c.valueSize), "--goroutines", fmt.Sprint(goroutines), "--memory", fmt.Sprint(c.memory),
		"--warmup", c.warmup.String(), "--runtime", c.runtime.String(), "--db-bench", c.program}
	if c.group != nil {
		if err := c.group.fresh(); err != nil {
			return f, err
		}
		args = append(args, "--cgroup", c.groupDir)
	}
	var env []string
	if who.procs > 0 {
		env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", who.procs))
	}
	out, err := c.child(max(c.warmup, c.runtime)+c.runtime+readSlack, env, args...)
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(out, &f)
}

// child runs this program again.
func (c *comparingReads) child(bound time.Duration, env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.self, args...)
	stderr := &lastBytes{}
	cmd.Stderr, cmd.Env = stderr, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// What it started may hold its output for a moment longer.
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("not done in %v", bound)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(stderr.b)))
	}
	return out, nil
}

// judge says what keeps a run from counting.
func (c *comparingReads) judge(f *readFigures) string {
	switch {
	case f.Gets == 0:
		return "nothing was read"
	case !bench.Agree(f.Device.ReadBytes, f.ReadBytes, bench.BytesBeside(f.Gets)):
		return fmt.Sprintf("the device read %d bytes, of which the process %d", f.Device.ReadBytes, f.ReadBytes)
	case c.group == nil:
		return "no limit of memory"
	case f.GroupPeak == 0:
		return "the control group had nothing in it"
	}
	return ""
}

func (f *readFigures) rate() float64 { return float64(f.Gets) / f.Seconds }

var readColumns = []string{
	"run", "goroutines", "GETs/s", "CPU us/GET", "device reads/GET", "device B/GET", "process B/GET", "MiB resident; in the group", "verdict",
}

func readHead(out io.Writer) {
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(readColumns, " | "), strings.Repeat("---|", len(readColumns)))
}

// readRow prints one run.
func readRow(out io.Writer, name string, goroutines int, f readFigures, verdict string) {
	gets := float64(max(f.Gets, 1))
	fmt.Fprintf(out, "| %s | %d | %.0f | %.1f | %.3f | %.0f | %.0f | %d; %d | %s |\n", name, goroutines, f.rate(), f.CPUSeconds*1e6/gets,
		float64(f.Device.Reads)/gets, float64(f.Device.ReadBytes)/gets, float64(f.ReadBytes)/gets, f.Resident>>20, f.GroupPeak>>20, verdict)
}

// medians prints the median rate of the valid runs of each contender, and what those of fluxkv are
// of the best of the others and of fio. The better of two counts of processors
// stands for an engine.
func (c *comparingReads) medians(runs map[string]map[int][]readFigures, fio map[int][]float64) {
	names := []string{"median GETs/s"}
	for i := range c.contenders {
		names = append(names, c.contenders[i].name)
	}
	names = append(names, "fio", "fluxkv / best peer", "fluxkv / fio", "verdict")
	fmt.Fprintf(c.out, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, goroutines := range c.goroutines {
		cells := []string{fmt.Sprint(goroutines)}
		var flux, peer, device float64
		for i := range c.contenders {
			who := &c.contenders[i]
			var rates []float64
			for _, f := range runs[who.name][goroutines] {
				rates = append(rates, f.rate())
			}
			if len(rates) == 0 {
				cells = append(cells, none)
				continue
			}
			x := median(rates)
			cells = append(cells, fmt.Sprintf("%.0f", x))
			if who.engine == "fluxkv" {
				flux = max(flux, x)
			} else {
				peer = max(peer, x)
			}
		}
		if rates := fio[goroutines]; len(rates) > 0 {
			device = median(rates)
		}
		ratio := func(x float64) string {
			if x == 0 || flux == 0 {
				return none
			}
			return fmt.Sprintf("%.2f", flux/x)
		}
		deviceCell := none
		if device > 0 {
			deviceCell = fmt.Sprintf("%.0f", device)
		}
		verdict := c.reached(goroutines, flux, peer, device)
		if strings.HasPrefix(verdict, "MISSED") {
			c.missed++
		}
		cells = append(cells, deviceCell, ratio(peer), ratio(device), verdict)
		fmt.Fprintf(c.out, "| %s |\n", strings.Join(cells, " | "))
	}
}

// reached says whether a rate is what it is to be.
func (c *comparingReads) reached(goroutines int, flux, peer, device float64) string {
	target, ok := readTargets[goroutines]
	if !ok {
		return none
	}
	if flux == 0 {
		return "no valid run of fluxkv"
	}
	want := fmt.Sprintf("%.1f x the best peer or %.1f of fio", target, fioTarget)
	switch {
	case peer > 0 && flux >= target*peer, device > 0 && flux >= fioTarget*device:
		return "reached: " + want
	case peer == 0:
		return "no peer: " + want
	}
	return "MISSED: " + want
}
