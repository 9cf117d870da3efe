package sstable

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
)

// verifyReadBytes is how much Verify reads at once: the bound for background
// reads.
const verifyReadBytes = 256 << 10

// Verify reads the whole table and checks every sum, the order of all
// versions, that the index leads to each of them, that the filter has every
// key, and that the properties are those of the entries. It returns the first
// thing that is wrong, a *CorruptError, or the error of a read. It needs one
// buffer of 256 KiB and, unless pinned, a filter piece.
func (r *Reader) Verify() error {
	v := verifier{r: r, window: window{max: verifyReadBytes, min: verifyReadBytes}, pieceAt: -1}
	defer v.window.free()
	defer v.pieceBuf.Free()
	v.bufs = make([]Buffer, r.props.IndexLevels)
	defer func() {
		for i := range v.bufs {
			v.bufs[i].Free()
		}
	}()
	for i := range r.foot.pieces {
		if _, err := v.loadPiece(i); err != nil {
			return err
		}
	}
	if err := v.index(r.foot.root, r.base, int(r.props.IndexLevels)-1); err != nil {
		return err
	}
	return v.compare()
}

type verifier struct {
	r      *Reader
	window window
	bufs   []Buffer // of index levels
	cur    cursor

	seen Properties
	uses map[entry.SegmentID]*SegmentUse
	prev []byte
	last entry.Seqno
	end  uint64 // of the last data block

	piece    []byte // the piece asked last, and its number
	pieceAt  int64
	pieceBuf Buffer
	hashes   [filterBatch]uint64 // of the block's keys that the filter was not asked for yet
	hashed   int
	expires  uint64
}

// filterBatch is for how many keys the filter is asked in one go: its pieces
// lie all over the memory, and the processor waits for many of them together
// when nothing else stands between.
const filterBatch = 256

func (v *verifier) bad(ref BlockRef, format string, args ...any) error {
	return corrupt(v.r.file.Name(), int64(ref.Offset), "%v: %s", ref.Kind, fmt.Sprintf(format, args...))
}

func (v *verifier) loadPiece(i uint32) ([]byte, error) {
	if v.pieceAt == int64(i) {
		return v.piece, nil
	}
	ref := v.r.piece(i)
	b := v.r.pinned(ref)
	if b == nil {
		var err error
		if b, err = v.r.load(ref, &v.pieceBuf); err != nil {
			return nil, err
		}
	}
	v.piece, v.pieceAt = b, int64(i)
	return b, nil
}

// index walks everything below an index block.
func (v *verifier) index(ref BlockRef, data []byte, level int) error {
	var c cursor
	if err := c.load(data); err != nil {
		return v.bad(ref, "%v", err)
	}
	c.set(0)
	for i := range c.b.count {
		sep := entry.Version{}
		c.version(&sep)
		child, err := v.r.child(&c.b, &c.c, i, level)
		if err != nil {
			return err
		}
		if level > 0 {
			below := v.r.pinned(child)
			if below == nil {
				if below, err = v.r.load(child, &v.bufs[level-1]); err != nil {
					return err
				}
			}
			if err := v.index(child, below, level-1); err != nil {
				return err
			}
		} else if err := v.dataBlock(child, &c); err != nil {
			return err
		}
		// What follows is above the separator: the next block checks its
		// first version against it.
		if entry.Compare(v.prev, v.last, sep.Key, sep.Seqno) > 0 {
			return v.bad(ref, "separator %q at %d is below %q at %d", sep.Key, sep.Seqno, v.prev, v.last)
		}
		if level == 0 {
			v.prev, v.last = append(v.prev[:0], sep.Key...), sep.Seqno
		}
		c.next()
	}
	return nil
}

func (v *verifier) dataBlock(ref BlockRef, at *cursor) error {
	if ref.Offset < v.end || ref.Offset-v.end >= pageBytes {
		return v.bad(ref, "the block before it ends at %d", v.end)
	}
	v.end = ref.end()
	if !v.window.has(ref) {
		if err := v.window.read(v.r, ref, &at.b, &at.c, at.i, at.b.count-1); err != nil {
			return err
		}
	}
	data, err := v.window.block(v.r, ref)
	if err != nil {
		return err
	}
	if err := v.cur.load(data); err != nil {
		return v.bad(ref, "%v", err)
	}
	c := &v.cur
	s := &v.seen
	s.DataBlocks++
	s.DataStored += uint64(ref.Length)
	s.DataPlain += uint64(c.b.end)
	var e entry.Version
	for c.set(0); c.i < c.b.count; c.next() {
		c.version(&e)
		if err := v.entry(ref, &e, c.i == 0); err != nil {
			return err
		}
	}
	s.Largest = append(s.Largest[:0], v.prev...)
	return v.askFilter(ref)
}

// askFilter looks for the hashes collected, of keys of the data block ref.
func (v *verifier) askFilter(ref BlockRef) error {
	f, probes := &v.r.foot, int(v.r.props.Filter.Probes)
	hashes := v.hashes[:v.hashed]
	v.hashed = 0
	for _, h := range hashes {
		i := pieceOf(h, f.pieces)
		piece := v.r.filter
		if piece != nil {
			piece = piece[int(i)*pieceBytes:][:pieceBytes]
		} else {
			var err error
			if piece, err = v.loadPiece(i); err != nil {
				return err
			}
		}
		if !pieceHas(piece, h, probes) {
			return v.bad(v.r.piece(i), "misses a key of the %v", ref)
		}
	}
	return nil
}

// entry counts an entry of the data block ref, whose first one it is or not,
// and checks that it follows what was before: an entry, or the separator in
// front of the block.
func (v *verifier) entry(ref BlockRef, e *entry.Version, opens bool) error {
	s := &v.seen
	order := bytes.Compare(v.prev, e.Key)
	if order > 0 || order == 0 && v.last <= e.Seqno {
		return v.bad(ref, "%q at %d after %q at %d", e.Key, e.Seqno, v.prev, v.last)
	}
	if len(e.Key) <= entry.VBucketBytes {
		return v.bad(ref, "key of %d bytes", len(e.Key))
	}
	if s.Entries == 0 {
		s.Smallest = bytes.Clone(e.Key)
		s.LowestSeqno = e.Seqno
		v.uses = map[entry.SegmentID]*SegmentUse{}
	}
	fresh := order < 0
	if opens {
		fresh = !bytes.Equal(s.Largest, e.Key)
	}
	if fresh && v.r.foot.pieces > 0 {
		v.hashes[v.hashed] = xxhash.Sum64(e.Key[entry.VBucketBytes:])
		if v.hashed++; v.hashed == filterBatch {
			if err := v.askFilter(ref); err != nil {
				return err
			}
		}
	}
	if !fresh && s.Entries > 0 {
		s.Superseded++
	}
	s.Entries++
	s.KeyBytes += uint64(len(e.Key))
	s.LowestSeqno, s.HighestSeqno = min(s.LowestSeqno, e.Seqno), max(s.HighestSeqno, e.Seqno)
	s.ValueBytes += uint64(len(e.Value.Bytes))
	if e.Kind == entry.KindDelete {
		s.Tombstones++
	} else if e.Meta.Expiry != 0 {
		v.expires++
	}
	if a := e.Value.Address; !a.IsZero() {
		use := v.uses[a.Segment]
		if use == nil {
			use = &SegmentUse{Segment: a.Segment}
			v.uses[a.Segment] = use
		}
		use.Documents++
		use.Bytes += uint64(a.Length)
	}
	if order < 0 {
		v.prev = append(v.prev[:0], e.Key...)
	}
	v.last = e.Seqno
	return nil
}

// compare holds the entries seen against the properties.
func (v *verifier) compare() error {
	s, p := &v.seen, v.r.props
	var expires uint64
	for _, b := range p.Expiry {
		expires += uint64(b.Entries)
	}
	segments := len(p.Segments) == len(v.uses) &&
		!slices.ContainsFunc(p.Segments, func(u SegmentUse) bool { use := v.uses[u.Segment]; return use == nil || *use != u })
	if p.Superseded == 0 {
		s.Superseded = 0 // it does not say
	}
	switch {
	case s.Entries != p.Entries, s.Superseded != p.Superseded, s.Tombstones != p.Tombstones, s.KeyBytes != p.KeyBytes, s.ValueBytes != p.ValueBytes,
		s.LowestSeqno != p.LowestSeqno, s.HighestSeqno != p.HighestSeqno,
		!bytes.Equal(s.Smallest, p.Smallest), !bytes.Equal(s.Largest, p.Largest),
		s.DataStored != p.DataStored, s.DataPlain != p.DataPlain, s.DataBlocks != p.DataBlocks,
		v.end != v.r.foot.dataBytes, expires != v.expires, !segments:
		return corrupt(v.r.file.Name(), int64(v.r.foot.properties.Offset), "properties do not fit the entries: %+v, seen %+v", *p, *s)
	}
	return nil
}
