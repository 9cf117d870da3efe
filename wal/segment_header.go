package wal

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"fluxkv/internal/entry"
)

var le = binary.LittleEndian

// Segment header, little-endian, the first align bytes of a segment:
//
//	 0  magic       8 bytes
//	 8  version     uint16
//	10  kind        uint8
//	11  alignShift  uint8
//	12  segment     uint32
//	16  size        uint64   bytes allocated, header included
//	24  store       16 bytes
//	40  sum         uint64   xxhash64 of bytes [0, 40), seed 0
//	48  zeros up to align
const segmentHeaderBytes = 48

const segmentMagic = "fluxseg\n"

// SegmentHeader is the first block of a segment.
type SegmentHeader struct {
	Kind    SegmentKind
	Align   int // bytes; groups start on its multiples
	ID      entry.SegmentID
	Size    int64 // bytes allocated, header included; at most MaxSegmentBytes
	StoreID [16]byte
}

// Validate reports the first field out of its bounds.
func (h *SegmentHeader) Validate() error {
	switch {
	case h.Kind != SegmentLog && h.Kind != SegmentGC:
		return fmt.Errorf("segment header: kind %d", h.Kind)
	case !validAlign(h.Align):
		return fmt.Errorf("segment header: align %d is no power of two from %d to %d", h.Align, AlignMin, AlignMax)
	case h.ID == 0:
		return fmt.Errorf("segment header: segment id 0")
	case h.Size < int64(h.Align) || h.Size > MaxSegmentBytes:
		return fmt.Errorf("segment header: size %d is not within %d to %d", h.Size, h.Align, int64(MaxSegmentBytes))
	}
	return nil
}

// Encode fills buf, which must have h.Align bytes, with the whole block. It
// panics when h is not valid: the caller made it.
func (h *SegmentHeader) Encode(buf []byte) {
	if err := h.Validate(); err != nil {
		panic(err)
	}
	buf = buf[:h.Align]
	clear(buf)
	copy(buf, segmentMagic)
	le.PutUint16(buf[8:], FormatVersion)
	buf[10] = byte(h.Kind)
	buf[11] = byte(bits.TrailingZeros(uint(h.Align)))
	le.PutUint32(buf[12:], uint32(h.ID))
	le.PutUint64(buf[16:], uint64(h.Size))
	copy(buf[24:40], h.StoreID[:])
	le.PutUint64(buf[40:], sum64(0, buf[:40]))
}

// DecodeSegmentHeader reads a header from the first bytes of a segment; buf
// needs 48 of them. The error is a *CorruptError without a file name.
func DecodeSegmentHeader(buf []byte) (SegmentHeader, error) {
	var h SegmentHeader
	if len(buf) < segmentHeaderBytes {
		return h, corrupt("", 0, "segment header: %d bytes, want %d", len(buf), segmentHeaderBytes)
	}
	if string(buf[:8]) != segmentMagic {
		return h, corrupt("", 0, "segment header: wrong magic %x", buf[:8])
	}
	if got, want := sum64(0, buf[:40]), le.Uint64(buf[40:]); got != want {
		return h, corrupt("", 0, "segment header: sum %016x, computed %016x", want, got)
	}
	if v := le.Uint16(buf[8:]); v != FormatVersion {
		return h, corrupt("", 8, "segment header: format version %d, this program knows %d", v, FormatVersion)
	}
	if buf[11] > 16 {
		return h, corrupt("", 11, "segment header: align 1<<%d", buf[11])
	}
	size := le.Uint64(buf[16:])
	if size > MaxSegmentBytes {
		return h, corrupt("", 16, "segment header: size %d", size)
	}
	h.Kind = SegmentKind(buf[10])
	h.Align = 1 << buf[11]
	h.ID = entry.SegmentID(le.Uint32(buf[12:]))
	h.Size = int64(size)
	copy(h.StoreID[:], buf[24:40])
	if err := h.Validate(); err != nil {
		return h, corrupt("", 0, "%v", err)
	}
	return h, nil
}
