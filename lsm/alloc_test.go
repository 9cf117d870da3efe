package lsm

import (
	"encoding/binary"
	"fmt"
	"testing"

	"fluxkv/internal/invariants"
)

// hotStore opens an async store on the disk and writes n documents of 8 bytes,
// with keys that come in no order.
func hotStore(tb testing.TB, n int) *DB {
	tb.Helper()
	db := mustOpen(tb, tb.TempDir(), Options{
		NonDurable: true, MemQuota: 4 * gib, WriteCache: 2 * gib, KVStores: 16, VBuckets: 16,
		Logf: func(string, ...any) {},
	})
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	w := newHotWriter(db, 128, 8)
	for i := 0; i < n; i += 128 {
		w.apply(tb, uint64(i), n)
	}
	return db
}

// hotKey is the i'th of the keys: 12 bytes, scattered.
func hotKey(dst []byte, i uint64) []byte {
	dst = binary.BigEndian.AppendUint64(dst, i*0x9e3779b97f4a7c15)
	return append(dst, "-key"...)
}

// hotWriter applies batches of the same shape over and over.
type hotWriter struct {
	db     *DB
	batch  Batch
	keys   []byte
	value  []byte
	values int
}

func newHotWriter(db *DB, batch, value int) *hotWriter {
	return &hotWriter{db: db, value: make([]byte, value), values: batch, keys: make([]byte, 0, 12*batch)}
}

// apply writes the keys from i on, modulo n.
func (w *hotWriter) apply(tb testing.TB, i uint64, n int) {
	w.batch.Reset()
	w.keys = w.keys[:0]
	for j := range w.values {
		at := len(w.keys)
		w.keys = hotKey(w.keys, (i+uint64(j))%uint64(n))
		if err := w.batch.Set(w.keys[at:], w.value, Meta{}); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := w.db.Apply(&w.batch, WriteOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// TestHotPathsAllocateNothing, with a million keys over 16 kvstores.
func TestHotPathsAllocateNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	n := 1_000_000
	if testing.Short() {
		n = 100_000
	}
	db := hotStore(t, n)
	i := uint64(0)
	measure := func(name string, fn func()) {
		t.Helper()
		fn()
		if allocs := testing.AllocsPerRun(1000, fn); allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", name, allocs)
		}
	}
	for _, batch := range []int{1, 128} {
		for _, value := range []int{8, 1000} { // inline, separated
			w := newHotWriter(db, batch, value)
			measure(fmt.Sprintf("apply %d x %d bytes", batch, value), func() {
				i += 977
				w.apply(t, i, n/10)
			})
		}
	}
	var dst, key []byte
	measure("get", func() {
		i += 977
		key = hotKey(key[:0], i%uint64(n))
		item, err := db.Get(dst[:0], key)
		if err != nil {
			t.Fatal(err)
		}
		dst = item.Value
	})
	measure("get of nothing", func() {
		i += 977
		key = append(hotKey(key[:0], i%uint64(n)), '?')
		if _, err := db.Get(dst[:0], key); err != ErrNotFound {
			t.Fatal(err)
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
			keys = hotKey(keys, i%uint64(n))
			b.Add(keys[at:])
		}
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		for j := range 128 {
			if err := b.Err(j); err != nil {
				t.Fatal(err)
			}
		}
		b.Release()
	})
	value := make([]byte, 8)
	measure("update", func() {
		i += 977
		key = hotKey(key[:0], i%uint64(n))
		if _, err := db.Update(key, func(old *Item) (UpdateOp, []byte, Meta, error) {
			return UpdateSet, value, Meta{}, nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	for _, o := range []IterOptions{{}, {OneKVStore: true}} {
		it, err := db.NewIter(nil, nil, o)
		if err != nil {
			t.Fatal(err)
		}
		if !it.First() {
			t.Fatal(it.Error())
		}
		for range 1000 { // buffers grow to the longest key
			it.Next()
		}
		measure(fmt.Sprintf("next %+v", o), func() {
			if !it.Next() {
				t.Fatal(it.Error())
			}
			if _, err := it.Item(); err != nil {
				t.Fatal(err)
			}
		})
		it.Close()
	}
}

// TestDurableApplyAllocatesNothing: waiting for the disk costs nothing, either.
func TestDurableApplyAllocatesNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	db := mustOpen(t, t.TempDir(), Options{MemQuota: 256 * mib, BufferedIO: true, Logf: func(string, ...any) {}})
	defer db.Close()
	for _, batch := range []int{1, 128} {
		w := newHotWriter(db, batch, 8)
		i := uint64(0)
		fn := func() {
			i += 977
			w.apply(t, i, 1000)
		}
		fn()
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("durable apply %d: %v allocations, want 0", batch, n)
		}
	}
}
