package wal

import (
	"fmt"
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
// still to be written may be in use as another one by the time it is. The
// footer went over that segment's groups, and the file was cut behind it.
func TestNoFooterForDroppedSegment(t *testing.T) {
	fs := memfs.New()
	l := bareLog(t, fs)
	first, err := l.prepare(0, false)
	if err != nil {
		t.Fatal(err)
	}
	l.add(first)
	first.end, first.last = 8192, 10
	l.prep.seal(first)
	l.Drop([]entry.SegmentID{first.ID})
	l.o.Mu.Lock()
	l.prep.ask(0)
	l.o.Mu.Unlock()
	for step := 0; ; step++ {
		again, failed := l.prepareOnce()
		if failed {
			t.Fatal("no segment")
		}
		if step == 0 {
			if l.prep.ready == nil || l.stats.reused.Load() != 1 {
				t.Fatal("the dropped segment was not used again")
			}
			page := make([]byte, 4096)
			copy(page, "a group")
			for off := int64(4096); off < 64<<10; off += 4096 {
				if _, err := l.prep.ready.File.WriteAt(page, off); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !again {
			break
		}
	}
	s := l.prep.ready
	if n, err := s.File.Size(); n != 64<<10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	page := make([]byte, 4096)
	for off := int64(4096); off < 64<<10; off += 4096 {
		if _, err := s.File.ReadAt(page, off); err != nil || string(page[:7]) != "a group" {
			t.Errorf("at %d: %s, %v", off, fmt.Sprintf("%.20q", page), err)
		}
	}
}
