package wal

import (
	"encoding/binary"
	"fmt"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
)

// Record, little-endian; fields that are absent take no space:
//
//	presence   uint8
//	sub-kind   uint8            extended kind only
//	keyBytes   uint8            0: a uint16 follows; not for clear
//	valueBytes uint8 or uint32  sets only
//	flags uint32, expiry uint32, datatype uint8, cas uint64   as presence says
//	key, value
//	sum        uint64           separated documents only
const (
	presenceKindMask   = 0x03
	presenceFlags      = 1 << 2
	presenceExpiry     = 1 << 3
	presenceDatatype   = 1 << 4
	presenceCAS        = 1 << 5
	presenceMetaMask   = presenceFlags | presenceExpiry | presenceDatatype | presenceCAS
	presenceLongValue  = 1 << 6
	presenceCompressed = 1 << 7

	kindInline    = 0
	kindSeparated = 1
	kindDelete    = 2
	kindExtended  = 3

	subKindClear = 1
)

const (
	// recordBytesMin is a clear; a group cannot have more records than this
	// allows, which bounds its count before anything is taken for it.
	recordBytesMin = 2
	// documentSumBytes is the checksum at the end of a separated document.
	documentSumBytes = 8
	// documentBytesMin is presence, two lengths, one byte of key and the sum.
	documentBytesMin = 4 + documentSumBytes
)

// RecordHeadBytesMax is the most a record takes over its key and value.
const RecordHeadBytesMax = 1 + 3 + 4 + 17 + documentSumBytes

// metaBytes is the space of the optional fields by presence >> 2 & 15.
var metaBytes = func() (t [16]uint8) {
	for i := range t {
		p := i << 2
		if p&presenceFlags != 0 {
			t[i] += 4
		}
		if p&presenceExpiry != 0 {
			t[i] += 4
		}
		if p&presenceDatatype != 0 {
			t[i]++
		}
		if p&presenceCAS != 0 {
			t[i] += 8
		}
	}
	return t
}()

// RecordKind says what a record does.
type RecordKind uint8

const (
	// RecordSet stores a document.
	RecordSet RecordKind = iota
	// RecordDelete is a tombstone for its key.
	RecordDelete
	// RecordClear removes every document of a lower seqno.
	RecordClear
)

func (k RecordKind) String() string {
	switch k {
	case RecordSet:
		return "set"
	case RecordDelete:
		return "delete"
	case RecordClear:
		return "clear"
	}
	return fmt.Sprintf("RecordKind(%d)", uint8(k))
}

// Record is one record of a group. Key and Value alias the group's bytes and
// live as long as they do.
type Record struct {
	Seqno entry.Seqno
	Key   []byte // user key
	Value []byte // as stored: a snappy block when Compressed
	Meta  entry.Meta
	// Address is set for separated documents.
	Address    entry.Address
	Kind       RecordKind
	Separated  bool
	Compressed bool
}

// AppendValue appends the document's value to dst, inflated when it is
// stored compressed. The error is a *CorruptError without a file name.
func (r *Record) AppendValue(dst []byte) ([]byte, error) {
	if !r.Compressed {
		return append(dst, r.Value...), nil
	}
	return appendInflated(dst, r.Value)
}

// valueBytes is how many bytes AppendValue appends, at most MaxValueBytes. It is
// an error as of AppendValue when a compressed value cannot have as many as it
// declares.
func (r *Record) valueBytes() (int, error) {
	if !r.Compressed {
		return len(r.Value), nil
	}
	return inflatedBytes(r.Value)
}

func metaPresence(m *entry.Meta) byte {
	var p byte
	if m.Flags != 0 {
		p |= presenceFlags
	}
	if m.Expiry != 0 {
		p |= presenceExpiry
	}
	if m.Datatype != 0 {
		p |= presenceDatatype
	}
	if m.CAS != 0 {
		p |= presenceCAS
	}
	return p
}

func appendMeta(dst []byte, m *entry.Meta) []byte {
	if m.Flags != 0 {
		dst = le.AppendUint32(dst, m.Flags)
	}
	if m.Expiry != 0 {
		dst = le.AppendUint32(dst, m.Expiry)
	}
	if m.Datatype != 0 {
		dst = append(dst, m.Datatype)
	}
	if m.CAS != 0 {
		dst = le.AppendUint64(dst, m.CAS)
	}
	return dst
}

func appendKeyLength(dst []byte, n int) []byte {
	if n < 256 {
		return append(dst, byte(n))
	}
	return le.AppendUint16(append(dst, 0), uint16(n))
}

// RecordBytes returns the length of the record that AppendSet makes of a value
// of valueBytes, or AppendCompressedSet of such a block.
func RecordBytes(keyBytes int, m entry.Meta, valueBytes int, separated bool) int {
	n := 3 + keyBytes + valueBytes + int(metaBytes[metaPresence(&m)>>2&15])
	if keyBytes >= 256 {
		n += 2
	}
	if valueBytes >= 256 {
		n += 3
	}
	if separated {
		n += documentSumBytes
	}
	return n
}

// DeleteBytes returns the length of the record that AppendDelete makes.
func DeleteBytes(keyBytes int) int {
	if keyBytes >= 256 {
		return 4 + keyBytes
	}
	return 2 + keyBytes
}

// ClearBytes is the length of the record that AppendClear makes.
const ClearBytes = recordBytesMin

// AppendSet appends the record of a document to dst. key has 1..MaxKeyBytes
// bytes, value at most MaxValueBytes; the caller has checked both. A
// separated document ends in 8 zero bytes for FinishDocument to fill.
func AppendSet(dst []byte, key []byte, m entry.Meta, value []byte, separated bool) []byte {
	return appendSet(dst, key, &m, value, separated, 0)
}

// AppendCompressedSet is AppendSet for a value that is stored compressed:
// block is its snappy block, as AppendBlock makes it.
func AppendCompressedSet(dst []byte, key []byte, m entry.Meta, block []byte, separated bool) []byte {
	return appendSet(dst, key, &m, block, separated, presenceCompressed)
}

func appendSet(dst, key []byte, m *entry.Meta, value []byte, separated bool, presence byte) []byte {
	if invariants.Enabled && (len(key) == 0 || len(key) > MaxKeyBytes || len(value) > MaxValueBytes) {
		panic(fmt.Sprintf("wal: record of a key of %d and a value of %d bytes", len(key), len(value)))
	}
	presence |= metaPresence(m)
	if separated {
		presence |= kindSeparated
	}
	if len(value) >= 256 {
		presence |= presenceLongValue
	}
	dst = append(dst, presence)
	dst = appendKeyLength(dst, len(key))
	if len(value) < 256 {
		dst = append(dst, byte(len(value)))
	} else {
		dst = le.AppendUint32(dst, uint32(len(value)))
	}
	if presence&presenceMetaMask != 0 {
		dst = appendMeta(dst, m)
	}
	dst = append(dst, key...)
	dst = append(dst, value...)
	if separated {
		dst = le.AppendUint64(dst, 0)
	}
	return dst
}

// AppendDelete appends a tombstone for key, of 1..MaxKeyBytes bytes.
func AppendDelete(dst []byte, key []byte) []byte {
	dst = append(dst, kindDelete)
	dst = appendKeyLength(dst, len(key))
	return append(dst, key...)
}

// AppendClear appends a clear.
func AppendClear(dst []byte) []byte {
	return append(dst, kindExtended, subKindClear)
}

// AppendDelta appends what precedes each record of a group with GroupDelta:
// the record's seqno less that of the record before, 0 for the first.
func AppendDelta(dst []byte, delta uint64) []byte {
	return binary.AppendUvarint(dst, delta)
}

// FinishDocument fills in the sum of a separated document: rec is the whole
// record, which will stand at offset off of the segment.
func FinishDocument(rec []byte, secret *Secret, segment entry.SegmentID, off uint32, seqno entry.Seqno) {
	body := len(rec) - documentSumBytes
	le.PutUint64(rec[body:], documentSum(rec[:body], secret, segment, off, seqno))
}

// verifyDocument reports whether rec, read at off of segment, is the document
// of seqno. rec has at least documentBytesMin bytes.
func verifyDocument(rec []byte, secret *Secret, segment entry.SegmentID, off uint32, seqno entry.Seqno) bool {
	body := len(rec) - documentSumBytes
	return le.Uint64(rec[body:]) == documentSum(rec[:body], secret, segment, off, seqno)
}

func documentSum(body []byte, secret *Secret, segment entry.SegmentID, off uint32, seqno entry.Seqno) uint64 {
	return sum64(mix64(place(secret, segment, off)^mix64(uint64(seqno)^domainDocument)), body)
}

// parseRecord takes the record at the start of b apart and returns its
// length, or 0 and why it is none. It sets all of r but Seqno and Address.
func parseRecord(b []byte, r *Record) (n int, reason string) {
	if len(b) < recordBytesMin {
		return 0, "record cut short"
	}
	presence := b[0]
	kind := presence & presenceKindMask
	if kind == kindExtended {
		if presence != kindExtended || b[1] != subKindClear {
			return 0, "unknown kind of record"
		}
		r.Kind, r.Separated, r.Compressed = RecordClear, false, false
		r.Key, r.Value, r.Meta = nil, nil, entry.Meta{}
		return 2, ""
	}
	keyBytes := int(b[1])
	at := 2
	if keyBytes == 0 {
		if len(b) < 4 {
			return 0, "record cut short"
		}
		keyBytes = int(le.Uint16(b[2:]))
		at = 4
		if keyBytes < 256 {
			return 0, "key length in the wrong form"
		}
	}
	valueBytes := 0
	tail := 0
	switch {
	case kind == kindDelete:
		if presence&(presenceLongValue|presenceCompressed) != 0 {
			return 0, "tombstone with a value"
		}
		r.Kind = RecordDelete
	case presence&presenceLongValue == 0:
		if at >= len(b) {
			return 0, "record cut short"
		}
		valueBytes = int(b[at])
		at++
		r.Kind = RecordSet
	default:
		if at+4 > len(b) {
			return 0, "record cut short"
		}
		v := le.Uint32(b[at:])
		if v < 256 || v > MaxValueBytes {
			return 0, "value length out of bounds"
		}
		valueBytes = int(v)
		at += 4
		r.Kind = RecordSet
	}
	if kind == kindSeparated {
		tail = documentSumBytes
	}
	// All terms are below 2^31: the sum cannot wrap an int of 64 bits.
	end := at + int(metaBytes[presence>>2&15]) + keyBytes + valueBytes + tail
	if end > len(b) {
		return 0, "record reaches over the end"
	}
	r.Meta = entry.Meta{}
	if presence&presenceMetaMask != 0 {
		if presence&presenceFlags != 0 {
			r.Meta.Flags = le.Uint32(b[at:])
			at += 4
		}
		if presence&presenceExpiry != 0 {
			r.Meta.Expiry = le.Uint32(b[at:])
			at += 4
		}
		if presence&presenceDatatype != 0 {
			r.Meta.Datatype = b[at]
			at++
		}
		if presence&presenceCAS != 0 {
			r.Meta.CAS = le.Uint64(b[at:])
			at += 8
		}
	}
	r.Separated = kind == kindSeparated
	r.Compressed = presence&presenceCompressed != 0
	keyEnd := at + keyBytes
	r.Key = b[at:keyEnd:keyEnd]
	valueEnd := keyEnd + valueBytes
	r.Value = b[keyEnd:valueEnd:valueEnd]
	return end, ""
}

// RecordReader walks the records of one group. The zero value is an empty
// group. It is not safe for concurrent use and allocates only for an error.
type RecordReader struct {
	payload []byte
	at      int
	left    uint32
	next    entry.Seqno // without deltas: of the next record; with: of the last one
	segment entry.SegmentID
	base    uint32 // file offset of payload
	delta   bool
	first   bool
	err     error
}

// Reset starts on the records of g: payload is the group's bytes from
// GroupHeaderBytes to g.Bytes, verified before.
func (rr *RecordReader) Reset(payload []byte, g *GroupHeader) {
	*rr = RecordReader{
		payload: payload,
		left:    g.Count,
		next:    g.First,
		segment: g.Segment,
		base:    g.Offset + GroupHeaderBytes,
		delta:   g.Flags&GroupDelta != 0,
		first:   true,
	}
}

// Next reads one record into r and reports whether there was one; after
// false, Err tells the end from damage.
func (rr *RecordReader) Next(r *Record) bool {
	if rr.left == 0 {
		if rr.at != len(rr.payload) && rr.err == nil {
			rr.fail("bytes after the last record")
		}
		return false
	}
	if rr.delta {
		if !rr.step() {
			return false
		}
		r.Seqno = rr.next
	} else {
		r.Seqno = rr.next
		rr.next++
	}
	n, reason := parseRecord(rr.payload[rr.at:], r)
	if n == 0 {
		rr.fail(reason)
		return false
	}
	if r.Separated {
		r.Address = entry.Address{Segment: rr.segment, Offset: rr.base + uint32(rr.at), Length: uint32(n)}
	} else {
		r.Address = entry.Address{}
	}
	rr.at += n
	rr.left--
	return true
}

// step reads the delta before a record.
func (rr *RecordReader) step() bool {
	d, n := binary.Uvarint(rr.payload[rr.at:])
	switch {
	case n <= 0:
		rr.fail("seqno delta cut short")
		return false
	case rr.first != (d == 0):
		rr.fail("seqnos do not rise")
		return false
	case d > uint64(entry.MaxSeqno-rr.next):
		rr.fail("seqno out of bounds")
		return false
	}
	rr.first = false
	rr.next += entry.Seqno(d)
	rr.at += n
	return true
}

func (rr *RecordReader) fail(reason string) {
	rr.err = corrupt("", int64(rr.base)+int64(rr.at), "%s", reason)
	rr.left = 0
	rr.payload = rr.payload[:rr.at]
}

// Err returns what stopped Next before the group's end: a *CorruptError
// whose Offset is in the segment's file and whose File is empty.
func (rr *RecordReader) Err() error { return rr.err }
