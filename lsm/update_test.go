package lsm

import (
	"runtime"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// TestR17_UpdateSeesNothingNewerThanItSays: an Update that writes nothing must
// not give away a version above the seqno that its caller waits for. The newer
// version came between noting the stripe's word and reading.
func TestR17_UpdateSeesNothingNewerThanItSays(t *testing.T) {
	o := testOptions(memfs.New())
	o.VBuckets, o.KVStores = 4, 4
	db := mustOpen(t, "data", o)
	defer db.Close()
	send := func(key, value string) Seqno {
		t.Helper()
		var b Batch
		b.Set([]byte(key), []byte(value), Meta{})
		s, err := db.Apply(&b, WriteOptions{NoWait: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// A batch that is numbered and not yet inserted holds V back.
	var slow Batch
	slow.Set([]byte("other"), nil, Meta{})
	size, memory, err := db.size(&slow)
	if err == nil {
		err = db.quota.admit(memory)
	}
	if err != nil {
		t.Fatal(err)
	}
	place, ticket, err := db.number(&slow, size, nil)
	if err != nil {
		t.Fatal(err)
	}
	send("k", "older")
	var saw Seqno
	done := make(chan Seqno)
	go func() {
		seen, err := db.Update([]byte("k"), func(old *Item) (UpdateOp, []byte, Meta, error) {
			saw = old.Seqno
			return UpdateNone, nil, Meta{}, nil
		})
		if err != nil {
			t.Error(err)
		}
		done <- seen
	}()
	waiting := func() bool {
		db.publish.mu.Lock()
		defer db.publish.mu.Unlock()
		return db.publish.waiting > 0
	}
	for !waiting() {
		runtime.Gosched()
	}
	send("k", "newer")
	db.encode(&slow, &place, nil)
	place.Done()
	db.insert(&slow)
	db.publish.finish(ticket)
	if seen := <-done; saw > seen {
		t.Errorf("the function saw version %d, Update returned %d", saw, seen)
	}
}
