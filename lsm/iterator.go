package lsm

import (
	"bytes"
	"fmt"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/wal"
)

// IterOptions says what an iterator walks over. The zero value is the whole
// store in the order of keys.
type IterOptions struct {
	// OneKVStore limits the iterator to KVStore, in the order (vbucket, key):
	// the order in which a kvstore keeps its documents, one cursor for all.
	// Without it the store's vbuckets are merged, one cursor each.
	OneKVStore bool
	// KVStore counts from 0. It is ignored unless OneKVStore is set.
	KVStore int
}

const (
	// viewAgeMax is how long an iterator that moves stays on a view that is no
	// longer the current one (design R18): views keep memory and files.
	viewAgeMax = time.Second
	// An iterator looks ahead, so that documents that must come from the device
	// are read together: a few at first, for short scans, up to 64.
	pageMin, pageMax = 4, 64
	// pageReadBytesMax bounds what is read ahead at once, in bytes of the log and
	// in bytes of values.
	pageReadBytesMax = 1 << 20
)

// Iterator walks over the documents of a store as of one seqno, in order. It
// is not safe for concurrent use and must be closed: until then the versions
// that it may need are kept. It sees no write that came after its making; only
// expiry is judged by the present time.
type Iterator struct {
	db           *DB
	at           Seqno
	lower, upper []byte
	o            IterOptions
	expired      func(uint32) bool

	view    *view
	cursors int           // made on view
	viewAge time.Duration // viewAgeMax; shorter in tests
	since   time.Time     // when view was pinned
	order   order
	ahead   bool // order stands at a document that is not in page yet

	// page are the documents from the current one on, as far as they were
	// looked at. Their slices alias keep, or memtables that view pins.
	page     []pageEntry
	pos      int
	pageSize int
	keep     []byte        // keys and values of page that a table's iterator owned
	docs     []wal.DocRead // of Item
	docOf    []int
	buf      []byte // values read from the log
	resume   []byte

	err    error
	closed bool
}

// pageEntry is one document of the page. value is set when read is.
type pageEntry struct {
	entry.Version
	value []byte
	err   error
	read  bool
}

// order is a sequence of a view's documents: byKey or byVBucket.
type order interface {
	// seek moves to the first document at or after key in this order.
	seek(key []byte) bool
	next() bool
	// version is valid until the next move. Bytes of values beyond
	// inlineBytesMax are in a memtable, and stay as long as the view is pinned.
	version() *entry.Version
	err() error
	// close lets go of tables.
	close()
}

// NewIter returns an iterator over the documents with keys from lower,
// inclusive, to upper, exclusive, that a plain read sees now; nil leaves a side
// open. The bounds are copied. It stands nowhere until First or SeekGE. It
// returns ErrClosed, or an error that names a kvstore that does not exist.
func (db *DB) NewIter(lower, upper []byte, o IterOptions) (*Iterator, error) {
	return db.newIter(lower, upper, o, nil)
}

// NewIter is DB.NewIter as of the snapshot. The iterator may be used after the
// snapshot was closed.
func (s *Snapshot) NewIter(lower, upper []byte, o IterOptions) (*Iterator, error) {
	return s.db.newIter(lower, upper, o, s)
}

// newIter registers the read seqno before it pins a view: from then on nothing
// that the seqno sees goes, so that any later view will do.
func (db *DB) newIter(lower, upper []byte, o IterOptions, s *Snapshot) (*Iterator, error) {
	if o.OneKVStore && (o.KVStore < 0 || o.KVStore >= db.kvstores) {
		return nil, fmt.Errorf("kvstore %d: the store has %d, counted from 0", o.KVStore, db.kvstores)
	}
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	it := &Iterator{
		db: db, o: o, expired: db.expired, viewAge: viewAgeMax, pageSize: pageMin,
		lower: bytes.Clone(lower), upper: bytes.Clone(upper),
	}
	if err := db.snapshots.register(db, s, &it.at); err != nil {
		return nil, err
	}
	it.refresh()
	return it, nil
}

// refresh changes to the current view. The iterator stands nowhere then.
func (it *Iterator) refresh() bool {
	it.drop()
	v := it.db.pin()
	if v == nil {
		it.err = ErrClosed
		return false
	}
	it.view, it.since, it.cursors = v, time.Now(), 0
	if it.o.OneKVStore {
		it.order = newByVBucket(it.db, v, it, it.o.KVStore, it.lower, it.upper)
	} else {
		it.order = newByKey(it.db, v, it)
	}
	return true
}

// drop lets go of the view and all that aliases it.
func (it *Iterator) drop() {
	it.clearPage()
	if it.order != nil {
		it.order.close()
		it.order = nil
	}
	it.view.release()
	it.view = nil
}

func (it *Iterator) clearPage() {
	clear(it.page)
	it.page, it.pos, it.ahead, it.keep = it.page[:0], 0, false, it.keep[:0]
}

// usable reports whether the iterator may move, and refuses for good when the
// store was closed.
func (it *Iterator) usable() bool {
	if it.err == nil && it.db.closing.Load() {
		it.err = ErrClosed
	}
	if it.err != nil || it.closed {
		it.drop()
		return false
	}
	return true
}

// stale reports whether the view is old and no longer the current one.
func (it *Iterator) stale() bool {
	return it.view == nil || it.db.current.Load() != it.view && time.Since(it.since) >= it.viewAge
}

// First moves to the first document within the bounds.
func (it *Iterator) First() bool { return it.seek(nil) }

// SeekGE moves to the first document at or after key and within the bounds. In
// an iterator over one kvstore that is the first at or after (vbucket of key,
// key), whether the key itself belongs there or not.
func (it *Iterator) SeekGE(key []byte) bool { return it.seek(key) }

// seek moves to key, nil for the first document.
func (it *Iterator) seek(key []byte) bool {
	if !it.usable() || !it.enter() {
		return false
	}
	defer it.db.leave()
	if it.stale() && !it.refresh() {
		return false
	}
	it.pageSize = pageMin
	return it.fill(it.order.seek(key))
}

// Next moves to the following document. It returns false at the end, when the
// iterator stands nowhere, and on an error: see Error.
func (it *Iterator) Next() bool {
	if !it.usable() || it.pos >= len(it.page) {
		return false
	}
	if it.pos+1 < len(it.page) && !it.stale() {
		it.pos++
		if e := it.page[it.pos].Meta.Expiry; e == 0 || !it.db.expired(e) {
			return true
		}
		it.pos-- // the way of settle
	}
	if !it.enter() {
		return false
	}
	defer it.db.leave()
	if it.stale() {
		// On from the next possible key; the page goes with the view.
		it.resume = append(append(it.resume[:0], it.Key()...), 0)
		vb := it.db.vbucket(it.Key())
		if !it.refresh() {
			return false
		}
		if w, ok := it.order.(*byVBucket); ok {
			// The successor's own vbucket is another one.
			return it.fill(w.seekIn(vb, it.resume))
		}
		return it.fill(it.order.seek(it.resume))
	}
	it.pos++
	return it.settle()
}

// settle stands at pos, or at what follows when that is not in the page, or
// has expired since it was put there.
func (it *Iterator) settle() bool {
	for {
		for ; it.pos < len(it.page); it.pos++ {
			if e := it.page[it.pos].Meta.Expiry; e == 0 || !it.db.expired(e) {
				return true
			}
		}
		if !it.ahead {
			it.clearPage()
			it.err = it.order.err()
			return false
		}
		it.pageSize = min(2*it.pageSize, pageMax)
		it.take()
	}
}

// fill starts a page with the document that order stands at, if ok.
func (it *Iterator) fill(ok bool) bool {
	it.clearPage()
	it.ahead = ok
	if ok {
		it.take()
	}
	return it.settle()
}

// take replaces the page by what comes next.
func (it *Iterator) take() {
	it.clearPage()
	ok := true
	for ok && len(it.page) < it.pageSize {
		e := pageEntry{Version: *it.order.version()}
		e.Key = it.own(e.Key)
		if len(e.Value.Bytes) <= inlineBytesMax {
			e.Value.Bytes = it.own(e.Value.Bytes)
		}
		it.page = append(it.page, e)
		ok = it.order.next()
	}
	it.ahead = ok
}

// own copies b to keep.
func (it *Iterator) own(b []byte) []byte {
	n := len(it.keep)
	it.keep = append(it.keep, b...)
	return it.keep[n:len(it.keep):len(it.keep)]
}

// enter keeps Close from closing files while the iterator moves.
func (it *Iterator) enter() bool {
	if err := it.db.enter(); err != nil {
		it.err = err
		it.drop()
		return false
	}
	return true
}

// Key returns the current document's key, valid until the next move or Close.
// It must not be called after a move returned false.
func (it *Iterator) Key() []byte {
	_, key := entry.SplitKey(it.page[it.pos].Key)
	return key
}

// Item returns the current document. Key and value are valid until the next
// move or Close. A value that is not in memory is read from the log, together
// with those of the documents that follow. An error concerns this document
// alone, and the iterator can go on: ErrClosed, one wrapping ErrCorrupt, or an
// I/O error. It must not be called after a move returned false.
func (it *Iterator) Item() (Item, error) {
	if it.db.closing.Load() {
		return Item{}, ErrClosed
	}
	e := &it.page[it.pos]
	m := Item{
		Key: it.Key(), Flags: e.Meta.Flags, Expiry: e.Meta.Expiry, Datatype: e.Meta.Datatype,
		CAS: e.Meta.CAS, Seqno: e.Seqno,
	}
	if m.CAS == 0 {
		m.CAS = uint64(e.Seqno)
	}
	if e.Value.HasBytes {
		m.Value = e.Value.Bytes
		return m, nil
	}
	if !e.read {
		if err := it.readAhead(); err != nil {
			return Item{}, err
		}
	}
	m.Value = e.value
	return m, e.err
}

// readAhead reads the values of the current document and of those that follow
// in the page, all in flight together.
func (it *Iterator) readAhead() error {
	db := it.db
	if err := db.enter(); err != nil { // Close closes the files
		return err
	}
	defer db.leave()
	it.docs, it.docOf = it.docs[:0], it.docOf[:0]
	bytes := 0
	for i := it.pos; i < len(it.page); i++ {
		e := &it.page[i]
		if e.Value.HasBytes || e.read {
			continue
		}
		bytes += int(e.Value.Address.Length)
		if i > it.pos && bytes > pageReadBytesMax {
			break
		}
		e.read = true
		s, a, err := it.view.version.locate(e.Value.Address, e.Seqno)
		if err != nil {
			e.err = db.readError(err)
			continue
		}
		_, key := entry.SplitKey(e.Key)
		it.docs = append(it.docs, wal.DocRead{File: s.File, Address: a, Seqno: e.Seqno, Key: key})
		it.docOf = append(it.docOf, i)
	}
	if cap(it.buf) > 2*pageReadBytesMax {
		it.buf = nil // of a very large document
	}
	db.counts.documentReads.Add(int64(len(it.docs)))
	it.buf = wal.ReadDocuments(it.docs, db.io, &db.secret, !db.o.BufferedIO, it.buf[:0], pageReadBytesMax)
	for j := range it.docs {
		e := &it.page[it.docOf[j]]
		e.value = it.docs[j].Value
		if err := it.docs[j].Err; err == wal.ErrReadLimit {
			e.read = false // later, as are all behind it
		} else if err != nil {
			e.err = db.readError(err)
		}
	}
	clear(it.docs)
	return nil
}

// Error returns what ended the iterator before its end: ErrClosed once the
// store is closed. Errors of single documents are Item's.
func (it *Iterator) Error() error { return it.err }

// Close lets go of everything the iterator holds. Closing again does nothing.
// It returns nil.
func (it *Iterator) Close() error {
	if it.closed {
		return nil
	}
	it.closed = true
	it.drop()
	it.db.snapshots.unregister(it.at)
	it.db.retireSoon()
	return nil
}
