package mcbp

import (
	"encoding/binary"
	"errors"
)

// ErrShort: the bytes at hand end before the frame does.
var ErrShort = errors.New("mcbp: incomplete frame")

// ErrFrame: the bytes at hand are no frame of the expected kind.
var ErrFrame = errors.New("mcbp: malformed frame")

// Request is a frame from a client. Framing is empty unless the frame has
// magic 0x08. Slices of a decoded Request alias the bytes it was decoded from.
type Request struct {
	Framing  []byte
	Extras   []byte
	Key      []byte
	Value    []byte
	CAS      uint64
	Opaque   uint32
	VBucket  uint16
	Opcode   Opcode
	Datatype uint8
}

// Append appends the encoded request to dst. With Framing it takes magic 0x08,
// whose keys have at most 255 bytes.
func (r *Request) Append(dst []byte) []byte {
	h := Header{
		Magic:       MagicRequest,
		Opcode:      r.Opcode,
		KeyBytes:    uint16(len(r.Key)),
		ExtrasBytes: uint8(len(r.Extras)),
		Datatype:    r.Datatype,
		Status:      r.VBucket,
		BodyBytes:   uint32(len(r.Framing) + len(r.Extras) + len(r.Key) + len(r.Value)),
		Opaque:      r.Opaque,
		CAS:         r.CAS,
	}
	if len(r.Framing) > 0 {
		h.Magic = MagicAltRequest
		h.FramingBytes = uint8(len(r.Framing))
	}
	dst = h.Append(dst)
	dst = append(dst, r.Framing...)
	dst = append(dst, r.Extras...)
	dst = append(dst, r.Key...)
	return append(dst, r.Value...)
}

// DecodeRequest reads the request at the front of b and returns its length in
// bytes. Errors: ErrShort, ErrFrame.
func DecodeRequest(b []byte) (r Request, n int, err error) {
	h, n, err := decodeFrame(b, MagicRequest, MagicAltRequest)
	if err != nil {
		return Request{}, 0, err
	}
	r = Request{CAS: h.CAS, Opaque: h.Opaque, VBucket: h.Status, Opcode: h.Opcode, Datatype: h.Datatype}
	r.Framing, r.Extras, r.Key, r.Value = splitBody(&h, b[HeaderBytes:n])
	return r, n, nil
}

// AppendGet appends a GET request of key to dst.
func AppendGet(dst, key []byte, opaque uint32) []byte {
	h := Header{Magic: MagicRequest, Opcode: OpGet, KeyBytes: uint16(len(key)), BodyBytes: uint32(len(key)), Opaque: opaque}
	return append(h.Append(dst), key...)
}

// AppendSet appends an unconditional SET request to dst. Expiry is in the
// protocol's form: 0 never, up to 30 days relative seconds, above absolute.
func AppendSet(dst, key, value []byte, flags, expiry, opaque uint32) []byte {
	h := Header{
		Magic:       MagicRequest,
		Opcode:      OpSet,
		KeyBytes:    uint16(len(key)),
		ExtrasBytes: 8,
		BodyBytes:   uint32(8 + len(key) + len(value)),
		Opaque:      opaque,
	}
	dst = h.Append(dst)
	dst = binary.BigEndian.AppendUint32(dst, flags)
	dst = binary.BigEndian.AppendUint32(dst, expiry)
	dst = append(dst, key...)
	return append(dst, value...)
}

// decodeFrame reads the header of a complete frame that has one of two magics.
func decodeFrame(b []byte, plain, alt Magic) (h Header, n int, err error) {
	if len(b) < HeaderBytes {
		return h, 0, ErrShort
	}
	h.decode(b)
	if h.Magic != plain && h.Magic != alt || !h.Sane() {
		return h, 0, ErrFrame
	}
	if int64(len(b)) < HeaderBytes+int64(h.BodyBytes) {
		return h, 0, ErrShort
	}
	return h, HeaderBytes + int(h.BodyBytes), nil
}

// splitBody takes a body apart; the header must be sane and the body whole.
func splitBody(h *Header, body []byte) (framing, extras, key, value []byte) {
	x := int(h.FramingBytes)
	k := x + int(h.ExtrasBytes)
	v := k + int(h.KeyBytes)
	return body[:x:x], body[x:k:k], body[k:v:v], body[v:]
}
