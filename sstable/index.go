package sstable

// indexLevel collects the blocks of one level of the index. They wait in
// memory, about 0.15 bytes an entry of the table, because they stand behind
// the filter, which is built last.
type indexLevel struct {
	target int // stored bytes of a block
	number uint64
	level  uint64
	open   blockBuilder
	prev   []byte // key of the last entry

	blobs []byte // stored blocks, one after another
	ends  []int
	// last separator of each closed block: the separator one level up
	keys   []byte
	keyEnd []int
	seqnos []uint64
}

// indexEntriesMin makes every level at most half as long as the one below,
// however long the keys are.
const indexEntriesMin = 2

// add appends the place of a block with its separator.
func (l *indexLevel) add(key []byte, seqno uint64, ref BlockRef) {
	e := blockEntry{key: key, seqno: seqno, meta: metaAddress, address: [3]uint64{l.level, ref.Offset, uint64(ref.Length)}}
	if _, ok := l.open.tryAdd(&e, lcp(l.prev, key), l.target-trailerBytes, indexEntriesMin); !ok {
		l.close()
		l.open.tryAdd(&e, 0, l.target-trailerBytes, indexEntriesMin)
	}
	l.prev = append(l.prev[:0], key...)
}

// close ends the open block.
func (l *indexLevel) close() {
	b := &l.open
	last := b.size.count - 1
	start := len(l.blobs)
	l.blobs = b.encode(l.blobs)
	l.blobs = append(l.blobs, byte(NoCompression))
	l.blobs = le.AppendUint64(l.blobs, sum64(l.number, l.blobs[start:]))
	l.ends = append(l.ends, len(l.blobs))
	l.keys = append(l.keys, b.key(last)...)
	l.keyEnd = append(l.keyEnd, len(l.keys))
	l.seqnos = append(l.seqnos, b.seqnos[last])
	b.reset()
}

// block returns closed block i, its last separator and that one's seqno.
func (l *indexLevel) block(i int) (stored, key []byte, seqno uint64) {
	from, keyFrom := 0, 0
	if i > 0 {
		from, keyFrom = l.ends[i-1], l.keyEnd[i-1]
	}
	return l.blobs[from:l.ends[i]], l.keys[keyFrom:l.keyEnd[i]], l.seqnos[i]
}

// bytes is what the level takes in the file, the page rule aside.
func (l *indexLevel) bytes() int {
	n := len(l.blobs)
	if l.open.size.count > 0 {
		open, _ := l.open.payloadBytes(&l.open.size)
		n += open + trailerBytes
	}
	return n
}
