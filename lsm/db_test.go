package lsm

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
)

func testOptions(fs *memfs.FS) Options {
	return Options{FS: fs, MemQuota: 64 * mib, WriteCache: 4 * mib, SegmentBytes: 4 * mib, segmentBytesMin: 64 * kib, groupBytesMax: 64 * kib}
}

func mustOpen(t testing.TB, dir string, o Options) *DB {
	t.Helper()
	if o.Logf == nil {
		o.Logf = t.Logf
	}
	db, err := Open(dir, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return db
}

func TestSetGetReopen(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	want := map[string]string{}
	for i := range 500 {
		k := fmt.Sprintf("key%03d", i%300)
		v := fmt.Sprintf("value%d-%s", i, string(make([]byte, i*3)))
		if _, err := db.Set([]byte(k), []byte(v), Meta{Flags: uint32(i)}); err != nil {
			t.Fatal(err)
		}
		want[k] = v
	}
	check := func() {
		t.Helper()
		for k, v := range want {
			it, err := db.Get(nil, []byte(k))
			if err != nil || string(it.Value) != v {
				t.Fatalf("get %s: %v, %d bytes, want %d", k, err, len(it.Value), len(v))
			}
		}
		var b ReadBatch
		for k := range want {
			b.Add([]byte(k))
		}
		b.Add([]byte("none"))
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() - 1 {
			if b.Err(i) != nil || string(b.Item(i).Value) != want[string(b.Item(i).Key)] {
				t.Fatalf("getmany %s: %v", b.Item(i).Key, b.Err(i))
			}
		}
		if !errors.Is(b.Err(b.Len()-1), ErrNotFound) {
			t.Fatal("miss:", b.Err(b.Len()-1))
		}
		b.Release()
	}
	check()
	for range 3 {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = mustOpen(t, "data", o)
		if !db.Stats().Recovery.Clean {
			t.Error("not clean")
		}
		check()
	}
	// Power cuts.
	for i := range 3 {
		crashed := fs.CrashCopy(int64(i), memfs.DropAll)
		db.Close()
		fs = crashed
		o.FS = fs
		db = mustOpen(t, "data", o)
		check()
	}
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Get(nil, []byte("key001")); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	t.Logf("%+v", db.Stats())
	db.Close()
	db = mustOpen(t, "data", o)
	if _, err := db.Get(nil, []byte("key001")); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	db.Close()
}

func TestConcurrent(t *testing.T) {
	fs := memfs.New()
	for _, async := range []bool{false, true} {
		o := testOptions(fs)
		o.WriteCache = 32 * mib
		o.NonDurable = async
		db := mustOpen(t, fmt.Sprint("data", async), o)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				var b Batch
				for i := range 200 {
					b.Reset()
					for j := range 16 {
						b.Set(fmt.Appendf(nil, "g%d-%d", g, j), fmt.Appendf(nil, "%d", i), Meta{})
					}
					if _, err := db.Apply(&b, WriteOptions{}); err != nil {
						t.Error(err)
						return
					}
					it, err := db.Get(nil, fmt.Appendf(nil, "g%d-%d", g, i%16))
					if err != nil || string(it.Value) != fmt.Sprint(i) {
						t.Errorf("get after set: %v %q want %d", err, it.Value, i)
						return
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%+v", db.Stats())
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
