package sstable

// readAheadMax bounds the memory of an iterator.
const readAheadMax = 4 << 20

// window is a stretch of the file in memory, whole data blocks that follow
// each other, from which they are taken without a read each:
//
//	blocks   a b c d e f g h i j k l m n
//	reads    a|b c|d e f g|h i j k l m n     one block, two, four, .. up to max
//
// The zero window reads block by block.
type window struct {
	max, min int // bytes of blocks to read at once, at most and at first
	size     int // that the last read aimed at
	buf      Buffer
	one      Buffer // for plain bytes, and for a block that is read again
	from     int64  // of buf in the file
	n        int    // valid bytes of buf
	next     uint64 // where the block behind the last one taken starts, at least
}

// has reports whether a block is in memory.
func (w *window) has(ref BlockRef) bool {
	return int64(ref.Offset) >= w.from && int64(ref.end()) <= w.from+int64(w.n)
}

// read reads the block that entry i of an index block of level 0 names, and
// those behind it up to entry last as far as they are worth it.
func (w *window) read(r *Reader, ref BlockRef, b *block, c *columns, i, last int) error {
	if ref.Offset >= w.next && ref.Offset < w.next+pageBytes {
		w.size = min(max(2*w.size, w.min), w.max) // a run of blocks
	} else {
		w.size = w.min
	}
	// Stored blocks may be shorter than one page, and a page is what is read.
	from := int64(ref.Offset) &^ (pageBytes - 1)
	end := ref.end()
	w.size = max(w.size, int(roundPage(int64(end))-from))
	for i++; i <= last; i++ {
		following, err := r.child(b, c, i, 0)
		if err != nil || following.Offset < end || following.end() > uint64(from)+uint64(w.size) {
			break // an error is met when this block is asked for
		}
		end = following.end()
	}
	n := int(roundPage(int64(end)) - from)
	w.n = 0
	if err := w.buf.grow(n); err != nil {
		return err
	}
	if err := r.readFull(w.buf.raw[:n], from); err != nil {
		return err
	}
	w.from, w.n = from, n
	return nil
}

// block returns a decoded data block that is in memory, valid until the next
// call.
func (w *window) block(r *Reader, ref BlockRef) ([]byte, error) {
	w.next = ref.end()
	stored := w.buf.raw[int64(ref.Offset)-w.from:][:ref.Length]
	if !r.sumFits(ref, stored) {
		return r.reread(ref, &w.one)
	}
	return r.check(ref, stored, &w.one)
}

func (w *window) free() {
	w.buf.Free()
	w.one.Free()
	w.n = 0
}
