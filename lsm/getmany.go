package lsm

import (
	"github.com/cespare/xxhash/v2"

	"fluxkv/memtable"
	"fluxkv/wal"
)

// ReadBatch is a list of keys to read as of one seqno. The zero value is
// ready. It is not safe for concurrent use. Keys must not change until
// Release.
type ReadBatch struct {
	after Seqno
	gets  []memtable.Get
	items []Item
	errs  []error

	view  *view
	docs  []wal.DocRead
	docOf []int32 // docs[j] is key docOf[j]
	// docBytes is the sum of their records; beyond readBytesMax it goes on
	// counting, so that a smaller document does not slip in behind.
	docBytes int64
	buf      []byte // values read from the log
}

// Reset empties the batch and keeps its memory, except very large buffers. It
// implies Release.
func (b *ReadBatch) Reset() {
	b.Release()
	b.after = 0
	clear(b.gets)
	clear(b.items)
	b.gets, b.items, b.errs = b.gets[:0], b.items[:0], b.errs[:0]
	if cap(b.buf) > mib {
		b.buf = nil
	}
	b.buf = b.buf[:0]
}

// Add appends a key. A key of a wrong size gets its error when read.
func (b *ReadBatch) Add(key []byte) {
	b.gets = append(b.gets, memtable.Get{Key: key})
}

// Len returns the number of keys.
func (b *ReadBatch) Len() int { return len(b.gets) }

// After makes the batch see at least everything up to s: the highest seqno
// that this reader wrote or saw.
func (b *ReadBatch) After(s Seqno) { b.after = s }

// Item returns the document of key i. It is valid until Release, and only when
// Err(i) is nil.
func (b *ReadBatch) Item(i int) *Item { return &b.items[i] }

// Err returns what happened to key i: nil, ErrNotFound, ErrKeySize, ErrReadLimit,
// or an error wrapping ErrCorrupt or an I/O error.
func (b *ReadBatch) Err(i int) error { return b.errs[i] }

// Release lets go of the memory and files that the items alias. It may be
// called more than once.
func (b *ReadBatch) Release() {
	if b.view != nil {
		b.view.release()
		b.view = nil
	}
}

// readBytesMax bounds the documents that one GetMany reads from the device, in
// log bytes. One larger document goes alone.
const readBytesMax = 8 * mib

// GetMany reads all keys of b at one seqno: first what memory can answer, then
// all documents that must come from the device in one go. When these exceed
// 8 MiB, the ones that follow get ErrReadLimit and are not read. Values alias the
// store's memory until b is released. It returns ErrClosed; what happened to
// each key is in b.
func (db *DB) GetMany(b *ReadBatch) error {
	b.Release()
	n := len(b.gets)
	b.items = resize(b.items, n)
	b.errs = resize(b.errs, n)
	v, at, err := db.pinAt(b.after)
	if err != nil {
		clear(b.items)
		for i := range b.errs {
			b.errs[i] = err
		}
		return err
	}
	b.view = v
	db.counts.gets.Add(int64(n))
	for i := range b.gets {
		g := &b.gets[i]
		b.errs[i] = checkKey(g.Key)
		if b.errs[i] != nil {
			g.Table = nil
			continue
		}
		g.Hash = xxhash.Sum64(g.Key)
		g.VBucket = db.vbucket(g.Key)
		g.At = at
		g.Found = false
		g.Table = v.tables[int(g.VBucket)%db.kvstores][0].Table
	}
	memtable.GetAcross(b.gets)
	db.searchOlder(b, v)
	cleared := v.clearFor(at)
	b.docs, b.docOf, b.docBytes = b.docs[:0], b.docOf[:0], 0
	for i := range b.gets {
		g := &b.gets[i]
		if b.errs[i] != nil {
			continue
		}
		it, ok := Item{}, false
		if g.Found {
			it, ok = db.item(&g.View, g.Key, cleared)
		}
		if !ok {
			b.errs[i] = ErrNotFound
			continue
		}
		b.items[i] = it
		if g.View.Value.HasBytes {
			b.items[i].Value = g.View.Value.Bytes
			continue
		}
		b.addDocument(db, i, v)
	}
	if len(b.docs) > 0 {
		db.readDocuments(b)
	}
	return nil
}

// searchOlder asks the sealed memtables for the keys that the active ones did
// not have.
func (db *DB) searchOlder(b *ReadBatch, v *view) {
	for depth := 1; ; depth++ {
		more := false
		for i := range b.gets {
			g := &b.gets[i]
			g.Table = nil
			if b.errs[i] != nil || g.Found {
				continue
			}
			if ts := v.tables[int(g.VBucket)%db.kvstores]; depth < len(ts) {
				g.Table = ts[depth].Table
				more = true
			}
		}
		if !more {
			return
		}
		memtable.GetAcross(b.gets)
	}
}

// addDocument notes that the value of key i is in the log.
func (b *ReadBatch) addDocument(db *DB, i int, v *view) {
	g := &b.gets[i]
	if b.docBytes += int64(g.View.Value.Address.Length); b.docBytes > readBytesMax && len(b.docs) > 0 {
		b.errs[i] = ErrReadLimit
		return
	}
	s := v.segments[g.View.Value.Address.Segment]
	if s == nil {
		b.errs[i] = db.lostAddress(g.View.Value.Address)
		return
	}
	b.docs = append(b.docs, wal.DocRead{File: s.File, Address: g.View.Value.Address, Seqno: g.View.Seqno, Key: g.Key})
	b.docOf = append(b.docOf, int32(i))
}

// readDocuments reads all noted documents together.
func (db *DB) readDocuments(b *ReadBatch) {
	if err := db.enter(); err != nil { // Close closes the files
		for _, i := range b.docOf {
			b.errs[i] = err
		}
		clear(b.docs)
		return
	}
	defer db.leave()
	db.counts.documentReads.Add(int64(len(b.docs)))
	b.buf = wal.ReadDocuments(b.docs, &db.secret, !db.o.BufferedIO, b.buf[:0])
	for j := range b.docs {
		i := b.docOf[j]
		if err := b.docs[j].Err; err != nil {
			b.errs[i] = db.readError(err)
			continue
		}
		b.items[i].Value = b.docs[j].Value
	}
	clear(b.docs)
}
