package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// text returns n bytes that compress, noise n bytes that do not.
func text(n, seed int) string {
	return strings.Repeat(fmt.Sprintf("document %d, field by field; ", seed), n/16+1)[:n]
}

func noise(n, seed int) string {
	rnd := rand.New(rand.NewPCG(uint64(seed), 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return string(b)
}

// compressOptions compress separated documents, and do nothing by themselves.
func compressOptions(fs *memfs.FS) Options {
	o := testOptions(fs)
	o.CompressDocuments, o.flushOnDemand = true, true
	return o
}

// readsEverywhere compares the store with truth by every way of reading.
func readsEverywhere(t *testing.T, db *DB, truth map[string]string, where string) {
	t.Helper()
	var b ReadBatch
	keys := slices.Sorted(maps.Keys(truth))
	for _, k := range keys {
		b.Add([]byte(k))
	}
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	for i, k := range keys {
		if b.Err(i) != nil || string(b.Item(i).Value) != truth[k] {
			t.Errorf("%s: GetMany of %s: %d bytes, %v", where, k, len(b.Item(i).Value), b.Err(i))
		}
		it, err := db.Get([]byte("before"), []byte(k))
		if err != nil || string(it.Value) != truth[k] || it.Flags != uint32(len(truth[k])) {
			t.Errorf("%s: Get of %s: %d bytes, %v", where, k, len(it.Value), err)
		}
		if it, err = snap.Get(nil, []byte(k)); err != nil || string(it.Value) != truth[k] {
			t.Errorf("%s: Get of %s from a snapshot: %d bytes, %v", where, k, len(it.Value), err)
		}
		if _, err := db.Update([]byte(k), func(old *Item) (UpdateOp, []byte, Meta, error) {
			if string(old.Value) != truth[k] {
				t.Errorf("%s: Update of %s sees %d bytes", where, k, len(old.Value))
			}
			return UpdateNone, nil, Meta{}, nil
		}); err != nil {
			t.Errorf("%s: Update of %s: %v", where, k, err)
		}
	}
	b.Release()
	it, err := snap.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	seen := 0
	for ok := it.First(); ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil || string(item.Value) != truth[string(item.Key)] {
			t.Errorf("%s: iterator at %s: %d bytes, %v", where, item.Key, len(item.Value), err)
		}
		seen++
	}
	if it.Error() != nil || seen != len(truth) {
		t.Errorf("%s: iterator: %d of %d documents, %v", where, seen, len(truth), it.Error())
	}
	verified(t, db)
}

// TestCompressedDocumentsAreReadEverywhere: from memory, from the log after a
// restart, by way of tables, and when they were moved; with the option and
// without; beside documents that are stored plain.
func TestCompressedDocumentsAreReadEverywhere(t *testing.T) {
	fs := memfs.New()
	o := compressOptions(fs)
	o.SegmentBytes = 64 * kib
	db := mustOpen(t, "data", o)
	truth := map[string]string{}
	write := func(round int) {
		t.Helper()
		var b Batch
		for i, n := range []int{0, 1, 127, 128, 255, 256, 257, 300, 1000, 4096, 30_000, 200_000} {
			for j, value := range []string{text(n, round), noise(n, 100*round+i)} {
				key := fmt.Sprintf("%d-%d-%d", round, j, n)
				if err := b.Set([]byte(key), []byte(value), Meta{Flags: uint32(n), Datatype: uint8(j)}); err != nil {
					t.Fatal(err)
				}
				truth[key] = value
			}
		}
		if err := b.Delete(fmt.Appendf(nil, "%d-0-300", round)); err != nil {
			t.Fatal(err)
		}
		delete(truth, fmt.Sprintf("%d-0-300", round))
		if _, err := db.Apply(&b, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reopen := func(compress bool) {
		t.Helper()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		o.CompressDocuments = compress
		db = mustOpen(t, "data", o)
	}
	write(0)
	// Above the inline limit of 255: 256, 257, 300 and so on, all of the text.
	raw := int64(256 + 257 + 300 + 1000 + 4096 + 30_000 + 200_000)
	c := db.Stats().Compression
	if c.Tried != 14 || c.Kept != 7 || c.Raw != raw || c.Stored > raw/5 || c.Stored < 500 {
		t.Errorf("%+v, want 7 of 14 kept, of %d bytes", c, raw)
	}
	if s := db.Stats(); s.Log.RecordBytes > raw*6/5+10_000 || s.UserBytes < 2*raw {
		t.Errorf("%d bytes in records, %d of users", s.Log.RecordBytes, s.UserBytes)
	}
	readsEverywhere(t, db, truth, "in memory")
	reopen(true)
	readsEverywhere(t, db, truth, "in the log")
	write(1)
	mustFlush(t, db)
	readsEverywhere(t, db, truth, "by tables")
	reopen(false)
	readsEverywhere(t, db, truth, "without the option")
	write(2)
	if c := db.Stats().Compression; c != (Compression{}) {
		t.Errorf("without the option: %+v", c)
	}
	mustFlush(t, db)
	// Most of the first round dies, and its segments are collected.
	for k := range truth {
		if strings.HasPrefix(k, "0-1") {
			if _, err := db.Delete([]byte(k)); err != nil {
				t.Fatal(err)
			}
			delete(truth, k)
		}
	}
	reopen(true)
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Collections == 0 || s.GCKept == 0 {
		t.Errorf("nothing was moved: %+v", s)
	}
	readsEverywhere(t, db, truth, "moved")
	reopen(false)
	readsEverywhere(t, db, truth, "moved, after a restart")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWhatIsRefusedDoesNotDependOnCompression: sizes are judged as the caller
// sees them, and where a document lies follows from them.
func TestWhatIsRefusedDoesNotDependOnCompression(t *testing.T) {
	o := compressOptions(memfs.New())
	o.MaxItemBytes = 100 * kib
	db := mustOpen(t, "data", o)
	defer db.Close()
	if _, err := db.Set([]byte("k"), make([]byte, 100*kib), Meta{}); !errors.Is(err, ErrValueSize) {
		t.Errorf("an item above MaxItemBytes: %v", err)
	}
	var b Batch
	value := make([]byte, 64*kib)
	for i := range o.BatchBytesMax()/len(value) + 1 {
		b.Set(fmt.Appendf(nil, "k%d", i), value, Meta{})
	}
	if _, err := db.Apply(&b, WriteOptions{}); !errors.Is(err, ErrBatchTooLarge) {
		t.Errorf("a batch above BatchBytesMax: %v", err)
	}
	if c := db.Stats().Compression; c != (Compression{}) {
		t.Errorf("what is refused was compressed: %+v", c)
	}
	// 256 zeros would be 18 bytes: still they are separated.
	set(t, db, "limit", string(make([]byte, 255)))
	set(t, db, "above", string(make([]byte, 256)))
	mustFlush(t, db)
	st := db.edits.log.State()
	documents := 0
	for _, table := range st.Tables {
		for _, use := range table.Segments {
			documents += int(use.Documents)
		}
	}
	if documents != 1 {
		t.Errorf("%d documents are separated, want 1", documents)
	}
	if used := db.quota.used.Load(); used > 64*kib {
		t.Errorf("%d bytes of the write cache are still taken", used)
	}
}

// TestLiveBytesAreThoseStored: what compression saves is not given away to
// garbage, of which the target is a multiple of what is live.
func TestLiveBytesAreThoseStored(t *testing.T) {
	db := mustOpen(t, "data", compressOptions(memfs.New()))
	defer db.Close()
	for i := range 500 {
		set(t, db, fmt.Sprintf("key%04d", i), text(2000, i))
	}
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
	s := db.Stats()
	stored := s.Compression.Stored + 500*7
	if s.Compression.Kept != 500 || s.Live < stored-stored/5 || s.Live > stored+stored/5 || s.Live > s.UserBytes/5 {
		t.Errorf("%d bytes live, stored %d, of users %d: %+v", s.Live, stored, s.UserBytes, s.Compression)
	}
}

// TestCompressedWritersAreHeldUpForWhatTheyStore: the space target is one of files.
func TestCompressedWritersAreHeldUpForWhatTheyStore(t *testing.T) {
	for _, value := range []string{text(mib, 1), noise(mib, 1)} {
		db := mustOpen(t, "data", compressOptions(memfs.New()))
		db.quota.pace.set(paceMin) // 40 KiB at once
		set(t, db, "k", value)
		db.quota.pace.mu.Lock()
		owed := -db.quota.pace.tokens
		db.quota.pace.mu.Unlock()
		switch kept := db.Stats().Compression.Kept; {
		case kept == 1 && owed > 200*kib, kept == 0 && owed < 900*kib:
			t.Errorf("%d documents of 1 MiB are compressed: %.0f bytes to wait for", kept, owed)
		}
		db.quota.pace.set(0)
		db.Close()
	}
}

// TestR25_CompressedDocumentsAreReadABoundedAmountAtOnce: what values take is
// bounded, not only what their records do.
func TestR25_CompressedDocumentsAreReadABoundedAmountAtOnce(t *testing.T) {
	o := compressOptions(memfs.New())
	o.WriteCache, o.InlineLimit = 32*mib, -1
	db := mustOpen(t, "data", o)
	const docs = 20
	truth := map[string]string{}
	for i := range docs {
		key := fmt.Sprintf("big%02d", i)
		truth[key] = strings.Repeat(string(rune('a'+i)), mib)
		set(t, db, key, truth[key])
	}
	set(t, db, "small", "1")
	truth["small"] = "1"
	db.Close()
	db = mustOpen(t, "data", o)
	defer db.Close()
	keys := slices.Sorted(maps.Keys(truth))
	var b ReadBatch
	for rounds := 0; len(keys) > 0; rounds++ {
		b.Reset()
		for _, k := range keys {
			b.Add([]byte(k))
		}
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		// Which ones are answered is up to the device; the first one is.
		var left []string
		bytes := 0
		for i, k := range keys {
			switch {
			case b.Err(i) == nil && string(b.Item(i).Value) == truth[k]:
				bytes += len(truth[k])
			case i == 0 || b.Err(i) != ErrReadLimit:
				t.Fatalf("round %d: key %d, %s: %v", rounds, i, k, b.Err(i))
			default:
				left = append(left, k)
			}
		}
		if read := len(keys) - len(left); read < min(8, len(keys)) || bytes > 8*mib || cap(b.buf) > 16*mib {
			t.Fatalf("round %d: %d documents, %d bytes, buffer of %d", rounds, read, bytes, cap(b.buf))
		}
		keys = left
	}
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil || string(item.Value) != truth[string(item.Key)] {
			t.Fatalf("iterator at %s: %d bytes, %v", item.Key, len(item.Value), err)
		}
		if cap(it.buf) > 4*pageReadBytesMax {
			t.Fatalf("the iterator has %d bytes of values", cap(it.buf))
		}
		n++
	}
	if n != len(truth) {
		t.Errorf("iterator: %d documents", n)
	}
}

// TestDamagedBlockIsCorruption: a block that is none, under a right sum, is an
// error that names file and offset, by every way of reading; others are served.
func TestDamagedBlockIsCorruption(t *testing.T) {
	fs := memfs.New()
	o := compressOptions(fs)
	db := mustOpen(t, "data", o)
	for _, k := range []string{"a", "b", "c"} {
		set(t, db, k, text(3000, 1))
	}
	mustFlush(t, db)
	v := db.pin()
	at := v.version.runs[db.vbucket([]byte("b"))][0].files[0]
	run := (&run{files: []*tableFile{at}}).newIter(sstable.IterOptions{})
	found := false
	for ok := run.First(); ok; ok = run.Next() {
		e := run.Version()
		if !bytes.HasSuffix(e.Key, []byte("b")) {
			continue
		}
		found = true
		a := e.Value.Address
		file := path.Join("data", wal.SegmentsDir, wal.SegmentName(a.Segment, wal.SegmentLog))
		alter(t, fs, file, func(f vfs.File) error {
			rec := make([]byte, a.Length)
			if _, err := f.ReadAt(rec, int64(a.Offset)); err != nil {
				return err
			}
			// presence, key length, value length, key; then the block.
			copy(rec[1+1+1+1:], []byte{0xff, 0xff, 0xff, 0x1f}) // declares 64 MiB - 1
			if rec[2] < 100 || int(rec[2]) != len(rec)-12 {
				return fmt.Errorf("a record of %d bytes begins %x", len(rec), rec[:4])
			}
			wal.FinishDocument(rec, &db.secret, a.Segment, a.Offset, e.Seqno)
			_, err := f.WriteAt(rec, int64(a.Offset))
			return err
		})
		place := fmt.Sprintf("%s: offset %d", file, a.Offset)
		damaged := func(how string, err error) {
			t.Helper()
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), place) {
				t.Errorf("%s: %v, want ErrCorrupt in %s", how, err, place)
			}
		}
		_, err := db.Get(nil, []byte("b"))
		damaged("Get", err)
		_, err = db.Update([]byte("b"), func(*Item) (UpdateOp, []byte, Meta, error) { return UpdateNone, nil, Meta{}, nil })
		damaged("Update", err)
		var b ReadBatch
		for _, k := range []string{"a", "b", "c"} {
			b.Add([]byte(k))
		}
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		damaged("GetMany", b.Err(1))
		if b.Err(0) != nil || b.Err(2) != nil || string(b.Item(2).Value) != text(3000, 1) {
			t.Errorf("the others: %v, %v", b.Err(0), b.Err(2))
		}
		b.Release()
		it, err := db.NewIter(nil, nil, IterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
			if item, err := it.Item(); string(it.Key()) == "b" {
				damaged("iterator", err)
			} else if err != nil || string(item.Value) != text(3000, 1) {
				t.Errorf("iterator at %s: %v", it.Key(), err)
			}
		}
		it.Close()
		_, err = db.Verify(t.Context())
		damaged("Verify", err)
	}
	run.Close()
	v.release()
	if !found {
		t.Error("the document is not in its table")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReplayInflatesInlineValues: the format allows them to be compressed, though
// nothing writes them so. A damaged one ends the start, and says where it is.
func TestReplayInflatesInlineValues(t *testing.T) {
	value := text(200, 1)
	good, ok := wal.AppendBlock(nil, []byte(value))
	if !ok {
		t.Fatal("not compressed")
	}
	for _, damaged := range []bool{false, true} {
		fs := memfs.New()
		db := mustOpen(t, "data", compressOptions(fs))
		var b Batch
		b.Set([]byte("k"), []byte(value), Meta{Flags: 7})
		size, memory, err := db.size(&b)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.quota.admit(memory); err != nil {
			t.Fatal(err)
		}
		p := &packed{bytes: bytes.Clone(good), blocks: []block{{0, 0, len(good)}}}
		if damaged {
			p.bytes[0]++ // a byte more than there is
		}
		size.Bytes = wal.RecordBytes(1, Meta{Flags: 7}, len(good), false)
		place, ticket, err := db.number(&b, size, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := place.Position()
		db.encode(&b, &place, p)
		place.Done()
		db.insert(&b)
		db.publish.finish(ticket)
		if err := db.WaitDurable(b.first); err != nil {
			t.Fatal(err)
		}
		want(t, db, "k", value)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db, err = Open("data", compressOptions(fs))
		if damaged {
			if place := fmt.Sprintf("segment %06d, group at %d", at.Segment, at.Offset); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), place) {
				t.Errorf("open: %v, want ErrCorrupt in %s", err, place)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want(t, db, "k", value)
		mustFlush(t, db)
		want(t, db, "k", value)
		db.Close()
	}
}

// TestCompressionAllocatesNothing: neither writing compressed documents nor
// reading them, from memory and from the log, when the caller's buffers are
// large enough.
func TestCompressionAllocatesNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	// Written to a disk, read from one in memory: that allocates for what is
	// written, and reads of a disk in flight together may for their threads.
	disk := mustOpen(t, t.TempDir(), Options{
		NonDurable: true, MemQuota: 256 * mib, CompressDocuments: true, flushOnDemand: true, Logf: func(string, ...any) {},
	})
	defer disk.Close()
	measure := func(name string, fn func()) {
		t.Helper()
		for range 10 {
			fn()
		}
		if allocs := testing.AllocsPerRun(100, fn); allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", name, allocs)
		}
	}
	i := uint64(0)
	for _, batch := range []int{1, 128} {
		w := newHotWriter(disk, batch, 1000)
		copy(w.value, text(1000, 7))
		measure(fmt.Sprintf("apply %d", batch), func() {
			i += 977
			w.apply(t, i, 2000)
		})
	}
	if c := disk.Stats().Compression; c.Kept != c.Tried || c.Kept == 0 {
		t.Fatalf("%+v", c)
	}
	db := mustOpen(t, "data", compressOptions(memfs.New()))
	defer db.Close()
	w := newHotWriter(db, 100, 1000)
	copy(w.value, text(1000, 8))
	for at := uint64(0); at < 2000; at += 100 {
		w.apply(t, at, 2000)
	}
	if c := db.Stats().Compression; c.Kept != c.Tried || c.Kept == 0 {
		t.Fatalf("%+v", c)
	}
	reads := func(where string) {
		t.Helper()
		var dst, key []byte
		measure("get from "+where, func() {
			i += 977
			key = hotKey(key[:0], i%2000)
			item, err := db.Get(dst[:0], key)
			if err != nil || !bytes.Equal(item.Value, w.value) {
				t.Fatal(err)
			}
			dst = item.Value
		})
		var b ReadBatch
		keys := make([]byte, 0, 128*12)
		measure("get 128 from "+where, func() {
			b.Reset()
			keys = keys[:0]
			for range 128 {
				i += 977
				at := len(keys)
				keys = hotKey(keys, i%2000)
				b.Add(keys[at:])
			}
			if err := db.GetMany(&b); err != nil {
				t.Fatal(err)
			}
			for j := range 128 {
				if b.Err(j) != nil || len(b.Item(j).Value) != 1000 {
					t.Fatal(b.Err(j))
				}
			}
			b.Release()
		})
		it, err := db.NewIter(nil, nil, IterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		it.First()
		for range 500 {
			it.Next()
		}
		measure("next from "+where, func() {
			if item, err := it.Item(); err != nil || len(item.Value) != 1000 {
				t.Fatal(err)
			}
			it.Next()
		})
	}
	reads("memory")
	mustFlush(t, db)
	reads("the log")
}
