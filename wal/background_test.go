package wal

import (
	"sync/atomic"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestR25_FootersAreWrittenInPieces: the index of a large segment takes
// megabytes, and groups of the next one must not wait behind all of it.
func TestR25_FootersAreWrittenInPieces(t *testing.T) {
	fs := memfs.New()
	l := bareLog(t, fs)
	l.o.SegmentBytes = func() int64 { return 16 << 20 }
	l.durable.Store(300_000)
	s, err := l.prepare(0, usual)
	if err != nil {
		t.Fatal(err)
	}
	var largest, writes atomic.Int64
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteAt {
			largest.Store(max(largest.Load(), op.Len))
			writes.Add(1)
		}
		return nil
	})
	for i := range uint32(300_000) {
		s.docs = append(s.docs, docRef{i, 4096 + 40*i})
	}
	s.base, s.first, s.last, s.records, s.end = 1, 1, 300_000, 300_000, 12<<20+4096
	if err := l.writeFooter(s); err != nil {
		t.Fatal(err)
	}
	if largest.Load() > 256<<10 || writes.Load() < 2 {
		t.Errorf("%d writes of up to %d bytes", writes.Load(), largest.Load())
	}
	_, x, err := ReadFooter(s.File, &l.o.Secret, s.ID)
	if err != nil || x.Len() != 300_000 {
		t.Fatal(err)
	}
	for seqno, offset := range x.All() {
		if offset != 4096+40*uint32(seqno-1) {
			t.Fatalf("seqno %d at %d", seqno, offset)
		}
	}
	if _, ok := x.Lookup(entry.Seqno(300_001)); ok {
		t.Error("one document too many")
	}
}
