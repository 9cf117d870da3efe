package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// rocksOutput is what db_bench 7.8.3 prints, shortened.
const rocksOutput = `Initializing RocksDB Options from the specified file
Keys:       12 bytes each (+ 0 bytes user-defined timestamp)
WARNING: Assertions are enabled; benchmarks unnecessarily slow
------------------------------------------------
DB path: [/data/db]
overwrite    :      82.741 micros/op 90629 ops/sec 1.322 seconds 119808 operations;   89.5 MB/s
Microseconds per write:
Count: 936 Average: 10601.6165  StdDev: 16277.33
Min: 276  Median: 4763.1068  Max: 92630
Percentiles: P50: 4763.11 P75: 9813.16 P99: 74756.76 P99.9: 92630.00 P99.99: 92630.00
------------------------------------------------------
(     250,     380 ]       69   7.372%   7.372% #
waitforcompaction(/data/db): started
waitforcompaction(/data/db): finished
STATISTICS:
rocksdb.wal.bytes COUNT : 124608768
rocksdb.compact.read.bytes COUNT : 327957900
rocksdb.compact.write.bytes COUNT : 211965212
rocksdb.flush.write.bytes COUNT : 118393402
rocksdb.db.write.micros P50 : 4586.792453 P95 : 48677.777778 P99 : 74742.857143 P100 : 92586.000000 COUNT : 936 SUM : 9507788
`

func TestReportOfRocksDB(t *testing.T) {
	ended := 0
	got, err := parseRocks(strings.NewReader(rocksOutput), "overwrite", func() { ended++ })
	want := rocksReport{
		documents: 119808, seconds: 1.322, p50: 4763.11, p99: 74756.76, max: 92630,
		written: map[string]int64{"log": 124608768, "flush": 118393402, "compaction": 211965212},
	}
	if err != nil || !reflect.DeepEqual(got, want) || ended != 1 {
		t.Errorf("%+v, %v, ended %d times; want %+v", got, err, ended, want)
	}
	for _, c := range []struct{ name, output, want string }{
		{"another benchmark", strings.Replace(rocksOutput, "overwrite ", "fillseq ", 1), "no result of overwrite"},
		{"nothing", "", "no result of overwrite"},
		{"twice", rocksOutput + rocksOutput, "ran twice"},
		{"no number", strings.Replace(rocksOutput, "Max: 92630", "Max: 9.2.6", 1), "9.2.6"},
	} {
		if _, err := parseRocks(strings.NewReader(c.output), "overwrite", nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

func TestSecondsOfRocksDB(t *testing.T) {
	for _, c := range []struct {
		text string
		want []int64
		ok   bool
	}{
		{"", nil, true},
		{"secs_elapsed,interval_qps\n", nil, true},
		{"secs_elapsed,interval_qps\n1,88064\n2,0\n", []int64{88064, 0}, true},
		{"secs_elapsed,interval_qps\n1,88064\n2,91", []int64{88064}, true}, // is being written
		{"secs_elapsed,interval_qps\n1;88064\n", nil, false},
	} {
		got, err := parseRocksSeconds([]byte(c.text))
		if !slices.Equal(got, c.want) || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v; want %v", c.text, got, err, c.want)
		}
	}
}

func TestFiguresOfTheSecondHalf(t *testing.T) {
	during := []sample{
		{documents: 0, disk: 100, device: 1000, process: 500},
		{documents: 40, disk: 300, device: 2000, process: 1500},
		{documents: 60, disk: 200, device: 3000, process: 2500},
		{documents: 100, disk: 220, device: 4000, process: 3500},
	}
	after := []sample{{disk: 240, device: 4500, process: 3900}, {disk: 150, device: 5000, process: 4000}}
	var f overwriteFigures
	f.fill(during, after, 10)
	want := overwriteFigures{
		Documents: 100, UserBytes: 1000, DeviceBytes: 4000, ProcessBytes: 3500, DiskEnd: 220, DiskMax: 300, DiskSettled: 150,
		Half: halfFigures{UserBytes: 400, DeviceBytes: 2000, ProcessBytes: 1500, DiskMean: 210, DiskMax: 240},
	}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("%+v\nwant %+v", f, want)
	}
	f = overwriteFigures{}
	if f.fill([]sample{during[0], during[3]}, after, 10); f.Half != (halfFigures{}) || f.Documents != 100 {
		t.Errorf("half of a run without a look in it: %+v", f)
	}
}

func TestWorstSecond(t *testing.T) {
	for _, c := range []struct {
		seconds []int64
		took    time.Duration
		want    float64
	}{
		{[]int64{50, 20, 30}, 3 * time.Second, 20},
		{[]int64{50, 20, 3}, 2500 * time.Millisecond, 20}, // the last one is not whole
		{[]int64{50, 20}, 3 * time.Second, 0},             // nothing in the third
		{[]int64{50}, 900 * time.Millisecond, 0},
	} {
		if got := worst(c.seconds, c.took); got != c.want {
			t.Errorf("%v in %v: %v, want %v", c.seconds, c.took, got, c.want)
		}
	}
	a, b := newTally(), newTally()
	a.add(0, 10*time.Millisecond, 5)
	b.add(900*time.Millisecond, 2100*time.Millisecond, 7)
	b.add(2100*time.Millisecond, 2200*time.Millisecond, 1)
	a.merge(b)
	if !slices.Equal(a.seconds, []int64{5, 0, 8}) || a.latency.TotalCount() != 3 || a.latency.Max() < 1.19e9 || a.latency.Max() > 1.21e9 {
		t.Errorf("%v, %d batches, the longest %d ns", a.seconds, a.latency.TotalCount(), a.latency.Max())
	}
}

func TestMediansAndRatios(t *testing.T) {
	of := func(documents int64, worst, stall float64) overwriteFigures {
		return overwriteFigures{
			Documents: documents, Seconds: 10, Worst: worst, Stall: stall, P50: 1000, P99: 2000, Max: 3000, CPUSeconds: 1, LiveBytes: 1e6,
			DiskSettled: 15e5, Written: map[string]int64{"log": 2e6, "flush": 1e6},
		}
	}
	var out bytes.Buffer
	overwriteMedians(&out, []string{"fluxkv", "pebble"}, map[string][]overwriteFigures{
		"fluxkv": {of(2000, 150, 0.01), of(4000, 170, 0.03)}, "pebble": {of(1000, 100, 0), of(1000, 60, 0)},
	})
	for _, want := range []string{
		"| fluxkv | 300 | 160 | 20.0 | 1.000 |", "| pebble | 100 | 80 | 0.0 |",
		"| fluxkv / pebble | 3.00 | 2.00 | - | 1.00 |", // no stall to divide by
		" - | - | - | - | 1.50 | 0 |\n| pebble",        // no second half
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	out.Reset()
	overwriteHead(&out)
	f := of(2000, 150, 0.01)
	f.StallBound = true
	overwriteRow(&out, "1 rocksdb", f)
	lines := strings.Split(out.String(), "\n")
	if a, b := strings.Count(lines[0], "|"), strings.Count(lines[2], "|"); a != b || !strings.Contains(lines[2], "| <= 10.0 |") ||
		!strings.HasSuffix(lines[2], "| flush 1, log 2 |") {
		t.Errorf("%d and %d cells in\n%s", a, b, &out)
	}
}

func testOverwriting(t *testing.T, engine string) *overwriting {
	return &overwriting{writing: writing{
		load:   load{dir: t.TempDir(), documents: 12800, keyBytes: compareKeyBytes, valueSize: 100},
		engine: engine, writers: 3, batch: 100, memory: 2 << 20,
	}, times: 1.5}
}

// TestOverwrite drives a run of each embedded engine to its end.
func TestOverwrite(t *testing.T) {
	for _, engine := range []string{"fluxkv", "pebble"} {
		o := testOverwriting(t, engine)
		f, err := o.run()
		if err != nil {
			t.Fatal(err)
		}
		if f.Documents != 19200 || f.UserBytes != 19200*112 || f.LiveBytes != 12800*112 || f.Written["log"] < f.UserBytes || f.Seconds <= 0 ||
			f.P50 <= 0 || f.P99 < f.P50 || f.Max < f.P99 || f.Stall <= 0 || f.Stall > f.Seconds || f.DiskMax < f.DiskSettled || f.DiskSettled < f.LiveBytes {
			t.Errorf("%s: %+v", engine, f)
		}
		if o.batch = 1; engine == "fluxkv" {
			o.dir, o.times = t.TempDir(), 0.1
			if f, err = o.run(); err != nil || f.Documents != 1280 {
				t.Errorf("single documents: %+v, %v", f, err)
			}
		}
	}
}

// fakeRocks is a db_bench that writes what the real one does.
const fakeRocks = `#!/bin/sh
for flag in "$@"; do
    case "$flag" in
        --db=*) db="${flag#*=}" ;;
        --benchmarks=*) benchmarks="${flag#*=}" ;;
        --report_file=*) report="${flag#*=}" ;;
        --fail) echo "no such flag" >&2; exit 1 ;;
    esac
done
case "$benchmarks" in
    fill*) mkdir "$db"; echo "filluniquerandom :  9.8 micros/op 100728 ops/sec 0.396 seconds LOADED operations;   99.5 MB/s" ;;
    overwrite*)
        printf 'secs_elapsed,interval_qps\n' >"$report"
        sleep 0.2
        printf '1,9600\n2,0\n3,9599\n' >>"$report"
        sleep 0.2
        cat "$db/../output"
        ;;
    readrandom*) echo "readrandom   :   1.2 micros/op; 10 MB/s (10000 of FOUND found)" ;;
esac
`

func TestOverwriteOfRocksDB(t *testing.T) {
	for _, c := range []struct{ name, loaded, found, output, extra, want string }{
		{"whole", "12800", "10000", rocksOutput, "", ""},
		{"a load that lacks a document", "12799", "10000", rocksOutput, "", "loaded 12799 of 12800"},
		{"documents that are gone", "12800", "9999", rocksOutput, "", "does not find all"},
		{"no result", "12800", "10000", "killed\n", "", "no result of overwrite"},
		{"a flag it does not know", "12800", "10000", rocksOutput, "--fail", "no such flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOverwriting(t, "rocksdb")
			o.extra = strings.Fields(c.extra)
			o.program = filepath.Join(t.TempDir(), "db_bench")
			script := strings.NewReplacer("LOADED", c.loaded, "FOUND", c.found).Replace(fakeRocks)
			if err := os.WriteFile(o.program, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(o.dir, "output"), []byte(c.output), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := o.run()
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				return
			}
			if err != nil || f.Documents != 119808 || f.Seconds != 1.322 || f.P99 != 74756.76 || !f.StallBound || f.Stall != 0.09263 ||
				f.Worst != 0 || f.Written["log"] != 124608768 || f.DiskSettled < int64(len(rocksOutput)) {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	o := testOverwriting(t, "rocksdb")
	o.batch = 128
	for want, flags := range map[string][]string{
		"load": o.rocksLoad(), "overwrite": o.rocksOverwrite(),
	} {
		for _, flag := range []string{"--num=12800", "--key_size=12", "--value_size=100", fmt.Sprintf("--write_buffer_size=%d", 1<<20)} {
			if !slices.Contains(flags, flag) {
				t.Errorf("%s without %s: %s", want, flag, flags)
			}
		}
	}
	// 1.5 x 12,800 documents by 3 writers in batches of 128
	if flags := o.rocksOverwrite(); !slices.Contains(flags, "--writes=6400") || !slices.Contains(flags, "--threads=3") {
		t.Errorf("%s", flags)
	}
}
