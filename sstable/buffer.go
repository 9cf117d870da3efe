package sstable

import (
	"fmt"

	"fluxkv/internal/offheap"
)

// Buffer is the memory for one block: as read from the file, aligned for
// direct I/O, and as decompressed. The zero Buffer is empty; it grows to what
// it is used for and keeps that until Free. It is not safe for concurrent use.
// What was decoded into it is valid until its next use.
type Buffer struct {
	raw   []byte
	plain []byte
}

// bufferBytesMin holds a block of the default size wherever it lies.
const bufferBytesMin = 2 * pageBytes

func (b *Buffer) grow(n int) error {
	if n <= len(b.raw) {
		return nil
	}
	raw, err := offheap.AlignedBuffer(max(n, bufferBytesMin))
	if err != nil {
		return fmt.Errorf("buffer of %d bytes for a block: %w", n, err)
	}
	offheap.FreeAligned(b.raw)
	b.raw = raw
	return nil
}

// Bytes is the memory the buffer holds.
func (b *Buffer) Bytes() int { return len(b.raw) + cap(b.plain) }

// Free gives the memory back; the buffer is empty and may be used again.
func (b *Buffer) Free() {
	offheap.FreeAligned(b.raw)
	b.raw, b.plain = nil, nil
}
