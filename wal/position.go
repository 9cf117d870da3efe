package wal

import "fluxkv/internal/entry"

// NextPositionLocked returns where replay may start when everything placed so
// far is kept elsewhere: Scan finds everything placed later from there on. With
// a group open that is its start, which the batches in it share; otherwise it
// is where the next group will start, be it one of records, a promise or the
// seal of the segment. While a full disk leaves no segment to write to, it is
// the end of the log that the last open recorded, so that a flush can free the
// segments before it; false when there is none, in a new store. It is for what is
// durable only: a position behind groups that a power cut tears would hide them.
// o.Mu is held; it allocates nothing.
func (l *Log) NextPositionLocked() (entry.Position, bool) {
	switch {
	case l.open != nil:
		return entry.Position{Segment: l.open.seg.ID, Offset: l.open.off, Seqno: l.open.first}, true
	case l.active != nil:
		return entry.Position{Segment: l.active.ID, Offset: l.activeOff, Seqno: l.next}, true
	}
	// Seqnos may jump there; the first behind it is recorded with the end.
	c := l.chain
	return entry.Position{Segment: c.Segment, Offset: c.End, Seqno: c.Last + 1}, c.Segment != 0
}

// PlacedLocked returns how many bytes were placed in the log since it started,
// written or not: those of records, and those of the file that groups take, with
// their headers and padding, promises and seals. The open group counts as if it
// were closed now. Segment headers, footers and the unused ends of segments are
// not in them: replay does not read those. Both only grow. o.Mu is held; it
// allocates nothing.
func (l *Log) PlacedLocked() (recordBytes, paddedBytes int64) {
	p := l.placed
	if l.open != nil {
		p.add(l.open, l.o.Align)
	}
	return p.records, p.padded
}

// placedBytes is what closed groups take. Guarded by o.Mu.
type placedBytes struct{ records, padded int64 }

func (p *placedBytes) add(g *group, align int) {
	p.records += int64(g.used - GroupHeaderBytes)
	p.padded += roundUp(int64(g.used), align)
}
