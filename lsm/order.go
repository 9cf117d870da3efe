package lsm

import (
	"bytes"

	"fluxkv/internal/entry"
	"fluxkv/internal/iter"
	"fluxkv/internal/mutant"
	"fluxkv/sstable"
)

// visible returns an iterator over the documents that a reader of it sees in
// one kvstore of a view, for internal keys from lower on and below upper; nil:
// all.
func (it *Iterator) visible(v *view, kvstore int, lower, upper []byte) *iter.Visible {
	it.cursors++
	var sources []entry.Iterator
	for _, t := range v.tables[kvstore] {
		sources = append(sources, t.NewIter(nil, upper))
	}
	// Every source of every cursor holds what it reads ahead.
	ahead := scanAheadBytes
	if it.cursors > scanCursorsMax {
		ahead = 0
	}
	for _, r := range v.version.runs[kvstore] {
		sources = append(sources, r.newIter(sstable.IterOptions{Lower: lower, Upper: upper, ReadAheadBytes: ahead}))
	}
	src := sources[0]
	if len(sources) > 1 {
		src = iter.NewMerge(sources...)
	}
	return iter.NewVisible(src, iter.VisibleOptions{At: it.at, Clear: v.clearFor(it.at), Expired: it.expired})
}

// scanAheadBytes bounds what an iterator reads ahead in each run, when it has no
// more than scanCursorsMax cursors over them.
const (
	scanAheadBytes = 64 * kib
	scanCursorsMax = 32
)

// newIter walks all versions of a run. Tables are open while it stands in them.
func (r *run) newIter(o sstable.IterOptions) entry.Iterator {
	files := r.between(o.Lower, o.Upper)
	parts := make([]iter.Part, len(files))
	for i, f := range files {
		parts[i] = iter.Part{Smallest: f.meta.Smallest, Largest: f.meta.Largest, Open: func() (entry.Iterator, error) {
			rd, err := f.handle.Acquire()
			if err != nil {
				return nil, err
			}
			return &tableIter{rd.NewIter(o), f.handle}, nil
		}}
	}
	return iter.NewConcat(parts)
}

// tableIter gives its table back when it is closed.
type tableIter struct {
	*sstable.Iter
	handle *sstable.Handle
}

func (t *tableIter) Close() error {
	err := t.Iter.Close()
	t.handle.Release()
	return err
}

// byVBucket is the order of one kvstore: (vbucket, key), without the keys of
// each vbucket that are out of bounds.
type byVBucket struct {
	db           *DB
	src          *iter.Visible
	lower, upper []byte // user keys
	target       []byte
}

func newByVBucket(db *DB, v *view, it *Iterator, kvstore int, lower, upper []byte) *byVBucket {
	return &byVBucket{db: db, src: it.visible(v, kvstore, nil, nil), lower: lower, upper: upper}
}

// seek moves to (vbucket of key, key), or to the first document for nil.
func (w *byVBucket) seek(key []byte) bool {
	if key == nil {
		return w.seekIn(0, w.lower)
	}
	vb := uint16(0)
	if len(key) > 0 {
		vb = w.db.vbucket(key)
	}
	return w.seekIn(vb, key)
}

// seekIn moves to the first document at or after (vbucket, key).
func (w *byVBucket) seekIn(vbucket uint16, key []byte) bool {
	return w.settle(w.jump(vbucket, key))
}

func (w *byVBucket) jump(vbucket uint16, key []byte) bool {
	w.target = entry.AppendKey(w.target[:0], vbucket, key)
	return w.src.SeekGE(w.target, entry.MaxSeqno)
}

// settle jumps over keys out of bounds: one seek for each vbucket at most. A
// vbucket is at most 32767, so the one after it can be named.
func (w *byVBucket) settle(ok bool) bool {
	for ok {
		vb, key := entry.SplitKey(w.src.Version().Key)
		switch {
		case bytes.Compare(key, w.lower) < 0:
			ok = w.jump(vb, w.lower)
		case w.upper != nil && bytes.Compare(key, w.upper) >= 0:
			ok = w.jump(vb+1, w.lower)
		default:
			return true
		}
	}
	return false
}

func (w *byVBucket) next() bool              { return w.settle(w.src.Next()) }
func (w *byVBucket) version() *entry.Version { return w.src.Version() }
func (w *byVBucket) err() error              { return w.db.scanError(w.src.Error()) }
func (w *byVBucket) close()                  { _ = w.src.Close() }

// scanError gives an error of a scan the names that callers know.
func (db *DB) scanError(err error) error {
	if err == nil || mutant.ScanSkipsErrors {
		return nil
	}
	return db.tableError(err)
}

// byKey is the order of keys over the whole store. Neighbours in this order are
// spread over all vbuckets, so it merges one cursor for each vbucket that has
// a document in the range; the others are passed by one walk over each
// kvstore that jumps from vbucket to vbucket.
type byKey struct {
	db      *DB
	v       *view
	it      *Iterator
	scouts  []*byVBucket // one a kvstore
	cursors []*cursor    // by vbucket, made when first needed
	heap    []*cursor    // the smallest key first
	failed  error
}

// cursor is one vbucket.
type cursor struct {
	src *iter.Visible
	key []byte // user key that it stands at
}

func newByKey(db *DB, v *view, it *Iterator) *byKey {
	return &byKey{db: db, v: v, it: it}
}

func (b *byKey) seek(key []byte) bool {
	from := b.it.lower
	if bytes.Compare(key, from) > 0 {
		from = key
	}
	b.heap = b.heap[:0]
	if b.scouts == nil {
		b.scouts = make([]*byVBucket, b.db.kvstores)
		b.cursors = make([]*cursor, b.db.vbuckets)
		for k := range b.scouts {
			b.scouts[k] = newByVBucket(b.db, b.v, b.it, k, nil, b.it.upper)
		}
	}
	for k, w := range b.scouts {
		w.lower = from
		for ok := w.seekIn(0, from); ok; {
			vb, _ := entry.SplitKey(w.version().Key)
			if !b.open(k, vb, w.version().Key) {
				return false
			}
			ok = w.seekIn(vb+1, from)
		}
		if !b.check(w.src) {
			return false
		}
	}
	for i := len(b.heap)/2 - 1; i >= 0; i-- {
		b.down(i)
	}
	return len(b.heap) > 0
}

// open puts the cursor of a vbucket, standing at an internal key, into the
// heap.
func (b *byKey) open(kvstore int, vb uint16, at []byte) bool {
	c := b.cursors[vb]
	if c == nil {
		var upper []byte
		if b.it.upper != nil {
			upper = entry.AppendKey(nil, vb, b.it.upper)
		} else {
			upper = entry.AppendKey(nil, vb+1, nil)
		}
		c = &cursor{src: b.it.visible(b.v, kvstore, entry.AppendKey(nil, vb, nil), upper)}
		b.cursors[vb] = c
	}
	// The document may have expired since the scout saw it.
	if c.src.SeekGE(at, entry.MaxSeqno) {
		_, c.key = entry.SplitKey(c.src.Version().Key)
		b.heap = append(b.heap, c)
		return true
	}
	return b.check(c.src)
}

// check ends the order when a source failed.
func (b *byKey) check(src *iter.Visible) bool {
	if b.failed == nil {
		b.failed = src.Error()
	}
	if b.failed != nil {
		b.heap = b.heap[:0]
	}
	return b.failed == nil
}

func (b *byKey) next() bool {
	c := b.heap[0]
	if c.src.Next() {
		_, c.key = entry.SplitKey(c.src.Version().Key)
	} else {
		if !b.check(c.src) {
			return false
		}
		last := len(b.heap) - 1
		b.heap[0] = b.heap[last]
		b.heap = b.heap[:last]
	}
	b.down(0)
	return len(b.heap) > 0
}

// down restores the heap below i. A key has one vbucket, so no two are equal.
func (b *byKey) down(i int) {
	h := b.heap
	for {
		least := 2*i + 1
		if least >= len(h) {
			return
		}
		if right := least + 1; right < len(h) && bytes.Compare(h[right].key, h[least].key) < 0 {
			least = right
		}
		if bytes.Compare(h[least].key, h[i].key) >= 0 {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func (b *byKey) version() *entry.Version { return b.heap[0].src.Version() }
func (b *byKey) err() error              { return b.db.scanError(b.failed) }

func (b *byKey) close() {
	for _, w := range b.scouts {
		w.close()
	}
	for _, c := range b.cursors {
		if c != nil {
			_ = c.src.Close()
		}
	}
}
