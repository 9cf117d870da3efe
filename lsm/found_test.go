package lsm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// What the crash and fault loops found, each as the shortest story that shows
// it.

// TestR4_SeqnosAfterACleanStartAreNotGivenTwice: a store that was closed in
// order is opened, hands out a seqno, and loses the power before the write
// reaches the device. The last group in the log is then still the one that says
// "closed in order", and the next start took that at its word and handed out
// the same seqno, and with it the same CAS, for another document. The end that
// the start in between recorded for the closed log tells.
func TestR4_SeqnosAfterACleanStartAreNotGivenTwice(t *testing.T) {
	disk := memfs.New()
	o := tinyOptions()
	o.NonDurable = true
	o.AsyncWindow = 1e10 // nothing is written by itself
	o.FS = disk
	db := mustOpen(t, "data", o)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = mustOpen(t, "data", o)
	first, err := db.Set([]byte("k"), []byte("lost"), Meta{})
	if err != nil {
		t.Fatal(err)
	}
	after := disk.CrashCopy(1, memfs.DropAll)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	o.FS = after
	db = mustOpen(t, "data", o)
	defer db.Close()
	second, err := db.Set([]byte("k"), []byte("another"), Meta{})
	if err != nil {
		t.Fatal(err)
	}
	if second <= first {
		t.Errorf("seqno %d was given to a document, then %d to another", first, second)
	}
	if db.Stats().Recovery.Clean {
		t.Error("the start says that the store was closed in order")
	}
}

// TestClosedStoreLeavesNoFileOpen: a snapshot keeps the segments of documents
// that a clear dropped. Close let go of them after the log had stopped, and
// nobody closed their files any more.
func TestClosedStoreLeavesNoFileOpen(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("released after close=%v", late), func(t *testing.T) {
			var open atomic.Int64
			o := tinyOptions()
			o.FS = openFiles(memfs.New(), &open)
			db := mustOpen(t, "data", o)
			if _, err := db.Set([]byte("k"), make([]byte, 300), Meta{}); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = mustOpen(t, "data", o)
			snapshot, err := db.NewSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			var reads ReadBatch
			reads.Add([]byte("k"))
			if err := db.GetMany(&reads); err != nil || reads.Err(0) != nil {
				t.Fatal(err, reads.Err(0))
			}
			if _, err := db.Clear(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if !late {
				reads.Release()
			}
			if err := errors.Join(db.Close(), snapshot.Close()); err != nil {
				t.Fatal(err)
			}
			reads.Release()
			if n := open.Load(); n != 0 {
				t.Errorf("%d files are left open", n)
			}
		})
	}
}

// TestFailedStoreGivesItsMemoryBack: a log that failed kept the buffers of the
// groups it could not write, also when it was closed.
func TestFailedStoreGivesItsMemoryBack(t *testing.T) {
	if invariants.Enabled {
		t.Skip("memory comes from the Go heap")
	}
	before := addressSpace(t)
	for range 60 {
		faulty := faultfs.Wrap(memfs.New())
		o := tinyOptions()
		o.groupBytesMax = 4 * mib
		o.FS = faulty
		db := mustOpen(t, "data", o)
		faulty.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteDurable}, Fault: faultfs.EIO})
		if _, err := db.Set([]byte("k"), []byte("v"), Meta{}); !errors.Is(err, ErrReadOnly) {
			t.Fatal(err)
		}
		_ = db.Close()
	}
	if grown := addressSpace(t) - before; grown > 100*mib {
		t.Errorf("60 failed stores left %d MiB behind", grown/mib)
	}
}

// addressSpace is the size of the process in bytes.
func addressSpace(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var pages int64
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// TestF5_OneBadReadDoesNotCutTheLog: nothing in the log vouches yet for the last
// group, so damage to it looks like a torn tail. A bit that flips once on the
// way to memory must not pass for that: it would cut off what was acknowledged.
func TestF5_OneBadReadDoesNotCutTheLog(t *testing.T) {
	disk := memfs.New()
	o := tinyOptions()
	o.FS = disk
	db := mustOpen(t, "data", o)
	if _, err := db.Set([]byte("k"), make([]byte, 500), Meta{}); err != nil {
		t.Fatal(err)
	}
	group := int64(db.log.Stats().GroupBytes) // the only one, behind the header
	image := disk.CrashCopy(0, memfs.DropAll)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 20, 80, 400} {
		var flips atomic.Int64
		tap := &tapFS{inner: image.CrashCopy(0, memfs.DropAll)}
		tap.call = func(op vfs.Op, do func() error, _ *tapFile, p []byte) error {
			err := do()
			place := 4096 + at - op.Off
			if op.Kind == vfs.OpReadAt && isSegment(op) && place >= 0 && place < int64(len(p)) && flips.Add(1) == 1 {
				p[place] ^= 4
			}
			return err
		}
		o.FS = tap
		db, err := Open("data", o)
		if err != nil {
			t.Fatalf("byte %d of the group of %d: %v", at, group, err)
		}
		if it, err := db.Get(nil, []byte("k")); err != nil || len(it.Value) != 500 {
			t.Errorf("byte %d of the group flipped once: %v", at, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if flips.Load() == 0 {
			t.Error("no bit was flipped")
		}
	}
}

// TestW9_RestartAfterAFailedSyncWithoutDirectIO: the sync of a group fails, and
// the store is opened again without a power cut in between. The page cache still
// shows the group, a sync of it says yes, and the device does not have it. A
// store that built on it was refused after the next power cut, with all that it
// had acknowledged since.
func TestW9_RestartAfterAFailedSyncWithoutDirectIO(t *testing.T) {
	disk := memfs.New()
	faulty := faultfs.Wrap(disk)
	o := tinyOptions()
	o.BufferedIO = true
	o.FS = faulty
	db := mustOpen(t, "data", o)
	if _, err := db.Set([]byte("a"), []byte("durable"), Meta{}); err != nil {
		t.Fatal(err)
	}
	faulty.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteDurable}, Fault: faultfs.SyncDrop})
	if _, err := db.Set([]byte("b"), []byte("unknown"), Meta{}); !errors.Is(err, ErrReadOnly) {
		t.Fatal(err)
	}
	_ = db.Close()
	faulty.Clear()

	db = mustOpen(t, "data", o)
	it, err := db.Get(nil, []byte("b"))
	seen := err == nil && string(it.Value) == "unknown"
	if _, err := db.Set([]byte("c"), []byte("acknowledged"), Meta{}); err != nil {
		t.Fatal(err)
	}
	o.FS = disk.CrashCopy(1, memfs.DropAll)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = mustOpen(t, "data", o)
	defer db.Close()
	for k, v := range map[string]string{"a": "durable", "b": "unknown", "c": "acknowledged"} {
		if it, err := db.Get(nil, []byte(k)); (k != "b" || seen) && (err != nil || string(it.Value) != v) {
			t.Errorf("%s holds %q, %v; want %s", k, it.Value, err, v)
		}
	}
}

// TestR13_ClearOvertakesAFlush: a snapshot keeps what a clear ended, and a flush
// of that together with newer versions begins. Before it is done the snapshot
// goes, and with it the segments of the cleared documents, which nothing named
// any more. The flush then named them, and the manifest refused its edit.
func TestR13_ClearOvertakesAFlush(t *testing.T) {
	disk := memfs.New()
	o := tinyOptions()
	o.VBuckets, o.FS = 1, disk
	db := mustOpen(t, "data", o)
	defer db.Close()
	for i := range 10 { // for more than one segment
		set(t, db, fmt.Sprintf("old%d", i), strings.Repeat("v", 10_000))
	}
	snapshot, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	set(t, db, "new", "value")
	var once sync.Once
	disk.SetHook(func(op memfs.Op) error {
		if op.Kind == vfs.OpCreate && strings.HasSuffix(op.Name, ".sst") {
			once.Do(func() {
				snapshot.Close()
				until(t, "the end of what was cleared", func() bool {
					return !db.sched.tablesToRetire.Load()
				})
			})
		}
		return nil
	})
	mustFlush(t, db)
	if s := db.Stats(); s.FlushesFailed != 0 || s.Entries != 0 {
		t.Errorf("%d flushes failed, %d versions left in memory", s.FlushesFailed, s.Entries)
	}
	if _, err := db.Get(nil, []byte("old0")); !errors.Is(err, ErrNotFound) {
		t.Errorf("the cleared document: %v", err)
	}
	want(t, db, "new", "value")
	if st := db.edits.log.State(); len(st.Tables) != 1 || st.Tables[0].Entries != 1 {
		t.Errorf("the tables are %+v, want one with one version", st.Tables)
	}
}

// TestR13_ClearOvertakesAFlushBeforeItIsRecorded: a clear is durable and has let
// go of the memtables, but is not in the manifest yet. The edit of one flush then
// drops the segments of what was cleared; another flush, begun before the clear,
// named them.
func TestR13_ClearOvertakesAFlushBeforeItIsRecorded(t *testing.T) {
	disk := memfs.New()
	o := tinyOptions()
	o.VBuckets, o.KVStores, o.FS, o.flushOnDemand = 2, 2, disk, true
	db := mustOpen(t, "data", o)
	defer db.Close()
	for i := range 10 { // for more than one segment
		set(t, db, keyOf(db, 1, i), strings.Repeat("v", 10_000))
	}
	started, resume := make(chan struct{}), make(chan struct{})
	var met atomic.Bool
	disk.SetHook(func(op memfs.Op) error {
		if op.Kind == vfs.OpCreate && strings.HasSuffix(op.Name, ".sst") && !met.Swap(true) {
			close(started)
			<-resume
		}
		return nil
	})
	flushed := make(chan error, 1)
	go func() { flushed <- db.flush(context.Background(), []int{1}) }()
	<-started
	// The steps of Clear up to its edit.
	db.clears.mu.Lock()
	defer db.clears.mu.Unlock()
	seqno, err := db.placeClear()
	if err == nil {
		err = db.waitDurable(seqno, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	db.retireCleared()
	set(t, db, keyOf(db, 0, 0), "value")
	if err := db.flush(context.Background(), []int{0}); err != nil {
		t.Error(err)
	}
	close(resume)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	if err := db.recordClear(seqno); err != nil {
		t.Error(err)
	}
	if st := db.edits.log.State(); len(st.Tables) != 1 || st.Tables[0].Entries != 1 {
		t.Errorf("the tables are %+v, want one with one version", st.Tables)
	}
}

// TestCloseUnderAnIterator: an iterator that stands in a table keeps its file
// open over Close, which called that an error.
func TestCloseUnderAnIterator(t *testing.T) {
	var open atomic.Int64
	o := tinyOptions()
	o.FS = openFiles(memfs.New(), &open)
	db := mustOpen(t, "data", o)
	for i := range 100 {
		set(t, db, fmt.Sprintf("k%d", i), "value")
	}
	mustFlush(t, db)
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil || !it.First() {
		t.Fatal(err, it.Error())
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if it.Next() || !errors.Is(it.Error(), ErrClosed) {
		t.Errorf("next in a closed store: %v", it.Error())
	}
	it.Close()
	if n := open.Load(); n != 0 {
		t.Errorf("%d files are left open", n)
	}
}
