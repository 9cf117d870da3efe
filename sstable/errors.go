package sstable

import (
	"errors"
	"fmt"
)

// Errors that callers branch on.
var (
	// ErrCorrupt is what every CorruptError matches with errors.Is.
	ErrCorrupt = errors.New("table corrupt")
	// ErrOrder: Writer.Add was given a version that does not follow the last
	// one in the order of entry.Compare.
	ErrOrder = errors.New("versions out of order")
	// ErrEmpty: Writer.Finish was called before any Add; there is no table
	// without entries.
	ErrEmpty = errors.New("table without entries")
	// ErrHandleClosed: Acquire of a table that left the store, or after the
	// store was closed.
	ErrHandleClosed = errors.New("table handle is closed")
	// ErrHandleInUse: Close of a table that somebody holds.
	ErrHandleInUse = errors.New("table is in use")
)

// CorruptError says where a table is damaged.
type CorruptError struct {
	File   string // path of the table; "" when only bytes were at hand
	Offset int64  // in the file, of the block that is damaged
	Reason string
}

func (e *CorruptError) Error() string {
	file := e.File
	if file == "" {
		file = "table bytes"
	}
	return fmt.Sprintf("%s: offset %d: %s", file, e.Offset, e.Reason)
}

// Is reports whether target is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

func corrupt(file string, offset int64, format string, args ...any) *CorruptError {
	return &CorruptError{File: file, Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
