package lsm

import (
	"context"
	"runtime"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// TestR17_UpdateWhoseVersionWasFlushedAway: an Update notes the stripe's word,
// which is the seqno of an older version. A newer one comes, and a flush drops
// the older before the Update pins its view. As of the word there is nothing
// there then, and a function that was told so would say of a key that always
// existed that it does not.
func TestR17_UpdateWhoseVersionWasFlushedAway(t *testing.T) {
	o := testOptions(memfs.New())
	o.VBuckets, o.KVStores, o.flushOnDemand = 1, 1, true
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
	// A batch that is numbered and not yet inserted holds V back, and with it
	// the Update.
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
	var saw []string
	done := make(chan Seqno)
	go func() {
		seen, err := db.Update([]byte("k"), func(old *Item) (UpdateOp, []byte, Meta, error) {
			if old == nil {
				saw = append(saw, "nothing")
			} else {
				saw = append(saw, string(old.Value))
			}
			return UpdateNone, nil, Meta{}, nil
		})
		if err != nil {
			t.Error(err)
		}
		done <- seen
	}()
	p := &db.publish
	waiting := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.waiting > 0
	}
	for !waiting() {
		runtime.Gosched()
	}
	last := send("k", "newer")
	db.encode(&slow, &place, nil)
	place.Done()
	db.insert(&slow)
	// V moves, but who waits for it does not get on before mu is free.
	p.mu.Lock()
	p.slots[ticket%publishSlots].done = true
	p.visible.Store(uint64(last))
	p.tail.Store(p.head.Load())
	p.cond.Broadcast()
	err = db.flush(context.Background(), []int{0})
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if st := db.edits.log.State(); len(st.Tables) != 1 || st.Tables[0].Entries != 2 {
		t.Fatalf("flushed %+v, want a table with two versions", st.Tables)
	}
	seen := <-done
	if seen != last || len(saw) != 1 || saw[0] != "newer" {
		t.Errorf("the function saw %q, Update returned %d, want \"newer\" and %d", saw, seen, last)
	}
}

// TestReadersAndWritersUnderFlush: eight writers, each with keys of its own, and
// eight readers of every kind, while the store is flushed all the time and
// cleared now and then, and tables are opened and closed because far fewer may
// be open than there are. No reader may miss what was acknowledged before it
// began, or see something older. The store is closed in the middle of it, and
// everything acknowledged is there afterwards.
func TestReadersAndWritersUnderFlush(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"durable", Options{KVStores: 4, InlineLimit: 64}},
		{"a document cache", Options{KVStores: 4, InlineLimit: 64, DocumentCacheBytes: 16 * mib}},
		{"a tiny document cache, async", Options{KVStores: 4, InlineLimit: 64, NonDurable: true, DocumentCacheBytes: 128 * kib}},
		{"async, flushes side by side", Options{KVStores: 6, InlineLimit: 1000, NonDurable: true, Flushers: 3, CompressIndex: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStress(t, c.o)
			rounds := 16
			if testing.Short() {
				rounds = 9
			}
			wg := s.start()
			tables := 0
			for i := range rounds {
				<-s.written // there is something to flush
				s.clock.Add(1)
				if err := s.db.Flush(); err != nil {
					t.Error(err)
					break
				}
				tables = max(tables, s.db.Stats().Tables)
				if i%6 == 5 {
					s.clear()
				}
				s.goOn()
			}
			docs := s.db.Stats().DocumentCache
			s.end(wg)
			if tables < 2*s.o.OpenTables || s.found.Load() == 0 {
				t.Errorf("%d tables at most, %d of them may be open; %d counts found", tables, s.o.OpenTables, s.found.Load())
			}
			if c.o.DocumentCacheBytes > 0 {
				t.Logf("the document cache: %+v", docs)
				if docs.Hits == 0 || docs.NegativeHits == 0 || docs.Refreshed == 0 || docs.Refused == 0 {
					t.Error("too little was read from the document cache")
				}
				if tiny := c.o.DocumentCacheBytes < mib; tiny && docs.Evicted == 0 || !tiny && docs.MissesNewer == 0 {
					t.Error("nothing was evicted, or found that is too new")
				}
			}
			s.reopen()
			s.db.Close()
		})
	}
}
