package bench

import (
	"errors"
	"fmt"
	"time"
)

// Kind names a workload.
type Kind string

const (
	// KindGet reads keys that must be there: load them first.
	KindGet Kind = "get"
	// KindSet writes keys, again and again, each with its own value.
	KindSet Kind = "set"
	// KindMixed reads and writes in the shares that GetShare says.
	KindMixed Kind = "mixed"
	// KindNoop sends NOOPs: what the way to the server and back costs alone. They
	// count as GETs.
	KindNoop Kind = "noop"
)

// Bounds of Options. A window of 4096 requests on each of 4096 connections is
// 16M open requests, 128 MB of slots: more than a single client needs.
const (
	connsMax    = 4096
	pipelineMax = 4096
	threadsMax  = 64
	rateMax     = 100_000_000
	valueMax    = 64 << 20
)

// Options configures Run. The zero value of a field means its default.
type Options struct {
	// Addr is host:port, or unix:PATH. Default 127.0.0.1:11210.
	Addr string `json:"addr"`
	// Workload is what is sent. Default KindGet.
	Workload Kind `json:"workload"`
	// GetShare is the share of reads in KindMixed, 0..1. Default 0.5; use a
	// negative number for none.
	GetShare float64 `json:"get_share"`
	// Conns is the number of connections. Default 1.
	Conns int `json:"conns"`
	// Pipeline is the number of open requests a connection. Default 1.
	Pipeline int `json:"pipeline"`
	// Refill is how many requests of a window must be answered before more are
	// made, in a closed loop. Default half of Pipeline; 1 keeps the window full.
	Refill int `json:"refill,omitempty"`
	// Threads is the number of event loops, each a thread. Default 1: on the
	// machine of the server one thread is what is left for the client.
	Threads int `json:"threads"`
	// Keys is the number of keys. Default 1,000,000.
	Keys uint64 `json:"keys"`
	// KeyBytes is the length of a key. Default 16.
	KeyBytes int `json:"key_bytes"`
	// KeyFormat is how keys are written. Default KeyHex.
	KeyFormat KeyFormat `json:"key_format"`
	// ValueBytes is the length of a value. Default 8; negative means empty.
	ValueBytes int `json:"value_bytes"`
	// Zipf skews the choice of keys: the weight of rank r is 1/r^Zipf, and 0
	// is uniform. Default 0, at most 5.
	Zipf float64 `json:"zipf"`
	// Runtime is how long answers are counted. 0 sends nothing after the load.
	Runtime time.Duration `json:"runtime_ns"`
	// Rate makes it an open loop of so many requests a second, sent when they are
	// due whether or not those before were answered; latencies count from then.
	// Default 0: a closed loop, as fast as answers come.
	Rate float64 `json:"rate,omitempty"`
	// Burst is how many requests become due together, on one connection, in an
	// open loop. Default 1, at most Pipeline.
	Burst int `json:"burst,omitempty"`
	// Operations ends the run after so many requests instead of a time; Runtime
	// and Warmup are 0 then. Default 0: Runtime says.
	Operations uint64 `json:"run_operations,omitempty"`
	// Warmup runs the workload before counting starts. Default 0.
	Warmup time.Duration `json:"warmup_ns"`
	// Seed makes the sequence of keys repeatable. Default 0, a seed as good as
	// any.
	Seed uint64 `json:"seed"`
	// Load sets every key once before the workload starts.
	Load bool `json:"load"`
	// Verify compares the bytes of every value read.
	Verify bool `json:"verify"`
	// ServerPID is the process whose CPU time is charged to the operations; 0
	// reports none.
	ServerPID int `json:"server_pid"`
	// StallTimeout ends a run in which no answer arrived for so long. Default
	// 30 s.
	StallTimeout time.Duration `json:"stall_timeout_ns"`
}

func (o Options) withDefaults() Options {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:11210"
	}
	if o.Workload == "" {
		o.Workload = KindGet
	}
	switch {
	case o.Workload == KindGet || o.Workload == KindNoop:
		o.GetShare = 1
	case o.Workload == KindSet || o.GetShare < 0:
		o.GetShare = 0
	case o.GetShare == 0:
		o.GetShare = 0.5
	}
	if o.Conns == 0 {
		o.Conns = 1
	}
	if o.Pipeline == 0 {
		o.Pipeline = 1
	}
	if o.Threads == 0 {
		o.Threads = 1
	}
	o.Threads = min(o.Threads, o.Conns)
	if o.Burst == 0 {
		o.Burst = 1
	}
	if o.Keys == 0 {
		o.Keys = 1_000_000
	}
	if o.KeyBytes == 0 {
		o.KeyBytes = 16
	}
	if o.KeyFormat == "" {
		o.KeyFormat = KeyHex
	}
	switch {
	case o.ValueBytes == 0:
		o.ValueBytes = 8
	case o.ValueBytes < 0:
		o.ValueBytes = 0
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = 30 * time.Second
	}
	return o
}

// Validate reports every option that is out of bounds, in one error.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch o.Workload {
	case KindGet, KindSet, KindMixed, KindNoop:
	default:
		bad("workload %q: want %q, %q, %q or %q", o.Workload, KindGet, KindSet, KindMixed, KindNoop)
	}
	if !(o.GetShare >= 0 && o.GetShare <= 1) {
		bad("get share %v: want 0 to 1", o.GetShare)
	}
	if o.Conns < 1 || o.Conns > connsMax {
		bad("conns %d: want 1 to %d", o.Conns, connsMax)
	}
	if o.Pipeline < 1 || o.Pipeline > pipelineMax {
		bad("pipeline %d: want 1 to %d", o.Pipeline, pipelineMax)
	}
	if o.Refill < 0 || o.Refill > o.Pipeline {
		bad("refill %d: want 1 to the open requests of a connection, %d", o.Refill, o.Pipeline)
	}
	if o.Threads < 1 || o.Threads > threadsMax {
		bad("threads %d: want 1 to %d", o.Threads, threadsMax)
	}
	if _, err := NewKeys(o.KeyFormat, o.KeyBytes, o.Keys); err != nil {
		errs = append(errs, err)
	}
	if o.ValueBytes > valueMax {
		bad("value size %d: want 0 to %d bytes", o.ValueBytes, valueMax)
	}
	if !(o.Zipf >= 0 && o.Zipf <= 5) {
		bad("zipf %v: want 0 to 5", o.Zipf)
	}
	if o.Runtime < 0 || o.Runtime > 7*24*time.Hour {
		bad("runtime %v: want 0 to 168h", o.Runtime)
	}
	if o.Warmup < 0 || o.Warmup > time.Hour {
		bad("warmup %v: want 0 to 1h", o.Warmup)
	}
	if o.Rate != 0 && !(o.Rate >= 1 && o.Rate <= rateMax) {
		bad("rate %v: want 0, or 1 to %d", o.Rate, rateMax)
	}
	if o.Rate > 0 && (o.Runtime == 0 || o.Operations > 0) {
		bad("rate %v: want a time to run", o.Rate)
	}
	if o.Burst < 1 || o.Burst > o.Pipeline || o.Burst > 1 && o.Burst*(o.KeyBytes+o.ValueBytes) > sendBytesMax/2 {
		bad("burst %d: want 1 to the open requests of a connection, and at most %d bytes", o.Burst, sendBytesMax/2)
	}
	if o.Operations > 0 && (o.Runtime != 0 || o.Warmup != 0) {
		bad("operations %d with a time to run: want one of them", o.Operations)
	}
	if o.Runtime == 0 && o.Operations == 0 && !o.Load {
		bad("neither a time to run nor operations nor a load: nothing to do")
	}
	if o.ServerPID < 0 {
		bad("server pid %d: want a process id", o.ServerPID)
	}
	if o.StallTimeout < time.Second {
		bad("stall timeout %v: want at least 1s", o.StallTimeout)
	}
	return errors.Join(errs...)
}
