// Package entry names one version of one key: its sequence number, its kind,
// its metadata, and where its value lives. Every layer of the engine speaks
// these types; nothing here touches memory maps, files or locks.
//
//	internal key  =  vbucket (2 bytes, big-endian) | user key (1..65535 bytes)
//	order         =  internal key ascending, then seqno descending
package entry

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Seqno is a place in the one global order of writes of a store. Valid seqnos
// are 1..MaxSeqno; 0 means "none".
type Seqno uint64

// MaxSeqno is the highest seqno; explicit CAS values are above it.
const MaxSeqno Seqno = 1<<56 - 1

// Kind says what a version is. The values reach memtables and table files and
// are frozen.
type Kind uint8

const (
	// KindSet is a document.
	KindSet Kind = 0
	// KindDelete is a tombstone: it hides every older version of its key.
	KindDelete Kind = 1
)

func (k Kind) String() string {
	switch k {
	case KindSet:
		return "SET"
	case KindDelete:
		return "DEL"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// SegmentID names a log segment. Ids are never reused; 0 means "none".
type SegmentID uint32

// Address says where a separated document lives in the log. Length counts the
// whole record including its checksum. The zero Address means "none".
type Address struct {
	Segment SegmentID
	Offset  uint32
	Length  uint32
}

// IsZero reports whether a names no document.
func (a Address) IsZero() bool { return a.Segment == 0 }

func (a Address) String() string {
	return fmt.Sprintf("%06d:%d+%d", a.Segment, a.Offset, a.Length)
}

// Position is a place in the log: everything before (Segment, Offset) has
// seqnos below Seqno.
type Position struct {
	Segment SegmentID
	Offset  uint32
	Seqno   Seqno
}

func (p Position) String() string {
	return fmt.Sprintf("%06d:%d#%d", p.Segment, p.Offset, p.Seqno)
}

// Meta is what a document carries beside key and value. Expiry is absolute
// Unix seconds, 0 = never. CAS is non-zero only when a client set it
// explicitly; otherwise the document's CAS is its seqno. The engine
// understands Expiry and CAS; it carries Flags and Datatype.
type Meta struct {
	CAS      uint64
	Flags    uint32
	Expiry   uint32
	Datatype uint8
}

// IsZero reports whether no field is set.
func (m Meta) IsZero() bool { return m == Meta{} }

// VBucketBytes is the length of the vbucket prefix of an internal key.
const VBucketBytes = 2

// AppendKey appends the internal key of (vbucket, key) to dst.
func AppendKey(dst []byte, vbucket uint16, key []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, vbucket)
	return append(dst, key...)
}

// SplitKey takes an internal key apart. The returned key aliases internal.
func SplitKey(internal []byte) (vbucket uint16, key []byte) {
	return binary.BigEndian.Uint16(internal), internal[VBucketBytes:]
}

// Compare orders versions: internal key ascending, then seqno descending, so
// that the newest version of a key comes first.
func Compare(aKey []byte, a Seqno, bKey []byte, b Seqno) int {
	if c := bytes.Compare(aKey, bKey); c != 0 {
		return c
	}
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

// Value is the value of one version: inline bytes, an address in the log, or
// both (a fresh separated document in a memtable has its bytes and its
// address).
type Value struct {
	Bytes   []byte
	Address Address
	// HasBytes tells an empty value from one that must be read at Address.
	HasBytes bool
}

// Version is one version of one key as iterators return it. Slices are owned
// by the iterator's source and valid until its next move or Close.
type Version struct {
	Key   []byte // internal key
	Seqno Seqno
	Kind  Kind
	Meta  Meta
	Value Value
}

// Iterator walks versions in the order of Compare. It is not safe for
// concurrent use. After First or Seek or Next returns false, Error tells the
// end from a failure.
type Iterator interface {
	// First moves to the first version.
	First() bool
	// SeekGE moves to the first version at or after (key, seqno) in the order
	// of Compare; seqno MaxSeqno finds the newest version of key.
	SeekGE(key []byte, seqno Seqno) bool
	// Next moves to the following version.
	Next() bool
	// Version returns the current version; it must not be called after false.
	Version() *Version
	// Error returns the first error met, nil at a plain end.
	Error() error
	// Close releases what the iterator holds.
	Close() error
}
