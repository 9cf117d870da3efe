package lsm

import (
	"fmt"
	"testing"

	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs/memfs"
)

// tieredStore opens a store whose n keys lie in the oldest of five
// runs of tables in every kvstore. The four newer ones have keys in between, so
// that each may hold what is asked for; values are of so many bytes.
func tieredStore(tb testing.TB, n, value int) *DB {
	tb.Helper()
	db := mustOpen(tb, "data", Options{
		FS:         memfs.New(),
		NonDurable: true, MemQuota: 1 * gib, KVStores: 4, VBuckets: 16, flushOnDemand: true, BloomBits: -1,
		Logf: func(string, ...any) {},
	})
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	for run := range 5 {
		var b Batch
		for i := range n {
			key := tieredKey(nil, i)
			if run > 0 {
				key = fmt.Appendf(key, "+%d", run)
			}
			if err := b.Set(key, make([]byte, value), Meta{}); err != nil {
				tb.Fatal(err)
			}
			if b.Len() == 100 || i == n-1 {
				if _, err := db.Apply(&b, WriteOptions{}); err != nil {
					tb.Fatal(err)
				}
				b.Reset()
			}
		}
		if err := db.Flush(); err != nil {
			tb.Fatal(err)
		}
	}
	if s := db.Stats(); s.RunsMax != 5 || s.Entries != 0 {
		tb.Fatalf("%d runs, %d versions in memory", s.RunsMax, s.Entries)
	}
	return db
}

func tieredKey(dst []byte, i int) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, "key-"...)
	for shift := 28; shift >= 0; shift -= 4 {
		dst = append(dst, digits[i>>shift&15])
	}
	return dst
}

// TestReadsOfTheFifthTableAllocateNothing: one key, 128 keys, and an iterator,
// with values in the tables and in the log, and without filters, so that each
// search looks into all five tables.
func TestReadsOfTheFifthTableAllocateNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	const n = 4000
	for _, value := range []int{8, 1000} { // inline, separated
		t.Run(fmt.Sprintf("%d bytes", value), func(t *testing.T) {
			db := tieredStore(t, n, value)
			db.blocks.Resize(0) // else it has them all
			i := 0
			measure := func(name string, runs int, fn func()) {
				t.Helper()
				for range 10 { // buffers grow, tables are opened
					fn()
				}
				if allocs := testing.AllocsPerRun(runs, fn); allocs != 0 {
					t.Errorf("%s: %v allocations, want 0", name, allocs)
				}
			}
			var dst, key []byte
			measure("get", 500, func() {
				i += 977
				key = tieredKey(key[:0], i%n)
				item, err := db.Get(dst[:0], key)
				if err != nil || len(item.Value) != value {
					t.Fatal(err)
				}
				dst = item.Value
			})
			before := db.Stats().BlockReads
			key = tieredKey(key[:0], 1)
			if _, err := db.Get(dst[:0], key); err != nil {
				t.Fatal(err)
			}
			if reads := db.Stats().BlockReads - before; reads != 5 {
				t.Errorf("a get read %d blocks of tables, want one of each of the five", reads)
			}
			measure("get of nothing", 500, func() {
				i += 977
				key = append(tieredKey(key[:0], i%n), '?')
				if _, err := db.Get(dst[:0], key); err != ErrNotFound {
					t.Fatal(err)
				}
			})
			var b ReadBatch
			keys := make([]byte, 0, 128*16)
			measure("get 128", 50, func() {
				b.Reset()
				keys = keys[:0]
				for range 128 {
					i += 977
					at := len(keys)
					keys = tieredKey(keys, i%n)
					b.Add(keys[at:])
				}
				if err := db.GetMany(&b); err != nil {
					t.Fatal(err)
				}
				for j := range 128 {
					if b.Err(j) != nil || len(b.Item(j).Value) != value {
						t.Fatal(b.Err(j))
					}
				}
				b.Release()
			})
			measure("update that sets nothing", 500, func() {
				i += 977
				key = tieredKey(key[:0], i%n)
				if _, err := db.UpdateKey(key, func(old *Item) (UpdateOp, []byte, Meta, error) {
					if old == nil {
						t.Error("the key is missing")
					}
					return UpdateNone, nil, Meta{}, nil
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
				measure(fmt.Sprintf("next %+v", o), 500, func() {
					if !it.Next() {
						t.Fatal(it.Error())
					}
					if _, err := it.Item(); err != nil {
						t.Fatal(err)
					}
				})
				it.Close()
			}
		})
	}
}
