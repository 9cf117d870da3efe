package vfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"fluxkv/internal/vfs"
)

func TestUnreadableNamesFilesAndNotProcesses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		blame bool
	}{
		{name: "nothing", err: nil},
		{name: "a bad sector", err: &fs.PathError{Op: "read", Path: "f", Err: syscall.EIO}, blame: true},
		{name: "no permission", err: syscall.EACCES, blame: true},
		{name: "no descriptors", err: fmt.Errorf("open: %w", syscall.EMFILE)},
		{name: "no descriptors in the system", err: syscall.ENFILE},
		{name: "no memory", err: syscall.ENOMEM},
		{name: "no space", err: vfs.ErrNoSpace},
		{name: "called off", err: fmt.Errorf("read: %w", context.Canceled)},
	} {
		got := vfs.Unreadable("f", tc.err)
		var e *vfs.ReadError
		if blame := errors.As(got, &e); blame != tc.blame || blame && e.Name != "f" || !errors.Is(got, tc.err) {
			t.Errorf("%s: %#v", tc.name, got)
		}
	}
	inner := vfs.Unreadable("inner", syscall.EIO)
	var e *vfs.ReadError
	if !errors.As(vfs.Unreadable("outer", fmt.Errorf("merge: %w", inner)), &e) || e.Name != "inner" {
		t.Errorf("the file that failed is %v, not the one around it", e)
	}
}
