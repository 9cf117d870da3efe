package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

func flushOptions(fs *memfs.FS) Options {
	o := testOptions(fs)
	o.WriteCache = mib
	return o
}

// TestFlushMovesDocumentsToTables writes several generations of small and
// large documents, flushes each, and reads them from tables, before and after
// a restart.
func TestFlushMovesDocumentsToTables(t *testing.T) {
	fs := memfs.New()
	db, err := Open("data", flushOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	value := func(i, gen int) []byte {
		return bytes.Repeat([]byte{byte('a' + gen)}, []int{0, 8, 255, 256, 3000}[i%5])
	}
	check := func(db *DB) {
		t.Helper()
		var b ReadBatch
		defer b.Release()
		for i := range 500 {
			b.Add(fmt.Appendf(nil, "key%04d", i))
		}
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			gen := 0
			for g := 1; g < 5; g++ {
				if i%g == 0 {
					gen = g
				}
			}
			key := fmt.Appendf(nil, "key%04d", i)
			it, err := db.Get(nil, key)
			switch {
			case i%7 == 6:
				if !errors.Is(err, ErrNotFound) || !errors.Is(b.Err(i), ErrNotFound) {
					t.Fatalf("%s: %v, %v, want it deleted", key, err, b.Err(i))
				}
			case err != nil || b.Err(i) != nil:
				t.Fatalf("%s: %v, %v", key, err, b.Err(i))
			case !bytes.Equal(it.Value, value(i, gen)) || !bytes.Equal(b.Item(i).Value, it.Value):
				t.Fatalf("%s: %q, in a batch %q, want %q", key, it.Value, b.Item(i).Value, value(i, gen))
			}
		}
		it, err := db.NewIter(nil, nil, IterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			if _, err := it.Item(); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if err := it.Error(); err != nil {
			t.Fatal(err)
		}
		if want := 500 - 500/7; n != want {
			t.Fatalf("an iterator shows %d documents, want %d", n, want)
		}
	}
	for gen := range 5 {
		for i := range 500 {
			if gen == 0 || i%gen == 0 {
				if _, err := db.Set(fmt.Appendf(nil, "key%04d", i), value(i, gen), Meta{}); err != nil {
					t.Fatal(err)
				}
			}
			if gen == 4 && i%7 == 6 {
				if _, err := db.Delete(fmt.Appendf(nil, "key%04d", i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
		if s := db.Stats(); s.Entries != 0 || s.RunsMax < gen+1 || s.Flushes < int64(gen+1) {
			t.Fatalf("after flush %d: %d entries in memory, %d runs, %d flushes", gen+1, s.Entries, s.RunsMax, s.Flushes)
		}
	}
	check(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = Open("data", flushOptions(fs)); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Entries != 0 {
		t.Errorf("replay loaded %d versions that are in tables", s.Entries)
	}
	check(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
