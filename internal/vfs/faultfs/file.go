package faultfs

import (
	"errors"

	"fluxkv/internal/vfs"
)

// dropper is a file that can lose its unsynced bytes; memfs has it.
type dropper interface{ DropUnsynced() }

// file is one open file of FS.
type file struct {
	fs     *FS
	inner  vfs.File
	direct bool
}

func (f *file) op(kind vfs.OpKind, off, length int64) vfs.Op {
	return vfs.Op{Kind: kind, Name: f.inner.Name(), Off: off, Len: length}
}

// Name implements vfs.File.
func (f *file) Name() string { return f.inner.Name() }

// ReadAt implements vfs.File.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	op := f.op(vfs.OpReadAt, off, int64(len(p)))
	fault, err := f.fs.meet(op)
	if err == nil {
		err = faultError(fault, op)
	}
	if err != nil {
		return 0, err
	}
	n, err := f.inner.ReadAt(p, off)
	if fault == BitFlip && n > 0 {
		p[n/2] ^= 1 << (n % 8)
	}
	return n, err
}

// WriteAt implements vfs.File.
func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.write(f.op(vfs.OpWriteAt, off, int64(len(p))), p, f.inner.WriteAt)
}

// WriteDurable implements vfs.File.
func (f *file) WriteDurable(p []byte, off int64) (int, error) {
	return f.write(f.op(vfs.OpWriteDurable, off, int64(len(p))), p, f.inner.WriteDurable)
}

func (f *file) write(op vfs.Op, p []byte, write func([]byte, int64) (int, error)) (int, error) {
	fault, err := f.fs.meet(op)
	if err != nil {
		return 0, err
	}
	injected := faultError(fault, op)
	switch fault {
	case None:
		return write(p, op.Off)
	case ShortWrite:
		half := len(p) / 2
		if f.direct {
			half -= half % vfs.BlockBytes
		}
		n, err := write(p[:half], op.Off)
		return n, errors.Join(injected, err)
	case SyncDrop:
		n, err := f.inner.WriteAt(p, op.Off)
		f.drop()
		return n, errors.Join(injected, err)
	}
	return 0, injected
}

// Sync implements vfs.File.
func (f *file) Sync() error {
	op := f.op(vfs.OpSync, 0, 0)
	fault, err := f.fs.meet(op)
	if err == nil {
		err = faultError(fault, op)
	}
	if err != nil {
		if fault == SyncDrop {
			f.drop()
		}
		return err
	}
	return f.inner.Sync()
}

func (f *file) drop() {
	if d, ok := f.inner.(dropper); ok {
		d.DropUnsynced()
	}
}

// Allocate implements vfs.File.
func (f *file) Allocate(size int64) error {
	if err := f.fs.fail(f.op(vfs.OpAllocate, 0, size)); err != nil {
		return err
	}
	return f.inner.Allocate(size)
}

// Truncate implements vfs.File.
func (f *file) Truncate(size int64) error {
	if err := f.fs.fail(f.op(vfs.OpTruncate, 0, size)); err != nil {
		return err
	}
	return f.inner.Truncate(size)
}

// Size implements vfs.File.
func (f *file) Size() (int64, error) {
	if err := f.fs.fail(f.op(vfs.OpSize, 0, 0)); err != nil {
		return 0, err
	}
	return f.inner.Size()
}

// Close implements vfs.File. An injected error leaves the inner file closed all
// the same, as Linux does.
func (f *file) Close() error {
	fault := f.fs.fail(f.op(vfs.OpClose, 0, 0))
	if err := f.inner.Close(); fault == nil {
		return err
	}
	return fault
}
