package wal

import (
	"context"
	"errors"
	"fmt"
	"path"

	"fluxkv/internal/entry"
)

// ReadSeqnoIndex returns which separated documents a segment of kind holds, and
// where: from its footer, or, when it has none or the index there is damaged,
// from its groups. end is where these end as the manifest recorded it; 0 is for
// a segment behind which the log went on and of which neither a footer nor an
// end was recorded before a crash. Then they end at the seal group, or where no
// intact group stands and none behind it.
//
// Everything in the segment must be durable: where the groups do not reach the
// end, or intact ones stand behind a hole, it is damaged, and the error is a
// *CorruptError with file and offset; one that could not be read at all is a
// *vfs.ReadError. Nobody may write to it meanwhile. It reads
// through the buffers of o, and takes another 12 bytes a document for as long
// as it runs when it reads the groups. From, Segments and DurableFloor of o are
// not used.
func ReadSeqnoIndex(ctx context.Context, o ScanOptions, id entry.SegmentID, kind SegmentKind, end uint32) (*SeqnoIndex, error) {
	x, err := readSeqnoIndex(ctx, o, id, kind, end)
	return x, unreadable(path.Join(o.Dir, SegmentsDir, SegmentName(id, kind)), err)
}

func readSeqnoIndex(ctx context.Context, o ScanOptions, id entry.SegmentID, kind SegmentKind, end uint32) (*SeqnoIndex, error) {
	o.withDefaults()
	// Any seqno is a right one for the first group.
	o.From = entry.Position{Segment: id, Seqno: entry.MaxSeqno}
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &scan{ctx: ctx, o: &o, outputs: kind == SegmentGC}
	f, err := s.openKind(ScanSegment{ID: id, End: end}, kind)
	if err != nil {
		return nil, err
	}
	defer f.file.Close()
	foot, err := readFooterTail(f.file, f.bytes, &o.Secret, id)
	switch {
	case err == nil && end != 0 && foot.End != end:
		return nil, corrupt(f.name, f.bytes-footerTailBytes, "footer says that groups end at %d, recorded is %d", foot.End, end)
	case err == nil:
		index, err := readIndex(f.file, &foot, &o.Secret)
		if err == nil || !errors.Is(err, ErrCorrupt) {
			return index, err
		}
		f.End = foot.End
	case !errors.Is(err, ErrNoFooter) && !errors.Is(err, ErrCorrupt):
		return nil, err
	}
	return s.indexOf(f)
}

// indexOf makes the index of a segment from its groups.
func (s *scan) indexOf(f *openedSegment) (*SeqnoIndex, error) {
	limit := f.length
	if f.End != 0 {
		if int64(f.End) > f.bytes || int64(f.End) < int64(f.align) {
			return nil, corrupt(f.name, f.bytes, "file has %d bytes, recorded end is %d", f.bytes, f.End)
		}
		limit = int64(f.End)
	}
	var err error
	if s.pool, err = newScanPool(s.o.Buffers, s.o.BufferBytes); err != nil {
		return nil, fmt.Errorf("index of segment %06d: buffers: %w", f.ID, err)
	}
	defer s.pool.close()
	b := NewIndexBuilder(0)
	s.fn = func(c *Chunk) error {
		defer c.Release()
		return inFile(b.addChunk(c), f.name)
	}
	off, end, err := s.groups(f, int64(f.align), limit)
	switch {
	case err != nil:
		return nil, err
	case f.End != 0 && off != int64(f.End):
		return nil, corrupt(f.name, off, "no intact group, recorded end is %d", f.End)
	case f.End == 0 && end == endOpen:
		t := &tailSearch{scan: s, name: f.name, off: off, missing: entry.MaxSeqno + 1}
		if err := t.segment(f, off); err != nil {
			return nil, err
		}
		if len(s.res.Discarded) > 0 {
			return nil, corrupt(f.name, off, "no intact group, but one at %d", s.res.Discarded[0].Offset)
		}
	}
	index, err := DecodeIndex(b.Encode(nil))
	return index, inFile(err, f.name)
}

// addChunk adds the separated documents of verified groups.
func (b *IndexBuilder) addChunk(c *Chunk) error {
	var rr RecordReader
	var r Record
	for h, payload := range c.Groups() {
		rr.Reset(payload, h)
		for rr.Next(&r) {
			if !r.Separated {
				continue
			}
			if n := len(b.seqnos); n > 0 && b.seqnos[n-1] >= r.Seqno {
				return corrupt("", int64(r.Address.Offset), "document of seqno %d follows that of %d", r.Seqno, b.seqnos[n-1])
			}
			b.Add(r.Seqno, r.Address.Offset)
		}
		if err := rr.Err(); err != nil {
			return err
		}
	}
	return nil
}
