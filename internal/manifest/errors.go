package manifest

import (
	"errors"
	"fmt"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrCorrupt: bytes that were once durable are damaged or contradict each
	// other. The concrete type is *CorruptError.
	ErrCorrupt = errors.New("corrupt")
	// ErrVersion: the file is intact, and written by a version of fluxkv that
	// knows more than this one.
	ErrVersion = errors.New("written by a newer version")
	// ErrPoisoned: an append, a sync or a switch failed half-way, so the bytes
	// of the manifest on the device are unknown. Nothing is written to it again
	// in this run, and no file may be deleted on the strength of a later state.
	ErrPoisoned = errors.New("manifest failed earlier and takes no more edits")
	// ErrInvalidEdit: Apply was given an edit that contradicts the state.
	// Nothing was written.
	ErrInvalidEdit = errors.New("edit contradicts the state")
	// ErrNoCurrent: FORMAT is there and CURRENT is not. Either the creation of
	// the store was cut short (then no segment file exists) or CURRENT is lost.
	ErrNoCurrent = errors.New("no CURRENT file")
	// ErrClosed: the log was closed.
	ErrClosed = errors.New("manifest closed")
)

// CorruptError says which bytes are damaged. It matches ErrCorrupt.
type CorruptError struct {
	File   string // name as given to the file system
	Offset int64  // byte offset in File
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s at offset %d: %s", e.File, e.Offset, e.Reason)
}

// Is makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

func corruptf(file string, offset int64, format string, a ...any) error {
	return &CorruptError{File: file, Offset: offset, Reason: fmt.Sprintf(format, a...)}
}

func versionError(file string, offset int64, format string, a ...any) error {
	return fmt.Errorf("%s: offset %d: %s: %w", file, offset, fmt.Sprintf(format, a...), ErrVersion)
}
