package lsm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	db.encode(&slow, &place)
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
		{"async, flushes side by side", Options{KVStores: 6, InlineLimit: 1000, NonDurable: true, Flushers: 3, CompressIndex: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStress(t, c.o)
			rounds := 16
			if testing.Short() {
				rounds = 9
			}
			var wg sync.WaitGroup
			for i := range stressWriters {
				wg.Go(func() { s.write(i) })
			}
			for i := range 8 {
				wg.Go(func() { s.read(i) })
			}
			tables := 0
			for i := range rounds {
				<-s.written // there is something to flush
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
			if err := s.db.Close(); err != nil {
				t.Error(err)
			}
			s.goOn()
			wg.Wait()
			if tables < 2*s.o.OpenTables || s.found.Load() == 0 {
				t.Errorf("%d tables at most, %d of them may be open; %d counts found", tables, s.o.OpenTables, s.found.Load())
			}
			s.db = mustOpen(t, "data", s.o)
			defer s.db.Close()
			var b ReadBatch
			s.getMany(&b)
			b.Release()
		})
	}
}

const (
	stressWriters = 8
	stressKeys    = 40 // of each writer
	stressBatches = 10
)

// stress is what the goroutines of the test share.
type stress struct {
	t  *testing.T
	o  Options
	db *DB
	// epoch is odd while the store is being cleared.
	epoch atomic.Uint64
	// acked says for each key which count was acknowledged last, and in which
	// epoch: epoch<<32 | count.
	acked [stressWriters * stressKeys]atomic.Uint64
	found atomic.Int64 // counts that readers had to find, and did

	// Everyone has a share of work between two flushes, so that these are many
	// and small. written gets one when a writer has done its share.
	written chan struct{}
	mu      sync.Mutex    // guards more
	more    chan struct{} // closed when all may go on
}

// goOn gives everyone the next share.
func (s *stress) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.more)
	s.more = make(chan struct{})
}

// pause waits for the next share.
func (s *stress) pause() {
	s.mu.Lock()
	more := s.more
	s.mu.Unlock()
	if !s.db.closing.Load() {
		<-more
	}
}

func newStress(t *testing.T, o Options) *stress {
	tiny := testOptions(memfs.New())
	o.FS, o.MemQuota, o.WriteCache, o.SegmentBytes, o.segmentBytesMin = tiny.FS, tiny.MemQuota, tiny.WriteCache, tiny.SegmentBytes, tiny.segmentBytesMin
	o.VBuckets, o.OpenTables, o.TableBytes, o.tableBytesMin, o.BlockBytes = 16, 16, 4*kib, 4*kib, 512
	o.MaxItemBytes = 64 * kib
	s := &stress{t: t, o: o, written: make(chan struct{}, 1), more: make(chan struct{})}
	s.db = mustOpen(t, "data", o)
	return s
}

func stressKey(i int) string { return fmt.Sprintf("key%04d", i) }

// stressValue encodes a count; some values are inline, some are not.
func stressValue(n uint64) []byte {
	return fmt.Appendf(nil, "%d|%s", n, strings.Repeat("v", int(n*37%500)))
}

func stressCount(value []byte) (n uint64) {
	if _, err := fmt.Sscanf(string(value), "%d|", &n); err != nil {
		panic(err)
	}
	return n
}

// failed reports an error other than that of the closed store, and whether the
// goroutine must end.
func (s *stress) failed(err error) bool {
	if err != nil && !errors.Is(err, ErrClosed) {
		s.t.Error(err)
	}
	return err != nil
}

func (s *stress) clear() {
	s.epoch.Add(1)
	if _, err := s.db.Clear(time.Time{}); err != nil {
		s.t.Error(err)
	}
	s.epoch.Add(1)
}

// write counts its keys up until the store is closed.
func (s *stress) write(w int) {
	rnd := rand.New(rand.NewPCG(uint64(w), 1))
	var last [stressKeys]uint64
	for n := uint64(1); ; n++ {
		if n%stressBatches == 0 {
			select {
			case s.written <- struct{}{}:
			default:
			}
			s.pause()
		}
		epoch := s.epoch.Load()
		if rnd.IntN(3) == 0 {
			if !s.update(w*stressKeys+rnd.IntN(stressKeys), n, epoch) {
				return
			}
			continue
		}
		var b Batch
		for range 1 + rnd.IntN(20) {
			i := w*stressKeys + rnd.IntN(stressKeys)
			b.Set([]byte(stressKey(i)), stressValue(n), Meta{})
			last[i%stressKeys] = n
		}
		if _, err := s.db.Apply(&b, WriteOptions{}); s.failed(err) {
			return
		}
		if s.epoch.Load() == epoch && epoch%2 == 0 {
			for i, at := range last {
				if at == n {
					s.acked[w*stressKeys+i].Store(epoch<<32 | n)
				}
			}
		}
	}
}

// update counts one key up by Update, which must see what its only writer wrote.
func (s *stress) update(i int, n, epoch uint64) bool {
	acked := s.acked[i].Load()
	saw := uint64(0)
	seen, err := s.db.Update([]byte(stressKey(i)), func(old *Item) (UpdateOp, []byte, Meta, error) {
		saw = 0
		if old != nil {
			saw = stressCount(old.Value)
		}
		return UpdateSet, stressValue(n), Meta{}, nil
	})
	if err == nil {
		err = s.db.WaitDurable(seen)
	}
	if s.failed(err) {
		return false
	}
	if s.epoch.Load() == epoch && epoch%2 == 0 {
		if want := acked & (1<<32 - 1); acked>>32 == epoch && saw < want {
			s.t.Errorf("update of %s saw %d, its writer has written %d", stressKey(i), saw, want)
		}
		s.acked[i].Store(epoch<<32 | n)
	}
	return true
}

// must returns what a reader that begins now must find of each key at least.
func (s *stress) must() (epoch uint64, least [stressWriters * stressKeys]uint64) {
	epoch = s.epoch.Load()
	for i := range s.acked {
		if a := s.acked[i].Load(); a>>32 == epoch && epoch%2 == 0 {
			least[i] = a & (1<<32 - 1)
		}
	}
	return epoch, least
}

// check compares what was found of key i.
func (s *stress) check(how string, i int, value []byte, err error, least uint64) {
	n := uint64(0)
	if err == nil {
		n = stressCount(value)
	} else if !errors.Is(err, ErrNotFound) {
		s.failed(err)
		return
	}
	if n < least {
		s.t.Errorf("%s: %s is %d, %d was acknowledged before", how, stressKey(i), n, least)
	}
	if least > 0 {
		s.found.Add(1)
	}
}

func (s *stress) read(r int) {
	rnd := rand.New(rand.NewPCG(uint64(r), 2))
	var b ReadBatch
	share := []int{30, 6, 4, 3}[r%4] // about the same work
	for n, ok := 1, true; ok; n++ {
		if n%share == 0 {
			s.pause()
		}
		switch r % 4 {
		case 0:
			ok = s.get(rnd)
		case 1:
			ok = s.getMany(&b)
		case 2:
			ok = s.iterate(rnd)
		case 3:
			ok = s.snapshot(rnd)
		}
	}
	b.Release()
}

func (s *stress) get(rnd *rand.Rand) bool {
	epoch, least := s.must()
	for range 20 {
		i := rnd.IntN(len(least))
		item, err := s.db.Get(nil, []byte(stressKey(i)))
		if errors.Is(err, ErrClosed) {
			return false
		}
		if s.epoch.Load() != epoch {
			break
		}
		s.check("get", i, item.Value, err, least[i])
	}
	return true
}

func (s *stress) getMany(b *ReadBatch) bool {
	b.Reset()
	epoch, least := s.must()
	for i := range least {
		b.Add([]byte(stressKey(i)))
	}
	if err := s.db.GetMany(b); s.failed(err) {
		return false
	}
	if s.epoch.Load() != epoch {
		return true
	}
	for i := range least {
		if errors.Is(b.Err(i), ErrClosed) {
			return false
		}
		s.check("get many", i, b.Item(i).Value, b.Err(i), least[i])
	}
	return true
}

// iterate walks over the store once. A clear that comes later hides nothing from
// it.
func (s *stress) iterate(rnd *rand.Rand) bool {
	epoch, least := s.must()
	it, err := s.db.NewIter(nil, nil, IterOptions{})
	if s.failed(err) {
		return false
	}
	defer it.Close()
	if s.epoch.Load() != epoch {
		return true
	}
	if rnd.IntN(2) == 0 {
		it.viewAge = 0
	}
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		for ; i < len(least) && stressKey(i) < string(it.Key()); i++ {
			s.check("iterator passed", i, nil, ErrNotFound, least[i])
		}
		item, err := it.Item()
		if s.failed(err) {
			return false
		}
		s.check("iterator", i, item.Value, nil, least[i])
		i++
	}
	if s.failed(it.Error()) {
		return false
	}
	for ; i < len(least); i++ {
		s.check("iterator ended", i, nil, ErrNotFound, least[i])
	}
	return true
}

// snapshot reads all keys as of one moment, over several flushes.
func (s *stress) snapshot(rnd *rand.Rand) bool {
	epoch, least := s.must()
	snap, err := s.db.NewSnapshot()
	if s.failed(err) {
		return false
	}
	defer snap.Close()
	if s.epoch.Load() != epoch {
		return true
	}
	var first [stressWriters * stressKeys]uint64
	for round := range 2 {
		for _, i := range rnd.Perm(len(least)) {
			item, err := snap.Get(nil, []byte(stressKey(i)))
			if errors.Is(err, ErrClosed) {
				return false
			}
			s.check("snapshot", i, item.Value, err, least[i])
			n := uint64(0)
			if err == nil {
				n = stressCount(item.Value)
			}
			if round > 0 && n != first[i] {
				s.t.Errorf("snapshot: %s was %d and is %d", stressKey(i), first[i], n)
			}
			first[i] = n
		}
	}
	return true
}
