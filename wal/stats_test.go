package wal

import (
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/memfs"
)

// TestStatsSayWhatWaits: the bytes of the segments that are there anyway, and the
// time of a writer that waits for the next one.
func TestStatsSayWhatWaits(t *testing.T) {
	o := runningOptions(memfs.New())
	var made entry.SegmentID
	held := make(chan struct{})
	o.Register = func(id entry.SegmentID, _ SegmentKind, _ int64) error {
		if made++; made == 2 { // called by one after another
			<-held
		}
		return nil
	}
	r := startRunning(t, o, nil)
	defer r.close()
	r.put(3, 300)
	r.waitAll()
	if s := r.Stats(); s.ActiveBytes != 16<<10 || s.PreparedBytes != 0 || s.SegmentWaitTime != 0 {
		t.Fatalf("%+v", s)
	}
	done := make(chan error, 1)
	go func() {
		// More than the rest of the active segment.
		done <- r.MakeRoom(BatchSize{Count: 1, Largest: 14500, Bytes: 14500, Urgent: true})
	}()
	// It says that it is urgent under the lock that it gives up when it waits.
	until(t, "a writer that waits", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.urgency == urgent })
	close(held)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s := r.Stats()
	if s.ActiveBytes != 16<<10 || s.PreparedBytes != 16<<10 || s.SegmentWaitTime <= 0 || s.WaitTime < s.SegmentWaitTime {
		t.Fatalf("%+v", s)
	}
}
