//go:build linux

package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// fileID names a file on this machine, by whatever path it is reached.
type fileID struct{ dev, ino uint64 }

// heldLocks holds the locks of this process: on some network file systems a
// lock is the process's, and a second one in the same process would succeed.
var heldLocks struct {
	mu  sync.Mutex
	ids map[fileID]struct{}
}

// osLock is a held lock; closing its file gives the flock back.
type osLock struct {
	mu sync.Mutex
	f  *os.File // nil after Close
	id fileID
}

// Lock implements FS with flock, which ends with the process however it ends.
func (OSFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, wrapFull(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	id := fileID{dev: st.Dev, ino: st.Ino}
	heldLocks.mu.Lock()
	defer heldLocks.mu.Unlock()
	if _, held := heldLocks.ids[id]; held {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w by this process", name, ErrLocked)
	}
	err = retryEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		_ = f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, fmt.Errorf("lock %s: %w by another process", name, ErrLocked)
		}
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	if heldLocks.ids == nil {
		heldLocks.ids = make(map[fileID]struct{})
	}
	heldLocks.ids[id] = struct{}{}
	return &osLock{f: f, id: id}, nil
}

// Close releases the lock; the file stays (rule L1).
func (l *osLock) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return fs.ErrClosed
	}
	heldLocks.mu.Lock()
	defer heldLocks.mu.Unlock()
	delete(heldLocks.ids, l.id)
	err := l.f.Close()
	l.f = nil
	return err
}
