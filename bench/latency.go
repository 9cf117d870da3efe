package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// LatencyOptions configures OverwriteLatency. The zero value of a field means its
// default.
type LatencyOptions struct {
	// OverwriteOptions are as for Overwrite; Times is what is overwritten before
	// anything is measured, default 1. Windows and SkipIdle are not used.
	OverwriteOptions
	// MaxRuntime is how long the highest rate is measured. Default 1 minute.
	MaxRuntime time.Duration
	// Share of the highest rate is what is sent while latencies are measured, above
	// 0, up to 1. Default 0.5.
	Share float64
	// Runtime is how long latencies are measured. Default 3 minutes.
	Runtime time.Duration
	// Warmup is how long that rate is sent before. Default 15 s.
	Warmup time.Duration
	// Burst is how many requests become due together. Default 8.
	Burst int
}

func (o LatencyOptions) withDefaults() LatencyOptions {
	if o.Times == 0 {
		o.Times = 1
	}
	o.OverwriteOptions = o.OverwriteOptions.withDefaults()
	if o.MaxRuntime == 0 {
		o.MaxRuntime = time.Minute
	}
	if o.Share == 0 {
		o.Share = 0.5
	}
	if o.Runtime == 0 {
		o.Runtime = 3 * time.Minute
	}
	if o.Warmup == 0 {
		o.Warmup = 15 * time.Second
	}
	if o.Burst == 0 {
		o.Burst = 8
	}
	return o
}

// Validate reports every option that is out of bounds, in one error.
func (o LatencyOptions) Validate() error {
	o = o.withDefaults()
	errs := []error{o.OverwriteOptions.Validate()}
	if !(o.Share > 0 && o.Share <= 1) {
		errs = append(errs, fmt.Errorf("share %v: want more than 0, up to 1", o.Share))
	}
	if o.MaxRuntime <= 0 {
		errs = append(errs, fmt.Errorf("max runtime %v: want more than 0", o.MaxRuntime))
	}
	errs = append(errs, o.open(1).Validate())
	return errors.Join(errs...)
}

// open returns the options of the open loop.
func (o *LatencyOptions) open(rate float64) Options {
	r := o.Run
	r.Rate, r.Burst, r.Runtime, r.Warmup = rate, o.Burst, o.Runtime, o.Warmup
	return r
}

// LatencyReport is what OverwriteLatency saw.
type LatencyReport struct {
	Durable bool `json:"durable"`
	// Max is the closed loop, as fast as answers came; Open is the open loop.
	Max  *Report `json:"max"`
	Open *Report `json:"open"`
	// Rows are load, fill, max, open and settle.
	Rows []OverwriteRow `json:"rows"`
}

// OverwriteLatency loads every key once, overwrites Times the data, measures the
// highest rate of overwrites, and then the latencies at a share of that: in an
// open loop, from when each SET was due. It fails as Overwrite does.
func OverwriteLatency(ctx context.Context, o LatencyOptions) (*LatencyReport, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	w := &overwriting{o: o.OverwriteOptions, from: source{stats: o.StatsURL, pid: o.Run.ServerPID, dir: o.Dir}}
	return w.latency(ctx, o)
}

func (w *overwriting) latency(ctx context.Context, o LatencyOptions) (r *LatencyReport, err error) {
	documents := w.begin()
	if w.last, err = w.from.look(ctx); err != nil {
		return nil, err
	}
	r = &LatencyReport{Durable: w.last.engine.Durable}
	load := documents
	load.Load = true
	if _, err := w.client(ctx, "load", load); err != nil {
		return nil, err
	}
	fill := documents
	fill.Operations = max(uint64(w.o.Times*float64(documents.Keys)), 1)
	if _, err := w.client(ctx, "fill", fill); err != nil {
		return nil, err
	}
	closed := documents
	closed.Seed, closed.Runtime = documents.Seed+1, o.MaxRuntime
	if r.Max, err = w.client(ctx, "max", closed); err != nil {
		return nil, err
	}
	o.Run = documents
	open := o.open(max(o.Share*r.Max.Rate, 1))
	open.Seed = documents.Seed + 2
	if r.Open, err = w.client(ctx, "open", open); err != nil {
		return nil, err
	}
	if err := w.rest(ctx, "settle", func(*engineStats) bool { return true }); err != nil {
		return nil, err
	}
	r.Rows = w.rows
	return r, w.readBack(ctx, documents)
}

// WriteText writes the report for people, without its rows.
func (r *LatencyReport) WriteText(w io.Writer) error {
	durable := "durable SETs"
	if !r.Durable {
		durable = "SETs that are not durable"
	}
	evenness := func(x *Report) string {
		worst := "-"
		if x.Worst > 0 && x.Rate > 0 {
			worst = fmt.Sprintf("%s (%.2f of the mean)", Count(x.Worst), x.Worst/x.Rate)
		}
		return fmt.Sprintf("worst second %s, longest stall %.1f ms", worst, x.Stall*1e3)
	}
	latencies := func(l *Latency) string {
		if l == nil {
			return "no latencies"
		}
		return fmt.Sprintf("p50 %.2f, p99 %.2f, p99.9 %.2f, max %.1f ms", l.P50/1e3, l.P99/1e3, l.P999/1e3, l.P100/1e3)
	}
	o := &r.Open.Options
	if _, err := fmt.Fprintf(w, "%s, as fast as answers come (%dx%d): %s/s; %s; %s\n%s, open loop of %s/s in bursts of %d: %s/s; %s; %s\n", durable,
		o.Conns, o.Pipeline, Count(r.Max.Rate), evenness(r.Max), latencies(r.Max.SetLatency),
		durable, Count(o.Rate), o.Burst, Count(r.Open.Rate), evenness(r.Open), latencies(r.Open.SetLatency)); err != nil {
		return err
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Name != "open" {
			continue
		}
		if _, err := fmt.Fprintf(w, "meanwhile %d flushes, %d merges, %d collections; write amp %s (engine), space amp %.2f mean, %s peak\n",
			x.Flushes, x.Merges, x.Collections, over(x.Engine, x.UserBytes), x.DiskMean/float64(max(x.Live, 1)), over(x.DiskMax, x.Live)); err != nil {
			return err
		}
		if x.Merges == 0 || x.Collections == 0 {
			if _, err := fmt.Fprintln(w, "TOO SHORT: no merge or no collection ran meanwhile"); err != nil {
				return err
			}
		}
	}
	if r.Open.Rate < 0.98*o.Rate {
		if _, err := fmt.Fprintln(w, "NOT KEPT UP WITH: latencies are those of a queue that grows"); err != nil {
			return err
		}
	}
	return nil
}
