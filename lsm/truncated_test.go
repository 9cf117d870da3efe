package lsm

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// Files that were cut short are no torn tails: their lengths were durable. A
// tester cut MANIFEST and the active segment; the store opened without the
// documents and removed the intact segments as orphans.

func truncate(t testing.TB, fs vfs.FS, name string, n int64) {
	t.Helper()
	f, err := fs.Open(name, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(n), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestR09_AManifestCutShortIsNoticed(t *testing.T) {
	for _, clean := range []bool{true, false} {
		fs := memfs.New()
		o := testOptions(fs)
		db := mustOpen(t, "data", o)
		for i := range 200 {
			set(t, db, fmt.Sprintf("key%d", i), strings.Repeat("v", 1000))
		}
		name := path.Join("data", "MANIFEST-000002")
		size, err := fs.Size(name)
		if err != nil {
			t.Fatal(err, db.edits.log.State().Manifest)
		}
		disk := fs.CrashCopy(1, memfs.DropAll)
		db.Close()
		if clean {
			disk = fs.CrashCopy(1, memfs.DropAll)
		}
		opened := 0
		for n := size; n >= 0; n -= 7 {
			d := disk.CrashCopy(1, memfs.KeepAll)
			truncate(t, d, name, n)
			was := dump(t, d, "data", path.Join("data", wal.SegmentsDir))
			o := o
			o.FS = d
			o.Logf = func(string, ...any) {}
			db, err := Open("data", o)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("cut at %d: %v", n, err)
				}
				if dump(t, d, "data", path.Join("data", wal.SegmentsDir)) != was {
					t.Errorf("cut at %d: the refused open changed the directory", n)
				}
				continue
			}
			opened++
			for i := range 200 {
				want(t, db, fmt.Sprintf("key%d", i), strings.Repeat("v", 1000))
			}
			db.Close()
		}
		t.Logf("clean=%v: opened %d of %d", clean, opened, size/7)
	}
}

func TestR12_AnActiveSegmentCutShortIsNoticed(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	set(t, db, "a", "1")
	set(t, db, "b", "2")
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	name := path.Join("data", wal.SegmentsDir, logFiles(t, disk, "data")[0])
	for _, n := range []int64{4096, 8192, 12288, 16384, 60000} {
		d := disk.CrashCopy(1, memfs.KeepAll)
		truncate(t, d, name, n)
		o := o
		o.FS = d
		if db, err := Open("data", o); err == nil {
			db.Close()
			t.Errorf("cut at %d: opened", n)
		} else if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}
