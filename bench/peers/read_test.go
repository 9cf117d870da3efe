package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"fluxkv/bench"
)

// rocksReadOutput is what db_bench 7.8.3 prints for two runs of three threads; what
// was found is of one of them.
const rocksReadOutput = `DB path: [/data/db]
readrandom   :       4.474 micros/op 666351 ops/sec 1.008 seconds 671997 operations;   71.2 MB/s (222999 of 222999 found)

DB path: [/data/db]
readrandom   :       4.495 micros/op 662017 ops/sec 1.012 seconds 669997 operations;   70.7 MB/s (224999 of FOUND found)
`

func TestReadsOfRocksDB(t *testing.T) {
	var got []rocksReads
	whole := strings.ReplaceAll(rocksReadOutput, "FOUND", "225000")
	err := eachRocksRead(strings.NewReader(whole), func(x rocksReads) error { got = append(got, x); return nil })
	want := []rocksReads{{gets: 671997, asked: 222999, found: 222999, seconds: 1.008}, {gets: 669997, asked: 225000, found: 224999, seconds: 1.012}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	stop := errors.New("stop")
	if err := eachRocksRead(strings.NewReader(whole), func(rocksReads) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	if err := eachRocksRead(strings.NewReader(strings.Replace(whole, " 1.008 sec", " 1.0.8 sec", 1)), func(rocksReads) error { return nil }); err == nil {
		t.Error("no number: no error")
	}
}

// TestReadRocksDB drives a db_bench of the test: a reader looks at its counters
// while it runs.
func TestReadRocksDB(t *testing.T) {
	for _, c := range []struct{ name, output, want string }{
		{"whole", strings.ReplaceAll(rocksReadOutput, "FOUND", "224999"), ""},
		{"documents that are gone", strings.ReplaceAll(rocksReadOutput, "FOUND", "225000"), "found 224999 of 225000"},
		{"one result", strings.SplitAfter(rocksReadOutput, "\n\n")[0], "1 results"},
	} {
		dir := t.TempDir()
		program := filepath.Join(dir, "db_bench")
		if err := os.WriteFile(program, []byte("#!/bin/sh\ncat \""+dir+"/output\"\nsleep 0.3\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "output"), []byte(c.output), 0o600); err != nil {
			t.Fatal(err)
		}
		r := reading{load: load{dir: dir, documents: 1000, keyBytes: 12, valueSize: 8}, engine: "rocksdb", goroutines: 3, runtime: time.Second, memory: 64 << 20, program: program}
		f, err := r.run()
		if _, e := bench.DeviceOf(dir); e != nil {
			t.Skip(e) // no device, no figures
		}
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.want)
			}
			continue
		}
		if err != nil || f.Gets != 669997 || f.Seconds != 1.012 {
			t.Errorf("%s: %+v, %v", c.name, f, err)
		}
	}
	r := reading{load: load{dir: "d", documents: 1000, keyBytes: 12, valueSize: 8}, engine: "rocksdb-direct", goroutines: 64, runtime: 8 * time.Second, memory: 80 << 20, extra: []string{"--x"}}
	for _, want := range []string{"--db=d/db", "--num=1000", "--threads=64", "--duration=8", "--use_direct_reads=1", "--cache_size=62914560", "--bloom_bits=10", "--use_existing_db=1", "--x"} {
		if flags := r.rocksRead(); !slices.Contains(flags, want) {
			t.Errorf("no %s in %s", want, flags)
		}
	}
}

// TestReadEmbedded loads a store and reads it, as the two processes of a run do.
func TestReadEmbedded(t *testing.T) {
	for _, engine := range []string{"fluxkv", "pebble"} {
		w := writing{
			load:   load{dir: t.TempDir(), documents: 5000, keyBytes: compareKeyBytes, valueSize: 300},
			engine: engine, writers: 2, batch: 128, memory: 2 << 20,
		}
		if _, err := bench.DeviceOf(w.dir); err != nil {
			t.Skip(err)
		}
		if _, err := w.run(); err != nil {
			t.Fatal(err)
		}
		r := reading{load: w.load, engine: engine, goroutines: 3, runtime: 200 * time.Millisecond, memory: 64 << 20}
		f, err := r.run()
		if err != nil || f.Gets == 0 || f.Seconds < 0.2 || f.Resident == 0 || f.GroupPeak != 0 {
			t.Errorf("%s: %+v, %v", engine, f, err)
		}
		r.documents *= 2 // half of which are not there
		if _, err := r.run(); err == nil || !strings.Contains(err.Error(), "found false") {
			t.Errorf("%s: missing documents: %v", engine, err)
		}
		r.documents, r.valueSize = w.documents, 299
		if _, err := r.run(); err == nil || !strings.Contains(err.Error(), "300 bytes") {
			t.Errorf("%s: values of another length: %v", engine, err)
		}
	}
	if _, err := (&reading{engine: "x"}).run(); err == nil || !strings.Contains(err.Error(), `engine "x"`) {
		t.Errorf("an unknown engine: %v", err)
	}
}

func TestMemoryGroup(t *testing.T) {
	for _, c := range []struct{ name, limit, peak string }{
		{"version 1", "memory.limit_in_bytes", "memory.max_usage_in_bytes"}, {"version 2", "memory.max", "memory.peak"},
	} {
		dir := t.TempDir()
		if _, err := openMemoryGroup(dir); err == nil {
			t.Errorf("%s: a directory that is no group is accepted", c.name)
		}
		for _, file := range []string{c.limit, c.peak, "cgroup.procs", "memory.force_empty"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte("1234567\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g, err := openMemoryGroup(dir)
		if err != nil || g.v2 != (c.limit == "memory.max") {
			t.Fatalf("%s: %+v, %v", c.name, g, err)
		}
		if n, err := g.peak(); err != nil || n != 1234567 {
			t.Errorf("%s: peak %d, %v", c.name, n, err)
		}
		if err := errors.Join(g.limit(64<<20), g.join(4711), g.fresh()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for file, want := range map[string]string{c.limit: "67108864", "cgroup.procs": "4711"} {
			if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(b) != want {
				t.Errorf("%s: %s is %q, %v", c.name, file, b, err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, c.peak), []byte("max\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := g.peak(); err == nil {
			t.Errorf("%s: no number: no error", c.name)
		}
	}
}

func TestParseFio(t *testing.T) {
	const report = `{"jobs": [{"jobname": "reads", "error": 0, "usr_cpu": 3.5, "sys_cpu": 16.5, "read": {"iops": 17431.5, "total_ios": 34863, "runtime": 2000,
		"clat_ns": {"percentile": {"50.000000": 29000, "99.000000": 60000}}}}]}`
	got, err := parseFio([]byte(report))
	if want := (fioFigures{Rate: 17431.5, P50: 29, CPUSeconds: 0.4, Reads: 34863}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "{}", `{"jobs": []}`, strings.Replace(report, `"error": 0`, `"error": 5`, 1), strings.Replace(report, "34863", "0", 1)} {
		if _, err := parseFio([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestContenders(t *testing.T) {
	all, err := contenders([]string{"fluxkv", "pebble", "rocksdb", "rocksdb-direct"}, 2)
	var names, stores []string
	for i := range all {
		names, stores = append(names, all[i].name), append(stores, all[i].store())
	}
	if err != nil || strings.Join(names, ";") != "fluxkv, 2 procs;fluxkv, 3 procs;pebble, 2 procs;pebble, 16 procs;rocksdb;rocksdb-direct" ||
		strings.Join(stores, ";") != "fluxkv;fluxkv;pebble;pebble;rocksdb;rocksdb" {
		t.Errorf("%q in %q, %v", names, stores, err)
	}
	if all, err := contenders([]string{"pebble"}, 16); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := contenders([]string{"badger"}, 2); err == nil {
		t.Error("an unknown engine is accepted")
	}
}

func TestReadMedians(t *testing.T) {
	of := func(rates ...int64) (f []readFigures) {
		for _, r := range rates {
			f = append(f, readFigures{Gets: 2 * r, Seconds: 2, Device: bench.DeviceIO{ReadBytes: 5 << 20}, ReadBytes: 5 << 20, GroupPeak: 1})
		}
		return f
	}
	var out bytes.Buffer
	all, err := contenders([]string{"fluxkv", "pebble"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	c := comparingReads{contenders: all, goroutines: []int{1, 8, 64}, out: &out, group: &memoryGroup{}}
	c.medians(map[string]map[int][]readFigures{
		"fluxkv, 2 procs":  {1: of(100, 300), 8: of(100), 64: of(100)},
		"fluxkv, 3 procs":  {1: of(90), 8: of(120), 64: of(100)},
		"pebble, 2 procs":  {1: of(100), 8: of(100), 64: of(60)},
		"pebble, 16 procs": {1: of(120), 8: of(90)},
	}, map[int][]float64{1: {1000}, 8: {130}})
	for _, want := range []string{
		"| 1 | 200 | 90 | 100 | 120 | 1000 | 1.67 | 0.20 | reached: 1.1 x",
		"| 8 | 100 | 120 | 100 | 90 | 130 | 1.20 | 0.92 | reached: 1.3 x", // by fio
		"| 64 | 100 | 100 | 60 | - | - | 1.67 | - | reached: 1.5 x",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if got := c.reached(64, 100, 70, 200); !strings.HasPrefix(got, "MISSED") {
		t.Errorf("%q", got)
	}
	if got := c.reached(8, 100, 0, 200); !strings.HasPrefix(got, "no peer") {
		t.Errorf("%q", got)
	}
	if got := c.reached(8, 0, 50, 200); !strings.HasPrefix(got, "no valid run") {
		t.Errorf("%q", got)
	}
	for _, bad := range []struct {
		change func(f *readFigures)
		want   string
	}{
		{func(f *readFigures) {}, ""},
		{func(f *readFigures) { f.Gets = 0 }, "nothing"},
		{func(f *readFigures) { f.Device.ReadBytes *= 2 }, "of which the process"},
		{func(f *readFigures) { f.Device.ReadBytes, f.Gets = f.Device.ReadBytes+8<<20, 2_000_000 }, ""},
		{func(f *readFigures) { f.GroupPeak = 0 }, "control group"},
	} {
		f := of(1)[0]
		bad.change(&f)
		if got := c.judge(&f); !strings.Contains(got, bad.want) || (got == "") != (bad.want == "") {
			t.Errorf("%q, want %q", got, bad.want)
		}
	}
	c.group = nil
	if got := c.judge(&of(1)[0]); got != "no limit of memory" {
		t.Errorf("%q", got)
	}
	out.Reset()
	readHead(&out)
	readRow(&out, "1 x", 8, of(50)[0], "valid")
	lines := strings.Split(out.String(), "\n")
	if a, b := strings.Count(lines[0], "|"), strings.Count(lines[2], "|"); a != b || !strings.HasPrefix(lines[2], "| 1 x | 8 | 50 |") {
		t.Errorf("%d and %d cells in\n%s", a, b, &out)
	}
	c.rounds, c.warmup, c.runtime, c.loadMax = 2, time.Second, 2*time.Second, time.Minute
	if usual, most := c.bound(); usual != 6*4*8*time.Second || most != 6*4*(3*time.Second+readSlack)+2*time.Minute {
		t.Errorf("bounds %v and %v", usual, most)
	}
}

func TestReadFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"compare-read", "want --dir"},
		{"compare-read --dir x --goroutines 0", "goroutines"},
		{"compare-read --dir x --engines badger", "badger"},
		{"compare-read --dir x --cgroup /nonexistent", "no group"},
		{"compare-read --dir x --runtime 10ms", "--runtime"},
		{"read --dir x --documents 5 --goroutines 0", "goroutines"},
		{"read --dir x --documents 5 --cgroup /nonexistent", "no group"},
		{"read --engine x --dir x --documents 5", fmt.Sprintf("engine %q", "x")},
	} {
		if err := run(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.args, err, c.want)
		}
	}
}
