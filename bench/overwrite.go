package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// OverwriteOptions configures Overwrite. The zero value of a field means its
// default.
type OverwriteOptions struct {
	// Run is the client and the documents. Workload, Load, Runtime, Operations
	// and Verify are Overwrite's; ServerPID is required.
	Run Options
	// StatsURL is the address of the server's /stats, Dir its directory. Required.
	StatsURL, Dir string
	// Times is how often the data is overwritten, W. Default 2.
	Times float64
	// Windows is how many parts of equal length that has, an even number.
	// Default 8.
	Windows int
	// Quiet is how long nothing must run in the background, and nothing be
	// written, for a store to have settled. Default 2 s.
	Quiet time.Duration
	// SettleTimeout bounds the waits for that. Default 15 minutes.
	SettleTimeout time.Duration
	// SkipIdle leaves out the last row, for which an idle store flushes its
	// memtables and gives back what that allows.
	SkipIdle bool
	// OnRow, if given, is called with each row as soon as it is there.
	OnRow func(*OverwriteRow)
}

func (o OverwriteOptions) withDefaults() OverwriteOptions {
	if o.Times == 0 {
		o.Times = 2
	}
	if o.Windows == 0 {
		o.Windows = 8
	}
	if o.Quiet == 0 {
		o.Quiet = 2 * time.Second
	}
	if o.SettleTimeout == 0 {
		o.SettleTimeout = 15 * time.Minute
	}
	o.Run.Workload, o.Run.Load, o.Run.Verify = KindSet, false, false
	o.Run.Runtime, o.Run.Warmup, o.Run.Operations = 0, 0, 0
	return o
}

// Validate reports every option that is out of bounds, in one error.
func (o OverwriteOptions) Validate() error {
	o = o.withDefaults()
	r := o.Run
	r.Load = true
	errs := []error{r.Validate()}
	if !(o.Times > 0 && o.Times <= 1000) {
		errs = append(errs, fmt.Errorf("times %v: want more than 0, up to 1000", o.Times))
	}
	if o.Windows < 2 || o.Windows > 1000 || o.Windows%2 != 0 {
		errs = append(errs, fmt.Errorf("windows %d: want an even number up to 1000", o.Windows))
	}
	if o.Quiet < 0 || o.SettleTimeout < o.Quiet {
		errs = append(errs, fmt.Errorf("quiet %v, settle timeout %v: want the second to be longer", o.Quiet, o.SettleTimeout))
	}
	if o.StatsURL == "" || o.Dir == "" || r.ServerPID == 0 {
		errs = append(errs, errors.New("want the server's address of /stats, its directory and its process id"))
	}
	return errors.Join(errs...)
}

// OverwriteRow is what happened in one part of the run. Bytes are differences
// from its begin to its end, Disk is at its end.
type OverwriteRow struct {
	// Name is load, the number of a window from 1 on, settle (what was under way
	// when the last window ended), idle, or half: the second half of the windows
	// and settle together.
	Name       string  `json:"name"`
	Seconds    float64 `json:"seconds"`
	Operations int64   `json:"operations"`
	// Rate is in SETs a second, Worst that of the worst whole second. Stall is the
	// longest time without an answer, in seconds. P99 and Max are of the latency
	// of a SET, in microseconds; of several rows they are the largest.
	Rate      float64 `json:"per_second"`
	Worst     float64 `json:"worst_second_per_second"`
	Stall     float64 `json:"longest_stall_seconds"`
	P99       float64 `json:"p99_us"`
	Max       float64 `json:"max_us"`
	UserBytes int64   `json:"user_bytes"` // keys and values

	Device  int64         `json:"device_bytes"`  // written to the device of the directory, by anyone
	Process int64         `json:"process_bytes"` // charged to the server by the kernel
	Engine  int64         `json:"engine_bytes"`  // counted by the engine
	Written engineWritten `json:"written_bytes"` // of those, by cause

	Disk int64 `json:"disk_bytes"` // that the directory takes
	Live int64 `json:"live_bytes"` // keys and values
	// Fixed is what files take whatever is live.
	Fixed fixedBytes `json:"fixed_bytes"`
	// DiskMax is the most that the directory took in it, looked at each second, and
	// DiskMean the mean.
	DiskMax  int64   `json:"disk_max_bytes"`
	DiskMean float64 `json:"disk_mean_bytes"`

	Group   float64 `json:"writes_a_group"`
	Slowed  int64   `json:"slowed_writes"`
	Stalled int64   `json:"stalled_writes"`
	HeldUp  heldUp  `json:"held_up"`

	Flushes     int64 `json:"flushes"`
	Merges      int64 `json:"merges"`
	Collections int64 `json:"collections"`
	// Settle is the time from when nothing was sent any more until nothing ran in the
	// background, in seconds; Quiet is not in it.
	Settle float64 `json:"settle_seconds"`

	// Invalid says why the figures are not to be used; empty when they are.
	Invalid string `json:"invalid,omitempty"`
}

// disagreement is how far two of device, process and engine may be apart, as a
// share of the larger. slackBytes come on top, for short rows: the engine counts
// a table or a segment when it is finished.
const (
	disagreement = 0.05
	slackBytes   = 4 << 20
)

// counted is who counts bytes, and why the pair of counts may be apart: when the
// first is larger, and when the second is.
var countedPairs = []struct {
	more, less         string
	of                 func(r *OverwriteRow) (more, less int64)
	moreWhen, lessWhen string
}{
	{"device", "process", func(r *OverwriteRow) (int64, int64) { return r.Device, r.Process },
		"journal and metadata of the file system, or another program", "bytes that were replaced or removed before they were written back"},
	{"process", "engine", func(r *OverwriteRow) (int64, int64) { return r.Process, r.Engine },
		"tables and segments under way, which the engine counts when they are finished", "tables and segments that were written before and finished now"},
}

// judge sets Invalid.
func (r *OverwriteRow) judge(engineUser int64) {
	var why []string
	apart := func(a, b int64) bool {
		return float64(max(a, b)-min(a, b)) > disagreement*float64(max(a, b))+slackBytes
	}
	say := func(more string, a int64, less string, b int64, reason string) {
		why = append(why, fmt.Sprintf("%s is %.1f %% over %s (%s)", more, 100*float64(a-b)/float64(max(b, 1)), less, reason))
	}
	for _, p := range countedPairs {
		switch a, b := p.of(r); {
		case !apart(a, b):
		case a > b:
			say(p.more, a, p.less, b, p.moreWhen)
		default:
			say(p.less, b, p.more, a, p.lessWhen)
		}
	}
	if len(why) == 0 && apart(r.Device, r.Engine) {
		if r.Device > r.Engine {
			say("device", r.Device, "engine", r.Engine, "a little of both: the file system's own, and what is under way")
		} else {
			say("engine", r.Engine, "device", r.Device, "a little of both: what was written before, and what was replaced in memory")
		}
	}
	if engineUser != r.UserBytes {
		why = append(why, fmt.Sprintf("the engine counts %d bytes of keys and values, the client %d", engineUser, r.UserBytes))
	}
	r.Invalid = strings.Join(why, "; ")
}

// counting is where counters come from.
type counting interface {
	look(context.Context) (counters, error)
	engine(context.Context) (engineStats, error)
	disk() (int64, error)
}

// overwriting is a run of Overwrite.
type overwriting struct {
	o    OverwriteOptions
	from counting
	last counters
	size int64 // bytes of a document
	live int64
	rows []OverwriteRow
}

// Overwrite loads every key once and overwrites the keys Times times the data,
// and returns a row for the load, for each window, for the time until nothing
// ran in the background any more, for the idle store, and for the second half.
// No row comes after an answer that was an error or after anything in the
// background failed: then, and when a key does not read back right at the end,
// Overwrite fails.
func Overwrite(ctx context.Context, o OverwriteOptions) ([]OverwriteRow, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	w := &overwriting{o: o, from: source{stats: o.StatsURL, pid: o.Run.ServerPID, dir: o.Dir}}
	return w.run(ctx)
}

func (w *overwriting) run(ctx context.Context) (rows []OverwriteRow, err error) {
	defer func() { rows = w.rows }()
	documents := w.begin()
	if w.last, err = w.from.look(ctx); err != nil {
		return nil, err
	}
	load := documents
	load.Load = true
	if _, err := w.client(ctx, "load", load); err != nil {
		return nil, err
	}
	half := len(w.rows) + w.o.Windows/2
	if err := w.windows(ctx, documents, w.o.Times, w.o.Windows); err != nil {
		return nil, err
	}
	if err := w.rest(ctx, "settle", func(*engineStats) bool { return true }); err != nil {
		return nil, err
	}
	second := sum("half", w.rows[half:])
	if !w.o.SkipIdle {
		if err := w.rest(ctx, "idle", func(e *engineStats) bool { return e.MemtableEntries == 0 }); err != nil {
			return nil, err
		}
	}
	if err := w.readBack(ctx, documents); err != nil {
		return nil, err
	}
	w.append(second)
	return nil, nil
}

// begin returns the options of the client, and notes what is live.
func (w *overwriting) begin() Options {
	documents := w.o.Run.withDefaults()
	w.size = int64(documents.KeyBytes + documents.ValueBytes)
	w.live = int64(documents.Keys) * w.size
	return documents
}

// windows overwrites the data, times of it, in n parts of equal length.
func (w *overwriting) windows(ctx context.Context, documents Options, times float64, n int) error {
	operations := uint64(times * float64(documents.Keys))
	for i := range uint64(n) {
		window := documents
		window.Seed += i
		window.Operations = max(part(operations, i+1, uint64(n))-part(operations, i, uint64(n)), 1)
		if _, err := w.client(ctx, fmt.Sprint(i+1), window); err != nil {
			return err
		}
	}
	return nil
}

// client runs the client, and adds a row when it wrote. It fails unless the
// report is clean.
func (w *overwriting) client(ctx context.Context, name string, r Options) (*Report, error) {
	var report *Report
	disk, err := w.watch(ctx, func() (err error) {
		report, err = Run(ctx, r)
		return err
	})
	if err == nil && len(report.Trouble()) > 0 {
		err = errors.New(strings.Join(report.Trouble(), "; "))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	row := OverwriteRow{Name: name}
	switch {
	case r.Load:
		row.Seconds, row.Operations, row.Rate = report.LoadSeconds, int64(r.Keys), report.LoadRate
	case r.Workload == KindSet:
		row.Seconds, row.Operations, row.Rate = report.Seconds, report.Operations, report.Rate
		row.Worst, row.Stall = report.Worst, report.Stall
		if l := report.SetLatency; l != nil {
			row.P99, row.Max = l.P99, l.P100
		}
	default:
		return report, nil
	}
	row.UserBytes = row.Operations * w.size
	return report, w.add(ctx, row, disk, r.Runtime > 0)
}

// rest waits until the store has settled and done holds, and adds a row of it.
func (w *overwriting) rest(ctx context.Context, name string, done func(*engineStats) bool) error {
	began := time.Now()
	settled := began
	disk, err := w.watch(ctx, func() (err error) {
		settled, err = w.settle(ctx, done)
		return err
	})
	if err != nil {
		return err
	}
	return w.add(ctx, OverwriteRow{Name: name, Seconds: time.Since(began).Seconds(), Settle: settled.Sub(began).Seconds()}, disk, false)
}

// readBack reads some of the keys, and compares.
func (w *overwriting) readBack(ctx context.Context, documents Options) error {
	documents.Workload, documents.Verify = KindGet, true
	documents.Operations = min(documents.Keys, 100_000)
	_, err := w.client(ctx, "read back", documents)
	return err
}

// watchEvery is the time between two looks at what the directory takes.
const watchEvery = time.Second

// diskLooks is what the directory took at several looks.
type diskLooks struct {
	max, sum, n int64
}

func (d *diskLooks) add(n int64) {
	d.max = max(d.max, n)
	d.sum += n
	d.n++
}

// watch looks at the directory each second while do runs.
func (w *overwriting) watch(ctx context.Context, do func() error) (d diskLooks, err error) {
	stop := Every(ctx, watchEvery, func() error {
		n, err := w.from.disk()
		if err == nil {
			d.add(n)
		}
		return err
	})
	err = do()
	err = errors.Join(err, stop())
	return d, err
}

// add looks at everything that counts, and adds the row of what happened since
// the last look. Where the client does not know what it sent, warming up
// included, the engine does.
func (w *overwriting) add(ctx context.Context, r OverwriteRow, disk diskLooks, engineKnows bool) error {
	now, err := w.from.look(ctx)
	if err == nil {
		err = now.engine.trouble()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	e, before := &now.engine, &w.last.engine
	user := e.UserBytes - before.UserBytes
	if engineKnows {
		r.UserBytes, r.Operations = user, user/w.size
	}
	r.Device, r.Process, r.Written = now.device-w.last.device, now.process-w.last.process, e.Written.add(before.Written, -1)
	r.Engine = r.Written.total()
	r.Disk, r.Live, r.Fixed = now.disk, w.live, now.fixed()
	disk.add(now.disk)
	r.DiskMax, r.DiskMean = disk.max, float64(disk.sum)/float64(disk.n)
	r.Slowed, r.Stalled, r.HeldUp = e.Slowed-before.Slowed, e.Stalled-before.Stalled, e.heldUp().add(before.heldUp(), -1)
	r.Flushes, r.Merges, r.Collections = e.Flushes-before.Flushes, e.Compactions-before.Compactions, e.Collections-before.Collections
	if groups := e.Log.Groups - before.Log.Groups; groups > 0 {
		r.Group = float64(e.Writes-before.Writes) / float64(groups)
	}
	r.judge(user)
	w.last = now
	w.append(r)
	return nil
}

func (w *overwriting) append(r OverwriteRow) {
	w.rows = append(w.rows, r)
	if w.o.OnRow != nil {
		w.o.OnRow(&w.rows[len(w.rows)-1])
	}
}

// sum adds rows up. The last one may be that of settling.
func sum(name string, rows []OverwriteRow) OverwriteRow {
	last := &rows[len(rows)-1]
	s := OverwriteRow{Name: name, Disk: last.Disk, Live: last.Live, Fixed: last.Fixed}
	groups, running := 0.0, 0.0
	for i := range rows {
		r := &rows[i]
		s.Seconds += r.Seconds
		s.Settle += r.Settle
		s.Operations += r.Operations
		s.UserBytes += r.UserBytes
		s.Device += r.Device
		s.Process += r.Process
		s.Engine += r.Engine
		s.Written = s.Written.add(r.Written, 1)
		s.DiskMax = max(s.DiskMax, r.DiskMax)
		s.DiskMean += r.DiskMean * r.Seconds
		s.Slowed += r.Slowed
		s.Stalled += r.Stalled
		s.HeldUp = s.HeldUp.add(r.HeldUp, 1)
		s.Flushes += r.Flushes
		s.Merges += r.Merges
		s.Collections += r.Collections
		s.Stall, s.P99, s.Max = max(s.Stall, r.Stall), max(s.P99, r.P99), max(s.Max, r.Max)
		if r.Operations > 0 {
			running += r.Seconds
			if r.Group > 0 {
				groups += float64(r.Operations) / r.Group
			}
			if r.Worst > 0 && (s.Worst == 0 || r.Worst < s.Worst) {
				s.Worst = r.Worst
			}
		}
	}
	if s.Seconds > 0 {
		s.DiskMean /= s.Seconds
	}
	if running > 0 {
		s.Rate = float64(s.Operations) / running
	}
	if groups > 0 {
		s.Group = float64(s.Operations) / groups
	}
	s.judge(s.UserBytes)
	return s
}

// settlePoll is the time between two looks at a store that settles.
const settlePoll = 100 * time.Millisecond

// settle waits until nothing runs in the background, done holds, and nothing has
// been written for Quiet, and returns since when.
func (w *overwriting) settle(ctx context.Context, done func(*engineStats) bool) (time.Time, error) {
	deadline := time.Now().Add(w.o.SettleTimeout)
	quiet, written := time.Now(), int64(-1) // the first look is not a change
	for {
		e, err := w.from.engine(ctx)
		if err == nil {
			err = e.trouble()
		}
		if err != nil {
			return quiet, fmt.Errorf("settle: %w", err)
		}
		now := time.Now()
		n := e.Written.total()
		if written >= 0 && n != written || !e.idle() || !done(&e) {
			quiet = now
		}
		written = n
		if now.Sub(quiet) >= w.o.Quiet {
			return quiet, nil
		}
		if now.After(deadline) {
			return quiet, fmt.Errorf("settle: something still runs after %v: %d flushes, %d merges, collecting %v, %d versions in memory",
				w.o.SettleTimeout, e.FlushesNow, e.CompactionsNow, e.CollectingNow, e.MemtableEntries)
		}
		select {
		case <-ctx.Done():
			return quiet, ctx.Err()
		case <-time.After(settlePoll):
		}
	}
}
