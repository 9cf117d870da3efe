package sstable

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/golang/snappy"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// ReaderOptions say which table is expected and what stays in memory.
type ReaderOptions struct {
	// Number and StoreID must be those the table was written with.
	Number  uint64
	StoreID [16]byte
	// PinIndex keeps all index blocks in memory, about 0.15 bytes an entry;
	// otherwise only the root stays.
	PinIndex bool
	// PinFilter keeps the filter in memory, BloomBits a key.
	PinFilter bool
	// Memory is what MemoryBytes are charged to until Close: the root
	// whatever its limit says, the index and then the filter only if they
	// fit; they are not pinned otherwise. Nil: no bound.
	Memory *offheap.Budget
}

// Reader reads one table. It is safe for concurrent use until Close.
type Reader struct {
	file  vfs.File
	size  int64
	foot  footer
	props *Properties
	root  Buffer
	base  []byte // decoded root, in root
	sums  []byte // of filter pieces, 8 bytes each

	filter []byte // pinned, or nil
	index  []byte // pinned stored bytes from foot.indexStart to the root's end, or nil

	memory  *offheap.Budget
	charged int64 // to memory

	rereads atomic.Int64
}

// Open reads footer, properties, root and the sums of the filter, and checks
// that they agree. The error is a *CorruptError for a damaged table, which
// says that nothing of it can be trusted, or that of a read. The Reader takes
// over f, open for reading, direct or not; when Open fails it stays the
// caller's.
func Open(f vfs.File, o ReaderOptions) (*Reader, error) {
	size, err := f.Size()
	if err != nil {
		return nil, vfs.Unreadable(f.Name(), fmt.Errorf("size of %s: %w", f.Name(), err))
	}
	if size < pageBytes || size%pageBytes != 0 || size > tableBytesMax {
		return nil, corrupt(f.Name(), 0, "%d bytes is not the length of a table", size)
	}
	r := &Reader{file: f, size: size, memory: o.Memory}
	if err := r.open(o); err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

func (r *Reader) open(o ReaderOptions) error {
	var buf Buffer
	defer buf.Free()
	// The footer lies in the last page. A read that fails its sum is done
	// twice before it is called damage.
	for try := 0; ; try++ {
		if err := buf.grow(pageBytes); err != nil {
			return err
		}
		page := buf.raw[:pageBytes]
		if err := r.readFull(page, r.size-pageBytes); err != nil {
			return err
		}
		var err error
		r.foot, err = decodeFooter(page[pageBytes-footerBytes:], r.size, o.Number, o.StoreID)
		if err == nil {
			break
		}
		if try > 0 {
			return corrupt(r.file.Name(), r.size-footerBytes, "%v", err)
		}
		r.rereads.Add(1)
	}
	at := r.foot.properties
	b, err := r.loadPlain(at, &buf)
	if err != nil {
		return err
	}
	if r.props, err = decodeProperties(b); err != nil {
		return corrupt(r.file.Name(), int64(at.Offset), "properties: %v", err)
	}
	p, f := r.props, &r.foot
	if p.Number != f.number || p.Filter.Pieces != f.pieces || p.DataStored > f.dataBytes {
		return corrupt(r.file.Name(), int64(at.Offset), "properties and footer disagree")
	}
	if f.pieces > 0 {
		at := f.sums()
		b, err := r.loadPlain(at, &buf)
		if err != nil {
			return err
		}
		r.sums = append([]byte(nil), b...)
	}
	if r.base, err = r.load(f.root, &r.root); err != nil {
		return err
	}
	if n := int64(r.MemoryBytes()); r.memory != nil {
		r.memory.Reserve(n)
		r.charged = n
	}
	if from, n := r.indexPages(); o.PinIndex && r.charge(n) {
		if err := r.pinIndex(from, n); err != nil {
			return err
		}
	}
	if o.PinFilter && f.pieces > 0 && r.charge(int(f.pieces)*pieceBytes) {
		return r.pinFilter(&buf)
	}
	return nil
}

// charge takes n bytes of the budget, if they fit.
func (r *Reader) charge(n int) bool {
	if r.memory == nil {
		return true
	}
	if !r.memory.TryReserve(int64(n)) {
		return false
	}
	r.charged += int64(n)
	return true
}

// loadPlain reads a block that is neither data nor index: its payload is
// looked at by the caller.
func (r *Reader) loadPlain(ref BlockRef, buf *Buffer) ([]byte, error) {
	rd, err := r.Plan(ref, buf)
	if err != nil {
		return nil, err
	}
	if err := r.readFull(rd.Buf, rd.Off); err != nil {
		return nil, err
	}
	stored := rd.Buf[int64(ref.Offset)-rd.Off:][:ref.Length]
	if !r.sumFits(ref, stored) {
		r.rereads.Add(1)
		if err := r.readFull(rd.Buf, rd.Off); err != nil {
			return nil, err
		}
		if !r.sumFits(ref, stored) {
			return nil, corrupt(r.file.Name(), int64(ref.Offset), "wrong sum of %d bytes", ref.Length)
		}
	}
	if stored[len(stored)-trailerBytes] != byte(NoCompression) {
		return nil, corrupt(r.file.Name(), int64(ref.Offset), "unexpected compression")
	}
	return stored[:len(stored)-trailerBytes], nil
}

// indexPages is where all index blocks lie, in whole pages.
func (r *Reader) indexPages() (start int64, n int) {
	start = int64(r.foot.indexStart()) &^ (pageBytes - 1)
	return start, int(roundPage(int64(r.foot.root.end())) - start)
}

// pinIndex reads the index, n bytes from start, in one piece and checks every
// block of it.
func (r *Reader) pinIndex(start int64, n int) error {
	b, err := offheap.AlignedBuffer(n)
	if err != nil {
		return fmt.Errorf("index of %s: %w", r.file.Name(), err)
	}
	if err := r.readFull(b, start); err != nil {
		offheap.FreeAligned(b)
		return err
	}
	r.index = b
	var buf Buffer
	defer buf.Free()
	return r.walkIndex(r.base, int(r.props.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
		if level < 0 {
			return nil, nil
		}
		stored := r.index[int64(ref.Offset)-start:][:ref.Length]
		if !r.sumFits(ref, stored) {
			again, err := r.reread(ref, &buf)
			if err != nil {
				return nil, err
			}
			return r.index[int64(ref.Offset)-start:][:copy(stored, again)], nil
		}
		return r.check(ref, stored, nil)
	})
}

// walkIndex visits all blocks below an index block in order of keys, each
// before the blocks below it. visit returns the decoded index block for
// level >= 0; level is -1 for data blocks.
func (r *Reader) walkIndex(data []byte, level int, visit func(level int, ref BlockRef) ([]byte, error)) error {
	var b block
	var c columns
	if err := b.parse(data); err != nil {
		return corrupt(r.file.Name(), 0, "%v", err)
	}
	if err := b.columns(&c); err != nil {
		return corrupt(r.file.Name(), 0, "%v", err)
	}
	for i := range b.count {
		ref, err := r.child(&b, &c, i, level)
		if err != nil {
			return err
		}
		below, err := visit(level-1, ref)
		if err != nil {
			return err
		}
		if level > 0 {
			if err := r.walkIndex(below, level-1, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Reader) pinFilter(buf *Buffer) error {
	b, err := offheap.AlignedBuffer(int(r.foot.pieces) * pieceBytes)
	if err != nil {
		return fmt.Errorf("filter of %s: %w", r.file.Name(), err)
	}
	r.filter = b
	if err := r.readFull(b, int64(r.foot.filterOffset)); err != nil {
		return err
	}
	for i := range r.foot.pieces {
		ref := r.piece(i)
		into := b[i*pieceBytes:][:pieceBytes]
		if r.sumFits(ref, into) {
			continue
		}
		again, err := r.reread(ref, buf)
		if err != nil {
			return err
		}
		copy(into, again)
	}
	return nil
}

// piece names filter piece i.
func (r *Reader) piece(i uint32) BlockRef {
	return BlockRef{Offset: r.foot.filterOffset + uint64(i)*pieceBytes, Length: pieceBytes, Kind: FilterPiece}
}

// Properties describe the table. They must not be changed and are valid until
// Close.
func (r *Reader) Properties() *Properties { return r.props }

// FileBytes is the length of the file.
func (r *Reader) FileBytes() int64 { return r.size }

// File is the table's file, for reads that Plan prepared.
func (r *Reader) File() vfs.File { return r.file }

// MemoryBytes is what the Reader holds in memory besides its properties.
func (r *Reader) MemoryBytes() int {
	return r.root.Bytes() + len(r.sums) + len(r.filter) + len(r.index)
}

// Rereads counts blocks that failed their sum and were read once more.
func (r *Reader) Rereads() int64 { return r.rereads.Load() }

// Close closes the file and gives memory back. Nobody may use the Reader, its
// iterators or what they returned afterwards.
func (r *Reader) Close() error {
	r.free()
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("close %s: %w", r.file.Name(), err)
	}
	return nil
}

func (r *Reader) free() {
	r.root.Free()
	offheap.FreeAligned(r.filter)
	offheap.FreeAligned(r.index)
	r.filter, r.index = nil, nil
	if r.charged > 0 {
		r.memory.Release(r.charged)
		r.charged = 0
	}
}

// Plan returns the read that fetches block ref into buf: whole pages, so that
// it works on direct files. The caller does it, alone or with others by
// a vfs.IO, and hands it to Finish. ref must come from this table.
func (r *Reader) Plan(ref BlockRef, buf *Buffer) (vfs.Read, error) {
	from := int64(ref.Offset) &^ (pageBytes - 1)
	n := int(roundPage(int64(ref.end())) - from)
	if err := buf.grow(n); err != nil {
		return vfs.Read{}, err
	}
	return vfs.Read{File: r.file, Buf: buf.raw[:n], Off: from}, nil
}

// Finish verifies and decodes block ref, which rd read into buf. A block that
// fails its sum is read once more before a *CorruptError is returned. The
// result is what Lookup.Feed takes; it aliases buf.
func (r *Reader) Finish(ref BlockRef, rd *vfs.Read, buf *Buffer) ([]byte, error) {
	if err := r.outcome(rd.Buf, rd.Off, rd.N, rd.Err); err != nil {
		return nil, err
	}
	stored := rd.Buf[int64(ref.Offset)-rd.Off:][:ref.Length]
	if !r.sumFits(ref, stored) {
		r.rereads.Add(1)
		if err := r.readFull(rd.Buf, rd.Off); err != nil {
			return nil, err
		}
	}
	return r.check(ref, stored, buf)
}

// load reads and decodes one block.
func (r *Reader) load(ref BlockRef, buf *Buffer) ([]byte, error) {
	rd, err := r.Plan(ref, buf)
	if err != nil {
		return nil, err
	}
	rd.N, rd.Err = r.file.ReadAt(rd.Buf, rd.Off)
	return r.Finish(ref, &rd, buf)
}

// reread reads a block that failed its sum once more, alone.
func (r *Reader) reread(ref BlockRef, buf *Buffer) ([]byte, error) {
	r.rereads.Add(1)
	rd, err := r.Plan(ref, buf)
	if err != nil {
		return nil, err
	}
	if err := r.readFull(rd.Buf, rd.Off); err != nil {
		return nil, err
	}
	return r.check(ref, rd.Buf[int64(ref.Offset)-rd.Off:][:ref.Length], buf)
}

func (r *Reader) readFull(b []byte, off int64) error {
	n, err := r.file.ReadAt(b, off)
	return r.outcome(b, off, n, err)
}

func (r *Reader) outcome(b []byte, off int64, n int, err error) error {
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return corrupt(r.file.Name(), off+int64(n), "file ends within the %d bytes at %d", len(b), off)
	}
	return vfs.Unreadable(r.file.Name(), fmt.Errorf("read %d bytes at %d of %s: %w", len(b), off, r.file.Name(), err))
}

func (r *Reader) sumFits(ref BlockRef, stored []byte) bool {
	if ref.Kind == FilterPiece {
		i := (ref.Offset - r.foot.filterOffset) / pieceBytes
		return sum64(r.foot.number, stored) == le.Uint64(r.sums[8*i:])
	}
	n := len(stored) - 8
	return sum64(r.foot.number, stored[:n]) == le.Uint64(stored[n:])
}

// check verifies the sum of a stored block, decompresses it into buf and looks
// at everything in it that later accesses rely on.
func (r *Reader) check(ref BlockRef, stored []byte, buf *Buffer) ([]byte, error) {
	bad := func(format string, args ...any) error {
		return corrupt(r.file.Name(), int64(ref.Offset), "%v: %s", ref.Kind, fmt.Sprintf(format, args...))
	}
	if !r.sumFits(ref, stored) {
		return nil, bad("wrong sum of %d bytes", ref.Length)
	}
	if ref.Kind == FilterPiece {
		return stored, nil
	}
	n := len(stored) - trailerBytes
	var data []byte
	switch kind := Compression(stored[n]); {
	case kind == NoCompression:
		data = stored[:n+tailBytes]
	case kind == Snappy && ref.Kind == DataBlock:
		plain, err := snappy.DecodedLen(stored[:n])
		if err != nil || plain > payloadBytesMax {
			return nil, bad("impossible plain length")
		}
		if cap(buf.plain) < plain+tailBytes {
			buf.plain = make([]byte, plain+tailBytes, plain+plain/4+tailBytes)
		}
		data = buf.plain[:plain+tailBytes]
		if _, err := snappy.Decode(data[:plain], stored[:n]); err != nil {
			return nil, bad("decompress: %v", err)
		}
	default:
		return nil, bad("unexpected %v compression", kind)
	}
	var b block
	err := b.parse(data)
	if err == nil {
		err = b.check(ref.Kind == IndexBlock)
	}
	if err != nil {
		return nil, bad("%v", err)
	}
	if ref.Kind == IndexBlock && (b.shape&(shapeMeta|shapeAddresses) != shapeMeta|shapeAddresses || b.meta != metaAddress) {
		return nil, bad("entries that are no places of blocks")
	}
	return data, nil
}

// child returns the block that entry i of an index block of this level points
// to, after checking that it can be one.
func (r *Reader) child(b *block, c *columns, i, level int) (BlockRef, error) {
	named, ref := b.ref(c, i)
	from, to := uint64(0), r.foot.dataBytes
	if level > 0 {
		ref.Kind = IndexBlock
		from, to = r.foot.indexStart(), r.foot.root.Offset
	}
	// All of these are below 2^56 and 2^32: sums do not wrap.
	if named != uint64(level) || ref.Length <= trailerBytes || ref.Length > payloadBytesMax+trailerBytes ||
		ref.Offset < from || ref.end() > to {
		return ref, corrupt(r.file.Name(), int64(ref.Offset), "index of level %d names level %d, %v", level, named, ref)
	}
	return ref, nil
}

// pinned returns the decoded block when it is in memory.
func (r *Reader) pinned(ref BlockRef) []byte {
	switch {
	case ref.Kind == FilterPiece && r.filter != nil:
		return r.filter[ref.Offset-r.foot.filterOffset:][:pieceBytes]
	case ref.Kind == IndexBlock && r.index != nil:
		start := r.foot.indexStart() &^ (pageBytes - 1)
		return r.index[ref.Offset-start:][:ref.Length-trailerBytes+tailBytes]
	}
	return nil
}

// Get finds the newest version of key with a seqno of at most at. key is an
// internal key, hash xxhash64 (seed 0) of its user key. buf is used for every
// block that is not in memory; v's value aliases it or the Reader, v.Key is
// key. It allocates nothing once buf has grown.
func (r *Reader) Get(hash uint64, key []byte, at entry.Seqno, buf *Buffer, v *entry.Version) (found bool, err error) {
	var l Lookup
	for done := l.Start(r, hash, key, at); !done; {
		data, err := r.load(l.Need(), buf)
		if err != nil {
			return false, err
		}
		done = l.Feed(data)
	}
	if l.err != nil || !l.found {
		return false, l.err
	}
	*v = l.version
	return true, nil
}
