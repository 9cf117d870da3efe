package sstable

import (
	"errors"
	"fmt"

	"fluxkv/internal/entry"
)

// Payload of a data or index block, little-endian. In a wide block the fields
// at 18 to 25 are uint32 and everything behind them stands 8 bytes later.
//
//	 0  count        uint16
//	 2  shape        uint8
//	 3  groupShift   uint8   bit 7: long lengths
//	 4  keyBytes     uint16
//	 6  valueBytes   uint16
//	 8  seqnoBase    uint56
//	15  seqnoBits    uint8
//	16  prefixBytes  uint16
//	18  suffixes     uint16
//	20  seqnos       uint16
//	22  values       uint16
//	24  metas        uint16
//	26  meta         uint8
//	27  zero         uint8
//	28  prefix, heads, groupPrefix, groupOffset | suffixes | seqnos | values, addresses, extras | runs
const (
	blockHeadBytes     = 28
	wideBlockHeadBytes = 36
	addressHeadBytes   = 3 * 8
	runBytes           = 3
)

// Shape bits, frozen.
const (
	shapeKeys      = 1 // all keys have one length
	shapeValues    = 2 // all values have one length
	shapeMeta      = 4 // one meta byte for all
	shapeInline    = 8
	shapeAddresses = 16
	shapeWide      = 32
)

const (
	groupShift     = 4 // what the builder makes; blocks of other sizes are read too
	groupShiftMax  = 7
	longLengths    = 0x80 // in the byte of groupShift
	groupPrefixMax = 255
	lengthMax      = 255 // of a length in one byte
	narrowBytesMax = 65535
	prefixBytesMax = 65535
	countMax       = 65535
)

// Meta byte, frozen.
const (
	metaKind     = 3
	metaInline   = 0
	metaAddress  = 1
	metaDelete   = 2
	metaFlags    = 4
	metaExpiry   = 8
	metaDatatype = 16
	metaCAS      = 32
	metaZero     = 0xc0
)

// extraBytes is the length of the extras of an entry, by its meta byte.
var extraBytes = func() (t [256]uint8) {
	for m := range t {
		if m&metaFlags != 0 {
			t[m] += 4
		}
		if m&metaExpiry != 0 {
			t[m] += 4
		}
		if m&metaDatatype != 0 {
			t[m]++
		}
		if m&metaCAS != 0 {
			t[m] += 8
		}
	}
	return t
}()

// block is a payload taken apart. Offsets are checked against the payload by
// parse, all that lies behind them by check, once when the block was read.
type block struct {
	data []byte // payload, then tailBytes
	end  int    // of the payload

	count, groups int
	shift         uint
	shape, meta   byte
	long          bool
	keyBytes      int
	valueBytes    int
	prefixBytes   int
	seqnoBase     uint64
	seqnoBits     uint

	prefix, heads, groupPrefix, groupOffset int
	suffixes, seqnos, values, metas         int
	headWidth                               int // keyBytes - prefixBytes, with shapeKeys
	runs                                    int
}

var errTruncated = errors.New("shorter than its head")

// parse reads the head of a payload; data holds it and tailBytes more. The
// slice is kept.
func (b *block) parse(data []byte) error {
	end := len(data) - tailBytes
	if end < blockHeadBytes {
		return errTruncated
	}
	word := le.Uint64(data)
	b.data, b.end = data, end
	b.count = int(uint16(word))
	b.shape = byte(word >> 16)
	b.shift = uint(byte(word>>24) &^ longLengths)
	b.long = byte(word>>24)&longLengths != 0
	b.keyBytes = int(uint16(word >> 32))
	b.valueBytes = int(uint16(word >> 48))
	word = le.Uint64(data[8:])
	b.seqnoBase, b.seqnoBits = word&(1<<56-1), uint(word>>56)
	b.prefixBytes = int(le.Uint16(data[16:]))
	offsetBytes := 2
	if b.shape&shapeWide == 0 {
		word = le.Uint64(data[18:])
		b.suffixes, b.seqnos, b.values, b.metas = int(uint16(word)), int(uint16(word>>16)), int(uint16(word>>32)), int(word>>48)
		b.meta, b.prefix = data[26], blockHeadBytes
	} else {
		if end < wideBlockHeadBytes {
			return errTruncated
		}
		b.suffixes, b.seqnos = int(le.Uint32(data[18:])), int(le.Uint32(data[22:]))
		b.values, b.metas = int(le.Uint32(data[26:])), int(le.Uint32(data[30:]))
		b.meta, b.prefix = data[34], wideBlockHeadBytes
		offsetBytes = 4
	}
	switch {
	case b.count == 0 || b.shape&^(shapeWide<<1-1) != 0 || b.shift > groupShiftMax || data[b.prefix-1] != 0:
		return errors.New("bad count, shape or group size")
	case b.seqnoBits > packedBits:
		return fmt.Errorf("seqnos of %d bits", b.seqnoBits)
	}
	b.groups = (b.count + 1<<b.shift - 1) >> b.shift
	b.headWidth = 0
	if b.shape&shapeKeys != 0 {
		b.headWidth = b.keyBytes - b.prefixBytes
		if b.headWidth < 0 || b.keyBytes == 0 || b.long {
			return errors.New("bad length of keys")
		}
	} else if b.keyBytes != 0 {
		return errors.New("bad length of keys")
	}
	// A payload has at most 2^24 bytes and every factor at most 2^16: no sum
	// below passes 2^33.
	b.heads = b.prefix + b.prefixBytes
	b.groupPrefix = b.heads + b.groups*b.headWidth
	b.groupOffset = b.groupPrefix + b.groups
	if b.suffixes != b.groupOffset+b.groups*offsetBytes || b.seqnos < b.suffixes ||
		b.values != b.seqnos+packedBytes(b.count, b.seqnoBits) || b.values > end {
		return errors.New("bad offsets of columns")
	}
	if b.shape&shapeMeta != 0 {
		b.runs = 0
		if b.metas != 0 {
			return errors.New("runs in a block with one meta byte")
		}
		b.metas = end
	} else {
		b.runs = (end - b.metas) / runBytes
		if b.metas < b.values || b.metas > end-runBytes || b.metas+b.runs*runBytes != end || b.meta != 0 {
			return errors.New("bad place of runs")
		}
	}
	if b.shape&shapeValues == 0 && b.valueBytes != 0 || b.shape&(shapeValues|shapeInline) == shapeValues {
		return errors.New("bad length of values")
	}
	return nil
}

// offset returns entry i of a table of offsets.
func (b *block) offset(at, i int) int {
	if b.shape&shapeWide == 0 {
		return int(le.Uint16(b.data[at+2*i:]))
	}
	return int(le.Uint32(b.data[at+4*i:]))
}

func (b *block) offsetBytes() int {
	if b.shape&shapeWide == 0 {
		return 2
	}
	return 4
}

// length returns entry i of a table of lengths, and how many bytes one takes.
func (b *block) length(at, i int) int {
	if !b.long {
		return int(b.data[at+i])
	}
	return int(le.Uint32(b.data[at+4*i:]))
}

func (b *block) lengthBytes() int {
	if !b.long {
		return 1
	}
	return 4
}

// groupSize is how many entries group g has.
func (b *block) groupSize(g int) int { return min(b.count-g<<b.shift, 1<<b.shift) }

// run returns run i.
func (b *block) run(i int) (meta byte, first int) {
	at := b.metas + runBytes*i
	return b.data[at], int(le.Uint16(b.data[at+1:]))
}

func (b *block) runEnd(i int) int {
	if i+1 < b.runs {
		_, first := b.run(i + 1)
		return first
	}
	return b.count
}

// seqno returns the seqno of entry i.
func (b *block) seqno(i int) entry.Seqno {
	return entry.Seqno(b.seqnoBase + packed(b.data, b.seqnos, i, b.seqnoBits))
}

// column is one packed column of addresses.
type column struct {
	at   int
	base uint64
	bits uint
}

func (b *block) packedAt(c *column, i int) uint64 { return c.base + packed(b.data, c.at, i, c.bits) }

// columns are the places behind the seqnos. They take a pass over the runs.
type columns struct {
	inline, addresses int // entries that have one
	ends, bytes       int // of values; ends only when lengths differ
	address           [3]column
	extras            int
}

// columns finds the columns. It fails only on a payload that check refuses.
func (b *block) columns(c *columns) error {
	c.inline, c.addresses = 0, 0
	if b.shape&shapeMeta != 0 {
		switch b.meta & metaKind {
		case metaInline:
			c.inline = b.count
		case metaAddress:
			c.addresses = b.count
		}
	} else {
		for i := range b.runs {
			meta, first := b.run(i)
			switch meta & metaKind {
			case metaInline:
				c.inline += b.runEnd(i) - first
			case metaAddress:
				c.addresses += b.runEnd(i) - first
			}
		}
	}
	if (c.inline > 0) != (b.shape&shapeInline != 0) || (c.addresses > 0) != (b.shape&shapeAddresses != 0) {
		return errors.New("shape and runs disagree")
	}
	at := b.values
	c.ends, c.bytes = at, at
	if c.inline > 0 {
		if b.shape&shapeValues != 0 {
			at += c.inline * b.valueBytes
		} else {
			c.bytes = at + c.inline*b.offsetBytes()
			if c.bytes > b.metas {
				return errors.New("ends of values pass the block")
			}
			at = c.bytes + b.offset(c.ends, c.inline-1)
		}
		if at > b.metas {
			return errors.New("values pass the block")
		}
	}
	if c.addresses > 0 {
		if at+addressHeadBytes > b.metas {
			return errors.New("addresses pass the block")
		}
		head := at
		at += addressHeadBytes
		for i := range c.address {
			word := le.Uint64(b.data[head+8*i:])
			col := column{at: at, base: word & (1<<56 - 1), bits: uint(word >> 56)}
			if col.bits > packedBits {
				return fmt.Errorf("addresses of %d bits", col.bits)
			}
			c.address[i] = col
			at += packedBytes(c.addresses, col.bits)
		}
		if at > b.metas {
			return errors.New("addresses pass the block")
		}
	}
	c.extras = at
	return nil
}
