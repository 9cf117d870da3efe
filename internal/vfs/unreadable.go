package vfs

import (
	"context"
	"errors"
	"syscall"
)

// ReadError says that one file could not be read: trying it again soon will
// fail again, while other files may be fine. Damage that a checksum found has
// errors of its own in the packages that know the format.
type ReadError struct {
	Name string // of the file, as it was opened
	Err  error  // says what failed, and names the file too
}

func (e *ReadError) Error() string { return e.Err.Error() }

func (e *ReadError) Unwrap() error { return e.Err }

// Unreadable returns err as a *ReadError of the named file; nil for nil. It
// returns err itself when that says nothing about the file: the process has no
// descriptors or memory left (EMFILE, ENFILE, ENOMEM), the device has no space,
// or the caller's context ended. err must come from opening or reading the file.
func Unreadable(name string, err error) error {
	var known *ReadError
	switch {
	case err == nil, errors.As(err, &known),
		errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, ErrNoSpace), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return &ReadError{Name: name, Err: err}
}
