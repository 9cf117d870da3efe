package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

// diskOf counts looks at a directory.
type diskOf struct {
	counting
	looked chan struct{}
	err    error
}

func (d *diskOf) disk() (int64, error) {
	d.looked <- struct{}{}
	return 700, d.err
}

func TestWatchLooksMeanwhile(t *testing.T) {
	d := &diskOf{looked: make(chan struct{}, 10)}
	w := &overwriting{from: d}
	looks, err := w.watch(context.Background(), func() error { <-d.looked; <-d.looked; return nil })
	if err != nil || looks.n < 2 || looks.max != 700 || looks.sum != 700*looks.n {
		t.Errorf("%+v, %v", looks, err)
	}
	d.err = errors.New("gone")
	if _, err := w.watch(context.Background(), func() error { <-d.looked; return nil }); !errors.Is(err, d.err) {
		t.Errorf("error %v, want %v", err, d.err)
	}
}

func TestSumWeighsByTime(t *testing.T) {
	s := sum("half", []OverwriteRow{
		{Seconds: 3, Operations: 300, Worst: 50, Stall: 0.2, P99: 10, Max: 900, DiskMean: 100, DiskMax: 150, Group: 10},
		{Seconds: 1, Operations: 300, Worst: 70, Stall: 0.1, P99: 20, Max: 400, DiskMean: 300, DiskMax: 310, Group: 30},
		{Seconds: 4, Settle: 2, DiskMean: 200, DiskMax: 250, Disk: 170},
	})
	if s.Rate != 150 || s.Worst != 50 || s.Stall != 0.2 || s.P99 != 20 || s.Max != 900 || s.DiskMean != 175 || s.DiskMax != 310 || s.Disk != 170 ||
		s.Settle != 2 || s.Group != 15 || s.Seconds != 8 {
		t.Errorf("%+v", s)
	}
}

func TestSettledSinceTheLastWork(t *testing.T) {
	w, f := fakeOverwriting(t, nil)
	w.o.Quiet = 50 * time.Millisecond
	began := time.Now()
	since, err := w.settle(context.Background(), func(*engineStats) bool { return true })
	if idle := time.Since(since); err != nil || since.Sub(began) > time.Since(began)-w.o.Quiet || idle < w.o.Quiet {
		t.Errorf("settled since %v, %v ago, %v", since.Sub(began), idle, err)
	}
	f.busy = 3
	began = time.Now()
	if since, err = w.settle(context.Background(), func(*engineStats) bool { return true }); err != nil || since.Sub(began) < 2*settlePoll {
		t.Errorf("settled %v after it began, %v", since.Sub(began), err)
	}
}
