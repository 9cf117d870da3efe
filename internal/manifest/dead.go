package manifest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/RoaringBitmap/roaring/v2/roaring64"

	"fluxkv/internal/entry"
)

// DeadSet holds the seqnos of documents of one segment that no table and no
// snapshot needs any more. It is immutable and safe for concurrent use.
//
// A seqno belongs in it only if the segment's exact seqno index contains it
// (R6): whoever makes the set asks the index.
type DeadSet struct {
	segment entry.SegmentID
	seqnos  *roaring64.Bitmap // never empty, never written after it was made
}

// NewDeadSet makes a set of at least one seqno, in any order. seqnos is not
// kept.
func NewDeadSet(segment entry.SegmentID, seqnos []entry.Seqno) *DeadSet {
	d := &DeadSet{segment: segment, seqnos: roaring64.New()}
	for _, s := range seqnos {
		d.seqnos.Add(uint64(s))
	}
	return d
}

// Segment is the registered segment that holds the documents.
func (d *DeadSet) Segment() entry.SegmentID { return d.segment }

// Len is the number of dead documents. A nil set has none.
func (d *DeadSet) Len() int {
	if d == nil {
		return 0
	}
	return int(d.seqnos.GetCardinality())
}

// Contains reports whether the document of this seqno is dead. A nil set has
// none.
func (d *DeadSet) Contains(s entry.Seqno) bool { return d != nil && d.seqnos.Contains(uint64(s)) }

// AppendSeqnos appends all seqnos to dst in ascending order.
func (d *DeadSet) AppendSeqnos(dst []entry.Seqno) []entry.Seqno {
	if d == nil {
		return dst
	}
	dst = slices.Grow(dst, d.Len())
	d.each(func(some []uint64) bool {
		for _, s := range some {
			dst = append(dst, entry.Seqno(s))
		}
		return true
	})
	return dst
}

// Forms of a dead set on disk, frozen: the shorter is written. Neither is
// roaring's own, whose decoder trusts the lengths it reads (S4b).
const (
	deadList   = 1 // uvarint distances
	deadBitmap = 2 // one bit a seqno

	deadFixedBytes = 4 + 1 + 8
)

func (d *DeadSet) append(dst []byte) []byte {
	first := d.seqnos.Minimum()
	bitmapBytes := int((d.seqnos.Maximum()-first)/8 + 1)
	dst = le.AppendUint32(dst, uint32(d.segment))
	form := len(dst)
	dst = append(dst, deadList)
	dst = le.AppendUint64(dst, first)
	at := len(dst)
	last := first
	listed := d.each(func(some []uint64) bool {
		for _, s := range some {
			if s > last { // all but the first
				dst = binary.AppendUvarint(dst, s-last)
				last = s
			}
		}
		return len(dst)-at <= bitmapBytes
	})
	if listed {
		return dst
	}
	dst[form] = deadBitmap
	dst = slices.Grow(dst[:at], bitmapBytes)[:at+bitmapBytes]
	bits := dst[at:]
	clear(bits)
	d.each(func(some []uint64) bool {
		for _, s := range some {
			bits[(s-first)/8] |= 1 << ((s - first) % 8)
		}
		return true
	})
	return dst
}

// each calls do with all seqnos in ascending order, some at a time, until it
// returns false; it reports whether that never happened.
func (d *DeadSet) each(do func(some []uint64) bool) bool {
	buf := make([]uint64, 256)
	it := d.seqnos.ManyIterator()
	for n := it.NextMany(buf); n > 0; n = it.NextMany(buf) {
		if !do(buf[:n]) {
			return false
		}
	}
	return true
}

// decodeDeadSet reads a payload. Every byte of it adds at most 8 seqnos, and
// each is checked before it is added.
func decodeDeadSet(b []byte) (*DeadSet, error) {
	if len(b) < deadFixedBytes {
		return nil, fmt.Errorf("%d bytes, at least %d are needed", len(b), deadFixedBytes)
	}
	d := &DeadSet{segment: entry.SegmentID(le.Uint32(b)), seqnos: roaring64.New()}
	form, first := b[4], le.Uint64(b[5:])
	if first == 0 || first > uint64(entry.MaxSeqno) {
		return nil, fmt.Errorf("segment %06d: dead seqno %d out of range", d.segment, first)
	}
	b = b[deadFixedBytes:]
	switch form {
	case deadList:
		d.seqnos.Add(first)
		for last := first; len(b) > 0; {
			distance, n := binary.Uvarint(b)
			if n <= 0 || distance == 0 || distance > uint64(entry.MaxSeqno)-last {
				return nil, fmt.Errorf("segment %06d: broken distance behind dead seqno %d", d.segment, last)
			}
			last += distance
			d.seqnos.Add(last)
			b = b[n:]
		}
	case deadBitmap:
		if len(b) == 0 || b[0]&1 == 0 || b[len(b)-1] == 0 {
			return nil, fmt.Errorf("segment %06d: bitmap of %d bytes without its first or last bit", d.segment, len(b))
		}
		for i, bits := range b {
			for bit := range 8 {
				if bits&(1<<bit) == 0 {
					continue
				}
				s := first + uint64(i)*8 + uint64(bit)
				if s > uint64(entry.MaxSeqno) {
					return nil, fmt.Errorf("segment %06d: dead seqno %d out of range", d.segment, s)
				}
				d.seqnos.Add(s)
			}
		}
	default:
		return nil, fmt.Errorf("segment %06d: dead seqnos of form %d", d.segment, form)
	}
	return d, nil
}

func compareDead(d *DeadSet, id entry.SegmentID) int { return cmp.Compare(d.segment, id) }

// DeadSet returns the dead documents of a segment, nil when none are known.
func (st *State) DeadSet(id entry.SegmentID) *DeadSet {
	if i, ok := slices.BinarySearchFunc(st.Dead, id, compareDead); ok {
		return st.Dead[i]
	}
	return nil
}

// applyDead adds dead seqnos: a set counts each once, however often it is
// reported (G3). Only the sets of segments that e names are copied.
func (st *State) applyDead(e *Edit) error {
	if len(e.AddDead) > 0 {
		st.Dead = slices.Clone(st.Dead)
	}
	for _, d := range e.AddDead {
		if _, ok := st.find(d.segment); !ok {
			return fmt.Errorf("dead seqnos in segment %06d, which is not registered", d.segment)
		}
		if d.Len() == 0 {
			return errors.New("dead set without a seqno")
		}
		i, ok := slices.BinarySearchFunc(st.Dead, d.segment, compareDead)
		if !ok {
			st.Dead = slices.Insert(st.Dead, i, d)
			continue
		}
		st.Dead[i] = &DeadSet{segment: d.segment, seqnos: roaring64.Or(st.Dead[i].seqnos, d.seqnos)}
	}
	return nil
}

func (st *State) checkDead() error {
	for i, d := range st.Dead {
		if i > 0 && st.Dead[i-1].segment >= d.segment {
			return fmt.Errorf("dead seqnos of segment %06d out of order", d.segment)
		}
		if err := st.checkDeadSet(d); err != nil {
			return err
		}
	}
	return nil
}

// checkChangedDead checks the sets that grew, and those of segments whose last
// seqno is known now.
func (st *State) checkChangedDead(e *Edit) error {
	check := func(id entry.SegmentID) error {
		if d := st.DeadSet(id); d != nil {
			return st.checkDeadSet(d)
		}
		return nil
	}
	for _, d := range e.AddDead {
		if err := check(d.segment); err != nil {
			return err
		}
	}
	for _, s := range e.SealSegments {
		if err := check(s.ID); err != nil {
			return err
		}
	}
	for _, s := range e.EndSegments {
		if err := check(s.ID); err != nil {
			return err
		}
	}
	return nil
}

func (st *State) checkDeadSet(d *DeadSet) error {
	s, ok := st.Segment(d.segment)
	low, high := entry.Seqno(d.seqnos.Minimum()), entry.Seqno(d.seqnos.Maximum())
	switch {
	case !ok:
		return fmt.Errorf("dead seqnos in segment %06d, which is not registered", d.segment)
	case low == 0 || high > entry.MaxSeqno:
		return fmt.Errorf("segment %06d: dead seqnos %d to %d", d.segment, low, high)
	case (s.Sealed || s.Ended) && high > s.Last:
		return fmt.Errorf("segment %06d: dead seqno %d, but its last is %d", d.segment, high, s.Last)
	}
	return nil
}
