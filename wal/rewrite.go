package wal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
)

// RewriteOptions says how Rewrite makes its outputs. All fields but Pace are
// required.
type RewriteOptions struct {
	FS      vfs.FS
	Dir     string // the store's directory; segments live in Dir/log
	Secret  Secret
	StoreID [16]byte
	Align   int  // of the groups of outputs, bytes; victims have their own
	Direct  bool // open victims and outputs for direct I/O
	// SegmentBytes is where an output ends, in bytes, its footer not counted. A
	// document that is larger gets an output of its own.
	SegmentBytes int64
	// Verify has outputs read again when they are synced, before the victims can
	// be given up (reliability rule S6). It costs a read of every byte written.
	Verify bool
	// NextID returns an id never used before.
	NextID func() entry.SegmentID
	// Pace, if set, is called before each read and each write with its bytes,
	// at most 1 MiB unless a document or a footer is larger, and may sleep. It is
	// called by the goroutine that called Rewrite.
	Pace func(bytes int)
}

func (o *RewriteOptions) validate() error {
	switch {
	case !validAlign(o.Align):
		return fmt.Errorf("rewrite segments: align %d", o.Align)
	case o.SegmentBytes < int64(o.Align) || o.SegmentBytes > MaxSegmentBytes:
		return fmt.Errorf("rewrite segments: outputs of %d bytes", o.SegmentBytes)
	}
	return nil
}

// RewriteVictim is a segment to be rewritten. Everything in it is durable,
// nobody writes to it, and the caller keeps it from being dropped meanwhile.
type RewriteVictim struct {
	ID   entry.SegmentID
	Kind SegmentKind
	End  uint32 // where its groups end, as recorded; never 0
}

// DocumentCount counts separated documents and the bytes of their records.
type DocumentCount struct {
	Documents int
	Bytes     int64
}

func (c *DocumentCount) add(bytes int) {
	c.Documents++
	c.Bytes += int64(bytes)
}

// VictimResult says what became of the documents of one victim.
type VictimResult struct {
	ID            entry.SegmentID
	Kept, Dropped DocumentCount
	// PassedOver counts the other records: inline values, tombstones, clears.
	PassedOver int
	// Moved says where the kept ones are: one range an output, by rising seqnos.
	// What addresses in this segment are forwarded to (design R8).
	Moved []MovedRange
}

// MovedRange is the seqnos of the first and the last document of a victim that
// an output took over. It may hold others between them.
type MovedRange struct {
	Segment     entry.SegmentID
	First, Last entry.Seqno
}

func (v *VictimResult) moved(to entry.SegmentID, seqno entry.Seqno) {
	if n := len(v.Moved); n > 0 && v.Moved[n-1].Segment == to {
		v.Moved[n-1].Last = seqno
		return
	}
	v.Moved = append(v.Moved, MovedRange{to, seqno, seqno})
}

// RewriteOutput is one new segment. Its file is complete and durable, its name
// too; its length is all that is allocated.
type RewriteOutput struct {
	ID          entry.SegmentID
	End         uint32      // where its groups end
	First, Last entry.Seqno // of its documents
	FileBytes   int64
	Documents   DocumentCount
	// Segment is the file, open, with one reference and its index in memory.
	// It belongs to the caller, who hands it to Log.AddSegments or discards it.
	Segment *Segment
}

// RewriteResult says what Rewrite did.
type RewriteResult struct {
	Outputs []RewriteOutput // by rising seqnos, which do not overlap
	Victims []VictimResult  // as they were given
	// Bytes read, of outputs too when they are verified, and written, headers,
	// padding and footers included.
	ReadBytes, WrittenBytes int64
}

// Segments returns the segments of the outputs, for Log.AddSegments.
func (r *RewriteResult) Segments() []*Segment {
	var all []*Segment
	for i := range r.Outputs {
		all = append(all, r.Outputs[i].Segment)
	}
	return all
}

// Find returns the output that the document of seqno was copied to; ok is false
// when it was not kept. A seqno that died while it was copied is dead there now
// (design R7).
func (r *RewriteResult) Find(seqno entry.Seqno) (id entry.SegmentID, ok bool) {
	i := sort.Search(len(r.Outputs), func(i int) bool { return r.Outputs[i].Last >= seqno })
	if i == len(r.Outputs) {
		return 0, false
	}
	out := &r.Outputs[i]
	_, ok = out.Segment.index.Load().Lookup(seqno)
	return out.ID, ok
}

// Discard closes and removes the files of outputs that were not handed to a
// Log, because no edit registered them. After an edit whose fate is unknown the
// files must stay: close them with Segment.CloseFile instead.
func (r *RewriteResult) Discard(fs vfs.FS) error {
	var errs []error
	for i := range r.Outputs {
		f := r.Outputs[i].Segment.File
		errs = append(errs, f.Close(), fs.Remove(f.Name()))
	}
	r.Outputs = nil
	return errors.Join(errs...)
}

// ErrOutput: an output was not read as it was written. The victims are not to
// blame; the error is no *CorruptError.
var ErrOutput = errors.New("wal: output of a rewrite is damaged")

// Rewrite reads the groups of victims, of either kind, merges their separated
// documents by seqno, and copies those that keep wants into new segments of kind
// SegmentGC. Seqnos stay; sums are made anew for the new places. All other
// records are passed over. Index and footer of victims are not needed.
//
// keep is called once for each separated document, in the order of seqnos, by the
// goroutine that called Rewrite. The record's Address is where it stands now. Its
// slices live until keep returns.
//
// When Rewrite returns without an error, the outputs and their names are
// durable, and nothing but the caller knows of them. There is none when nothing
// was kept. After an error, or when ctx is done, what was made has been removed.
// A victim that cannot be read as it was written is a *CorruptError with file
// and offset, one that the device does not give is a *vfs.ReadError with its file.
// An output may be named by a *vfs.ReadError too, when it was verified.
//
// Memory: two groups of 1 MiB, or of one larger document; for each victim whose seqnos the merge has reached
// and not passed, 512 KiB or its largest group rounded up, and 256 KiB read ahead; and 12 bytes for each
// document of the output at hand, plus its index. Victims whose seqnos do not
// overlap, such as segments of the log, are in memory one after another.
func Rewrite(ctx context.Context, o RewriteOptions, victims []RewriteVictim, keep func(*Record) bool) (RewriteResult, error) {
	return rewriteSegments(ctx, o, rewriteSizesDefault, victims, keep)
}

// rewriteSizes are the sizes of what a rewrite has in memory at once, in bytes.
type rewriteSizes struct {
	// read is the size of a read, a multiple of vfs.BlockBytes. A victim's buffer
	// has room for two: a read, and a group of that size which the read before cut.
	read int
	// kept is the largest buffer of a victim that is kept for its next group.
	kept int
	// group bounds a group of an output, padding included; a multiple of AlignMax.
	group int
	// write is the size of a write, a multiple of AlignMax.
	write int
}

// rewriteSizesDefault: a read and a write of 256 KiB, which are all that is in
// flight, are what background work may have (design R25). Groups of 1 MiB lose
// 0.2 % to padding, half a block each. A buffer of 2 MiB holds a group of an
// output, wherever it starts.
var rewriteSizesDefault = rewriteSizes{read: 256 << 10, kept: 2 << 20, group: 1 << 20, write: 256 << 10}

func rewriteSegments(ctx context.Context, o RewriteOptions, sizes rewriteSizes, victims []RewriteVictim, keep func(*Record) bool) (RewriteResult, error) {
	if err := o.validate(); err != nil {
		return RewriteResult{}, err
	}
	w := &rewrite{ctx: ctx, o: &o, sizes: sizes, keep: keep}
	w.res.Victims = make([]VictimResult, len(victims))
	err := w.run(victims)
	for _, s := range w.sources {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}
	if err == nil && len(w.res.Outputs) > 0 {
		err = mutant.Skip(mutant.SkipMovedDirSync, w.syncDir)
	}
	if err = w.out.end(err); err != nil {
		return RewriteResult{}, errors.Join(err, w.res.Discard(o.FS))
	}
	return w.res, nil
}

// rewrite is one call of Rewrite.
type rewrite struct {
	ctx     context.Context
	o       *RewriteOptions
	sizes   rewriteSizes
	keep    func(*Record) bool
	sources []*rewriteSource
	out     rewriteWriter
	last    entry.Seqno // seen in any victim
	reading atomic.Bool // a read ahead is in flight
	res     RewriteResult
}

func (w *rewrite) run(victims []RewriteVictim) error {
	if err := w.out.init(w); err != nil {
		return err
	}
	for i, v := range victims {
		w.res.Victims[i].ID = v.ID
		s := &rewriteSource{w: w, v: v, res: &w.res.Victims[i]}
		w.sources = append(w.sources, s)
		if err := s.open(); err != nil {
			if mutant.FreeUnreadable && !errors.Is(err, ErrCorrupt) {
				s.done = true
				continue
			}
			return err
		}
	}
	for {
		s, limit := w.lowest()
		if s == nil {
			return w.out.finish()
		}
		if err := w.drain(s, limit); err != nil {
			return err
		}
	}
}

// lowest returns the victim with the lowest next seqno, nil at the end, and the
// next seqno of the one after it.
func (w *rewrite) lowest() (first *rewriteSource, limit entry.Seqno) {
	limit = math.MaxUint64
	for _, s := range w.sources {
		switch {
		case s.done:
		case first == nil:
			first = s
		case s.next < first.next:
			first, limit = s, first.next
		default:
			limit = min(limit, s.next)
		}
	}
	return first, limit
}

// drain takes the documents of s, one or more, up to limit.
func (w *rewrite) drain(s *rewriteSource, limit entry.Seqno) error {
	if !s.loaded { // next is only where its seqnos may begin
		return s.advance()
	}
	for {
		if err := w.document(s); err != nil {
			return err
		}
		if err := s.advance(); err != nil {
			return err
		}
		if s.done || s.next >= limit {
			return nil
		}
	}
}

// document decides about the document that s stands on.
func (w *rewrite) document(s *rewriteSource) error {
	r := &s.rec
	if r.Seqno <= w.last {
		// Seqnos rise within a victim: it is in two of them, and a reader would
		// find either.
		return corrupt(s.f.name, int64(r.Address.Offset), "document of seqno %d stands in another victim too", r.Seqno)
	}
	w.last = r.Seqno
	if !w.keep(r) {
		s.res.Dropped.add(len(s.raw))
		return nil
	}
	if err := s.verify(); err != nil {
		return err
	}
	s.res.Kept.add(len(s.raw))
	if err := w.out.add(r.Seqno, s.raw); err != nil {
		return err
	}
	s.res.moved(w.out.id, r.Seqno)
	return nil
}

// left is how many bytes of the victims may still have to be copied.
func (w *rewrite) left() int64 {
	n := int64(0)
	for _, s := range w.sources {
		if !s.done {
			n += int64(s.v.End) - s.groupAt
		}
	}
	return n
}

// verify reads an output as if it were a victim.
func (w *rewrite) verify(out *RewriteOutput) error {
	if !w.o.Verify {
		return nil
	}
	s := &rewriteSource{w: w, v: RewriteVictim{ID: out.ID, Kind: SegmentGC, End: out.End}, res: new(VictimResult)}
	err := s.open()
	if err == nil {
		err = s.compare(out.Segment.index.Load())
	}
	if cerr := s.close(); err == nil {
		err = cerr
	}
	if errors.Is(err, ErrCorrupt) {
		err = fmt.Errorf("%w: %v", ErrOutput, err)
	}
	return err
}

func (w *rewrite) pace(bytes int) {
	if w.o.Pace != nil {
		w.o.Pace(bytes)
	}
}
