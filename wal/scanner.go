package wal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
)

// ScanSegment is a registered log segment as the manifest knows it.
type ScanSegment struct {
	ID entry.SegmentID
	// End is where its groups end when that was recorded, by sealing or after
	// a torn tail; 0 = unknown.
	End uint32
	// Last is the last seqno before End; 0 = unknown.
	Last entry.Seqno
	// Next is the first seqno expected after End when seqnos jumped there;
	// 0 = they go on.
	Next entry.Seqno
}

// Defaults of ScanOptions.
const (
	scanBufferBytesDefault = 1 << 20
	scanBuffersDefault     = 6
)

// ScanOptions says what to scan.
type ScanOptions struct {
	FS      vfs.FS
	Dir     string // the store's directory; segments live in Dir/log
	Secret  Secret
	StoreID [16]byte
	Direct  bool // open segments for direct reads
	// From is where to begin: the start of a group, or where one would start.
	// From.Seqno is at least 1 and at or above the first seqno there.
	From entry.Position
	// Segments are the registered segments of kind log, by rising id. Those
	// before From are not looked at.
	Segments []ScanSegment
	// DurableFloor is the highest seqno that is known to be durable: a log
	// that ends before it is damaged. 0 = none.
	DurableFloor entry.Seqno
	// BufferBytes is the size of a read, a multiple of AlignMax. Default 1 MiB.
	BufferBytes int
	// Buffers bounds the buffers in use, three or more; each takes twice
	// BufferBytes. Default 6: two reads in flight, one being checked, three
	// with the users of chunks.
	Buffers int
}

func (o *ScanOptions) withDefaults() {
	if o.BufferBytes == 0 {
		o.BufferBytes = scanBufferBytesDefault
	}
	if o.Buffers == 0 {
		o.Buffers = scanBuffersDefault
	}
}

// MemoryBytes is the most that the buffers of Scan take, except for groups that
// are larger than one.
func (o ScanOptions) MemoryBytes() int64 {
	o.withDefaults()
	return int64(o.Buffers) * 2 * int64(o.BufferBytes)
}

func (o *ScanOptions) validate() error {
	if o.BufferBytes < AlignMax || o.BufferBytes%AlignMax != 0 || o.Buffers < 3 {
		return fmt.Errorf("scan log: %d buffers of %d bytes", o.Buffers, o.BufferBytes)
	}
	if o.From.Seqno == 0 {
		return errors.New("scan log: start has no seqno")
	}
	for i := 1; i < len(o.Segments); i++ {
		if o.Segments[i-1].ID >= o.Segments[i].ID {
			return fmt.Errorf("scan log: segment %d listed before %d", o.Segments[i-1].ID, o.Segments[i].ID)
		}
	}
	return nil
}

// Discarded is the valid header of a group behind the end of the log.
type Discarded struct {
	Segment     entry.SegmentID
	Offset      uint32
	First, Last entry.Seqno
}

// scanDiscardedMax bounds ScanResult.Discarded; it is for people.
const scanDiscardedMax = 64

// ScanResult says what was found.
type ScanResult struct {
	// End is where the log ends: behind the last group, or where scanning
	// began when there is none. End.Seqno is the next seqno.
	End entry.Position
	// Last is the seqno of the last record, or the one before From.Seqno.
	Last entry.Seqno
	// Clean: the store was closed in order (GroupClose) and nothing was
	// written since. Otherwise seqnos up to MaxSeen and beyond may have been
	// handed out without a trace.
	Clean bool
	// MaxSeen is the highest seqno in any valid header, discarded ones and
	// promises included.
	MaxSeen entry.Seqno

	Groups  int64
	Records int64
	Bytes   int64 // of groups, without padding

	// Discarded are the first groups behind the end; DiscardedGroups counts all.
	Discarded       []Discarded
	DiscardedGroups int64

	// Sealed are the segments that were read to their seal group, and of which no
	// end was recorded, by rising id.
	Sealed []SegmentEnd

	// Unproven are the last groups, for which no promise vouches: their sync
	// may have failed.
	Unproven []GroupPlace
}

// GroupPlace is where a group is.
type GroupPlace struct {
	Segment entry.SegmentID
	Offset  uint32
	Bytes   uint32 // with padding
	last    entry.Seqno
	count   uint32
}

// Scan reads the log in order and hands its groups to fn, a run of them at a
// time. fn is called by one goroutine, in log order; it may pass the chunk to
// other goroutines, but every chunk must be released, without waiting for
// later ones, and Scan returns only when all are. An error of fn ends the scan
// and is returned.
//
// A log that ends within a torn write is no error. The error is a
// *CorruptError when something that is known to have been durable is missing
// (docs/format-log.md has the rule), otherwise that of a failed read, of ctx
// or of fn.
func Scan(ctx context.Context, o ScanOptions, fn func(c *Chunk) error) (ScanResult, error) {
	o.withDefaults()
	if err := o.validate(); err != nil {
		return ScanResult{}, err
	}
	pool, err := newScanPool(o.Buffers, o.BufferBytes)
	if err != nil {
		return ScanResult{}, fmt.Errorf("scan log: buffers: %w", err)
	}
	defer pool.close()
	s := &scan{ctx: ctx, o: &o, fn: fn, pool: pool, next: o.From.Seqno, last: o.From.Seqno - 1}
	s.res.End = o.From
	err = s.run()
	s.res.End.Seqno = s.next
	s.res.Last = s.last
	s.res.MaxSeen = max(s.res.MaxSeen, s.last)
	return s.res, err
}

// scan is one call of Scan.
type scan struct {
	ctx  context.Context
	o    *ScanOptions
	fn   func(*Chunk) error
	pool *scanPool
	res  ScanResult

	// The chain so far.
	next    entry.Seqno // expected of the next group
	last    entry.Seqno // last seqno of the predecessor
	chained bool        // res.End is the end of a known predecessor
	flags   uint16      // of the last group

	outputs bool // the segment is an output of garbage collection
}

// openedSegment is a segment whose header is right.
type openedSegment struct {
	ScanSegment
	file   vfs.File
	name   string
	align  int
	length int64 // of the file, at most the allocated size
	bytes  int64 // of the file
}

// segmentEnd says why the groups of a segment ended.
type segmentEnd int

const (
	endOpen     segmentEnd = iota // no intact group where one could be
	endSealed                     // a seal group
	endRecorded                   // the end that the manifest knows
)

func (s *scan) run() error {
	first := -1
	for i := range s.o.Segments {
		if s.o.Segments[i].ID == s.o.From.Segment {
			first = i
		}
	}
	if first < 0 {
		return corrupt(s.o.Dir, 0, "replay starts at %v, but that segment is not registered", s.o.From)
	}
	for i, seg := range s.o.Segments[first:] {
		end, err := s.segment(seg, s.o.Segments[first+i+1:])
		if err != nil {
			return err
		}
		if end == endOpen {
			return nil // the rest was searched
		}
	}
	s.res.Clean = s.flags&GroupClose != 0
	return s.checkFloor(path.Join(s.o.Dir, SegmentsDir, SegmentName(s.res.End.Segment, SegmentLog)))
}

// checkFloor compares the end with what the manifest knows to be durable.
func (s *scan) checkFloor(name string) error {
	if s.o.DurableFloor < s.next {
		return nil
	}
	e := corrupt(name, int64(s.res.End.Offset), "log ends here, but seqnos up to %d were durable", s.o.DurableFloor)
	e.Missing = s.next
	return e
}

// segment scans one segment; later are those behind it.
func (s *scan) segment(seg ScanSegment, later []ScanSegment) (segmentEnd, error) {
	f, err := s.open(seg)
	if err != nil {
		return 0, err
	}
	defer f.file.Close()
	from := int64(f.align)
	if seg.ID == s.o.From.Segment && s.o.From.Offset != 0 {
		from = int64(s.o.From.Offset)
		if from < int64(f.align) || from%int64(f.align) != 0 {
			return 0, corrupt(f.name, from, "replay starts here, but groups start on multiples of %d", f.align)
		}
	}
	limit := f.length
	if seg.End != 0 {
		if int64(seg.End) > f.bytes || int64(seg.End) < from {
			return 0, s.missing(f, min(from, f.bytes), "file has %d bytes, recorded end is %d", f.bytes, seg.End)
		}
		limit = int64(seg.End)
	}
	off, end, err := s.groups(f, from, limit)
	if err != nil {
		return 0, err
	}
	switch {
	case seg.End == 0 && end == endOpen:
		return endOpen, s.searchTail(f, off, later)
	case seg.End == 0:
		s.res.Sealed = append(s.res.Sealed, SegmentEnd{ID: f.ID, End: uint32(off), Last: s.last, Next: s.next})
		return endSealed, nil
	case off != int64(seg.End):
		return 0, s.missing(f, off, "no intact group, recorded end is %d", seg.End)
	}
	return endRecorded, s.crossRecordedEnd(f)
}

// groups reads the groups of f in [from, limit) and returns where they end, and
// why.
func (s *scan) groups(f *openedSegment, from, limit int64) (off int64, end segmentEnd, err error) {
	w := &groupWalk{scan: s, f: f, off: from, limit: limit, runStart: -1}
	end, err = w.walk()
	for reread := int64(-1); err == nil && w.damaged && reread != w.off; {
		// One more look (F5): nothing may vouch for the last group yet, and a
		// flip on the way to memory must not pass for a torn tail.
		reread = w.off
		w = &groupWalk{scan: s, f: f, off: w.off, limit: limit, runStart: -1}
		end, err = w.walk()
	}
	return w.off, end, err
}

// crossRecordedEnd goes on behind the end that the manifest recorded.
func (s *scan) crossRecordedEnd(f *openedSegment) error {
	if f.Last != 0 && s.chained && s.last != f.Last {
		return s.missing(f, int64(f.End), "last seqno is %d, recorded is %d", s.last, f.Last)
	}
	if f.Last != 0 {
		s.last = f.Last
	}
	if f.Next != 0 {
		s.next = f.Next
	}
	s.res.End.Segment, s.res.End.Offset = f.ID, f.End
	s.chained = true
	// A recorded end says that the store was opened since it was closed here,
	// and may have handed out seqnos that left no trace.
	s.flags &^= GroupClose
	return nil
}

// missing is a CorruptError about the seqno expected next.
func (s *scan) missing(f *openedSegment, off int64, format string, args ...any) error {
	e := corrupt(f.name, off, format, args...)
	e.Missing = s.next
	return e
}

// open opens a segment and checks its header, which was durable before the
// segment was registered.
func (s *scan) open(seg ScanSegment) (*openedSegment, error) {
	return s.openKind(seg, SegmentLog)
}

func (s *scan) openKind(seg ScanSegment, kind SegmentKind) (*openedSegment, error) {
	name := path.Join(s.o.Dir, SegmentsDir, SegmentName(seg.ID, kind))
	file, err := s.o.FS.Open(name, vfs.OpenOptions{Direct: s.o.Direct})
	if errors.Is(err, os.ErrNotExist) {
		return nil, corrupt(name, 0, "registered segment is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("open log segment %s: %w", name, err)
	}
	f := &openedSegment{ScanSegment: seg, file: file, name: name}
	if err := s.readHeader(f, kind); err != nil {
		file.Close()
		return nil, err
	}
	return f, nil
}

func (s *scan) readHeader(f *openedSegment, kind SegmentKind) error {
	var err error
	if f.bytes, err = f.file.Size(); err != nil {
		return fmt.Errorf("size of log segment %s: %w", f.name, err)
	}
	var h SegmentHeader
	err = readAligned(f.file, 0, segmentHeaderBytes, func(b []byte) error {
		var err error
		h, err = DecodeSegmentHeader(b)
		return err
	})
	switch {
	case err != nil:
		return inFile(err, f.name)
	case h.ID != f.ID:
		return corrupt(f.name, 12, "segment header says segment %d", h.ID)
	case h.Kind != kind:
		return corrupt(f.name, 10, "segment header says kind %v", h.Kind)
	case h.StoreID != s.o.StoreID:
		return corrupt(f.name, 24, "segment belongs to store %x, not %x", h.StoreID, s.o.StoreID)
	}
	f.align = h.Align
	f.length = min(f.bytes, h.Size)
	return nil
}

// groupWalk goes from group to group of one segment.
type groupWalk struct {
	*scan
	f        *openedSegment
	limit    int64
	off      int64 // of the next group
	reads    *readahead
	buf      *scanBuffer // has the byte at off, or is used up
	runStart int64       // where the undelivered groups in buf start, -1 for none
	damaged  bool        // at off there is something, but no intact group
}

func (w *groupWalk) walk() (end segmentEnd, err error) {
	w.reads = newReadahead(w.ctx, w.pool, w.f.file, w.off, w.limit)
	defer func() {
		if err == nil {
			err = w.deliver()
		}
		if w.buf != nil {
			w.buf.release()
		}
		w.reads.close()
	}()
	var h GroupHeader
	for {
		intact, err := w.group(&h)
		if err != nil || !intact {
			return endOpen, err
		}
		if err := w.follows(&h); err != nil {
			return endOpen, err
		}
		w.accept(&h)
		if h.Flags&GroupSeal != 0 {
			return endSealed, nil
		}
	}
}

// group reads the group at off; false when there is no intact one.
func (w *groupWalk) group(h *GroupHeader) (bool, error) {
	if w.limit-w.off < GroupHeaderBytes {
		return false, nil
	}
	if err := w.want(GroupHeaderBytes); err != nil {
		return false, err
	}
	var ok bool
	*h, ok = DecodeGroupHeader(w.window(), &w.o.Secret, w.f.ID, uint32(w.off))
	if !ok || w.off+int64(h.Bytes) > w.limit {
		w.damaged = !isZero(w.window()[:GroupHeaderBytes])
		return false, nil
	}
	// The padding too, so that groups of a run lie behind one another.
	padded := min(int64(h.PaddedBytes(w.f.align)), w.limit-w.off)
	if err := w.want(int(padded)); err != nil {
		return false, err
	}
	w.damaged = !VerifyGroup(w.window(), h, &w.o.Secret) && !mutant.AcceptTornGroup
	return !w.damaged, nil
}

// window is what is in memory from off on.
func (w *groupWalk) window() []byte {
	if w.buf == nil {
		return nil
	}
	at := w.buf.start + int(w.off-w.buf.base)
	return w.buf.mem[at:w.buf.end]
}

// want makes the window at least n bytes long; [off, off+n) is below limit.
func (w *groupWalk) want(n int) error {
	if len(w.window()) >= n {
		return nil
	}
	if err := w.deliver(); err != nil {
		return err
	}
	if n > w.o.BufferBytes {
		return w.wantOwn(n)
	}
	// A piece is as long as the headroom, so one more is enough, unless the
	// first one begins before off or at the file's last block.
	for len(w.window()) < n {
		b, err := w.piece()
		if err != nil {
			return err
		}
		if rest := w.window(); len(rest) > 0 {
			b.start -= copy(b.mem[b.headroom-len(rest):b.headroom], rest)
			b.base -= int64(len(rest))
		}
		w.swap(b)
	}
	return nil
}

// wantOwn gathers a group that no buffer has room for in one of its own. What
// was read behind it stays the buffer to go on with.
func (w *groupWalk) wantOwn(n int) error {
	own, err := w.pool.getOwn(n)
	if err != nil {
		return fmt.Errorf("scan %s: buffer for a group of %d bytes: %w", w.f.name, n, err)
	}
	own.base = w.off
	own.end = copy(own.mem, w.window())
	for own.end < n {
		b, err := w.piece()
		if err != nil {
			own.release()
			return err
		}
		c := copy(own.mem[own.end:n], b.mem[b.start:b.end])
		own.end += c
		b.start += c
		b.base += int64(c)
		w.swap(b)
	}
	w.reads.unread(w.buf)
	w.buf = own
	return nil
}

// piece takes the next piece of the file, which there must be.
func (w *groupWalk) piece() (*scanBuffer, error) {
	b, err := w.reads.take()
	if err == nil && b == nil {
		err = fmt.Errorf("scan %s: nothing to read at %d below %d", w.f.name, w.off, w.limit)
	}
	return b, err
}

func (w *groupWalk) swap(b *scanBuffer) {
	if w.buf != nil {
		w.buf.release()
	}
	w.buf = b
}

// follows checks that an intact group is the successor of the one before. No
// torn write can leave one that is not.
func (w *groupWalk) follows(h *GroupHeader) error {
	reason := ""
	switch {
	case w.outputs:
		if h.Flags&GroupDelta != 0 || h.Count == 0 {
			return nil // their seqnos are not dense: those of the records count
		}
		reason = "group of a log in an output of garbage collection"
	case h.Flags&GroupDelta != 0:
		reason = "group of a garbage collection"
	case h.Durable >= h.First:
		reason = fmt.Sprintf("group of seqno %d promises %d", h.First, h.Durable)
	case !w.chained:
		// The start may lie within the group's seqnos, never before them.
		if h.First <= w.o.From.Seqno && h.PrevLast < w.o.From.Seqno {
			w.next = h.First
			w.last = h.PrevLast
			return nil
		}
		reason = fmt.Sprintf("group of seqno %d after %d, replay starts with %d", h.First, h.PrevLast, w.o.From.Seqno)
	case h.First != w.next:
		reason = fmt.Sprintf("group of seqno %d, expected %d", h.First, w.next)
	case h.PrevSegment != w.res.End.Segment || h.PrevEnd != w.res.End.Offset || h.PrevLast != w.last:
		reason = fmt.Sprintf("group follows segment %d to %d, seqno %d; read were segment %d to %d, seqno %d",
			h.PrevSegment, h.PrevEnd, h.PrevLast, w.res.End.Segment, w.res.End.Offset, w.last)
	default:
		return nil
	}
	e := corrupt(w.f.name, w.off, "%s", reason)
	if h.First > w.next {
		e.Missing = w.next
	}
	return e
}

// accept takes an intact group that follows into the log.
func (w *groupWalk) accept(h *GroupHeader) {
	if w.runStart < 0 {
		w.runStart = w.off
	}
	start := uint32(w.off)
	w.off = int64(h.End(w.f.align))
	if h.Count > 0 {
		w.last = h.Last()
		w.next = w.last + 1
	}
	if !w.outputs {
		w.vouch(h.Durable)
		w.res.Unproven = append(w.res.Unproven, GroupPlace{w.f.ID, start, uint32(w.off) - start, w.last, h.Count})
	}
	w.chained = true
	w.flags = h.Flags
	w.res.End.Segment, w.res.End.Offset = w.f.ID, uint32(w.off)
	w.res.MaxSeen = max(w.res.MaxSeen, w.last, h.Durable)
	w.res.Groups++
	w.res.Records += int64(h.Count)
	w.res.Bytes += int64(h.Bytes)
}

// vouch takes the groups off the list that a promise covers. Groups become
// durable in order, so it covers the empty ones between them as well.
func (s *scan) vouch(durable entry.Seqno) {
	list := s.res.Unproven
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].count > 0 && list[i].last <= durable {
			s.res.Unproven = append(list[:0], list[i+1:]...)
			return
		}
	}
}

// deliver hands the run of groups in buf to fn.
func (w *groupWalk) deliver() error {
	if w.runStart < 0 {
		return nil
	}
	from := w.buf.start + int(w.runStart-w.buf.base)
	to := min(w.buf.start+int(w.off-w.buf.base), w.buf.end)
	c := &w.buf.chunk
	*c = Chunk{Segment: w.f.ID, Offset: uint32(w.runStart), align: w.f.align, bytes: w.buf.mem[from:to:to], buf: w.buf}
	w.runStart = -1
	w.buf.refs.Add(1)
	return w.fn(c)
}
