package memfs

import (
	"errors"
	"testing"

	"fluxkv/internal/vfs"
)

// TestLinksTakeSpaceOnce: the blocks of a file go with its last name.
func TestLinksTakeSpaceOnce(t *testing.T) {
	f := New()
	f.SetFree(10 * pageBytes)
	wantFree := func(on *FS, pages int64) {
		t.Helper()
		free, err := on.FreeBytes("")
		if err != nil || free != pages*pageBytes {
			t.Fatalf("%d bytes free, want %d pages: %v", free, pages, err)
		}
	}
	g, err := f.Create("a", vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Allocate(4*pageBytes), g.Sync(), g.Close(), f.Link("a", "b"), f.SyncDir("")); err != nil {
		t.Fatal(err)
	}
	wantFree(f, 6)
	if err := f.Remove("a"); err != nil {
		t.Fatal(err)
	}
	wantFree(f, 6)
	for _, d := range Damages() {
		c := f.CrashCopy(1, d)
		wantFree(c, 6)
		names, err := c.List("")
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			if n, err := c.Links(name); n != len(names)-i || err != nil {
				t.Fatalf("%v: %s has %d names of %v: %v", d, name, n, names, err)
			}
			if err := c.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		wantFree(c, 10)
	}
	if err := f.Remove("b"); err != nil {
		t.Fatal(err)
	}
	wantFree(f, 10)
	f.SetFree(0)
	if _, err := f.Lock("LOCK"); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatal(err)
	}
}

func TestLinkOnAFullDisk(t *testing.T) {
	f := New()
	if _, err := f.Create("a", vfs.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	f.SetFree(0)
	if err := f.Link("a", "b"); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatal(err)
	}
	if n, err := f.Links("a"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}
