//go:build linux

package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ncw/directio"
	"golang.org/x/sys/unix"
)

// OS is the file system of the machine.
var OS FS = OSFS{}

// OSFS is the FS of the operating system: files of mode 0600 and directories
// of mode 0700, O_DIRECT where asked for, flock for Lock.
type OSFS struct{}

const (
	fileMode = 0o600
	dirMode  = 0o700
)

// Create implements FS.
func (OSFS) Create(name string, o OpenOptions) (File, error) {
	return openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, true, o.Direct)
}

// Open implements FS.
func (OSFS) Open(name string, o OpenOptions) (File, error) {
	flags := os.O_RDONLY
	if o.Write {
		flags = os.O_RDWR
	}
	// Without O_NONBLOCK opening a named pipe waits for its other end.
	return openFile(name, flags|unix.O_NONBLOCK, false, o.Direct)
}

func openFile(name string, flags int, create, direct bool) (File, error) {
	open := os.OpenFile
	if direct {
		open = directio.OpenFile
	}
	f, err := open(name, flags, fileMode)
	if err != nil {
		if direct && errors.Is(err, unix.EINVAL) {
			if create {
				// Linux makes the name before it looks at O_DIRECT. With
				// O_EXCL it can only be ours.
				_ = os.Remove(name)
			}
			return nil, fmt.Errorf("%w: %w", ErrDirectUnsupported, err)
		}
		return nil, wrapFull(err)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.IsDir():
		err = &fs.PathError{Op: "open", Path: name, Err: unix.EISDIR}
	case !st.Mode().IsRegular():
		err = &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &osFile{f: f, fd: int(f.Fd()), name: name, direct: direct}, nil
}

// Remove implements FS. Directories are refused.
func (OSFS) Remove(name string) error {
	if err := retryEINTR(func() error { return unix.Unlink(name) }); err != nil {
		return wrapFull(&fs.PathError{Op: "remove", Path: name, Err: err})
	}
	return nil
}

var errNotRegular = errors.New("not a regular file")

// Rename implements FS.
func (OSFS) Rename(oldName, newName string) error {
	return wrapFull(os.Rename(oldName, newName))
}

// Link implements FS. Directories are refused.
func (OSFS) Link(oldName, newName string) error {
	if err := retryEINTR(func() error { return unix.Link(oldName, newName) }); err != nil {
		return wrapFull(&os.LinkError{Op: "link", Old: oldName, New: newName, Err: err})
	}
	return nil
}

// Links implements FS.
func (OSFS) Links(name string) (int, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Stat(name, &st) })
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.EISDIR
	}
	if err != nil {
		return 0, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return int(st.Nlink), nil
}

// MkdirAll implements FS.
func (o OSFS) MkdirAll(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if err := o.MkdirAll(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, dirMode); err != nil {
		if st, statErr := os.Stat(dir); statErr == nil && st.IsDir() {
			return nil // made by another caller, who also syncs
		}
		return wrapFull(err)
	}
	if err := o.SyncDir(parent); err != nil {
		// Left behind, it would pass for a durable one at the next try.
		_ = os.Remove(dir)
		return err
	}
	return nil
}

// List implements FS.
func (OSFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Size implements FS.
func (OSFS) Size(name string) (int64, error) {
	st, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	if st.IsDir() {
		return 0, &fs.PathError{Op: "stat", Path: name, Err: unix.EISDIR}
	}
	return st.Size(), nil
}

// SyncDir implements FS.
func (OSFS) SyncDir(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = f.Sync()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return wrapFull(err)
}

// FreeBytes implements FS.
func (OSFS) FreeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := retryEINTR(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Frsize, nil
}

// wrapFull adds ErrNoSpace to errors that mean a full device or quota.
func wrapFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func retryEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}
