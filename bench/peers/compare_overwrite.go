package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// overwriteEngines are those that can be overwritten.
var overwriteEngines = []string{"fluxkv", "pebble", "pebble-snappy", "rocksdb"}

// compareOverwrite runs every engine in a process of its own, by turns, prints a
// row for each run as soon as it is there, and medians and ratios at the end. A
// run that fails, or takes too long, is named, and its engine has no medians.
func compareOverwrite(args []string) error {
	var dir, only, program, extra string
	var rounds, valueSize, writers, batch int
	var times float64
	var bound time.Duration
	size, memory := int64(1e9), int64(64<<20)
	flags := flag.NewFlagSet("peers compare-overwrite", flag.ExitOnError)
	flags.StringVar(&dir, "dir", "", "directory that stores are made in, and removed from")
	flags.Func("size", "live keys and values, as 500MB or 4GB (default 1GB)", bytesInto(&size))
	flags.Func("memory", "size of all memtables, as 32MiB (default 64MiB)", bytesInto(&memory))
	flags.IntVar(&rounds, "rounds", 2, "runs of each engine")
	flags.Float64Var(&times, "times", 3, "how often the data is overwritten")
	flags.IntVar(&valueSize, "value-size", 1024, "bytes of a value")
	flags.IntVar(&writers, "writers", 8, "goroutines or threads that write")
	flags.IntVar(&batch, "batch", 128, "documents of a batch")
	flags.DurationVar(&bound, "run-max", 15*time.Minute, "the longest that one run may take, load and settling included")
	flags.StringVar(&only, "engines", "fluxkv,pebble,rocksdb", "the engines, by turns")
	flags.StringVar(&program, "db-bench", "db_bench", "the program that drives RocksDB")
	flags.StringVar(&extra, "db-bench-flags", "", "more flags of it, separated by spaces")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The processes started here end with this one, even when it is killed;
	// the kernel ties that to the thread that starts them.
	runtime.LockOSThread()
	compared := strings.Split(only, ",")
	for _, engine := range compared {
		if !slices.Contains(overwriteEngines, engine) {
			return fmt.Errorf("engine %q: want some of %s", engine, strings.Join(overwriteEngines, ", "))
		}
	}
	if dir == "" || rounds < 1 || !(times > 0) || bound <= 0 || flags.NArg() > 0 {
		return fmt.Errorf("want --dir, at least 1 round, --times and --run-max above 0, and no arguments")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// db_bench writes whole batches only.
	whole := int64(loadBatch)
	documents := max(size/int64(compareKeyBytes+valueSize)/whole, 1) * whole
	live := float64(documents * int64(compareKeyBytes+valueSize))
	fmt.Printf("%d documents of %d B with keys of %d B, %.0f MB, overwritten %g times by %d writers in batches of %d; memtables %d MiB; %d runs of each\n\n",
		documents, valueSize, compareKeyBytes, live/1e6, times, writers, batch, memory>>20, rounds)
	overwriteHead(os.Stdout)
	runs := map[string][]overwriteFigures{}
	var failed []string
	for range rounds {
		for _, engine := range compared {
			if slices.Contains(failed, engine) {
				continue
			}
			store := filepath.Join(dir, engine)
			f, err := overwriteChild(self, bound, "overwrite", "--engine", engine, "--dir", store, "--documents", fmt.Sprint(documents),
				"--key-size", fmt.Sprint(compareKeyBytes), "--value-size", fmt.Sprint(valueSize), "--writers", fmt.Sprint(writers),
				"--batch", fmt.Sprint(batch), "--times", fmt.Sprint(times), "--memory", fmt.Sprint(memory),
				"--db-bench", program, "--db-bench-flags", extra)
			if err := removeStore(store); err != nil {
				return err
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", engine, err)
				failed = append(failed, engine)
				continue
			}
			runs[engine] = append(runs[engine], f)
			overwriteRow(os.Stdout, fmt.Sprintf("%d %s", len(runs[engine]), engine), f)
		}
	}
	compared = slices.DeleteFunc(compared, func(engine string) bool { return slices.Contains(failed, engine) })
	fmt.Println()
	overwriteMedians(os.Stdout, compared, runs)
	if len(failed) > 0 {
		return fmt.Errorf("runs failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// removeStore removes a store. The db_bench of a run that was ended may take a
// moment to end, and make files until then.
func removeStore(dir string) (err error) {
	for range 50 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// overwriteChild runs this program again and reads the figures that it prints.
func overwriteChild(self string, bound time.Duration, args ...string) (f overwriteFigures, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// What it started may hold its output for a moment longer.
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return f, fmt.Errorf("not done in %v", bound)
	}
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, errors.Join(fmt.Errorf("its figures: %q", out), err)
	}
	return f, nil
}

// overwriteColumn is one figure of a run; ok is false where there is none.
type overwriteColumn struct {
	name   string
	value  func(f *overwriteFigures) (x float64, ok bool)
	format string
}

// per returns a over b, and false without b.
func per(a, b float64) (float64, bool) { return a / b, b > 0 }

var overwriteColumns = []overwriteColumn{
	{"documents/s", func(f *overwriteFigures) (float64, bool) { return per(float64(f.Documents), f.Seconds) }, "%.0f"},
	{"worst second", func(f *overwriteFigures) (float64, bool) { return f.Worst, f.Seconds >= 1 }, "%.0f"},
	{"longest stall ms", func(f *overwriteFigures) (float64, bool) { return f.Stall * 1e3, true }, "%.1f"},
	{"batch p50 ms", func(f *overwriteFigures) (float64, bool) { return f.P50 / 1e3, true }, "%.3f"},
	{"p99 ms", func(f *overwriteFigures) (float64, bool) { return f.P99 / 1e3, true }, "%.3f"},
	{"max ms", func(f *overwriteFigures) (float64, bool) { return f.Max / 1e3, true }, "%.1f"},
	{"CPU s per million", func(f *overwriteFigures) (float64, bool) { return per(f.CPUSeconds*1e6, float64(f.Documents)) }, "%.2f"},
	{"process MB", func(f *overwriteFigures) (float64, bool) { return float64(f.ProcessBytes) / 1e6, true }, "%.0f"},
	{"device MB", func(f *overwriteFigures) (float64, bool) { return float64(f.DeviceBytes) / 1e6, true }, "%.0f"},
	{"du MB at the end", func(f *overwriteFigures) (float64, bool) { return float64(f.DiskEnd) / 1e6, true }, "%.0f"},
	{"peak", func(f *overwriteFigures) (float64, bool) { return float64(f.DiskMax) / 1e6, true }, "%.0f"},
	{"settled", func(f *overwriteFigures) (float64, bool) { return float64(f.DiskSettled) / 1e6, true }, "%.0f"},
	{"s to settle", func(f *overwriteFigures) (float64, bool) { return f.SettleSeconds, true }, "%.1f"},
	{"second half: WA device", func(f *overwriteFigures) (float64, bool) {
		return per(float64(f.Half.DeviceBytes), float64(f.Half.UserBytes))
	}, "%.2f"},
	{"WA process", func(f *overwriteFigures) (float64, bool) {
		return per(float64(f.Half.ProcessBytes), float64(f.Half.UserBytes))
	}, "%.2f"},
	{"SA mean", func(f *overwriteFigures) (float64, bool) {
		x, _ := per(f.Half.DiskMean, float64(f.LiveBytes))
		return x, x > 0
	}, "%.2f"},
	{"SA peak", func(f *overwriteFigures) (float64, bool) {
		x, _ := per(float64(f.Half.DiskMax), float64(f.LiveBytes))
		return x, x > 0
	}, "%.2f"},
	{"SA settled", func(f *overwriteFigures) (float64, bool) { return per(float64(f.DiskSettled), float64(f.LiveBytes)) }, "%.2f"},
	{"RSS MiB", func(f *overwriteFigures) (float64, bool) { return float64(f.MemoryBytes) / (1 << 20), true }, "%.0f"},
}

// none stands for a figure that there is none of.
const none = "-"

func overwriteHead(out io.Writer) {
	names := []string{"run"}
	for _, c := range overwriteColumns {
		names = append(names, c.name)
	}
	names = append(names, "MB written, by cause")
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
}

// overwriteRow prints one run.
func overwriteRow(out io.Writer, name string, f overwriteFigures) {
	cells := []string{name}
	for _, c := range overwriteColumns {
		x, ok := c.value(&f)
		text := none
		if ok {
			text = fmt.Sprintf(c.format, x)
		}
		if c.name == "longest stall ms" && f.StallBound {
			text = "<= " + text
		}
		cells = append(cells, text)
	}
	var causes []string
	for _, cause := range slices.Sorted(maps.Keys(f.Written)) {
		causes = append(causes, fmt.Sprintf("%s %.0f", cause, float64(f.Written[cause])/1e6))
	}
	fmt.Fprintf(out, "| %s | %s |\n", strings.Join(cells, " | "), strings.Join(causes, ", "))
}

// overwriteMedians prints the medians of each engine, and what those of the first
// one are of those of each other.
func overwriteMedians(out io.Writer, engines []string, runs map[string][]overwriteFigures) {
	names := []string{"medians"}
	medians := map[string][]float64{} // by engine; the columns that all runs have
	has := make([]bool, len(overwriteColumns))
	for _, c := range overwriteColumns {
		names = append(names, c.name)
	}
	for i, c := range overwriteColumns {
		has[i] = true
		for _, engine := range engines {
			var values []float64
			for r := range runs[engine] {
				x, ok := c.value(&runs[engine][r])
				has[i] = has[i] && ok
				values = append(values, x)
			}
			medians[engine] = append(medians[engine], median(values))
		}
	}
	line := func(name string, cell func(i int) string) {
		cells := []string{name}
		for i := range overwriteColumns {
			text := none
			if has[i] {
				text = cell(i)
			}
			cells = append(cells, text)
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, engine := range engines {
		line(engine, func(i int) string { return fmt.Sprintf(overwriteColumns[i].format, medians[engine][i]) })
	}
	for i, engine := range engines {
		if i == 0 {
			continue
		}
		line(engines[0]+" / "+engine, func(i int) string {
			x, ok := per(medians[engines[0]][i], medians[engine][i])
			if !ok {
				return none
			}
			return fmt.Sprintf("%.2f", x)
		})
	}
}
