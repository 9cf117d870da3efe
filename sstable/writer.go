package sstable

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// WriterOptions say how a table is written. Zero values are the defaults.
type WriterOptions struct {
	// Number is the table's number, not 0: it is in the file's name and under
	// every checksum. StoreID ties the table to its store.
	Number  uint64
	StoreID [16]byte
	// KVStore is recorded in the properties.
	KVStore uint16
	// BlockBytes is the stored size at which data blocks are cut, 512 bytes
	// to 1 MiB. Default 4096: one device read. Larger ones compress better and
	// cost more to read.
	BlockBytes int
	// Compression of data blocks. With Snappy a block is filled until its
	// compressed size reaches BlockBytes.
	Compression Compression
	// BloomBits is the size of the filter, in bits a key, at most 64; 0 means
	// no filter.
	BloomBits int
	// WriteBufferBytes is the size of the one buffer, rounded up to 4096, and
	// thereby of every write. Default 1 MiB.
	WriteBufferBytes int
	// Pace, if set, is called before each write with its size; it may sleep.
	Pace func(bytes int)
	// Warm, if set, is handed each data block as it is written: its offset, and
	// what Reader.Finish will return for it. The bytes are valid during the call.
	Warm func(offset uint64, data []byte)
}

const writeBufferBytesDefault = 1 << 20

func (o *WriterOptions) withDefaults() {
	if o.BlockBytes == 0 {
		o.BlockBytes = pageBytes
	}
	if o.WriteBufferBytes == 0 {
		o.WriteBufferBytes = writeBufferBytesDefault
	}
}

func (o *WriterOptions) validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf("sstable: "+format, args...)) }
	if o.Number == 0 {
		bad("Number 0: want a table number")
	}
	if o.BlockBytes < BlockBytesMin || o.BlockBytes > BlockBytesMax {
		bad("BlockBytes %d: want %d to %d", o.BlockBytes, BlockBytesMin, BlockBytesMax)
	}
	if o.Compression > Snappy {
		bad("Compression %d: want none or snappy", o.Compression)
	}
	if o.BloomBits < 0 || o.BloomBits > BloomBitsMax {
		bad("BloomBits %d: want 0 to %d", o.BloomBits, BloomBitsMax)
	}
	if o.WriteBufferBytes < 1 || o.WriteBufferBytes > 1<<30 {
		bad("WriteBufferBytes %d: want 1 byte to 1 GiB", o.WriteBufferBytes)
	}
	return errors.Join(all...)
}

// Writer makes one table. It is not safe for concurrent use. An error of Add
// or Finish is final: the file is then not a table.
type Writer struct {
	o     WriterOptions
	out   *output
	data  blockBuilder
	spare blockBuilder // of blocks cut shorter than what was collected
	prev  []byte       // last key added
	last  entry.Seqno  // and its seqno
	entry blockEntry

	stored []byte // scratch
	warm   []byte // the block as o.Warm gets it
	packed packer

	// pending is the last block written: its separator needs the first key of
	// the next.
	pending struct {
		ref   BlockRef
		key   []byte
		seqno uint64
	}
	separator []byte
	index     *indexLevel
	hashes    hashList // of the distinct keys
	props     Properties
	segments  map[entry.SegmentID]int // place in props.Segments
	expiry    expiryHistogram
	err       error
}

// NewWriter starts a table in f, an empty file open for writing, direct or
// not. The caller keeps f, and closes it after Close.
func NewWriter(f vfs.File, o WriterOptions) (*Writer, error) {
	o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	out, err := newOutput(f, o.WriteBufferBytes, o.Pace)
	if err != nil {
		return nil, err
	}
	w := &Writer{o: o, out: out, segments: map[entry.SegmentID]int{}}
	w.index = &indexLevel{target: min(o.BlockBytes, pageBytes), number: o.Number}
	w.packed.start(o.BlockBytes - trailerBytes)
	w.props.Number, w.props.KVStore = o.Number, o.KVStore
	w.props.LowestSeqno = entry.MaxSeqno
	return w, nil
}

// Close gives the memory back. It does not touch the file; a table that was
// not finished is the caller's to remove.
func (w *Writer) Close() {
	if w.out != nil {
		w.out.free()
		w.out = nil
		w.err = errors.New("sstable: writer is closed")
	}
}

// Add appends a version; v must follow the one before in the order of
// entry.Compare. hash is xxhash64 (seed 0) of the user key. A document that
// has an address is stored by it, even when its bytes are at hand. Nothing of
// v is kept.
func (w *Writer) Add(v *entry.Version, hash uint64) error {
	if w.err != nil {
		return w.err
	}
	if err := w.add(v, hash); err != nil {
		w.err = err
	}
	return w.err
}

func (w *Writer) add(v *entry.Version, hash uint64) error {
	if err := checkVersion(v); err != nil {
		return err
	}
	common := lcp(w.prev, v.Key)
	fresh := common < len(v.Key) // for keys in order: differs from the last one
	if w.props.Entries > 0 {
		// In order means: goes on behind the last key, or is above it at the
		// first difference, or is the same key with a lower seqno.
		switch {
		case common < len(w.prev) && fresh:
			if v.Key[common] < w.prev[common] {
				return fmt.Errorf("%w: %q after %q", ErrOrder, v.Key, w.prev)
			}
		case common < len(w.prev):
			return fmt.Errorf("%w: %q after %q", ErrOrder, v.Key, w.prev)
		case !fresh && v.Seqno >= w.last:
			return fmt.Errorf("%w: %q at seqno %d after %d", ErrOrder, v.Key, v.Seqno, w.last)
		}
	}
	e := &w.entry
	// What meta does not name is not looked at, and stays as it was.
	e.key, e.seqno, e.meta = v.Key, uint64(v.Seqno), metaOf(v)
	if e.meta>>2 != 0 {
		e.fields = v.Meta
	}
	switch e.meta & metaKind {
	case metaInline:
		e.value = v.Value.Bytes
	case metaAddress:
		a := v.Value.Address
		e.address = [3]uint64{uint64(a.Segment), uint64(a.Offset), uint64(a.Length)}
	}
	if err := w.place(e, common); err != nil {
		return err
	}
	w.count(v, e)
	if !fresh && w.props.Entries > 1 {
		w.props.Superseded++
	}
	if fresh || w.props.Entries == 1 {
		w.prev = append(w.prev[:0], v.Key...)
		if w.o.BloomBits > 0 {
			w.hashes.add(hash)
		}
	}
	w.last = v.Seqno
	return w.out.err
}

func checkVersion(v *entry.Version) error {
	switch {
	case len(v.Key) <= entry.VBucketBytes || len(v.Key) > keyBytesMax:
		return fmt.Errorf("sstable: internal key of %d bytes", len(v.Key))
	case v.Seqno > entry.MaxSeqno:
		return fmt.Errorf("sstable: seqno %d is out of range", v.Seqno)
	case v.Kind > entry.KindDelete:
		return fmt.Errorf("sstable: %v is not stored in tables", v.Kind)
	case v.Kind == entry.KindSet && v.Value.Address.IsZero() && !v.Value.HasBytes:
		return errors.New("sstable: document with neither bytes nor address")
	case v.Kind == entry.KindSet && v.Value.Address.IsZero() && len(v.Value.Bytes) > MaxInlineBytes:
		return fmt.Errorf("sstable: inline value of %d bytes", len(v.Value.Bytes))
	}
	return nil
}

func metaOf(v *entry.Version) byte {
	m := byte(metaInline)
	switch {
	case v.Kind == entry.KindDelete:
		m = metaDelete
	case !v.Value.Address.IsZero():
		m = metaAddress
	}
	if v.Meta.IsZero() {
		return m
	}
	if v.Meta.Flags != 0 {
		m |= metaFlags
	}
	if v.Meta.Expiry != 0 {
		m |= metaExpiry
	}
	if v.Meta.Datatype != 0 {
		m |= metaDatatype
	}
	if v.Meta.CAS != 0 {
		m |= metaCAS
	}
	return m
}

// place puts e into the open block, after writing what is full.
func (w *Writer) place(e *blockEntry, common int) error {
	if w.o.Compression == NoCompression {
		limit := w.o.BlockBytes - trailerBytes
		if _, ok := w.data.tryAdd(e, common, limit, 1); ok {
			return nil
		}
		w.writeBlock(&w.data)
		w.data.reset()
		w.data.tryAdd(e, 0, limit, 1)
		return nil
	}
	payload, ok := w.data.tryAdd(e, common, narrowBytesMax, 1)
	for !ok || w.packed.due(payload) {
		cut := w.packed.cut(&w.data, !ok)
		if cut == 0 {
			return nil // there is room for more
		}
		w.writeFront(cut)
		if !ok {
			payload, ok = w.data.tryAdd(e, w.commonWithLast(e), narrowBytesMax, 1)
		} else if w.data.size.count > 0 {
			payload, _ = w.data.payloadBytes(&w.data.size)
		} else {
			break
		}
	}
	return nil
}

func (w *Writer) commonWithLast(e *blockEntry) int {
	if n := w.data.size.count; n > 0 {
		return lcp(w.data.key(n-1), e.key)
	}
	return 0
}

// writeFront writes the first n entries of the open block as one block and
// leaves the others in it.
func (w *Writer) writeFront(n int) {
	all := &w.data
	if n == all.size.count {
		w.writeBlock(all)
		all.reset()
		return
	}
	w.spare.reset()
	w.spare.take(all, 0, n)
	w.writeBlock(&w.spare)
	w.spare.reset()
	w.spare.take(all, n, all.size.count)
	w.data, w.spare = w.spare, w.data
}

// writeBlock writes the entries of b as one data block.
func (w *Writer) writeBlock(b *blockBuilder) {
	w.stored = b.encode(w.stored[:0])
	plain := len(w.stored)
	kind := NoCompression
	if w.o.Warm != nil {
		w.warm = append(append(w.warm[:0], w.stored...), make([]byte, tailBytes)...)
	}
	if w.o.Compression == Snappy {
		if c := w.packed.compress(w.stored); len(c) < plain {
			kind = Snappy
			w.stored = append(w.stored[:0], c...)
		}
	}
	w.stored = sealBlock(w.stored, kind, w.o.Number)
	if w.pending.ref.Length > 0 {
		w.addPending(b.key(0))
	}
	last := b.size.count - 1
	w.pending.ref = BlockRef{Offset: w.out.block(w.stored), Length: uint32(len(w.stored))}
	if w.o.Warm != nil {
		w.o.Warm(w.pending.ref.Offset, w.warm)
	}
	w.pending.key = append(w.pending.key[:0], b.key(last)...)
	w.pending.seqno = b.seqnos[last]
	w.props.DataStored += uint64(len(w.stored))
	w.props.DataPlain += uint64(plain)
	w.props.DataBlocks++
}

// addPending gives the last block its index entry; next is the key behind it.
func (w *Writer) addPending(next []byte) {
	p := &w.pending
	if bytes.Equal(p.key, next) {
		w.index.add(p.key, p.seqno, p.ref)
		return
	}
	w.separator = appendSeparator(w.separator[:0], p.key, next)
	w.index.add(w.separator, 0, p.ref)
}

func (w *Writer) count(v *entry.Version, e *blockEntry) {
	p := &w.props
	if p.Entries == 0 {
		p.Smallest = append(p.Smallest, v.Key...)
	}
	p.Entries++
	p.KeyBytes += uint64(len(v.Key))
	p.LowestSeqno, p.HighestSeqno = min(p.LowestSeqno, v.Seqno), max(p.HighestSeqno, v.Seqno)
	size := uint64(len(v.Key))
	switch e.meta & metaKind {
	case metaInline:
		p.ValueBytes += uint64(len(v.Value.Bytes))
		size += uint64(len(v.Value.Bytes))
	case metaAddress:
		a := v.Value.Address
		i, ok := w.segments[a.Segment]
		if !ok {
			i = len(p.Segments)
			w.segments[a.Segment] = i
			p.Segments = append(p.Segments, SegmentUse{Segment: a.Segment})
		}
		p.Segments[i].Documents++
		p.Segments[i].Bytes += uint64(a.Length)
		size += uint64(a.Length)
	default:
		p.Tombstones++
	}
	if e.meta&metaExpiry != 0 && e.meta&metaKind != metaDelete {
		w.expiry.add(v.Meta.Expiry, size)
	}
}

// EstimatedBytes is about the size of the file if Finish were called now, to
// cut tables by.
func (w *Writer) EstimatedBytes() int64 {
	if w.out == nil || w.props.Entries == 0 {
		return 0
	}
	open, _ := w.data.payloadBytes(&w.data.size)
	if w.data.size.count == 0 {
		open = 0
	}
	filter := int64(filterPieces(w.hashes.len(), w.o.BloomBits)) * pieceBytes
	return w.out.pos() + w.packed.estimate(open) + filter + int64(w.index.bytes()) + pageBytes
}

// Entries is how many versions were added.
func (w *Writer) Entries() uint64 { return w.props.Entries }

// Finish writes what is left and syncs the file; the directory is the
// caller's to sync. It returns what the table is and the length of its file.
func (w *Writer) Finish() (*Properties, int64, error) {
	if w.err != nil {
		return nil, 0, w.err
	}
	p, size, err := w.finish()
	if err != nil {
		w.err = err
		return nil, 0, err
	}
	w.err = errors.New("sstable: table is finished")
	return p, size, nil
}

func (w *Writer) finish() (*Properties, int64, error) {
	p := &w.props
	if p.Entries == 0 {
		return nil, 0, ErrEmpty
	}
	for w.data.size.count > 0 {
		n := w.data.size.count
		if w.o.Compression == Snappy {
			n = w.packed.cut(&w.data, true)
		}
		w.writeFront(n)
	}
	p.Largest = append([]byte(nil), w.prev...)
	p.Expiry = w.expiry.buckets
	slices.SortFunc(p.Segments, func(a, b SegmentUse) int { return int(int64(a.Segment) - int64(b.Segment)) })
	f := footer{dataBytes: uint64(w.out.pos()), number: w.o.Number, storeID: w.o.StoreID, compression: w.o.Compression}
	if err := w.writeFilter(&f); err != nil {
		return nil, 0, err
	}
	w.index.add(w.pending.key, 0, w.pending.ref)
	f.root = w.writeIndex()
	w.stored = sealBlock(p.encode(w.stored[:0]), NoCompression, w.o.Number)
	f.properties = BlockRef{Offset: w.out.block(w.stored), Length: uint32(len(w.stored))}
	if len(w.stored) > payloadBytesMax {
		return nil, 0, fmt.Errorf("sstable: properties of %d bytes", len(w.stored))
	}
	// The footer ends the last page.
	if pageBytes-w.out.pos()%pageBytes < footerBytes {
		w.out.pad()
	}
	w.stored = append(w.stored[:0], make([]byte, pageBytes-w.out.pos()%pageBytes-footerBytes)...)
	w.out.write(f.encode(w.stored))
	w.out.flush()
	if w.out.err != nil {
		return nil, 0, w.out.err
	}
	if err := mutant.Skip(mutant.SkipTableSync, w.out.file.Sync); err != nil {
		return nil, 0, fmt.Errorf("sync %s: %w", w.out.file.Name(), err)
	}
	return p, w.out.pos(), nil
}

func (w *Writer) writeFilter(f *footer) error {
	n := min(filterPieces(w.hashes.len(), w.o.BloomBits), piecesMax)
	if n == 0 {
		return nil
	}
	filter, err := offheap.Map(n * pieceBytes)
	if err != nil {
		return fmt.Errorf("filter of %s: %w", w.out.file.Name(), err)
	}
	defer offheap.Unmap(filter)
	k := probes(w.o.BloomBits)
	for _, chunk := range append(w.hashes.full, w.hashes.last) {
		for _, h := range chunk {
			i := int(pieceOf(h, uint32(n)))
			pieceAdd(filter[i*pieceBytes:(i+1)*pieceBytes], h, k)
		}
	}
	w.out.pad()
	f.filterOffset, f.pieces = uint64(w.out.pos()), uint32(n)
	w.out.write(filter)
	w.stored = w.stored[:0]
	for i := range n {
		w.stored = le.AppendUint64(w.stored, sum64(w.o.Number, filter[i*pieceBytes:(i+1)*pieceBytes]))
	}
	w.stored = sealBlock(w.stored, NoCompression, w.o.Number)
	w.out.write(w.stored)
	w.props.Filter = FilterProperties{Kind: filterKind, Probes: uint8(k), BitsPerKey: uint8(w.o.BloomBits), Pieces: uint32(n)}
	return nil
}

// writeIndex writes all levels and returns the root.
func (w *Writer) writeIndex() BlockRef {
	for l := w.index; ; {
		l.close()
		up := &indexLevel{target: l.target, number: l.number, level: l.level + 1}
		for i := range l.ends {
			stored, key, seqno := l.block(i)
			ref := BlockRef{Offset: w.out.block(stored), Length: uint32(len(stored)), Kind: IndexBlock}
			if len(l.ends) == 1 {
				w.props.IndexLevels = uint8(l.level + 1)
				return ref
			}
			up.add(key, seqno, ref)
		}
		l = up
	}
}
