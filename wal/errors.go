package wal

import (
	"errors"
	"fmt"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

// ErrCorrupt is what every CorruptError matches with errors.Is.
var ErrCorrupt = errors.New("log corrupt")

// CorruptError says where the log is damaged.
type CorruptError struct {
	File   string // path of the segment; "" when only bytes were at hand
	Offset int64  // in the file, or in the bytes when File is ""
	Reason string
	// Missing is the first seqno that was promised and is not there, 0 when
	// the damage is not about a missing seqno.
	Missing entry.Seqno
}

func (e *CorruptError) Error() string {
	file := e.File
	if file == "" {
		file = "log bytes"
	}
	if e.Missing != 0 {
		return fmt.Sprintf("%s: offset %d: %s (missing seqno %d)", file, e.Offset, e.Reason, e.Missing)
	}
	return fmt.Sprintf("%s: offset %d: %s", file, e.Offset, e.Reason)
}

// Is reports whether target is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

func corrupt(file string, offset int64, format string, args ...any) *CorruptError {
	return &CorruptError{File: file, Offset: offset, Reason: fmt.Sprintf(format, args...)}
}

// unreadable returns the error of reading a segment as one that names it: damage
// does so already.
func unreadable(name string, err error) error {
	if errors.Is(err, ErrCorrupt) {
		return err
	}
	return vfs.Unreadable(name, err)
}
