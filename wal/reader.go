package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// documentRereads counts reads that were repeated because a checksum failed.
var documentRereads atomic.Int64

// DocumentRereads returns how many document reads failed their checksum and
// were repeated, in this process.
func DocumentRereads() int64 { return documentRereads.Load() }

// DocRead is one read of ReadDocuments. The caller fills File to Key.
type DocRead struct {
	File    vfs.File
	Address entry.Address
	Seqno   entry.Seqno
	Key     []byte // user key that the document must have

	// Value is part of the slice that ReadDocuments returns, nil on error.
	Value []byte
	Meta  entry.Meta
	// Err is a *CorruptError when the bytes at Address are not this document,
	// otherwise what the read said.
	Err error

	read vfs.Read
	buf  docBuffer
}

// Plan is the first of the two halves of a read, for callers that have many
// under way and take each as it comes: it checks the address, takes a buffer,
// and returns the read to do. r stays where it is until Finish. direct asks for
// a read that is aligned to vfs.BlockBytes. On an error, a *CorruptError for an
// address at which nothing can be, there is nothing to do or to finish.
func (r *DocRead) Plan(direct bool) (*vfs.Read, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return &r.read, r.span(direct)
}

// Finish takes the document out of what the read of Plan brought, appends its
// value to dst and returns it; Value, Meta and Err are set as by ReadDocuments.
// A checksum that fails is tried once more from the device. A value of more than
// limit bytes gets ErrReadLimit. The buffer is given back.
func (r *DocRead) Finish(secret *Secret, dst []byte, limit int) []byte {
	s := docScratch{left: limit}
	dst = r.finish(&s, &r.read, secret, dst)
	r.buf.free()
	r.read = vfs.Read{}
	return dst
}

// ReadDocument reads the separated document at a from f, its segment's file,
// checks that it is the one of seqno and key, and appends its value to dst. A
// checksum that fails is tried once more from the device. direct asks for
// reads that are aligned to vfs.BlockBytes. The error is a *CorruptError when
// the document is not there.
func ReadDocument(f vfs.File, a entry.Address, seqno entry.Seqno, key []byte, secret *Secret, direct bool, dst []byte) (value []byte, meta entry.Meta, err error) {
	r := DocRead{File: f, Address: a, Seqno: seqno, Key: key}
	read, err := r.Plan(direct)
	if err != nil {
		return dst, entry.Meta{}, err
	}
	read.N, read.Err = f.ReadAt(read.Buf, read.Off)
	out := r.Finish(secret, dst, math.MaxInt)
	if r.Err != nil {
		return dst, entry.Meta{}, r.Err
	}
	return out, r.Meta, nil
}

// ErrReadLimit: the values of the reads before this one are as much as the call
// may return.
var ErrReadLimit = errors.New("wal: values of a batched read exceed its limit")

// ReadDocuments does all reads together by io, appends the values to dst and returns it. Each read has its own Err. It may be
// called concurrently; Value slices alias the returned slice's memory, or that
// of dst before it grew, and are the caller's.
//
// A compressed value is up to 22 times as long as its address says, so that
// callers cannot bound memory by addresses alone. Once the values would take more
// than limit bytes, that read and all behind it get ErrReadLimit; the first one
// never does. What was read in vain is at most what the values would have taken
// uncompressed.
func ReadDocuments(reads []DocRead, io *vfs.IO, secret *Secret, direct bool, dst []byte, limit int) []byte {
	s := docScratches.Get().(*docScratch)
	defer docScratches.Put(s)
	s.io = io
	return s.read(reads, secret, direct, dst, limit)
}

// docScratch is what a call of ReadDocuments needs.
type docScratch struct {
	io    *vfs.IO
	reads []vfs.Read
	left  int  // bytes of values that may still come, below 0 at the limit
	first bool // no value came yet
}

var docScratches = sync.Pool{New: func() any { return new(docScratch) }}

// docRoundBytesMax bounds the buffers of one round of reads: documents are
// small (a GetMany is cut at 8 MiB of answers), but a batch of 128 reads of
// 20 MiB must not take gigabytes.
const docRoundBytesMax = 16 << 20

func (s *docScratch) read(reads []DocRead, secret *Secret, direct bool, dst []byte, limit int) []byte {
	s.left, s.first = max(limit, 0), true
	total := 0
	for i := range reads {
		reads[i].Value, reads[i].Meta, reads[i].Err = nil, entry.Meta{}, nil
		total += int(min(reads[i].Address.Length, docRoundBytesMax))
	}
	if len(reads) > 1 {
		// Once, so that values of a batch share one piece of memory.
		dst = slices.Grow(dst, min(total, docRoundBytesMax))
	}
	for len(reads) > 0 {
		n, size := 0, 0
		for n < len(reads) && (n == 0 || size+int(reads[n].Address.Length) <= docRoundBytesMax) {
			size += int(reads[n].Address.Length)
			n++
		}
		dst = s.round(reads[:n], secret, direct, dst)
		reads = reads[n:]
		if s.left < 0 {
			for i := range reads {
				reads[i].Err = ErrReadLimit
			}
			break
		}
	}
	return dst
}

// admit reports whether a value of n bytes may be returned. After the first one
// that may not, none may: a smaller one must not slip in behind.
func (s *docScratch) admit(n int) bool {
	if s.left >= 0 {
		if s.left -= n; s.left < 0 && s.first {
			s.left = 0
		}
	}
	s.first = false
	return s.left >= 0
}

// round does as many reads as docRoundBytesMax allows at once.
func (s *docScratch) round(reads []DocRead, secret *Secret, direct bool, dst []byte) []byte {
	s.reads = s.reads[:0]
	for i := range reads {
		r := &reads[i]
		if r.Err = r.check(); r.Err == nil {
			r.Err = r.span(direct)
		}
		if r.Err == nil {
			s.reads = append(s.reads, r.read)
		}
	}
	s.io.ReadMany(s.reads)
	next := 0
	for i := range reads {
		r := &reads[i]
		if r.Err == nil {
			dst = r.finish(s, &s.reads[next], secret, dst)
			next++
		}
		r.buf.free()
		r.read = vfs.Read{}
	}
	clear(s.reads)
	return dst
}

// check bounds the address before anything is read by it.
func (r *DocRead) check() error {
	a := r.Address
	if a.Length < documentBytesMin || int64(a.Length) > RecordHeadBytesMax+MaxKeyBytes+MaxValueBytes ||
		a.Offset == 0 || int64(a.Offset)+int64(a.Length) > MaxSegmentBytes {
		return corrupt(r.File.Name(), int64(a.Offset), "no document can be at %v", a)
	}
	return nil
}

// span makes the read that covers the document, with its buffer.
func (r *DocRead) span(direct bool) error {
	from, to := int64(r.Address.Offset), int64(r.Address.Offset)+int64(r.Address.Length)
	if direct {
		from &^= vfs.BlockBytes - 1
		to = roundUp(to, vfs.BlockBytes)
	}
	buf, err := getDocBuffer(int(to - from))
	if err != nil {
		return fmt.Errorf("read document %v: %w", r.Address, err)
	}
	r.buf = buf
	r.read = vfs.Read{File: r.File, Buf: buf.mem[:to-from], Off: from}
	return nil
}

// finish takes the document out of what was read.
func (r *DocRead) finish(s *docScratch, in *vfs.Read, secret *Secret, dst []byte) []byte {
	for try := 0; ; try++ {
		at := int(int64(r.Address.Offset) - in.Off)
		end := at + int(r.Address.Length)
		if in.N < end {
			if in.Err == nil || errors.Is(in.Err, io.EOF) {
				r.Err = corrupt(r.File.Name(), int64(r.Address.Offset), "file ends within document %v", r.Address)
			} else {
				r.Err = fmt.Errorf("read document %v of %s: %w", r.Address, r.File.Name(), in.Err)
			}
			return dst
		}
		rec := in.Buf[at:end]
		if verifyDocument(rec, secret, r.Address.Segment, r.Address.Offset, r.Seqno) {
			return r.take(s, rec, dst)
		}
		if try > 0 {
			r.Err = corrupt(r.File.Name(), int64(r.Address.Offset), "wrong sum of document %v of seqno %d", r.Address, r.Seqno)
			return dst
		}
		// The flip may have happened in memory: ask the device once more.
		documentRereads.Add(1)
		in.N, in.Err = in.File.ReadAt(in.Buf, in.Off)
	}
}

// take checks what the sum cannot: that this is the document asked for.
func (r *DocRead) take(s *docScratch, rec []byte, dst []byte) []byte {
	var parsed Record
	n, reason := parseRecord(rec, &parsed)
	switch {
	case n == 0:
	case n != len(rec) || !parsed.Separated:
		reason = fmt.Sprintf("record of %d bytes at document %v", n, r.Address)
	case !bytes.Equal(parsed.Key, r.Key):
		reason = fmt.Sprintf("document %v has another key", r.Address)
	default:
		start := len(dst)
		n, err := parsed.valueBytes()
		if err == nil && !s.admit(n) {
			r.Err = ErrReadLimit
			return dst
		}
		if err == nil {
			dst, err = parsed.AppendValue(dst)
		}
		if err != nil {
			r.Err = inRecord(err, r.File.Name(), int64(r.Address.Offset))
			return dst
		}
		r.Value, r.Meta = dst[start:len(dst):len(dst)], parsed.Meta
		return dst
	}
	r.Err = corrupt(r.File.Name(), int64(r.Address.Offset), "%s", reason)
	return dst
}

// docBuffer is an aligned buffer off the heap, from a free list by size.
type docBuffer struct {
	mem   []byte
	class int
}

const (
	docClassMin = 13 // 8 KiB: a document of up to 4 KiB straddles two blocks
	docClassMax = 18 // 256 KiB; larger ones are mapped for the call
	// docFreeBytesMax bounds what each class keeps: 512 reads under way at 8 KiB
	// are 4 MiB. Larger documents are fewer.
	docFreeBytesMax = 4 << 20
)

var docFree [docClassMax + 1]struct {
	mu   sync.Mutex
	free [][]byte
}

func getDocBuffer(n int) (docBuffer, error) {
	class := max(docClassMin, bits.Len(uint(n-1)))
	if class > docClassMax {
		mem, err := offheap.AlignedBuffer(n)
		return docBuffer{mem, class}, err
	}
	list := &docFree[class]
	list.mu.Lock()
	if k := len(list.free); k > 0 {
		mem := list.free[k-1]
		list.free = list.free[:k-1]
		list.mu.Unlock()
		return docBuffer{mem, class}, nil
	}
	list.mu.Unlock()
	mem, err := offheap.AlignedBuffer(1 << class)
	return docBuffer{mem, class}, err
}

func (b *docBuffer) free() {
	if b.mem == nil {
		return
	}
	mem := b.mem
	b.mem = nil
	if b.class <= docClassMax {
		list := &docFree[b.class]
		list.mu.Lock()
		if (len(list.free)+1)<<b.class <= docFreeBytesMax {
			list.free = append(list.free, mem)
			list.mu.Unlock()
			return
		}
		list.mu.Unlock()
	}
	offheap.FreeAligned(mem)
}
