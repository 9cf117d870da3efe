package memfs

import (
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/vfstest"
)

func TestConforms(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		f := New()
		if err := f.MkdirAll("dir"); err != nil {
			t.Fatal(err)
		}
		return f, "dir"
	})
}

// A disk found after a power cut is as good as a new one.
func TestCrashCopyConforms(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		f := New()
		if err := f.MkdirAll("a/dir"); err != nil {
			t.Fatal(err)
		}
		return f.CrashCopy(1, DropAll), "/a/dir"
	})
}
