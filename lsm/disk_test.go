package lsm

import (
	"errors"
	"io"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// tapFS passes every call to another file system through call, which decides
// whether, when and how it is carried out.
type tapFS struct {
	inner vfs.FS
	call  func(op vfs.Op, do func() error, f *tapFile, p []byte) error
}

func (t *tapFS) do(kind vfs.OpKind, name string, do func() error) error {
	return t.call(vfs.Op{Kind: kind, Name: name}, do, nil, nil)
}

func (t *tapFS) file(kind vfs.OpKind, name string, open func() (vfs.File, error)) (vfs.File, error) {
	var f vfs.File
	err := t.do(kind, name, func() (err error) { f, err = open(); return err })
	if err != nil {
		return nil, err
	}
	return &tapFile{File: f, fs: t}, nil
}

func (t *tapFS) Create(name string, o vfs.OpenOptions) (vfs.File, error) {
	return t.file(vfs.OpCreate, name, func() (vfs.File, error) { return t.inner.Create(name, o) })
}

func (t *tapFS) Open(name string, o vfs.OpenOptions) (vfs.File, error) {
	return t.file(vfs.OpOpen, name, func() (vfs.File, error) { return t.inner.Open(name, o) })
}

func (t *tapFS) Remove(name string) error {
	return t.do(vfs.OpRemove, name, func() error { return t.inner.Remove(name) })
}

func (t *tapFS) Rename(from, to string) error {
	return t.do(vfs.OpRename, from, func() error { return t.inner.Rename(from, to) })
}

func (t *tapFS) Link(from, to string) error {
	return t.do(vfs.OpLink, from, func() error { return t.inner.Link(from, to) })
}

func (t *tapFS) Links(name string) (n int, err error) {
	err = t.do(vfs.OpLinks, name, func() error { n, err = t.inner.Links(name); return err })
	return n, err
}

func (t *tapFS) MkdirAll(dir string) error {
	return t.do(vfs.OpMkdirAll, dir, func() error { return t.inner.MkdirAll(dir) })
}

func (t *tapFS) List(dir string) (names []string, err error) {
	err = t.do(vfs.OpList, dir, func() error { names, err = t.inner.List(dir); return err })
	return names, err
}

func (t *tapFS) Size(name string) (n int64, err error) {
	err = t.do(vfs.OpSize, name, func() error { n, err = t.inner.Size(name); return err })
	return n, err
}

func (t *tapFS) SyncDir(dir string) error {
	return t.do(vfs.OpSyncDir, dir, func() error { return t.inner.SyncDir(dir) })
}

func (t *tapFS) Lock(name string) (c io.Closer, err error) {
	err = t.do(vfs.OpLock, name, func() error { c, err = t.inner.Lock(name); return err })
	return c, err
}

func (t *tapFS) FreeBytes(dir string) (n int64, err error) {
	err = t.do(vfs.OpFreeBytes, dir, func() error { n, err = t.inner.FreeBytes(dir); return err })
	return n, err
}

type tapFile struct {
	vfs.File
	fs *tapFS
}

func (f *tapFile) op(kind vfs.OpKind, off, n int64) vfs.Op {
	return vfs.Op{Kind: kind, Name: f.Name(), Off: off, Len: n}
}

func (f *tapFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.fs.call(f.op(vfs.OpReadAt, off, int64(len(p))), func() error { n, err = f.File.ReadAt(p, off); return err }, f, p)
	return n, err
}

func (f *tapFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.call(f.op(vfs.OpWriteAt, off, int64(len(p))), func() error { n, err = f.File.WriteAt(p, off); return err }, f, p)
	return n, err
}

func (f *tapFile) WriteDurable(p []byte, off int64) (n int, err error) {
	err = f.fs.call(f.op(vfs.OpWriteDurable, off, int64(len(p))), func() error { n, err = f.File.WriteDurable(p, off); return err }, f, p)
	return n, err
}

func (f *tapFile) Sync() error { return f.fs.call(f.op(vfs.OpSync, 0, 0), f.File.Sync, f, nil) }

func (f *tapFile) Allocate(n int64) error {
	return f.fs.call(f.op(vfs.OpAllocate, 0, n), func() error { return f.File.Allocate(n) }, f, nil)
}

func (f *tapFile) Truncate(n int64) error {
	return f.fs.call(f.op(vfs.OpTruncate, 0, n), func() error { return f.File.Truncate(n) }, f, nil)
}

func (f *tapFile) Size() (n int64, err error) {
	err = f.fs.call(f.op(vfs.OpSize, 0, 0), func() error { n, err = f.File.Size(); return err }, f, nil)
	return n, err
}

func (f *tapFile) Close() error { return f.fs.call(f.op(vfs.OpClose, 0, 0), f.File.Close, f, nil) }

// openFiles counts the files that are open through it.
func openFiles(inner vfs.FS, open *atomic.Int64) vfs.FS {
	t := &tapFS{inner: inner}
	t.call = func(op vfs.Op, do func() error, _ *tapFile, _ []byte) error {
		err := do()
		switch {
		case op.Kind == vfs.OpClose:
			open.Add(-1)
		case err == nil && (op.Kind == vfs.OpCreate || op.Kind == vfs.OpOpen):
			open.Add(1)
		}
		return err
	}
	return t
}

// isGroup tells a group write, the only durable one.
func isGroup(op vfs.Op) bool {
	return op.Kind == vfs.OpWriteDurable && isSegment(op)
}

func isSegment(op vfs.Op) bool { return strings.HasSuffix(op.Name, ".seg") }

// overtaking lets every second group write be overtaken by the next one: it
// is held until a later group is on the device, so a crash may tear a group
// while a later one is whole. A group that no other follows goes on after a
// moment.
func overtaking(inner vfs.FS) vfs.FS {
	var mu sync.Mutex
	started, done := 0, 0
	changed := make(chan struct{})
	t := &tapFS{inner: inner}
	t.call = func(op vfs.Op, do func() error, _ *tapFile, _ []byte) error {
		if !isGroup(op) {
			return do()
		}
		mu.Lock()
		started++
		hold := started%2 == 0
		before := done
		timeout := time.After(2 * time.Millisecond)
		for hold && done == before {
			ch := changed
			mu.Unlock()
			select {
			case <-ch:
			case <-timeout:
				hold = false
			}
			mu.Lock()
		}
		mu.Unlock()
		err := do()
		mu.Lock()
		done++
		close(changed)
		changed = make(chan struct{})
		mu.Unlock()
		return err
	}
	return t
}

var errKilled = errors.New("process was killed")

// killFS is the file system as one process sees it that is killed at call at:
// the call does not happen, or only in part (within): a group is in the page
// cache and not on the device, everything else is done and nobody learns of
// it. Locks end with the process. The disk keeps what is unsynced.
type killFS struct {
	*tapFS
	mu     sync.Mutex
	calls  int
	dead   bool
	killed vfs.Op
	locks  []io.Closer
}

func killAt(inner vfs.FS, at int, within bool) *killFS {
	k := &killFS{tapFS: &tapFS{inner: inner}}
	k.call = func(op vfs.Op, do func() error, f *tapFile, p []byte) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.dead {
			return errKilled
		}
		if k.calls++; k.calls != at {
			return do()
		}
		k.dead, k.killed = true, op
		if within && op.Kind == vfs.OpWriteDurable {
			_, _ = f.File.WriteAt(p, op.Off)
		} else if within {
			_ = do()
		}
		for _, l := range k.locks {
			_ = l.Close()
		}
		return errKilled
	}
	return k
}

func (k *killFS) Lock(name string) (io.Closer, error) {
	c, err := k.tapFS.Lock(name)
	if err != nil {
		if c != nil {
			_ = c.Close() // killed when it had the lock
		}
		return nil, err
	}
	k.mu.Lock()
	k.locks = append(k.locks, c)
	k.mu.Unlock()
	return c, nil
}

// imageSum is the checksum of every name and byte on a disk.
func imageSum(disk *memfs.FS) uint64 {
	var d xxhash.Digest
	d.Reset()
	for _, dir := range []string{"data", "data/log", "data/idx"} {
		names, _ := disk.List(dir)
		for _, n := range names {
			f, err := disk.Open(path.Join(dir, n), vfs.OpenOptions{})
			if err != nil {
				continue // a directory
			}
			size, _ := f.Size()
			b := make([]byte, size)
			_, _ = f.ReadAt(b, 0)
			_ = f.Close()
			_, _ = d.WriteString(n)
			_, _ = d.Write([]byte{0, byte(size), byte(size >> 8), byte(size >> 16)})
			_, _ = d.Write(b)
		}
	}
	return d.Sum64()
}
