package wal

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestR03_DropWhileTheSealIsWritten: once everything in a segment is kept
// elsewhere and the log has gone on, it may be dropped; its seal group may be on
// its way to the device still. Its file was then closed under the write, which
// ended the log, or the seal landed in the segment that the file was used for
// next.
func TestR03_DropWhileTheSealIsWritten(t *testing.T) {
	fs := memfs.New()
	r := startRunning(t, runningOptions(fs), nil)
	defer r.close()
	r.put(5, 300)
	r.waitAll()
	old := r.position().Segment

	var holding atomic.Bool
	arrived, held := make(chan struct{}), make(chan struct{})
	holding.Store(true)
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteDurable && holding.CompareAndSwap(true, false) {
			close(arrived)
			<-held
		}
		return nil
	})
	rolled := make(chan struct{})
	go func() {
		defer close(rolled)
		r.roll()
	}()
	<-arrived
	p := r.position()
	if p.Segment <= old {
		t.Fatalf("position %v", p)
	}
	r.drop(old)
	until(t, "the next segment", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.ready != nil })
	if s := r.Stats(); s.Pooled != 0 || s.Reused != 0 || s.Removed != 0 {
		t.Fatalf("freed while it is written to: %+v", s)
	}
	close(held)
	<-rolled
	until(t, "pooled", func() bool { return r.Stats().Pooled == 1 })
	r.roll()
	until(t, "used again", func() bool { return r.Stats().Reused == 1 })
	r.roll()
	r.put(3, 300)
	r.waitAll()
	r.footers() // a scan must not see a file that is cut
	wantSeqnos(t, scanFrom(t, fs, r.segments(), p), p.Seqno, r.next-1)
}

// TestDroppingTheActiveSegmentEndsTheLog: what is acknowledged after it would
// be gone at the next open.
func TestDroppingTheActiveSegmentEndsTheLog(t *testing.T) {
	for _, ready := range []bool{false, true} {
		r := startRunning(t, runningOptions(memfs.New()), nil)
		r.put(1, 10)
		r.waitAll()
		until(t, "the next segment", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.ready != nil })
		id := r.active.ID
		if ready {
			id = r.prep.ready.ID
		}
		r.drop(id)
		if _, err := r.tryPut(1, 10); !errors.Is(err, ErrFailed) {
			t.Errorf("placed: %v", err)
		}
		if err := r.Close(); !errors.Is(err, ErrFailed) {
			t.Errorf("closed: %v", err)
		}
	}
}

// TestCloseClosesEveryFile: also of segments that were dropped and are still
// with the writer, in a log that failed or not.
func TestCloseClosesEveryFile(t *testing.T) {
	for _, fail := range []bool{false, true} {
		fs := &openFiles{FS: memfs.New()}
		r := startRunning(t, runningOptions(fs), nil)
		r.put(1, 300)
		r.waitAll()
		old := r.position().Segment
		r.mu.Lock()
		for r.prep.ready == nil {
			r.prep.ask(0)
			r.space.Wait()
		}
		r.rollLocked() // the seal is not written yet
		r.mu.Unlock()
		if fail {
			r.Fail(errors.New("a reason"))
		}
		r.drop(old)
		if err := r.Close(); errors.Is(err, ErrFailed) != fail {
			t.Fatal(err)
		}
		if n := fs.open.Load(); n != 0 {
			t.Errorf("failed %v: %d files are open", fail, n)
		}
	}
}

// openFiles counts the files that are open.
type openFiles struct {
	vfs.FS
	open atomic.Int64
}

func (f *openFiles) Create(name string, o vfs.OpenOptions) (vfs.File, error) {
	return f.count(f.FS.Create(name, o))
}

func (f *openFiles) Open(name string, o vfs.OpenOptions) (vfs.File, error) {
	return f.count(f.FS.Open(name, o))
}

func (f *openFiles) count(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	f.open.Add(1)
	return &countedFile{file, f}, nil
}

type countedFile struct {
	vfs.File
	fs *openFiles
}

func (f *countedFile) Close() error {
	err := f.File.Close()
	if !errors.Is(err, os.ErrClosed) { // any other error closes it all the same
		f.fs.open.Add(-1)
	}
	return err
}
