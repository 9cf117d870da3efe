package compaction

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/memtable"
)

// cpuTime is what this process used so far.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// scattered are n versions of n keys in random order; value bytes above 255
// are separated, with their bytes at hand, as after writes.
func scattered(n, valueBytes int) []memtable.Op {
	ops := make([]memtable.Op, n)
	keys := make([]byte, 0, n*12)
	value := make([]byte, valueBytes)
	for i := range ops {
		at := len(keys)
		keys = fmt.Appendf(keys, "%012x", (uint64(i)*0x9e3779b97f4a7c15)>>16)
		ops[i] = memtable.Op{Key: keys[at:], Seqno: entry.Seqno(i + 1), Value: value, HasValue: true}
		if valueBytes <= 255 {
			ops[i].Value = binary.LittleEndian.AppendUint64(nil, uint64(i))
		} else {
			ops[i].Address = entry.Address{Segment: entry.SegmentID(1 + i>>17), Offset: uint32(i&(1<<17-1)) * 1024, Length: uint32(valueBytes) + 20}
		}
	}
	return ops
}

// BenchmarkFlush flushes a memtable to files, verified and synced. cpu-ns/entry
// counts all threads.
func BenchmarkFlush(b *testing.B) {
	for _, c := range []struct {
		name       string
		n          int
		valueBytes int
	}{{"8B", 1 << 20, 8}, {"1KB", 1 << 18, 1024}} {
		b.Run(c.name, func(b *testing.B) {
			m := fill(b, scattered(c.n, c.valueBytes))
			defer m.Free()
			dir := b.TempDir()
			var fileBytes int64
			b.ReportAllocs()
			cpu := cpuTime(b)
			for b.Loop() {
				o := options(vfs.OS)
				o.Dir, o.Versions, o.WriteBufferBytes = dir, uint64(c.n), 1<<20
				o.Policy.Horizon = entry.MaxSeqno
				r, err := Flush(context.Background(), m.NewIter(nil, nil), o)
				if err != nil {
					b.Fatal(err)
				}
				fileBytes = r.Bytes
				for _, t := range r.Tables {
					if err := os.Remove(t.Name); err != nil {
						b.Fatal(err)
					}
				}
			}
			entries := float64(b.N) * float64(c.n)
			b.ReportMetric(float64(cpuTime(b)-cpu)/entries, "cpu-ns/entry")
			b.ReportMetric(float64(b.Elapsed())/entries, "ns/entry")
			b.ReportMetric(float64(fileBytes)/float64(c.n), "file-B/entry")
		})
	}
}

// TestFlushAllocations: allocations are by table and block, not by entry.
func TestFlushAllocations(t *testing.T) {
	const n = 100_000
	m := fill(t, scattered(n, 8))
	defer m.Free()
	fs := memfs.New()
	mkdir(t, fs)
	o := options(fs)
	o.WriteBufferBytes = 1 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Flush(t.Context(), m.NewIter(nil, nil), o); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if perEntry := float64(after.Mallocs-before.Mallocs) / n; perEntry > 0.01 {
		t.Errorf("%.3f allocations an entry", perEntry)
	}
}
