package manifest

import (
	"cmp"
	"fmt"
	"slices"

	"fluxkv/internal/entry"
)

// ForwardRange is a segment that took over documents, whose seqnos lie between
// First and Last, both included. It may hold others between them.
type ForwardRange struct {
	Segment     entry.SegmentID
	First, Last entry.Seqno
}

// Forward says where the living documents of a segment went that is gone (R8).
// To holds one range a segment, ascending; it may be empty. Forwards in a State
// are flat: every range names a registered segment.
type Forward struct {
	From entry.SegmentID
	To   []ForwardRange
}

const forwardRangeBytes = 4 + 8 + 8

func (f *Forward) append(dst []byte) []byte {
	dst = le.AppendUint32(dst, uint32(f.From))
	for _, r := range f.To {
		dst = le.AppendUint32(dst, uint32(r.Segment))
		dst = le.AppendUint64(dst, uint64(r.First))
		dst = le.AppendUint64(dst, uint64(r.Last))
	}
	return dst
}

func decodeForward(b []byte) (Forward, error) {
	if len(b) < 4 || (len(b)-4)%forwardRangeBytes != 0 {
		return Forward{}, fmt.Errorf("forward of %d bytes", len(b))
	}
	f := Forward{From: entry.SegmentID(le.Uint32(b))}
	b = b[4:]
	if len(b) > 0 {
		f.To = make([]ForwardRange, 0, len(b)/forwardRangeBytes)
	}
	for ; len(b) > 0; b = b[forwardRangeBytes:] {
		f.To = append(f.To, ForwardRange{Segment: entry.SegmentID(le.Uint32(b)),
			First: entry.Seqno(le.Uint64(b[4:])), Last: entry.Seqno(le.Uint64(b[12:]))})
	}
	return f, nil
}

func compareForward(f Forward, id entry.SegmentID) int { return cmp.Compare(f.From, id) }

func (st *State) findForward(id entry.SegmentID) (int, bool) {
	return slices.BinarySearchFunc(st.Forwards, id, compareForward)
}

// Resolve appends to dst the registered segments that may hold the document
// (id, seqno) names: id itself, or those it is forwarded to. When there are
// several, their exact seqno indexes decide. None means that the address is
// corrupt, never that the document is missing.
func (st *State) Resolve(dst []entry.SegmentID, id entry.SegmentID, seqno entry.Seqno) []entry.SegmentID {
	if _, ok := st.find(id); ok {
		return append(dst, id)
	}
	if i, ok := st.findForward(id); ok {
		for _, r := range st.Forwards[i].To {
			if r.First <= seqno && seqno <= r.Last {
				dst = append(dst, r.Segment)
			}
		}
	}
	return dst
}

// applyForwards adds and drops forwards and keeps all of them flat.
func (st *State) applyForwards(e *Edit) error {
	if len(e.AddForwards)+len(e.DropForwards) == 0 {
		return nil
	}
	st.Forwards = slices.Clone(st.Forwards)
	for _, f := range e.AddForwards {
		i, ok := st.findForward(f.From)
		if ok {
			return fmt.Errorf("segment %06d forwarded twice", f.From)
		}
		st.Forwards = slices.Insert(st.Forwards, i, Forward{From: f.From, To: mergeRanges(slices.Clone(f.To))})
	}
	if len(e.AddForwards) > 0 { // without new ones they are flat
		for i := range st.Forwards {
			st.flatten(&st.Forwards[i])
		}
	}
	for _, id := range e.DropForwards {
		i, ok := st.findForward(id)
		if !ok {
			return fmt.Errorf("forward of segment %06d dropped, but it is not there", id)
		}
		st.Forwards = slices.Delete(st.Forwards, i, i+1)
	}
	return nil
}

// flatten replaces ranges of f in segments that went away themselves by where
// those went, cut to what f meant.
func (st *State) flatten(f *Forward) {
	moved := func(r ForwardRange) bool { _, ok := st.findForward(r.Segment); return ok }
	if !slices.ContainsFunc(f.To, moved) {
		return
	}
	var to []ForwardRange
	for _, r := range f.To {
		i, ok := st.findForward(r.Segment)
		if !ok {
			to = append(to, r)
			continue
		}
		for _, n := range st.Forwards[i].To {
			if n.First, n.Last = max(n.First, r.First), min(n.Last, r.Last); n.First <= n.Last {
				to = append(to, n)
			}
		}
	}
	f.To = mergeRanges(to)
}

// mergeRanges sorts to and leaves one range a segment, which spans all of it.
// Spanning more is harmless: a seqno is in one place only.
func mergeRanges(to []ForwardRange) []ForwardRange {
	slices.SortFunc(to, func(a, b ForwardRange) int { return cmp.Compare(a.Segment, b.Segment) })
	out := to[:0]
	for _, r := range to {
		if n := len(out); n > 0 && out[n-1].Segment == r.Segment {
			out[n-1].First, out[n-1].Last = min(out[n-1].First, r.First), max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// checkChangedForwards is checkForwards without what e cannot have broken.
func (st *State) checkChangedForwards(e *Edit) error {
	if len(e.AddForwards) > 0 {
		return st.checkForwards()
	}
	for _, a := range e.AddSegments {
		_, forwarded := st.findForward(a.ID)
		if _, registered := st.find(a.ID); forwarded && registered {
			return fmt.Errorf("forward of segment %06d, which is still registered", a.ID)
		}
	}
	if len(e.DropSegments) == 0 {
		return nil
	}
	dropped := slices.Sorted(slices.Values(e.DropSegments))
	for _, f := range st.Forwards {
		for _, r := range f.To {
			if _, ok := slices.BinarySearch(dropped, r.Segment); ok {
				return fmt.Errorf("forward of segment %06d to %06d, which is not registered", f.From, r.Segment)
			}
		}
	}
	return nil
}

func (st *State) checkForwards() error {
	for i, f := range st.Forwards {
		_, registered := st.find(f.From)
		switch {
		case f.From == 0 || uint64(f.From) >= st.NextFileNumber:
			return fmt.Errorf("forward of segment %06d: next file number is %d", f.From, st.NextFileNumber)
		case registered:
			return fmt.Errorf("forward of segment %06d, which is still registered", f.From)
		case i > 0 && st.Forwards[i-1].From >= f.From:
			return fmt.Errorf("forward of segment %06d out of order", f.From)
		}
		for j, r := range f.To {
			_, ok := st.find(r.Segment)
			switch {
			case !ok:
				return fmt.Errorf("forward of segment %06d to %06d, which is not registered", f.From, r.Segment)
			case r.First == 0 || r.First > r.Last || r.Last > entry.MaxSeqno:
				return fmt.Errorf("forward of segment %06d to %06d: seqnos %d to %d", f.From, r.Segment, r.First, r.Last)
			case j > 0 && f.To[j-1].Segment >= r.Segment:
				return fmt.Errorf("forward of segment %06d: ranges out of order", f.From)
			}
		}
	}
	return nil
}
