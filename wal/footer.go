package wal

import (
	"errors"
	"fmt"
	"io"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// Footer of a sealed segment: the seqno index at the end of the groups, zeros,
// and a tail that ends the file. The whole is a multiple of align. Tail,
// little-endian:
//
//	 0  magic        8 bytes
//	 8  version      uint16
//	10  zero         uint16
//	12  segment      uint32
//	16  indexOffset  uint32  in the file
//	20  indexBytes   uint32
//	24  indexSum     uint64
//	32  end          uint32
//	36  records      uint32
//	40  first        uint64
//	48  last         uint64
//	56  durable      uint64
//	64  zero         uint64
//	72  sum          uint64  of bytes [0, 72)
const footerTailBytes = 80

const footerMagic = "fluxend\n"

// ErrNoFooter: the file does not end in a footer; it was not sealed.
var ErrNoFooter = errors.New("segment has no footer")

// Footer describes a sealed segment.
type Footer struct {
	Segment entry.SegmentID
	End     uint32      // where the groups end, padding included
	Records uint32      // in all groups
	First   entry.Seqno // first seqno in the segment
	Last    entry.Seqno // last seqno, First-1 when there is none
	// Durable is a promise like that of a group. A footer is written when
	// everything in its segment is durable: then it is Last or more.
	Durable entry.Seqno

	indexOffset, indexBytes uint32
	indexSum                uint64
}

// EncodeFooter appends the footer to dst. It belongs at f.End of the file, a
// multiple of align, and its length, a multiple of align, ends the file.
func EncodeFooter(dst []byte, f Footer, index *IndexBuilder, align int, secret *Secret) []byte {
	start := len(dst)
	dst = index.Encode(dst)
	indexBytes := len(dst) - start
	total := int(roundUp(int64(indexBytes)+footerTailBytes, align))
	dst = append(dst, make([]byte, total-indexBytes)...)
	b := dst[len(dst)-footerTailBytes:]
	copy(b, footerMagic)
	le.PutUint16(b[8:], FormatVersion)
	le.PutUint32(b[12:], uint32(f.Segment))
	le.PutUint32(b[16:], f.End)
	le.PutUint32(b[20:], uint32(indexBytes))
	le.PutUint64(b[24:], sum64(mix64(place(secret, f.Segment, f.End)^domainIndex), dst[start:start+indexBytes]))
	le.PutUint32(b[32:], f.End)
	le.PutUint32(b[36:], f.Records)
	le.PutUint64(b[40:], uint64(f.First))
	le.PutUint64(b[48:], uint64(f.Last))
	le.PutUint64(b[56:], uint64(f.Durable))
	tailOffset := f.End + uint32(total) - footerTailBytes
	le.PutUint64(b[72:], sum64(mix64(place(secret, f.Segment, tailOffset)^domainTail), b[:72]))
	return dst
}

// DecodeFooterTail reads the tail from b, which ends where the file of
// fileBytes ends. It returns ErrNoFooter when there is none that is valid for
// this segment and place, and a *CorruptError without a file name for a valid
// one of another version or with bounds that cannot be.
func DecodeFooterTail(b []byte, fileBytes int64, secret *Secret, segment entry.SegmentID) (Footer, error) {
	var f Footer
	if len(b) < footerTailBytes || fileBytes < footerTailBytes || fileBytes > MaxSegmentBytes {
		return f, ErrNoFooter
	}
	b = b[len(b)-footerTailBytes:]
	at := fileBytes - footerTailBytes
	if string(b[:8]) != footerMagic || le.Uint32(b[12:]) != uint32(segment) ||
		sum64(mix64(place(secret, segment, uint32(at))^domainTail), b[:72]) != le.Uint64(b[72:]) {
		return f, ErrNoFooter
	}
	if v := le.Uint16(b[8:]); v != FormatVersion {
		return f, corrupt("", at, "footer: format version %d, this program knows %d", v, FormatVersion)
	}
	f = Footer{
		Segment:     segment,
		End:         le.Uint32(b[32:]),
		Records:     le.Uint32(b[36:]),
		First:       entry.Seqno(le.Uint64(b[40:])),
		Last:        entry.Seqno(le.Uint64(b[48:])),
		Durable:     entry.Seqno(le.Uint64(b[56:])),
		indexOffset: le.Uint32(b[16:]),
		indexBytes:  le.Uint32(b[20:]),
		indexSum:    le.Uint64(b[24:]),
	}
	if f.indexOffset < f.End || int64(f.indexOffset)+int64(f.indexBytes) > at || f.indexBytes < indexHeadBytes ||
		f.First > entry.MaxSeqno || f.Last > entry.MaxSeqno || f.Last+1 < f.First || f.Durable > entry.MaxSeqno {
		return Footer{}, corrupt("", at, "footer: index of %d bytes at %d, groups to %d, seqnos %d to %d",
			f.indexBytes, f.indexOffset, f.End, f.First, f.Last)
	}
	return f, nil
}

// readFooterTail reads the tail at the end of a file of fileBytes.
func readFooterTail(f vfs.File, fileBytes int64, secret *Secret, segment entry.SegmentID) (Footer, error) {
	if fileBytes < footerTailBytes {
		return Footer{}, ErrNoFooter
	}
	var out Footer
	err := readAligned(f, fileBytes-footerTailBytes, footerTailBytes, func(b []byte) error {
		var err error
		out, err = DecodeFooterTail(b, fileBytes, secret, segment)
		return err
	})
	return out, err
}

// ReadFooter reads the footer and the index of a sealed segment. The error is
// ErrNoFooter, a *CorruptError, or that of a read.
func ReadFooter(f vfs.File, secret *Secret, segment entry.SegmentID) (Footer, *SeqnoIndex, error) {
	fileBytes, err := f.Size()
	if err != nil {
		return Footer{}, nil, fmt.Errorf("size of %s: %w", f.Name(), err)
	}
	foot, err := readFooterTail(f, fileBytes, secret, segment)
	if err != nil {
		return Footer{}, nil, inFile(err, f.Name())
	}
	index, err := readIndex(f, &foot, secret)
	if err != nil {
		return Footer{}, nil, err
	}
	return foot, index, nil
}

// readIndex reads the index that a footer points to.
func readIndex(f vfs.File, foot *Footer, secret *Secret) (*SeqnoIndex, error) {
	var index *SeqnoIndex
	err := readAligned(f, int64(foot.indexOffset), int(foot.indexBytes), func(b []byte) error {
		if sum64(mix64(place(secret, foot.Segment, foot.indexOffset)^domainIndex), b) != foot.indexSum {
			return corrupt("", int64(foot.indexOffset), "footer: wrong sum of the seqno index")
		}
		var err error
		index, err = DecodeIndex(b)
		return err
	})
	if err != nil {
		return nil, inFile(err, f.Name())
	}
	if index.Len() > 0 && (index.first < foot.First || index.last > foot.Last) {
		return nil, corrupt(f.Name(), int64(foot.indexOffset), "footer: index of seqnos %d to %d in a segment of %d to %d",
			index.first, index.last, foot.First, foot.Last)
	}
	return index, nil
}

// inFile names the file in a CorruptError that has none.
func inFile(err error, name string) error {
	var c *CorruptError
	if errors.As(err, &c) && c.File == "" {
		c.File = name
		return c
	}
	return err
}

// inRecord is inFile for a record at offset off of the file.
func inRecord(err error, name string, off int64) error {
	var c *CorruptError
	if errors.As(err, &c) && c.File == "" {
		c.Offset = off
	}
	return inFile(err, name)
}

// readAligned reads n bytes at off, which lie in the file, through an aligned
// buffer that lives for the call, so that it works on direct files too.
func readAligned(f vfs.File, off int64, n int, use func(b []byte) error) error {
	from := off &^ (vfs.BlockBytes - 1)
	to := roundUp(off+int64(n), vfs.BlockBytes)
	buf, err := offheap.AlignedBuffer(int(to - from))
	if err != nil {
		return fmt.Errorf("read %d bytes at %d of %s: %w", n, off, f.Name(), err)
	}
	defer offheap.FreeAligned(buf)
	got, err := f.ReadAt(buf, from)
	if need := int(off-from) + n; got < need {
		if err == nil || errors.Is(err, io.EOF) {
			return corrupt(f.Name(), from+int64(got), "file ends within the %d bytes at %d", n, off)
		}
		return fmt.Errorf("read %d bytes at %d of %s: %w", n, off, f.Name(), err)
	}
	start := int(off - from)
	return use(buf[start : start+n])
}
