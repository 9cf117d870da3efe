package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// indexDocBytesMax is the most that the seqno index takes for a document: 56 and
// 32 low bits and twice 3 high bits.
const indexDocBytesMax = 12

// rewriteWriter writes the outputs of a rewrite one after another: documents
// gather in a group, and while it is written the next one is filled.
type rewriteWriter struct {
	w       *rewrite
	file    vfs.File // of the output at hand, nil between two
	name    string
	id      entry.SegmentID
	off     uint32 // of the open group
	index   *IndexBuilder
	first   entry.Seqno // in the output
	last    entry.Seqno
	docs    DocumentCount
	buf     []byte // of the open group
	used    int    // of buf, the header's space included
	count   uint32 // records in the open group
	started entry.Seqno

	free    [][]byte // buffers of one full group
	writing []byte   // the group that is being written, nil for none
	written chan error
}

func (o *rewriteWriter) init(w *rewrite) error {
	o.w = w
	o.written = make(chan error, 1)
	for range 2 {
		b, err := alignedBuffer(o.w.sizes.group, "group of a rewrite")
		if err != nil {
			return err
		}
		o.free = append(o.free, b)
	}
	return nil
}

// end frees what the writer holds. After an error the unfinished output goes.
func (o *rewriteWriter) end(err error) error {
	if werr := o.await(); err == nil {
		err = werr
	}
	if o.file != nil {
		err = errors.Join(err, o.file.Close(), o.w.o.FS.Remove(o.name))
		o.file = nil
	}
	o.release(o.buf)
	for _, b := range o.free {
		offheap.FreeAligned(b)
	}
	o.buf, o.free = nil, nil
	return err
}

// add copies the record of a document.
func (o *rewriteWriter) add(seqno entry.Seqno, raw []byte) error {
	if err := o.makeRoom(binary.MaxVarintLen64 + len(raw)); err != nil {
		return err
	}
	delta := uint64(0)
	if o.count == 0 {
		o.started = seqno
	} else {
		delta = uint64(seqno - o.last)
	}
	b := AppendDelta(o.buf[:o.used], delta)
	start := len(b)
	b = append(b, raw...)
	off := o.off + uint32(start)
	if !mutant.KeepMovedSum {
		FinishDocument(b[start:], &o.w.o.Secret, o.id, off, seqno)
	}
	o.index.Add(seqno, off)
	if o.docs.Documents == 0 {
		o.first = seqno
	}
	o.last = seqno
	o.docs.add(len(raw))
	o.used = len(b)
	o.count++
	return nil
}

// makeRoom sees to it that a record of so many bytes, its delta included, fits
// into the open group.
func (o *rewriteWriter) makeRoom(bytes int) error {
	if o.file != nil {
		var err error
		switch padded := roundUp(int64(o.used), o.w.o.Align); {
		case o.count > 0 && o.used+bytes > o.w.sizes.group && o.fits(int64(o.off)+padded, GroupHeaderBytes+bytes):
			err = o.closeGroup(0)
		case o.count > 0 && o.used+bytes > o.w.sizes.group, o.docs.Documents > 0 && !o.fits(int64(o.off), o.used+bytes):
			err = o.finish()
		}
		if err != nil {
			return err
		}
	}
	if o.file == nil {
		if err := o.begin(bytes); err != nil {
			return err
		}
	}
	if o.buf != nil && len(o.buf)-o.used >= bytes {
		return nil
	}
	// Only a group without records lacks a buffer, or room for one record.
	o.release(o.buf)
	o.buf = nil
	need := alignUp(GroupHeaderBytes+bytes, o.w.o.Align)
	if n := len(o.free); n > 0 && need <= o.w.sizes.group {
		o.buf, o.free = o.free[n-1], o.free[:n-1]
		return nil
	}
	var err error
	o.buf, err = alignedBuffer(max(need, o.w.sizes.group), "group of a large document")
	return err
}

// fits reports whether a group of so many bytes may stand at off of the output.
func (o *rewriteWriter) fits(off int64, bytes int) bool {
	end := off + roundUp(int64(bytes), o.w.o.Align)
	return end <= o.w.o.SegmentBytes && o.indexFits(end)
}

// indexFits reports whether a footer with one more document fits behind end.
func (o *rewriteWriter) indexFits(end int64) bool {
	most := int64(o.docs.Documents+1)*indexDocBytesMax + 4*8 + indexHeadBytes + footerTailBytes
	return end+roundUp(most, o.w.o.Align) <= MaxSegmentBytes
}

// begin makes the file of the next output, whose first record has so many bytes.
// What is allocated is what it may come to, so that a full disk shows here.
func (o *rewriteWriter) begin(bytes int) error {
	w := o.w
	first := int64(w.o.Align) + roundUp(int64(GroupHeaderBytes+bytes), w.o.Align)
	o.docs = DocumentCount{}
	if !o.indexFits(first) {
		return fmt.Errorf("rewrite segments: record of %d bytes fits into no segment", bytes)
	}
	o.id = w.o.NextID()
	o.name = path.Join(w.o.Dir, SegmentsDir, SegmentName(o.id, SegmentGC))
	f, err := w.o.FS.Create(o.name, vfs.OpenOptions{Write: true, Direct: w.o.Direct})
	if err != nil {
		return fmt.Errorf("create segment: %w", err)
	}
	o.file = f
	allocated := max(first, min(w.o.SegmentBytes, int64(w.o.Align)+w.left()))
	if err := f.Allocate(roundUp(allocated, w.o.Align)); err != nil {
		return fmt.Errorf("allocate segment %s: %w", o.name, err)
	}
	o.off = uint32(w.o.Align)
	o.index = NewIndexBuilder(0)
	o.used, o.count = GroupHeaderBytes, 0
	return nil
}

// closeGroup has the open group, which has records, written.
func (o *rewriteWriter) closeGroup(flags uint16) error {
	align := o.w.o.Align
	h := GroupHeader{
		Flags: GroupDelta | flags, Bytes: uint32(o.used), Count: o.count,
		Segment: o.id, Offset: o.off, First: o.started,
	}
	padded := h.PaddedBytes(align)
	clear(o.buf[o.used:padded])
	h.Encode(o.buf, &o.w.o.Secret)
	if err := o.await(); err != nil {
		return err
	}
	if err := o.w.ctx.Err(); err != nil {
		return err
	}
	o.w.pace(padded)
	o.w.res.WrittenBytes += int64(padded)
	o.writing, o.buf = o.buf, nil
	go func(f vfs.File, b []byte, off int64) {
		o.written <- o.w.writePieces(f, b, off)
	}(o.file, o.writing[:padded], int64(o.off))
	o.off += uint32(padded)
	o.used, o.count = GroupHeaderBytes, 0
	return nil
}

// await waits for the write under way.
func (o *rewriteWriter) await() error {
	if o.writing == nil {
		return nil
	}
	err := <-o.written
	o.release(o.writing)
	o.writing = nil
	return err
}

// release keeps the buffer of a group for the next, but for large ones.
func (o *rewriteWriter) release(b []byte) {
	switch {
	case b == nil:
	case len(b) == o.w.sizes.group:
		o.free = append(o.free, b)
	default:
		offheap.FreeAligned(b)
	}
}

func (w *rewrite) writePieces(f vfs.File, b []byte, off int64) error {
	for len(b) > 0 {
		n := min(len(b), w.sizes.write)
		if _, err := f.WriteAt(b[:n], off); err != nil {
			return fmt.Errorf("write segment %s at %d: %w", f.Name(), off, err)
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// finish completes the output at hand, if there is one. Nothing knows of the file
// before it is whole: one sync is enough, and the header, which has the length,
// can be written last.
func (o *rewriteWriter) finish() error {
	if o.file == nil {
		return nil
	}
	if err := o.closeGroup(GroupSeal); err != nil {
		return err
	}
	if err := o.await(); err != nil {
		return err
	}
	foot := EncodeFooter(nil, Footer{
		Segment: o.id, End: o.off, Records: uint32(o.docs.Documents),
		First: o.first, Last: o.last, Durable: o.last,
	}, o.index, o.w.o.Align, &o.w.o.Secret)
	o.index = nil
	bytes := int64(o.off) + int64(len(foot))
	tail, err := DecodeFooterTail(foot, bytes, &o.w.o.Secret, o.id)
	if err != nil {
		return inFile(err, o.name)
	}
	index, err := DecodeIndex(foot[:tail.indexBytes])
	if err != nil {
		return inFile(err, o.name)
	}
	if err := o.writeEnds(foot, bytes); err != nil {
		return err
	}
	s := &Segment{ID: o.id, Kind: SegmentGC, File: o.file, Align: o.w.o.Align, bytes: bytes}
	s.refs.Store(1)
	s.index.Store(index)
	o.w.res.Outputs = append(o.w.res.Outputs, RewriteOutput{
		ID: o.id, End: o.off, First: o.first, Last: o.last, FileBytes: bytes, Documents: o.docs, Segment: s,
	})
	o.file = nil
	return o.w.verify(&o.w.res.Outputs[len(o.w.res.Outputs)-1])
}

// writeEnds writes footer and header, cuts the file and syncs it.
func (o *rewriteWriter) writeEnds(foot []byte, bytes int64) error {
	align := o.w.o.Align
	b, err := alignedBuffer(max(len(foot), align), "segment footer")
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(b)
	n := copy(b, foot)
	o.w.pace(n)
	if err := o.w.writePieces(o.file, b[:n], int64(o.off)); err != nil {
		return err
	}
	h := SegmentHeader{Kind: SegmentGC, Align: align, ID: o.id, Size: bytes, StoreID: o.w.o.StoreID}
	h.Encode(b)
	if err := o.w.writePieces(o.file, b[:align], 0); err != nil {
		return err
	}
	o.w.res.WrittenBytes += int64(n + align)
	if err := o.file.Truncate(bytes); err != nil {
		return fmt.Errorf("cut segment %s to %d: %w", o.name, bytes, err)
	}
	if err := mutant.Skip(mutant.SkipMovedSync, o.file.Sync); err != nil {
		return fmt.Errorf("sync segment %s: %w", o.name, err)
	}
	return nil
}

func (w *rewrite) syncDir() error {
	dir := path.Join(w.o.Dir, SegmentsDir)
	if err := w.o.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("sync directory of segments %s: %w", dir, err)
	}
	return nil
}
