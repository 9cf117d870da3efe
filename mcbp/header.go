package mcbp

import "encoding/binary"

// HeaderBytes is the length of a frame header, big-endian:
//
//	 0  magic       uint8
//	 1  opcode      uint8
//	 2  keyBytes    uint16  magic 0x08, 0x18: framing extras uint8, key uint8
//	 4  extrasBytes uint8
//	 5  datatype    uint8
//	 6  vbucket     uint16  a response has its status here
//	 8  bodyBytes   uint32  framing extras + extras + key + value
//	12  opaque      uint32  the client's; copied back
//	16  cas         uint64
const HeaderBytes = 24

// Magic is the first byte of a frame.
type Magic uint8

// The magics of frames that clients and servers send each other.
const (
	MagicRequest     Magic = 0x80
	MagicResponse    Magic = 0x81
	MagicAltRequest  Magic = 0x08 // with framing extras and a one-byte key length
	MagicAltResponse Magic = 0x18
)

// Header is the fixed part of a frame.
type Header struct {
	CAS          uint64
	Opaque       uint32
	BodyBytes    uint32
	KeyBytes     uint16
	Status       uint16 // of a response; a request has its vbucket here
	Magic        Magic
	Opcode       Opcode
	ExtrasBytes  uint8
	FramingBytes uint8
	Datatype     uint8
}

// DecodeHeader reads the header at the front of b, which must hold at least
// HeaderBytes bytes. It accepts every value of every field: the caller checks
// Magic and Sane.
func DecodeHeader(b []byte) (h Header) {
	h.decode(b)
	return h
}

func (h *Header) decode(b []byte) {
	_ = b[HeaderBytes-1]
	h.Magic = Magic(b[0])
	h.Opcode = Opcode(b[1])
	if h.Magic == MagicAltRequest || h.Magic == MagicAltResponse {
		h.FramingBytes = b[2]
		h.KeyBytes = uint16(b[3])
	} else {
		h.FramingBytes = 0
		h.KeyBytes = binary.BigEndian.Uint16(b[2:])
	}
	h.ExtrasBytes = b[4]
	h.Datatype = b[5]
	h.Status = binary.BigEndian.Uint16(b[6:])
	h.BodyBytes = binary.BigEndian.Uint32(b[8:])
	h.Opaque = binary.BigEndian.Uint32(b[12:])
	h.CAS = binary.BigEndian.Uint64(b[16:])
}

// Append appends the header to dst.
func (h *Header) Append(dst []byte) []byte {
	var b [HeaderBytes]byte
	b[0] = byte(h.Magic)
	b[1] = byte(h.Opcode)
	if h.Magic == MagicAltRequest || h.Magic == MagicAltResponse {
		b[2] = h.FramingBytes
		b[3] = byte(h.KeyBytes)
	} else {
		binary.BigEndian.PutUint16(b[2:], h.KeyBytes)
	}
	b[4] = h.ExtrasBytes
	b[5] = h.Datatype
	binary.BigEndian.PutUint16(b[6:], h.Status)
	binary.BigEndian.PutUint32(b[8:], h.BodyBytes)
	binary.BigEndian.PutUint32(b[12:], h.Opaque)
	binary.BigEndian.PutUint64(b[16:], h.CAS)
	return append(dst, b[:]...)
}

// Sane reports whether the parts that the header announces fit the body that
// it announces. The sum is taken in 64 bits: no field can make it wrap.
func (h *Header) Sane() bool { return h.prefixBytes() <= int64(h.BodyBytes) }

// prefixBytes is the length of the body in front of the value.
func (h *Header) prefixBytes() int64 {
	return int64(h.FramingBytes) + int64(h.ExtrasBytes) + int64(h.KeyBytes)
}

// valueBytes is what is left of the body; the header must be sane.
func (h *Header) valueBytes() int64 { return int64(h.BodyBytes) - h.prefixBytes() }
