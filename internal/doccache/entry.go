package doccache

import (
	"encoding/binary"

	"fluxkv/internal/entry"
)

// Key names a document. VBucket and User are compared whole: Hash leads to the
// place, it decides nothing.
type Key struct {
	// Hash is the caller's hash of User, the same in every call. All of its bits
	// should be good.
	Hash    uint64
	VBucket uint16
	User    []byte // 1..65535 bytes
}

// Doc is one version of a key. A tombstone has Kind entry.KindDelete and nothing
// else but its seqno.
type Doc struct {
	Seqno entry.Seqno
	Kind  entry.Kind
	Meta  entry.Meta
	Value []byte
}

// A document is kept as
//
//	seqno and what follows 8 | vbucket 2 | key length 2 | value length 4 | meta 17, if any | key | value
//
// in little-endian order, with room behind it. The first word has the seqno in
// its upper 56 bits and the kind and the presence of meta in its lowest two.
const (
	headBytes = 16
	metaBytes = 17

	isDelete = 1 << 0
	hasMeta  = 1 << 1
)

// size is what a document takes in encoded form.
func size(k *Key, d *Doc) int {
	n := headBytes + len(k.User)
	if d.Kind == entry.KindDelete {
		return n
	}
	if !d.Meta.IsZero() {
		n += metaBytes
	}
	return n + len(d.Value)
}

// encode fills b, which has size bytes at least.
func encode(b []byte, k *Key, d *Doc) {
	le := binary.LittleEndian
	word := uint64(d.Seqno) << 8
	at := headBytes
	switch {
	case d.Kind == entry.KindDelete:
		word |= isDelete
	case !d.Meta.IsZero():
		word |= hasMeta
		le.PutUint64(b[at:], d.Meta.CAS)
		le.PutUint32(b[at+8:], d.Meta.Flags)
		le.PutUint32(b[at+12:], d.Meta.Expiry)
		b[at+16] = d.Meta.Datatype
		at += metaBytes
	}
	le.PutUint64(b, word)
	le.PutUint16(b[8:], k.VBucket)
	le.PutUint16(b[10:], uint16(len(k.User)))
	at += copy(b[at:], k.User)
	n := 0
	if d.Kind == entry.KindSet {
		n = copy(b[at:], d.Value)
	}
	le.PutUint32(b[12:], uint32(n))
}

// seqnoOf is the seqno of an encoded document.
func seqnoOf(b []byte) entry.Seqno { return entry.Seqno(binary.LittleEndian.Uint64(b) >> 8) }

func keyAt(b []byte) int {
	if b[0]&hasMeta != 0 {
		return headBytes + metaBytes
	}
	return headBytes
}

// matches reports whether b is a document of k.
func matches(b []byte, k *Key) bool {
	le := binary.LittleEndian
	if le.Uint16(b[8:]) != k.VBucket || int(le.Uint16(b[10:])) != len(k.User) {
		return false
	}
	at := keyAt(b)
	return string(b[at:at+len(k.User)]) == string(k.User)
}

// decode fills d but for the value, which it returns in place.
func decode(b []byte, d *Doc) (value []byte) {
	le := binary.LittleEndian
	word := le.Uint64(b)
	*d = Doc{Seqno: entry.Seqno(word >> 8), Kind: entry.KindSet}
	if word&isDelete != 0 {
		d.Kind = entry.KindDelete
		return nil
	}
	at := keyAt(b)
	if word&hasMeta != 0 {
		m := b[headBytes:]
		d.Meta = entry.Meta{
			CAS: le.Uint64(m), Flags: le.Uint32(m[8:]), Expiry: le.Uint32(m[12:]), Datatype: m[16],
		}
	}
	at += int(le.Uint16(b[10:]))
	return b[at : at+int(le.Uint32(b[12:]))]
}
