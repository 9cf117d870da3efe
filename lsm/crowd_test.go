package lsm

import (
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestR25_WritersDoNotOutrunTheLog: in a store whose writers do not wait for
// the disk, batches that need a group, a buffer and a segment of their own
// each pile up behind a slow disk only so far.
func TestR25_WritersDoNotOutrunTheLog(t *testing.T) {
	fs := memfs.New()
	fs.SetHook(func(op memfs.Op) error {
		if op.Kind == vfs.OpWriteDurable {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	o := testOptions(fs)
	o.NonDurable, o.KVStores, o.WriteCache = true, 4, 64*mib
	o.SegmentBytes, o.groupBytesMax = 64*kib, 16*kib
	db := mustOpen(t, "data", o)
	defer db.Close()
	value := make([]byte, 100*kib) // larger than a segment, too
	for i := range 200 {
		if _, err := db.Set([]byte("k"), value, Meta{}); err != nil {
			t.Fatal(err)
		}
		// Two groups a batch, and what is being written.
		if behind := i + 1 - int(db.log.Stats().Groups)/2; behind > 16 {
			t.Fatalf("%d batches are not written yet", behind)
		}
	}
}
