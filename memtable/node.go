package memtable

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"fluxkv/internal/entry"
)

// A node, at a multiple of 4 bytes. Numbers are in the machine's byte order: a
// memtable never leaves the process.
//
//	-4*height  tower       [height]u32  level 0 next to the header; 0 = end
//	 0         seqno       u56 << 8 | kind u8
//	 8         keyBytes    u16          of the user key
//	10         height      u8
//	11         flags       u8           which of the following are present
//	12         valueBytes  u32
//	16         vbucket     u16, big-endian; key; zeros up to 8 bytes
//	           cas u64 | flags u32 | expiry u32 | datatype u8   if present
//	           segment u32, offset u32, length u32              if present
//	           value
//
// The internal key is padded to 8 bytes so that its first word can be compared
// without a mask and without reading a neighbour's bytes.
const (
	nodeTrailer    = 0
	nodeKeyBytes   = 8
	nodeHeight     = 10
	nodeFlags      = 11
	nodeValueBytes = 12
	nodeKey        = 16

	linkBytes    = 4
	wordBytes    = 8
	addressBytes = 12
	nodeAlign    = 4
)

// Flags of a node. The low four index metaBytes.
const (
	flagCAS uint8 = 1 << iota
	flagFlags
	flagExpiry
	flagDatatype
	flagAddress
	flagValue

	flagMeta = flagCAS | flagFlags | flagExpiry | flagDatatype
)

// metaBytes is the length of the meta fields that the low four flags announce.
var metaBytes = func() (n [flagMeta + 1]uint8) {
	for f := range n {
		n[f] = uint8(f&1)*8 + uint8(f>>1&1)*4 + uint8(f>>2&1)*4 + uint8(f>>3&1)
	}
	return n
}()

// HeightMax is the greatest height of a node. With one node in four reaching
// the next level, 14 levels serve 4^14 = 268 million nodes, and 4 GiB hold 150
// million of the smallest.
const HeightMax = 14

// RandomHeight draws the height of a node, 1..HeightMax, one in four reaching
// each next level. *rnd is the generator's state and must not be 0 at the start.
func RandomHeight(rnd *uint64) uint8 {
	// xorshift64: the towers need no better and it costs a nanosecond.
	x := *rnd
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*rnd = x
	return uint8(1 + bits.TrailingZeros64(x>>16|1<<(2*(HeightMax-1)))/2)
}

// NodeBytes returns exactly how many bytes of the arena a node takes, its
// padding included: the sum over a batch is what Reserve is asked for. keyBytes
// counts the user key. A value that is absent counts 0 bytes.
func NodeBytes(height uint8, keyBytes int, m entry.Meta, valueBytes int, hasAddress bool) int {
	n := int(height)*linkBytes + nodeKey + max(entry.VBucketBytes+keyBytes, wordBytes) +
		int(metaBytes[metaFlags(&m)]) + valueBytes
	if hasAddress {
		n += addressBytes
	}
	return (n + nodeAlign - 1) &^ (nodeAlign - 1)
}

func metaFlags(m *entry.Meta) (f uint8) {
	if m.CAS != 0 {
		f |= flagCAS
	}
	if m.Flags != 0 {
		f |= flagFlags
	}
	if m.Expiry != 0 {
		f |= flagExpiry
	}
	if m.Datatype != 0 {
		f |= flagDatatype
	}
	return f
}

// nodes reads nodes by their offset. It is the address of the arena's first
// byte. Offsets come from links and index slots only, which hold nothing but
// nodes that putNode wrote inside the arena, so reads are not checked again.
type nodes struct{ base unsafe.Pointer }

func (a nodes) at(off int) unsafe.Pointer { return unsafe.Add(a.base, off) }

func (a nodes) link(n uint32, level int) *uint32 {
	return (*uint32)(a.at(int(n) - linkBytes*(level+1)))
}

func (a nodes) next(n uint32, level int) uint32 { return atomic.LoadUint32(a.link(n, level)) }

func (a nodes) trailer(n uint32) uint64 { return *(*uint64)(a.at(int(n) + nodeTrailer)) }

func (a nodes) seqno(n uint32) entry.Seqno { return entry.Seqno(a.trailer(n) >> 8) }

// keyBytes returns the length of the internal key.
func (a nodes) keyBytes(n uint32) int {
	return int(*(*uint16)(a.at(int(n) + nodeKeyBytes))) + entry.VBucketBytes
}

func (a nodes) height(n uint32) uint8 { return *(*uint8)(a.at(int(n) + nodeHeight)) }

// word returns the first 8 bytes of the internal key as one number that sorts
// like them; a shorter key is padded with zeros.
func (a nodes) word(n uint32) uint64 { return a.wordAt(int(n) + nodeKey) }

func (a nodes) wordAt(off int) uint64 {
	return binary.BigEndian.Uint64((*[wordBytes]byte)(a.at(off))[:])
}

// key returns the internal key; it aliases the arena.
func (a nodes) key(n uint32) []byte {
	return a.slice(int(n)+nodeKey, a.keyBytes(n))
}

func (a nodes) slice(off, n int) []byte {
	return unsafe.Slice((*byte)(a.at(off)), n)[:n:n]
}

// compare orders two nodes like entry.Compare.
func (a nodes) compare(x, y uint32) int {
	return entry.Compare(a.key(x), a.seqno(x), a.key(y), a.seqno(y))
}

// details reads what follows the key: meta, address and value.
func (a nodes) details(n uint32, m *entry.Meta, v *entry.Value) {
	f := *(*uint8)(a.at(int(n) + nodeFlags))
	p := int(n) + nodeKey + max(a.keyBytes(n), wordBytes)
	*m = entry.Meta{}
	if f&flagMeta != 0 {
		if f&flagCAS != 0 {
			m.CAS = *(*uint64)(a.at(p))
			p += 8
		}
		if f&flagFlags != 0 {
			m.Flags = *(*uint32)(a.at(p))
			p += 4
		}
		if f&flagExpiry != 0 {
			m.Expiry = *(*uint32)(a.at(p))
			p += 4
		}
		if f&flagDatatype != 0 {
			m.Datatype = *(*uint8)(a.at(p))
			p++
		}
	}
	*v = entry.Value{}
	if f&flagAddress != 0 {
		v.Address = entry.Address{
			Segment: entry.SegmentID(*(*uint32)(a.at(p))),
			Offset:  *(*uint32)(a.at(p + 4)),
			Length:  *(*uint32)(a.at(p + 8)),
		}
		p += addressBytes
	}
	if f&flagValue != 0 {
		v.HasBytes = true
		v.Bytes = a.slice(p, int(*(*uint32)(a.at(int(n) + nodeValueBytes))))
	}
}

// putNode writes op's node at place, every byte of it but the tower, which
// linking fills. It returns the node's offset and the end of its place.
func putNode(arena []byte, place uint32, op *Op, height uint8) (n, end uint32) {
	// Slicing once checks the bounds of everything written below.
	mf := metaFlags(&op.Meta)
	hasAddress := !op.Address.IsZero()
	value := op.Value
	if !op.HasValue {
		value = nil
	}
	size := NodeBytes(height, len(op.Key), op.Meta, len(value), hasAddress)
	tower := int(height) * linkBytes
	b := arena[place:][:size:size]
	b = b[tower:]
	f := mf
	if hasAddress {
		f |= flagAddress
	}
	if op.HasValue {
		f |= flagValue
	}
	ne := binary.NativeEndian
	ne.PutUint64(b[nodeTrailer:], uint64(op.Seqno)<<8|uint64(op.Kind))
	ne.PutUint16(b[nodeKeyBytes:], uint16(len(op.Key)))
	b[nodeHeight] = height
	b[nodeFlags] = f
	ne.PutUint32(b[nodeValueBytes:], uint32(len(value)))
	ne.PutUint64(b[nodeKey:], 0)
	binary.BigEndian.PutUint16(b[nodeKey:], op.VBucket)
	copy(b[nodeKey+entry.VBucketBytes:], op.Key)
	b = b[nodeKey+max(entry.VBucketBytes+len(op.Key), wordBytes):]
	if mf != 0 {
		if mf&flagCAS != 0 {
			ne.PutUint64(b, op.Meta.CAS)
			b = b[8:]
		}
		if mf&flagFlags != 0 {
			ne.PutUint32(b, op.Meta.Flags)
			b = b[4:]
		}
		if mf&flagExpiry != 0 {
			ne.PutUint32(b, op.Meta.Expiry)
			b = b[4:]
		}
		if mf&flagDatatype != 0 {
			b[0] = op.Meta.Datatype
			b = b[1:]
		}
	}
	if hasAddress {
		ne.PutUint32(b, uint32(op.Address.Segment))
		ne.PutUint32(b[4:], op.Address.Offset)
		ne.PutUint32(b[8:], op.Address.Length)
		b = b[addressBytes:]
	}
	copy(b, value)
	return place + uint32(tower), place + uint32(size)
}

// target is what a search looks for: a place in the order of entry.Compare. The
// key is held so that most compares are one or two words.
type target struct {
	word     uint64 // first 8 bytes of the internal key, padded with zeros
	tail     uint64 // its last 8 bytes, if it has 9..16
	rest     []byte // what follows the first 8 bytes; not owned
	keyBytes int    // length of the internal key
	seqno    entry.Seqno
}

// target of (vbucket, key, seqno), without joining vbucket and key.
func makeTarget(vbucket uint16, key []byte, seqno entry.Seqno) target {
	g := target{keyBytes: entry.VBucketBytes + len(key), seqno: seqno}
	if len(key) >= wordBytes {
		g.word = uint64(vbucket)<<48 | binary.BigEndian.Uint64(key)>>16
		g.rest = key[wordBytes-entry.VBucketBytes:]
		g.tail = binary.BigEndian.Uint64(key[len(key)-wordBytes:])
		return g
	}
	g.word = uint64(vbucket) << 48
	var last byte
	for i, c := range key {
		if i == wordBytes-entry.VBucketBytes {
			last = c
			g.rest = key[i:]
			break
		}
		g.word |= uint64(c) << (40 - 8*i)
	}
	g.tail = g.word<<8 | uint64(last) // used with exactly 9 bytes
	return g
}

// internalTarget is the target of an internal key, which may be a bare prefix
// and even empty: bounds of iterators are.
func internalTarget(key []byte, seqno entry.Seqno) target {
	g := target{keyBytes: len(key), seqno: seqno}
	if len(key) >= wordBytes {
		g.word = binary.BigEndian.Uint64(key)
		g.rest = key[wordBytes:]
		g.tail = binary.BigEndian.Uint64(key[len(key)-wordBytes:])
		return g
	}
	for i, c := range key {
		g.word |= uint64(c) << (56 - 8*i)
	}
	return g
}

// nodeTarget is the place of a node that is already written.
func (a nodes) target(n uint32) target {
	kb := a.keyBytes(n)
	g := target{word: a.word(n), keyBytes: kb, seqno: a.seqno(n)}
	if kb > wordBytes {
		g.rest = a.slice(int(n)+nodeKey+wordBytes, kb-wordBytes)
		g.tail = a.wordAt(int(n) + nodeKey + kb - wordBytes)
	}
	return g
}

// after reports whether g lies behind node n, whose first word is word.
func (g *target) after(a nodes, n uint32, word uint64) bool {
	if word != g.word {
		return word < g.word
	}
	return g.afterSameWord(a, n)
}

func (g *target) afterSameWord(a nodes, n uint32) bool {
	kb := a.keyBytes(n)
	switch {
	case kb <= wordBytes || g.keyBytes <= wordBytes:
		// The words are padded with zeros, so the shorter key is a prefix of
		// the longer one.
		if kb != g.keyBytes {
			return kb < g.keyBytes
		}
	case kb == g.keyBytes && kb <= 2*wordBytes:
		// The last words overlap the first ones, which are equal.
		if w := a.wordAt(int(n) + nodeKey + kb - wordBytes); w != g.tail {
			return w < g.tail
		}
	default:
		if c := bytes.Compare(a.slice(int(n)+nodeKey+wordBytes, kb-wordBytes), g.rest); c != 0 {
			return c < 0
		}
	}
	return a.seqno(n) > g.seqno
}

// sameKey reports whether node n is a version of g's key.
func (g *target) sameKey(a nodes, n uint32) bool {
	if a.word(n) != g.word || a.keyBytes(n) != g.keyBytes {
		return false
	}
	switch kb := g.keyBytes; {
	case kb <= wordBytes:
		return true
	case kb <= 2*wordBytes:
		return a.wordAt(int(n)+nodeKey+kb-wordBytes) == g.tail
	default:
		return bytes.Equal(a.slice(int(n)+nodeKey+wordBytes, kb-wordBytes), g.rest)
	}
}
