package memtable

import (
	"bytes"

	"fluxkv/internal/entry"
)

// Iter walks every version of a table in the order of entry.Compare. It takes
// no lock and sees any part of what is inserted meanwhile. It is an
// entry.Iterator; versions alias the table and stay valid until its Free or
// Reset, beyond what that interface promises.
type Iter struct {
	t            *Table
	lower, upper []byte
	upperWord    uint64
	n            uint32
	v            entry.Version
}

var _ entry.Iterator = (*Iter)(nil)

// NewIter returns an iterator over the internal keys in [lower, upper); nil
// leaves a side open. The bounds are the caller's and must stay unchanged. It
// stands nowhere until First or SeekGE.
func (t *Table) NewIter(lower, upper []byte) *Iter {
	it := &Iter{t: t, lower: lower, upper: upper}
	if upper != nil {
		g := internalTarget(upper, entry.MaxSeqno)
		it.upperWord = g.word
	}
	return it
}

// First moves to the first version within the bounds.
func (it *Iter) First() bool {
	if it.lower != nil {
		return it.seek(it.lower, entry.MaxSeqno)
	}
	return it.stand(it.t.next(it.t.head, 0))
}

// SeekGE moves to the first version at or after (key, seqno) and within the
// bounds.
func (it *Iter) SeekGE(key []byte, seqno entry.Seqno) bool {
	if it.lower != nil && bytes.Compare(key, it.lower) < 0 {
		key, seqno = it.lower, entry.MaxSeqno
	}
	return it.seek(key, seqno)
}

func (it *Iter) seek(key []byte, seqno entry.Seqno) bool {
	g := internalTarget(key, seqno)
	return it.stand(it.t.seek(&g))
}

// Next moves to the following version; at the end it stays there.
func (it *Iter) Next() bool {
	if it.n == 0 {
		return false
	}
	return it.stand(it.t.next(it.n, 0))
}

func (it *Iter) stand(n uint32) bool {
	if n != 0 && it.upper != nil && it.t.word(n) >= it.upperWord &&
		bytes.Compare(it.t.key(n), it.upper) >= 0 {
		n = 0
	}
	it.n = n
	return n != 0
}

// Version returns the current version. The struct is valid until the next
// move, what it points at until the table's Free or Reset.
func (it *Iter) Version() *entry.Version {
	trailer := it.t.trailer(it.n)
	it.v.Key = it.t.key(it.n)
	it.v.Seqno, it.v.Kind = entry.Seqno(trailer>>8), entry.Kind(trailer)
	it.t.details(it.n, &it.v.Meta, &it.v.Value)
	return &it.v
}

// Error returns nil: memory does not fail.
func (it *Iter) Error() error { return nil }

// Close does nothing but end the iterator.
func (it *Iter) Close() error {
	it.n = 0
	return nil
}
