// Command fluxctl looks after the data directory of a store that no server has
// open.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"fluxkv/lsm"
)

const usage = `usage: fluxctl verify DIR    read everything, and compare what is known to be garbage with a count
       fluxctl compact DIR   merge and collect all that is worth it

Both open the store as a server would: after a crash they recover it.
Exit status: 0 fine, 1 something is wrong or failed, 2 usage.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	f := pflag.NewFlagSet("fluxctl", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Fprint(out, usage)
		return 0
	}
	if err != nil || f.NArg() != 2 || f.Arg(0) != "verify" && f.Arg(0) != "compact" {
		if err != nil {
			fmt.Fprintf(errs, "fluxctl: %v\n", err)
		}
		fmt.Fprint(errs, usage)
		return 2
	}
	if err := do(ctx, f.Arg(0), f.Arg(1), out); err != nil {
		fmt.Fprintf(errs, "fluxctl %s: %v\n", f.Arg(0), err)
		return 1
	}
	return 0
}

func do(ctx context.Context, command, dir string, out io.Writer) (err error) {
	if _, err := os.Stat(dir); err != nil {
		return err // Open would make a store there
	}
	db, err := lsm.OpenContext(ctx, dir, lsm.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var report any
	if command == "verify" {
		report, err = db.Verify(ctx)
	} else {
		err = db.Compact()
		report = db.Stats()
	}
	b, jerr := json.MarshalIndent(report, "", "  ")
	if jerr != nil {
		return errors.Join(err, jerr)
	}
	fmt.Fprintf(out, "%s\n", b)
	return err
}
