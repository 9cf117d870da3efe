package wal

import (
	"path"
	"sync"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/memfs"
)

// bareLog has what the preparer needs, and no goroutines.
func bareLog(t *testing.T, fs *memfs.FS) *Log {
	t.Helper()
	next := entry.SegmentID(0)
	l := &Log{set: map[entry.SegmentID]*Segment{}, o: LogOptions{
		FS: fs, Dir: "db", Align: 4096, Mu: new(sync.Mutex), Logf: t.Logf,
		SegmentBytes: func() int64 { return 64 << 10 },
		ReserveBytes: func(int64) int64 { return 0 },
		NextID:       func() entry.SegmentID { next++; return next },
		Register:     func(entry.SegmentID, SegmentKind, int64) error { return nil },
		Sealed:       func(SealedSegment) error { return nil },
	}}
	l.prep.init()
	if err := fs.MkdirAll(path.Join("db", SegmentsDir)); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestNoFooterForDroppedSegment: a segment that is dropped while its footer is
// still to be written is freed in its turn, without a footer. Freed before, it
// was in use as another one by then: the footer went over that segment's
// groups, and the file was cut behind it.
func TestNoFooterForDroppedSegment(t *testing.T) {
	fs := memfs.New()
	l := bareLog(t, fs)
	first, err := l.prepare(0, usual)
	if err != nil {
		t.Fatal(err)
	}
	l.add(first)
	first.end, first.last = 8192, 10
	l.prep.seal(first)
	l.Drop([]entry.SegmentID{first.ID})
	l.prep.ask(0)
	step := func() *Segment {
		t.Helper()
		for {
			again, failed := l.prepareOnce()
			if failed {
				t.Fatal("no segment")
			}
			if !again {
				s := l.prep.ready
				l.prep.ready = nil
				return s
			}
		}
	}
	if s := step(); s == nil || l.stats.reused.Load() != 0 || len(l.prep.free) != 1 || l.stats.footers.Load() != 0 {
		t.Fatalf("%v, %d in the pool", s, len(l.prep.free))
	}
	l.prep.ask(0)
	s := step()
	if s == nil || l.stats.reused.Load() != 1 {
		t.Fatal("the dropped segment was not used again")
	}
	if n, err := s.File.Size(); n != 64<<10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}
