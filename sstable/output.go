package sstable

import (
	"fmt"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// output writes a file from its start through one aligned buffer, always whole
// pages, so that it works on direct files.
type output struct {
	file vfs.File
	buf  []byte
	used int
	off  int64 // of buf[0] in the file
	pace func(bytes int)
	err  error // of the first write that failed; nothing is written after it
}

func newOutput(f vfs.File, bytes int, pace func(int)) (*output, error) {
	buf, err := offheap.AlignedBuffer(int(roundPage(int64(bytes))))
	if err != nil {
		return nil, fmt.Errorf("write buffer of %s: %w", f.Name(), err)
	}
	return &output{file: f, buf: buf, pace: pace}, nil
}

func (o *output) pos() int64 { return o.off + int64(o.used) }

func (o *output) write(p []byte) {
	for len(p) > 0 && o.err == nil {
		n := copy(o.buf[o.used:], p)
		o.used += n
		p = p[n:]
		if o.used == len(o.buf) {
			o.flush()
		}
	}
}

// pad writes zeros up to the next page.
func (o *output) pad() {
	for n := int(roundPage(o.pos()) - o.pos()); n > 0 && o.err == nil; {
		k := min(n, len(o.buf)-o.used)
		clear(o.buf[o.used : o.used+k])
		o.used += k
		n -= k
		if o.used == len(o.buf) {
			o.flush()
		}
	}
}

// block writes a stored block, n > 0 bytes, by the page rule and returns its
// offset.
func (o *output) block(stored []byte) uint64 {
	if pagesTouched(o.pos(), len(stored)) > pagesTouched(0, len(stored)) {
		o.pad()
	}
	at := o.pos()
	o.write(stored)
	return uint64(at)
}

// flush writes the buffer, which ends on a page.
func (o *output) flush() {
	if o.used == 0 || o.err != nil {
		return
	}
	if o.pace != nil {
		o.pace(o.used)
	}
	if _, err := o.file.WriteAt(o.buf[:o.used], o.off); err != nil {
		o.err = fmt.Errorf("write %d bytes at %d of %s: %w", o.used, o.off, o.file.Name(), err)
		return
	}
	o.off += int64(o.used)
	o.used = 0
}

func (o *output) free() {
	offheap.FreeAligned(o.buf)
	o.buf = nil
}
