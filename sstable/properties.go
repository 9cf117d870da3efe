package sstable

import (
	"encoding/binary"
	"errors"
	"fmt"

	"fluxkv/internal/entry"
)

// SegmentUse says how much of a log segment a table addresses.
type SegmentUse struct {
	Segment   entry.SegmentID
	Documents uint32
	Bytes     uint64 // of their records
}

// FilterProperties describe the filter. Kind 0: there is none.
type FilterProperties struct {
	Kind       uint8
	Probes     uint8 // bits set for a key
	BitsPerKey uint8
	Pieces     uint32 // of 4 KiB
}

// Properties describe a table. Those of a Reader must not be changed.
type Properties struct {
	Number     uint64
	KVStore    uint16
	Entries    uint64 // versions, tombstones included
	Tombstones uint64
	Superseded uint64 // entries that follow a newer one of their key; 0 in tables that do not say
	KeyBytes   uint64 // of internal keys
	ValueBytes uint64 // of inline values

	LowestSeqno, HighestSeqno entry.Seqno
	Smallest, Largest         []byte // internal keys

	Filter      FilterProperties
	IndexLevels uint8
	Segments    []SegmentUse   // ascending by segment
	Expiry      []ExpiryBucket // ascending, at most 64
	DataStored  uint64         // bytes of data blocks with trailers
	DataPlain   uint64         // bytes of their payloads
	DataBlocks  uint32
}

// Field tags, frozen. An unknown tag below tagSkippable is refused.
const (
	tagNumber     = 1
	tagKVStore    = 2
	tagEntries    = 3
	tagTombstones = 4
	tagBytes      = 5
	tagSeqnos     = 6
	tagSmallest   = 7
	tagLargest    = 8
	tagFilter     = 9
	tagLevels     = 10
	tagSegments   = 11
	tagExpiry     = 12
	tagData       = 13
	tagDataBlocks = 14
	tagLast       = tagDataBlocks
	tagSkippable  = 128
	tagSuperseded = 128
)

const (
	segmentUseBytes   = 4 + 4 + 8
	expiryBucketBytes = 4 + 4 + 8
	// indexLevelsMax: every level is at most half the one below, and a table
	// has fewer than 2^32 blocks.
	indexLevelsMax = 32
)

// encode appends the payload of the properties block to dst.
func (p *Properties) encode(dst []byte) []byte {
	field := func(tag byte, payload []byte) {
		dst = append(dst, tag)
		dst = binary.AppendUvarint(dst, uint64(len(payload)))
		dst = append(dst, payload...)
	}
	u64s := func(vs ...uint64) []byte {
		var b []byte
		for _, v := range vs {
			b = le.AppendUint64(b, v)
		}
		return b
	}
	field(tagNumber, u64s(p.Number))
	field(tagKVStore, le.AppendUint16(nil, p.KVStore))
	field(tagEntries, u64s(p.Entries))
	field(tagTombstones, u64s(p.Tombstones))
	field(tagBytes, u64s(p.KeyBytes, p.ValueBytes))
	field(tagSeqnos, u64s(uint64(p.LowestSeqno), uint64(p.HighestSeqno)))
	field(tagSmallest, p.Smallest)
	field(tagLargest, p.Largest)
	f := p.Filter
	field(tagFilter, le.AppendUint32([]byte{f.Kind, f.Probes, f.BitsPerKey}, f.Pieces))
	field(tagLevels, []byte{p.IndexLevels})
	b := make([]byte, 0, max(len(p.Segments)*segmentUseBytes, len(p.Expiry)*expiryBucketBytes))
	for _, s := range p.Segments {
		b = le.AppendUint32(b, uint32(s.Segment))
		b = le.AppendUint32(b, s.Documents)
		b = le.AppendUint64(b, s.Bytes)
	}
	field(tagSegments, b)
	b = b[:0]
	for _, e := range p.Expiry {
		b = le.AppendUint32(b, e.NotAfter)
		b = le.AppendUint32(b, e.Entries)
		b = le.AppendUint64(b, e.Bytes)
	}
	field(tagExpiry, b)
	field(tagData, u64s(p.DataStored, p.DataPlain))
	field(tagDataBlocks, le.AppendUint32(nil, p.DataBlocks))
	if p.Superseded > 0 {
		field(tagSuperseded, u64s(p.Superseded))
	}
	return dst
}

// propertyBytes is the exact length of a field, -1 where it varies.
var propertyBytes = [tagLast + 1]int{
	tagNumber: 8, tagKVStore: 2, tagEntries: 8, tagTombstones: 8, tagBytes: 16, tagSeqnos: 16, tagSmallest: -1, tagLargest: -1,
	tagFilter: 7, tagLevels: 1, tagSegments: -1, tagExpiry: -1, tagData: 16, tagDataBlocks: 4,
}

// decodeProperties reads a payload. The result shares nothing with b.
func decodeProperties(b []byte) (*Properties, error) {
	p := &Properties{}
	last := 0
	for len(b) > 0 {
		tag := int(b[0])
		size, n := binary.Uvarint(b[1:])
		if n <= 0 || size > uint64(len(b)-1-n) {
			return nil, fmt.Errorf("field %d passes the block", tag)
		}
		payload := b[1+n : 1+n+int(size)]
		b = b[1+n+int(size):]
		if tag <= last {
			return nil, fmt.Errorf("field %d after field %d", tag, last)
		}
		if tag >= tagSkippable {
			last = tag
			if tag == tagSuperseded {
				if len(payload) != 8 {
					return nil, fmt.Errorf("field %d has %d bytes", tag, len(payload))
				}
				p.Superseded = le.Uint64(payload)
			}
			continue
		}
		if tag != last+1 || tag > tagLast {
			return nil, fmt.Errorf("unknown or missing field: %d after %d", tag, last)
		}
		last = tag
		if want := propertyBytes[tag]; want >= 0 && len(payload) != want {
			return nil, fmt.Errorf("field %d has %d bytes", tag, len(payload))
		}
		if err := p.decodeField(tag, payload); err != nil {
			return nil, err
		}
	}
	if last < tagLast {
		return nil, fmt.Errorf("ends after field %d", last)
	}
	return p, p.check()
}

func (p *Properties) decodeField(tag int, b []byte) error {
	switch tag {
	case tagNumber:
		p.Number = le.Uint64(b)
	case tagKVStore:
		p.KVStore = le.Uint16(b)
	case tagEntries:
		p.Entries = le.Uint64(b)
	case tagTombstones:
		p.Tombstones = le.Uint64(b)
	case tagBytes:
		p.KeyBytes, p.ValueBytes = le.Uint64(b), le.Uint64(b[8:])
	case tagSeqnos:
		p.LowestSeqno, p.HighestSeqno = entry.Seqno(le.Uint64(b)), entry.Seqno(le.Uint64(b[8:]))
	case tagSmallest:
		p.Smallest = append([]byte(nil), b...)
	case tagLargest:
		p.Largest = append([]byte(nil), b...)
	case tagFilter:
		p.Filter = FilterProperties{Kind: b[0], Probes: b[1], BitsPerKey: b[2], Pieces: le.Uint32(b[3:])}
	case tagLevels:
		p.IndexLevels = b[0]
	case tagSegments:
		if len(b)%segmentUseBytes != 0 {
			return fmt.Errorf("segments of %d bytes", len(b))
		}
		p.Segments = make([]SegmentUse, 0, len(b)/segmentUseBytes)
		for ; len(b) > 0; b = b[segmentUseBytes:] {
			p.Segments = append(p.Segments, SegmentUse{
				Segment: entry.SegmentID(le.Uint32(b)), Documents: le.Uint32(b[4:]), Bytes: le.Uint64(b[8:]),
			})
		}
	case tagExpiry:
		if len(b)%expiryBucketBytes != 0 || len(b) > expiryBucketsMax*expiryBucketBytes {
			return fmt.Errorf("expiry histogram of %d bytes", len(b))
		}
		p.Expiry = make([]ExpiryBucket, 0, len(b)/expiryBucketBytes)
		for ; len(b) > 0; b = b[expiryBucketBytes:] {
			p.Expiry = append(p.Expiry, ExpiryBucket{NotAfter: le.Uint32(b), Entries: le.Uint32(b[4:]), Bytes: le.Uint64(b[8:])})
		}
	case tagData:
		p.DataStored, p.DataPlain = le.Uint64(b), le.Uint64(b[8:])
	case tagDataBlocks:
		p.DataBlocks = le.Uint32(b)
	}
	return nil
}

// check refuses what no writer makes.
func (p *Properties) check() error {
	f := p.Filter
	switch {
	case p.Entries == 0 || p.Tombstones > p.Entries || p.Superseded >= p.Entries || p.DataBlocks == 0 || uint64(p.DataBlocks) > p.Entries:
		return errors.New("impossible counts")
	case p.LowestSeqno > p.HighestSeqno || p.HighestSeqno > entry.MaxSeqno:
		return fmt.Errorf("seqnos %d to %d", p.LowestSeqno, p.HighestSeqno)
	case len(p.Smallest) == 0 || len(p.Smallest) > keyBytesMax || len(p.Largest) == 0 || len(p.Largest) > keyBytesMax ||
		string(p.Smallest) > string(p.Largest):
		return errors.New("impossible key range")
	case f.Kind > filterKind || f.Kind == 0 && f != (FilterProperties{}) || f.Kind == filterKind && (f.Probes == 0 || f.Pieces == 0):
		return fmt.Errorf("unknown filter of kind %d", f.Kind)
	case p.IndexLevels == 0 || p.IndexLevels > indexLevelsMax:
		return fmt.Errorf("%d index levels", p.IndexLevels)
	}
	for i, s := range p.Segments {
		if s.Segment == 0 || s.Documents == 0 || i > 0 && p.Segments[i-1].Segment >= s.Segment {
			return errors.New("segments are not ascending")
		}
	}
	for i, e := range p.Expiry {
		if e.Entries == 0 || i > 0 && p.Expiry[i-1].NotAfter >= e.NotAfter {
			return errors.New("expiry histogram is not ascending")
		}
	}
	return nil
}
