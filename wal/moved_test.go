package wal

import (
	"errors"
	"path"
	"slices"
	"sync"
	"syscall"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// movedOutputs rewrites two segments of a log into several outputs and returns
// them as their files were found by an open.
func movedOutputs(t *testing.T, fs vfs.FS) (*rewriteBench, []*Segment) {
	t.Helper()
	r := newRewriteBench(t, fs)
	b := newLogBuilder(t, fs, 512, 1<<16)
	for id := entry.SegmentID(1); id <= 2; id++ {
		b.roll(id)
		b.sets(20, 700)
		b.seal(true, true)
	}
	r.take(b)
	res := r.rewrite(r.options(512, 9000), r.live, func(s entry.Seqno) bool { return s%4 > 0 })
	var segments []*Segment
	for _, out := range res.Outputs {
		s, err := OpenSegment(fs, "db", out.ID, SegmentGC, false)
		if err != nil {
			t.Fatal(err)
		}
		segments = append(segments, s)
	}
	return r, segments
}

// TestR08_FindMoved: an old address leads to the document wherever it went, and to
// nothing when it went nowhere.
func TestR08_FindMoved(t *testing.T) {
	fs := memfs.New()
	r, segments := movedOutputs(t, fs)
	l := startRunning(t, runningOptions(fs), nil)
	if err := l.AddSegments(segments); err != nil {
		t.Fatal(err)
	}
	if got := l.Stats().Open; got != len(segments)+2 && got != len(segments)+1 { // active, and prepared
		t.Errorf("%d segments are open", got)
	}
	found := map[entry.SegmentID]bool{}
	for seqno := entry.Seqno(1); seqno <= 40; seqno++ {
		d, kept := r.docs[seqno]
		a := entry.Address{Segment: 1, Offset: 7, Length: uint32(RecordBytes(len(d.key), d.meta, len(d.value), true))}
		s, moved, err := FindMoved(t.Context(), segments, a, seqno)
		if err != nil || (s != nil) != kept {
			t.Fatalf("seqno %d, kept %v: %v, %v", seqno, kept, moved, err)
		}
		if !kept {
			continue
		}
		if s.ID != d.segment || moved.Segment != d.segment {
			t.Fatalf("seqno %d found in %d, want %d", seqno, s.ID, d.segment)
		}
		found[s.ID] = true
		got, _, err := ReadDocument(s.File, moved, seqno, d.key, &testSecret, false, nil)
		if err != nil || !slices.Equal(got, d.value) {
			t.Fatalf("seqno %d: %x, %v", seqno, got, err)
		}
	}
	if len(found) != len(segments) || len(found) < 3 {
		t.Errorf("documents in %v", found)
	}
	if n := l.IndexBytes(); n < 30 || n > int64(len(segments))*200 {
		t.Errorf("indexes of 30 documents take %d bytes", n)
	}
	l.close()
}

// TestOutputsAreFreedNotPooled: outputs are dropped like any segment, when their
// last reader is gone, but their files are not used again.
func TestOutputsAreFreedNotPooled(t *testing.T) {
	fs := memfs.New()
	_, segments := movedOutputs(t, fs)
	l := startRunning(t, runningOptions(fs), nil)
	if err := l.AddSegments(segments); err != nil {
		t.Fatal(err)
	}
	s := l.Acquire(segments[0].ID)
	if s != segments[0] {
		t.Fatalf("acquired %v", s)
	}
	name := path.Join("db", SegmentsDir, SegmentName(s.ID, SegmentGC))
	l.Drop([]entry.SegmentID{segments[0].ID, segments[1].ID})
	if l.Acquire(s.ID) != nil {
		t.Error("dropped, but there")
	}
	until(t, "removal of one", func() bool { return l.Stats().Removed == 1 })
	if _, err := s.Index(t.Context()); err != nil { // its reader is not done
		t.Error(err)
	}
	if _, err := fs.Size(name); err != nil {
		t.Error(err)
	}
	s.Release()
	until(t, "removal of both", func() bool { return l.Stats().Removed == 2 })
	if n := l.Stats().Pooled; n != 0 {
		t.Errorf("%d are pooled", n)
	}
	if names, err := fs.List("db/" + SegmentsDir); err != nil || slices.Contains(names, path.Base(name)) {
		t.Errorf("%v, %v", names, err)
	}
	l.close()
}

func TestAddSegmentsToAClosedLog(t *testing.T) {
	fs := &openFiles{FS: memfs.New()}
	_, segments := movedOutputs(t, fs)
	l := startRunning(t, runningOptions(fs), nil)
	if err := l.AddSegments(segments[1:]); err != nil {
		t.Fatal(err)
	}
	l.close()
	if err := l.AddSegments(segments[:1]); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if n := fs.open.Load(); n != 0 {
		t.Errorf("%d files are open", n)
	}
}

// TestIndexOfAnEarlierRun: it is read once, from what is left of the segment, and
// asked for again after an error.
func TestIndexOfAnEarlierRun(t *testing.T) {
	mem := memfs.New()
	disk := faultfs.Wrap(mem)
	r, segments := movedOutputs(t, disk)
	b := &logBuilder{t: t, fs: mem, kind: SegmentGC}
	b.overwrite(segments[1].ID, int64(r.live[1].End)+40, []byte{0xff, 0xff, 0xff}) // the index
	b.truncate(segments[2].ID, int64(r.live[2].End))
	if _, err := segments[0].Index(t.Context()); err == nil {
		t.Error("index of a segment of no log")
	}
	l := startRunning(t, runningOptions(disk), nil)
	if err := l.AddSegments(segments); err != nil {
		t.Fatal(err)
	}
	for i, s := range segments {
		disk.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: SegmentName(s.ID, SegmentGC), Fault: faultfs.EIO})
		if _, err := s.Index(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("segment %d: %v", i, err)
		}
		disk.Clear()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := s.Index(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		x, err := s.Index(t.Context())
		want := map[entry.Seqno]uint32{}
		if err == nil {
			for seqno, d := range r.docs {
				if d.segment == s.ID {
					want[seqno], _ = x.Lookup(seqno)
				}
			}
		}
		wantIndex(t, x, err, want)
		mem.ResetCounts()
		if again, err := s.Index(t.Context()); again != x || err != nil || mem.Count("", vfs.OpReadAt) != 0 {
			t.Errorf("read again: %v", err)
		}
	}
	active := l.Acquire(l.position().Segment)
	if _, err := active.Index(t.Context()); err == nil {
		t.Error("index of the active segment")
	}
	active.Release()
	l.close()
}

func TestFindMovedAllocatesNothing(t *testing.T) {
	fs := memfs.New()
	_, segments := movedOutputs(t, fs)
	l := startRunning(t, runningOptions(fs), nil)
	if err := l.AddSegments(segments); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	a := entry.Address{Segment: 1, Offset: 7, Length: 700}
	find := func() {
		if s, _, err := FindMoved(ctx, segments, a, 39); s == nil || err != nil {
			t.Fatal(s, err)
		}
	}
	if n := testing.AllocsPerRun(100, find); n != 0 {
		t.Errorf("%v allocations", n)
	}
	l.close()
}
