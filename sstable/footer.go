package sstable

import (
	"fmt"
)

// Footer, the last 128 bytes of the file, little-endian.
//
//	  0  root         offset uint64, stored length uint32
//	 12  properties   offset uint64, stored length uint32
//	 24  filter       offset uint64, pieces uint32
//	 36  data         uint64  data blocks are [0, this)
//	 44  number       uint64
//	 52  storeID      16 bytes
//	 68  sumKind      uint8   1 xxhash64
//	 69  compression  uint8
//	 70  zero         40 bytes
//	110  version      uint16
//	112  sum          uint64  of bytes [0, 112) and [120, 128), seeded with number
//	120  magic        8 bytes
const footerBytes = 128

const (
	footerMagic = "fluxtabl"
	sumXXHash64 = 1
)

type footer struct {
	root, properties BlockRef
	filterOffset     uint64
	pieces           uint32
	dataBytes        uint64
	number           uint64
	storeID          [16]byte
	compression      Compression
}

func (f *footer) encode(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, footerBytes)...)
	b := dst[start:]
	le.PutUint64(b, f.root.Offset)
	le.PutUint32(b[8:], f.root.Length)
	le.PutUint64(b[12:], f.properties.Offset)
	le.PutUint32(b[20:], f.properties.Length)
	le.PutUint64(b[24:], f.filterOffset)
	le.PutUint32(b[32:], f.pieces)
	le.PutUint64(b[36:], f.dataBytes)
	le.PutUint64(b[44:], f.number)
	copy(b[52:], f.storeID[:])
	b[68], b[69] = sumXXHash64, byte(f.compression)
	le.PutUint16(b[110:], FormatVersion)
	copy(b[120:], footerMagic)
	le.PutUint64(b[112:], footerSum(f.number, b))
	return dst
}

func footerSum(number uint64, b []byte) uint64 {
	var covered [112 + 8]byte
	copy(covered[:], b[:112])
	copy(covered[112:], b[120:])
	return sum64(number, covered[:])
}

// sums is the block of the sums of filter pieces.
func (f *footer) sums() BlockRef {
	if f.pieces == 0 {
		return BlockRef{}
	}
	return BlockRef{Offset: f.filterOffset + uint64(f.pieces)*pieceBytes, Length: f.pieces*8 + trailerBytes}
}

// indexStart is where index blocks may begin.
func (f *footer) indexStart() uint64 {
	if f.pieces == 0 {
		return f.dataBytes
	}
	return f.sums().end()
}

// tableBytesMax keeps all sums of offsets and lengths far from wrapping: 2^48
// is far above every file system's largest file.
const tableBytesMax = 1 << 48

// decodeFooter reads the footer b at the end of a file of fileBytes.
func decodeFooter(b []byte, fileBytes int64, number uint64, storeID [16]byte) (footer, error) {
	var f footer
	if string(b[120:]) != footerMagic {
		return f, fmt.Errorf("footer: bad magic %q", b[120:])
	}
	if footerSum(number, b) != le.Uint64(b[112:]) {
		return f, fmt.Errorf("footer: wrong sum, or not table %d", number)
	}
	if v := le.Uint16(b[110:]); v != FormatVersion {
		return f, fmt.Errorf("footer: format version %d, this program knows %d", v, FormatVersion)
	}
	if b[68] != sumXXHash64 {
		return f, fmt.Errorf("footer: unknown kind of checksum %d", b[68])
	}
	f = footer{
		root:         BlockRef{Offset: le.Uint64(b), Length: le.Uint32(b[8:]), Kind: IndexBlock},
		properties:   BlockRef{Offset: le.Uint64(b[12:]), Length: le.Uint32(b[20:])},
		filterOffset: le.Uint64(b[24:]),
		pieces:       le.Uint32(b[32:]),
		dataBytes:    le.Uint64(b[36:]),
		number:       le.Uint64(b[44:]),
		storeID:      [16]byte(b[52:68]),
		compression:  Compression(b[69]),
	}
	switch end := uint64(fileBytes) - footerBytes; {
	case f.number != number:
		return f, fmt.Errorf("footer: table %d, its name says %d", f.number, number)
	case f.storeID != storeID:
		return f, fmt.Errorf("footer: store %x, this one is %x", f.storeID, storeID)
	case f.compression > Snappy:
		return f, fmt.Errorf("footer: unknown compression %d", f.compression)
	case f.dataBytes > end || f.filterOffset > end || f.root.Offset > end || f.properties.Offset > end:
		return f, fmt.Errorf("footer: offsets pass the file")
	// All offsets are below 2^48 and lengths below 2^45 here.
	case f.dataBytes < trailerBytes || f.pieces == 0 && f.filterOffset != 0 ||
		f.pieces > 0 && (f.filterOffset < f.dataBytes || f.filterOffset%pageBytes != 0) || f.pieces > piecesMax ||
		f.indexStart() > f.root.Offset || f.root.end() > f.properties.Offset || f.properties.end() > end ||
		f.root.Length <= trailerBytes || f.root.Length > payloadBytesMax ||
		f.properties.Length <= trailerBytes || f.properties.Length > payloadBytesMax:
		return f, fmt.Errorf("footer: parts overlap or are out of order")
	}
	return f, nil
}

// piecesMax keeps the sums of pieces within a payload: 8 GiB of filter.
const piecesMax = payloadBytesMax / 8
