package lsm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const hotKeys = 1_000_000

// roomFor empties the store when unflushed memtables come near the mark from
// which writers are slowed: b.N may be larger than memory. Batches hold it for
// reading.
type roomFor struct {
	sync.RWMutex
	db *DB
}

func (r *roomFor) make(b *testing.B) {
	if r.db.quota.used.Load() < r.db.quota.limit/2 {
		return
	}
	r.Lock()
	defer r.Unlock()
	if r.db.quota.used.Load() < r.db.quota.limit/2 {
		return
	}
	b.StopTimer()
	defer b.StartTimer()
	if _, err := r.db.Clear(time.Time{}); err != nil {
		b.Fatal(err)
	}
}

// cpuTime is what the process has used of all processors: on a busy machine it
// says more than the rate.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkApplyAsync writes documents of 8 bytes over a million keys in an
// async store; b.N counts documents. What 8 writers gain over one on 2 cores is
// the measure of how little of Apply is done one after another.
func BenchmarkApplyAsync(b *testing.B) {
	for _, batch := range []int{1, 16, 128} {
		for _, writers := range []int{1, 8} {
			b.Run(fmt.Sprintf("batch=%d/writers=%d", batch, writers), func(b *testing.B) {
				db := hotStore(b, hotKeys)
				room := &roomFor{db: db}
				var next atomic.Uint64
				b.ReportAllocs()
				before := cpuTime(b)
				b.ResetTimer()
				var wg sync.WaitGroup
				for range writers {
					w := newHotWriter(db, batch, 8)
					wg.Go(func() {
						for {
							const run = 4096 // documents between two looks at what writers share
							i := next.Add(run) - run
							if i >= uint64(b.N) {
								return
							}
							room.make(b)
							room.RLock()
							for end := min(i+run, uint64(b.N)); i < end; i += uint64(batch) {
								w.apply(b, i*7919, hotKeys)
							}
							room.RUnlock()
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "documents/s")
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

func BenchmarkGet(b *testing.B) {
	db := hotStore(b, hotKeys)
	var dst, key []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		key = hotKey(key[:0], uint64(i)*7919%hotKeys)
		item, err := db.Get(dst[:0], key)
		if err != nil {
			b.Fatal(err)
		}
		dst = item.Value
	}
}

// BenchmarkGetMany counts keys, 128 to a batch.
func BenchmarkGetMany(b *testing.B) {
	db := hotStore(b, hotKeys)
	var batch ReadBatch
	keys := make([]byte, 0, 128*12)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 128 {
		batch.Reset()
		keys = keys[:0]
		for j := range 128 {
			at := len(keys)
			keys = hotKey(keys, uint64(i+j)*7919%hotKeys)
			batch.Add(keys[at:])
		}
		if err := db.GetMany(&batch); err != nil {
			b.Fatal(err)
		}
		for j := range 128 {
			if err := batch.Err(j); err != nil {
				b.Fatal(err)
			}
		}
		batch.Release()
	}
}

func BenchmarkUpdate(b *testing.B) {
	db := hotStore(b, hotKeys)
	room := &roomFor{db: db}
	value := make([]byte, 8)
	var key []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		room.make(b)
		key = hotKey(key[:0], uint64(i)*7919%hotKeys)
		if _, err := db.Update(key, func(*Item) (UpdateOp, []byte, Meta, error) {
			return UpdateSet, value, Meta{}, nil
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIterator counts documents, in the order of keys over 16 vbuckets and
// in that of one kvstore.
func BenchmarkIterator(b *testing.B) {
	for _, o := range []IterOptions{{}, {OneKVStore: true}} {
		b.Run(fmt.Sprintf("one=%v", o.OneKVStore), func(b *testing.B) {
			db := hotStore(b, hotKeys)
			it, err := db.NewIter(nil, nil, o)
			if err != nil {
				b.Fatal(err)
			}
			defer it.Close()
			b.ReportAllocs()
			b.ResetTimer()
			ok := it.First()
			for range b.N {
				if !ok && !it.First() {
					b.Fatal(it.Error())
				}
				if _, err := it.Item(); err != nil {
					b.Fatal(err)
				}
				ok = it.Next()
			}
		})
	}
}
