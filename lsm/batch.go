package lsm

import (
	"fmt"

	"fluxkv/internal/entry"
	"fluxkv/memtable"
)

// Seqno is a place in the store's one order of writes.
type Seqno = entry.Seqno

// Meta is what a document carries beside key and value: flags, absolute expiry
// in Unix seconds (0 = never), datatype, and an explicit CAS (0 = the seqno).
type Meta = entry.Meta

// KeyBytesMax is the longest key, in bytes.
const KeyBytesMax = 65535

// Batch is a list of operations that Apply makes durable and visible as one.
// The zero value is ready. It is not safe for concurrent use, and it keeps the
// slices it is given: key and value must not change until Apply has returned.
type Batch struct {
	ops   []operation
	first Seqno
	valid bool // applied: first is set

	// What Apply works with, kept for the next one.
	sorted   []memtable.Op
	at       []int32 // operation i is sorted[at[i]]
	stripes  []uint16
	vbuckets []uint16
	scratch  memtable.Scratch
	touched  []touched
}

// operation is one blind write.
type operation struct {
	key, value []byte
	meta       Meta
	kind       opKind
}

type opKind uint8

const (
	opSet opKind = iota
	opDelete
)

// touched is one kvstore that a batch writes to.
type touched struct {
	kvstore int
	bytes   int // of the memtable's arena
	place   uint32
	table   *table
	from    int // range in Batch.sorted
	to      int
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	clear(b.ops)
	b.ops = b.ops[:0]
	b.valid = false
}

// Set adds a blind write of a document. It fails with ErrKeySize or ErrCAS and
// then adds nothing.
func (b *Batch) Set(key, value []byte, m Meta) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if m.CAS != 0 && m.CAS <= uint64(entry.MaxSeqno) {
		return fmt.Errorf("%w: %d", ErrCAS, m.CAS)
	}
	b.ops = append(b.ops, operation{key: key, value: value, meta: m})
	return nil
}

// Delete adds a tombstone, whether the key exists or not.
func (b *Batch) Delete(key []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	b.ops = append(b.ops, operation{key: key, kind: opDelete})
	return nil
}

// Len returns the number of operations.
func (b *Batch) Len() int { return len(b.ops) }

// Bytes returns keys and values together, in bytes.
func (b *Batch) Bytes() int {
	n := 0
	for i := range b.ops {
		n += len(b.ops[i].key) + len(b.ops[i].value)
	}
	return n
}

// Seqno returns the seqno of operation i after a successful Apply. It is also
// the document's CAS unless its Meta had an explicit one.
func (b *Batch) Seqno(i int) Seqno {
	if !b.valid {
		return 0
	}
	return b.first + Seqno(i)
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > KeyBytesMax {
		return fmt.Errorf("%w: %d bytes", ErrKeySize, len(key))
	}
	return nil
}
