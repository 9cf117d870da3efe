package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fluxkv/mcbp"
)

// fakeCounters counts as a server would that writes each document twice, once
// in the log and once when it collects.
type fakeCounters struct {
	server *fakeServer
	size   int64
	change func(c *counters, looks int)
	looks  int
	busy   int // more looks that find something under way
}

func (f *fakeCounters) look(context.Context) (c counters, err error) {
	f.looks++
	f.server.mu.Lock()
	n := int64(f.server.n)
	f.server.mu.Unlock()
	e := &c.engine
	e.Writes, e.UserBytes = n, n*f.size
	e.Written = engineWritten{Log: e.UserBytes, GC: e.UserBytes, Compaction: []int64{0, 1000 * n}}
	e.Log.Groups = n / 10
	e.Log.PooledBytes, e.Log.ActiveBytes, e.Log.PreparedBytes, c.manifest = 7000, 5000, 6000, 2000
	e.SlowedTime, e.StalledTime, e.PacedTime = time.Duration(n)*time.Second, time.Duration(2*n)*time.Second, time.Duration(3*n)*time.Second
	e.Log.WaitTime, e.Log.SegmentWaitTime = time.Duration(9*n)*time.Second, time.Duration(4*n)*time.Second
	e.Flushes, e.Compactions, e.Collections = n, 2*n, 3*n
	if f.busy > 0 {
		f.busy--
		e.CollectingNow = true
	}
	c.device, c.process, c.disk = e.Written.total(), e.Written.total(), 3*int64(f.server.documents())*f.size
	if f.change != nil {
		f.change(&c, f.looks)
	}
	return c, nil
}

func (f *fakeCounters) engine(ctx context.Context) (engineStats, error) {
	c, err := f.look(ctx)
	return c.engine, err
}

func (f *fakeCounters) disk() (int64, error) { return 5 * 40_000, nil }

func fakeOverwriting(t *testing.T, answer func(n int, r *mcbp.Response) []byte) (*overwriting, *fakeCounters) {
	s := startFake(t, answer)
	o := OverwriteOptions{
		Run:   Options{Addr: s.addr(), Keys: 400, KeyBytes: 8, ValueBytes: 92, Conns: 2, Pipeline: 8, ServerPID: os.Getpid()},
		Times: 3, Windows: 4, Quiet: time.Millisecond, StatsURL: "x", Dir: "x", SettleTimeout: time.Minute,
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	f := &fakeCounters{server: s, size: 100}
	return &overwriting{o: o.withDefaults(), from: f}, f
}

func TestOverwrite(t *testing.T) {
	w, f := fakeOverwriting(t, nil)
	f.busy = 4
	var seen []string
	w.o.OnRow = func(r *OverwriteRow) { seen = append(seen, r.Name) }
	rows, err := w.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(seen, " "), "load 1 2 3 4 settle idle half"; got != want || len(rows) != len(seen) {
		t.Fatalf("rows %s, want %s", got, want)
	}
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	var head, text, summary bytes.Buffer
	if err := WriteOverwriteHeader(&head); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		r := &rows[i]
		operations := map[string]int64{"load": 400, "settle": 0, "idle": 0, "half": 600}
		want, ok := operations[r.Name]
		if !ok {
			want = 300
		}
		if r.Operations != want || r.UserBytes != 100*want || r.Engine != 1200*want || r.Device != r.Engine || r.Process != r.Engine ||
			r.Written.Log != 100*want || r.Written.GC != 100*want || r.Written.merges() != 1000*want ||
			r.Live != 40_000 || r.Disk != 120_000 || r.Invalid != "" || r.garbage() != 60_000 ||
			r.Fixed != (fixedBytes{Active: 5000, Prepared: 6000, Pooled: 7000, Manifest: 2000}) ||
			r.HeldUp != (heldUp{Slowed: seconds(want), Stalled: seconds(2 * want), Paced: seconds(3 * want), Log: seconds(5 * want), Segment: seconds(4 * want)}) ||
			r.Flushes != want || r.Merges != 2*want || r.Collections != 3*want {
			t.Errorf("%+v", r)
		}
		if want > 0 && (r.Group < 9.9 || r.Group > 10.1 || r.Rate <= 0) {
			t.Errorf("%s: group %v, rate %v", r.Name, r.Group, r.Rate)
		}
		if sets := want > 0 && r.Name != "load"; sets != (r.Max > 0) || sets != (r.Stall > 0) || r.P99 > r.Max || r.Stall > r.Seconds {
			t.Errorf("%s: longest stall %v s of %v, p99 %v, max %v us", r.Name, r.Stall, r.Seconds, r.P99, r.Max)
		}
		text.Reset()
		if err := r.WriteText(&text); err != nil || strings.Count(text.String(), "|") != strings.Count(head.String(), "|")/2 {
			t.Errorf("%v: row\n%sof table\n%s", err, &text, &head)
		}
	}
	half := &rows[len(rows)-1]
	// Looks within a row see 200,000; a row is not a second long. The mean is
	// weighted by time, and off by a rounding error.
	if math.Round(half.DiskMean) < 120_000 || half.DiskMean > 200_000 || half.DiskMax < 120_000 {
		t.Errorf("%+v", half)
	}
	if err := half.WriteSummary(&summary); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"write amp 12.00 (device), 12.00 (process), 12.00 (engine)", "3.00 settled, after ", "valid: yes", "log 1.00", "merges L1 10.00", "gc 1.00",
		"600 flushes, 1200 merges, 1800 collections", "du settled 0.1 MB: live 0.0, garbage 0.1, fixed 0.0 (active 0.0", "write cache full 1200.00, space 1800.00, log 3000.00, segment 2400.00"} {
		if !strings.Contains(summary.String(), want) {
			t.Errorf("%q is not in\n%s", want, &summary)
		}
	}
}

func TestOverwriteRowsMustAgree(t *testing.T) {
	const large = 1 << 30
	for _, c := range []struct {
		name                    string
		device, process, engine int64
		user                    int64
		want                    string
	}{
		{"agree", large, large * 96 / 100, large * 98 / 100, large, ""},
		{"the device wrote more", large * 11 / 10, large, large, large, "device is 10.0 % over process (journal"},
		{"the device wrote less", large * 9 / 10, large, large, large, "process is 11.1 % over device (bytes that were replaced"},
		{"the engine counts less", large, large, large * 9 / 10, large, "process is 11.1 % over engine (tables and segments under way"},
		{"the engine counts more", large, large, large * 11 / 10, large, "engine is 10.0 % over process (tables and segments that were"},
		{"two steps below the bound", large * 108 / 100, large * 104 / 100, large, large, "device is 8.0 % over engine"},
		{"and the other way", large, large * 104 / 100, large * 108 / 100, large, "engine is 8.0 % over device"},
		{"a short row", slackBytes, 0, slackBytes, large, ""},
		{"other writers", large, large, large, large + 1, "client"},
	} {
		r := OverwriteRow{Device: c.device, Process: c.process, Engine: c.engine, UserBytes: large}
		if r.judge(c.user); (r.Invalid != "") != (c.want != "") || !strings.Contains(r.Invalid, c.want) {
			t.Errorf("%s: %q", c.name, r.Invalid)
		}
	}
}

func TestOverwriteFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(n int, r *mcbp.Response) []byte
		change func(c *counters, looks int)
		rows   int
		want   string
	}{
		{"a refused SET", func(n int, r *mcbp.Response) []byte {
			if n == 900 { // in the second window
				r.Status = mcbp.StatusOutOfMemory
			}
			return r.Append(nil)
		}, nil, 2, "2: 1 answers had status"},
		{"a document that is gone", func(_ int, r *mcbp.Response) []byte {
			if r.Opcode == mcbp.OpGet {
				r.Status, r.Extras, r.Value = mcbp.StatusNotFound, nil, nil
			}
			return r.Append(nil)
		}, nil, 7, "read back: 400 GETs missed"},
		{"a failed merge", nil, func(c *counters, looks int) {
			if looks == 3 {
				c.engine.CompactionsFailed, c.engine.CompactionError = 1, "torn"
			}
		}, 1, "1: 0 flushes failed (), 1 merges (torn)"},
		{"a read-only store", nil, func(c *counters, looks int) {
			if looks == 2 {
				c.engine.ReadOnly = "sync failed"
			}
		}, 0, "load: the store is read-only: sync failed"},
		{"memtables that are never flushed", nil, func(c *counters, _ int) { c.engine.MemtableEntries = 1 }, 6, "1 versions in memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, f := fakeOverwriting(t, c.answer)
			f.change = c.change
			if strings.Contains(c.want, "in memory") {
				w.o.SettleTimeout = 50 * time.Millisecond
			}
			rows, err := w.run(context.Background())
			if err == nil || !strings.Contains(err.Error(), c.want) || len(rows) != c.rows {
				t.Errorf("%d rows, error %v; want %d, %q", len(rows), err, c.rows, c.want)
			}
		})
	}
}

func TestOverwriteOptions(t *testing.T) {
	err := OverwriteOptions{Times: -1, Windows: 3, Quiet: time.Hour, Run: Options{Conns: -1}}.Validate()
	for _, want := range []string{"conns", "times", "windows", "settle", "/stats"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
	if _, err := Overwrite(context.Background(), OverwriteOptions{}); err == nil {
		t.Error("no server is accepted")
	}
}

// TestCountersOfThisMachine reads what Overwrite reads, of this process.
func TestCountersOfThisMachine(t *testing.T) {
	var e engineStats
	e.Written = engineWritten{Log: 5, GC: 6, Compaction: []int64{0, 7}}
	page := map[string]any{"engine": e, "server": 1}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stats" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(page)
	}))
	defer srv.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	s := source{stats: srv.URL + "/stats", pid: os.Getpid(), dir: dir}
	if got, err := s.engine(context.Background()); err != nil || got.Written.total() != 18 || !got.idle() || got.trouble() != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if n, err := ProcessBytes(os.Getpid()); err != nil && !errors.Is(err, os.ErrPermission) || n < 0 {
		t.Errorf("process: %d bytes, %v", n, err)
	}
	if err := SyncDirectory(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "MANIFEST-000007"), make([]byte, 50_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := manifestBytes(dir); err != nil || n < 50_000 || n > 99_000 {
		t.Errorf("manifest: %d bytes, %v", n, err)
	}
	if n, err := DirectoryBytes(dir); err != nil || n < 100_000 || n > 1_000_000 {
		t.Errorf("directory: %d bytes, %v", n, err)
	}
	// Memory and network file systems have no device.
	if n, err := DeviceBytes(dir); err == nil && n == 0 || err != nil && !strings.Contains(err.Error(), "diskstats") {
		t.Errorf("device: %d bytes, %v", n, err)
	}
	for name, bad := range map[string]source{
		"no such page":      {stats: srv.URL, pid: s.pid, dir: dir},
		"no such server":    {stats: "http://127.0.0.1:1/stats", pid: s.pid, dir: dir},
		"no such process":   {stats: s.stats, pid: 1 << 30, dir: dir},
		"no such directory": {stats: s.stats, pid: s.pid, dir: fmt.Sprint(dir, "x")},
	} {
		if _, err := bad.look(context.Background()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	delete(page, "engine")
	if _, err := s.engine(context.Background()); err == nil {
		t.Error("a page without an engine is accepted")
	}
}
