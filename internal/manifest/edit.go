package manifest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"fluxkv/internal/entry"
)

// SegmentKind tells the log's own segments from outputs of garbage collection.
// The values are frozen.
type SegmentKind uint8

const (
	// SegmentLog is a segment of the write-ahead log.
	SegmentLog SegmentKind = 1
	// SegmentGC is an output of garbage collection.
	SegmentGC SegmentKind = 2
)

func (k SegmentKind) String() string {
	switch k {
	case SegmentLog:
		return "log"
	case SegmentGC:
		return "gc"
	}
	return fmt.Sprintf("SegmentKind(%d)", uint8(k))
}

// AddSegment registers a segment whose file is durable.
type AddSegment struct {
	ID   entry.SegmentID
	Kind SegmentKind
	Size int64 // bytes allocated, header included
}

// SealSegment records that a segment is complete.
type SealSegment struct {
	ID        entry.SegmentID
	End       uint32      // file offset behind the last group
	Last      entry.Seqno // highest seqno in it, 0 when it holds none
	FileBytes int64       // exact length of the file
	Footer    bool        // the file ends in a seqno index
}

// EndSegment records where a torn segment ends (R4).
type EndSegment struct {
	ID   entry.SegmentID
	End  uint32      // readers stop here
	Last entry.Seqno // last seqno before End, 0 when there is none
	Next entry.Seqno // first seqno that may follow
}

// Edit is one atomic change of the State. Zero fields change nothing. Within
// one edit segments are added, then sealed, then ended, dead seqnos are added,
// segments dropped, forwards added, then dropped, tables dropped, then added,
// then flushed positions and the single values take effect. What the slices
// refer to is shared with the State and must not be written any more.
type Edit struct {
	AddSegments  []AddSegment
	SealSegments []SealSegment
	EndSegments  []EndSegment
	DropSegments []entry.SegmentID

	AddTables    []*Table
	DropTables   []uint64   // numbers
	Flushed      []Flushed  // each never falls
	AddDead      []*DeadSet // joined with what is known to be dead
	AddForwards  []Forward
	DropForwards []entry.SegmentID

	ReplayFrom entry.Position // never moves back
	NextSeqno  entry.Seqno    // floor for the next seqno; never falls
	ClearSeqno entry.Seqno    // never falls
	// SetPendingClear makes PendingClear (Unix nanoseconds, 0 = none) take
	// effect.
	SetPendingClear bool
	PendingClear    int64
	// ExpiryClock, in Unix seconds, is a time at which a version was given up
	// because it had expired (R24). The State keeps the highest; a lower one
	// changes nothing, because jobs finish in any order.
	ExpiryClock uint32
	NextFile    uint64 // numbers below it are used up; Log.Apply fills it
}

// Field tags, frozen: they are on disk. A new kind of change takes the next
// free one.
const (
	tagAddSegment   = 1
	tagSealSegment  = 2
	tagEndSegment   = 3
	tagDropSegment  = 4
	tagReplayFrom   = 5
	tagNextSeqno    = 6
	tagClearSeqno   = 7
	tagPendingClear = 8
	tagNextFile     = 9
	tagAddTable     = 10
	tagDropTable    = 11
	tagFlushed      = 12
	tagAddDead      = 13
	tagAddForward   = 14
	tagDropForward  = 15
	tagExpiryClock  = 16
)

// varies is the payload length of a field that says itself where it ends.
const varies = -1

// fieldBytes holds the payload length of every known tag, or varies.
var fieldBytes = map[byte]int{
	tagAddSegment:   13,
	tagSealSegment:  25,
	tagEndSegment:   24,
	tagDropSegment:  4,
	tagReplayFrom:   16,
	tagNextSeqno:    8,
	tagClearSeqno:   8,
	tagPendingClear: 8,
	tagNextFile:     8,
	tagAddTable:     varies,
	tagDropTable:    8,
	tagFlushed:      10,
	tagAddDead:      varies,
	tagAddForward:   varies,
	tagDropForward:  4,
	tagExpiryClock:  4,
}

var le = binary.LittleEndian

// Append encodes e behind dst.
func (e *Edit) Append(dst []byte) []byte {
	field := func(tag byte) {
		dst = append(dst, tag)
		dst = binary.AppendUvarint(dst, uint64(fieldBytes[tag]))
	}
	for _, s := range e.AddSegments {
		field(tagAddSegment)
		dst = le.AppendUint32(dst, uint32(s.ID))
		dst = append(dst, byte(s.Kind))
		dst = le.AppendUint64(dst, uint64(s.Size))
	}
	for _, s := range e.SealSegments {
		field(tagSealSegment)
		dst = le.AppendUint32(dst, uint32(s.ID))
		dst = le.AppendUint32(dst, s.End)
		dst = le.AppendUint64(dst, uint64(s.Last))
		dst = le.AppendUint64(dst, uint64(s.FileBytes))
		footer := byte(0)
		if s.Footer {
			footer = 1
		}
		dst = append(dst, footer)
	}
	for _, s := range e.EndSegments {
		field(tagEndSegment)
		dst = le.AppendUint32(dst, uint32(s.ID))
		dst = le.AppendUint32(dst, s.End)
		dst = le.AppendUint64(dst, uint64(s.Last))
		dst = le.AppendUint64(dst, uint64(s.Next))
	}
	for _, id := range e.DropSegments {
		field(tagDropSegment)
		dst = le.AppendUint32(dst, uint32(id))
	}
	if e.ReplayFrom != (entry.Position{}) {
		field(tagReplayFrom)
		dst = le.AppendUint32(dst, uint32(e.ReplayFrom.Segment))
		dst = le.AppendUint32(dst, e.ReplayFrom.Offset)
		dst = le.AppendUint64(dst, uint64(e.ReplayFrom.Seqno))
	}
	if e.NextSeqno != 0 {
		field(tagNextSeqno)
		dst = le.AppendUint64(dst, uint64(e.NextSeqno))
	}
	if e.ClearSeqno != 0 {
		field(tagClearSeqno)
		dst = le.AppendUint64(dst, uint64(e.ClearSeqno))
	}
	if e.SetPendingClear {
		field(tagPendingClear)
		dst = le.AppendUint64(dst, uint64(e.PendingClear))
	}
	if e.NextFile != 0 {
		field(tagNextFile)
		dst = le.AppendUint64(dst, e.NextFile)
	}
	if e.ExpiryClock != 0 {
		field(tagExpiryClock)
		dst = le.AppendUint32(dst, e.ExpiryClock)
	}
	return e.appendTables(dst)
}

// appendTables encodes what e says about tables and the documents they name.
func (e *Edit) appendTables(dst []byte) []byte {
	for _, t := range e.AddTables {
		dst = append(dst, tagAddTable)
		at := len(dst)
		dst = insertLength(t.append(dst), at)
	}
	for _, n := range e.DropTables {
		dst = append(dst, tagDropTable)
		at := len(dst)
		dst = insertLength(le.AppendUint64(dst, n), at)
	}
	for _, f := range e.Flushed {
		dst = append(dst, tagFlushed)
		at := len(dst)
		dst = le.AppendUint16(dst, f.KVStore)
		dst = insertLength(le.AppendUint64(dst, uint64(f.Seqno)), at)
	}
	for _, d := range e.AddDead {
		dst = append(dst, tagAddDead)
		at := len(dst)
		dst = insertLength(d.append(dst), at)
	}
	for i := range e.AddForwards {
		dst = append(dst, tagAddForward)
		at := len(dst)
		dst = insertLength(e.AddForwards[i].append(dst), at)
	}
	for _, id := range e.DropForwards {
		dst = append(dst, tagDropForward)
		at := len(dst)
		dst = insertLength(le.AppendUint32(dst, uint32(id)), at)
	}
	return dst
}

// insertLength puts the length of the payload b[at:] in front of it.
func insertLength(b []byte, at int) []byte {
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(len(b)-at))
	return slices.Insert(b, at, length[:n]...)
}

// DecodeEdit decodes the edit of one record. Errors name the place within b;
// an unknown tag matches ErrVersion, everything else is damage or a bug of the
// writer. b is not kept.
func DecodeEdit(b []byte) (Edit, error) {
	var e Edit
	seen := [256]bool{}
	for at := 0; at < len(b); {
		tag := b[at]
		length, n := binary.Uvarint(b[at+1:])
		if n <= 0 || length > uint64(len(b)-at-1-n) {
			return Edit{}, fmt.Errorf("field %d at byte %d of the edit: length runs past the record", tag, at)
		}
		p := b[at+1+n:][:length]
		want, known := fieldBytes[tag]
		if !known {
			return Edit{}, fmt.Errorf("field with unknown tag %d at byte %d of the edit: %w", tag, at, ErrVersion)
		}
		if want != varies && len(p) != want {
			return Edit{}, fmt.Errorf("field %d at byte %d of the edit: %d bytes, want %d", tag, at, len(p), want)
		}
		if single(tag) && seen[tag] {
			return Edit{}, fmt.Errorf("field %d at byte %d of the edit: given twice", tag, at)
		}
		seen[tag] = true
		if err := e.decodeField(tag, p); err != nil {
			return Edit{}, fmt.Errorf("field %d at byte %d of the edit: %w", tag, at, err)
		}
		at += 1 + n + len(p)
	}
	return e, nil
}

// single reports whether an edit holds at most one field of this tag.
func single(tag byte) bool {
	return tag >= tagReplayFrom && tag <= tagNextFile || tag == tagExpiryClock
}

// decodeField takes over one field of a known tag and, unless it varies, the right
// length.
func (e *Edit) decodeField(tag byte, p []byte) error {
	switch tag {
	case tagAddSegment:
		s := AddSegment{ID: entry.SegmentID(le.Uint32(p)), Kind: SegmentKind(p[4]), Size: int64(le.Uint64(p[5:]))}
		if s.Kind != SegmentLog && s.Kind != SegmentGC {
			return fmt.Errorf("segment %06d: kind %d", s.ID, p[4])
		}
		e.AddSegments = append(e.AddSegments, s)
	case tagSealSegment:
		s := SealSegment{ID: entry.SegmentID(le.Uint32(p)), End: le.Uint32(p[4:]), Last: entry.Seqno(le.Uint64(p[8:])),
			FileBytes: int64(le.Uint64(p[16:])), Footer: p[24] == 1}
		if p[24] > 1 {
			return fmt.Errorf("segment %06d: footer mark %d", s.ID, p[24])
		}
		e.SealSegments = append(e.SealSegments, s)
	case tagEndSegment:
		e.EndSegments = append(e.EndSegments, EndSegment{ID: entry.SegmentID(le.Uint32(p)), End: le.Uint32(p[4:]),
			Last: entry.Seqno(le.Uint64(p[8:])), Next: entry.Seqno(le.Uint64(p[16:]))})
	case tagDropSegment:
		e.DropSegments = append(e.DropSegments, entry.SegmentID(le.Uint32(p)))
	case tagReplayFrom:
		e.ReplayFrom = entry.Position{Segment: entry.SegmentID(le.Uint32(p)), Offset: le.Uint32(p[4:]), Seqno: entry.Seqno(le.Uint64(p[8:]))}
		if e.ReplayFrom == (entry.Position{}) {
			return fmt.Errorf("empty position")
		}
	case tagNextSeqno:
		e.NextSeqno = entry.Seqno(le.Uint64(p))
		if e.NextSeqno == 0 {
			return fmt.Errorf("seqno 0")
		}
	case tagClearSeqno:
		e.ClearSeqno = entry.Seqno(le.Uint64(p))
		if e.ClearSeqno == 0 {
			return fmt.Errorf("seqno 0")
		}
	case tagPendingClear:
		e.SetPendingClear, e.PendingClear = true, int64(le.Uint64(p))
	case tagNextFile:
		e.NextFile = le.Uint64(p)
		if e.NextFile == 0 {
			return fmt.Errorf("number 0")
		}
	case tagExpiryClock:
		e.ExpiryClock = le.Uint32(p)
		if e.ExpiryClock == 0 {
			return fmt.Errorf("time 0")
		}
	default:
		return e.decodeTableField(tag, p)
	}
	return nil
}

func (e *Edit) decodeTableField(tag byte, p []byte) error {
	switch tag {
	case tagAddTable:
		t, err := decodeTable(p)
		if err != nil {
			return err
		}
		e.AddTables = append(e.AddTables, t)
	case tagDropTable:
		e.DropTables = append(e.DropTables, le.Uint64(p))
	case tagFlushed:
		e.Flushed = append(e.Flushed, Flushed{KVStore: le.Uint16(p), Seqno: entry.Seqno(le.Uint64(p[2:]))})
	case tagAddDead:
		d, err := decodeDeadSet(p)
		if err != nil {
			return err
		}
		e.AddDead = append(e.AddDead, d)
	case tagAddForward:
		f, err := decodeForward(p)
		if err != nil {
			return err
		}
		e.AddForwards = append(e.AddForwards, f)
	case tagDropForward:
		e.DropForwards = append(e.DropForwards, entry.SegmentID(le.Uint32(p)))
	}
	return nil
}
