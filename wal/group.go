package wal

import (
	"fmt"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fluxkv/internal/mutant"
)

// Group header, little-endian; records follow, then zeros up to align:
//
//	 0  sum          uint64  of bytes [8, bytes)
//	 8  headerSum    uint32  of bytes [12, 72)
//	12  magic        uint16
//	14  flags        uint16
//	16  bytes        uint32  header and records, no padding
//	20  count        uint32
//	24  segment      uint32
//	28  offset       uint32
//	32  firstSeqno   uint64
//	40  durable      uint64
//	48  prevSegment  uint32
//	52  prevEnd      uint32
//	56  prevLast     uint64
//	64  zero         uint64

// GroupHeaderBytes is the space in front of a group's records.
const GroupHeaderBytes = 72

const groupMagic = 0x7647

// Flags of a group. The values are on disk.
const (
	// GroupDelta: each record is preceded by a seqno delta (outputs of GC).
	GroupDelta uint16 = 1
	// GroupSeal: nothing follows in this segment.
	GroupSeal uint16 = 2
	// GroupPromise: written for the sake of its Durable field.
	GroupPromise uint16 = 4
	// GroupClose: nothing follows in the log; the store was closed in order.
	GroupClose uint16 = 8

	groupFlagsKnown = GroupDelta | GroupSeal | GroupPromise | GroupClose
)

// GroupHeader is the head of one log write.
type GroupHeader struct {
	Flags   uint16
	Bytes   uint32 // header and records, without the padding
	Count   uint32 // records = seqnos; 0 for a bare promise or seal
	Segment entry.SegmentID
	Offset  uint32      // of the group in its file, a multiple of align
	First   entry.Seqno // of the first record; the next seqno when Count is 0
	// Durable is the promise: when the group was closed every seqno up to
	// Durable was durable.
	Durable     entry.Seqno
	PrevSegment entry.SegmentID // of the group before, 0 for the first of the store
	PrevEnd     uint32          // where the group before ended, padding included
	PrevLast    entry.Seqno     // last seqno at PrevEnd
}

// Last returns the group's last seqno, First-1 when it has no record. It has
// no meaning with GroupDelta.
func (h *GroupHeader) Last() entry.Seqno { return h.First + entry.Seqno(h.Count) - 1 }

// End returns where the group ends in its file, padding included.
func (h *GroupHeader) End(align int) uint32 {
	return uint32(roundUp(int64(h.Offset)+int64(h.Bytes), align))
}

// PaddedBytes returns the bytes the group takes in its file.
func (h *GroupHeader) PaddedBytes(align int) int { return int(roundUp(int64(h.Bytes), align)) }

// Encode writes h and both sums into the first GroupHeaderBytes of buf, whose
// bytes up to h.Bytes are header space and records; what follows is padding
// and the caller's to zero. It allocates nothing.
func (h *GroupHeader) Encode(buf []byte, secret *Secret) {
	if invariants.Enabled {
		h.check(len(buf))
	}
	b := buf[:GroupHeaderBytes]
	le.PutUint16(b[12:], groupMagic)
	le.PutUint16(b[14:], h.Flags)
	le.PutUint32(b[16:], h.Bytes)
	le.PutUint32(b[20:], h.Count)
	le.PutUint32(b[24:], uint32(h.Segment))
	le.PutUint32(b[28:], h.Offset)
	le.PutUint64(b[32:], uint64(h.First))
	le.PutUint64(b[40:], uint64(h.Durable))
	le.PutUint32(b[48:], uint32(h.PrevSegment))
	le.PutUint32(b[52:], h.PrevEnd)
	le.PutUint64(b[56:], uint64(h.PrevLast))
	le.PutUint64(b[64:], 0)
	p := place(secret, h.Segment, h.Offset)
	le.PutUint32(b[8:], uint32(sum64(mix64(p^domainGroupHeader), b[12:])))
	le.PutUint64(b[0:], sum64(mix64(p^domainGroup), buf[8:h.Bytes]))
}

// check panics on a header that DecodeGroupHeader or Scan would refuse.
func (h *GroupHeader) check(bufBytes int) {
	switch {
	case h.Bytes < GroupHeaderBytes || int64(h.Bytes) > int64(bufBytes):
	case int64(h.Offset)+int64(h.Bytes) > MaxSegmentBytes:
	case h.Segment == 0 || h.Offset == 0 || h.Offset%AlignMin != 0:
	case h.Flags&^groupFlagsKnown != 0:
	case h.First == 0 || h.First > entry.MaxSeqno || h.Last() > entry.MaxSeqno:
	case h.Flags&GroupDelta == 0 && (h.Durable >= h.First || h.PrevLast >= h.First):
	case int64(h.Count)*recordBytesMin > int64(h.Bytes)-GroupHeaderBytes:
	default:
		return
	}
	panic(fmt.Sprintf("wal: group header out of bounds: %+v in %d bytes", *h, bufBytes))
}

// DecodeGroupHeader reads the header of the group that should stand at
// (segment, offset); buf starts there and needs GroupHeaderBytes. ok says
// that the header's own sum, magic, place and bounds are right: its promise
// counts. It says nothing about the records (VerifyGroup) nor whether h.Bytes
// lie in buf.
func DecodeGroupHeader(buf []byte, secret *Secret, segment entry.SegmentID, offset uint32) (h GroupHeader, ok bool) {
	if len(buf) < GroupHeaderBytes {
		return h, false
	}
	b := buf[:GroupHeaderBytes]
	// The cheap tests come first: a search looks at every block of a segment.
	if le.Uint16(b[12:]) != groupMagic || le.Uint32(b[24:]) != uint32(segment) && !mutant.AcceptStaleGroup || le.Uint32(b[28:]) != offset {
		return h, false
	}
	p := place(secret, segment, offset)
	if uint32(sum64(mix64(p^domainGroupHeader), b[12:])) != le.Uint32(b[8:]) {
		return h, false
	}
	h.decode(b)
	switch {
	case h.Flags&^groupFlagsKnown != 0 || le.Uint64(b[64:]) != 0:
	case h.Bytes < GroupHeaderBytes || int64(h.Offset)+int64(h.Bytes) > MaxSegmentBytes:
	case h.First == 0 || h.First > entry.MaxSeqno || h.Last() > entry.MaxSeqno:
	case h.Durable > entry.MaxSeqno || h.PrevLast > entry.MaxSeqno:
	case int64(h.Count)*recordBytesMin > int64(h.Bytes)-GroupHeaderBytes:
	default:
		return h, true
	}
	return GroupHeader{}, false
}

// decode takes the fields as they are.
func (h *GroupHeader) decode(b []byte) {
	h.Flags = le.Uint16(b[14:])
	h.Bytes = le.Uint32(b[16:])
	h.Count = le.Uint32(b[20:])
	h.Segment = entry.SegmentID(le.Uint32(b[24:]))
	h.Offset = le.Uint32(b[28:])
	h.First = entry.Seqno(le.Uint64(b[32:]))
	h.Durable = entry.Seqno(le.Uint64(b[40:]))
	h.PrevSegment = entry.SegmentID(le.Uint32(b[48:]))
	h.PrevEnd = le.Uint32(b[52:])
	h.PrevLast = entry.Seqno(le.Uint64(b[56:]))
}

// VerifyGroup reports whether the whole group h, which starts at buf, is as
// it was written; false too when buf is shorter than the group.
func VerifyGroup(buf []byte, h *GroupHeader, secret *Secret) bool {
	if h.Bytes < GroupHeaderBytes || int64(len(buf)) < int64(h.Bytes) {
		return false
	}
	p := place(secret, h.Segment, h.Offset)
	return sum64(mix64(p^domainGroup), buf[8:h.Bytes]) == le.Uint64(buf)
}
