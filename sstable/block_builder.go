package sstable

import (
	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fmt"
)

// blockEntry is what a blockBuilder stores. The slices are copied.
type blockEntry struct {
	key     []byte
	seqno   uint64
	meta    byte
	value   []byte    // with metaInline
	address [3]uint64 // with metaAddress
	fields  entry.Meta
}

// blockSize is what the exact size of a block depends on. It is small, so
// that "what if this entry came too" is a copy.
type blockSize struct {
	count      int
	keyTotal   int
	keyFirst   int // length of the first key
	keyMax     int
	keysDiffer bool
	prefix     int // shared by all keys, not capped
	share      int // shared by all keys of the last group, not capped
	shareTotal int // over closed groups: (entries - 1) * share

	seqnoMin, seqnoMax uint64

	inline, valueTotal int
	valueFirst         int
	valuesDiffer       bool

	addresses int
	min, max  [3]uint64

	extras, runs int
	meta         byte // of the last entry
}

// add counts an entry whose key shares common bytes with the one before it in
// the block; of the first entry common is ignored.
func (s *blockSize) add(e *blockEntry, common int) {
	n := len(e.key)
	if s.count == 0 {
		s.keyFirst, s.prefix = n, n
		s.seqnoMin, s.seqnoMax = e.seqno, e.seqno
	} else {
		s.prefix = min(s.prefix, common)
	}
	if s.count&(1<<groupShift-1) == 0 {
		if s.count > 0 {
			s.shareTotal += (1<<groupShift - 1) * s.share
		}
		s.share = n
	} else {
		s.share = min(s.share, common)
	}
	s.keysDiffer = s.keysDiffer || n != s.keyFirst
	s.keyMax = max(s.keyMax, n)
	s.keyTotal += n
	s.seqnoMin, s.seqnoMax = min(s.seqnoMin, e.seqno), max(s.seqnoMax, e.seqno)
	switch e.meta & metaKind {
	case metaInline:
		if s.inline == 0 {
			s.valueFirst = len(e.value)
		}
		s.valuesDiffer = s.valuesDiffer || len(e.value) != s.valueFirst
		s.inline++
		s.valueTotal += len(e.value)
	case metaAddress:
		for i, v := range e.address {
			if s.addresses == 0 {
				s.min[i], s.max[i] = v, v
			}
			s.min[i], s.max[i] = min(s.min[i], v), max(s.max[i], v)
		}
		s.addresses++
	}
	s.extras += int(extraBytes[e.meta])
	if s.count == 0 || s.meta != e.meta {
		s.runs++
		s.meta = e.meta
	}
	s.count++
}

func (s *blockSize) groups() int { return (s.count + 1<<groupShift - 1) >> groupShift }

func (s *blockSize) prefixBytes() int { return min(s.prefix, prefixBytesMax) }

// fixedKeys and the next two choose the shape.
func (s *blockSize) fixedKeys() bool { return !s.keysDiffer && s.keyFirst <= prefixBytesMax }

func (s *blockSize) fixedValues() bool {
	return s.inline > 0 && !s.valuesDiffer && s.valueFirst <= prefixBytesMax
}

func (s *blockSize) longLengths() bool { return !s.fixedKeys() && s.keyMax-s.prefixBytes() > lengthMax }

// lengthBytes is what one length takes, 0 when there are none.
func (s *blockSize) lengthBytes() int {
	switch {
	case s.fixedKeys():
		return 0
	case s.longLengths():
		return 4
	}
	return 1
}

// blockBuilder collects the entries of one block.
type blockBuilder struct {
	size blockSize

	keys      []byte
	keyEnds   []int
	shares    []int // of closed groups, and of the last one once encoding began
	seqnos    []uint64
	metas     []byte
	values    []byte
	valueEnds []int // of entries with an inline value
	address   [3][]uint64
	extras    []byte
}

func (b *blockBuilder) reset() {
	b.size = blockSize{}
	b.keys, b.keyEnds, b.shares = b.keys[:0], b.keyEnds[:0], b.shares[:0]
	b.seqnos, b.metas = b.seqnos[:0], b.metas[:0]
	b.values, b.valueEnds = b.values[:0], b.valueEnds[:0]
	for i := range b.address {
		b.address[i] = b.address[i][:0]
	}
	b.extras = b.extras[:0]
}

func (b *blockBuilder) key(i int) []byte {
	from := 0
	if i > 0 {
		from = b.keyEnds[i-1]
	}
	return b.keys[from:b.keyEnds[i]]
}

// shared is what the groups save: for each, (entries - 1) times what its keys
// share, capped as the format caps it.
func (b *blockBuilder) shared(s *blockSize) int {
	last := s.count - (s.groups()-1)<<groupShift - 1
	if s.keyMax-s.prefixBytes() <= groupPrefixMax {
		return s.shareTotal + last*s.share
	}
	limit := s.prefixBytes() + groupPrefixMax
	sum := last * min(s.share, limit)
	for _, share := range b.shares[:s.groups()-1] {
		sum += (1<<groupShift - 1) * min(share, limit)
	}
	return sum
}

// payloadBytes is the exact length of the payload that s describes; s is the
// size of b, or that and one entry more.
func (b *blockBuilder) payloadBytes(s *blockSize) (n int, wide bool) {
	n = b.bytesWith(s, blockHeadBytes, 2)
	if n <= narrowBytesMax {
		return n, false
	}
	return b.bytesWith(s, wideBlockHeadBytes, 4), true
}

func (b *blockBuilder) bytesWith(s *blockSize, head, offset int) int {
	groups, prefix := s.groups(), s.prefixBytes()
	n := head + prefix + groups*(1+offset)
	n += s.keyTotal - groups*prefix - b.shared(s) + s.count*s.lengthBytes()
	n += packedBytes(s.count, widthOf(s.seqnoMax-s.seqnoMin))
	n += s.valueTotal
	if s.inline > 0 && !s.fixedValues() {
		n += s.inline * offset
	}
	if s.addresses > 0 {
		n += addressHeadBytes
		for i := range s.min {
			n += packedBytes(s.addresses, widthOf(s.max[i]-s.min[i]))
		}
	}
	n += s.extras
	if s.runs > 1 {
		n += s.runs * runBytes
	}
	return n
}

// tryAdd takes e unless the payload would then be longer than limit; the first
// atLeast entries are taken whatever their size. common is the number of bytes
// that e.key shares with the key before. It reports the new length.
func (b *blockBuilder) tryAdd(e *blockEntry, common, limit, atLeast int) (payload int, ok bool) {
	next := b.size
	b.closeGroup()
	next.add(e, common)
	payload, _ = b.payloadBytes(&next)
	if next.count > atLeast && (payload > limit || next.count > countMax) {
		return payload, false
	}
	b.size = next
	b.append(e)
	if e.meta>>2 != 0 {
		b.extras = appendExtras(b.extras, e.meta, &e.fields)
	}
	return payload, true
}

// store takes e, whose extras are encoded already, whatever the size.
func (b *blockBuilder) store(e *blockEntry, common int, extras []byte) {
	b.closeGroup()
	b.size.add(e, common)
	b.append(e)
	b.extras = append(b.extras, extras...)
}

// closeGroup notes what the last group shares when the next entry opens a new
// one: sizes look at the closed groups.
func (b *blockBuilder) closeGroup() {
	if n := b.size.count; n > 0 && n&(1<<groupShift-1) == 0 {
		b.shares = append(b.shares[:n>>groupShift-1], b.size.share)
	}
}

func (b *blockBuilder) append(e *blockEntry) {
	b.keys = append(b.keys, e.key...)
	b.keyEnds = append(b.keyEnds, len(b.keys))
	b.seqnos = append(b.seqnos, e.seqno)
	b.metas = append(b.metas, e.meta)
	switch e.meta & metaKind {
	case metaInline:
		b.values = append(b.values, e.value...)
		b.valueEnds = append(b.valueEnds, len(b.values))
	case metaAddress:
		for i, v := range e.address {
			b.address[i] = append(b.address[i], v)
		}
	}
}

func appendExtras(dst []byte, meta byte, m *entry.Meta) []byte {
	if meta&metaFlags != 0 {
		dst = le.AppendUint32(dst, m.Flags)
	}
	if meta&metaExpiry != 0 {
		dst = le.AppendUint32(dst, m.Expiry)
	}
	if meta&metaDatatype != 0 {
		dst = append(dst, m.Datatype)
	}
	if meta&metaCAS != 0 {
		dst = le.AppendUint64(dst, m.CAS)
	}
	return dst
}

// encode appends the payload of all entries, at least one, to dst.
func (b *blockBuilder) encode(dst []byte) []byte {
	s := &b.size
	start := len(dst)
	total, wide := b.payloadBytes(s)
	groups, prefix := s.groups(), s.prefixBytes()
	b.shares = append(b.shares[:groups-1], s.share)
	limit := prefix + groupPrefixMax

	head := blockHeadBytes
	shape := byte(0)
	if wide {
		shape, head = shapeWide, wideBlockHeadBytes
	}
	dst = append(dst, make([]byte, head)...)
	dst = append(dst, b.keys[:prefix]...)
	offset := func(v int) {
		if wide {
			dst = le.AppendUint32(dst, uint32(v))
		} else {
			dst = le.AppendUint16(dst, uint16(v))
		}
	}
	fixed := s.fixedKeys()
	lengthBytes := s.lengthBytes()
	if fixed {
		shape |= shapeKeys
		for g := range groups {
			dst = append(dst, b.key(g << groupShift)[prefix:]...)
		}
	}
	for _, share := range b.shares {
		dst = append(dst, byte(min(share, limit)-prefix))
	}
	at := 0
	for g, share := range b.shares {
		offset(at)
		share = min(share, limit)
		first, end := g<<groupShift, min(s.count, (g+1)<<groupShift)
		bytes := b.keyEnds[end-1] - b.keyEnds[first] - (end-first-1)*share
		if !fixed {
			bytes += len(b.key(first)) - prefix + (end-first)*lengthBytes
		}
		at += bytes
	}
	suffixes := len(dst) - start
	length := func(n int) {
		if lengthBytes == 1 {
			dst = append(dst, byte(n))
		} else {
			dst = le.AppendUint32(dst, uint32(n))
		}
	}
	for g, share := range b.shares {
		share = min(share, limit)
		first, end := g<<groupShift, min(s.count, (g+1)<<groupShift)
		if !fixed {
			key := b.key(first)[prefix:]
			length(len(key))
			dst = append(dst, key...)
			for i := first + 1; i < end; i++ {
				length(len(b.key(i)) - share)
			}
		}
		from := b.keyEnds[first]
		for i := first + 1; i < end; i++ {
			to := b.keyEnds[i]
			dst = append(dst, b.keys[from+share:to]...)
			from = to
		}
	}
	seqnos := len(dst) - start
	seqnoBits := widthOf(s.seqnoMax - s.seqnoMin)
	dst = packAppend(dst, b.seqnos, s.seqnoMin, seqnoBits)
	values := len(dst) - start
	if s.inline > 0 {
		shape |= shapeInline
		if s.fixedValues() {
			shape |= shapeValues
		} else {
			for _, end := range b.valueEnds {
				offset(end)
			}
		}
		dst = append(dst, b.values...)
	}
	if s.addresses > 0 {
		shape |= shapeAddresses
		for i := range s.min {
			dst = le.AppendUint64(dst, s.min[i]|uint64(widthOf(s.max[i]-s.min[i]))<<56)
		}
		for i := range s.min {
			dst = packAppend(dst, b.address[i], s.min[i], widthOf(s.max[i]-s.min[i]))
		}
	}
	dst = append(dst, b.extras...)
	metas, meta := 0, byte(0)
	if s.runs == 1 {
		shape |= shapeMeta
		meta = b.metas[0]
	} else {
		metas = len(dst) - start
		for i, m := range b.metas {
			if i == 0 || m != b.metas[i-1] {
				dst = append(dst, m)
				dst = le.AppendUint16(dst, uint16(i))
			}
		}
	}
	if invariants.Enabled && len(dst)-start != total {
		panic(fmt.Sprintf("sstable: block of %d bytes was counted as %d", len(dst)-start, total))
	}

	h := dst[start:]
	le.PutUint16(h, uint16(s.count))
	h[2], h[3] = shape, groupShift
	if s.longLengths() {
		h[3] |= longLengths
	}
	if fixed {
		le.PutUint16(h[4:], uint16(s.keyFirst))
	}
	if shape&shapeValues != 0 {
		le.PutUint16(h[6:], uint16(s.valueFirst))
	}
	le.PutUint64(h[8:], s.seqnoMin|uint64(seqnoBits)<<56)
	le.PutUint16(h[16:], uint16(prefix))
	if wide {
		for i, v := range [4]int{suffixes, seqnos, values, metas} {
			le.PutUint32(h[18+4*i:], uint32(v))
		}
	} else {
		for i, v := range [4]int{suffixes, seqnos, values, metas} {
			le.PutUint16(h[18+2*i:], uint16(v))
		}
	}
	h[head-2] = meta
	return dst
}

// take appends entries [from, to) of other.
func (b *blockBuilder) take(other *blockBuilder, from, to int) {
	inline, addressed, extra := 0, 0, 0
	var e blockEntry
	for i := range to {
		e = blockEntry{key: other.key(i), seqno: other.seqnos[i], meta: other.metas[i]}
		switch e.meta & metaKind {
		case metaInline:
			start := 0
			if inline > 0 {
				start = other.valueEnds[inline-1]
			}
			e.value = other.values[start:other.valueEnds[inline]]
			inline++
		case metaAddress:
			for j := range e.address {
				e.address[j] = other.address[j][addressed]
			}
			addressed++
		}
		extras := other.extras[extra : extra+int(extraBytes[e.meta])]
		extra += len(extras)
		if i < from {
			continue
		}
		common := 0
		if i > from {
			common = lcp(other.key(i-1), e.key)
		}
		b.store(&e, common, extras)
	}
}
