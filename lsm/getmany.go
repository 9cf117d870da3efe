package lsm

import (
	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
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
	buf      []byte // values read from tables and the log

	searches []*scratch // under way, of keys that memtables did not have
	reads    []vfs.Read
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

// Item returns the document of key i, which must be ready. It is valid until
// Release, and only when Err(i) is nil.
func (b *ReadBatch) Item(i int) *Item { return &b.items[i] }

// Err returns what happened to key i: nil, ErrNotFound, ErrKeySize, ErrReadLimit,
// or an error wrapping ErrCorrupt or an I/O error.
func (b *ReadBatch) Err(i int) error { return b.errs[i] }

// Wait returns when the first n keys at least, n <= Len, have their answers, and
// how many, from the first on, have.
func (b *ReadBatch) Wait(n int) int { return len(b.gets) }

// Ready takes what has been read by now and returns how many keys, from the
// first on, have their answers. It does not wait.
func (b *ReadBatch) Ready() int { return len(b.gets) }

// Release lets go of the memory and files that the items alias. It may be
// called more than once.
func (b *ReadBatch) Release() {
	if b.view != nil {
		b.view.release()
		b.view = nil
	}
}

// readBytesMax bounds the documents that one GetMany reads from the device, in
// log bytes, and what their values take then. One larger document goes alone.
const readBytesMax = 8 * mib

// GetMany reads all keys of b at one seqno: first what memory can answer, then
// all documents that must come from the device in one go. When these exceed
// 8 MiB, the ones that follow get ErrReadLimit. Values alias the
// store's memory until b is released. It returns ErrClosed; what happened to
// each key is in b.
func (db *DB) GetMany(b *ReadBatch) error {
	err := db.StartMany(b)
	b.Wait(b.Len())
	return err
}

// StartMany begins what GetMany does and returns when memory has answered what
// it can and the reads from the device are under way. Wait or Ready take them
// on. The batch must be waited for, or released, before it is used again.
func (db *DB) StartMany(b *ReadBatch) error {
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
	b.docs, b.docOf, b.docBytes, b.buf = b.docs[:0], b.docOf[:0], 0, b.buf[:0]
	if i := db.unanswered(b, v, 0); i < n {
		db.searchTables(b, v, i)
	}
	cleared := v.clearFor(at)
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

// searchTables looks for the keys that no memtable had in the tables of their
// kvstores. Blocks that are not in memory are read together, as many as there
// are searches, round by round until none needs one.
func (db *DB) searchTables(b *ReadBatch, v *view, from int) {
	n := len(b.gets)
	if err := db.enter(); err != nil { // Close closes the files
		for i := from; i < n; i = db.unanswered(b, v, i+1) {
			b.errs[i] = err
		}
		return
	}
	defer db.leave()
	for from < n {
		from = db.gatherSearches(b, v, from)
		for len(b.searches) > 0 {
			db.readBlocks(b)
		}
	}
}

// unanswered returns the first key at or behind i that tables may have.
func (db *DB) unanswered(b *ReadBatch, v *view, i int) int {
	for ; i < len(b.gets); i++ {
		if g := &b.gets[i]; !g.Found && b.errs[i] == nil && len(v.version.runs[int(g.VBucket)%db.kvstores]) > 0 {
			break
		}
	}
	return i
}

// searchesMax is how many searches of one batch are under way together.
const searchesMax = 128

// gatherSearches starts up to searchesMax searches of the keys from one on and
// returns where it stopped.
func (db *DB) gatherSearches(b *ReadBatch, v *view, from int) int {
	var s *scratch // of a search that ended at once serves the next
	i := from
	for ; i < len(b.gets) && len(b.searches) < searchesMax; i = db.unanswered(b, v, i+1) {
		if b.docBytes > readBytesMax {
			b.errs[i] = ErrReadLimit
			continue
		}
		if s == nil {
			s = db.scratches.take()
		}
		g := &b.gets[i]
		s.key = entry.AppendKey(s.key[:0], g.VBucket, g.Key)
		s.of = int32(i)
		s.get.start(v.version.runs[int(g.VBucket)%db.kvstores], g.Hash, s.key, g.At)
		if s.get.next() {
			b.searches = append(b.searches, s)
			s = nil
		} else if s.get.err != nil {
			b.errs[i] = db.tableError(s.get.err)
		}
	}
	if s != nil {
		db.scratches.put(s)
	}
	return i
}

// readBlocks reads the block of every search under way and takes each on to
// its next block, or to its end.
func (db *DB) readBlocks(b *ReadBatch) {
	b.reads = b.reads[:0]
	for _, s := range b.searches {
		db.countBlockRead(s.get.ref)
		b.reads = append(b.reads, s.get.read)
	}
	vfs.ReadMany(b.reads)
	going := b.searches[:0]
	for j, s := range b.searches {
		s.get.read = b.reads[j]
		found, needs := s.get.finish()
		if s.get.err == nil && !found && (needs || s.get.next()) {
			going = append(going, s)
			continue
		}
		if found {
			b.take(s)
		} else if s.get.err != nil {
			b.errs[s.of] = db.tableError(s.get.err)
		}
		db.scratches.put(s)
	}
	clear(b.searches[len(going):])
	clear(b.reads)
	b.searches = going
}

// take makes what a search found the answer to its key. Bytes are copied, so
// that the block's memory serves the next search.
func (b *ReadBatch) take(s *scratch) {
	g := &b.gets[s.of]
	g.Found = true
	s.get.view(&g.View)
	if g.View.Value.HasBytes {
		n := len(b.buf)
		b.buf = append(b.buf, g.View.Value.Bytes...)
		g.View.Value.Bytes = b.buf[n:len(b.buf):len(b.buf)]
		b.docBytes += int64(len(b.buf) - n)
	}
}

// addDocument notes that the value of key i is in the log.
func (b *ReadBatch) addDocument(db *DB, i int, v *view) {
	g := &b.gets[i]
	if b.docBytes += int64(g.View.Value.Address.Length); b.docBytes > readBytesMax && len(b.docs) > 0 {
		b.errs[i] = ErrReadLimit
		return
	}
	s, a, err := v.version.locate(g.View.Value.Address, g.View.Seqno)
	if err != nil {
		b.errs[i] = db.readError(err)
		return
	}
	b.docs = append(b.docs, wal.DocRead{File: s.File, Address: a, Seqno: g.View.Seqno, Key: g.Key})
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
	// Addresses bound what is read; values that were compressed are longer.
	b.buf = wal.ReadDocuments(b.docs, &db.secret, !db.o.BufferedIO, b.buf, readBytesMax-len(b.buf))
	for j := range b.docs {
		i := b.docOf[j]
		if err := b.docs[j].Err; err == wal.ErrReadLimit {
			b.errs[i] = ErrReadLimit
			continue
		} else if err != nil {
			b.errs[i] = db.readError(err)
			continue
		}
		b.items[i].Value = b.docs[j].Value
	}
	clear(b.docs)
}
