package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"fluxkv/bench"
)

// overwriting is one run: a load in batches of loadBatch, and then batches of
// documents that are chosen uniformly, until times the documents were written.
type overwriting struct {
	writing
	times   float64
	program string   // db_bench, for engine rocksdb
	extra   []string // more flags of it
}

// loadBatch is how many documents a batch of the load has.
const loadBatch = 128

// overwrites is how many documents are overwritten.
func (o *overwriting) overwrites() int64 { return max(int64(o.times*float64(o.documents)), 1) }

// overwriteFigures is what overwriting took, from the first batch on.
type overwriteFigures struct {
	Documents int64   `json:"documents"` // overwritten
	Seconds   float64 `json:"seconds"`   // until the last batch was acknowledged
	Worst     float64 `json:"worst"`     // documents in the worst whole second; 0 also when there was none
	// Stall is the longest time in which no writer completed anything, in
	// seconds; with StallBound it was not longer than that.
	Stall      float64 `json:"stall_seconds"`
	StallBound bool    `json:"stall_bound"`
	// Latencies of a batch, in microseconds.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
	// SettleSeconds is the time from the last batch until nothing ran in the
	// background. What follows counts until then.
	SettleSeconds float64          `json:"settle_seconds"`
	CPUSeconds    float64          `json:"cpu_seconds"`
	MemoryBytes   int64            `json:"memory_bytes"`  // most that was resident
	DeviceBytes   int64            `json:"device_bytes"`  // written to the device, by anyone
	ProcessBytes  int64            `json:"process_bytes"` // charged to the process by the kernel
	Written       map[string]int64 `json:"written"`       // by cause, as the engine says
	UserBytes     int64            `json:"user_bytes"`    // keys and values that were overwritten
	LiveBytes     int64            `json:"live_bytes"`    // keys and values of all documents
	DiskEnd       int64            `json:"disk_end_bytes"`
	DiskMax       int64            `json:"disk_max_bytes"`
	DiskSettled   int64            `json:"disk_settled_bytes"`
	// Half is the second half of the documents, and settling.
	Half halfFigures `json:"half"`
}

// halfFigures counts from the first look at which half of the documents were
// overwritten. All is zero when there was no such look before the end.
type halfFigures struct {
	UserBytes    int64   `json:"user_bytes"`
	DeviceBytes  int64   `json:"device_bytes"`
	ProcessBytes int64   `json:"process_bytes"`
	DiskMean     float64 `json:"disk_mean_bytes"` // while documents were overwritten
	DiskMax      int64   `json:"disk_max_bytes"`
}

// sample is one look at a store that is overwritten.
type sample struct {
	documents             int64 // overwritten so far
	disk, device, process int64 // bytes
}

// look takes a sample of the store in dir that a process writes to.
func look(dir string, pid int, documents int64) (s sample, err error) {
	s.documents = documents
	var errs [3]error
	s.disk, errs[0] = bench.DirectoryBytes(dir)
	s.device, errs[1] = bench.DeviceBytes(dir)
	s.process, errs[2] = bench.ProcessBytes(pid)
	return s, errors.Join(errs[:]...)
}

// fill sets what follows from looks. during are those from before the first
// batch to the last one, after those until the store had settled, the last of
// them when everything had been written back.
func (f *overwriteFigures) fill(during, after []sample, documentBytes int64) {
	first, end, settled := during[0], during[len(during)-1], after[len(after)-1]
	f.Documents = end.documents
	f.UserBytes = end.documents * documentBytes
	f.DeviceBytes, f.ProcessBytes = settled.device-first.device, settled.process-first.process
	f.DiskEnd, f.DiskSettled = end.disk, settled.disk
	var half []sample
	for i, s := range during {
		f.DiskMax = max(f.DiskMax, s.disk)
		if half == nil && 2*s.documents >= end.documents && i < len(during)-1 {
			half = during[i:]
		}
	}
	for _, s := range after {
		f.DiskMax = max(f.DiskMax, s.disk)
	}
	if half == nil {
		return
	}
	h := &f.Half
	h.UserBytes = (end.documents - half[0].documents) * documentBytes
	h.DeviceBytes, h.ProcessBytes = settled.device-half[0].device, settled.process-half[0].process
	for _, s := range half {
		h.DiskMean += float64(s.disk) / float64(len(half))
		h.DiskMax = max(h.DiskMax, s.disk)
	}
	for _, s := range after {
		h.DiskMax = max(h.DiskMax, s.disk)
	}
}

// sampleEvery is the time between two looks.
const sampleEvery = time.Second

// sampler looks at the store of this process until it is told to stop.
type sampler struct {
	dir     string
	done    *atomic.Int64 // documents overwritten
	mu      sync.Mutex
	samples []sample
	err     error
}

func (s *sampler) look() {
	got, err := look(s.dir, os.Getpid(), s.done.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = append(s.samples, got)
	s.err = cmp.Or(s.err, err)
}

// start looks once, and then every so often until stop.
func (s *sampler) start() (stop func()) {
	s.look()
	end := bench.Every(context.Background(), sampleEvery, func() error {
		s.look()
		return nil
	})
	return func() { _ = end() } // what a look failed with is in s
}

// run loads, settles, overwrites, settles again, and compares some of the
// documents. Figures come only with all of them right.
func (o *overwriting) run() (f overwriteFigures, err error) {
	if o.engine == "rocksdb" {
		return o.runRocksDB()
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return f, err
	}
	s, err := o.open()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	load := o.writing
	load.batch = loadBatch
	if err := load.writeAll(s); err != nil {
		return f, err
	}
	if _, err := settle(s); err != nil {
		return f, err
	}
	// What was left to be written is not of the overwrites.
	if err := bench.SyncDirectory(o.dir); err != nil {
		return f, err
	}
	written, err := s.written()
	if err != nil {
		return f, err
	}
	before, err := o.measure()
	if err != nil {
		return f, err
	}
	var done atomic.Int64
	looks := &sampler{dir: o.dir, done: &done}
	stop := looks.start()
	err = o.overwriteAll(s, &done, &f)
	ended := time.Now()
	looks.look()
	last := len(looks.samples)
	var settled time.Time
	if err == nil {
		settled, err = settle(s)
	}
	stop()
	if err != nil {
		return f, err
	}
	f.SettleSeconds = max(settled.Sub(ended).Seconds(), 0)
	if err := bench.SyncDirectory(o.dir); err != nil {
		return f, err
	}
	looks.look()
	if looks.err != nil {
		return f, looks.err
	}
	after, err := o.measure()
	if err != nil {
		return f, err
	}
	f.CPUSeconds, f.MemoryBytes = after.cpu-before.cpu, after.memory
	if f.Written, err = s.written(); err != nil {
		return f, err
	}
	for cause, n := range written {
		f.Written[cause] -= n
	}
	size := int64(o.keyBytes + o.valueSize)
	f.LiveBytes = int64(o.documents) * size
	f.fill(looks.samples[:last], looks.samples[last:], size)
	return f, o.check(s)
}

// latencyMaxNanos bounds what is told apart: a quarter of an hour.
const latencyMaxNanos = 900e9

// tally is what one writer completed.
type tally struct {
	latency *hdrhistogram.Histogram // nanoseconds of a batch
	seconds []int64                 // documents, by the second since the begin
}

func (t *tally) add(began, ended time.Duration, documents int64) {
	_ = t.latency.RecordValue(min(int64(ended-began), latencyMaxNanos)) // in range
	second := int(ended / time.Second)
	for len(t.seconds) <= second {
		t.seconds = append(t.seconds, 0)
	}
	t.seconds[second] += documents
}

func (t *tally) merge(other *tally) {
	t.latency.Merge(other.latency)
	for i, n := range other.seconds {
		for len(t.seconds) <= i {
			t.seconds = append(t.seconds, 0)
		}
		t.seconds[i] += n
	}
}

func newTally() *tally { return &tally{latency: hdrhistogram.New(1000, latencyMaxNanos, 3)} }

// worst returns the fewest documents of the whole seconds in a time, 0 when
// there are none.
func worst(seconds []int64, took time.Duration) float64 {
	whole := int(took / time.Second)
	for len(seconds) < whole {
		seconds = append(seconds, 0)
	}
	if whole == 0 {
		return 0
	}
	least := seconds[0]
	for _, n := range seconds[:whole] {
		least = min(least, n)
	}
	return float64(least)
}

// overwriteAll writes the batches, and sets what they took.
func (o *overwriting) overwriteAll(s store, done *atomic.Int64, f *overwriteFigures) error {
	total := o.overwrites()
	var next atomic.Int64
	var gap bench.Gap
	var wg sync.WaitGroup
	errs := make(chan error, o.writers)
	tallies := make([]*tally, o.writers)
	began := time.Now()
	gap.Start(0)
	for i := range tallies {
		tallies[i] = newTally()
		wg.Go(func() {
			if err := o.overwriteSome(s, uint64(i), total, &next, done, &gap, began, tallies[i]); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	all := newTally()
	for _, t := range tallies {
		all.merge(t)
	}
	f.Seconds, f.Worst, f.Stall = took.Seconds(), worst(all.seconds, took), gap.Longest().Seconds()
	us := func(percentile float64) float64 { return float64(all.latency.ValueAtPercentile(percentile)) / 1e3 }
	f.P50, f.P99, f.Max = us(50), us(99), float64(all.latency.Max())/1e3
	return nil
}

// overwriteSome is one writer.
func (o *overwriting) overwriteSome(s store, seed uint64, total int64, next, done *atomic.Int64, gap *bench.Gap, began time.Time, t *tally) error {
	random := rand.New(rand.NewPCG(1, seed))
	size := o.keyBytes + o.valueSize
	b := make([]byte, o.batch*size)
	for {
		first := next.Add(int64(o.batch)) - int64(o.batch)
		if first >= total {
			return nil
		}
		n := min(int64(o.batch), total-first)
		for d := range n {
			i := random.Uint64N(o.documents)
			document := b[int(d)*size:][:size]
			putKey(document[:o.keyBytes], i)
			putValue(document[o.keyBytes:], i)
		}
		from := time.Since(began)
		if err := s.write(b[:int(n)*size], o.keyBytes, o.valueSize); err != nil {
			return fmt.Errorf("batch at overwrite %d: %w", first, err)
		}
		now := time.Since(began)
		t.add(from, now, n)
		gap.Done(int64(now))
		done.Add(n)
	}
}
