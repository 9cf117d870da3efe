package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is what a run saw. Counts and rates cover the counted part of the
// run; troubles cover all of it, load and warm-up included.
type Report struct {
	Machine Machine `json:"machine"`
	Options Options `json:"options"`

	LoadSeconds float64 `json:"load_seconds,omitempty"`
	LoadRate    float64 `json:"load_per_second,omitempty"`

	Seconds    float64 `json:"seconds"`
	Operations int64   `json:"operations"`
	Gets       int64   `json:"gets"`
	Sets       int64   `json:"sets"`
	Rate       float64 `json:"per_second"`
	BytesIn    int64   `json:"bytes_in"`
	// Worst is the rate of the worst whole second; 0 when there was none.
	Worst float64 `json:"worst_second_per_second"`
	// Stall is the longest time without any answer, in seconds.
	Stall float64 `json:"longest_stall_seconds"`

	GetLatency *Latency `json:"get_latency,omitempty"`
	SetLatency *Latency `json:"set_latency,omitempty"`

	ServerCPU *CPU `json:"server_cpu,omitempty"`
	ClientCPU *CPU `json:"client_cpu,omitempty"`

	// Misses are GETs of keys that were not there; Errors counts answers of
	// any other failing status by its text; Wrong counts values of another
	// length or, with Verify, other bytes than their key says.
	Misses     int64            `json:"misses"`
	Errors     map[string]int64 `json:"errors"`
	Wrong      int64            `json:"wrong"`
	Lost       int64            `json:"lost_connections"`
	LostReason string           `json:"lost_reason,omitempty"`
	Unanswered int64            `json:"unanswered"`

	usage cpuUsage
}

// Latency is the time from making a request to reading its answer, in
// microseconds. In an open loop it begins when the request was due.
type Latency struct {
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	P100 float64 `json:"max_us"`
}

// CPU is user plus system time of one process over the counted time.
type CPU struct {
	// MicrosPerOperation is the time charged to one operation.
	MicrosPerOperation float64 `json:"us_per_operation"`
	// Cores is the number of processors kept busy.
	Cores float64 `json:"cores"`
}

func newLatency(h *hdrhistogram.Histogram) *Latency {
	if h.TotalCount() == 0 {
		return nil
	}
	us := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1e3 }
	return &Latency{
		Mean: h.Mean() / 1e3, P50: us(50), P90: us(90), P99: us(99), P999: us(99.9),
		P100: float64(h.Max()) / 1e3,
	}
}

func newCPU(used time.Duration, operations int64, seconds float64) *CPU {
	if operations == 0 || seconds <= 0 {
		return nil
	}
	return &CPU{
		MicrosPerOperation: used.Seconds() * 1e6 / float64(operations),
		Cores:              used.Seconds() / seconds,
	}
}

func (r *Report) fill(s *stats) {
	r.Gets, r.Sets, r.Operations = s.gets, s.sets, s.gets+s.sets
	r.Misses, r.Wrong, r.Lost, r.Unanswered = s.misses, s.wrong, s.lost, s.unanswered
	r.Errors = make(map[string]int64)
	for status, n := range s.statuses {
		r.Errors[fmt.Sprintf("0x%02x %v", uint16(status), status)] += n
	}
	if r.Options.Runtime == 0 && r.Options.Operations == 0 {
		// Only a load: its own counters are in LoadRate.
		r.Gets, r.Sets, r.Operations = 0, 0, 0
		return
	}
	r.Seconds = float64(s.end-s.start) / 1e9
	r.BytesIn = s.bytesIn
	if r.Seconds > 0 {
		r.Rate = float64(r.Operations) / r.Seconds
	}
	r.Worst = s.worstSecond()
	r.GetLatency, r.SetLatency = newLatency(s.get), newLatency(s.set)
	r.ClientCPU = newCPU(r.usage.client, r.Operations, r.Seconds)
	if r.Options.ServerPID != 0 && r.usage.serverErr == nil {
		r.ServerCPU = newCPU(r.usage.server, r.Operations, r.Seconds)
	}
}

// Trouble lists what makes the figures worthless or doubtful, one sentence
// each; it is empty after a clean run.
func (r *Report) Trouble() []string {
	var t []string
	say := func(n int64, format string, args ...any) {
		if n > 0 {
			t = append(t, fmt.Sprintf("%d ", n)+fmt.Sprintf(format, args...))
		}
	}
	say(r.Misses, "GETs missed: those keys were not loaded, or were lost")
	names := make([]string, 0, len(r.Errors))
	for name := range r.Errors {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		say(r.Errors[name], "answers had status %s", name)
	}
	say(r.Wrong, "values were not what their key says")
	say(r.Lost, "connections were lost: %s", r.LostReason)
	say(r.Unanswered, "requests were never answered")
	if (r.Options.Runtime > 0 || r.Options.Operations > 0) && r.Operations == 0 {
		t = append(t, "no operation was answered")
	}
	if err := r.usage.serverErr; err != nil {
		t = append(t, fmt.Sprintf("no CPU time of the server: %v", err))
	}
	return t
}

// WriteJSON writes the report as one indented JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	o := &r.Options
	kind, window := string(o.Workload), o.Pipeline
	ran := o.Runtime > 0 || o.Operations > 0
	if !ran {
		kind, window = "load", max(window, loadWindow)
	}
	fmt.Fprintf(&b, "%s %dx%d, %d keys of %d bytes (%s), values of %d bytes", kind, o.Conns, window, o.Keys, o.KeyBytes, o.KeyFormat, o.ValueBytes)
	if ran && o.Workload == KindMixed {
		fmt.Fprintf(&b, ", %.0f %% GET", 100*o.GetShare)
	}
	if ran && o.Zipf > 0 {
		fmt.Fprintf(&b, ", zipf %g", o.Zipf)
	}
	if ran && o.Verify {
		b.WriteString(", bytes checked")
	}
	if ran && o.Rate > 0 {
		fmt.Fprintf(&b, ", open loop of %s a second in bursts of %d", Count(o.Rate), max(o.Burst, 1))
	}
	b.WriteByte('\n')
	if r.LoadSeconds > 0 {
		fmt.Fprintf(&b, "load      %s sets/s (%d in %.2f s)\n", Count(r.LoadRate), o.Keys, r.LoadSeconds)
	}
	if ran {
		fmt.Fprintf(&b, "rate      %s operations/s (%d in %.2f s)\n", Count(r.Rate), r.Operations, r.Seconds)
		line := func(name string, n int64, l *Latency) {
			if l != nil {
				fmt.Fprintf(&b, "%-9s %d: mean %s  p50 %s  p90 %s  p99 %s  p99.9 %s  max %s us\n", name, n,
					Count(l.Mean), Count(l.P50), Count(l.P90), Count(l.P99), Count(l.P999), Count(l.P100))
			}
		}
		line("get", r.Gets, r.GetLatency)
		line("set", r.Sets, r.SetLatency)
		fmt.Fprintf(&b, "evenness  worst second %s, longest time without an answer %s ms\n", orNone(r.Worst, Count(r.Worst)), Count(r.Stall*1e3))
		cpu := func(name string, c *CPU) {
			if c != nil {
				fmt.Fprintf(&b, "%-9s %.3f us of CPU an operation (%.2f cores)\n", name, c.MicrosPerOperation, c.Cores)
			}
		}
		cpu("server", r.ServerCPU)
		cpu("client", r.ClientCPU)
	}
	trouble := r.Trouble()
	for _, t := range trouble {
		fmt.Fprintf(&b, "TROUBLE   %s\n", t)
	}
	if len(trouble) == 0 {
		b.WriteString("clean     no errors, no misses\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// LineHeader names the columns of WriteLine.
const LineHeader = "per_second\tp50_us\tp99_us\tserver_us\tclient_us\tload_per_second\ttroubles"

// WriteLine writes the main figures as one tab-separated line, for scripts.
// Latencies are of the GETs, or of the SETs where there are none.
func (r *Report) WriteLine(w io.Writer) error {
	l := r.GetLatency
	if l == nil {
		l = r.SetLatency
	}
	if l == nil {
		l = &Latency{}
	}
	micros := func(c *CPU) float64 {
		if c == nil {
			return 0
		}
		return c.MicrosPerOperation
	}
	_, err := fmt.Fprintf(w, "%.0f\t%.1f\t%.1f\t%.4f\t%.4f\t%.0f\t%d\n",
		r.Rate, l.P50, l.P99, micros(r.ServerCPU), micros(r.ClientCPU), r.LoadRate, len(r.Trouble()))
	return err
}

// Count writes a number with three digits and a unit: 950, 17.0K, 4.51M.
func Count(x float64) string {
	switch {
	case x >= 99_950_000:
		return fmt.Sprintf("%.0fM", x/1e6)
	case x >= 9_995_000:
		return fmt.Sprintf("%.1fM", x/1e6)
	case x >= 999_500:
		return fmt.Sprintf("%.2fM", x/1e6)
	case x >= 99_950:
		return fmt.Sprintf("%.0fK", x/1e3)
	case x >= 9_995:
		return fmt.Sprintf("%.1fK", x/1e3)
	case x >= 999.5:
		return fmt.Sprintf("%.2fK", x/1e3)
	case x >= 99.95:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}
