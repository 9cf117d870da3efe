package lsm

import (
	"errors"
	"sync"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/sstable"
)

// tableGet is the search for one key in the tables of its kvstore, newest run
// first. It stops wherever it needs a block that is not in memory, so that a
// batch reads the blocks of many searches together.
type tableGet struct {
	lookup sstable.Lookup
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

	err error
}

// start begins a search in a version's runs of a kvstore. The key is kept.
func (g *tableGet) start(runs []*run, hash uint64, key []byte, at Seqno) {
	g.runs, g.hash, g.key, g.at, g.err = runs, hash, key, at, nil
}

// next goes on as far as memory leads. It reports whether a block is needed:
// g.read must then be done and given to finish. Otherwise the search has
// ended: found nothing, or g.err says why it could not go on. A table that
// cannot be read ends it, because an older one must not answer in its place.
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
		if !g.lookup.Start(r, g.hash, g.key, g.at) {
			g.handle, g.reader = f.handle, r
			return g.plan()
		}
		err = g.lookup.Err()
		f.handle.Release()
		if err != nil {
			g.err = err
			return false
		}
		g.runs = g.runs[1:]
	}
	return false
}

// plan prepares the read of the block that the lookup needs.
func (g *tableGet) plan() bool {
	g.ref = g.lookup.Need()
	if g.read, g.err = g.reader.Plan(g.ref, &g.buf); g.err != nil {
		g.release()
		return false
	}
	return true
}

// finish takes the block that was read. found says that the search has ended
// with g.version, which is valid until the buffer's next use; otherwise go on
// with next, unless needs says that another block of this table is wanted, or
// g.err is set.
func (g *tableGet) finish() (found, needs bool) {
	data, err := g.reader.Finish(g.ref, &g.read, &g.buf)
	if err != nil && mutant.SkipUnreadableTable {
		g.release()
		g.runs = g.runs[1:]
		return false, false
	}
	if err != nil {
		g.err = err
		g.release()
		return false, false
	}
	if !g.lookup.Feed(data) {
		return false, g.plan()
	}
	g.err = g.lookup.Err()
	g.release()
	if g.err != nil {
		return false, false
	}
	if g.lookup.Found() {
		return true, false
	}
	g.runs = g.runs[1:]
	return false, false
}

func (g *tableGet) release() {
	g.handle.Release()
	g.handle, g.reader = nil, nil
	g.read = vfs.Read{Buf: g.read.Buf}
}

// view gives what was found the form that memtables answer in. Its bytes are
// valid until the buffer's next use.
func (g *tableGet) view(m *memtable.View) {
	v := g.lookup.Version()
	m.Seqno, m.Kind, m.Meta, m.Value = v.Seqno, v.Kind, v.Meta, v.Value
}

// get searches to the end, one block after the other.
func (g *tableGet) get(db *DB, m *memtable.View) (found bool, err error) {
	for g.next() {
		for needs := true; needs; {
			db.countBlockRead(g.ref)
			g.read.N, g.read.Err = g.read.File.ReadAt(g.read.Buf, g.read.Off)
			if found, needs = g.finish(); found {
				g.view(m)
				return true, nil
			}
		}
		if g.err != nil {
			break
		}
	}
	return false, g.err
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
		db.counts.corruptReads.Add(1)
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
	s.get.start(runs, hash, s.key, at)
	found, err = s.get.get(db, m)
	if err != nil {
		return dst, false, db.tableError(err)
	}
	if found && m.Value.HasBytes {
		n := len(dst)
		dst = append(dst, m.Value.Bytes...)
		m.Value.Bytes = dst[n:]
	}
	return dst, found, nil
}

// scratch is the memory of one read of a table: blocks are read into memory
// that the collector does not know.
type scratch struct {
	get tableGet
	key []byte
	of  int32 // which key of a ReadBatch
}

// scratchesMax bounds the scratches kept, which is several batches' worth,
// scratchBytesMax each of them.
const (
	scratchesMax    = 8 * searchesMax
	scratchBytesMax = 256 * kib
)

// scratches keeps some for the next reads.
type scratches struct {
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
	return new(scratch)
}

func (s *scratches) put(x *scratch) {
	x.get.runs, x.get.key = nil, nil
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
