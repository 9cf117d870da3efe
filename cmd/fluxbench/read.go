package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"fluxkv/bench"
)

// exitMissed says that figures are valid, and not what was asked for.
const exitMissed = 3

// read measures GETs of a local server: rate, processor time, and what the
// device reads for each.
func read(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench read", pflag.ContinueOnError)
	var o bench.ReadOptions
	var workload, lineFile string
	var valueBytes int
	var asJSON, head bool
	r := &o.Run
	flags.StringVar(&o.Name, "name", "", "name of the row")
	flags.StringVar(&r.Addr, "addr", "127.0.0.1:11210", "server, host:port or unix:PATH")
	flags.StringVar(&o.StatsURL, "stats", "", "address of its /stats (required)")
	flags.IntVar(&r.ServerPID, "server-pid", 0, "its process (required)")
	flags.StringVar(&o.Dir, "dir", "", "its directory (required)")
	flags.StringVar(&workload, "workload", "get", "get or noop")
	flags.IntVar(&r.Conns, "conns", 16, "connections")
	flags.IntVar(&r.Pipeline, "pipeline", 64, "open requests a connection")
	flags.IntVar(&r.Refill, "refill", 0, "answers of a window before it is filled again; 1 keeps it full, 0 is half of --pipeline")
	flags.IntVar(&r.Threads, "threads", 1, "event loops of the client, each a thread")
	flags.Uint64Var(&r.Keys, "keys", 1_000_000, "number of keys, all of them loaded")
	flags.IntVar(&r.KeyBytes, "key-size", 12, "bytes of a key")
	flags.IntVar(&valueBytes, "value-size", 1024, "bytes of a value")
	flags.Float64Var(&r.Zipf, "zipf", 0, "skew of the choice of keys: weight of rank r is 1/r^zipf; 0 is uniform")
	flags.Float64Var(&r.Rate, "rate", 0, "requests a second of an open loop; 0: as fast as answers come")
	flags.IntVar(&r.Burst, "burst", 1, "requests that become due together, on one connection, with --rate")
	flags.DurationVar(&r.Runtime, "runtime", 5*time.Second, "time in which answers are counted")
	flags.DurationVar(&r.Warmup, "warmup", 0, "time of a closed loop before, with other keys")
	flags.Uint64Var(&r.Seed, "seed", 1, "seed of the sequence of keys")
	flags.BoolVar(&r.Verify, "verify", false, "compare the bytes of every value read")
	flags.BoolVar(&o.Buffered, "buffered", false, "the server uses the page cache: do not compare its count of reads with the device's")
	flags.Int64Var(&o.Quota, "quota", 0, "--mem-quota of the server in bytes, to compare its resident memory with; 0 does not")
	flags.Int64Var(&o.Slack, "slack", 150<<20, "bytes that may be resident beyond it")
	flags.Float64Var(&o.ReadsMax, "reads-max", 0, "the most device reads a GET that are asked for; 0 asks for none")
	flags.Float64Var(&o.LeafHitsMax, "leaf-hits-max", 0, "the largest share of look-ups of data blocks that their cache may answer, 0 to 1; 0 asks for none")
	flags.BoolVar(&head, "head", false, "print the head of the table, and measure nothing")
	flags.StringVar(&lineFile, "line-file", "", "add the figures to this file, too, as a tab-separated line")
	flags.BoolVar(&asJSON, "json", false, "print everything as JSON")
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	if head {
		if err := bench.WriteReadHeader(stdout); err != nil {
			return exitFailed
		}
		return exitClean
	}
	r.Workload, r.ValueBytes = bench.Kind(workload), valueBytes
	if valueBytes == 0 {
		r.ValueBytes = -1
	}
	err := o.Validate()
	for name, zero := range map[string]bool{
		"conns": r.Conns == 0, "pipeline": r.Pipeline == 0, "threads": r.Threads == 0, "key-size": r.KeyBytes == 0, "keys": r.Keys == 0,
		"slack": o.Slack == 0, "burst": r.Burst == 0,
	} {
		if zero {
			err = errors.Join(err, fmt.Errorf("--%s: want more than 0", name))
		}
	}
	if valueBytes < 0 {
		err = errors.Join(err, fmt.Errorf("--value-size %d: want 0 or more", valueBytes))
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench read: %v\n", err)
		return exitUsage
	}
	row, err := bench.Read(ctx, o)
	if err == nil {
		if asJSON {
			err = row.WriteJSON(stdout)
		} else {
			err = row.WriteText(stdout)
		}
	}
	if err == nil && lineFile != "" {
		err = appendLine(lineFile, row)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "fluxbench read: %v\n", err)
		return exitFailed
	case len(row.Invalid) > 0:
		return exitFailed
	case len(row.Missed) > 0:
		return exitMissed
	}
	return exitClean
}

func appendLine(name string, row *bench.ReadRow) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(row.WriteLine(f), f.Close())
}

// settle waits until a server has nothing to do.
func settle(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench settle", pflag.ContinueOnError)
	stats := flags.String("stats", "", "address of the /stats of the server (required)")
	quiet := flags.Duration("quiet", 2*time.Second, "time without work in the background after which a store has settled")
	timeout := flags.Duration("timeout", 15*time.Minute, "the longest to wait")
	empty := flags.Bool("empty", false, "wait also until everything is in tables, which an idle store does after 30 s")
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	if *stats == "" || *quiet <= 0 || *timeout <= *quiet {
		fmt.Fprintln(stderr, "fluxbench settle: want --stats, and --timeout above --quiet above 0")
		return exitUsage
	}
	at, err := bench.Settle(ctx, *stats, *quiet, *timeout, *empty)
	if err == nil {
		_, err = fmt.Fprintf(stdout, "%d\t%d\t%d\n", at.TableBytes, at.TableEntries, at.TableMemory)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxbench settle: %v\n", err)
		return exitFailed
	}
	return exitClean
}

// drop takes a directory out of the page cache.
func drop(args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet("fluxbench drop", pflag.ContinueOnError)
	dir := flags.String("dir", "", "directory whose files leave the page cache (required)")
	if status, ok := parse(flags, args, stdout, stderr); !ok {
		return status
	}
	if *dir == "" {
		fmt.Fprintln(stderr, "fluxbench drop: want --dir")
		return exitUsage
	}
	if err := bench.DropCached(*dir); err != nil {
		fmt.Fprintf(stderr, "fluxbench drop: %v\n", err)
		return exitFailed
	}
	return exitClean
}
