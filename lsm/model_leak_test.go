package lsm

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// goroutinesOfStores returns the stacks of goroutines that a store started.
func goroutinesOfStores() (stacks []string) {
	b := make([]byte, 1<<20)
	b = b[:runtime.Stack(b, true)]
	for _, s := range strings.Split(string(b), "\n\n") {
		if at := strings.LastIndex(s, "created by fluxkv/"); at >= 0 && !strings.Contains(s[at:], ".Test") {
			stacks = append(stacks, s)
		}
	}
	return stacks
}

// fillFreeLists reads so many documents of each size at once that the buffers
// which the process keeps for reading documents are as many as it may keep. From
// then on they neither come nor go for good.
func fillFreeLists(t *testing.T) {
	t.Helper()
	o := testOptions(memfs.New())
	o.InlineLimit = -1
	db := mustOpen(t, "data", o)
	defer db.Close()
	for size, n := 4000, 256; n >= 8; size, n = size*2+1000, n/2 { // up to 160,000 bytes: 2 MiB of buffers each
		var b ReadBatch
		for i := range n {
			key := fmt.Sprintf("%d of %d", i, size)
			set(t, db, key, strings.Repeat("v", size))
			b.Add([]byte(key))
		}
		mustFlush(t, db)
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := b.Err(i); err != nil {
				t.Fatal(err)
			}
		}
		b.Release()
	}
}

// TestClosedStoreLeavesNothing: after Close no goroutine of the store runs, no
// file is open and no memtable or log buffer is left, whatever was under way, and also
// when readers end later.
func TestClosedStoreLeavesNothing(t *testing.T) {
	fillFreeLists(t)
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		o    Options
		late bool // readers end after Close
		// upset does something to the store or its disk before Close.
		upset func(t *testing.T, db *DB, fs *memfs.FS)
		fails bool // Close returns an error
	}{
		{name: "idle", upset: func(*testing.T, *DB, *memfs.FS) {}},
		{name: "readers end later", late: true, upset: func(*testing.T, *DB, *memfs.FS) {}},
		{name: "async", o: Options{NonDurable: true, LogInflight: 3, AsyncWindow: time.Minute}, late: true, upset: func(*testing.T, *DB, *memfs.FS) {}},
		{name: "cleared under readers", late: true, upset: func(t *testing.T, db *DB, _ *memfs.FS) {
			if _, err := db.Clear(time.Time{}); err != nil {
				t.Error(err)
			}
		}},
		{name: "clear pending", upset: func(t *testing.T, db *DB, _ *memfs.FS) {
			if _, err := db.Clear(time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
		}},
		{name: "flush under way", late: true, upset: func(t *testing.T, db *DB, fs *memfs.FS) {
			started := make(chan struct{})
			var met atomic.Bool
			fs.SetHook(func(op memfs.Op) error {
				if op.Kind == vfs.OpCreate && strings.HasSuffix(op.Name, ".sst") && !met.Swap(true) {
					close(started)
					<-db.sched.ctx.Done() // until Close calls it off
				}
				return nil
			})
			set(t, db, "one more", "value")
			go db.Flush()
			<-started
		}},
		{name: "flush fails", late: true, upset: func(t *testing.T, db *DB, fs *memfs.FS) {
			fs.SetHook(func(op memfs.Op) error {
				if op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, ".sst") {
					return broken
				}
				return nil
			})
			set(t, db, "one more", "value")
			if err := db.Flush(); !errors.Is(err, broken) {
				t.Errorf("flush: %v", err)
			}
		}},
		{name: "log fails", late: true, fails: true, upset: func(t *testing.T, db *DB, fs *memfs.FS) {
			fs.SetHook(func(op memfs.Op) error {
				if op.Kind == vfs.OpWriteDurable {
					return broken
				}
				return nil
			})
			if _, err := db.Set([]byte("one more"), nil, Meta{}); !errors.Is(err, ErrReadOnly) {
				t.Errorf("set: %v", err)
			}
		}},
		{name: "power cut", late: true, fails: true, upset: func(t *testing.T, _ *DB, fs *memfs.FS) { fs.Crash() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			goroutines, mapped := len(goroutinesOfStores()), offheap.Mapped()
			var open atomic.Int64
			fs := memfs.New()
			o := testOptions(nil)
			o.FS = openFiles(fs, &open)
			o.VBuckets, o.KVStores, o.WriteCache, o.writeCacheMin = 16, 4, 512*kib, 512*kib
			o.TableBytes, o.tableBytesMin, o.MaxItemBytes = 16*kib, 16*kib, 64*kib
			o.NonDurable, o.LogInflight, o.AsyncWindow = c.o.NonDurable, c.o.LogInflight, c.o.AsyncWindow
			o.Logf = func(string, ...any) {}
			var readers []func()
			for round := range 2 { // the second time it replays
				db := mustOpen(t, "data", o)
				for i := range 600 {
					set(t, db, fmt.Sprintf("k%03d", i%300), strings.Repeat("v", i*4))
				}
				readers = append(readers, openReaders(t, db))
				if round == 1 {
					c.upset(t, db, fs)
				}
				if !c.late {
					readers[round]()
				}
				if err := db.Close(); (err != nil) != (c.fails && round == 1) {
					t.Errorf("close: %v", err)
				}
			}
			if c.late {
				for _, end := range readers {
					end()
				}
			}
			// A goroutine that has done its last act may not be gone yet.
			until(t, "the end of all goroutines", func() bool { return len(goroutinesOfStores()) <= goroutines })
			if n := open.Load(); n != 0 {
				t.Errorf("%d files are left open", n)
			}
			if n := offheap.Mapped() - mapped; n != 0 && !offheap.OnGoHeap {
				t.Errorf("%d bytes of memory are left", n)
			}
		})
	}
}

// openReaders opens one of each kind and returns what ends them.
func openReaders(t *testing.T, db *DB) (end func()) {
	t.Helper()
	snapshot, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	reads := new(ReadBatch)
	for i := range 300 {
		reads.Add(fmt.Appendf(nil, "k%03d", i))
	}
	if err := db.GetMany(reads); err != nil {
		t.Fatal(err)
	}
	var its []*Iterator
	for _, o := range []IterOptions{{}, {OneKVStore: true, KVStore: 1}} {
		it, err := snapshot.NewIter(nil, nil, o)
		if err != nil {
			t.Fatal(err)
		}
		if !it.First() || !it.Next() {
			t.Fatal(it.Error())
		}
		if _, err := it.Item(); err != nil {
			t.Fatal(err)
		}
		its = append(its, it)
	}
	return func() {
		for _, it := range its {
			it.Close()
		}
		reads.Release()
		snapshot.Close()
	}
}

// TestFailedOpenLeavesNothing cuts the power at every call of a start that
// replays and flushes.
func TestFailedOpenLeavesNothing(t *testing.T) {
	fs := memfs.New()
	o := tinyOptions()
	o.FS, o.WriteCache, o.InlineLimit = fs, 4*mib, 4096
	db := mustOpen(t, "data", o)
	for i := range 200 {
		set(t, db, fmt.Sprintf("k%03d", i), strings.Repeat("v", 4000))
	}
	image := fs.CrashCopy(1, memfs.DropAll)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	o.WriteCache, o.writeCacheMin = 256*kib, 256*kib
	o.Logf = func(string, ...any) {}
	step := int64(1)
	if testing.Short() {
		step = 17
	}
	goroutines, mapped := len(goroutinesOfStores()), offheap.Mapped()
	opened := false
	for n := int64(1); !opened; n += step {
		var open atomic.Int64
		disk := image.CrashCopy(1, memfs.DropAll)
		disk.CrashAt(n, memfs.Within)
		o.FS = openFiles(disk, &open)
		db, err := Open("data", o)
		if opened = err == nil; opened {
			if db.Stats().Recovery.Spills == 0 {
				t.Error("nothing was flushed by the start")
			}
			db.Close()
		}
		if k := open.Load(); k != 0 {
			t.Fatalf("power cut at call %d: %d files are left open", n, k)
		}
		if k := offheap.Mapped() - mapped; k != 0 && !offheap.OnGoHeap {
			t.Fatalf("power cut at call %d: %d bytes of memory are left", n, k)
		}
	}
	until(t, "the end of all goroutines", func() bool { return len(goroutinesOfStores()) <= goroutines })
}
