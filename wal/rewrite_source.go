package wal

import (
	"errors"
	"fmt"
	"io"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// rewriteSource walks the separated documents of one victim. The memory of its
// buffer is taken when the merge has come to its first seqno.
type rewriteSource struct {
	w   *rewrite
	v   RewriteVictim
	res *VictimResult
	f   *openedSegment // nil when closed

	off     int64 // of the next group
	groupAt int64 // of the group whose records are being read
	last    entry.Seqno

	// buf has the n bytes of the file from base on, a multiple of
	// vfs.BlockBytes.
	buf   []byte
	base  int64
	n     int
	ahead readAhead

	rr     RecordReader
	rec    Record
	raw    []byte      // the bytes of rec
	next   entry.Seqno // of rec; before it is loaded no higher than the first
	loaded bool
	done   bool
}

// name is the path of its file.
func (s *rewriteSource) name() string {
	return path.Join(s.w.o.Dir, SegmentsDir, SegmentName(s.v.ID, s.v.Kind))
}

// open opens the victim and looks at its first group.
func (s *rewriteSource) open() error { return unreadable(s.name(), s.openFile()) }

func (s *rewriteSource) openFile() error {
	w := s.w
	o := &ScanOptions{FS: w.o.FS, Dir: w.o.Dir, Secret: w.o.Secret, StoreID: w.o.StoreID, Direct: w.o.Direct}
	f, err := (&scan{ctx: w.ctx, o: o}).openKind(ScanSegment{ID: s.v.ID, End: s.v.End}, s.v.Kind)
	if err != nil {
		return err
	}
	s.f = f
	if int64(f.End) > f.bytes || int64(f.End) < int64(f.align) {
		return corrupt(f.name, f.bytes, "file has %d bytes, recorded end is %d", f.bytes, f.End)
	}
	s.off, s.groupAt = int64(f.align), int64(f.align)
	if int64(f.End)-s.off < GroupHeaderBytes {
		return nil // advance tells no groups from damage
	}
	w.pace(vfs.BlockBytes)
	w.res.ReadBytes += vfs.BlockBytes
	return readAligned(f.file, s.off, GroupHeaderBytes, func(b []byte) error {
		// One that is not intact is looked at again by advance.
		if h, ok := DecodeGroupHeader(b, &w.o.Secret, f.ID, uint32(s.off)); ok {
			s.next = h.First
		}
		return nil
	})
}

// readAhead is the next piece of a victim, read while the one before it is looked
// at. The goroutine of the rewrite owns it, but while done is not closed.
type readAhead struct {
	buf  []byte
	off  int64 // of the piece
	n    int   // its bytes
	at   int   // of which so many were taken
	err  error
	done chan struct{}
}

// close may be called more than once.
func (s *rewriteSource) close() error {
	s.ahead.wait()
	if s.ahead.buf != nil {
		offheap.FreeAligned(s.ahead.buf)
		s.ahead = readAhead{}
	}
	if s.buf != nil {
		offheap.FreeAligned(s.buf)
		s.buf = nil
	}
	if s.f == nil {
		return nil
	}
	f := s.f
	s.f = nil
	return vfs.Unreadable(f.name, f.file.Close())
}

// advance moves to the next separated document, or sets done.
func (s *rewriteSource) advance() error {
	s.loaded = true
	for {
		for s.rr.Next(&s.rec) {
			if s.rec.Seqno <= s.last {
				return corrupt(s.f.name, s.groupAt, "record of seqno %d follows that of %d", s.rec.Seqno, s.last)
			}
			s.last = s.rec.Seqno
			if !s.rec.Separated {
				s.res.PassedOver++
				continue
			}
			a := s.rec.Address
			s.raw = s.rr.payload[s.rr.at-int(a.Length) : s.rr.at]
			s.next = s.rec.Seqno
			return nil
		}
		if err := s.rr.Err(); err != nil {
			return inFile(err, s.f.name)
		}
		if s.off == int64(s.v.End) {
			s.done = true
			return s.close()
		}
		if err := s.group(); err != nil {
			return err
		}
	}
}

// verify checks the sum of the document that s stands on. That of its group was
// right; this one would be carried over.
func (s *rewriteSource) verify() error {
	a := s.rec.Address
	if !verifyDocument(s.raw, &s.w.o.Secret, a.Segment, a.Offset, s.rec.Seqno) && !mutant.MoveUnverified {
		return corrupt(s.f.name, int64(a.Offset), "wrong sum of document %v of seqno %d", a, s.rec.Seqno)
	}
	return nil
}

// compare reads all documents and finds them where the index says.
func (s *rewriteSource) compare(x *SeqnoIndex) error {
	if err := s.advance(); err != nil {
		return err
	}
	for seqno, off := range x.All() {
		if !s.done {
			if err := s.verify(); err != nil {
				return err
			}
		}
		if s.done || s.rec.Seqno != seqno || s.rec.Address.Offset != off {
			return corrupt(s.name(), int64(off), "not the document of seqno %d", seqno)
		}
		if err := s.advance(); err != nil {
			return err
		}
	}
	if !s.done {
		return corrupt(s.f.name, int64(s.rec.Address.Offset), "document of seqno %d is not in the index", s.rec.Seqno)
	}
	return nil
}

// group reads the next group, which there must be.
func (s *rewriteSource) group() error {
	if err := s.w.ctx.Err(); err != nil {
		return err
	}
	h, intact, err := s.readGroup()
	if err == nil && !intact {
		// Once more from the device: the flip may have happened in memory (F5).
		s.n = 0
		h, intact, err = s.readGroup()
	}
	switch {
	case err != nil:
		return err
	case !intact:
		return corrupt(s.f.name, s.off, "no intact group, recorded end is %d", s.v.End)
	case (h.Flags&GroupDelta != 0) != (s.v.Kind == SegmentGC):
		return corrupt(s.f.name, s.off, "group of flags %d in a segment of kind %v", h.Flags, s.v.Kind)
	}
	s.groupAt = s.off
	s.rr.Reset(s.window()[GroupHeaderBytes:h.Bytes], &h)
	s.off = int64(h.End(s.f.align))
	return nil
}

// readGroup brings the group at off into the buffer; intact is false when there
// is none.
func (s *rewriteSource) readGroup() (h GroupHeader, intact bool, err error) {
	left := int64(s.v.End) - s.off
	if left < GroupHeaderBytes {
		return h, false, nil
	}
	if err := s.want(GroupHeaderBytes); err != nil {
		return h, false, err
	}
	h, ok := DecodeGroupHeader(s.window(), &s.w.o.Secret, s.f.ID, uint32(s.off))
	if !ok || int64(h.PaddedBytes(s.f.align)) > left {
		return h, false, nil
	}
	if err := s.want(int(h.Bytes)); err != nil {
		return h, false, err
	}
	return h, VerifyGroup(s.window(), &h, &s.w.o.Secret) || mutant.MoveUnverified, nil
}

// window is what is in memory from off on.
func (s *rewriteSource) window() []byte {
	if at := s.off - s.base; at < int64(s.n) {
		return s.buf[at:s.n]
	}
	return nil
}

// want makes the window at least n bytes long; [off, off+n) is below End. It
// moves the buffer, and with it what the records of the group before refer to.
func (s *rewriteSource) want(n int) error {
	have := s.window()
	if len(have) >= n {
		return nil
	}
	from := s.off &^ (vfs.BlockBytes - 1)
	rest := 0
	if len(have) > 0 {
		rest = s.n - int(from-s.base)
	}
	need := int(roundUp(s.off+int64(n)-from, vfs.BlockBytes))
	if err := s.resize(need, s.n-rest, rest); err != nil {
		return err
	}
	s.base, s.n = from, rest
	to := max(need, min(rest+s.w.sizes.read, len(s.buf)))
	to = int(min(int64(to), roundUp(int64(s.v.End)-from, vfs.BlockBytes)))
	for s.n < to {
		if more, err := s.read(min(to-s.n, s.w.sizes.read)); err != nil || !more {
			return err
		}
	}
	return nil
}

// resize moves the rest bytes at from to the front of a buffer with room for
// need bytes.
func (s *rewriteSource) resize(need, from, rest int) error {
	sizes := &s.w.sizes
	least := 2 * sizes.read
	fits := need <= len(s.buf) && (len(s.buf) <= sizes.kept || need > least)
	if fits {
		copy(s.buf, s.buf[from:from+rest])
		return nil
	}
	buf, err := alignedBuffer(max(least, need), "rewrite buffer")
	if err != nil {
		return err
	}
	copy(buf, s.buf[from:from+rest])
	if s.buf != nil {
		offheap.FreeAligned(s.buf)
	}
	s.buf = buf
	return nil
}

// read appends up to so many of the next bytes of the file to the buffer; more is
// false at the end of the file, which must not be before End.
func (s *rewriteSource) read(bytes int) (more bool, err error) {
	off := s.base + int64(s.n)
	switch n, err := s.ahead.take(s.buf[s.n:s.n+bytes], off); {
	case err != nil:
		return false, vfs.Unreadable(s.f.name, fmt.Errorf("read %s at %d: %w", s.f.name, off, err))
	case n > 0:
		s.n += n
		s.w.res.ReadBytes += int64(n)
		s.goAhead()
		return true, nil
	}
	s.w.pace(bytes)
	got, err := s.f.file.ReadAt(s.buf[s.n:s.n+bytes], off)
	s.w.res.ReadBytes += int64(got)
	s.n += got
	if got == bytes {
		s.goAhead()
		return true, nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, vfs.Unreadable(s.f.name, fmt.Errorf("read %s at %d: %w", s.f.name, off+int64(got), err))
	}
	if off+int64(got) < int64(s.v.End) {
		return false, corrupt(s.f.name, off+int64(got), "file ends here, recorded end is %d", s.v.End)
	}
	return false, nil
}

// goAhead starts to read what follows the buffer, unless another piece is still
// wanted or on its way, of any victim: one read is in flight at a time.
func (s *rewriteSource) goAhead() {
	a := &s.ahead
	off := s.base + int64(s.n)
	n := int(min(int64(s.w.sizes.read), roundUp(int64(s.v.End), vfs.BlockBytes)-off))
	if a.done != nil || a.at < a.n || n <= 0 || off%vfs.BlockBytes != 0 || !s.w.reading.CompareAndSwap(false, true) {
		return
	}
	if a.buf == nil {
		var err error
		if a.buf, err = alignedBuffer(s.w.sizes.read, "rewrite read ahead"); err != nil {
			s.w.reading.Store(false)
			return // it is no more than a gain
		}
	}
	s.w.pace(n)
	a.off, a.n, a.at, a.err, a.done = off, 0, 0, nil, make(chan struct{})
	go func(f vfs.File, b []byte, done chan struct{}) {
		// What ends early is read again, to say where.
		switch got, err := f.ReadAt(b, off); {
		case got == len(b):
			a.n = got
		case err != nil && !errors.Is(err, io.EOF):
			a.err = err
		}
		s.w.reading.Store(false)
		close(done)
	}(s.f.file, a.buf[:n], a.done)
}

func (a *readAhead) wait() {
	if a.done != nil {
		<-a.done
		a.done = nil
	}
}

// take copies what was read ahead from off on; 0 when that is nothing.
func (a *readAhead) take(dst []byte, off int64) (int, error) {
	a.wait()
	if a.off+int64(a.at) != off {
		a.at, a.err = a.n, nil
	}
	if a.err != nil {
		return 0, a.err
	}
	n := copy(dst, a.buf[a.at:a.n])
	a.at += n
	return n, nil
}
