package manifest

import (
	"errors"

	"github.com/cespare/xxhash/v2"
)

// A manifest file is a header and records, little-endian, without padding.
//
//	header, 24 bytes                 record at offset o
//	 0  magic    8 bytes "fluxmani"   o     sum      u64  of [o+8, o+16+length)
//	 8  version  u16     1            o+8   length   u32  bytes of the edit
//	10  zero     6 bytes              o+12  prevEnd  u32  all bytes before it were synced
//	16  sum      u64     of [0, 16)   o+16  edit
const (
	headerBytes       = 24
	recordHeaderBytes = 16
	manifestMagic     = "fluxmani"
	manifestVersion   = 1

	// manifestBytesMax bounds a manifest file. It is replaced when it is four
	// times as long as its snapshot; a snapshot of 4096 segments is 170 KB.
	manifestBytesMax = 1 << 30
)

// seed makes the checksum seed of a place: a record that turns up in another
// place, another manifest or another store fails.
func seed(secret [16]byte, number uint64, offset int64) uint64 {
	var b [32]byte
	copy(b[:], secret[:])
	le.PutUint64(b[16:], number)
	le.PutUint64(b[24:], uint64(offset))
	return xxhash.Sum64(b[:])
}

func sum(seed uint64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	d.Write(b)
	return d.Sum64()
}

// appendHeader encodes the header of manifest number behind dst.
func appendHeader(dst []byte, secret [16]byte, number uint64) []byte {
	at := len(dst)
	dst = append(dst, manifestMagic...)
	dst = le.AppendUint16(dst, manifestVersion)
	dst = append(dst, 0, 0, 0, 0, 0, 0)
	return le.AppendUint64(dst, sum(seed(secret, number, 0), dst[at:]))
}

// checkHeader checks the first bytes of the manifest b, called name.
func checkHeader(name string, b []byte, secret [16]byte, number uint64) error {
	if len(b) < headerBytes {
		return corruptf(name, int64(len(b)), "%d bytes long, shorter than its header", len(b))
	}
	if string(b[:8]) != manifestMagic {
		return corruptf(name, 0, "not a fluxkv manifest (magic %q)", b[:8])
	}
	if sum(seed(secret, number, 0), b[:16]) != le.Uint64(b[16:]) {
		return corruptf(name, 0, "checksum mismatch in the header")
	}
	if v := le.Uint16(b[8:]); v != manifestVersion {
		return versionError(name, 8, "manifest version %d, this program reads %d", v, manifestVersion)
	}
	return nil
}

var zeroRecordHeader [recordHeaderBytes]byte

// appendRecord encodes a record that will be written at file offset off.
func appendRecord(dst []byte, secret [16]byte, number uint64, off, prevEnd int64, e *Edit) []byte {
	at := len(dst)
	dst = append(dst, zeroRecordHeader[:]...)
	if e != nil {
		dst = e.Append(dst)
	}
	placeRecord(dst[at:], secret, number, off, prevEnd)
	return dst
}

// placeRecord makes rec, whose edit is there, the record of a place.
func placeRecord(rec []byte, secret [16]byte, number uint64, off, prevEnd int64) {
	le.PutUint32(rec[8:], uint32(len(rec)-recordHeaderBytes))
	le.PutUint32(rec[12:], uint32(prevEnd))
	le.PutUint64(rec, sum(seed(secret, number, off), rec[8:]))
}

// recordAt returns the edit bytes and the promise of the record at off, ok only
// if it is intact. Nothing is believed before it is bounded and checked.
func recordAt(b []byte, off int64, secret [16]byte, number uint64) (edit []byte, prevEnd int64, ok bool) {
	rest := b[off:]
	if len(rest) < recordHeaderBytes {
		return nil, 0, false
	}
	length := int64(le.Uint32(rest[8:]))
	prevEnd = int64(le.Uint32(rest[12:]))
	if length > int64(len(rest)-recordHeaderBytes) || prevEnd < headerBytes || prevEnd > off {
		return nil, 0, false
	}
	rec := rest[:recordHeaderBytes+length]
	if sum(seed(secret, number, off), rec[8:]) != le.Uint64(rec) {
		return nil, 0, false
	}
	return rec[recordHeaderBytes:], prevEnd, true
}

// replayed is what reading a manifest found.
type replayed struct {
	state   State
	end     int64 // behind the last intact record
	records int
	torn    bool // bytes follow end
}

// replay reads manifest b, of the given name and number; synced is how much of
// it CURRENT promised.
func replay(name string, b []byte, secret [16]byte, number uint64, synced int64) (replayed, error) {
	if err := checkHeader(name, b, secret, number); err != nil {
		return replayed{}, err
	}
	r := replayed{state: emptyState(), end: headerBytes}
	for r.end < int64(len(b)) {
		edit, _, ok := recordAt(b, r.end, secret, number)
		if !ok {
			break
		}
		e, err := DecodeEdit(edit)
		if errors.Is(err, ErrVersion) {
			return replayed{}, versionError(name, r.end, "%v", err)
		}
		if err != nil {
			return replayed{}, corruptf(name, r.end, "%v", err)
		}
		if r.state, err = r.state.Apply(&e); err != nil {
			return replayed{}, corruptf(name, r.end, "%v", err)
		}
		r.end += recordHeaderBytes + int64(len(edit))
		r.records++
	}
	r.torn = r.end < int64(len(b))
	r.state.Manifest = number
	// Each edit was checked for what it changed; the sum is checked whole (M8).
	if err := Validate(r.state); err != nil {
		return replayed{}, corruptf(name, r.end, "%v", err)
	}
	switch {
	case r.end < synced:
		return replayed{}, corruptf(name, r.end, "damaged or cut, and CURRENT says it was synced up to %d", synced)
	case r.records == 0:
		return replayed{}, corruptf(name, r.end, "no record")
	}
	if at, prevEnd, found := laterPromise(b, r.end, secret, number); found {
		return replayed{}, corruptf(name, r.end, "damaged record, and an intact one at %d says everything before %d was synced", at, prevEnd)
	}
	return r, nil
}

// laterPromise looks behind the damaged place bad for an intact record whose
// promise covers it. An intact record that promises less proves nothing:
// devices may persist blocks out of order.
//
// Records are not aligned, so every offset is tried; a promise must point
// between bad and its own record, which leaves almost none to hash.
func laterPromise(b []byte, bad int64, secret [16]byte, number uint64) (at, prevEnd int64, found bool) {
	for at = bad + 1; at+recordHeaderBytes <= int64(len(b)); at++ {
		if p := int64(le.Uint32(b[at+12:])); p <= bad || p > at {
			continue
		}
		if _, prevEnd, ok := recordAt(b, at, secret, number); ok {
			return at, prevEnd, true
		}
	}
	return 0, 0, false
}
