//go:build linux

package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// osFile is an open file of the operating system.
type osFile struct {
	name   string
	fd     int // f's; spares a call per I/O
	direct bool

	// mu is held for reading over every I/O, so that Close cannot give fd
	// back, and the system hand it to another file, while a call uses it.
	mu sync.RWMutex
	f  *os.File // nil after Close

	// asyncMu guards the fields below. It is the last lock taken.
	asyncMu sync.Mutex
	reads   int  // that the kernel does asynchronously with fd
	io      *IO  // whose they are
	closing bool // no more of them
}

// acquireRead keeps fd open for an asynchronous read by e, until releaseRead.
// It reports false if the file is being closed, or busy with another IO's reads.
func (f *osFile) acquireRead(e *IO) bool {
	f.asyncMu.Lock()
	defer f.asyncMu.Unlock()
	if f.closing || f.reads > 0 && f.io != e {
		return false
	}
	f.reads++
	f.io = e
	return true
}

// releaseRead ends a read of acquireRead. It reports whether that was the last
// one that a Close waits for.
func (f *osFile) releaseRead() bool {
	f.asyncMu.Lock()
	defer f.asyncMu.Unlock()
	f.reads--
	return f.closing && f.reads == 0
}

// reading reports whether the kernel does asynchronous reads with fd.
func (f *osFile) reading() bool {
	f.asyncMu.Lock()
	defer f.asyncMu.Unlock()
	return f.reads > 0
}

func (f *osFile) Name() string { return f.name }

// Close waits for reads in flight (rule R20): their buffers and fd are the
// kernel's. It collects them itself if nobody else does, so that the owner of
// their queue may close the file.
func (f *osFile) Close() error {
	f.asyncMu.Lock()
	f.closing = true
	e := f.io
	f.asyncMu.Unlock()
	if e != nil {
		e.drainFile(f)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return f.fail("close", fs.ErrClosed)
	}
	err := f.f.Close()
	f.f = nil
	return wrapFull(err)
}

// ReadAt loops itself because os.File would read on at an unaligned offset
// after a short direct read at the end of the file.
func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return 0, f.fail("read", fs.ErrClosed)
	}
	if off < 0 {
		return 0, f.fail("read", unix.EINVAL)
	}
	n := 0
	for n < len(p) {
		m, err := unix.Pread(f.fd, p[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, f.fail("read", err)
		}
		n += m
		if m == 0 {
			return n, io.EOF
		}
		if f.direct && n < len(p) && n%BlockBytes != 0 {
			return n, f.shortDirectRead(off + int64(n))
		}
	}
	return n, nil
}

// shortDirectRead tells the end of the file from a device that stopped in the
// middle: the second must not pass for an end (rule F6).
func (f *osFile) shortDirectRead(end int64) error {
	st, err := f.f.Stat()
	if err != nil {
		return err
	}
	if end < st.Size() {
		return f.fail("read", fmt.Errorf("stopped at %d of %d: %w", end, st.Size(), io.ErrUnexpectedEOF))
	}
	return io.EOF
}

func (f *osFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return 0, f.fail("write", fs.ErrClosed)
	}
	return f.write(p, off)
}

func (f *osFile) write(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, f.fail("write", unix.EINVAL)
	}
	n := 0
	for n < len(p) {
		m, err := unix.Pwrite(f.fd, p[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, f.fail("write", err)
		}
		if m == 0 {
			return n, f.fail("write", io.ErrShortWrite)
		}
		n += m
	}
	return n, nil
}

// noDsyncWrite is set once the kernel or a file system has refused
// pwritev2(RWF_DSYNC); all later durable writes are two calls.
var noDsyncWrite atomic.Bool

func (f *osFile) WriteDurable(p []byte, off int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return 0, f.fail("write", fs.ErrClosed)
	}
	if off < 0 {
		return 0, f.fail("write", unix.EINVAL)
	}
	if noDsyncWrite.Load() {
		return f.writeThenSync(p, off)
	}
	n := 0
	for n < len(p) {
		iov := [1][]byte{p[n:]}
		m, err := unix.Pwritev2(f.fd, iov[:], off+int64(n), unix.RWF_DSYNC)
		switch {
		case err == unix.EINTR:
			continue
		case n == 0 && (err == unix.ENOSYS || err == unix.EOPNOTSUPP):
			noDsyncWrite.Store(true)
			return f.writeThenSync(p, off)
		case err != nil:
			return n, f.fail("write", err)
		case m == 0:
			return n, f.fail("write", io.ErrShortWrite)
		}
		n += m
	}
	return n, nil
}

func (f *osFile) writeThenSync(p []byte, off int64) (int, error) {
	n, err := f.write(p, off)
	if err == nil {
		err = f.sync()
	}
	return n, err
}

func (f *osFile) Sync() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return f.fail("sync", fs.ErrClosed)
	}
	return f.sync()
}

// sync leaves out only times and modes, which nothing here reads. It is never
// repeated, whatever the error: the pages may be marked clean (rule W9).
func (f *osFile) sync() error {
	if err := unix.Fdatasync(f.fd); err != nil {
		return f.fail("sync", err)
	}
	return nil
}

func (f *osFile) Allocate(size int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return f.fail("allocate", fs.ErrClosed)
	}
	if size < 0 {
		return f.fail("allocate", unix.EINVAL)
	}
	if size == 0 {
		return nil
	}
	for {
		err := unix.Fallocate(f.fd, 0, 0, size)
		switch err {
		case unix.EINTR:
			continue
		case nil, unix.EOPNOTSUPP, unix.ENOSYS:
			// Without fallocate the size is all we can give; a full
			// device then shows at the write.
			return f.ensureSize(size)
		}
		return f.fail("allocate", err)
	}
}

func (f *osFile) ensureSize(size int64) error {
	st, err := f.f.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return wrapFull(f.f.Truncate(size))
}

func (f *osFile) Truncate(size int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return f.fail("truncate", fs.ErrClosed)
	}
	return wrapFull(f.f.Truncate(size))
}

func (f *osFile) Size() (int64, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.f == nil {
		return 0, f.fail("stat", fs.ErrClosed)
	}
	st, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (f *osFile) fail(op string, err error) error {
	return wrapFull(&fs.PathError{Op: op, Path: f.name, Err: err})
}
