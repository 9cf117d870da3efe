package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// engines are compared in this order, by turns.
var engines = []string{"fluxkv", "pebble", "pebble-snappy"}

// compareKeyBytes is the length of the keys that are compared with.
const compareKeyBytes = 12

// compare runs every load in a process of its own, so that neither heap nor
// counters of one are left to the next, and prints medians. A load that fails
// ends it.
func compare(args []string) error {
	var dir, only string
	var size, memory int64
	var rounds int
	flags := flag.NewFlagSet("peers compare", flag.ExitOnError)
	flags.StringVar(&dir, "dir", "", "directory that stores are made in, and removed from")
	size, memory = 1e9, 64<<20
	flags.Func("size", "keys and values of each load, as 500MB or 1GB (default 1GB)", bytesInto(&size))
	flags.Func("memory", "size of all memtables, as 32MiB (default 64MiB)", bytesInto(&memory))
	flags.IntVar(&rounds, "rounds", 3, "loads of each engine")
	flags.StringVar(&only, "value-sizes", "1024,8", "bytes of values")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The processes started here end with this one, even when it is killed;
	// the kernel ties that to the thread that starts them.
	runtime.LockOSThread()
	if dir == "" || rounds < 1 || flags.NArg() > 0 {
		return fmt.Errorf("want --dir, at least 1 round and no arguments")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, text := range strings.Split(only, ",") {
		valueSize, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("value size %q: %w", text, err)
		}
		documents := max(size/int64(compareKeyBytes+valueSize), 1)
		live := float64(documents * int64(compareKeyBytes+valueSize))
		fmt.Printf("%d documents of %d B with keys of %d B, %.0f MB; memtables %d MiB; medians of %d\n\n",
			documents, valueSize, compareKeyBytes, live/1e6, memory>>20, rounds)
		fmt.Println("| writers | engine | documents/s, MB/s until acknowledged | until settled | seconds: acknowledged, settled (all) " +
			"| CPU s | device MB | process MB | disk/live | RSS MiB | MB written, by cause |")
		fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|")
		for _, writers := range []int{1, 8} {
			runs := map[string][]figures{}
			for range rounds {
				for _, engine := range engines {
					store := filepath.Join(dir, engine)
					f, err := child(self, "load", "--engine", engine, "--dir", store, "--documents", fmt.Sprint(documents),
						"--key-size", fmt.Sprint(compareKeyBytes), "--value-size", fmt.Sprint(valueSize),
						"--writers", fmt.Sprint(writers), "--memory", fmt.Sprint(memory))
					if err := os.RemoveAll(store); err != nil {
						return err
					}
					if err != nil {
						return fmt.Errorf("%s, values of %d B, %d writers: %w", engine, valueSize, writers, err)
					}
					runs[engine] = append(runs[engine], f)
				}
			}
			for _, engine := range engines {
				row(os.Stdout, engine, writers, float64(documents), live, runs[engine])
			}
		}
		fmt.Println()
	}
	return nil
}

// bytesInto returns a function that reads a size into n.
func bytesInto(n *int64) func(string) error {
	units := []struct {
		name  string
		bytes int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"", 1}}
	return func(text string) error {
		for _, u := range units {
			digits, ok := strings.CutSuffix(text, u.name)
			if !ok {
				continue
			}
			v, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || v < 1 || v > 1<<50/u.bytes {
				return fmt.Errorf("want a number of KiB, MiB, GiB, kB, MB, GB or bytes")
			}
			*n = v * u.bytes
			return nil
		}
		return nil
	}
}

// child runs this program again and reads the figures that it prints.
func child(self string, args ...string) (f figures, err error) {
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(out, &f)
}

// row prints the medians of the loads of one engine.
func row(out io.Writer, engine string, writers int, documents, live float64, runs []figures) {
	of := func(get func(f *figures) float64) float64 {
		values := make([]float64, len(runs))
		for i := range runs {
			values[i] = get(&runs[i])
		}
		return median(values)
	}
	ack := of(func(f *figures) float64 { return f.AckSeconds })
	settled := of(func(f *figures) float64 { return f.SettledSeconds })
	var all, causes []string
	for _, f := range runs {
		all = append(all, fmt.Sprintf("%.2f", f.SettledSeconds))
	}
	for _, cause := range slices.Sorted(maps.Keys(runs[0].Written)) {
		causes = append(causes, fmt.Sprintf("%s %.1f", cause, of(func(f *figures) float64 { return float64(f.Written[cause]) })/1e6))
	}
	fmt.Fprintf(out, "| %d | %s | %.0f, %.1f | %.0f, %.1f | %.2f, %.2f (%s) | %.2f | %.0f | %.0f | %.3f | %.0f | %s |\n",
		writers, engine, documents/ack, live/ack/1e6, documents/settled, live/settled/1e6, ack, settled, strings.Join(all, " "),
		of(func(f *figures) float64 { return f.CPUSeconds }),
		of(func(f *figures) float64 { return float64(f.DeviceBytes) })/1e6,
		of(func(f *figures) float64 { return float64(f.ProcessBytes) })/1e6,
		of(func(f *figures) float64 { return float64(f.DiskBytes) })/live,
		of(func(f *figures) float64 { return float64(f.MemoryBytes) })/(1<<20),
		strings.Join(causes, ", "))
}

// median of at least one value.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
