package sstable

import (
	"bytes"
	"errors"

	"fluxkv/internal/entry"
)

// IterOptions bound an iterator. The slices are kept until Close.
type IterOptions struct {
	Lower []byte // internal key, inclusive; nil: from the start
	Upper []byte // internal key, exclusive; nil: to the end
	// ReadAheadBytes is how much is read at once when blocks are taken one
	// after another, at most 4 MiB: whole blocks that are not above Upper.
	// The first read after a seek is one block, every following one twice the
	// last, so that short scans read little. Default: one block at a time.
	// Blocks that share a page are always read together.
	ReadAheadBytes int
}

// indexPos is a place in one level of the index.
type indexPos struct {
	b   block
	c   columns
	i   int
	buf Buffer
}

// Iter is an entry.Iterator over the versions of a table. Until Close it holds
// up to ReadAheadBytes, a block, and one for each level of the index that is
// not pinned.
type Iter struct {
	r       *Reader
	o       IterOptions
	index   []indexPos // by level; the last is the root
	data    cursor
	limit   int // entries of the block below Upper
	ahead   window
	version entry.Version
	err     error
	closed  bool
}

var _ entry.Iterator = (*Iter)(nil)

var errIterClosed = errors.New("sstable: iterator is closed")

// NewIter returns an iterator that stands nowhere yet. The Reader must not be
// closed before it.
func (r *Reader) NewIter(o IterOptions) *Iter {
	return &Iter{r: r, o: o, index: make([]indexPos, r.props.IndexLevels), ahead: window{max: min(o.ReadAheadBytes, readAheadMax)}}
}

// First moves to the first version in bounds.
func (it *Iter) First() bool { return it.SeekGE(nil, entry.MaxSeqno) }

// SeekGE moves to the first version in bounds at or after (key, seqno).
func (it *Iter) SeekGE(key []byte, seqno entry.Seqno) bool {
	if it.closed {
		return it.fail(errIterClosed)
	}
	it.err = nil
	if it.o.Lower != nil && bytes.Compare(key, it.o.Lower) < 0 {
		key, seqno = it.o.Lower, entry.MaxSeqno
	}
	top := len(it.index) - 1
	if err := it.index[top].take(it.r, it.r.foot.root, it.r.base); err != nil {
		return it.fail(err)
	}
	for level := top; ; level-- {
		p := &it.index[level]
		p.i, _ = p.b.seek(key, seqno)
		if p.i == p.b.count {
			if level < top {
				return it.fail(corrupt(it.r.file.Name(), 0, "index block of level %d ends before the separator above it", level))
			}
			it.limit, it.data.i = 0, 0
			return false
		}
		if level == 0 {
			break
		}
		if err := it.down(level); err != nil {
			return it.fail(err)
		}
	}
	if err := it.loadData(); err != nil {
		return it.fail(err)
	}
	i, _ := it.data.b.seek(key, seqno)
	it.data.set(i)
	return it.settle()
}

// Next moves to the following version in bounds.
func (it *Iter) Next() bool {
	if it.err != nil || it.data.i >= it.limit {
		return false
	}
	it.data.next()
	if it.data.i < it.limit {
		it.data.version(&it.version)
		return true
	}
	return it.settle()
}

// settle goes on to the next block while the current one is used up.
func (it *Iter) settle() bool {
	for it.data.i >= it.limit {
		if it.limit < it.data.b.count {
			return false // Upper
		}
		ok, err := it.nextBlock()
		if err != nil {
			return it.fail(err)
		}
		if !ok {
			return false
		}
		it.data.set(0)
	}
	it.data.version(&it.version)
	return true
}

// nextBlock loads the data block behind the current one.
func (it *Iter) nextBlock() (ok bool, err error) {
	level := 0
	for it.index[level].i+1 >= it.index[level].b.count {
		if level++; level == len(it.index) {
			return false, nil
		}
	}
	it.index[level].i++
	for ; level > 0; level-- {
		if err := it.down(level); err != nil {
			return false, err
		}
		it.index[level-1].i = 0
	}
	return true, it.loadData()
}

// down loads the index block that level points to.
func (it *Iter) down(level int) error {
	p, below := &it.index[level], &it.index[level-1]
	ref, err := it.r.child(&p.b, &p.c, p.i, level)
	if err != nil {
		return err
	}
	data := it.r.pinned(ref)
	if data == nil {
		if data, err = it.r.load(ref, &below.buf); err != nil {
			return err
		}
	}
	return below.take(it.r, ref, data)
}

func (p *indexPos) take(r *Reader, ref BlockRef, data []byte) error {
	err := p.b.parse(data)
	if err == nil {
		err = p.b.columns(&p.c)
	}
	if err != nil {
		return corrupt(r.file.Name(), int64(ref.Offset), "index block: %v", err)
	}
	return nil
}

func (it *Iter) loadData() error {
	p := &it.index[0]
	ref, err := it.r.child(&p.b, &p.c, p.i, 0)
	if err != nil {
		return err
	}
	if !it.ahead.has(ref) {
		last := p.b.count - 1
		if it.o.Upper != nil {
			// The first separator at or above Upper ends the last block with
			// a key below it.
			i, _ := p.b.seek(it.o.Upper, entry.MaxSeqno)
			last = min(last, i)
		}
		if err := it.ahead.read(it.r, ref, &p.b, &p.c, p.i, last); err != nil {
			return err
		}
	}
	data, err := it.ahead.block(it.r, ref)
	if err != nil {
		return err
	}
	if err := it.data.load(data); err != nil {
		return corrupt(it.r.file.Name(), int64(ref.Offset), "data block: %v", err)
	}
	it.limit = it.data.b.count
	if it.o.Upper != nil {
		it.limit, _ = it.data.b.seek(it.o.Upper, entry.MaxSeqno)
	}
	return nil
}

func (it *Iter) fail(err error) bool {
	it.err = err
	it.limit, it.data.i = 0, 0
	return false
}

// Version returns the current version. Its slices are valid until the next
// move or Close.
func (it *Iter) Version() *entry.Version { return &it.version }

// Error returns what stopped the iterator, nil at a plain end.
func (it *Iter) Error() error { return it.err }

// Close gives the iterator's memory back.
func (it *Iter) Close() error {
	if it.closed {
		return nil
	}
	it.closed = true
	it.fail(errIterClosed)
	it.err = nil
	for i := range it.index {
		it.index[i].buf.Free()
	}
	it.ahead.free()
	// What pointed into that memory must not be followed by mistake.
	it.index, it.data, it.version = nil, cursor{}, entry.Version{}
	return nil
}
