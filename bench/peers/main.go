// Peers times what fluxkv is compared with, and its own engine beside it. It
// is a module of its own, so that fluxkv itself depends on none of them.
//
//	peers restart --engine pebble --dir D --value-size N --documents M
//	peers open --engine pebble --dir D --value-size N --documents M --verify
//	peers load --engine fluxkv --dir D --value-size N --documents M --writers W
//	peers compare --dir D --size 1GB --rounds 3
//	peers overwrite --engine rocksdb --dir D --value-size N --documents M --writers W --times T
//	peers compare-overwrite --dir D --size 1GB --rounds 2
//	peers read --engine pebble --dir D --value-size N --documents M --goroutines G --memory BYTES --cgroup DIR
//	peers compare-read --dir D --value-size N --documents M --memory 600MiB --cgroup DIR
//
// restart loads the documents into a new directory, syncs the log, and exits
// without closing, as a killed process would. open prints the seconds that
// opening took; it may change the directory, so each run needs a copy. load
// writes batches until all is acknowledged, then until all is in tables, and
// prints what that took as JSON. compare runs load in processes of their own,
// the engines by turns, and prints tables of medians. overwrite loads, and then
// overwrites documents at random, and compare-overwrite compares that. read reads
// documents of a store that is there, at random, and compare-read compares that.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// load names the documents: keys and values follow from the index alone.
type load struct {
	dir       string
	documents uint64
	keyBytes  int
	valueSize int
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	// No clean end: what an engine writes when it closes is never there after
	// a kill.
	os.Exit(0)
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a command: restart, open, load, compare, overwrite, compare-overwrite, read or compare-read")
	}
	command := args[0]
	switch command {
	case "compare":
		return compare(args[1:])
	case "compare-overwrite":
		return compareOverwrite(args[1:])
	case "compare-read":
		return compareRead(args[1:])
	}
	var l load
	var w writing
	var times float64
	var program, extra, group string
	var r reading
	var verify bool
	flags := flag.NewFlagSet("peers "+command, flag.ExitOnError)
	flags.StringVar(&w.engine, "engine", "pebble", "the engine: pebble; for load, overwrite and read also fluxkv and rocksdb, for load and overwrite pebble-snappy, for read rocksdb-direct")
	flags.StringVar(&l.dir, "dir", "", "directory of the store; all but open and read want it absent or empty")
	flags.Uint64Var(&l.documents, "documents", 1000, "number of documents")
	flags.IntVar(&l.keyBytes, "key-size", keyBytesMax, "bytes of a key, an even number up to 16")
	flags.IntVar(&l.valueSize, "value-size", 1024, "bytes of a value")
	flags.BoolVar(&verify, "verify", false, "open: compare some of the documents afterwards")
	flags.IntVar(&w.writers, "writers", 1, "load, overwrite: goroutines that write")
	flags.IntVar(&w.batch, "batch", loadBatch, "load, overwrite: documents of a batch; overwrite loads in batches of 128")
	flags.Int64Var(&w.memory, "memory", 64<<20, "load, overwrite: bytes of all memtables; read: bytes that the process may take")
	flags.Float64Var(&times, "times", 1, "overwrite: how often the data is overwritten")
	flags.IntVar(&r.goroutines, "goroutines", 1, "read: goroutines or threads that read")
	flags.DurationVar(&r.warmup, "warmup", 0, "read: time before anything counts")
	flags.DurationVar(&r.runtime, "runtime", time.Second, "read: time that counts")
	flags.StringVar(&group, "cgroup", "", "read: directory of a control group to join")
	flags.StringVar(&program, "db-bench", "db_bench", "load, overwrite, read: the program that drives RocksDB")
	flags.StringVar(&extra, "db-bench-flags", "", "overwrite, read: more flags of it, separated by spaces")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case command != "load" && command != "overwrite" && command != "read" && w.engine != "pebble":
		return fmt.Errorf("engine %q: want pebble", w.engine)
	case l.dir == "":
		return fmt.Errorf("--dir is missing")
	case l.documents == 0:
		return fmt.Errorf("documents 0: want at least 1")
	case l.keyBytes < 2 || l.keyBytes > keyBytesMax || l.keyBytes%2 != 0 || l.documents-1 > ^uint64(0)>>(64-4*l.keyBytes):
		return fmt.Errorf("key size %d: want an even number up to %d whose digits tell %d documents apart", l.keyBytes, keyBytesMax, l.documents)
	case l.valueSize < 0 || l.valueSize > 1<<20:
		return fmt.Errorf("value size %d: want 0 to %d", l.valueSize, 1<<20)
	case w.writers < 1 || w.batch < 1 || w.memory < 2<<20:
		return fmt.Errorf("%d writers, batches of %d, %d bytes of memory: want at least 1, 1 and 2 MiB", w.writers, w.batch, w.memory)
	}
	if command == "overwrite" && !(times > 0 && times <= 1000) {
		return fmt.Errorf("times %v: want more than 0, up to 1000", times)
	}
	if left, _ := filepath.Glob(filepath.Join(l.dir, "*")); command != "open" && command != "read" && len(left) > 0 {
		return fmt.Errorf("%s is not empty", l.dir)
	}
	switch command {
	case "restart":
		return loadPebble(l)
	case "open":
		took, err := openPebble(l, verify)
		if err == nil {
			fmt.Printf("%.3f\n", took.Seconds())
		}
		return err
	case "read":
		if r.goroutines < 1 || r.warmup < 0 || r.runtime <= 0 {
			return fmt.Errorf("%d goroutines, %v after %v: want at least 1, and a time", r.goroutines, r.runtime, r.warmup)
		}
		r.load, r.engine, r.memory, r.program, r.extra = l, w.engine, w.memory, program, strings.Fields(extra)
		if group != "" {
			var err error
			if r.group, err = openMemoryGroup(group); err != nil {
				return err
			}
		}
		f, err := r.run()
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	case "load":
		w.load = l
		if w.engine == "rocksdb" {
			o := overwriting{writing: w, program: program, extra: strings.Fields(extra)}
			return o.loadRocksDB()
		}
		f, err := w.run()
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	case "overwrite":
		w.load = l
		o := overwriting{writing: w, times: times, program: program, extra: strings.Fields(extra)}
		f, err := o.run()
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	}
	return fmt.Errorf("command %q: want restart, open, load, compare, overwrite, compare-overwrite, read or compare-read", command)
}
