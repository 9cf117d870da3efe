package sstable

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

// imageFile is a read-only file whose bytes a test may have damaged.
type imageFile struct {
	vfs.File
	name  string
	data  []byte
	reads atomic.Int64
	// onRead, if set, may change the result of read number reads.
	onRead func(read int, p []byte, off int64) error
}

func (f *imageFile) ReadAt(p []byte, off int64) (int, error) {
	read := int(f.reads.Add(1))
	if off > int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if f.onRead != nil {
		if err := f.onRead(read, p[:n], off); err != nil {
			return 0, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *imageFile) Size() (int64, error) { return int64(len(f.data)), nil }
func (f *imageFile) Name() string         { return f.name }
func (f *imageFile) Close() error         { return nil }

// writeTo makes a table and returns the first error.
func writeTo(fs vfs.FS, name string, o WriterOptions, vs []entry.Version, hash func(*entry.Version) uint64) error {
	f, err := fs.Create(name, vfs.OpenOptions{Write: true, Direct: true})
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := NewWriter(f, o)
	if err != nil {
		return err
	}
	defer w.Close()
	for i := range vs {
		if err := w.Add(&vs[i], hash(&vs[i])); err != nil {
			return err
		}
	}
	_, _, err = w.Finish()
	return err
}

// isDamage says whether err names the file and a place in front of pos, as
// the error for a byte changed at pos must.
func isDamage(err error, name string, pos int64) error {
	var c *CorruptError
	switch {
	case !errors.Is(err, ErrCorrupt) || !errors.As(err, &c):
		return fmt.Errorf("not a *CorruptError: %w", err)
	case c.File != name || c.Offset < 0 || c.Offset > pos:
		return fmt.Errorf("damage at %d is reported as %w", pos, err)
	}
	return nil
}
