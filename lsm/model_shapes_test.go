package lsm

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelShape is one set of options that the model is compared with.
type modelShape struct {
	name          string
	memtableBytes int // memtables rotate at this, 0: never
	o             Options

	// What was met, over all runs.
	actions, spills, flushes, runs, crashedFlushes, crashedOpens, dead, gone atomic.Int64
	compressed, uncompressed                                                 atomic.Int64 // writes to a store that had met such documents
	docHits, docNegative, docNewer, docRefused, docEvicted                   atomic.Int64
}

// modelShapes are tiny everywhere, so that a few writes roll the log and a few
// more flush the write cache.
var modelShapes = []*modelShape{
	{name: "one of each", o: Options{VBuckets: 1, KVStores: 1}},
	{name: "async, flushed when idle", o: Options{VBuckets: 16, KVStores: 16, NonDurable: true, AsyncWindow: time.Minute, IdleFlush: 2 * time.Millisecond}},
	{name: "several vbuckets a kvstore, nothing inline, a tiny cache", o: Options{
		VBuckets: 64, KVStores: 4, InlineLimit: -1, WriteCache: 384 * kib, BlockBytes: 512, CompressDocuments: true,
	}},
	{name: "a thousand vbuckets, small compressed tables", o: Options{
		VBuckets: 1024, KVStores: 16, InlineLimit: 16, TableBytes: 4 * kib, CompressIndex: true,
		DocumentCacheBytes: mib,
	}},
	{name: "writes and flushes in flight", o: Options{VBuckets: 16, KVStores: 4, LogInflight: 3, InlineLimit: 16, Flushers: 4, WriteCache: 384 * kib}},
	{name: "async writes in flight", memtableBytes: 128 * kib, o: Options{
		VBuckets: 16, KVStores: 1, NonDurable: true, AsyncWindow: time.Millisecond, LogInflight: 3, InlineLimit: -1, BloomBits: -1, CompressDocuments: true,
		DocumentCacheBytes: 256 * kib,
	}},
	{name: "small blocks", o: Options{VBuckets: 64, KVStores: 16, LogAlign: 512, LogInflight: 2, BufferedIO: true, BlockBytes: 1024, InlineLimit: 4096}},
	{name: "memtables rotate", memtableBytes: 128 * kib, o: Options{
		VBuckets: 16, KVStores: 1, InlineLimit: 1000, BufferedIO: true, WriteCache: 384 * kib, OpenTables: 16, TableBytes: 8 * kib, BlockBytes: 512,
	}},
}

// modelActions is how many actions each shape does at least, actions that were
// skipped not counted. An action is one operation up to a few dozen.
const modelActions = 5000

// TestModel does at least modelActions random actions on a store of each shape
// and on its model, in runs of 90 on average, each on a new store. With -short,
// and with flags of rapid, it does what those say.
func TestModel(t *testing.T) {
	var complete atomic.Int64
	t.Cleanup(func() {
		if complete.Load() == int64(len(modelShapes)) {
			modelMetEverything(t)
		}
	})
	bounded := !testing.Short() && !flagIsSet("rapid.checks")
	for _, shape := range modelShapes {
		t.Run(shape.name, func(t *testing.T) {
			t.Parallel()
			run := func(rt *rapid.T) {
				if bounded && shape.actions.Load() >= modelActions {
					return
				}
				m := newMachine(shape)
				defer m.end()
				m.open(rt)
				for range 3 {
					rt.Repeat(rapid.StateMachineActions(m))
				}
				m.settle(rt)
				m.Reopen(rt)
				m.finish(rt)
			}
			rapid.Check(t, run)
			for bounded && !t.Failed() && shape.actions.Load() < modelActions {
				rapid.Check(t, run)
			}
			t.Logf("%d actions: %d flushes asked for, %d actions over 3 runs of tables or more, %d flushes during replay, power cut in %d flushes and %d starts, %d documents dead",
				shape.actions.Load(), shape.flushes.Load(), shape.runs.Load(), shape.spills.Load(),
				shape.crashedFlushes.Load(), shape.crashedOpens.Load(), shape.dead.Load())
			if bounded && !t.Failed() {
				complete.Add(1)
			}
		})
	}
}

func flagIsSet(name string) bool {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// modelMetEverything fails when the random runs came to miss what they are for.
func modelMetEverything(t *testing.T) {
	for name, of := range map[string]func(*modelShape) *atomic.Int64{
		"flush":                           func(s *modelShape) *atomic.Int64 { return &s.flushes },
		"flush during replay":             func(s *modelShape) *atomic.Int64 { return &s.spills },
		"power cut within a flush":        func(s *modelShape) *atomic.Int64 { return &s.crashedFlushes },
		"power cut within a start":        func(s *modelShape) *atomic.Int64 { return &s.crashedOpens },
		"dead document":                   func(s *modelShape) *atomic.Int64 { return &s.dead },
		"document given up as expired":    func(s *modelShape) *atomic.Int64 { return &s.gone },
		"compressed document":             func(s *modelShape) *atomic.Int64 { return &s.compressed },
		"document that does not compress": func(s *modelShape) *atomic.Int64 { return &s.uncompressed },
		"third run of tables a read asks": func(s *modelShape) *atomic.Int64 { return &s.runs },
		"hit of the document cache":       func(s *modelShape) *atomic.Int64 { return &s.docHits },
		"negative hit of it":              func(s *modelShape) *atomic.Int64 { return &s.docNegative },
		"version too new for its reader":  func(s *modelShape) *atomic.Int64 { return &s.docNewer },
		"fill refused for a write":        func(s *modelShape) *atomic.Int64 { return &s.docRefused },
		"document that was evicted":       func(s *modelShape) *atomic.Int64 { return &s.docEvicted },
	} {
		n := int64(0)
		for _, s := range modelShapes {
			n += of(s).Load()
		}
		if n == 0 {
			t.Errorf("no %s in %d actions of each shape", name, modelActions)
		}
	}
}

// modelLog keeps what the store says an operator should see: while no power is
// cut, that is nothing.
type modelLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *modelLog) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// take returns what was logged since the last call.
func (l *modelLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// drawOptions changes what may change between two opens.
func (m *machine) drawOptions(t *rapid.T) {
	o := &m.o
	o.WriteCache = rapid.SampledFrom([]int64{384 * kib, 384 * kib, mib}).Draw(t, "write cache")
	o.InlineLimit = rapid.SampledFrom([]int{-1, 16, 255, 1000}).Draw(t, "inline limit")
	o.TableBytes = rapid.SampledFrom([]int64{4 * kib, 64 * kib, mib}).Draw(t, "table bytes")
	o.BlockBytes = rapid.SampledFrom([]int{512, 1000, 4 * kib, 16 * kib}).Draw(t, "block bytes")
	o.BloomBits = rapid.SampledFrom([]int{-1, 1, 10}).Draw(t, "bloom bits")
	o.CompressIndex = rapid.Bool().Draw(t, "compress")
	o.CompressDocuments = rapid.Bool().Draw(t, "compress documents")
	o.Flushers = rapid.IntRange(1, 3).Draw(t, "flushers")
	o.LogInflight = rapid.IntRange(1, 2).Draw(t, "log writes in flight")
	if o.LogAlign == 0 { // smaller than a block needs the page cache
		o.BufferedIO = rapid.Bool().Draw(t, "buffered")
	}
	o.NonDurable = rapid.Bool().Draw(t, "async")
	o.DocumentCacheBytes = rapid.SampledFrom([]int64{0, 128 * kib, mib}).Draw(t, "document cache")
	o.IdleFlush = rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Millisecond}).Draw(t, "idle flush")
}
