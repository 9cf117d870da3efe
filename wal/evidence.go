package wal

import (
	"context"
	"errors"
	"fmt"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
)

// tailSearch looks behind the first place without an intact group for
// evidence that what is missing there was durable (design R11). A header that
// is valid by its own sum is evidence by its Durable field; PrevLast is none,
// because a group can reach the device before its predecessor.
type tailSearch struct {
	*scan
	name    string // file of the end candidate
	off     int64
	missing entry.Seqno
}

// searchTail decides about the end candidate at off of f: nil when the log
// ends there, a *CorruptError when it is damaged.
func (s *scan) searchTail(f *openedSegment, off int64, later []ScanSegment) error {
	if mutant.IgnoreEvidence {
		return nil
	}
	t := &tailSearch{scan: s, name: f.name, off: off, missing: s.next}
	if err := t.segment(f, off); err != nil {
		return err
	}
	for _, seg := range later {
		if err := t.later(seg); err != nil {
			return err
		}
	}
	// What else is there may be the old bytes of a reused file: whoever opens
	// the store again records this end before writing behind it.
	s.res.Clean = s.flags&GroupClose != 0 && s.res.DiscardedGroups == 0
	return s.checkFloor(f.name)
}

func (t *tailSearch) later(seg ScanSegment) error {
	if seg.End != 0 {
		// The end of a segment is recorded only when all before it is durable.
		return t.corrupt("no intact group, but the later segment %06d has a recorded end", seg.ID)
	}
	f, err := t.open(seg)
	if err != nil {
		return err
	}
	defer f.file.Close()
	return t.segment(f, int64(f.align))
}

// segment searches the blocks of f from off to its end, and its footer.
func (t *tailSearch) segment(f *openedSegment, off int64) error {
	reads := newReadahead(t.ctx, t.pool, f.file, off, f.length)
	defer reads.close()
	for {
		b, err := reads.take()
		if err != nil {
			return err
		}
		if b == nil {
			break
		}
		err = t.blocks(f, off, b)
		b.release()
		if err != nil {
			return err
		}
	}
	foot, err := readFooterTail(f.file, f.bytes, &t.o.Secret, f.ID)
	switch {
	case errors.Is(err, ErrNoFooter):
		return nil
	case err != nil:
		return inFile(err, f.name)
	case foot.Durable >= t.missing:
		return t.corrupt("no intact group, but the footer of %s promises seqno %d", path.Base(f.name), foot.Durable)
	}
	return nil
}

// blocks looks at every place of one piece where a group may start.
func (t *tailSearch) blocks(f *openedSegment, off int64, b *scanBuffer) error {
	bytes := b.mem[b.start:b.end]
	for at := max(0, off-b.base); at+GroupHeaderBytes <= int64(len(bytes)); at += int64(f.align) {
		block := bytes[at:min(at+int64(f.align), int64(len(bytes)))]
		place := uint32(b.base + at)
		h, ok := DecodeGroupHeader(block, &t.o.Secret, f.ID, place)
		if !ok {
			continue
		}
		t.res.MaxSeen = max(t.res.MaxSeen, h.Last(), h.Durable, h.PrevLast)
		if h.Durable >= t.missing {
			return t.corrupt("no intact group, but the group at %d of %s promises seqno %d", place, path.Base(f.name), h.Durable)
		}
		t.res.DiscardedGroups++
		if len(t.res.Discarded) < scanDiscardedMax {
			t.res.Discarded = append(t.res.Discarded, Discarded{Segment: f.ID, Offset: place, First: h.First, Last: h.Last()})
		}
	}
	return nil
}

func (t *tailSearch) corrupt(format string, args ...any) error {
	e := corrupt(t.name, t.off, format, args...)
	e.Missing = t.missing
	return e
}

// HighestSeqno returns the highest seqno in any intact group of a segment file
// that no manifest names, 0 when it has none or is no segment of this store
// under this id. Groups are written to registered segments only, so a seqno
// that the manifest cannot account for is evidence that the manifest lost
// edits. A file that ends in its footer, as those do that wait to be used again,
// is believed that; of others the whole is read, through o.Buffers buffers.
func HighestSeqno(ctx context.Context, o ScanOptions, id entry.SegmentID) (entry.Seqno, error) {
	o.withDefaults()
	s := &scan{ctx: ctx, o: &o}
	f, err := s.open(ScanSegment{ID: id})
	if errors.Is(err, ErrCorrupt) {
		return 0, nil // its header was never finished
	}
	if err != nil {
		return 0, err
	}
	defer f.file.Close()
	foot, err := readFooterTail(f.file, f.bytes, &o.Secret, id)
	if err == nil {
		return foot.Last, nil
	}
	if !errors.Is(err, ErrNoFooter) && !errors.Is(err, ErrCorrupt) {
		return 0, err
	}
	if s.pool, err = newScanPool(o.Buffers, o.BufferBytes); err != nil {
		return 0, fmt.Errorf("scan segment %06d: buffers: %w", id, err)
	}
	defer s.pool.close()
	t := &tailSearch{scan: s, name: f.name, missing: entry.MaxSeqno + 1}
	if err := t.segment(f, int64(f.align)); err != nil && !errors.Is(err, ErrCorrupt) {
		return 0, err
	}
	return s.res.MaxSeen, nil
}

// HasFooter reports whether the file of a segment ends in a valid footer.
func HasFooter(fs vfs.FS, dir string, id entry.SegmentID, secret *Secret, direct bool) (bool, error) {
	name := path.Join(dir, SegmentsDir, SegmentName(id, SegmentLog))
	f, err := fs.Open(name, vfs.OpenOptions{Direct: direct})
	if err != nil {
		return false, fmt.Errorf("open log segment %s: %w", name, err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return false, fmt.Errorf("size of log segment %s: %w", name, err)
	}
	_, err = readFooterTail(f, n, secret, id)
	if errors.Is(err, ErrNoFooter) || errors.Is(err, ErrCorrupt) {
		return false, nil
	}
	return err == nil, err
}
