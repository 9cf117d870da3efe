package lsm

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
)

const (
	stressWriters = 8
	stressReaders = 8
	stressKeys    = 40 // of each writer
	stressBatches = 10
)

// stress is what the goroutines of a stress test share. Each writer owns some
// keys and counts them up; everything about a document follows from its key and
// its count. A reader must find the count that was acknowledged before it began,
// or a later one, or nothing if the writer has sent something since that takes
// the key away.
type stress struct {
	t  *testing.T
	o  Options
	db *DB
	// clock is the time that expiry goes by, in seconds since clockStart.
	clock atomic.Uint32
	// epoch is odd while the store is being cleared.
	epoch atomic.Uint64
	// acked says for each key which count was acknowledged last, and in which
	// epoch: epoch<<32 | count.
	acked [stressWriters * stressKeys]atomic.Uint64
	// mayGo is the highest count of each key that was sent as a tombstone, or with
	// an expiry.
	mayGo [stressWriters * stressKeys]atomic.Uint64
	found atomic.Int64 // counts that readers had to find, and did
	// hold makes readers keep snapshots and iterators from one round to the next.
	hold bool

	// Everyone has a share of work between two rounds of the test, so that rounds
	// are many and small. written gets one when a writer has done its share.
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

// pause waits for the next share. A writer tells that it has done its own: only
// when it knows what to wait for, or the round it asks for could pass it by.
func (s *stress) pause(writer bool) {
	s.mu.Lock()
	more := s.more
	s.mu.Unlock()
	if writer {
		select {
		case s.written <- struct{}{}:
		default:
		}
	}
	if !s.db.closing.Load() {
		<-more
	}
}

func newStress(t *testing.T, o Options) *stress {
	tiny := testOptions(memfs.New())
	o.FS, o.MemQuota, o.WriteCache, o.SegmentBytes, o.segmentBytesMin = tiny.FS, tiny.MemQuota, tiny.WriteCache, tiny.SegmentBytes, tiny.segmentBytesMin
	o.VBuckets, o.OpenTables, o.tableBytesMin, o.BlockBytes = 16, 16, 4*kib, 512
	o.TableBytes = cmp.Or(o.TableBytes, 4*kib) // one for each key
	o.MaxItemBytes, o.documentCacheMin = 64*kib, 128*kib
	s := &stress{t: t, written: make(chan struct{}, 1), more: make(chan struct{})}
	o.Now = func() time.Time { return clockStart.Add(time.Duration(s.clock.Load()) * time.Second) }
	s.o = o
	s.db = mustOpen(t, "data", o)
	return s
}

// start starts the writers and readers.
func (s *stress) start() *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range stressWriters {
		wg.Go(func() { s.write(i) })
	}
	for i := range stressReaders {
		wg.Go(func() { s.read(i) })
	}
	return &wg
}

// end closes the store under its readers and writers, and waits for them.
func (s *stress) end(wg *sync.WaitGroup) {
	if err := s.db.Close(); err != nil {
		s.t.Error(err)
	}
	s.goOn()
	wg.Wait()
}

// reopen demands of the store as it was closed that everything acknowledged is
// there.
func (s *stress) reopen() {
	s.db = mustOpen(s.t, "data", s.o)
	var b ReadBatch
	s.getMany(&b)
	b.Release()
}

func stressKey(i int) string { return fmt.Sprintf("key%04d", i) }

// stressValue is the value of key i at a count; some values are inline, some
// are not.
func stressValue(i int, n uint64) []byte {
	return fmt.Appendf(nil, "%d|%d|%s", n, i, strings.Repeat("v", int(n*37%500)))
}

// expires says which counts have an expiry.
func (s *stress) expires(n uint64) bool { return n%7 == 3 }

// meta is that of key i at a count.
func (s *stress) meta(i int, n uint64) (m Meta) {
	m = Meta{Flags: uint32(n)<<9 ^ uint32(i), Datatype: uint8(n % 3)}
	if n%4 == 0 {
		m.CAS = 1<<60 | n<<16 | uint64(i)
	}
	if s.expires(n) {
		m.Expiry = uint32(clockStart.Unix()) + s.clock.Load() + uint32(n%3)
	}
	return m
}

// count returns the count of a document of key i, and demands that all of it is
// of that count.
func (s *stress) count(how string, i int, item *Item) (n uint64) {
	if _, err := fmt.Sscanf(string(item.Value), "%d|", &n); err != nil {
		s.t.Errorf("%s: %s has a value that nobody wrote: %q", how, stressKey(i), item.Value)
		return 0
	}
	want := s.meta(i, n)
	if want.CAS == 0 {
		want.CAS = uint64(item.Seqno)
	}
	if string(item.Value) != string(stressValue(i, n)) || item.Flags != want.Flags || item.Datatype != want.Datatype ||
		item.CAS != want.CAS || (item.Expiry != 0) != s.expires(n) || item.Seqno == 0 {
		s.t.Errorf("%s: count %d of %s is %+v", how, n, stressKey(i), *item)
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
			s.pause(true)
		}
		epoch := s.epoch.Load()
		if rnd.IntN(3) == 0 {
			if !s.update(w*stressKeys+rnd.IntN(stressKeys), n, epoch, rnd.IntN(6) == 0) {
				return
			}
			continue
		}
		var b Batch
		for range 1 + rnd.IntN(20) {
			i := w*stressKeys + rnd.IntN(stressKeys)
			if last[i%stressKeys] == n {
				continue
			}
			last[i%stressKeys] = n
			if rnd.IntN(6) == 0 {
				s.mayGo[i].Store(n)
				_ = b.Delete([]byte(stressKey(i)))
				continue
			}
			if s.expires(n) {
				s.mayGo[i].Store(n)
			}
			_ = b.Set([]byte(stressKey(i)), stressValue(i, n), s.meta(i, n))
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

// update counts one key up by Update, or deletes it. It must see what its only
// writer wrote.
func (s *stress) update(i int, n, epoch uint64, del bool) bool {
	acked := s.acked[i].Load()
	gone := s.mayGo[i].Load()
	if del || s.expires(n) {
		s.mayGo[i].Store(n)
	}
	saw := uint64(0)
	seen, err := s.db.Update([]byte(stressKey(i)), func(old *Item) (UpdateOp, []byte, Meta, error) {
		saw = 0
		if old != nil {
			saw = s.count("update", i, old)
		}
		if del {
			return UpdateDelete, nil, Meta{}, nil
		}
		return UpdateSet, stressValue(i, n), s.meta(i, n), nil
	})
	if err == nil {
		err = s.db.WaitDurable(seen)
	}
	if s.failed(err) {
		return false
	}
	if s.epoch.Load() == epoch && epoch%2 == 0 {
		if want := acked & (1<<32 - 1); acked>>32 == epoch && saw < want && (saw > 0 || gone < want) {
			s.t.Errorf("update of %s saw %d, its writer has written %d", stressKey(i), saw, want)
		}
		s.acked[i].Store(epoch<<32 | n)
	}
	return true
}

// least is what a reader that begins now must find of each key at least.
type least struct {
	epoch  uint64
	clock  uint32
	counts [stressWriters * stressKeys]uint64
}

func (s *stress) must() *least {
	m := &least{epoch: s.epoch.Load(), clock: uint32(clockStart.Unix()) + s.clock.Load()}
	for i := range s.acked {
		if a := s.acked[i].Load(); a>>32 == m.epoch && m.epoch%2 == 0 {
			m.counts[i] = a & (1<<32 - 1)
		}
	}
	return m
}

// check compares what was found of key i, and returns its count, 0 for none.
func (s *stress) check(how string, i int, item *Item, err error, m *least) (n uint64) {
	want := m.counts[i]
	if err != nil {
		if !errors.Is(err, ErrNotFound) {
			s.failed(err)
		} else if gone := s.mayGo[i].Load(); gone < want {
			s.t.Errorf("%s: %s is not there, %d was acknowledged before and %d is the last that may go", how, stressKey(i), want, gone)
		}
		return 0
	}
	n = s.count(how, i, item)
	if n < want {
		s.t.Errorf("%s: %s is %d, %d was acknowledged before", how, stressKey(i), n, want)
	}
	if item.Expiry != 0 && item.Expiry <= m.clock {
		s.t.Errorf("%s: %s expired at %d, and was there at %d", how, stressKey(i), item.Expiry, m.clock)
	}
	if want > 0 {
		s.found.Add(1)
	}
	return n
}

func (s *stress) read(r int) {
	rnd := rand.New(rand.NewPCG(uint64(r), 2))
	var b ReadBatch
	share := []int{30, 6, 4, 3}[r%4] // about the same work
	for n, ok := 1, true; ok; n++ {
		if n%share == 0 {
			s.pause(false)
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
	m := s.must()
	for range 20 {
		i := rnd.IntN(len(m.counts))
		item, err := s.db.Get(nil, []byte(stressKey(i)))
		if errors.Is(err, ErrClosed) {
			return false
		}
		if s.epoch.Load() != m.epoch {
			break
		}
		s.check("get", i, &item, err, m)
	}
	return true
}

func (s *stress) getMany(b *ReadBatch) bool {
	b.Reset()
	m := s.must()
	for i := range m.counts {
		b.Add([]byte(stressKey(i)))
	}
	if err := s.db.GetMany(b); s.failed(err) {
		return false
	}
	if s.epoch.Load() != m.epoch {
		return true
	}
	for i := range m.counts {
		if errors.Is(b.Err(i), ErrClosed) {
			return false
		}
		s.check("get many", i, b.Item(i), b.Err(i), m)
	}
	return true
}

// iterate walks over the store once, now and then with a rest on the way. A
// clear that comes later hides nothing from it.
func (s *stress) iterate(rnd *rand.Rand) bool {
	m := s.must()
	it, err := s.db.NewIter(nil, nil, IterOptions{})
	if s.failed(err) {
		return false
	}
	defer it.Close()
	if s.epoch.Load() != m.epoch {
		return true
	}
	if rnd.IntN(2) == 0 {
		it.viewAge = 0
	}
	rest := -1
	if rnd.IntN(3) == 0 {
		rest = rnd.IntN(len(m.counts))
	}
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		for ; i < len(m.counts) && stressKey(i) < string(it.Key()); i++ {
			s.check("iterator passed", i, nil, ErrNotFound, m)
		}
		item, err := it.Item()
		if s.failed(err) {
			return false
		}
		s.check("iterator", i, &item, nil, m)
		if i == rest && s.hold {
			s.pause(false)
		}
		i++
	}
	if s.failed(it.Error()) {
		return false
	}
	for ; i < len(m.counts); i++ {
		s.check("iterator ended", i, nil, ErrNotFound, m)
	}
	return true
}

// snapshot reads all keys as of one moment, over several rounds.
func (s *stress) snapshot(rnd *rand.Rand) bool {
	m := s.must()
	snap, err := s.db.NewSnapshot()
	if s.failed(err) {
		return false
	}
	defer snap.Close()
	if s.epoch.Load() != m.epoch {
		return true
	}
	var first [stressWriters * stressKeys]Item
	for round := range 2 {
		for _, i := range rnd.Perm(len(m.counts)) {
			item, err := snap.Get(nil, []byte(stressKey(i)))
			if errors.Is(err, ErrClosed) {
				return false
			}
			s.check("snapshot", i, &item, err, m)
			was := &first[i]
			expired := item.Seqno == 0 && was.Expiry != 0 && was.Expiry <= uint32(clockStart.Unix())+s.clock.Load()
			if round > 0 && item.Seqno != was.Seqno && !expired {
				s.t.Errorf("snapshot: %s was seqno %d and is %d", stressKey(i), was.Seqno, item.Seqno)
			}
			*was = item
		}
		if round == 0 && s.hold {
			s.pause(false)
		}
	}
	return true
}
