package lsm

import (
	"errors"
	"sync"

	"fluxkv/internal/blockcache"
	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// tableGet is the search for one key in the tables of its kvstore, newest run
// first. It stops wherever it needs a block that is not in memory, so that many
// searches have their reads in flight together:
//
//	for needs := g.next(); needs; needs = g.finish() {
//		the read g.read is done
//	}
//	g.err, g.found
type tableGet struct {
	lookup sstable.Lookup
	cache  *blockcache.Cache
	runs   []*run // still to be searched
	hash   uint64
	key    []byte // internal key
	at     Seqno

	// While a block is needed:
	handle *sstable.Handle
	reader *sstable.Reader
	ref    sstable.BlockRef
	read   vfs.Read
	buf    sstable.Buffer

	found bool
	pin   blockcache.Handle // of the block that answers, when the cache has it
	err   error
}

// start begins a search in a version's runs of a kvstore. The key is kept.
func (g *tableGet) start(db *DB, runs []*run, hash uint64, key []byte, at Seqno) {
	g.runs, g.hash, g.key, g.at, g.err = runs, hash, key, at, nil
	g.cache, g.found = db.blocks, false
}

// next goes on as far as memory leads. It reports whether a block is needed:
// g.read must then be done before finish. Otherwise the search has ended, and
// g.found says with what, or g.err why it could not go on. A table that cannot
// be read ends it, because an older one must not answer in its place.
func (g *tableGet) next() (needs bool) {
	for len(g.runs) > 0 {
		f := g.runs[0].find(g.key)
		if f == nil {
			g.runs = g.runs[1:]
			continue
		}
		r, err := f.handle.Acquire()
		if err != nil && mutant.SkipUnreadableTable {
			g.runs = g.runs[1:]
			continue
		}
		if err != nil {
			g.err = err
			return false
		}
		g.handle, g.reader = f.handle, r
		if g.walk(g.lookup.Start(r, g.hash, g.key, g.at)) {
			return true
		}
		if g.found || g.err != nil {
			return false
		}
	}
	return false
}

// walk takes the lookup in one table through the blocks that the cache has, and
// reports whether it needs one that must be read. Otherwise it has ended.
func (g *tableGet) walk(done bool) (needs bool) {
	var h blockcache.Handle
	for !done {
		g.ref = g.lookup.Need()
		h.Release() // of the block that led here
		if h = g.cache.Get(g.handle.Number(), g.ref.Offset); !h.Valid() {
			if g.read, g.err = g.reader.Plan(g.ref, &g.buf); g.err != nil {
				g.release()
				return false
			}
			return true
		}
		done = g.lookup.Feed(h.Bytes())
	}
	g.err = g.lookup.Err()
	g.found = g.lookup.Found()
	g.release()
	if g.found {
		g.pin = h
		return false
	}
	h.Release()
	g.runs = g.runs[1:]
	return false
}

// finish takes the block that was read into the cache and goes on like next.
func (g *tableGet) finish() (needs bool) {
	data, err := g.reader.Finish(g.ref, &g.read, &g.buf)
	if err != nil && mutant.SkipUnreadableTable {
		g.release()
		g.runs = g.runs[1:]
		return g.next()
	}
	if err != nil {
		g.err = err
		g.release()
		return false
	}
	g.cache.Put(g.handle.Number(), g.ref.Offset, data, blockPriority(g.ref))
	if g.walk(g.lookup.Feed(data)) {
		return true
	}
	if g.found || g.err != nil {
		return false
	}
	return g.next()
}

// blockPriority: a filter piece or an index block serves every lookup of the
// keys below it, a data block only those that end in it.
func blockPriority(ref sstable.BlockRef) blockcache.Priority {
	if ref.Kind == sstable.DataBlock {
		return blockcache.Low
	}
	return blockcache.High
}

func (g *tableGet) release() {
	g.handle.Release()
	g.handle, g.reader = nil, nil
	g.read = vfs.Read{Buf: g.read.Buf}
}

// drop lets go of the block that answered.
func (g *tableGet) drop() {
	g.pin.Release()
	g.pin = blockcache.Handle{}
}

// view gives what was found the form that memtables answer in. Its bytes are
// valid until drop, or the buffer's next use.
func (g *tableGet) view(m *memtable.View) {
	v := g.lookup.Version()
	m.Seqno, m.Kind, m.Meta, m.Value = v.Seqno, v.Kind, v.Meta, v.Value
}

// search goes to the end, one block after the other.
func (s *scratch) search(db *DB) {
	g := &s.get
	for needs := g.next(); needs; needs = g.finish() {
		db.countBlockRead(g.ref)
		s.queue.Add(&g.read)
		s.queue.Next()
	}
}

// countBlockRead counts a read by what it is for.
func (db *DB) countBlockRead(ref sstable.BlockRef) {
	if ref.Kind == sstable.DataBlock {
		db.counts.blockReads.Add(1)
	} else {
		db.counts.indexReads.Add(1)
	}
}

// tableError gives an error of a search the names that callers know.
func (db *DB) tableError(err error) error {
	if errors.Is(err, sstable.ErrCorrupt) {
		db.damaged(err)
		return corruptError(err)
	}
	if errors.Is(err, sstable.ErrHandleClosed) {
		return ErrClosed
	}
	return err
}

// findInTables is the part of a read that memtables could not answer. The
// caller has entered. Bytes are appended to dst; m.Value.Bytes is the appended
// part.
func (db *DB) findInTables(v *view, at Seqno, hash uint64, vbucket uint16, key, dst []byte, m *memtable.View) (out []byte, found bool, err error) {
	runs := v.version.runs[int(vbucket)%db.kvstores]
	if len(runs) == 0 {
		return dst, false, nil
	}
	s := db.scratches.take()
	defer db.scratches.put(s)
	s.key = entry.AppendKey(s.key[:0], vbucket, key)
	s.get.start(db, runs, hash, s.key, at)
	s.search(db)
	if s.get.err != nil {
		return dst, false, db.tableError(s.get.err)
	}
	if !s.get.found {
		return dst, false, nil
	}
	s.get.view(m)
	if m.Value.HasBytes {
		n := len(dst)
		dst = append(dst, m.Value.Bytes...)
		m.Value.Bytes = dst[n:]
	}
	s.get.drop()
	return dst, true, nil
}

// scratch is the memory of one read: first the search in tables, whose blocks
// are read into memory that the collector does not know, then the document.
type scratch struct {
	get      tableGet
	key      []byte
	doc      wal.DocRead
	document bool  // it is what is being read
	of       int32 // which key of a ReadBatch
	queue    vfs.ReadQueue
}

// scratchesMax bounds the scratches kept, which is several batches' worth,
// scratchBytesMax each of them.
const (
	scratchesMax    = 4 * readsMax
	scratchBytesMax = 256 * kib
)

// scratches keeps some for the next reads.
type scratches struct {
	io   *vfs.IO
	mu   sync.Mutex // a leaf
	kept []*scratch
	end  bool
}

func (s *scratches) take() *scratch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.kept); n > 0 {
		x := s.kept[n-1]
		s.kept = s.kept[:n-1]
		return x
	}
	x := new(scratch)
	x.queue.Init(s.io)
	return x
}

func (s *scratches) put(x *scratch) {
	x.get.runs, x.get.key, x.get.cache = nil, nil, nil
	s.mu.Lock()
	keep := !s.end && len(s.kept) < scratchesMax && x.get.buf.Bytes() <= scratchBytesMax
	if keep {
		s.kept = append(s.kept, x)
	}
	s.mu.Unlock()
	if !keep {
		x.get.buf.Free()
	}
}

func (s *scratches) free() {
	s.mu.Lock()
	kept := s.kept
	s.kept, s.end = nil, true
	s.mu.Unlock()
	for _, x := range kept {
		x.get.buf.Free()
	}
}
