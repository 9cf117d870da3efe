package lsm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// TestF1_AFlushThatFailsForEverHangsNobody fills the write cache of a store whose
// flushes all fail. Each writer must get a temporary error in the end, also one
// that waits for room; what was acknowledged can be read; and when the disk
// works again, so does the store, without a restart.
func TestF1_AFlushThatFailsForEverHangsNobody(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rule   faultfs.Rule
		reject bool
		full   bool // the error is ErrDiskFull
	}{
		{"no space for a table", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpCreate}, Name: "*.sst", Fault: faultfs.ENOSPC}, false, true},
		{"no space in a table", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "*.sst", Fault: faultfs.ENOSPC}, false, true},
		{"no space for an edit", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "MANIFEST-*", Fault: faultfs.ENOSPC}, false, true},
		{"a table is not synced", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync}, Name: "*.sst", Fault: faultfs.SyncDrop}, false, false},
		{"the directory is not synced", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSyncDir}, Name: "idx", Fault: faultfs.EIO}, false, false},
		{"a table cannot be read back", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: "*.sst", Fault: faultfs.EIO}, false, false},
		{"bits flip in tables", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: "*.sst", Fault: faultfs.BitFlip}, false, false},
		{"writes fail, writers are rejected", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "*.sst", Fault: faultfs.EIO}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer watch(tc.name)()
			faulty := faultfs.Wrap(memfs.New())
			o := tinyOptions()
			o.FS, o.Reject = faulty, tc.reject
			o.InlineLimit, o.WriteCache, o.SegmentBytes, o.KVStores = 4*kib, 64*kib, 256*kib, 2
			db := mustOpen(t, "data", o)
			rule := tc.rule
			faulty.Add(rule)
			var mu sync.Mutex
			acked := map[string]string{}
			var refused atomic.Int64
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					for i := range 200 {
						key := fmt.Sprintf("%d-%03d", w, i)
						_, err := db.Set([]byte(key), fmt.Appendf(make([]byte, 0, 2000), "%2000s", key), Meta{})
						switch {
						case err == nil:
							mu.Lock()
							acked[key] = fmt.Sprintf("%2000s", key)
							mu.Unlock()
							continue
						case tc.full && !errors.Is(err, ErrDiskFull), !tc.full && !errors.Is(err, ErrOverloaded):
							t.Errorf("writer %d: %v", w, err)
						case errors.Is(err, ErrReadOnly):
							t.Errorf("writer %d: not temporary: %v", w, err)
						}
						refused.Add(1)
						return
					}
				})
			}
			wg.Wait()
			if refused.Load() != 4 {
				t.Fatalf("%d of 4 writers were refused", refused.Load())
			}
			if err := db.Flush(); err == nil {
				t.Error("Flush says that it is done")
			}
			if s := db.Stats(); s.FlushesFailed == 0 || s.FlushError == "" || s.Tables != 0 || s.ReadOnly != "" {
				t.Errorf("%d flushes failed, the last one with %q; %d tables; read-only %q", s.FlushesFailed, s.FlushError, s.Tables, s.ReadOnly)
			}
			check := func(db *DB) {
				t.Helper()
				for k, v := range acked {
					want(t, db, k, v)
				}
			}
			check(db)

			faulty.Clear()
			if err := db.Flush(); err != nil {
				t.Fatal("the disk works again: ", err)
			}
			set(t, db, "healed", "1")
			if err := errors.Join(db.Flush(), checkStore(db)); err != nil {
				t.Fatal(err)
			}
			check(db)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = mustOpen(t, "data", o)
			defer db.Close()
			check(db)
			want(t, db, "healed", "1")
		})
	}
}

// TestFlushWaitsInPeace: Flush woke the scheduler whenever that said that it had
// looked, and the scheduler said so whenever it was woken: both were busy for
// as long as the flush took.
func TestFlushWaitsInPeace(t *testing.T) {
	o := tinyOptions()
	o.flushOnDemand = false
	tap := &tapFS{inner: memfs.New()}
	var db *DB
	rounds := int64(0)
	tap.call = func(op vfs.Op, do func() error, _ *tapFile, _ []byte) error {
		if op.Kind == vfs.OpSyncDir && vfs.MatchName(TablesDir, op.Name) {
			looks := func() int64 {
				db.sched.mu.Lock()
				defer db.sched.mu.Unlock()
				return int64(db.sched.looks)
			}
			from := looks()
			for start := time.Now(); time.Since(start) < 20*time.Millisecond && rounds < 1000; runtime.Gosched() {
				rounds = looks() - from
			}
		}
		return do()
	}
	o.FS = tap
	db = mustOpen(t, "data", o)
	defer db.Close()
	set(t, db, "k", "v")
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	if rounds > 10 {
		t.Errorf("the scheduler went round %d times during one flush", rounds)
	}
}
