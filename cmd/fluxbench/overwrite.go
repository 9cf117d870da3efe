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

// overwrite measures what a server writes, and what its directory takes, while
// all of its data is overwritten.
func overwrite(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench overwrite", pflag.ContinueOnError)
	var o bench.OverwriteOptions
	var keyFormat string
	var valueBytes int
	var asJSON bool
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
	flags.StringVar(&keyFormat, "key-format", "hex", "hex (index through a bijective mix) or decimal (dense)")
	flags.IntVar(&valueBytes, "value-size", 1024, "bytes of a value")
	flags.Float64Var(&r.Zipf, "zipf", 0, "skew of the choice of keys: weight of rank r is 1/r^zipf; 0 is uniform")
	flags.Uint64Var(&r.Seed, "seed", 1, "seed of the sequence of keys")
	flags.Float64Var(&o.Times, "times", 2, "how often the data is overwritten")
	flags.IntVar(&o.Windows, "windows", 8, "parts of the run that get a row each, an even number")
	flags.DurationVar(&o.Quiet, "quiet", 2*time.Second, "time without work in the background after which a store has settled")
	flags.DurationVar(&o.SettleTimeout, "settle-timeout", 15*time.Minute, "bound of the waits for that")
	flags.BoolVar(&o.SkipIdle, "skip-idle", false, "do not wait for what an idle store does")
	flags.BoolVar(&asJSON, "json", false, "print the rows as JSON, at the end")
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	r.KeyFormat, r.ValueBytes = bench.KeyFormat(keyFormat), valueBytes
	err := o.Validate()
	// In Options zero is the default.
	for name, zero := range map[string]bool{
		"conns": r.Conns == 0, "pipeline": r.Pipeline == 0, "threads": r.Threads == 0, "key-size": r.KeyBytes == 0, "keys": r.Keys == 0,
		"value-size": valueBytes <= 0, "times": o.Times == 0, "windows": o.Windows == 0, "quiet": o.Quiet == 0, "settle-timeout": o.SettleTimeout == 0,
	} {
		if zero {
			err = errors.Join(err, fmt.Errorf("--%s: want more than 0", name))
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench overwrite: %v\n", err)
		return exitUsage
	}
	if !asJSON {
		err = bench.WriteOverwriteHeader(stdout)
		o.OnRow = func(row *bench.OverwriteRow) {
			if row.Name == "half" {
				fmt.Fprintln(stdout)
				_ = row.WriteSummary(stdout)
			} else {
				_ = row.WriteText(stdout)
			}
		}
	}
	if err == nil {
		var rows []bench.OverwriteRow
		rows, err = bench.Overwrite(ctx, o)
		if asJSON && err == nil {
			e := json.NewEncoder(stdout)
			e.SetIndent("", "  ")
			err = e.Encode(rows)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench overwrite: %v\n", err)
		return exitFailed
	}
	return exitClean
}
