// Command fluxbench drives a memcached-protocol server and reports what it
// saw, and measures the disk beside it.
//
//	fluxbench run --addr 127.0.0.1:11210 --workload get --load --conns 112 --pipeline 128
//	fluxbench overwrite --addr 127.0.0.1:11210 --stats http://127.0.0.1:8080/stats --server-pid 4711 --dir data
//	fluxbench latency --addr 127.0.0.1:11210 --stats http://127.0.0.1:8080/stats --server-pid 4711 --dir data
//	fluxbench read --addr 127.0.0.1:11210 --stats http://127.0.0.1:8080/stats --server-pid 4711 --dir data
//	fluxbench settle --stats http://127.0.0.1:8080/stats
//	fluxbench drop --dir data
//	fluxbench device --dir /var/tmp --runtime 5s
//
// Exit status: 0 the figures are clean, 1 there is no report or it has
// troubles, 2 usage, 3 they are clean and miss a limit that was asked for.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"fluxkv/bench"
)

const usage = `usage: fluxbench run [flags]        drive a server and report rate, errors and percentiles
       fluxbench overwrite [flags]  overwrite all data of a local server and report what it writes for that
       fluxbench latency [flags]    overwrite at half of the highest rate and report how long SETs take
       fluxbench read [flags]       measure GETs of a local server at rest, and the device's reads for each
       fluxbench settle [flags]     wait until a server has nothing to do
       fluxbench drop [flags]       take a directory out of the page cache
       fluxbench device [flags]     time synced 4 KiB writes: the limit of durable writes
       fluxbench COMMAND --help     flags of a command
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitClean  = 0
	exitFailed = 1
	exitUsage  = 2
)

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "run":
		return run(ctx, args[1:], stdout, stderr)
	case "overwrite":
		return overwrite(ctx, args[1:], stdout, stderr)
	case "latency":
		return latency(ctx, args[1:], stdout, stderr)
	case "read":
		return read(ctx, args[1:], stdout, stderr)
	case "settle":
		return settle(ctx, args[1:], stdout, stderr)
	case "drop":
		return drop(args[1:], stdout, stderr)
	case "device":
		return device(ctx, args[1:], stdout, stderr)
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return exitClean
	}
	fmt.Fprintf(stderr, "fluxbench: unknown command %q\n%s", args[0], usage)
	return exitUsage
}

// report is what both commands print.
type report interface {
	WriteText(io.Writer) error
	WriteJSON(io.Writer) error
	WriteLine(io.Writer) error
}

// form holds the flags that choose how a report is printed.
type form struct{ json, line bool }

func (f *form) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	flags.BoolVar(&f.line, "line", false, "print the main figures as one tab-separated line: per_second p50_us p99_us server_us client_us load_per_second troubles")
}

func (f *form) print(w io.Writer, r report) error {
	switch {
	case f.json:
		return r.WriteJSON(w)
	case f.line:
		return r.WriteLine(w)
	}
	return r.WriteText(w)
}

// parse reads args; it returns an exit status and false when there is nothing
// to run.
func parse(flags *pflag.FlagSet, args []string, stdout, stderr io.Writer) (int, bool) {
	flags.SortFlags = false
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "usage: %s [flags]\n\n%s", flags.Name(), flags.FlagUsages())
		return exitClean, false
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", flags.Name(), err)
		return exitUsage, false
	}
	return 0, true
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench run", pflag.ContinueOnError)
	var o bench.Options
	var f form
	var workload, keyFormat string
	var valueBytes int
	flags.StringVar(&o.Addr, "addr", "127.0.0.1:11210", "server, host:port or unix:PATH")
	flags.StringVar(&workload, "workload", "get", "get, set, mixed or noop")
	flags.Float64Var(&o.GetShare, "get-share", 0.5, "share of GETs in mixed, 0 to 1")
	flags.IntVar(&o.Conns, "conns", 1, "connections")
	flags.IntVar(&o.Pipeline, "pipeline", 1, "open requests a connection")
	flags.IntVar(&o.Refill, "refill", 0, "answers of a window before it is filled again; 1 keeps it full, 0 is half of --pipeline")
	flags.IntVar(&o.Threads, "threads", 1, "event loops of the client, each a thread")
	flags.Uint64Var(&o.Keys, "keys", 1_000_000, "number of keys")
	flags.IntVar(&o.KeyBytes, "key-size", 16, "bytes of a key")
	flags.StringVar(&keyFormat, "key-format", "hex", "hex (index through a bijective mix) or decimal (dense)")
	flags.IntVar(&valueBytes, "value-size", 8, "bytes of a value")
	flags.Float64Var(&o.Zipf, "zipf", 0, "skew of the choice of keys: weight of rank r is 1/r^zipf; 0 is uniform")
	flags.DurationVar(&o.Runtime, "runtime", 5*time.Second, "time in which answers are counted; 0 with --load only loads")
	flags.Uint64Var(&o.Operations, "operations", 0, "end after so many requests instead of a time")
	flags.Float64Var(&o.Rate, "rate", 0, "requests a second of an open loop, sent when due; latencies count from then. 0: as fast as answers come")
	flags.IntVar(&o.Burst, "burst", 1, "requests that become due together, on one connection, with --rate")
	flags.DurationVar(&o.Warmup, "warmup", 0, "time before counting starts")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the sequence of keys")
	flags.BoolVar(&o.Load, "load", false, "first set every key once")
	flags.BoolVar(&o.Verify, "verify", false, "compare the bytes of every value read")
	flags.IntVar(&o.ServerPID, "server-pid", 0, "process of a local server, for CPU per operation")
	f.register(flags)
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	if o.Operations > 0 && !flags.Changed("runtime") {
		o.Runtime = 0
	}
	o.Workload, o.KeyFormat, o.ValueBytes = bench.Kind(workload), bench.KeyFormat(keyFormat), valueBytes
	// In Options zero is the default and a negative number is none.
	if valueBytes == 0 {
		o.ValueBytes = -1
	}
	if o.GetShare == 0 {
		o.GetShare = -1
	}
	err := o.Validate()
	for name, n := range map[string]int64{"conns": int64(o.Conns), "pipeline": int64(o.Pipeline), "threads": int64(o.Threads), "key-size": int64(o.KeyBytes), "keys": int64(o.Keys), "burst": int64(o.Burst)} {
		if n == 0 {
			err = errors.Join(err, fmt.Errorf("--%s 0: want at least 1", name))
		}
	}
	if valueBytes < 0 {
		err = errors.Join(err, fmt.Errorf("--value-size %d: want 0 or more", valueBytes))
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench run: %v\n", err)
		return exitUsage
	}
	r, err := bench.Run(ctx, o)
	if err == nil {
		err = f.print(stdout, r)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench run: %v\n", err)
		return exitFailed
	}
	if trouble := r.Trouble(); len(trouble) > 0 {
		fmt.Fprintf(stderr, "fluxbench run: THESE FIGURES ARE NOT CLEAN\n")
		for _, t := range trouble {
			fmt.Fprintf(stderr, "  %s\n", t)
		}
		return exitFailed
	}
	return exitClean
}

func device(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench device", pflag.ContinueOnError)
	var o bench.DeviceOptions
	var f form
	flags.StringVar(&o.Dir, "dir", "", "directory on the disk to measure (required); the file made there is removed")
	flags.DurationVar(&o.Runtime, "runtime", 5*time.Second, "time in which writes are counted")
	flags.Int64Var(&o.FileBytes, "file-size", 64<<20, "bytes of the file that is written over and over")
	f.register(flags)
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	if o.Dir == "" || o.Runtime <= 0 || o.FileBytes <= 0 {
		fmt.Fprintln(stderr, "fluxbench device: want --dir, and --runtime and --file-size above 0")
		return exitUsage
	}
	r, err := bench.Device(ctx, o)
	if err == nil {
		err = f.print(stdout, r)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench device: %v\n", err)
		return exitFailed
	}
	return exitClean
}
