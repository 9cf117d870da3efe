package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"fluxkv/mcbp"
)

// fakeReads counts as a server would that reads a block for each GET, but for
// every tenth, whose block is cached.
type fakeReads struct {
	server *fakeServer
	loaded int
	change func(l *readLook, looks int)
	looks  int
	memErr error
}

func (f *fakeReads) look(context.Context) (l readLook, err error) {
	f.looks++
	f.server.mu.Lock()
	n := int64(f.server.n - f.loaded)
	f.server.mu.Unlock()
	e := &l.engine
	e.Gets, e.BlockCache.Hits = n, perPriority{n / 10, 7 * n}
	e.BlockReads = n - n/10
	e.DocumentCache.Hits, e.DocumentCache.NegativeHits = n/4, n/4
	e.IOEngine = "uring"
	l.device = DeviceIO{Reads: 1000 + e.BlockReads, ReadBytes: 1<<30 + 4096*e.BlockReads}
	l.process = IO{ReadBytes: 1<<20 + 4096*e.BlockReads}
	if f.change != nil {
		f.change(&l, f.looks)
	}
	return l, nil
}

func (f *fakeReads) memory() (Memory, error) {
	return Memory{Resident: 40 << 20, Peak: 50 << 20}, f.memErr
}

func fakeReading(t *testing.T, answer func(n int, r *mcbp.Response) []byte) (ReadOptions, *fakeReads) {
	s := startFake(t, answer)
	run := Options{Addr: s.addr(), Keys: 300, KeyBytes: 8, ValueBytes: 20, Conns: 2, Pipeline: 8}
	load := run
	load.Load = true
	if _, err := Run(context.Background(), load); err != nil {
		t.Fatal(err)
	}
	run.Operations, run.ServerPID, run.Verify = 2000, os.Getpid(), true
	o := ReadOptions{Name: "a row", Run: run, StatsURL: "x", Dir: "x", Quota: 30 << 20, Slack: 20 << 20}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o.withDefaults(), &fakeReads{server: s, loaded: int(run.Keys)}
}

func TestRead(t *testing.T) {
	o, f := fakeReading(t, nil)
	o.Run.Warmup = 10 * time.Millisecond
	o.ReadsMax, o.LeafHitsMax = 0.95, 0.2
	r, err := read(context.Background(), o, f)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Invalid)+len(r.Missed) > 0 || r.Verdict() != "valid" {
		t.Errorf("invalid %q, missed %q, %q", r.Invalid, r.Missed, r.Verdict())
	}
	leaf, ok := r.LeafHitShare()
	if r.Gets < r.Report.Gets || r.Gets == 0 || r.Device.Reads != r.Engine.Blocks || r.Engine.Device != r.Engine.Blocks ||
		r.Process.ReadBytes != r.Device.ReadBytes || !ok || leaf < 0.05 || leaf > 0.15 || r.HitShare() < 0.45 || r.HitShare() > 0.55 ||
		r.ReadsPerGet() < 0.85 || r.ReadsPerGet() > 0.95 || r.Memory.Peak != 50<<20 || r.Memory.Resident != 40<<20 {
		t.Errorf("%+v", r)
	}
	var head, text, line, doc bytes.Buffer
	if err := errors.Join(WriteReadHeader(&head), r.WriteText(&text), r.WriteLine(&line), r.WriteJSON(&doc)); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(head.String(), "\n")
	if a, b := strings.Count(first, "|"), strings.Count(text.String(), "|"); a != b || !strings.HasPrefix(text.String(), "| a row | 2x8 |") ||
		!strings.Contains(text.String(), "| 40, 50 | 50 | valid |") {
		t.Errorf("%d and %d cells in\n%s%s", a, b, &head, &text)
	}
	if a, b := strings.Count(line.String(), "\t"), strings.Count(ReadLineHeader, "\t"); a != b || !strings.HasSuffix(line.String(), "\t50\t0\t0\n") {
		t.Errorf("line %q has %d tabs, its header %d", &line, a, b)
	}
	if !json.Valid(doc.Bytes()) {
		t.Errorf("not JSON: %s", &doc)
	}
	// A server that counts all its reads in one place.
	f.change = func(l *readLook, _ int) { l.engine.DeviceReads.Reads, l.engine.BlockReads = l.device.Reads, 0 }
	if r, err = read(context.Background(), o, f); err != nil || len(r.Invalid) > 0 || r.Engine.Device != r.Device.Reads {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestReadJudges changes one thing at a time, after the counted run.
func TestReadJudges(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    func(o *ReadOptions)
		change func(l *readLook)
		want   string // in the verdict
	}{
		{"others read", nil, func(l *readLook) { l.device.Reads *= 2 }, "INVALID: the device had"},
		{"others read bytes", nil, func(l *readLook) { l.device.ReadBytes += 1 << 30 }, "of which the process"},
		{"merged reads were asked for", nil, func(l *readLook) { l.device.Reads, l.device.ReadsMerged = 1000, l.device.Reads-1000 }, "valid"},
		{"a page cache", func(o *ReadOptions) { o.Buffered = true }, func(l *readLook) {
			l.device, l.process = DeviceIO{Reads: 1000, ReadBytes: 1 << 30}, IO{ReadBytes: 1 << 20}
		}, "valid"},
		{"no page cache", nil, func(l *readLook) {
			l.device, l.process = DeviceIO{Reads: 1000, ReadBytes: 1 << 30}, IO{ReadBytes: 1 << 20}
		}, "INVALID: the device had 0"},
		{"a few reads of others", nil, func(l *readLook) { l.device.Reads += 250; l.device.ReadBytes += 1 << 20 }, "INVALID: the device had"},
		{"a few reads beside many GETs", func(o *ReadOptions) { o.Run.Operations = 60_000 }, func(l *readLook) {
			l.engine.BlockReads, l.device, l.process = 0, DeviceIO{Reads: 1055, ReadBytes: 1<<30 + 55<<12}, IO{ReadBytes: 1 << 20}
		}, "valid"},
		{"NOOPs while others read", func(o *ReadOptions) { o.Run.Workload = KindNoop }, func(l *readLook) { l.device.Reads *= 2; l.device.ReadBytes += 1 << 30 }, "valid"},
		{"a flush", nil, func(l *readLook) { l.engine.Flushes++ }, "1 flushes, merges and collections"},
		{"a merge that runs", nil, func(l *readLook) { l.engine.CompactionsNow = 1 }, "others may run"},
		{"a store that failed", nil, func(l *readLook) { l.engine.ReadOnly = "disk" }, "read-only"},
		{"what is corrupt", nil, func(l *readLook) { l.engine.CorruptReads = 3 }, "3 reads were corrupt"},
		{"another client", nil, func(l *readLook) { l.engine.Gets += 1000 }, "who else asks"},
		{"lost GETs", nil, func(l *readLook) { l.engine.Gets = 1 }, "who else asks"},
		{"too many reads", func(o *ReadOptions) { o.ReadsMax = 0.8 }, nil, "valid, MISSED: 0.9"},
		{"too much that is cached", func(o *ReadOptions) { o.LeafHitsMax = 0.05 }, nil, "valid, MISSED: "},
		{"too much memory", func(o *ReadOptions) { o.Quota = 10 << 20 }, nil, "valid, MISSED: resident memory reached 50 MiB, more than 30 MiB"},
		{"a rate that is too high", func(o *ReadOptions) { o.Run.Rate, o.Run.Runtime, o.Run.Operations = 5e6, 20*time.Millisecond, 0 }, nil, "a queue that grows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, f := fakeReading(t, nil)
			if c.set != nil {
				c.set(&o)
			}
			f.change = func(l *readLook, looks int) {
				if looks == 2 && c.change != nil {
					c.change(l)
				}
			}
			r, err := read(context.Background(), o, f)
			if err != nil {
				t.Fatal(err)
			}
			if v := r.Verdict(); !strings.Contains(v, c.want) || c.want == "valid" && v != "valid" {
				t.Errorf("verdict %q, want %q", v, c.want)
			}
		})
	}
	o, f := fakeReading(t, nil)
	f.server.mu.Lock()
	clear(f.server.docs)
	f.server.mu.Unlock()
	o.Run.Warmup = time.Millisecond
	r, err := read(context.Background(), o, f)
	if err != nil || !strings.Contains(r.Verdict(), "INVALID: warming up: ") || !strings.Contains(r.Verdict(), "GETs missed") {
		t.Errorf("misses: %+v, %v", r, err)
	}
	f.memErr = errors.New("gone")
	if _, err := read(context.Background(), o, f); !errors.Is(err, f.memErr) {
		t.Errorf("a server that is gone: %v", err)
	}
}

func TestReadOptions(t *testing.T) {
	err := ReadOptions{Quota: -1, LeafHitsMax: 2, Run: Options{Workload: KindSet, Conns: -1, Runtime: 1}}.Validate()
	for _, want := range []string{"/stats", "only reads", "quota", "up to 1", "conns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
	if _, err := Read(context.Background(), ReadOptions{}); err == nil {
		t.Error("no server is accepted")
	}
}

// TestStatsOfReads reads a page as the server writes it.
func TestStatsOfReads(t *testing.T) {
	var page struct{ Engine engineStats }
	const text = `{"engine": {"gets": 9, "block_reads": 3, "device_reads": {"Reads": 8, "Bytes": 4096, "InFlight": 1}, "block_cache": {"Hits": [5, 6], "Misses": 4},
		"document_cache": {"hits": 2, "negative_hits": 1}, "io_engine": "aio", "table_memory": 70, "table_bytes": 80, "table_entries": 90}}`
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		t.Fatal(err)
	}
	if got := countReads(&page.Engine); got != (ReadCounts{Blocks: 3, Device: 8, LeafHits: 5, Hits: 3}) {
		t.Errorf("%+v", got)
	}
	if e := &page.Engine; e.IOEngine != "aio" || e.TableMemory != 70 || e.TableBytes != 80 || e.TableEntries != 90 {
		t.Errorf("%+v", e)
	}
	if got := countReads(&engineStats{BlockReads: 1, IndexReads: 2, DocumentReads: 4}); got.Device != 7 {
		t.Errorf("an older server: %+v", got)
	}
	if ReadsBeside(0) != 64 || ReadsBeside(64_999) != 64 || ReadsBeside(1e6) != 1000 || BytesBeside(0) != 1<<20 || BytesBeside(1e6) != 8192000 {
		t.Error("what may be beside")
	}
	if a := []bool{Agree(100, 105, 0), Agree(105, 100, 0), Agree(100, 106, 0), Agree(0, 64, 64), Agree(0, 68, 64), Agree(0, 0, 0)}; !slices.Equal(a, []bool{true, true, false, true, false, true}) {
		t.Errorf("%v", a)
	}
}
