package wal

import (
	"fmt"
	"iter"
	"math/bits"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
)

// Seqno index, little-endian:
//
//	 0  count          uint32
//	 4  seqnoLowBits   uint8
//	 5  offsetLowBits  uint8
//	 6  zero           uint16
//	 8  first          uint64
//	16  last           uint64
//	24  firstOffset    uint32
//	28  lastOffset     uint32
//	32  seqno low bits, seqno high bits, offset low bits, offset high bits:
//	    words of uint64
//
// The words are two Elias-Fano sequences, of seqno - first and of offset -
// firstOffset: the low bits are packed one after another, the high bits are a
// bitmap with a one at (value >> lowBits) + i for value i.
const indexHeadBytes = 32

// MaxIndexDocs bounds the documents of one index; a segment below 4 GiB
// cannot hold more.
const MaxIndexDocs = MaxSegmentBytes / documentBytesMin

// IndexBuilder collects the separated documents of one segment in the order
// of the log. It is not safe for concurrent use.
type IndexBuilder struct {
	seqnos  []entry.Seqno
	offsets []uint32
}

// NewIndexBuilder returns a builder with room for docs documents.
func NewIndexBuilder(docs int) *IndexBuilder {
	return &IndexBuilder{seqnos: make([]entry.Seqno, 0, docs), offsets: make([]uint32, 0, docs)}
}

// Add notes that the document of seqno starts at offset of the segment. Both
// must be above those of the call before.
func (b *IndexBuilder) Add(seqno entry.Seqno, offset uint32) {
	if n := len(b.seqnos); invariants.Enabled && n > 0 && (b.seqnos[n-1] >= seqno || b.offsets[n-1] >= offset) {
		panic(fmt.Sprintf("wal: index order: %d at %d, then %d at %d", b.seqnos[n-1], b.offsets[n-1], seqno, offset))
	}
	b.seqnos = append(b.seqnos, seqno)
	b.offsets = append(b.offsets, offset)
}

// Len returns the number of documents.
func (b *IndexBuilder) Len() int { return len(b.seqnos) }

// Encode appends the index to dst; about 2 bytes a document.
func (b *IndexBuilder) Encode(dst []byte) []byte {
	n := len(b.seqnos)
	head := make([]byte, indexHeadBytes)
	if n == 0 {
		return append(dst, head...)
	}
	first, last := b.seqnos[0], b.seqnos[n-1]
	firstOffset, lastOffset := b.offsets[0], b.offsets[n-1]
	seqnos := shapeOf(n, uint64(last-first))
	offsets := shapeOf(n, uint64(lastOffset-firstOffset))
	le.PutUint32(head[0:], uint32(n))
	head[4], head[5] = byte(seqnos.lowBits), byte(offsets.lowBits)
	le.PutUint64(head[8:], uint64(first))
	le.PutUint64(head[16:], uint64(last))
	le.PutUint32(head[24:], firstOffset)
	le.PutUint32(head[28:], lastOffset)
	dst = append(dst, head...)

	words := make([]uint64, max(seqnos.words(), offsets.words()))
	seqnos.encode(words, func(i int) uint64 { return uint64(b.seqnos[i] - first) })
	dst = appendWords(dst, words[:seqnos.words()])
	clear(words)
	offsets.encode(words, func(i int) uint64 { return uint64(b.offsets[i] - firstOffset) })
	return appendWords(dst, words[:offsets.words()])
}

func appendWords(dst []byte, words []uint64) []byte {
	for _, w := range words {
		dst = le.AppendUint64(dst, w)
	}
	return dst
}

// shape is how one Elias-Fano sequence is laid out; it follows from the
// number of values and the highest one.
type shape struct {
	count     int
	lowBits   uint
	lowWords  int
	highBits  int
	highWords int
}

func shapeOf(count int, highest uint64) shape {
	s := shape{count: count}
	if q := highest / uint64(count); q > 1 {
		s.lowBits = uint(bits.Len64(q) - 1)
	}
	s.lowWords = (count*int(s.lowBits) + 63) / 64
	// highest >> lowBits is below 2 x count: the bitmap has at most 3 bits a value.
	s.highBits = count + int(highest>>s.lowBits) + 1
	s.highWords = (s.highBits + 63) / 64
	return s
}

func (s *shape) words() int { return s.lowWords + s.highWords }

func (s *shape) encode(words []uint64, value func(i int) uint64) {
	low, high := words[:s.lowWords], words[s.lowWords:s.words()]
	mask := uint64(1)<<s.lowBits - 1
	for i := range s.count {
		v := value(i)
		if s.lowBits > 0 {
			at := uint(i) * s.lowBits
			low[at/64] |= (v & mask) << (at % 64)
			if at%64+s.lowBits > 64 {
				low[at/64+1] |= (v & mask) >> (64 - at%64)
			}
		}
		bit := uint(v>>s.lowBits) + uint(i)
		high[bit/64] |= 1 << (bit % 64)
	}
}

// selectStep: one position is kept for so many ones (or zeros) of a bitmap;
// 256 keep the directory at an eighth of a bit a value and a search within a
// few cache lines.
const selectStep = 256

// sequence is one decoded Elias-Fano sequence.
type sequence struct {
	shape
	low, high []uint64
	ones      []uint32 // position of every selectStep-th one
	zeros     []uint32 // position of every selectStep-th zero
}

// lowOf returns the low bits of value i.
func (s *sequence) lowOf(i int) uint64 {
	if s.lowBits == 0 {
		return 0
	}
	at := uint(i) * s.lowBits
	v := s.low[at/64] >> (at % 64)
	if at%64+s.lowBits > 64 {
		v |= s.low[at/64+1] << (64 - at%64)
	}
	return v & (1<<s.lowBits - 1)
}

// value returns value i.
func (s *sequence) value(i int) uint64 {
	bit := selectBit(s.high, s.ones, i, 0)
	return uint64(bit-i)<<s.lowBits | s.lowOf(i)
}

// find returns the place of v in a rising sequence.
func (s *sequence) find(v uint64) (i int, ok bool) {
	high, low := v>>s.lowBits, v&(1<<s.lowBits-1)
	if high > uint64(s.highBits-s.count) {
		return 0, false
	}
	bit := 0
	if high > 0 {
		// Values of this high part follow the zero that ends the one before.
		bit = selectBit(s.high, s.zeros, int(high)-1, ^uint64(0)) + 1
	}
	for i = bit - int(high); bit < s.highBits && s.high[bit/64]>>(bit%64)&1 != 0; bit++ {
		if l := s.lowOf(i); l >= low {
			return i, l == low
		}
		i++
	}
	return 0, false
}

// selectBit returns the position of one number k of words^flip (from 0); there
// must be so many. samples has the position of every selectStep-th.
func selectBit(words []uint64, samples []uint32, k int, flip uint64) int {
	at := int(samples[k/selectStep])
	left := k % selectStep
	word := (words[at/64] ^ flip) &^ (1<<(at%64) - 1)
	for w := at / 64; ; {
		n := bits.OnesCount64(word)
		if left < n {
			return w*64 + selectInWord(word, left)
		}
		left -= n
		w++
		word = words[w] ^ flip
	}
}

// decode takes the words of a sequence from b and checks them: as many ones
// as values, nothing behind the end, the highest value where it was declared.
func (s *sequence) decode(b []byte) ([]byte, bool) {
	all := make([]uint64, s.words())
	for i := range all {
		all[i] = le.Uint64(b[8*i:])
	}
	s.low, s.high = all[:s.lowWords:s.lowWords], all[s.lowWords:]
	ones, zeros := 0, 0
	for w, word := range s.high {
		valid := ^uint64(0)
		if rest := s.highBits - w*64; rest < 64 {
			valid = 1<<rest - 1
		}
		if word&^valid != 0 {
			return nil, false
		}
		ones = sample(&s.ones, word, w*64, ones)
		zeros = sample(&s.zeros, ^word&valid, w*64, zeros)
	}
	if ones != s.count {
		return nil, false
	}
	if used := uint(s.count) * s.lowBits % 64; used > 0 && s.low[s.lowWords-1]>>used != 0 {
		return nil, false
	}
	return b[8*s.words():], true
}

// sample notes where the ones of word whose number is a multiple of selectStep
// stand, given that seen were before it, and returns how many there are now.
func sample(samples *[]uint32, word uint64, at, seen int) int {
	n := bits.OnesCount64(word)
	if next := len(*samples) * selectStep; next < seen+n {
		*samples = append(*samples, uint32(at+selectInWord(word, next-seen)))
	}
	return seen + n // a word has no more than one: 64 < selectStep
}

// selectInWord returns the position of one number k of word (from 0).
func selectInWord(word uint64, k int) int {
	for ; k > 0; k-- {
		word &= word - 1
	}
	return bits.TrailingZeros64(word)
}

// SeqnoIndex tells exactly which separated documents a segment holds, and
// where. It is immutable and safe for concurrent use.
type SeqnoIndex struct {
	first, last entry.Seqno
	firstOffset uint32
	seqnos      sequence
	offsets     sequence
}

// DecodeIndex reads an index that fills b and copies what it keeps. b comes
// from the disk: its sum should have been checked, its lengths and order are
// checked here, before anything is allocated by them. The error is a
// *CorruptError without a file name.
func DecodeIndex(b []byte) (*SeqnoIndex, error) {
	if len(b) < indexHeadBytes {
		return nil, corrupt("", 0, "seqno index: %d bytes, want %d or more", len(b), indexHeadBytes)
	}
	count := le.Uint32(b)
	x := &SeqnoIndex{
		first:       entry.Seqno(le.Uint64(b[8:])),
		last:        entry.Seqno(le.Uint64(b[16:])),
		firstOffset: le.Uint32(b[24:]),
	}
	lastOffset := le.Uint32(b[28:])
	if count == 0 {
		if len(b) != indexHeadBytes || !isZero(b) {
			return nil, corrupt("", 0, "seqno index: no documents but %d bytes", len(b))
		}
		return x, nil
	}
	words := (len(b) - indexHeadBytes) / 8
	if uint64(count) > uint64(words)*64 || count > MaxIndexDocs {
		return nil, corrupt("", 0, "seqno index: %d documents in %d bytes", count, len(b))
	}
	if x.first == 0 || x.last < x.first || x.last > entry.MaxSeqno || lastOffset < x.firstOffset {
		return nil, corrupt("", 8, "seqno index: seqnos %d to %d, offsets %d to %d", x.first, x.last, x.firstOffset, lastOffset)
	}
	x.seqnos.shape = shapeOf(int(count), uint64(x.last-x.first))
	x.offsets.shape = shapeOf(int(count), uint64(lastOffset-x.firstOffset))
	if uint(b[4]) != x.seqnos.lowBits || uint(b[5]) != x.offsets.lowBits || b[6] != 0 || b[7] != 0 {
		return nil, corrupt("", 4, "seqno index: widths %d and %d, want %d and %d", b[4], b[5], x.seqnos.lowBits, x.offsets.lowBits)
	}
	if want := indexHeadBytes + 8*(x.seqnos.words()+x.offsets.words()); len(b) != want {
		return nil, corrupt("", 0, "seqno index: %d bytes, want %d", len(b), want)
	}
	rest, ok := x.seqnos.decode(b[indexHeadBytes:])
	if ok {
		_, ok = x.offsets.decode(rest)
	}
	if !ok {
		return nil, corrupt("", indexHeadBytes, "seqno index: bits do not add up")
	}
	n := -1
	lastSeqno, lastOff := x.first, x.firstOffset
	for seqno, offset := range x.All() {
		n++
		if n == 0 && (seqno != x.first || offset != x.firstOffset) || n > 0 && (seqno <= lastSeqno || offset <= lastOff) {
			return nil, corrupt("", indexHeadBytes, "seqno index: document %d out of order", n)
		}
		lastSeqno, lastOff = seqno, offset
	}
	if lastSeqno != x.last || lastOff != lastOffset {
		return nil, corrupt("", indexHeadBytes, "seqno index: ends at %d, declares %d", lastSeqno, x.last)
	}
	return x, nil
}

func isZero(b []byte) bool {
	for len(b) >= 8 {
		if le.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Len returns the number of documents.
func (x *SeqnoIndex) Len() int { return x.seqnos.count }

// Lookup returns where the document of seqno starts in the segment; ok is
// false when the segment holds no separated document of that seqno.
func (x *SeqnoIndex) Lookup(seqno entry.Seqno) (offset uint32, ok bool) {
	if x.seqnos.count == 0 || seqno < x.first || seqno > x.last {
		return 0, false
	}
	i, ok := x.seqnos.find(uint64(seqno - x.first))
	if !ok {
		return 0, false
	}
	return x.firstOffset + uint32(x.offsets.value(i)), true
}

// All walks the documents in order.
func (x *SeqnoIndex) All() iter.Seq2[entry.Seqno, uint32] {
	return func(yield func(entry.Seqno, uint32) bool) {
		seqnos, offsets := x.seqnos.bits(), x.offsets.bits()
		for i := range x.seqnos.count {
			seqno := uint64(seqnos.next()-i)<<x.seqnos.lowBits | x.seqnos.lowOf(i)
			offset := uint64(offsets.next()-i)<<x.offsets.lowBits | x.offsets.lowOf(i)
			if !yield(x.first+entry.Seqno(seqno), x.firstOffset+uint32(offset)) {
				return
			}
		}
	}
}

// bitWalk finds the ones of a bitmap one after another.
type bitWalk struct {
	words []uint64
	at    int
	word  uint64
}

func (s *sequence) bits() bitWalk {
	if len(s.high) == 0 {
		return bitWalk{}
	}
	return bitWalk{words: s.high, word: s.high[0]}
}

func (w *bitWalk) next() int {
	for w.word == 0 {
		w.at++
		w.word = w.words[w.at]
	}
	bit := w.at*64 + bits.TrailingZeros64(w.word)
	w.word &= w.word - 1
	return bit
}
