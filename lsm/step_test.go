package lsm

import (
	"fmt"
	"strings"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// TestSegmentsWithoutRecords: a batch that needs a larger segment than the one
// prepared steps over it. That one holds a seal and nothing else, and is sealed
// like any other.
func TestSegmentsWithoutRecords(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.VBuckets, o.KVStores = 4, 4
	o.Logf = func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); strings.Contains(line, "footer") {
			t.Error(line)
		}
	}
	db := mustOpen(t, "data", o)
	value := make([]byte, 100*kib) // segments are of 64 KiB
	for range 3 {
		if _, err := db.Set([]byte("k"), value, Meta{}); err != nil {
			t.Fatal(err)
		}
		mustSet(t, db, "small", "value")
		image := fs.CrashCopy(1, memfs.DropAll)
		db.Close()
		fs, o.FS = image, image
		db = mustOpen(t, "data", o)
	}
	for range 2 {
		if _, err := db.Set([]byte("k"), value, Meta{}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = mustOpen(t, "data", o)
		if it, err := db.Get(nil, []byte("k")); err != nil || len(it.Value) != len(value) {
			t.Fatalf("%d bytes, %v", len(it.Value), err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
