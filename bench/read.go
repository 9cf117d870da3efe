package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// ReadOptions configures Read. The zero value of a field means its default.
type ReadOptions struct {
	// Name stands in the row.
	Name string
	// Run is what is sent, GETs or NOOPs of keys that are there, to a server of this
	// machine that nobody else uses: ServerPID is its process. Warmup is a run of
	// its own, in a closed loop.
	Run Options
	// StatsURL is the address of its /stats.
	StatsURL string
	// Dir is its directory.
	Dir string
	// Buffered says that it reads through the page cache, so that its own count of
	// reads is not the device's.
	Buffered bool
	// Quota and Slack bound its resident memory together, in bytes. Default of
	// Quota: no bound; of Slack: 150 MiB.
	Quota, Slack int64
	// ReadsMax is the most device reads a GET that are asked for. Default: any.
	ReadsMax float64
	// LeafHitsMax is the largest share of look-ups of data blocks that their cache
	// may answer, 0..1: a figure of fewer reads is none of a data set that is larger
	// than memory. Default: any.
	LeafHitsMax float64
}

func (o ReadOptions) withDefaults() ReadOptions {
	o.Run = o.Run.withDefaults()
	o.Slack = cmp.Or(o.Slack, 150<<20)
	return o
}

// Validate reports every option that is out of bounds, in one error.
func (o ReadOptions) Validate() error {
	o = o.withDefaults()
	errs := []error{o.Run.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.StatsURL == "" || o.Dir == "" || o.Run.ServerPID == 0 {
		bad("want the address of /stats, the directory and the process id of the server")
	}
	if o.Run.Workload != KindGet && o.Run.Workload != KindNoop || o.Run.Load {
		bad("workload %q, load %v: want only reads", o.Run.Workload, o.Run.Load)
	}
	if o.Quota < 0 || o.Slack < 0 {
		bad("quota %d and slack %d: want 0 or more", o.Quota, o.Slack)
	}
	if !(o.ReadsMax >= 0) || !(o.LeafHitsMax >= 0 && o.LeafHitsMax <= 1) {
		bad("at most %v reads a GET and %v of leaf look-ups: want 0, or more; shares up to 1", o.ReadsMax, o.LeafHitsMax)
	}
	return errors.Join(errs...)
}

// ReadRow is what Read saw, all of it between two looks at all counters around
// the counted run.
type ReadRow struct {
	Name   string  `json:"name"`
	Report *Report `json:"report"`
	// Gets are those that the engine answered, so also the last ones, which came
	// too late to be timed.
	Gets int64 `json:"gets"`
	// Device is what anyone did to the device, Process what the kernel charges to
	// the server, Engine what it counts itself.
	Device  DeviceIO   `json:"device"`
	Process IO         `json:"process"`
	Engine  ReadCounts `json:"engine"`
	// Memory is the most that was resident in this row, at looks each second, and
	// since the server began.
	Memory Memory `json:"memory"`
	// Limit is what Memory may reach; 0 is no bound.
	Limit    int64  `json:"limit"`
	IOEngine string `json:"io_engine,omitempty"`
	// Invalid says what keeps the figures from being those of reads of a store at
	// rest; it is empty for a row that counts.
	Invalid []string `json:"invalid"`
	// Missed says which limits that were asked for do not hold.
	Missed []string `json:"missed"`
}

// ReadCounts are the engine's own counters of reads.
type ReadCounts struct {
	Blocks    int64 `json:"blocks"`    // data blocks of tables, read
	Index     int64 `json:"index"`     // indexes and filters of tables, read
	Documents int64 `json:"documents"` // of the log, read
	Device    int64 `json:"device"`    // all that went to the I/O engine
	LeafHits  int64 `json:"leaf_hits"` // data blocks that their cache had
	Hits      int64 `json:"hits"`      // GETs that the document cache answered
}

func countReads(e *engineStats) ReadCounts {
	c := ReadCounts{
		Blocks: e.BlockReads, Index: e.IndexReads, Documents: e.DocumentReads,
		LeafHits: e.BlockCache.Hits.data(), Hits: e.DocumentCache.Hits + e.DocumentCache.NegativeHits,
	}
	c.Device = e.DeviceReads.Reads
	if c.Device == 0 { // a server that does not count them apart
		c.Device = c.Blocks + c.Index + c.Documents
	}
	return c
}

func (c ReadCounts) sub(o ReadCounts) ReadCounts {
	return ReadCounts{
		Blocks: c.Blocks - o.Blocks, Index: c.Index - o.Index, Documents: c.Documents - o.Documents, Device: c.Device - o.Device,
		LeafHits: c.LeafHits - o.LeafHits, Hits: c.Hits - o.Hits,
	}
}

// readLook is one look at everything that counts reads.
type readLook struct {
	engine  engineStats
	device  DeviceIO
	process IO
}

// readSource is a server on this machine, or one of a test.
type readSource interface {
	look(ctx context.Context) (readLook, error)
	memory() (Memory, error)
}

// serverReads is a server on this machine.
type serverReads struct{ source }

func (s serverReads) look(ctx context.Context) (l readLook, err error) {
	var errs [3]error
	l.engine, errs[0] = s.engine(ctx)
	l.device, errs[1] = DeviceOf(s.dir)
	l.process, errs[2] = ProcessIO(s.pid)
	return l, errors.Join(errs[:]...)
}

func (s serverReads) memory() (Memory, error) { return ProcessMemory(s.pid) }

// Read warms up, measures GETs, and judges whether their figures count. An error
// means that there is no row.
func Read(ctx context.Context, o ReadOptions) (*ReadRow, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	// What was written before is not to be read back from the device's queue.
	if err := SyncDirectory(o.Dir); err != nil {
		return nil, err
	}
	return read(ctx, o, serverReads{source{stats: o.StatsURL, pid: o.Run.ServerPID, dir: o.Dir}})
}

func read(ctx context.Context, o ReadOptions, from readSource) (*ReadRow, error) {
	r := &ReadRow{Name: o.Name}
	memory := watchMemory(ctx, from, watchEvery)
	defer memory.stop()
	if o.Run.Warmup > 0 {
		warm := o.Run
		warm.Runtime, warm.Warmup, warm.Operations, warm.Rate, warm.Burst = o.Run.Warmup, 0, 0, 0, 1
		warm.Seed += 1 << 20 // other keys than those that are counted
		report, err := Run(ctx, warm)
		if err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		for _, t := range report.Trouble() {
			r.Invalid = append(r.Invalid, "warming up: "+t)
		}
	}
	before, err := from.look(ctx)
	if err != nil {
		return nil, err
	}
	run := o.Run
	run.Warmup = 0
	if r.Report, err = Run(ctx, run); err != nil {
		return nil, err
	}
	after, err := from.look(ctx)
	if err != nil {
		return nil, err
	}
	if r.Memory, err = memory.stop(); err != nil {
		return nil, err
	}
	r.Gets = after.engine.Gets - before.engine.Gets
	r.Device = after.device.Sub(before.device)
	r.Process = IO{ReadBytes: after.process.ReadBytes - before.process.ReadBytes, WriteBytes: after.process.WriteBytes - before.process.WriteBytes}
	r.Engine = countReads(&after.engine).sub(countReads(&before.engine))
	r.IOEngine = after.engine.IOEngine
	r.judge(&o, &before.engine, &after.engine)
	return r, nil
}

// memoryWatch looks at the memory of a server until it is stopped.
type memoryWatch struct {
	from readSource
	most Memory
	end  func() error
}

func watchMemory(ctx context.Context, from readSource, every time.Duration) *memoryWatch {
	w := &memoryWatch{from: from}
	w.end = Every(ctx, every, w.look)
	return w
}

func (w *memoryWatch) look() error {
	m, err := w.from.memory()
	w.most = Memory{Resident: max(w.most.Resident, m.Resident), Peak: max(w.most.Peak, m.Peak)}
	return err
}

// stop looks once more, and returns the most that was seen.
func (w *memoryWatch) stop() (Memory, error) {
	err := w.end()
	if err == nil {
		err = w.look()
	}
	return w.most, err
}

// agreeShare is the share of the larger of two counters by which they may differ.
const agreeShare = 0.05

// ReadsBeside is how many reads of others do not matter beside so many GETs: what
// a system does anyhow, and one in a thousand, which changes no figure that is
// printed.
func ReadsBeside(gets int64) int64 { return max(64, gets/1000) }

// BytesBeside is the same for their bytes.
func BytesBeside(gets int64) int64 { return max(1<<20, ReadsBeside(gets)*8192) }

// Agree reports whether two counters of the same thing agree.
func Agree(a, b, beside int64) bool {
	return math.Abs(float64(a-b)) <= agreeShare*float64(max(a, b))+float64(beside)
}

// judge sets Invalid and Missed.
func (r *ReadRow) judge(o *ReadOptions, before, after *engineStats) {
	bad := func(format string, args ...any) { r.Invalid = append(r.Invalid, fmt.Sprintf(format, args...)) }
	missed := func(format string, args ...any) { r.Missed = append(r.Missed, fmt.Sprintf(format, args...)) }
	r.Invalid = append(r.Invalid, r.Report.Trouble()...)
	if err := after.trouble(); err != nil {
		bad("%v", err)
	}
	if n := after.CorruptReads - before.CorruptReads; n > 0 {
		bad("%d reads were corrupt", n)
	}
	jobs := after.Flushes - before.Flushes + after.Compactions - before.Compactions + after.Collections - before.Collections
	if jobs > 0 || !before.idle() || !after.idle() {
		bad("%d flushes, merges and collections ran meanwhile, and others may run", jobs)
	}
	gets := o.Run.Workload == KindGet // NOOPs read nothing, whatever others do
	beside := ReadsBeside(r.Gets)
	if gets {
		open := int64(o.Run.Conns) * int64(o.Run.Pipeline)
		if d := r.Gets - r.Report.Gets; d < 0 || d > open && o.Run.Rate == 0 {
			bad("the engine answered %d GETs, the client counted %d: who else asks?", r.Gets, r.Report.Gets)
		}
	}
	// What the kernel merged was asked for, too.
	if n := r.Device.Reads + r.Device.ReadsMerged; gets && !o.Buffered && !Agree(n, r.Engine.Device, beside) {
		bad("the device had %d reads, the engine asked for %d", n, r.Engine.Device)
	}
	if gets && !Agree(r.Device.ReadBytes, r.Process.ReadBytes, BytesBeside(r.Gets)) {
		bad("the device read %d bytes, of which the process %d", r.Device.ReadBytes, r.Process.ReadBytes)
	}
	if o.Quota > 0 {
		r.Limit = o.Quota + o.Slack
	}
	if r.Limit > 0 && r.Memory.Peak > r.Limit {
		missed("resident memory reached %d MiB, more than %d MiB", r.Memory.Peak>>20, r.Limit>>20)
	}
	if x := o.Run.Rate; x > 0 && r.Report.Rate < 0.98*x {
		bad("%s of %s requests a second: latencies are those of a queue that grows", Count(r.Report.Rate), Count(x))
	}
	if x := r.ReadsPerGet(); o.ReadsMax > 0 && x > o.ReadsMax {
		missed("%.3f reads a GET, more than %.2f", x, o.ReadsMax)
	}
	if x, ok := r.LeafHitShare(); ok && o.LeafHitsMax > 0 && x > o.LeafHitsMax {
		missed("%.1f %% of leaf look-ups hit, more than %.1f %%", 100*x, 100*o.LeafHitsMax)
	}
}

// ReadsPerGet returns reads that the device completed for each GET.
func (r *ReadRow) ReadsPerGet() float64 { return share(r.Device.Reads, r.Gets) }

// LeafHitShare returns which share of look-ups of data blocks their cache
// answered, and false when there were none.
func (r *ReadRow) LeafHitShare() (float64, bool) {
	n := r.Engine.LeafHits + r.Engine.Blocks
	return share(r.Engine.LeafHits, n), n > 0
}

// HitShare returns which share of GETs the document cache answered.
func (r *ReadRow) HitShare() float64 { return share(r.Engine.Hits, r.Gets) }

// share returns a / b, and 0 without b.
func share(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

var readColumns = []string{
	"row", "shape", "GETs/s", "p50 us", "p99 us", "CPU us/GET", "device reads/GET", "merged/GET", "device B/GET", "engine reads/GET",
	"leaf hits", "document hits", "RSS MiB, peak", "quota + slack MiB", "verdict",
}

// WriteReadHeader writes the head of the table that WriteText goes on with.
func WriteReadHeader(w io.Writer) error {
	_, err := fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(readColumns, " | "), strings.Repeat("---|", len(readColumns)))
	return err
}

// Verdict is "valid", with what was asked for and missed, or "INVALID" and why.
func (r *ReadRow) Verdict() string {
	if len(r.Invalid) > 0 {
		return "INVALID: " + strings.Join(append(r.Invalid, r.Missed...), "; ")
	}
	if len(r.Missed) > 0 {
		return "valid, MISSED: " + strings.Join(r.Missed, "; ")
	}
	return "valid"
}

// ReadLineHeader names the columns of WriteLine.
const ReadLineHeader = "per_second\tp50_us\tp99_us\tserver_us\tdevice_reads\tdevice_bytes\tleaf_hits\tdocument_hits\tpeak_mib\tinvalid\tmissed"

// WriteLine writes the figures as one tab-separated line, for scripts: reads and
// bytes are those of a GET, hits are shares, the last two are counts.
func (r *ReadRow) WriteLine(w io.Writer) error {
	l := cmp.Or(r.Report.GetLatency, &Latency{})
	c := cmp.Or(r.Report.ServerCPU, &CPU{})
	leaf, _ := r.LeafHitShare()
	_, err := fmt.Fprintf(w, "%.0f\t%.1f\t%.1f\t%.4f\t%.4f\t%.0f\t%.4f\t%.4f\t%d\t%d\t%d\n", r.Report.Rate, l.P50, l.P99, c.MicrosPerOperation,
		r.ReadsPerGet(), share(r.Device.ReadBytes, r.Gets), leaf, r.HitShare(), r.Memory.Peak>>20, len(r.Invalid), len(r.Missed))
	return err
}

// WriteText writes the row of a table.
func (r *ReadRow) WriteText(w io.Writer) error {
	o := &r.Report.Options
	l := cmp.Or(r.Report.GetLatency, &Latency{})
	cpu := "-"
	if c := r.Report.ServerCPU; c != nil {
		cpu = fmt.Sprintf("%.2f", c.MicrosPerOperation)
	}
	leaf := "-"
	if x, ok := r.LeafHitShare(); ok {
		leaf = fmt.Sprintf("%.1f %%", 100*x)
	}
	shape := fmt.Sprintf("%dx%d", o.Conns, o.Pipeline)
	if o.Rate > 0 {
		shape += " at " + Count(o.Rate) + "/s"
	}
	limit := "-"
	if r.Limit > 0 {
		limit = fmt.Sprintf("%d", r.Limit>>20)
	}
	cells := []string{
		r.Name, shape, Count(r.Report.Rate), Count(l.P50), Count(l.P99), cpu,
		fmt.Sprintf("%.3f", r.ReadsPerGet()), fmt.Sprintf("%.3f", share(r.Device.ReadsMerged, r.Gets)),
		fmt.Sprintf("%.0f", share(r.Device.ReadBytes, r.Gets)), fmt.Sprintf("%.3f", share(r.Engine.Device, r.Gets)),
		leaf, fmt.Sprintf("%.1f %%", 100*r.HitShare()),
		fmt.Sprintf("%d, %d", r.Memory.Resident>>20, r.Memory.Peak>>20), limit, r.Verdict(),
	}
	_, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	return err
}

// WriteJSON writes everything as one indented JSON object.
func (r *ReadRow) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Rest is what a store has in its tables when it is at rest.
type Rest struct {
	TableBytes   int64 // of files
	TableEntries int64
	TableMemory  int64 // of filters and indexes that are open
}

// Settle waits until nothing has run in the background of a server for quiet, and
// with empty until nothing is left in its memtables, at most for timeout.
func Settle(ctx context.Context, statsURL string, quiet, timeout time.Duration, empty bool) (Rest, error) {
	o := OverwriteOptions{Quiet: quiet, SettleTimeout: timeout}
	s := source{stats: statsURL}
	w := &overwriting{o: o, from: s}
	if _, err := w.settle(ctx, func(e *engineStats) bool { return !empty || e.MemtableEntries == 0 }); err != nil {
		return Rest{}, err
	}
	e, err := s.engine(ctx)
	return Rest{TableBytes: e.TableBytes, TableEntries: e.TableEntries, TableMemory: e.TableMemory}, err
}
