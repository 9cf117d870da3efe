package sstable

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/vfs"
)

// FormatVersion is the version in the footer.
const FormatVersion = 1

var le = binary.LittleEndian

const (
	// pageBytes is the unit of the page rule, of filter pieces and of file
	// lengths: what direct I/O reads at least.
	pageBytes = vfs.BlockBytes

	// trailerBytes follow the payload of every block: compression, sum.
	trailerBytes = 1 + 8

	// tailBytes are readable behind the payload of a block in memory, so that
	// a packed column is read with one 8-byte load. The trailer serves.
	tailBytes = 8

	// payloadBytesMax bounds a payload before memory is taken for it. It is
	// above everything a Writer makes: an inline value is at most
	// MaxInlineBytes, a target at most BlockBytesMax, and an index block
	// holds two keys of 64 KiB at most above its target.
	payloadBytesMax = 16 << 20

	// keyBytesMax is the longest internal key: vbucket and 65,535 bytes.
	keyBytesMax = 2 + 65535
)

// Bounds that Writer checks.
const (
	// MaxInlineBytes is the largest inline value.
	MaxInlineBytes = 8 << 20
	// BlockBytesMin and BlockBytesMax bound WriterOptions.BlockBytes.
	BlockBytesMin = 512
	BlockBytesMax = 1 << 20
)

// Compression says how data blocks are stored. The values are on disk.
type Compression uint8

const (
	// NoCompression stores payloads as they are.
	NoCompression Compression = 0
	// Snappy stores payloads in snappy's block format where that is smaller.
	Snappy Compression = 1
)

func (c Compression) String() string {
	switch c {
	case NoCompression:
		return "none"
	case Snappy:
		return "snappy"
	}
	return fmt.Sprintf("Compression(%d)", uint8(c))
}

// Name returns the base name of a table's file, "000187.sst".
func Name(number uint64) string { return fmt.Sprintf("%06d.sst", number) }

// ParseName is the inverse of Name; ok is false for any name that Name does
// not make.
func ParseName(base string) (number uint64, ok bool) {
	digits, found := strings.CutSuffix(base, ".sst")
	if !found {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || Name(n) != base {
		return 0, false
	}
	return n, true
}

// BlockKind says what a block holds.
type BlockKind uint8

const (
	// DataBlock holds entries.
	DataBlock BlockKind = iota
	// IndexBlock holds separators and the places of blocks.
	IndexBlock
	// FilterPiece is one piece of the filter.
	FilterPiece
)

func (k BlockKind) String() string {
	switch k {
	case DataBlock:
		return "data block"
	case IndexBlock:
		return "index block"
	case FilterPiece:
		return "filter piece"
	}
	return fmt.Sprintf("BlockKind(%d)", uint8(k))
}

// BlockRef names one block of a table. (table number, Offset) names it in the
// store.
type BlockRef struct {
	Offset uint64
	Length uint32 // stored, trailer included
	Kind   BlockKind
}

func (r BlockRef) String() string {
	return fmt.Sprintf("%v at %d, %d bytes", r.Kind, r.Offset, r.Length)
}

func (r BlockRef) end() uint64 { return r.Offset + uint64(r.Length) }

// sum64 is the checksum of b in table number: the seed ties every block to its
// table, so that a stale block of another one never looks valid.
func sum64(number uint64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(number)
	d.Write(b)
	return d.Sum64()
}

// sealBlock appends the trailer to a stored payload.
func sealBlock(stored []byte, c Compression, number uint64) []byte {
	stored = append(stored, byte(c))
	return le.AppendUint64(stored, sum64(number, stored))
}

func roundPage(n int64) int64 { return (n + pageBytes - 1) &^ (pageBytes - 1) }

// pagesTouched is how many pages [off, off+n) lies in, n > 0.
func pagesTouched(off int64, n int) int64 {
	return (off%pageBytes + int64(n) + pageBytes - 1) / pageBytes
}
