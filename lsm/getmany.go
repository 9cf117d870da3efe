package lsm

import (
	"math"
	"sync"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// ReadBatch is a list of keys to read as of one seqno. The zero value is
// ready. It is not safe for concurrent use. Keys must not change until
// Release.
//
//	keys     a b c d e f g h i j k l
//	started  . . . . . . . . .|          the rest wait for a place
//	under way      d     g   i           blocks and documents being read
//	ready    a b c|                      answered, from the first on
type ReadBatch struct {
	after Seqno
	limit int64
	bound bool   // the limit holds for the first key too
	keys  []byte // what OwnKeys copied
	gets  []memtable.Get
	items []Item
	errs  []error
	done  []bool
	ready int // keys in front that are done
	next  int // the key that is started next

	db      *DB
	view    *view
	cleared Seqno // what the reader must not see is at or below it
	entered bool  // db.enter holds Close up while files are read

	// bytes is the sum of the documents read, in log bytes, and of the values from
	// tables; beyond the limit it goes on counting. values is what they are as
	// plain values.
	bytes, values int64
	buf           []byte // values read from caches, tables and the log
	lent          *readBuffer

	queue   *vfs.ReadQueue // made when the first read is
	io      *vfs.IO        // that queue belongs to
	reading int            // reads under way
	slots   []*scratch     // of these, by their tag
	free    []int          // tags
}

// Reset empties the batch and keeps its memory, except very large buffers. It
// implies Release.
func (b *ReadBatch) Reset() {
	b.Release()
	b.after, b.limit, b.bound = 0, 0, false
	clear(b.gets)
	clear(b.items)
	b.gets, b.items, b.errs, b.done = b.gets[:0], b.items[:0], b.errs[:0], b.done[:0]
	b.ready, b.next = 0, 0
	b.keys = b.keys[:0]
	b.giveBack()
}

// readBuffer is the memory of the values of one batch. Batches that wait for
// their next keys have none: of many connections, few read at one moment.
type readBuffer struct{ b []byte }

var readBuffers = sync.Pool{New: func() any { return new(readBuffer) }}

// borrow readies b.buf for the values of a batch that starts.
func (b *ReadBatch) borrow() {
	if b.lent == nil {
		b.lent = readBuffers.Get().(*readBuffer)
		b.buf = b.lent.b
	}
	b.buf = b.buf[:0]
}

// giveBack ends that: nobody looks at values of the batch any more. Very large
// buffers go to the collector.
func (b *ReadBatch) giveBack() {
	if b.lent == nil {
		return
	}
	b.lent.b = nil
	if cap(b.buf) <= mib {
		b.lent.b = b.buf[:0]
	}
	readBuffers.Put(b.lent)
	b.lent, b.buf = nil, nil
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

// Limit bounds the documents that are read from the device for this batch, in
// bytes of the log; from 1 to 8 MiB, which is the default. Keys beyond it get
// ErrReadLimit, except the first one of the batch.
func (b *ReadBatch) Limit(bytes int64) {
	b.limit, b.bound = min(max(bytes, 1), readBytesMax), false
}

// LimitAll is Limit for a reader that has other batches under way: the first key
// has no exception.
func (b *ReadBatch) LimitAll(bytes int64) {
	b.Limit(bytes)
	b.bound = true
}

// OwnKeys copies the keys to memory of the batch, which may have been started:
// those that were given to Add may change from now on. No Add may follow before
// Reset.
func (b *ReadBatch) OwnKeys() {
	n := 0
	for i := range b.gets {
		n += len(b.gets[i].Key)
	}
	b.keys = resize(b.keys, n)
	at := 0
	for i := range b.gets {
		k := b.keys[at : at+len(b.gets[i].Key) : at+len(b.gets[i].Key)]
		at += copy(k, b.gets[i].Key)
		b.gets[i].Key = k
		if i < len(b.items) && b.items[i].Key != nil {
			b.items[i].Key = k
		}
	}
	for _, s := range b.slots {
		if s != nil && s.document {
			s.doc.Key = b.gets[s.of].Key // compared when the read has completed
		}
	}
}

// Key returns key i.
func (b *ReadBatch) Key(i int) []byte { return b.gets[i].Key }

// Item returns the document of key i, which must be ready. It is valid until
// Release, and only when Err(i) is nil.
func (b *ReadBatch) Item(i int) *Item { return &b.items[i] }

// Err returns what happened to key i, which must be ready: nil, ErrNotFound,
// ErrKeySize, ErrReadLimit, or an error wrapping ErrCorrupt or an I/O error.
func (b *ReadBatch) Err(i int) error { return b.errs[i] }

// Release lets go of the memory and files that the items alias. Reads that are
// under way end first: the device writes to their memory (design R20). It may be
// called more than once.
func (b *ReadBatch) Release() {
	if b.view == nil {
		return
	}
	b.next = len(b.gets) // start no more
	for b.step(true) {
	}
	b.view.release()
	b.view, b.db = nil, nil
}

// readBytesMax bounds the documents that one batch reads from the device, in
// log bytes, and what their values take then. The first key goes anyway.
const readBytesMax = 8 * mib

// readsMax is how many keys of one batch have a read under way.
const readsMax = 256

// readsMaxAll is how many keys of all batches have one, for each that may be at
// the device, beyond the one that each batch always has: enough that the device
// does not wait for anybody, and few enough that their buffers, 8 KiB each, are a
// small part of what Options.MemQuota leaves for reads.
const readsMaxAll = 4

// GetMany reads all keys of b at one seqno: first what memory can answer, then
// what must come from the device, all of it in flight together. When that
// exceeds 8 MiB (or Limit), the keys that follow get ErrReadLimit. Values alias
// the store's memory until b is released. It returns ErrClosed; what happened to
// each key is in b.
func (db *DB) GetMany(b *ReadBatch) error {
	// Not submitted before it waits, a batch's only read may be a plain one.
	err := db.begin(b)
	b.Wait(b.Len())
	return err
}

// StartMany begins what GetMany does and returns when memory has answered what
// it can and the reads from the device are under way. Wait and Ready take them
// on; Release ends the batch whether they did or not, and must follow.
func (db *DB) StartMany(b *ReadBatch) error {
	err := db.begin(b)
	b.submit()
	return err
}

// begin is StartMany, except that no read is submitted.
func (db *DB) begin(b *ReadBatch) error {
	b.Release()
	n := len(b.gets)
	b.items = resize(b.items, n)
	b.errs = resize(b.errs, n)
	b.done = resize(b.done, n)
	b.ready, b.next, b.bytes, b.values = 0, 0, 0, 0
	b.borrow()
	if b.limit == 0 {
		b.limit = readBytesMax
	}
	v, at, err := db.pinAt(b.after)
	if err != nil {
		clear(b.items)
		for i := range b.errs {
			b.errs[i], b.done[i] = err, true
		}
		b.ready, b.next = n, n
		return err
	}
	b.db, b.view, b.cleared = db, v, v.clearFor(at)
	db.counts.gets.Add(int64(n))
	for i := range b.gets {
		g := &b.gets[i]
		b.done[i] = false
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
	db.cached(b)
	memtable.GetAcross(b.gets)
	db.searchOlder(b, v)
	b.start()
	return nil
}

// Wait returns when the first n keys at least, n <= Len, have their answers, and
// how many, from the first on, have.
func (b *ReadBatch) Wait(n int) int {
	for b.ready < n && b.step(true) {
	}
	b.submit() // reads that followed from the last ones
	if invariants.Enabled && b.ready < n {
		panic("lsm: a key of a ReadBatch without answer and without read")
	}
	return b.ready
}

// Ready takes what has been read by now and returns how many keys, from the
// first on, have their answers. It does not wait.
func (b *ReadBatch) Ready() int {
	for b.ready < len(b.gets) && b.step(false) {
	}
	return b.ready
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

// start begins with keys as long as there are places for their reads.
func (b *ReadBatch) start() {
	for ; b.next < len(b.gets) && b.mayRead(); b.next++ {
		i := b.next
		switch g := &b.gets[i]; {
		case b.errs[i] != nil:
			b.end(i, b.errs[i])
		case g.Found:
			b.found(i, nil)
		case len(b.view.version.runs[int(g.VBucket)%b.db.kvstores]) == 0:
			b.end(i, ErrNotFound)
		default:
			b.search(i)
		}
	}
	if b.reading == 0 {
		b.settle()
	}
}

// submit gives reads to the device that step left for its next call.
func (b *ReadBatch) submit() {
	if b.reading > 0 {
		b.queue.Submit()
	}
}

// mayRead reports whether one more key may have a read under way.
func (b *ReadBatch) mayRead() bool {
	return b.reading == 0 || b.reading < readsMax && b.db.reading.Load() < int64(readsMaxAll*b.db.o.IOQueueDepth)
}

// step takes one read that has completed as far as it leads. It reports false
// when none is under way, or without wait, when none has completed.
func (b *ReadBatch) step(wait bool) bool {
	if b.reading == 0 {
		return false
	}
	r := b.queue.Take()
	if r == nil && wait {
		r = b.queue.Next()
	} else if r == nil {
		r = b.queue.TryNext()
	}
	if r == nil {
		return false
	}
	b.reading--
	b.db.reading.Add(-1)
	s := b.slots[r.Tag]
	b.slots[r.Tag] = nil
	b.free = append(b.free, r.Tag)
	if s.document {
		b.documentRead(s)
	} else {
		b.searched(s, s.get.finish())
	}
	if b.next < len(b.gets) {
		b.start()
	} else if b.reading == 0 {
		b.settle()
	}
	return true
}

// settle lets Close go on: no file is needed any more.
func (b *ReadBatch) settle() {
	if b.entered {
		b.entered = false
		b.db.leave()
	}
}

// end gives key i its answer.
func (b *ReadBatch) end(i int, err error) {
	b.errs[i] = err
	b.done[i] = true
	for b.ready < len(b.done) && b.done[b.ready] {
		b.ready++
	}
}

// enter has Close wait for the batch, the first time that a file is needed. It
// ends key i if it is too late for that.
func (b *ReadBatch) enter(i int) bool {
	if b.entered {
		return true
	}
	if err := b.db.enter(); err != nil {
		b.end(i, err)
		return false
	}
	b.entered = true
	if b.io != b.db.io {
		b.io = b.db.io
		b.queue = new(vfs.ReadQueue)
		b.queue.Init(b.io)
	}
	return true
}

// admit reports whether n more bytes may be read for key i, and ends it
// otherwise. After the first one that may not, none may.
func (b *ReadBatch) admit(i int, n int64) bool {
	if b.bytes += n; b.bytes <= b.limit || i == 0 && !b.bound {
		return true
	}
	b.end(i, ErrReadLimit)
	return false
}

// search begins to look for key i, which no memtable had, in the tables of its
// kvstore.
func (b *ReadBatch) search(i int) {
	if !b.admit(i, 0) || !b.enter(i) {
		return
	}
	s := b.db.scratches.take()
	g := &b.gets[i]
	s.key = entry.AppendKey(s.key[:0], g.VBucket, g.Key)
	s.of = int32(i)
	s.document = false
	s.get.start(b.db, b.view.version.runs[int(g.VBucket)%b.db.kvstores], g.Hash, s.key, g.At)
	b.searched(s, s.get.next())
}

// searched goes on with a search that needs a block, or has ended.
func (b *ReadBatch) searched(s *scratch, needs bool) {
	i := int(s.of)
	switch {
	case needs:
		b.db.countBlockRead(s.get.ref)
		b.add(s, &s.get.read)
		return
	case s.get.err != nil:
		b.end(i, b.db.tableError(s.get.err))
	case !s.get.found:
		b.end(i, ErrNotFound)
	default:
		g := &b.gets[i]
		g.Found = true
		s.get.view(&g.View)
		if g.View.Value.HasBytes {
			// Copied, so that the block's memory serves the next search.
			n := len(b.buf)
			b.buf = append(b.buf, g.View.Value.Bytes...)
			g.View.Value.Bytes = b.buf[n:len(b.buf):len(b.buf)]
			b.bytes += int64(len(b.buf) - n)
			b.values += int64(len(b.buf) - n)
		}
		b.db.fillFound(b, i)
		s.get.drop()
		if b.found(i, s) {
			return // s reads the document
		}
	}
	b.db.scratches.put(s)
}

// add puts the read of s under way.
func (b *ReadBatch) add(s *scratch, r *vfs.Read) {
	if n := len(b.free); n > 0 {
		r.Tag = b.free[n-1]
		b.free = b.free[:n-1]
	} else {
		r.Tag = len(b.slots)
		b.slots = append(b.slots, nil)
	}
	b.slots[r.Tag] = s
	b.reading++
	b.db.reading.Add(1)
	b.queue.Add(r)
}

// found answers key i, whose version is known, or begins to read its document
// from the log, with s, if given; it reports whether it keeps s.
func (b *ReadBatch) found(i int, s *scratch) (reads bool) {
	db, g := b.db, &b.gets[i]
	it, ok := db.item(&g.View, g.Key, b.cleared)
	if !ok {
		b.end(i, ErrNotFound)
		return false
	}
	b.items[i] = it
	if g.View.Value.HasBytes {
		b.items[i].Value = g.View.Value.Bytes
		b.end(i, nil)
		return false
	}
	if !b.admit(i, int64(g.View.Value.Address.Length)) || !b.enter(i) {
		return false
	}
	seg, a, err := b.view.version.locate(g.View.Value.Address, g.View.Seqno)
	if err != nil {
		b.end(i, db.readError(err))
		return false
	}
	own := s == nil
	if own {
		s = db.scratches.take()
	}
	s.of, s.document = int32(i), true
	s.doc = wal.DocRead{File: seg.File, Address: a, Seqno: g.View.Seqno, Key: g.Key}
	r, err := s.doc.Plan(!db.o.BufferedIO)
	if err != nil {
		s.doc = wal.DocRead{}
		if own {
			db.scratches.put(s)
		}
		b.end(i, db.readError(err))
		return false
	}
	db.counts.documentReads.Add(1)
	b.add(s, r)
	return true
}

// documentRead answers the key whose document was read.
func (b *ReadBatch) documentRead(s *scratch) {
	i := int(s.of)
	limit := math.MaxInt
	if i > 0 || b.bound {
		// Addresses bound what is read; values that were compressed are longer.
		limit = int(max(b.limit-b.values, 0))
	}
	b.buf = s.doc.Finish(&b.db.secret, b.buf, limit)
	switch err := s.doc.Err; {
	case err == wal.ErrReadLimit:
		b.bytes = max(b.bytes, b.limit+1) // nothing follows
		b.end(i, ErrReadLimit)
	case err != nil:
		b.end(i, b.db.readError(err))
	default:
		b.values += int64(len(s.doc.Value))
		b.items[i].Value = s.doc.Value
		b.db.fillDocument(b, i, s.doc.Value)
		b.end(i, nil)
	}
	s.doc = wal.DocRead{}
	b.db.scratches.put(s)
}
