// Package vfs is the file layer: names, files, directories and durability.
// It is the only package that touches data files through the operating
// system; internal/vfs/memfs and internal/vfs/faultfs are its disks for tests.
package vfs

import (
	"errors"
	"io"
)

// BlockBytes is the alignment that direct I/O asks of addresses, offsets and
// lengths when the device does not ask for more.
const BlockBytes = 4096

// Errors that callers branch on. Implementations wrap them so that errors.Is
// holds; os.ErrNotExist and os.ErrExist are used for missing and present names.
var (
	// ErrNoSpace: the device is full (ENOSPC, EDQUOT). Temporary.
	ErrNoSpace = errors.New("no space left on device")
	// ErrLocked: another process, or another open in this one, holds the lock.
	ErrLocked = errors.New("locked")
	// ErrDirectUnsupported: the file system rejects O_DIRECT.
	ErrDirectUnsupported = errors.New("direct I/O not supported by the file system")
)

// OpenOptions says how a file is opened.
type OpenOptions struct {
	// Write opens for reading and writing; otherwise reading only.
	Write bool
	// Direct asks for O_DIRECT: buffers, offsets and lengths must then be
	// multiples of BlockBytes (see AlignedBuffer). When the file system
	// rejects it, Open and Create return ErrDirectUnsupported.
	Direct bool
}

// FS is one file system seen from below one store. Names are slash-separated
// paths. Implementations are safe for concurrent use. A name created, renamed
// or removed is durable only after SyncDir of its directory.
//
// Implemented by OS, memfs.FS and faultfs.FS.
type FS interface {
	// Create makes a new file for reading and writing; it fails with
	// os.ErrExist when the name is taken.
	Create(name string, o OpenOptions) (File, error)
	// Open opens an existing file.
	Open(name string, o OpenOptions) (File, error)
	// Remove deletes a file.
	Remove(name string) error
	// Rename moves a file, replacing the target atomically.
	Rename(oldName, newName string) error
	// Link gives a file one more name, in any directory of the same file
	// system; it fails with os.ErrExist when that is taken. The names are equal:
	// what is written through one is read through the other, and the file lives
	// until all are removed.
	Link(oldName, newName string) error
	// Links returns how many names a file has.
	Links(name string) (int, error)
	// MkdirAll makes a directory and its parents, mode 0700, and syncs the
	// parents it changed.
	MkdirAll(dir string) error
	// List returns the base names in dir, sorted, files and directories alike.
	List(dir string) ([]string, error)
	// Size returns the length of a file in bytes.
	Size(name string) (int64, error)
	// SyncDir makes the entries of dir durable.
	SyncDir(dir string) error
	// Lock takes the exclusive advisory lock on name, creating the file when
	// missing; closing releases it, the file stays. ErrLocked when held.
	Lock(name string) (io.Closer, error)
	// FreeBytes returns the space available to this process on dir's device.
	FreeBytes(dir string) (int64, error)
}

// File is one open file. ReadAt and WriteAt may be called concurrently.
type File interface {
	io.ReaderAt // short only at the end of the file, then with io.EOF
	io.WriterAt // a short write is an error
	io.Closer
	// WriteDurable writes p at off and returns when these bytes (and what is
	// needed to read them back) survive a power cut. After an error nothing
	// may be assumed about them.
	WriteDurable(p []byte, off int64) (int, error)
	// Sync makes all earlier writes durable. After an error, earlier writes
	// may be lost for good, even when a later Sync succeeds.
	Sync() error
	// Allocate reserves blocks for [0, size) and extends the file to size;
	// fresh bytes read as zero.
	Allocate(size int64) error
	// Truncate cuts or extends the file.
	Truncate(size int64) error
	// Size returns the length in bytes.
	Size() (int64, error)
	// Name returns the name the file was opened by.
	Name() string
}
