package lsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/model"
	"fluxkv/internal/vfs/memfs"
)

// machine does everything to a store and to its model. Its exported methods are
// the actions.
type machine struct {
	shape *modelShape
	disk  *memfs.FS
	files atomic.Int64 // that are open
	o     Options
	db    *DB
	truth model.Store
	now   atomic.Int64 // Unix seconds, the store's clock
	// highest is the highest that now has been, gone the highest time at which
	// the store gave up a version.
	highest, gone int64
	log           modelLog
	base          Seqno          // the first seqno since the store was opened
	bases         map[Seqno]bool // and each time before
	next          Seqno          // what the next write must get
	pending       time.Time      // of the clear that waits; zero: none
	replaced      bool           // a clear failed that may have replaced pending
	snaps         []*Snapshot
	walks         []*walk
	values        int
}

// modelKeys are few, so that versions pile up, and of many lengths. Some are
// prefixes of others.
var modelKeys = func() (keys []string) {
	for i := range 12 {
		keys = append(keys, fmt.Sprintf("k%d", i), fmt.Sprintf("key:%04d:%s", i, bytes.Repeat([]byte("x"), i*5)))
	}
	return append(keys, "k", "\x00", "\xff\xff", "key:0001:")
}()

func newMachine(shape *modelShape) *machine {
	m := &machine{shape: shape, disk: memfs.New(), bases: map[Seqno]bool{}}
	m.highest = 1_700_000_000
	m.now.Store(m.highest)
	o := shape.o
	o.MemQuota, o.Reject = 16*mib, true
	if o.WriteCache == 0 {
		o.WriteCache = mib
	}
	o.SegmentBytes, o.segmentBytesMin, o.groupBytesMax = 64*kib, 64*kib, 16*kib
	o.MaxItemBytes, o.replayBufferBytes, o.tableBytesMin = 48*kib, 64*kib, 4*kib
	o.writeCacheMin, o.documentCacheMin = 128*kib, 128*kib
	o.Now = func() time.Time { return time.Unix(m.now.Load(), 0) }
	o.Logf = m.log.add
	m.o = o
	return m
}

// open opens the store as it is on the disk.
func (m *machine) open(t *rapid.T) {
	t.Helper()
	m.o.FS = openFiles(m.disk, &m.files)
	db, err := Open("data", m.o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.db = db
	if m.shape.memtableBytes != 0 {
		db.tableBytesMax = m.shape.memtableBytes
	}
	s := db.Stats()
	m.base, m.next = s.NextSeqno, s.NextSeqno
	m.bases[m.base] = true
	m.shape.spills.Add(int64(s.Recovery.Spills))
}

func (m *machine) end() {
	m.endReaders()
	if m.db != nil {
		m.db.Close()
		m.db = nil
	}
}

func (m *machine) endReaders() {
	for _, s := range m.snaps {
		s.Close()
	}
	for _, w := range m.walks {
		w.it.Close()
	}
	m.snaps, m.walks = nil, nil
}

func drawKey(t *rapid.T) string { return rapid.SampledFrom(modelKeys).Draw(t, "key") }

// drawValue draws lengths around the inline limit, and a few that need a group
// of their own; not in batches of many, which must fit a small memtable.
func (m *machine) drawValue(t *rapid.T, few bool) []byte {
	limit := m.o.withDefaults().InlineLimit
	n := rapid.SampledFrom([]int{0, 1, max(limit-1, 0), limit, limit + 1, 300, 1000, 4096}).Draw(t, "length")
	if few && rapid.IntRange(0, 20).Draw(t, "large") == 0 {
		n = 40_000
	}
	return m.value(n)
}

// value returns n bytes that no other value has, if there is room. Every third
// does not compress.
func (m *machine) value(n int) []byte {
	m.values++
	v := fmt.Appendf(make([]byte, 0, n+8), "%d.", m.values)
	noise := rand.New(rand.NewPCG(uint64(m.values), 0))
	for len(v) < n {
		if m.values%3 == 0 {
			v = binary.LittleEndian.AppendUint64(v, noise.Uint64())
			continue
		}
		v = append(v, byte('a'+len(v)%26))
	}
	return v[:n]
}

func (m *machine) drawMeta(t *rapid.T) (meta Meta) {
	if rapid.IntRange(0, 3).Draw(t, "plain") != 0 {
		return meta
	}
	meta.Flags = rapid.SampledFrom([]uint32{0, 1, 1 << 31}).Draw(t, "flags")
	meta.Datatype = rapid.SampledFrom([]uint8{0, 3}).Draw(t, "datatype")
	if rapid.Bool().Draw(t, "explicit cas") {
		meta.CAS = uint64(entry.MaxSeqno) + uint64(rapid.IntRange(1, 1000).Draw(t, "cas"))
	}
	if rapid.Bool().Draw(t, "expires") {
		meta.Expiry = uint32(m.now.Load() + int64(rapid.IntRange(-5, 100).Draw(t, "expiry")))
	}
	return meta
}

// change is one operation of a batch.
type change struct {
	key   string
	value []byte
	meta  Meta
	del   bool
}

func (m *machine) drawBatch(t *rapid.T, b *Batch) (changes []change) {
	n := rapid.SampledFrom([]int{1, 1, 1, 2, 5, 20}).Draw(t, "operations")
	for range n {
		c := change{key: drawKey(t), del: rapid.IntRange(0, 3).Draw(t, "delete") == 0}
		var err error
		if c.del {
			err = b.Delete([]byte(c.key))
		} else {
			c.value, c.meta = m.drawValue(t, n < 3), m.drawMeta(t)
			err = b.Set([]byte(c.key), c.value, c.meta)
		}
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, c)
	}
	return changes
}

// wrote tells the model of a batch that was numbered.
func (m *machine) wrote(t *rapid.T, first Seqno, changes ...change) {
	if first != m.next || first <= m.truth.Last() {
		t.Fatalf("got seqno %d, want %d", first, m.next)
	}
	for i, c := range changes {
		m.truth.Set(c.key, model.Version{Seqno: first + Seqno(i), Delete: c.del, Value: string(c.value), Meta: c.meta})
	}
	m.next = first + Seqno(len(changes))
	m.truth.End(m.next - 1)
	if c := m.db.counts.compression.load(); c.Tried > 0 {
		m.shape.compressed.Add(min(c.Kept, 1))
		m.shape.uncompressed.Add(min(c.Tried-c.Kept, 1))
	}
}

// acknowledged: in a durable store nobody is told of what may vanish.
func (m *machine) acknowledged(t *rapid.T, s Seqno) {
	if d := m.db.log.DurableSeqno(); m.db.Durable() && s > d {
		t.Fatalf("acknowledged %d, durable is %d", s, d)
	}
}

// write applies a batch and returns its error. The batch is in the model if it
// was numbered, whatever became of it.
func (m *machine) write(t *rapid.T) error {
	var b Batch
	changes := m.drawBatch(t, &b)
	w := WriteOptions{NoWait: rapid.Bool().Draw(t, "no wait")}
	last, err := m.db.Apply(&b, w)
	if first := b.Seqno(0); first != 0 {
		m.wrote(t, first, changes...)
		if last != m.truth.Last() {
			t.Fatalf("apply returned %d, want %d: %v", last, m.truth.Last(), err)
		}
	}
	if err == nil && w.NoWait && rapid.Bool().Draw(t, "wait") {
		err = m.db.WaitDurable(last)
		w.NoWait = false
	}
	if err == nil && !w.NoWait {
		m.acknowledged(t, last)
	}
	return err
}

// full reports whether a write was refused because the cache is full, and makes
// room: what readers of old views keep cannot be flushed.
func (m *machine) full(t *rapid.T, err error) bool {
	if !errors.Is(err, ErrOverloaded) {
		return false
	}
	if rapid.Bool().Draw(t, "clear the full cache") {
		m.endReaders()
		m.Clear(t)
		return true
	}
	m.Flush(t)
	if m.db.quota.used.Load() > m.o.WriteCache/2 {
		m.endReaders()
	}
	return true
}

// Write and its likes are named so that rapid draws them more often.
func (m *machine) Write(t *rapid.T) {
	if err := m.write(t); !m.full(t, err) && err != nil {
		t.Fatal(err)
	}
}

// Fill writes enough for a new segment or two, and for memtables that rotate;
// sometimes for a write cache that is flushed.
func (m *machine) Fill(t *rapid.T) {
	n := rapid.IntRange(2000, 4096).Draw(t, "length")
	for range rapid.SampledFrom([]int{3, 3, 10}).Draw(t, "batches") {
		var b Batch
		var changes []change
		for range 20 {
			c := change{key: modelKeys[m.values%len(modelKeys)], value: m.value(n)}
			b.Set([]byte(c.key), c.value, c.meta)
			changes = append(changes, c)
		}
		_, err := m.db.Apply(&b, WriteOptions{NoWait: true})
		if m.full(t, err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		m.wrote(t, b.Seqno(0), changes...)
	}
}

// WriteMore is one more Write.
func (m *machine) WriteMore(t *rapid.T) { m.Write(t) }

// Refused are writes that leave no trace.
func (m *machine) Refused(t *rapid.T) {
	var b Batch
	if err := b.Set(nil, nil, Meta{}); !errors.Is(err, ErrKeySize) {
		t.Fatal(err)
	}
	if err := b.Set([]byte("k"), nil, Meta{CAS: 5}); !errors.Is(err, ErrCAS) {
		t.Fatal(err)
	}
	if s, err := m.db.Apply(&b, WriteOptions{}); s != 0 || err != nil {
		t.Fatalf("empty batch: %d, %v", s, err)
	}
	if err := b.Set([]byte("k"), make([]byte, m.o.MaxItemBytes), Meta{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.db.Apply(&b, WriteOptions{}); !errors.Is(err, ErrValueSize) {
		t.Fatal(err)
	}
	b.Reset()
	value := make([]byte, 32*kib)
	for range m.db.batchBytesMax/len(value) + 1 {
		b.Set([]byte("k"), value, Meta{})
	}
	if _, err := m.db.Apply(&b, WriteOptions{}); !errors.Is(err, ErrBatchTooLarge) {
		t.Fatal(err)
	}
}

// update does one Update, with a function that may change its mind.
func (m *machine) update(t *rapid.T) error {
	key := drawKey(t)
	want, exists := m.truth.Get(key, m.truth.Last(), m.clock())
	refuse := errors.New("refused")
	do := rapid.SampledFrom([]string{"set", "set", "delete", "none", "refuse"}).Draw(t, "update")
	how := m.db.Update
	keyOnly := rapid.Bool().Draw(t, "key only")
	if keyOnly {
		how = m.db.UpdateKey
	}
	c := change{key: key}
	seen, err := how([]byte(key), func(old *Item) (UpdateOp, []byte, Meta, error) {
		if keyOnly && old != nil && len(old.Value) == 0 {
			whole := *old
			whole.Value = []byte(want.Value)
			old = &whole
		}
		if (old != nil) != exists || exists && !sameItem(key, want, *old) {
			t.Fatalf("update %q saw %+v, want %v %+v", key, old, exists, want)
		}
		switch do {
		case "set":
			c.value, c.meta = m.drawValue(t, true), m.drawMeta(t)
			return UpdateSet, c.value, c.meta, nil
		case "delete":
			c.del = true
			return UpdateDelete, nil, Meta{}, nil
		case "refuse":
			return UpdateSet, nil, Meta{}, refuse
		}
		return UpdateNone, nil, Meta{}, nil
	})
	if do == "refuse" && errors.Is(err, refuse) {
		err = nil
	} else if err == nil && do != "none" {
		m.wrote(t, seen, c)
	}
	if err == nil {
		if exists && want.Seqno >= m.base && seen < want.Seqno {
			t.Fatalf("update %q saw version %d, returned %d", key, want.Seqno, seen)
		}
		if err = m.db.WaitDurable(seen); err == nil {
			m.acknowledged(t, seen)
		}
	}
	return err
}

func (m *machine) Update(t *rapid.T) {
	if err := m.update(t); !m.full(t, err) && err != nil {
		t.Fatal(err)
	}
}

// clear does one Clear, now.
func (m *machine) clear(t *rapid.T) error {
	s, err := m.db.Clear(time.Time{})
	m.cleared(t, s, err)
	return err
}

// cleared looks for a clear that was numbered, also when it failed.
func (m *machine) cleared(t *rapid.T, s Seqno, err error) {
	m.db.commit.mu.Lock()
	last := m.db.commit.next - 1
	m.db.commit.mu.Unlock()
	if last == m.next-1 {
		return
	}
	if err == nil && s != last {
		t.Fatalf("clear returned %d, next seqno is %d", s, last+1)
	}
	m.truth.Clear(last)
	m.next = last + 1
	m.replaced = err != nil
	if err == nil {
		m.pending = time.Time{}
		if d := m.db.log.DurableSeqno(); s > d {
			t.Fatalf("clear acknowledged at %d, durable is %d", s, d)
		}
	}
}

func (m *machine) Clear(t *rapid.T) {
	if err := m.clear(t); err != nil {
		t.Fatal(err)
	}
}

// ClearLater asks for a clear in an hour or two.
func (m *machine) ClearLater(t *rapid.T) {
	at := m.o.Now().Add(time.Duration(rapid.IntRange(1, 2).Draw(t, "hours")) * time.Hour)
	if s, err := m.db.Clear(at); s != 0 || err != nil {
		t.Fatalf("delayed clear: %d, %v", s, err)
	}
	m.pending = at
}

// Hour lets an hour pass: what is due happens.
func (m *machine) Hour(t *rapid.T) {
	m.tick(3600)
	at := m.pending
	if at.IsZero() || m.o.Now().Before(at) {
		return
	}
	// Or the next open does it.
	if rapid.Bool().Draw(t, "the timer fires") {
		m.db.pendingClear(at)
		m.cleared(t, m.db.Stats().ClearSeqno, nil)
		if !m.pending.IsZero() {
			t.Fatal("the clear did not happen")
		}
	}
}

// Seconds lets documents expire.
func (m *machine) Seconds(t *rapid.T) { m.tick(int64(rapid.IntRange(1, 30).Draw(t, "seconds"))) }

func (m *machine) tick(seconds int64) { m.highest = max(m.highest, m.now.Add(seconds)) }

// Sync makes everything durable.
func (m *machine) Sync(t *rapid.T) {
	if err := m.db.Sync(m.truth.Last()); err != nil {
		t.Fatal(err)
	}
	if d := m.db.log.DurableSeqno(); d < m.truth.Last() {
		t.Fatalf("synced %d, durable is %d", m.truth.Last(), d)
	}
}

func sameItem(key string, want model.Version, got Item) bool {
	return string(got.Key) == key && string(got.Value) == want.Value && got.Seqno == want.Seqno &&
		got.CAS == want.CAS() && got.Flags == want.Meta.Flags && got.Expiry == want.Meta.Expiry &&
		got.Datatype == want.Meta.Datatype
}

// check compares an answer with the model at any of the seqnos from..to.
func (m *machine) check(t *rapid.T, key string, got Item, err error, from, to Seqno) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatalf("get %q: %v", key, err)
	}
	to = min(to, m.truth.Last()) // beyond the last write nothing changes
	from = min(from, to)
	for at := from; ; at++ {
		want, ok := m.truth.Get(key, at, m.clock())
		if ok == (err == nil) && (!ok || sameItem(key, want, got)) {
			return
		}
		if at >= to {
			t.Fatalf("get %q at %d..%d: %v, %d bytes of #%d; want %v, %d bytes of #%d\n%s", key, from, to, err,
				len(got.Value), got.Seqno, ok, len(want.Value), want.Seqno, m.where(key))
		}
	}
}

// plainSeqnos are the read seqnos that a plain read around now may have.
func (m *machine) plainSeqno() Seqno {
	v := Seqno(m.db.publish.visible.Load())
	if m.db.Durable() {
		return min(v, m.db.log.DurableSeqno())
	}
	return v
}

func (m *machine) Get(t *rapid.T) {
	key := drawKey(t)
	prefix := []byte("prefix")
	from := m.plainSeqno()
	got, err := m.db.Get(prefix, []byte(key))
	m.check(t, key, got, err, from, m.plainSeqno())
}

func (m *machine) GetMany(t *rapid.T) {
	var b ReadBatch
	for range rapid.IntRange(1, 2).Draw(t, "rounds") {
		b.Reset()
		keys := rapid.SliceOfN(rapid.SampledFrom(modelKeys), 0, 40).Draw(t, "keys")
		for i := range rapid.SampledFrom([]int{0, 0, 128}).Draw(t, "more keys") {
			keys = append(keys, manyKeys[(i*7)%len(manyKeys)])
		}
		for _, key := range keys {
			b.Add([]byte(key))
		}
		own := rapid.Bool().Draw(t, "own writes")
		from := m.plainSeqno()
		if own {
			b.After(m.truth.Last())
			from = max(from, m.truth.Last())
		}
		if err := m.db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		to := max(from, m.plainSeqno())
		for i, key := range keys {
			m.check(t, key, *b.Item(i), b.Err(i), from, to)
		}
	}
	b.Release()
	c := m.db.Stats().DocumentCache
	m.shape.docHits.Add(min(c.Hits, 1))
	m.shape.docNegative.Add(min(c.NegativeHits, 1))
	m.shape.docNewer.Add(min(c.MissesNewer, 1))
	m.shape.docRefused.Add(min(c.Refused, 1))
	m.shape.docEvicted.Add(min(c.Evicted, 1))
}
