package bench

import (
	"context"
	"strings"
	"testing"
	"time"

	"fluxkv/mcbp"
)

func fakeLatency(t *testing.T, answer func(n int, r *mcbp.Response) []byte) (*overwriting, LatencyOptions) {
	w, _ := fakeOverwriting(t, answer)
	o := LatencyOptions{
		OverwriteOptions: w.o, MaxRuntime: 300 * time.Millisecond, Share: 0.1, Runtime: 400 * time.Millisecond, Warmup: 100 * time.Millisecond, Burst: 2,
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return w, o.withDefaults()
}

func TestOverwriteLatency(t *testing.T) {
	w, o := fakeLatency(t, nil)
	r, err := w.latency(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range r.Rows {
		x := &r.Rows[i]
		names = append(names, x.Name)
		if x.Invalid != "" || x.UserBytes%100 != 0 || (x.Name == "max" || x.Name == "open") && x.UserBytes < 100*x.Operations {
			t.Errorf("%+v", x)
		}
	}
	if got := strings.Join(names, " "); got != "load fill max open settle" {
		t.Errorf("rows %s", got)
	}
	if fill := r.Rows[1]; fill.Operations != 1200 { // three times the keys
		t.Errorf("%+v", fill)
	}
	if rate := r.Open.Options.Rate; rate != 0.1*r.Max.Rate || r.Open.Operations == 0 || r.Open.Options.Burst != 2 || r.Max.Options.Rate != 0 {
		t.Errorf("open loop of %v/s, %d operations; the highest rate was %v", rate, r.Open.Operations, r.Max.Rate)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"SETs that are not durable, as fast as answers come (2x8)", "open loop of " + Count(r.Open.Options.Rate) + "/s in bursts of 2", "p99.9", "meanwhile ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
}

func TestLatencyReportSaysWhatIsWrong(t *testing.T) {
	r := LatencyReport{
		Durable: true,
		Max:     &Report{Rate: 1000, Worst: 400, Stall: 0.25, SetLatency: &Latency{P50: 1000, P99: 2000, P999: 3000, P100: 4000}},
		Open:    &Report{Rate: 400, Options: Options{Conns: 1, Pipeline: 2, Rate: 500, Burst: 1}},
		Rows:    []OverwriteRow{{Name: "open", Merges: 3, UserBytes: 100, Engine: 220, Live: 100, DiskMax: 160, DiskMean: 150}},
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"durable SETs, as fast as answers come (1x2): 1.00K/s; worst second 400 (0.40 of the mean), longest stall 250.0 ms; p50 1.00, p99 2.00, p99.9 3.00, max 4.0 ms",
		"0 flushes, 3 merges, 0 collections; write amp 2.20 (engine), space amp 1.50 mean, 1.60 peak", "TOO SHORT", "NOT KEPT UP WITH",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	r.Open.Rate, r.Rows[0].Collections = 495, 1
	text.Reset()
	if err := r.WriteText(&text); err != nil || strings.Contains(text.String(), "TOO SHORT") || strings.Contains(text.String(), "NOT KEPT") {
		t.Errorf("%v\n%s", err, &text)
	}
}

func TestOverwriteLatencyFails(t *testing.T) {
	w, o := fakeLatency(t, func(n int, r *mcbp.Response) []byte {
		if n == 1000 { // 400 for the load, then 1200
			r.Status = mcbp.StatusOutOfMemory
		}
		return r.Append(nil)
	})
	if _, err := w.latency(context.Background(), o); err == nil || !strings.Contains(err.Error(), "fill: 1 answers had status") {
		t.Errorf("error %v", err)
	}
	err := LatencyOptions{Share: 2, MaxRuntime: -1, Runtime: -1, Burst: 5000}.Validate()
	for _, want := range []string{"share", "max runtime", "runtime -1", "burst", "/stats"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
	if _, err := OverwriteLatency(context.Background(), LatencyOptions{}); err == nil {
		t.Error("no server is accepted")
	}
}
