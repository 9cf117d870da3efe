package memfs

import (
	"io"
	"io/fs"
	"syscall"
	"unsafe"

	"fluxkv/internal/vfs"
)

// file is one open file.
type file struct {
	fs            *FS
	n             *inode
	name          string
	write, direct bool
	closed        bool // guarded by fs.mu
}

// Name implements vfs.File.
func (f *file) Name() string { return f.name }

// checkLocked refuses what the system would: use after Close, a write to a
// file opened for reading, offsets out of range, and unaligned direct I/O.
func (f *file) checkLocked(kind vfs.OpKind, write bool, p []byte, off int64) error {
	switch {
	case f.closed:
		return fail(kind, f.name, fs.ErrClosed)
	case write && !f.write:
		return fail(kind, f.name, syscall.EBADF)
	case off < 0:
		return fail(kind, f.name, syscall.EINVAL)
	case write && off > fileBytesMax-int64(len(p)):
		return fail(kind, f.name, syscall.EFBIG)
	case f.direct && len(p) > 0 && (off|int64(len(p))|int64(uintptr(unsafe.Pointer(&p[0]))))%vfs.BlockBytes != 0:
		return fail(kind, f.name, syscall.EINVAL)
	}
	return nil
}

// ReadAt implements vfs.File.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	err := f.fs.call(Op{Kind: vfs.OpReadAt, Name: f.name, Off: off, Len: int64(len(p))}, func(bool) error {
		if err := f.checkLocked(vfs.OpReadAt, false, p, off); err != nil {
			return err
		}
		n = int(max(0, min(int64(len(p)), f.n.cur.size-off)))
		f.n.cur.read(p[:n], off)
		if n < len(p) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

// WriteAt implements vfs.File.
func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.writeAt(vfs.OpWriteAt, p, off)
}

// WriteDurable implements vfs.File.
func (f *file) WriteDurable(p []byte, off int64) (int, error) {
	return f.writeAt(vfs.OpWriteDurable, p, off)
}

func (f *file) writeAt(kind vfs.OpKind, p []byte, off int64) (int, error) {
	err := f.fs.call(Op{Kind: kind, Name: f.name, Off: off, Len: int64(len(p))}, func(live bool) error {
		if err := f.checkLocked(kind, true, p, off); err != nil || len(p) == 0 {
			return err
		}
		end := off + int64(len(p))
		if !f.fs.fitsLocked(f.n.cur.missing(off, end)) {
			return full(kind, f.name)
		}
		before := f.n.cur.blocks
		if kind == vfs.OpWriteDurable && live {
			f.n.writeDurable(p, off)
		} else {
			f.changeLocked(change{kind: changeWrite, off: off, data: append([]byte(nil), p...)})
		}
		f.fs.used += (f.n.cur.blocks - before) * pageBytes
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *file) changeLocked(c change) {
	c.time = f.fs.nowLocked()
	c.apply(&f.n.cur)
	f.n.pending = append(f.n.pending, c)
}

// Sync implements vfs.File.
func (f *file) Sync() error {
	return f.fs.call(Op{Kind: vfs.OpSync, Name: f.name}, func(live bool) error {
		if err := f.checkLocked(vfs.OpSync, false, nil, 0); err != nil {
			return err
		}
		if live {
			f.n.sync()
		}
		return nil
	})
}

// DropUnsynced is what a failed sync does on Linux (rule W9): what is unsynced
// will never be durable, while reads go on seeing it.
func (f *file) DropUnsynced() {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if len(f.n.pending) > 0 {
		f.n.pending, f.n.lost = nil, true
	}
}

// Allocate implements vfs.File.
func (f *file) Allocate(size int64) error {
	return f.resize(vfs.OpAllocate, size)
}

// Truncate implements vfs.File.
func (f *file) Truncate(size int64) error {
	return f.resize(vfs.OpTruncate, size)
}

func (f *file) resize(kind vfs.OpKind, size int64) error {
	return f.fs.call(Op{Kind: kind, Name: f.name, Len: size}, func(bool) error {
		switch err := f.checkLocked(kind, true, nil, size); {
		case err != nil:
			return err
		case kind == vfs.OpAllocate && size == 0:
			return nil
		}
		before := f.n.cur.blocks
		switch {
		case kind == vfs.OpAllocate:
			if !f.fs.fitsLocked(f.n.cur.missing(0, size)) {
				return full(kind, f.name)
			}
			f.changeLocked(change{kind: changeReserve, off: size})
		case size < f.n.cur.size:
			f.fs.buryLocked(f.n)
			f.changeLocked(change{kind: changeCut, off: size})
		default:
			f.changeLocked(change{kind: changeGrow, off: size})
		}
		f.fs.used += (f.n.cur.blocks - before) * pageBytes
		return nil
	})
}

// Size implements vfs.File.
func (f *file) Size() (int64, error) {
	var size int64
	err := f.fs.call(Op{Kind: vfs.OpSize, Name: f.name}, func(bool) error {
		if err := f.checkLocked(vfs.OpSize, false, nil, 0); err != nil {
			return err
		}
		size = f.n.cur.size
		return nil
	})
	return size, err
}

// Close implements vfs.File. It syncs nothing.
func (f *file) Close() error {
	return f.fs.call(Op{Kind: vfs.OpClose, Name: f.name}, func(bool) error {
		if f.closed {
			return fail(vfs.OpClose, f.name, fs.ErrClosed)
		}
		f.closed = true
		f.n.opens--
		f.fs.releaseLocked(f.n)
		return nil
	})
}
