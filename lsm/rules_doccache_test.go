package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/doccache"
	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/memtable"
)

// docStore opens a store with a document cache, small values in tables and large
// ones in the log. Nothing is flushed or merged by itself.
func docStore(t testing.TB, fs *memfs.FS, o Options) *DB {
	t.Helper()
	base := testOptions(fs)
	o.FS, o.MemQuota, o.WriteCache = base.FS, base.MemQuota, base.WriteCache
	o.SegmentBytes, o.segmentBytesMin, o.groupBytesMax = base.SegmentBytes, base.segmentBytesMin, base.groupBytesMax
	o.VBuckets, o.KVStores, o.InlineLimit = 4, 2, 100
	o.flushOnDemand, o.noGC = true, true
	if o.DocumentCacheBytes == 0 {
		o.DocumentCacheBytes = 4 * mib
	}
	return mustOpen(t, "data", o)
}

// docLarge is a value that is kept in the log alone, for a short text.
func docLarge(text string) string { return text + strings.Repeat(".", 300) }

// docShapes are the two ways to the device: one read of a table, or one of the
// log behind it.
var docShapes = []struct {
	name string
	of   func(string) string
}{
	{"in a table", func(s string) string { return s }},
	{"in the log", docLarge},
}

// docCount is what the cache and the device did between two looks.
type docCount struct{ hits, negative, fills, refused, refreshed, dropped, reads int64 }

func countDocs(db *DB) docCount {
	s := db.Stats()
	c := s.DocumentCache
	return docCount{c.Hits, c.NegativeHits, c.Fills, c.Refused, c.Refreshed, c.Dropped, s.BlockReads + s.DocumentReads}
}

// counted demands what the cache did since before.
func counted(t testing.TB, db *DB, before docCount, what string, want docCount) {
	t.Helper()
	now := countDocs(db)
	got := docCount{
		now.hits - before.hits, now.negative - before.negative, now.fills - before.fills,
		now.refused - before.refused, now.refreshed - before.refreshed, now.dropped - before.dropped, now.reads - before.reads,
	}
	if got.reads > 0 && want.reads > 0 {
		got.reads = want.reads // one block or two
	}
	if got != want {
		t.Errorf("%s: the cache counted %+v, want %+v", what, got, want)
	}
}

// cachedDoc writes a document, flushes it and reads it: it is in the cache then.
func cachedDoc(t testing.TB, db *DB, key, value string) {
	t.Helper()
	set(t, db, key, value)
	mustFlush(t, db)
	before := countDocs(db)
	want(t, db, key, value)
	counted(t, db, before, "the first read of "+key, docCount{fills: 1, reads: 1})
	before = countDocs(db)
	want(t, db, key, value)
	counted(t, db, before, "the second read of "+key, docCount{hits: 1})
}

// wantMany is want by GetMany.
func wantMany(t testing.TB, db *DB, after Seqno, key, value string) {
	t.Helper()
	var b ReadBatch
	b.Add([]byte(key))
	b.After(after)
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if value == "" && errors.Is(b.Err(0), ErrNotFound) {
		return
	}
	if b.Err(0) != nil || string(b.Item(0).Value) != value {
		t.Fatalf("get many of %s: %q, %v; want %q", key, b.Item(0).Value, b.Err(0), value)
	}
}

// step is a commit whose steps a test takes one by one.
type docCommit struct {
	db     *DB
	b      Batch
	ticket uint64
	last   Seqno
}

// numberSet numbers a set of one document and puts its record into the log's
// buffer.
func numberSet(t testing.TB, db *DB, key, value string) *docCommit {
	t.Helper()
	c := &docCommit{db: db}
	if err := c.b.Set([]byte(key), []byte(value), Meta{}); err != nil {
		t.Fatal(err)
	}
	return c.number(t)
}

func numberDelete(t testing.TB, db *DB, key string) *docCommit {
	t.Helper()
	c := &docCommit{db: db}
	if err := c.b.Delete([]byte(key)); err != nil {
		t.Fatal(err)
	}
	return c.number(t)
}

func (c *docCommit) number(t testing.TB) *docCommit {
	t.Helper()
	size, memory, err := c.db.size(&c.b)
	if err == nil {
		err = c.db.quota.admit(memory)
	}
	if err != nil {
		t.Fatal(err)
	}
	place, ticket, err := c.db.number(&c.b, size, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.ticket, c.last = ticket, c.b.first+Seqno(size.Count)-1
	c.db.encode(&c.b, &place, nil)
	place.Done()
	return c
}

func (c *docCommit) insert()  { c.db.insert(&c.b) }
func (c *docCommit) refresh() { c.db.refresh(&c.b) }
func (c *docCommit) publish() { c.db.publish.finish(c.ticket) }

func (c *docCommit) durable(t testing.TB) {
	t.Helper()
	if err := c.db.WaitDurable(c.last); err != nil {
		t.Fatal(err)
	}
}

// deviceRead is a read that has its answer from the device and has not offered
// it to the cache yet.
type deviceRead struct {
	key   string
	hash  uint64
	vb    uint16
	at    Seqno
	m     memtable.View
	value []byte
}

// readTables reads a key as a plain reader does whom memory did not answer.
func readTables(t testing.TB, db *DB, key string) *deviceRead {
	t.Helper()
	v, at, err := db.pinAt(0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.release()
	r := &deviceRead{key: key, hash: xxhash.Sum64String(key), vb: db.vbucket([]byte(key)), at: at}
	var found bool
	r.value, found, err = db.findInTables(v, at, r.hash, r.vb, []byte(key), nil, &r.m)
	if err == nil && found && !complete(&r.m) {
		r.value, err = db.readDocument(v, &r.m, []byte(key), r.value)
	}
	if err != nil || !found {
		t.Fatalf("%s is not in tables: %v", key, err)
	}
	return r
}

func (r *deviceRead) fill(db *DB) { db.fill(r.hash, r.vb, []byte(r.key), r.at, &r.m, r.value) }

// inCache returns what the cache has of a key, whatever its seqno.
func inCache(db *DB, key string) (value string, kind entry.Kind, ok bool) {
	var d doccache.Doc
	k := docKey(xxhash.Sum64String(key), db.vbucket([]byte(key)), []byte(key))
	_, ok = db.docs.Get(&k, entry.MaxSeqno, nil, mib, &d)
	return string(d.Value), d.Kind, ok
}

func wantInCache(t testing.TB, db *DB, key, value string) {
	t.Helper()
	got, kind, ok := inCache(db, key)
	switch {
	case !ok && value != "":
		t.Errorf("%s is not in the cache, want %q", key, value)
	case ok && kind == entry.KindSet && got != value:
		t.Errorf("%s is in the cache with %q, want %q", key, got, value)
	}
}

// TestR16_ReadsFillAndEveryReaderIsAnswered: what came from the device answers
// the next reader of any kind from memory, with all that a document carries.
// What memtables answer stays out.
func TestR16_ReadsFillAndEveryReaderIsAnswered(t *testing.T) {
	for _, shape := range docShapes {
		t.Run(shape.name, func(t *testing.T) {
			db := docStore(t, memfs.New(), Options{})
			defer db.Close()
			meta := Meta{Flags: 1 << 31, Expiry: 1 << 31, Datatype: 3, CAS: 1 << 60}
			value := shape.of("value")
			seqno, err := db.Set([]byte("k"), []byte(value), meta)
			if err != nil {
				t.Fatal(err)
			}
			before := countDocs(db)
			want(t, db, "k", value)
			counted(t, db, before, "a read from a memtable", docCount{})
			mustFlush(t, db)
			before = countDocs(db)
			wantMany(t, db, 0, "k", value)
			counted(t, db, before, "a read from the device", docCount{fills: 1, reads: 1})

			before = countDocs(db)
			item, err := db.Get([]byte("prefix"), []byte("k"))
			if err != nil || string(item.Value) != value || item.Seqno != seqno || item.CAS != meta.CAS ||
				item.Flags != meta.Flags || item.Expiry != meta.Expiry || item.Datatype != meta.Datatype {
				t.Errorf("get: %+v, %v", item, err)
			}
			wantMany(t, db, 0, "k", value)
			snap, err := db.NewSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			defer snap.Close()
			if item, err := snap.Get(nil, []byte("k")); err != nil || string(item.Value) != value {
				t.Errorf("snapshot: %+v, %v", item, err)
			}
			for _, how := range []func([]byte, UpdateFunc) (Seqno, error){db.Update, db.UpdateKey} {
				if _, err := how([]byte("k"), func(old *Item) (UpdateOp, []byte, Meta, error) {
					if old == nil || old.Seqno != seqno {
						t.Errorf("update saw %+v", old)
					}
					return UpdateNone, nil, Meta{}, nil
				}); err != nil {
					t.Error(err)
				}
			}
			counted(t, db, before, "five readers", docCount{hits: 5})
		})
	}
}

// TestR16_WritesRefreshWhatIsThere: a write of a cached key leaves its new
// version in the cache, and one of another key nothing.
func TestR16_WritesRefreshWhatIsThere(t *testing.T) {
	db := docStore(t, memfs.New(), Options{})
	defer db.Close()
	cachedDoc(t, db, "k", "old")
	before := countDocs(db)
	set(t, db, "k", docLarge("new"))
	set(t, db, "another", "value")
	counted(t, db, before, "two writes", docCount{refreshed: 1})
	wantInCache(t, db, "another", "")
	mustFlush(t, db)
	before = countDocs(db)
	want(t, db, "k", docLarge("new"))
	counted(t, db, before, "a read of the refreshed key", docCount{hits: 1})

	// A document too large for the cache takes the old one out.
	large := strings.Repeat("x", 2*mib)
	set(t, db, "k", large)
	wantInCache(t, db, "k", "")
	mustFlush(t, db)
	before = countDocs(db)
	want(t, db, "k", large)
	want(t, db, "k", large)
	counted(t, db, before, "reads of a document too large", docCount{reads: 1})
}

// TestR16_AFillBelowTheWordIsRefused: a reader that was at the device while its
// key was written must not bring back what it found. Between its view and its
// fill the write goes all the way, or is only numbered, or refreshed and not
// published.
func TestR16_AFillBelowTheWordIsRefused(t *testing.T) {
	for _, shape := range docShapes {
		t.Run(shape.name, func(t *testing.T) {
			db := docStore(t, memfs.New(), Options{})
			defer db.Close()
			old, fresh := shape.of("old"), shape.of("new")

			set(t, db, "done", old)
			set(t, db, "numbered", old)
			set(t, db, "refreshed", old)
			mustFlush(t, db)

			r := readTables(t, db, "done")
			set(t, db, "done", fresh)
			before := countDocs(db)
			r.fill(db)
			counted(t, db, before, "a fill behind a write", docCount{refused: 1})
			want(t, db, "done", fresh)
			wantMany(t, db, 0, "done", fresh)

			// Numbered alone: nobody reads at it yet, so the fill is right, and the
			// refresh that comes takes it out again.
			r = readTables(t, db, "numbered")
			c := numberSet(t, db, "numbered", fresh)
			r.fill(db)
			want(t, db, "numbered", old)
			c.insert()
			want(t, db, "numbered", old)
			c.refresh()
			want(t, db, "numbered", old) // as of D, from the table
			c.publish()
			c.durable(t)
			want(t, db, "numbered", fresh)
			wantInCache(t, db, "numbered", fresh)

			r = readTables(t, db, "refreshed")
			c = numberSet(t, db, "refreshed", fresh)
			c.insert()
			c.refresh()
			before = countDocs(db)
			r.fill(db)
			counted(t, db, before, "a fill behind a refresh", docCount{refused: 1})
			want(t, db, "refreshed", old)
			c.publish()
			c.durable(t)
			want(t, db, "refreshed", fresh)
		})
	}
}

// TestR16_AReaderAtTheDeviceWhileItsKeyIsWritten is the same by whole calls: the
// disk holds the read of a GET and of a batched one while the key is written.
func TestR16_AReaderAtTheDeviceWhileItsKeyIsWritten(t *testing.T) {
	for _, shape := range docShapes {
		for _, many := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, many=%v", shape.name, many), func(t *testing.T) {
				fs := memfs.New()
				db := docStore(t, fs, Options{})
				defer db.Close()
				old, fresh := shape.of("old"), shape.of("new")
				set(t, db, "k", old)
				mustFlush(t, db)
				want(t, db, "none", "") // the table is open
				arrived, gate := make(chan struct{}), make(chan struct{})
				var once atomic.Bool
				fs.SetHook(func(op vfs.Op) error {
					if op.Kind == vfs.OpReadAt && once.CompareAndSwap(false, true) {
						close(arrived)
						<-gate
					}
					return nil
				})
				var wg sync.WaitGroup
				wg.Go(func() {
					if many {
						wantMany(t, db, 0, "k", old)
					} else {
						want(t, db, "k", old)
					}
				})
				<-arrived
				set(t, db, "k", fresh)
				before := countDocs(db)
				close(gate)
				wg.Wait()
				fs.SetHook(nil)
				if got := countDocs(db).refused - before.refused; got != 1 {
					t.Errorf("%d fills were refused, want 1", got)
				}
				want(t, db, "k", fresh)
				mustFlush(t, db)
				want(t, db, "k", fresh)
			})
		}
	}
}

// TestR16_RefreshesOutOfOrder: two writers of one key reach the cache in the
// wrong order. The newer version stays.
func TestR16_RefreshesOutOfOrder(t *testing.T) {
	db := docStore(t, memfs.New(), Options{})
	defer db.Close()
	for i, finish := range []func(a, b *docCommit){
		func(a, b *docCommit) { b.refresh(); b.publish(); a.refresh(); a.publish() },
		func(a, b *docCommit) { b.refresh(); a.refresh(); a.publish(); b.publish() },
		func(a, b *docCommit) { a.refresh(); b.refresh(); a.publish(); b.publish() },
		func(a, b *docCommit) { a.refresh(); a.publish(); b.refresh(); b.publish() },
	} {
		key := fmt.Sprintf("k%d", i)
		cachedDoc(t, db, key, "old")
		a, b := numberSet(t, db, key, "first"), numberSet(t, db, key, "second")
		a.insert()
		b.insert()
		finish(a, b)
		b.durable(t)
		want(t, db, key, "second")
		wantInCache(t, db, key, "second")

		cachedDoc(t, db, key+"d", "old")
		a, b = numberSet(t, db, key+"d", "first"), numberDelete(t, db, key+"d")
		a.insert()
		b.insert()
		finish(a, b)
		b.durable(t)
		want(t, db, key+"d", "")
	}
}

// TestR16_AHitAboveTheReadSeqnoIsAMiss: what a write brought to the cache is not
// there for readers at D, for snapshots, or before it is visible, and is there
// for the connection that wrote it.
func TestR16_AHitAboveTheReadSeqnoIsAMiss(t *testing.T) {
	fs := memfs.New()
	db := docStore(t, fs, Options{})
	defer db.Close()
	cachedDoc(t, db, "k", "old")
	cachedDoc(t, db, "gone", "old")
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	release := holdWrites(fs)
	defer release()
	var b Batch
	b.Set([]byte("k"), []byte("new"), Meta{})
	b.Delete([]byte("gone"))
	last, err := db.Apply(&b, WriteOptions{NoWait: true})
	if err != nil {
		t.Fatal(err)
	}
	wantInCache(t, db, "k", "new")
	for range 2 {
		want(t, db, "k", "old")
		wantMany(t, db, 0, "k", "old")
		want(t, db, "gone", "old")
		wantMany(t, db, 0, "gone", "old")
	}
	before := countDocs(db)
	wantMany(t, db, last, "k", "new")
	wantMany(t, db, last, "gone", "")
	counted(t, db, before, "reads of own writes", docCount{hits: 1, negative: 1})
	before = countDocs(db)
	if _, err := db.Update([]byte("k"), func(old *Item) (UpdateOp, []byte, Meta, error) {
		if string(old.Value) != "new" {
			t.Errorf("update saw %q", old.Value)
		}
		return UpdateNone, nil, Meta{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	counted(t, db, before, "an update", docCount{hits: 1})
	release()
	if err := db.WaitDurable(last); err != nil {
		t.Fatal(err)
	}
	want(t, db, "k", "new")
	want(t, db, "gone", "")
	for _, key := range []string{"k", "gone"} {
		if it, err := snap.Get(nil, []byte(key)); err != nil || string(it.Value) != "old" {
			t.Errorf("snapshot sees %q of %s, %v", it.Value, key, err)
		}
		// It may not fill what it found, either.
		if it, err := snap.Get(nil, []byte(key)); err != nil || string(it.Value) != "old" {
			t.Errorf("snapshot sees %q of %s, %v", it.Value, key, err)
		}
	}
	want(t, db, "k", "new")
	want(t, db, "gone", "")
}

// TestR16_UpdatesReadAboveDAndFill: an Update reads as of its stripe's word. What
// it brings into the cache is not there for readers below.
func TestR16_UpdatesReadAboveDAndFill(t *testing.T) {
	db := docStore(t, memfs.New(), Options{})
	defer db.Close()
	set(t, db, "k", "old")
	mustFlush(t, db)
	before := countDocs(db)
	add := func(old *Item) (UpdateOp, []byte, Meta, error) {
		return UpdateSet, append(bytes.Clone(old.Value), '+'), Meta{}, nil
	}
	var seen Seqno
	for range 3 {
		var err error
		if seen, err = db.Update([]byte("k"), add); err != nil {
			t.Fatal(err)
		}
	}
	counted(t, db, before, "three updates", docCount{hits: 2, fills: 1, refreshed: 3, reads: 1})
	if err := db.WaitDurable(seen); err != nil {
		t.Fatal(err)
	}
	want(t, db, "k", "old+++")
}

// TestR16_NegativeEntriesObeyToo: a key known to be deleted is answered from the
// cache, and the knowledge obeys the same rules.
func TestR16_NegativeEntriesObeyToo(t *testing.T) {
	db := docStore(t, memfs.New(), Options{})
	defer db.Close()
	gone := func(key string) {
		t.Helper()
		set(t, db, key, "old")
		mustFlush(t, db)
		if _, err := db.Delete([]byte(key)); err != nil {
			t.Fatal(err)
		}
		mustFlush(t, db)
	}
	gone("k")
	before := countDocs(db)
	want(t, db, "k", "")
	counted(t, db, before, "a read of a tombstone", docCount{fills: 1, reads: 1})
	before = countDocs(db)
	want(t, db, "k", "")
	wantMany(t, db, 0, "k", "")
	counted(t, db, before, "reads of what is deleted", docCount{negative: 2})

	before = countDocs(db)
	s := set(t, db, "k", "again")
	counted(t, db, before, "a write of what is deleted", docCount{refreshed: 1})
	want(t, db, "k", "again")
	before = countDocs(db)
	if _, err := db.Delete([]byte("k")); err != nil {
		t.Fatal(err)
	}
	wantMany(t, db, s, "k", "")
	counted(t, db, before, "a delete", docCount{refreshed: 1, negative: 1})

	gone("late")
	r := readTables(t, db, "late")
	set(t, db, "late", "new")
	before = countDocs(db)
	r.fill(db)
	counted(t, db, before, "a late fill of a tombstone", docCount{refused: 1})
	want(t, db, "late", "new")

	gone("numbered")
	r = readTables(t, db, "numbered")
	c := numberSet(t, db, "numbered", "new")
	r.fill(db)
	c.insert()
	c.refresh()
	want(t, db, "numbered", "")
	c.publish()
	c.durable(t)
	want(t, db, "numbered", "new")
}

// TestR16_AClearEmptiesTheCacheToo: what was cleared is absent, except for a
// snapshot that is older.
func TestR16_AClearEmptiesTheCacheToo(t *testing.T) {
	db := docStore(t, memfs.New(), Options{})
	defer db.Close()
	cachedDoc(t, db, "k", "old")
	cachedDoc(t, db, "late", "old")
	r := readTables(t, db, "late")
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	r.fill(db)
	for _, key := range []string{"k", "late"} {
		want(t, db, key, "")
		wantMany(t, db, 0, key, "")
		if it, err := snap.Get(nil, []byte(key)); err != nil || string(it.Value) != "old" {
			t.Errorf("a snapshot from before the clear sees %q of %s, %v", it.Value, key, err)
		}
		want(t, db, key, "")
		if _, err := db.Update([]byte(key), func(old *Item) (UpdateOp, []byte, Meta, error) {
			if old != nil {
				t.Errorf("update saw %+v", old)
			}
			return UpdateSet, []byte("new"), Meta{}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	snap.Close()
	if err := db.Sync(db.Stats().NextSeqno - 1); err != nil {
		t.Fatal(err)
	}
	want(t, db, "k", "new")
	want(t, db, "late", "new")
}

// TestR16_WhatExpiresInTheCacheIsGone, and does not come back with the clock.
func TestR16_WhatExpiresInTheCacheIsGone(t *testing.T) {
	var now atomic.Int64
	now.Store(1_700_000_000)
	db := docStore(t, memfs.New(), Options{Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	defer db.Close()
	if _, err := db.Set([]byte("k"), []byte("value"), Meta{Expiry: uint32(now.Load()) + 10}); err != nil {
		t.Fatal(err)
	}
	mustFlush(t, db)
	want(t, db, "k", "value")
	before := countDocs(db)
	want(t, db, "k", "value")
	now.Add(9)
	want(t, db, "k", "value")
	now.Add(1)
	want(t, db, "k", "")
	wantMany(t, db, 0, "k", "")
	if got := countDocs(db); got.reads != before.reads || got.hits-before.hits != 4 {
		t.Errorf("%+v, before %+v: want four hits and no read", got, before)
	}
	db.raiseExpiryClock(uint32(now.Load()))
	now.Add(-5)
	want(t, db, "k", "")
}

// TestR16_AStoreWhoseLogFailedServesNothingAboveD: what was visible and not
// durable when the log failed is in the cache for ever, and nobody sees it.
func TestR16_AStoreWhoseLogFailedServesNothingAboveD(t *testing.T) {
	for _, nonDurable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%v", !nonDurable), func(t *testing.T) {
			fs := memfs.New()
			db := docStore(t, fs, Options{NonDurable: nonDurable, AsyncWindow: time.Minute})
			defer db.Close()
			for _, key := range []string{"k", "gone", "back"} {
				set(t, db, key, docLarge("old"))
			}
			if _, err := db.Delete([]byte("back")); err != nil {
				t.Fatal(err)
			}
			mustFlush(t, db)
			for _, key := range []string{"k", "gone", "back"} {
				value := docLarge("old")
				if key == "back" {
					value = ""
				}
				want(t, db, key, value)
			}
			broken := errors.New("broken")
			fs.SetHook(func(op vfs.Op) error {
				if (op.Kind == vfs.OpWriteDurable || op.Kind == vfs.OpWriteAt || op.Kind == vfs.OpSync) && strings.HasSuffix(op.Name, ".seg") {
					return broken
				}
				return nil
			})
			var b Batch
			b.Set([]byte("k"), []byte("new"), Meta{})
			b.Delete([]byte("gone"))
			b.Set([]byte("back"), []byte("new"), Meta{})
			last, err := db.Apply(&b, WriteOptions{NoWait: true})
			if err != nil {
				t.Fatal(err)
			}
			wantInCache(t, db, "k", "new")
			wantMany(t, db, last, "k", "new") // the writer itself, before it knows
			wantMany(t, db, last, "back", "new")
			if err := db.Sync(last); !errors.Is(err, ErrReadOnly) {
				t.Fatalf("sync on a broken disk: %v", err)
			}
			wantInCache(t, db, "k", "new")
			for range 2 {
				for key, value := range map[string]string{"k": docLarge("old"), "gone": docLarge("old"), "back": ""} {
					want(t, db, key, value)
					wantMany(t, db, 0, key, value)
					wantMany(t, db, last, key, value)
				}
			}
			snap, err := db.NewSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			defer snap.Close()
			if it, err := snap.Get(nil, []byte("k")); err != nil || string(it.Value) != docLarge("old") {
				t.Errorf("snapshot: %q, %v", it.Value, err)
			}
		})
	}
}

// TestR16_RecoveryStartsEmpty: nothing of the cache outlives the store.
func TestR16_RecoveryStartsEmpty(t *testing.T) {
	fs := memfs.New()
	db := docStore(t, fs, Options{})
	cachedDoc(t, db, "k", docLarge("value"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = docStore(t, fs, Options{})
	defer db.Close()
	if c := db.Stats().DocumentCache; c.Documents != 0 || c.Limit != 4*mib {
		t.Errorf("after a start the cache has %+v", c)
	}
	before := countDocs(db)
	want(t, db, "k", docLarge("value"))
	counted(t, db, before, "the first read after a start", docCount{fills: 1, reads: 1})
	before = countDocs(db)
	want(t, db, "k", docLarge("value"))
	counted(t, db, before, "the second", docCount{hits: 1})
}

// TestDocumentCacheOutlivesItsReaders: Close takes the cache's memory when the
// last reader that it does not wait for has gone.
func TestDocumentCacheOutlivesItsReaders(t *testing.T) {
	mapped := offheap.Mapped()
	db := docStore(t, memfs.New(), Options{})
	cachedDoc(t, db, "k", "value")
	v, at, err := db.pinAt(0)
	if err != nil {
		t.Fatal(err)
	}
	var b ReadBatch
	b.Add([]byte("k"))
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// A reader that had its view before Close, and looks now.
	g := get{key: []byte("k"), hash: xxhash.Sum64String("k"), vbucket: db.vbucket([]byte("k")), at: at}
	if dst := db.findCached(&g, nil, true); !g.found || string(dst) != "value" {
		t.Errorf("%v %q after Close", g.found, dst)
	}
	v.release()
	if string(b.Item(0).Value) != "value" || db.docViews.Load() != 1 {
		t.Errorf("%q, %d views", b.Item(0).Value, db.docViews.Load())
	}
	b.Release()
	if n := db.docViews.Load(); n != 0 {
		t.Errorf("%d views after the last release", n)
	}
	// Race builds keep memtables for the next store.
	if left := offheap.Mapped() - mapped; left >= 4*mib && !offheap.OnGoHeap {
		t.Errorf("%d bytes are left, the cache had %d", left, 4*mib)
	}
}
