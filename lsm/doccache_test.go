package lsm

import (
	"errors"
	"fmt"
	"testing"

	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs/memfs"
)

// cachedStore is a store of n documents of 1000 bytes, every eighth deleted, that
// are all in tables and in the log, and of which some are in a document cache of
// the given size: those that fit, of one read of each.
func cachedStore(tb testing.TB, n int, bytes int64) *DB {
	tb.Helper()
	db := mustOpen(tb, tb.TempDir(), Options{
		NonDurable: true, BufferedIO: true, MemQuota: 4 * gib, WriteCache: 2 * gib, DocumentCacheBytes: bytes,
		KVStores: 4, VBuckets: 4, flushOnDemand: true, noGC: true, Logf: func(string, ...any) {},
	})
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	w := newHotWriter(db, 100, 1000)
	for i := 0; i < n; i += 100 {
		w.apply(tb, uint64(i), n)
	}
	mustFlush(tb, db)
	var b Batch
	for i := 0; i < n; i += 8 {
		if err := b.Delete(hotKey(nil, uint64(i))); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := db.Apply(&b, WriteOptions{}); err != nil {
		tb.Fatal(err)
	}
	mustFlush(tb, db)
	if bytes > 0 {
		for i := range n {
			if _, err := db.Get(nil, hotKey(nil, uint64(i))); (err == nil) != (i%8 != 0) {
				tb.Fatalf("key %d: %v", i, err)
			}
		}
	}
	return db
}

// TestDocumentCacheAllocatesNothing: neither the answers from the cache, nor
// writes that refresh it.
func TestDocumentCacheAllocatesNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	const n = 8000
	db := cachedStore(t, n, 64*mib)
	before := countDocs(db)
	i := uint64(0)
	measure := func(name string, fn func()) {
		t.Helper()
		fn()
		if allocs := testing.AllocsPerRun(500, fn); allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", name, allocs)
		}
	}
	var dst, key []byte
	measure("get", func() {
		i += 977
		key = hotKey(key[:0], i%n)
		item, err := db.Get(dst[:0], key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		if err == nil {
			dst = item.Value
		}
	})
	var b ReadBatch
	keys := make([]byte, 0, 128*12)
	measure("get 128", func() {
		b.Reset()
		keys = keys[:0]
		for range 128 {
			i += 977
			at := len(keys)
			keys = hotKey(keys, i%n)
			b.Add(keys[at:])
		}
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		for j := range 128 {
			if err := b.Err(j); err != nil && !errors.Is(err, ErrNotFound) || err == nil && len(b.Item(j).Value) != 1000 {
				t.Fatal(err)
			}
		}
		b.Release()
	})
	if now := countDocs(db); now.reads != before.reads || now.hits-before.hits < 50_000 || now.negative-before.negative < 5000 {
		t.Errorf("%+v, before %+v: not all was answered from the cache", now, before)
	}
	for _, value := range []int{8, 1000} {
		w := newHotWriter(db, 128, value)
		measure(fmt.Sprintf("apply 128 x %d bytes", value), func() {
			i += 977
			w.apply(t, i, n)
		})
	}
	if now := countDocs(db); now.refreshed-before.refreshed < 100_000 {
		t.Errorf("%+v, before %+v: not all writes refreshed the cache", now, before)
	}
}

// TestDocumentCacheObeysTheLimitOfABatch: values that the cache copies count like
// those that the device brings, so a batch does not grow without bound; who asks
// again for the rest comes to the end.
func TestDocumentCacheObeysTheLimitOfABatch(t *testing.T) {
	db := docStore(t, memfs.New(), Options{DocumentCacheBytes: 40 * mib})
	defer db.Close()
	value := make([]byte, 30*kib)
	const n = 400 // 12 MB
	for i := range n {
		if _, err := db.Set(hotKey(nil, uint64(i)), value, Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	mustFlush(t, db)
	for i := range n {
		if _, err := db.Get(nil, hotKey(nil, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if c := db.Stats().DocumentCache; c.Documents < n*9/10 {
		t.Fatalf("too few documents are in the cache: %+v", c)
	}
	for _, limit := range []int64{0, 100 * kib, 1} {
		before := countDocs(db)
		rounds := 0
		for from := 0; from < n && !t.Failed(); rounds++ {
			var b ReadBatch
			for i := from; i < n; i++ {
				b.Add(hotKey(nil, uint64(i)))
			}
			if limit > 0 {
				b.Limit(limit)
			}
			if err := db.GetMany(&b); err != nil {
				t.Fatal(err)
			}
			bytes, answered := int64(0), 0
			for ; answered < b.Len() && b.Err(answered) == nil; answered++ {
				bytes += int64(len(b.Item(answered).Value))
			}
			if answered == 0 || answered < b.Len() && b.Err(answered) != ErrReadLimit {
				t.Fatalf("limit %d: %d answers, then %v", limit, answered, b.Err(answered))
			}
			if most := max(b.limit, int64(len(value))); bytes > most {
				t.Errorf("limit %d: %d bytes of values", limit, bytes)
			}
			from += answered
			b.Release()
		}
		if hits := countDocs(db).hits - before.hits; hits < n*9/10 {
			t.Errorf("limit %d: %d hits in %d rounds", limit, hits, rounds)
		}
	}
}

// BenchmarkDocumentCacheHit is the cost of a batched read of 128 keys that the
// cache answers, from a cache that the processor's caches hold and from one that
// they do not.
func BenchmarkDocumentCacheHit(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("%d documents", n), func(b *testing.B) {
			db := cachedStore(b, n, 256*mib)
			var rb ReadBatch
			keys := make([]byte, 0, 128*12)
			before := db.Stats()
			i := uint64(0)
			for b.Loop() {
				rb.Reset()
				keys = keys[:0]
				for range 128 {
					i += 9973
					at := len(keys)
					keys = hotKey(keys, i%uint64(n))
					rb.Add(keys[at:])
				}
				if err := db.GetMany(&rb); err != nil {
					b.Fatal(err)
				}
				rb.Release()
			}
			now := db.Stats()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(now.Gets-before.Gets), "ns/key")
			b.ReportMetric(float64(now.DocumentCache.Hits+now.DocumentCache.NegativeHits-before.DocumentCache.Hits-before.DocumentCache.NegativeHits)/float64(now.Gets-before.Gets), "hits/key")
		})
	}
}
