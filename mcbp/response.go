package mcbp

import "encoding/binary"

// Response is a frame from a server. Slices of a decoded Response alias the
// bytes it was decoded from.
type Response struct {
	Framing  []byte
	Extras   []byte
	Key      []byte
	Value    []byte
	CAS      uint64
	Opaque   uint32
	Status   Status
	Opcode   Opcode
	Datatype uint8
}

// Append appends the encoded response to dst. With Framing it takes magic
// 0x18, whose keys have at most 255 bytes.
func (r *Response) Append(dst []byte) []byte {
	h := Header{
		Magic:       MagicResponse,
		Opcode:      r.Opcode,
		KeyBytes:    uint16(len(r.Key)),
		ExtrasBytes: uint8(len(r.Extras)),
		Datatype:    r.Datatype,
		Status:      uint16(r.Status),
		BodyBytes:   uint32(len(r.Framing) + len(r.Extras) + len(r.Key) + len(r.Value)),
		Opaque:      r.Opaque,
		CAS:         r.CAS,
	}
	if len(r.Framing) > 0 {
		h.Magic = MagicAltResponse
		h.FramingBytes = uint8(len(r.Framing))
	}
	dst = h.Append(dst)
	dst = append(dst, r.Framing...)
	dst = append(dst, r.Extras...)
	dst = append(dst, r.Key...)
	return append(dst, r.Value...)
}

// DecodeResponse reads the response at the front of b and returns its length
// in bytes. Errors: ErrShort, ErrFrame.
func DecodeResponse(b []byte) (r Response, n int, err error) {
	h, n, err := decodeFrame(b, MagicResponse, MagicAltResponse)
	if err != nil {
		return Response{}, 0, err
	}
	r = Response{CAS: h.CAS, Opaque: h.Opaque, Status: Status(h.Status), Opcode: h.Opcode, Datatype: h.Datatype}
	r.Framing, r.Extras, r.Key, r.Value = splitBody(&h, b[HeaderBytes:n])
	return r, n, nil
}

// appendEmpty appends a response that has no body.
func appendEmpty(dst []byte, op Opcode, status Status, opaque uint32, cas uint64) []byte {
	var b [HeaderBytes]byte
	b[0] = byte(MagicResponse)
	b[1] = byte(op)
	binary.BigEndian.PutUint16(b[6:], uint16(status))
	binary.BigEndian.PutUint32(b[12:], opaque)
	binary.BigEndian.PutUint64(b[16:], cas)
	return append(dst, b[:]...)
}

// appendHit appends the answer to a GET that found its document; key is empty
// unless the request was a GETK.
func appendHit(dst []byte, op Opcode, opaque uint32, key, value []byte, flags uint32, cas uint64) []byte {
	var b [HeaderBytes + 4]byte
	b[0] = byte(MagicResponse)
	b[1] = byte(op)
	binary.BigEndian.PutUint16(b[2:], uint16(len(key)))
	b[4] = 4
	binary.BigEndian.PutUint32(b[8:], uint32(4+len(key)+len(value)))
	binary.BigEndian.PutUint32(b[12:], opaque)
	binary.BigEndian.PutUint64(b[16:], cas)
	binary.BigEndian.PutUint32(b[24:], flags)
	dst = append(dst, b[:]...)
	dst = append(dst, key...)
	return append(dst, value...)
}

// appendText appends an answer whose value is text and nothing else.
func appendText(dst []byte, op Opcode, status Status, opaque uint32, text string) []byte {
	dst = appendEmpty(dst, op, status, opaque, 0)
	binary.BigEndian.PutUint32(dst[len(dst)-HeaderBytes+8:], uint32(len(text)))
	return append(dst, text...)
}

// appendPair appends an answer that has a key and a value and nothing else:
// one statistic, or a GETK miss, which echoes its key.
func appendPair(dst []byte, op Opcode, status Status, opaque uint32, key, value []byte) []byte {
	dst = appendEmpty(dst, op, status, opaque, 0)
	h := dst[len(dst)-HeaderBytes:]
	binary.BigEndian.PutUint16(h[2:], uint16(len(key)))
	binary.BigEndian.PutUint32(h[8:], uint32(len(key)+len(value)))
	dst = append(dst, key...)
	return append(dst, value...)
}
