package wal

import "encoding/binary"

// A snappy block is a uvarint, the inflated length, and then elements whose
// low two bits say what they are: 0 literal, 1 to 3 copies with an offset of
// 11, 16 or 32 bits into what was made so far. Only reading is needed here;
// it appends to the caller's memory and never beyond the declared length.

// snappyExpansionMax: a copy of 64 bytes takes 3 bytes, so an honest block
// grows at most 22 times. A length above that is refused before memory is
// taken for it.
const snappyExpansionMax = 22

func appendInflated(dst, block []byte) ([]byte, error) {
	declared, n := binary.Uvarint(block)
	if n <= 0 || declared > MaxValueBytes || declared > snappyExpansionMax*uint64(len(block)) {
		return dst, corrupt("", 0, "compressed value declares %d bytes in %d", declared, len(block))
	}
	src := block[n:]
	start := len(dst)
	end := start + int(declared)
	out := grow(dst, int(declared))
	for len(src) > 0 {
		length, offset, used := snappyElement(src)
		switch {
		case used == 0 || length > end-len(out):
			return dst, corrupt("", int64(len(block)-len(src)), "compressed value: bad element")
		case offset == 0:
			if length > len(src)-used {
				return dst, corrupt("", int64(len(block)-len(src)), "compressed value cut short")
			}
			out = append(out, src[used:used+length]...)
			used += length
		case offset < 0 || offset > len(out)-start:
			return dst, corrupt("", int64(len(block)-len(src)), "compressed value: copy from before the start")
		default:
			// Source and target may overlap: a run is copied piece by piece.
			from := len(out) - offset
			for length > 0 {
				piece := min(length, len(out)-from)
				out = append(out, out[from:from+piece]...)
				from += piece
				length -= piece
			}
		}
		src = src[used:]
	}
	if len(out) != end {
		return dst, corrupt("", int64(len(block)), "compressed value has %d bytes, declares %d", len(out)-start, declared)
	}
	return out, nil
}

// snappyElement reads the head of one element: its length, the offset of a
// copy (0 for a literal, negative when invalid), and the bytes of the head, 0
// when src is too short.
func snappyElement(src []byte) (length, offset, used int) {
	tag := src[0]
	switch tag & 3 {
	case 0:
		length = int(tag >> 2)
		if length < 60 {
			return length + 1, 0, 1
		}
		extra := length - 59 // 1 to 4 bytes of length
		if len(src) <= extra {
			return 0, 0, 0
		}
		length = 0
		for i := extra; i > 0; i-- {
			length = length<<8 | int(src[i])
		}
		return length + 1, 0, 1 + extra
	case 1:
		if len(src) < 2 {
			return 0, 0, 0
		}
		offset = int(tag&0xe0)<<3 | int(src[1])
		length, used = 4+int(tag>>2&7), 2
	case 2:
		if len(src) < 3 {
			return 0, 0, 0
		}
		offset = int(le.Uint16(src[1:]))
		length, used = 1+int(tag>>2), 3
	default:
		if len(src) < 5 {
			return 0, 0, 0
		}
		offset = int(le.Uint32(src[1:]))
		length, used = 1+int(tag>>2), 5
	}
	if offset == 0 {
		offset = -1
	}
	return length, offset, used
}

// grow makes room for n more bytes behind dst.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	bigger := make([]byte, len(dst), len(dst)+n)
	copy(bigger, dst)
	return bigger
}
