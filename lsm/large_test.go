package lsm

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
)

// TestLargeBatchesDoNotWaitForEachOthersBuffer: a batch that needed a buffer of
// its own and a new segment could see its buffer taken by another one, and then
// waited for a buffer that nobody would make.
func TestLargeBatchesDoNotWaitForEachOthersBuffer(t *testing.T) {
	o := testOptions(memfs.New())
	o.MemQuota, o.WriteCache = 512*mib, 512*mib
	o.SegmentBytes = 64 * kib // every batch needs a segment made for it
	db := mustOpen(t, "data", o)
	defer db.Close()
	value := bytes.Repeat([]byte("v"), 300*kib)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				for i := range 40 {
					if _, err := db.Set(fmt.Appendf(nil, "%d-%d", g, i), value, Meta{}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("large writes hang")
	}
}
