package sstable

import (
	"bytes"
	"encoding/binary"

	"fluxkv/internal/entry"
)

// word is the first 8 bytes of b as a number that orders like them; a shorter
// b counts as followed by zeros.
func word(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var w uint64
	for i, c := range b {
		w |= uint64(c) << (56 - 8*i)
	}
	return w
}

// lowerBound returns the first of n strings of width bytes at d[at:], in
// ascending order, that is not below key; n when all are. 8 bytes behind the
// last are readable.
func lowerBound(d []byte, at, n, width int, key []byte) int {
	k := word(key)
	mask := ^uint64(0)
	if width < 8 {
		mask <<= 64 - 8*uint(width)
	}
	lo := 0
	for n > 0 {
		half := n >> 1
		p := at + (lo+half)*width
		w := binary.BigEndian.Uint64(d[p:]) & mask
		// Words decide nearly always; equal ones may still hide a difference
		// in length or behind the 8 bytes.
		if w < k || w == k && bytes.Compare(d[p:p+width], key) < 0 {
			lo += half + 1
			n -= half + 1
		} else {
			n = half
		}
	}
	return lo
}

// seek returns the first entry at or after (key, at) in the order of
// entry.Compare, count when there is none, and whether it is a version of key.
func (b *block) seek(key []byte, at entry.Seqno) (i int, found bool) {
	prefix := b.data[b.prefix : b.prefix+b.prefixBytes]
	if len(key) < len(prefix) || !bytes.Equal(key[:len(prefix)], prefix) {
		if bytes.Compare(key, prefix) < 0 {
			return 0, false
		}
		return b.count, false
	}
	rest := key[len(prefix):]
	if b.shape&shapeKeys != 0 {
		i, found = b.seekFixed(rest)
	} else {
		i, found = b.seekVariable(rest)
	}
	if !found {
		return i, false
	}
	for b.seqno(i) > at {
		i++
		if i == b.count || !b.keyIs(i, rest) {
			return i, false
		}
	}
	return i, true
}

// seekFixed returns the first entry whose key is not below prefix+rest, and
// whether it is that key.
func (b *block) seekFixed(rest []byte) (int, bool) {
	d, width := b.data, b.headWidth
	next := lowerBound(d, b.heads, b.groups, width, rest)
	if next > 0 {
		// The head of this group is below the key, those behind it need not
		// be; with several versions the first may stand at its end.
		g := next - 1
		head, share := b.heads+g*width, int(d[b.groupPrefix+g])
		if len(rest) >= share && bytes.Equal(d[head:head+share], rest[:share]) {
			at, n, w := b.suffixes+b.offset(b.groupOffset, g), b.groupSize(g)-1, width-share
			rest := rest[share:]
			if j := lowerBound(d, at, n, w, rest); j < n {
				p := at + j*w
				return g<<b.shift + 1 + j, bytes.Equal(d[p:p+w], rest)
			}
		}
	}
	if next == b.groups {
		return b.count, false
	}
	head := b.heads + next*width
	return next << b.shift, bytes.Equal(d[head:head+width], rest)
}

// head returns the head of group g of a block whose lengths differ, without
// the prefix, and the offset behind it.
func (b *block) head(g int) (key []byte, end int) {
	at := b.suffixes + b.offset(b.groupOffset, g)
	n := b.length(at, 0)
	at += b.lengthBytes()
	return b.data[at : at+n], at + n
}

func (b *block) seekVariable(rest []byte) (int, bool) {
	next, n := 0, b.groups
	for n > 0 {
		half := n >> 1
		if head, _ := b.head(next + half); bytes.Compare(head, rest) < 0 {
			next += half + 1
			n -= half + 1
		} else {
			n = half
		}
	}
	if next > 0 {
		g := next - 1
		head, lengths := b.head(g)
		share := int(b.data[b.groupPrefix+g])
		if len(rest) >= share && bytes.Equal(head[:share], rest[:share]) {
			size := b.groupSize(g) - 1
			at := lengths + size*b.lengthBytes()
			rest := rest[share:]
			for j := range size {
				w := b.length(lengths, j)
				if c := bytes.Compare(b.data[at:at+w], rest); c >= 0 {
					return g<<b.shift + 1 + j, c == 0
				}
				at += w
			}
		}
	}
	if next == b.groups {
		return b.count, false
	}
	head, _ := b.head(next)
	return next << b.shift, bytes.Equal(head, rest)
}

// keyIs reports whether the key of entry i is prefix+rest.
func (b *block) keyIs(i int, rest []byte) bool {
	g, j := i>>b.shift, i&(1<<b.shift-1)
	var head, suffix []byte
	share := int(b.data[b.groupPrefix+g])
	if b.shape&shapeKeys != 0 {
		at := b.heads + g*b.headWidth
		head = b.data[at : at+b.headWidth]
		if j > 0 {
			w := b.headWidth - share
			at = b.suffixes + b.offset(b.groupOffset, g) + (j-1)*w
			suffix = b.data[at : at+w]
		}
	} else {
		var lengths int
		head, lengths = b.head(g)
		if j > 0 {
			at := lengths + (b.groupSize(g)-1)*b.lengthBytes()
			for k := range j - 1 {
				at += b.length(lengths, k)
			}
			suffix = b.data[at : at+b.length(lengths, j-1)]
		}
	}
	if j == 0 {
		return bytes.Equal(head, rest)
	}
	return len(rest) == share+len(suffix) && bytes.Equal(head[:share], rest[:share]) && bytes.Equal(suffix, rest[share:])
}

// place says where the fields of one entry stand in their columns.
type place struct {
	meta      byte
	inline    int // rank among entries with an inline value
	addressed int // rank among entries with an address
	extra     int // offset of the extras
}

// place finds entry i. It takes a pass over the runs in front of it.
func (b *block) place(c *columns, i int) place {
	p := place{meta: b.meta, extra: c.extras}
	if b.shape&shapeMeta != 0 {
		p.inline, p.addressed = i, i
		p.extra += i * int(extraBytes[b.meta])
		return p
	}
	for r := range b.runs {
		meta, first := b.run(r)
		p.meta = meta
		end := b.runEnd(r)
		n := min(end, i) - first
		switch meta & metaKind {
		case metaInline:
			p.inline += n
		case metaAddress:
			p.addressed += n
		}
		p.extra += n * int(extraBytes[meta])
		if i < end {
			break
		}
	}
	return p
}

// version fills v, all but its key, with entry i at p. The value aliases the
// block.
func (b *block) version(c *columns, p place, i int, v *entry.Version) {
	v.Seqno = b.seqno(i)
	v.Kind = entry.KindSet
	v.Value = entry.Value{}
	switch p.meta & metaKind {
	case metaInline:
		from, to := 0, 0
		if b.shape&shapeValues != 0 {
			from = c.bytes + p.inline*b.valueBytes
			to = from + b.valueBytes
		} else {
			if p.inline > 0 {
				from = b.offset(c.ends, p.inline-1)
			}
			from, to = c.bytes+from, c.bytes+b.offset(c.ends, p.inline)
		}
		v.Value.Bytes, v.Value.HasBytes = b.data[from:to:to], true
	case metaAddress:
		v.Value.Address = entry.Address{
			Segment: entry.SegmentID(b.packedAt(&c.address[0], p.addressed)),
			Offset:  uint32(b.packedAt(&c.address[1], p.addressed)),
			Length:  uint32(b.packedAt(&c.address[2], p.addressed)),
		}
	default:
		v.Kind = entry.KindDelete
	}
	v.Meta = entry.Meta{}
	if p.meta>>2 == 0 {
		return
	}
	d := b.data[p.extra:]
	if p.meta&metaFlags != 0 {
		v.Meta.Flags, d = le.Uint32(d), d[4:]
	}
	if p.meta&metaExpiry != 0 {
		v.Meta.Expiry, d = le.Uint32(d), d[4:]
	}
	if p.meta&metaDatatype != 0 {
		v.Meta.Datatype, d = d[0], d[1:]
	}
	if p.meta&metaCAS != 0 {
		v.Meta.CAS = le.Uint64(d)
	}
}

// ref returns the block that entry i of an index block points to, and the
// level it names.
func (b *block) ref(c *columns, i int) (level uint64, ref BlockRef) {
	return b.packedAt(&c.address[0], i), BlockRef{
		Offset: b.packedAt(&c.address[1], i),
		Length: uint32(b.packedAt(&c.address[2], i)),
	}
}
