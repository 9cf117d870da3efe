package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"fluxkv/bench"
)

// overwriteFlags are those of commands that overwrite a server on this machine.
type overwriteFlags struct {
	keyFormat  string
	valueBytes int
	json       bool
}

func (f *overwriteFlags) register(flags *pflag.FlagSet, o *bench.OverwriteOptions, times float64) {
	r := &o.Run
	flags.StringVar(&r.Addr, "addr", "127.0.0.1:11210", "server, host:port or unix:PATH")
	flags.StringVar(&o.StatsURL, "stats", "", "address of its /stats (required)")
	flags.IntVar(&r.ServerPID, "server-pid", 0, "its process (required)")
	flags.StringVar(&o.Dir, "dir", "", "its directory, empty but for what a new store has (required)")
	flags.IntVar(&r.Conns, "conns", 16, "connections")
	flags.IntVar(&r.Pipeline, "pipeline", 64, "open requests a connection")
	flags.IntVar(&r.Threads, "threads", 1, "event loops of the client, each a thread")
	flags.Uint64Var(&r.Keys, "keys", 1_000_000, "number of keys")
	flags.IntVar(&r.KeyBytes, "key-size", 12, "bytes of a key")
	flags.StringVar(&f.keyFormat, "key-format", "hex", "hex (index through a bijective mix) or decimal (dense)")
	flags.IntVar(&f.valueBytes, "value-size", 1024, "bytes of a value")
	flags.Float64Var(&r.Zipf, "zipf", 0, "skew of the choice of keys: weight of rank r is 1/r^zipf; 0 is uniform")
	flags.Uint64Var(&r.Seed, "seed", 1, "seed of the sequence of keys")
	flags.Float64Var(&o.Times, "times", times, "how often the data is overwritten")
	flags.DurationVar(&o.Quiet, "quiet", 2*time.Second, "time without work in the background after which a store has settled")
	flags.DurationVar(&o.SettleTimeout, "settle-timeout", 15*time.Minute, "bound of the waits for that")
	flags.BoolVar(&f.json, "json", false, "print everything as JSON, at the end")
}

// set puts into o what needs a conversion, and names flags that are zero and
// must not be: in options zero is the default.
func (f *overwriteFlags) set(o *bench.OverwriteOptions, zeros map[string]bool) (err error) {
	r := &o.Run
	r.KeyFormat, r.ValueBytes = bench.KeyFormat(f.keyFormat), f.valueBytes
	for name, zero := range map[string]bool{
		"conns": r.Conns == 0, "pipeline": r.Pipeline == 0, "threads": r.Threads == 0, "key-size": r.KeyBytes == 0, "keys": r.Keys == 0,
		"value-size": f.valueBytes <= 0, "times": o.Times == 0, "quiet": o.Quiet == 0, "settle-timeout": o.SettleTimeout == 0,
	} {
		zeros[name] = zero
	}
	for name, zero := range zeros {
		if zero {
			err = errors.Join(err, fmt.Errorf("--%s: want more than 0", name))
		}
	}
	return err
}

// rows prints the head of the table, and each row as soon as it is there.
func (f *overwriteFlags) rows(o *bench.OverwriteOptions, stdout io.Writer) error {
	if f.json {
		return nil
	}
	o.OnRow = func(row *bench.OverwriteRow) {
		if row.Name == "half" {
			fmt.Fprintln(stdout)
			_ = row.WriteSummary(stdout)
		} else {
			_ = row.WriteText(stdout)
		}
	}
	return bench.WriteOverwriteHeader(stdout)
}

func asJSON(w io.Writer, x any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(x)
}

// overwrite measures what a server writes, and what its directory takes, while
// all of its data is overwritten.
func overwrite(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench overwrite", pflag.ContinueOnError)
	var o bench.OverwriteOptions
	var f overwriteFlags
	f.register(flags, &o, 2)
	flags.IntVar(&o.Windows, "windows", 8, "parts of the run that get a row each, an even number")
	flags.BoolVar(&o.SkipIdle, "skip-idle", false, "do not wait for what an idle store does")
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	err := f.set(&o, map[string]bool{"windows": o.Windows == 0})
	if err = errors.Join(o.Validate(), err); err != nil {
		fmt.Fprintf(stderr, "fluxbench overwrite: %v\n", err)
		return exitUsage
	}
	if err = f.rows(&o, stdout); err == nil {
		var rows []bench.OverwriteRow
		rows, err = bench.Overwrite(ctx, o)
		if f.json && err == nil {
			err = asJSON(stdout, rows)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench overwrite: %v\n", err)
		return exitFailed
	}
	return exitClean
}

// latency measures how long SETs take while a server is overwritten at a share of
// its highest rate.
func latency(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench latency", pflag.ContinueOnError)
	var o bench.LatencyOptions
	var f overwriteFlags
	f.register(flags, &o.OverwriteOptions, 1)
	flags.DurationVar(&o.MaxRuntime, "max-runtime", time.Minute, "time in which the highest rate is measured")
	flags.Float64Var(&o.Share, "share", 0.5, "share of the highest rate at which latencies are measured, up to 1")
	flags.DurationVar(&o.Runtime, "runtime", 3*time.Minute, "time in which latencies are measured")
	flags.DurationVar(&o.Warmup, "warmup", 15*time.Second, "time at that rate before")
	flags.IntVar(&o.Burst, "burst", 8, "requests that become due together, on one connection")
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	err := f.set(&o.OverwriteOptions, map[string]bool{
		"max-runtime": o.MaxRuntime == 0, "share": o.Share == 0, "runtime": o.Runtime == 0, "warmup": o.Warmup == 0, "burst": o.Burst == 0,
	})
	if err = errors.Join(o.Validate(), err); err != nil {
		fmt.Fprintf(stderr, "fluxbench latency: %v\n", err)
		return exitUsage
	}
	if err = f.rows(&o.OverwriteOptions, stdout); err == nil {
		var r *bench.LatencyReport
		r, err = bench.OverwriteLatency(ctx, o)
		switch {
		case err != nil:
		case f.json:
			err = asJSON(stdout, r)
		default:
			fmt.Fprintln(stdout)
			err = r.WriteText(stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench latency: %v\n", err)
		return exitFailed
	}
	return exitClean
}
