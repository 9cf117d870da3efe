package wal

import (
	"context"
	"errors"
	"fmt"

	"fluxkv/internal/entry"
)

// SegmentEnd is where the groups of a log segment end, of which the manifest has
// no end: the process stopped before the footer was written, or its edit.
type SegmentEnd struct {
	ID  entry.SegmentID
	End uint32 // offset behind the last group
	// Last is the last seqno before End, which may be one of an earlier segment;
	// Next is the one that follows.
	Last, Next entry.Seqno
}

// FindEnd finds the end of a registered log segment that replay does not read any
// more: all its records are durable, and nobody writes to it. The footer tells,
// or, when there is none, the groups, which are all read, through the buffers of o.
// The groups end at the seal group. That one holds no record, and may have been
// lost in a crash right behind it: then they end where replay goes on with the
// next seqno; next is that seqno when replay starts at the beginning of the
// segment that follows, otherwise 0.
//
// The error is a *CorruptError when something is missing; what the segment has
// beside that can still be read, but its end must not be recorded. From, Segments
// and DurableFloor of o are not used.
func FindEnd(ctx context.Context, o ScanOptions, id entry.SegmentID, next entry.Seqno) (SegmentEnd, error) {
	o.withDefaults()
	// Any seqno is a right one for the first group.
	o.From = entry.Position{Segment: id, Seqno: entry.MaxSeqno}
	if err := o.validate(); err != nil {
		return SegmentEnd{}, err
	}
	s := &scan{ctx: ctx, o: &o}
	f, err := s.open(ScanSegment{ID: id})
	if err != nil {
		return SegmentEnd{}, err
	}
	defer f.file.Close()
	foot, err := readFooterTail(f.file, f.bytes, &o.Secret, id)
	switch {
	case err == nil:
		return SegmentEnd{ID: id, End: foot.End, Last: foot.Last, Next: foot.Last + 1}, nil
	case !errors.Is(err, ErrNoFooter) && !errors.Is(err, ErrCorrupt):
		return SegmentEnd{}, err
	}
	if s.pool, err = newScanPool(o.Buffers, o.BufferBytes); err != nil {
		return SegmentEnd{}, fmt.Errorf("end of segment %06d: buffers: %w", id, err)
	}
	defer s.pool.close()
	s.fn = func(c *Chunk) error { c.Release(); return nil }
	off, end, err := s.groups(f, int64(f.align), f.length)
	switch {
	case err != nil:
		return SegmentEnd{}, err
	case end == endOpen && (next == 0 || s.next != next):
		return SegmentEnd{}, s.missing(f, off, "no intact group, but the log went on in a later segment")
	}
	return SegmentEnd{ID: id, End: uint32(off), Last: s.last, Next: s.next}, nil
}
