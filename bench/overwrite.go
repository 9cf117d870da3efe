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
	// Rate is in SETs a second, Worst that of the worst whole second.
	Rate      float64 `json:"per_second"`
	Worst     float64 `json:"worst_second_per_second"`
	UserBytes int64   `json:"user_bytes"` // keys and values

	Device  int64         `json:"device_bytes"`  // written to the device of the directory, by anyone
	Process int64         `json:"process_bytes"` // charged to the server by the kernel
	Engine  int64         `json:"engine_bytes"`  // counted by the engine
	Written engineWritten `json:"written_bytes"` // of those, by cause

	Disk int64 `json:"disk_bytes"` // that the directory takes
	Live int64 `json:"live_bytes"` // keys and values
	// Fixed is what files take that wait to be used again.
	Fixed int64 `json:"fixed_bytes"`
	// DiskMax is the most that the directory took at the end of a part of it, and
	// DiskMean the mean.
	DiskMax  int64   `json:"disk_max_bytes"`
	DiskMean float64 `json:"disk_mean_bytes"`

	Group       float64       `json:"writes_a_group"`
	Slowed      int64         `json:"slowed_writes"`
	SlowedTime  time.Duration `json:"slowed_nanoseconds"`
	Stalled     int64         `json:"stalled_writes"`
	StalledTime time.Duration `json:"stalled_nanoseconds"`

	// Invalid says why the figures are not to be used; empty when they are.
	Invalid string `json:"invalid,omitempty"`
}

// disagreement is how far device, process and engine may be apart, as a share
// of the largest. slackBytes come on top, for short rows: the engine counts a
// table or a segment when it is finished.
const (
	disagreement = 0.05
	slackBytes   = 4 << 20
)

// judge sets Invalid.
func (r *OverwriteRow) judge(engineUser int64) {
	most, least := max(r.Device, r.Process, r.Engine), min(r.Device, r.Process, r.Engine)
	var why []string
	if float64(most-least) > disagreement*float64(most)+slackBytes {
		why = append(why, "device, process and engine disagree")
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
}

// overwriting is a run of Overwrite.
type overwriting struct {
	o    OverwriteOptions
	from counting
	last counters
	live int64
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
	documents := w.o.Run.withDefaults()
	size := int64(documents.KeyBytes + documents.ValueBytes)
	w.live = int64(documents.Keys) * size
	if w.last, err = w.from.look(ctx); err != nil {
		return nil, err
	}
	add := func(name string, seconds float64, sent, sets int64, rate, worst float64) error {
		now, err := w.from.look(ctx)
		if err == nil {
			err = now.engine.trouble()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, w.row(name, now, seconds, sent*size))
		r := &rows[len(rows)-1]
		r.Operations, r.Rate, r.Worst = sets, rate, worst
		w.last = now
		if w.o.OnRow != nil {
			w.o.OnRow(r)
		}
		return nil
	}
	client := func(name string, r Options) error {
		report, err := Run(ctx, r)
		if err == nil && len(report.Trouble()) > 0 {
			err = errors.New(strings.Join(report.Trouble(), "; "))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		switch {
		case r.Load:
			return add(name, report.LoadSeconds, int64(r.Keys), int64(r.Keys), report.LoadRate, 0)
		case r.Workload == KindSet:
			return add(name, report.Seconds, report.Operations, report.Operations, report.Rate, report.Worst)
		}
		return nil
	}

	load := documents
	load.Load = true
	if err := client("load", load); err != nil {
		return rows, err
	}
	operations := uint64(w.o.Times * float64(documents.Keys))
	half := w.o.Windows / 2
	for i := range w.o.Windows {
		window := documents
		window.Seed += uint64(i)
		n := uint64(w.o.Windows)
		window.Operations = max(part(operations, uint64(i)+1, n)-part(operations, uint64(i), n), 1)
		if err := client(fmt.Sprint(i+1), window); err != nil {
			return rows, err
		}
	}
	began := time.Now()
	if err := w.settle(ctx, func(*engineStats) bool { return true }); err != nil {
		return rows, err
	}
	if err := add("settle", time.Since(began).Seconds(), 0, 0, 0, 0); err != nil {
		return rows, err
	}
	second := sum("half", rows[1+half:])
	if !w.o.SkipIdle {
		began = time.Now()
		if err := w.settle(ctx, func(e *engineStats) bool { return e.MemtableEntries == 0 }); err != nil {
			return rows, err
		}
		if err := add("idle", time.Since(began).Seconds(), 0, 0, 0, 0); err != nil {
			return rows, err
		}
	}
	check := documents
	check.Workload, check.Verify = KindGet, true
	check.Operations = min(documents.Keys, 100_000)
	if err := client("read back", check); err != nil {
		return rows, err
	}
	rows = append(rows, second)
	if w.o.OnRow != nil {
		w.o.OnRow(&rows[len(rows)-1])
	}
	return rows, nil
}

// row is what happened since the last look.
func (w *overwriting) row(name string, now counters, seconds float64, user int64) OverwriteRow {
	e, before := &now.engine, &w.last.engine
	r := OverwriteRow{
		Name: name, Seconds: seconds, UserBytes: user,
		Device: now.device - w.last.device, Process: now.process - w.last.process, Written: e.Written.add(before.Written, -1),
		Disk: now.disk, Live: w.live, Fixed: e.Log.PooledBytes, DiskMax: now.disk, DiskMean: float64(now.disk),
		Slowed: e.Slowed - before.Slowed, SlowedTime: e.SlowedTime - before.SlowedTime,
		Stalled: e.Stalled - before.Stalled, StalledTime: e.StalledTime - before.StalledTime,
	}
	r.Engine = r.Written.total()
	if groups := e.Log.Groups - before.Log.Groups; groups > 0 {
		r.Group = float64(e.Writes-before.Writes) / float64(groups)
	}
	r.judge(e.UserBytes - before.UserBytes)
	return r
}

// sum adds rows up. The last one may be that of settling.
func sum(name string, rows []OverwriteRow) OverwriteRow {
	last := &rows[len(rows)-1]
	s := OverwriteRow{Name: name, Disk: last.Disk, Live: last.Live, Fixed: last.Fixed}
	groups, running := 0.0, 0.0
	for i := range rows {
		r := &rows[i]
		s.Seconds += r.Seconds
		s.Operations += r.Operations
		s.UserBytes += r.UserBytes
		s.Device += r.Device
		s.Process += r.Process
		s.Engine += r.Engine
		s.Written = s.Written.add(r.Written, 1)
		s.DiskMax = max(s.DiskMax, r.Disk)
		s.DiskMean += float64(r.Disk) / float64(len(rows))
		s.Slowed += r.Slowed
		s.SlowedTime += r.SlowedTime
		s.Stalled += r.Stalled
		s.StalledTime += r.StalledTime
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
// been written for Quiet.
func (w *overwriting) settle(ctx context.Context, done func(*engineStats) bool) error {
	deadline := time.Now().Add(w.o.SettleTimeout)
	quiet, written := time.Now(), int64(-1)
	for {
		e, err := w.from.engine(ctx)
		if err == nil {
			err = e.trouble()
		}
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		now := time.Now()
		if n := e.Written.total(); n != written || !e.idle() || !done(&e) {
			quiet, written = now, n
		}
		if now.Sub(quiet) >= w.o.Quiet {
			return nil
		}
		if now.After(deadline) {
			return fmt.Errorf("settle: something still runs after %v: %d flushes, %d merges, collecting %v, %d versions in memory",
				w.o.SettleTimeout, e.FlushesNow, e.CompactionsNow, e.CollectingNow, e.MemtableEntries)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settlePoll):
		}
	}
}
