package lsm

import (
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// probeBytes is a table in memory, for the liveness probe. It is loaded by the
// one collection that runs, and freed with the table.
type probeBytes struct {
	bytes []byte // the file, from its start; nil when it is not in memory
}

// loadProbe brings the table into memory when the budget allows it. One that
// cannot be read is not asked: its keys count as live.
func (f *tableFile) loadProbe(db *DB) {
	if f.probe.Load() != nil {
		return
	}
	n := int(f.meta.FileBytes)
	if !db.memory.reserveProbe(int64(n)) {
		return
	}
	b, err := offheap.AlignedBuffer(n)
	if err == nil {
		if err = f.readAll(b); err == nil {
			f.probe.Store(&probeBytes{b})
			return
		}
		offheap.FreeAligned(b)
	}
	db.memory.releaseProbe(int64(n))
	db.o.Logf("%v is not asked about liveness: %v", f, err)
}

func (f *tableFile) readAll(b []byte) error {
	r, err := f.handle.Acquire()
	if err != nil {
		return err
	}
	defer f.handle.Release()
	for off := 0; off < len(b); off += scanMergeBytes {
		piece := b[off:min(off+scanMergeBytes, len(b))]
		if _, err := r.File().ReadAt(piece, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// freeProbe gives the memory back. Nobody asks any more.
func (h *tableHandle) freeProbe(db *DB) {
	if p := h.probe.Swap(nil); p != nil {
		db.memory.releaseProbe(int64(len(p.bytes)))
		offheap.FreeAligned(p.bytes)
	}
}

// probeFor returns the seqno of the newest version of an internal key at or
// below at, if the table is in memory and has one. g lends its memory. Blocks are
// verified each time; a bad one answers nothing.
func (f *tableFile) probeFor(g *tableGet, hash uint64, key []byte, at Seqno) (Seqno, bool) {
	p := f.probe.Load()
	if p == nil {
		return 0, false
	}
	r, err := f.handle.Acquire()
	if err != nil {
		return 0, false
	}
	defer f.handle.Release()
	for done := g.lookup.Start(r, hash, key, at); !done; {
		ref := g.lookup.Need()
		from := int64(ref.Offset)
		// Whole pages, as they would have been read.
		page := from &^ (vfs.BlockBytes - 1)
		end := min((from+int64(ref.Length)+vfs.BlockBytes-1)&^(vfs.BlockBytes-1), int64(len(p.bytes)))
		read := vfs.Read{File: r.File(), Buf: p.bytes[page:end], Off: page, N: int(end - page)}
		data, err := r.Finish(ref, &read, &g.buf)
		if err != nil {
			return 0, false
		}
		done = g.lookup.Feed(data)
	}
	if g.lookup.Err() != nil || !g.lookup.Found() {
		return 0, false
	}
	return g.lookup.Version().Seqno, true
}
