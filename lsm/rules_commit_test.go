package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// holdWrites makes durable writes of the log wait until the returned function
// is called.
func holdWrites(fs *memfs.FS) (release func()) {
	gate := make(chan struct{})
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteDurable && strings.HasSuffix(op.Name, ".seg") {
			<-gate
		}
		return nil
	})
	return sync.OnceFunc(func() { fs.SetHook(nil); close(gate) })
}

func TestR10_UpdateSeesWhatIsNotDurableAndSaysSo(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	set(t, db, "a", "old")
	release := holdWrites(fs)
	defer release()
	var b Batch
	b.Set([]byte("a"), []byte("new"), Meta{})
	last, err := db.Apply(&b, WriteOptions{NoWait: true})
	if err != nil {
		t.Fatal(err)
	}
	want(t, db, "a", "old") // a plain read sees nothing that a crash would lose
	stop := errors.New("stop")
	seen, err := db.Update([]byte("a"), func(old *Item) (UpdateOp, []byte, Meta, error) {
		if string(old.Value) != "new" {
			t.Errorf("Update saw %q", old.Value)
		}
		return UpdateNone, nil, Meta{}, stop
	})
	if err != stop || seen < last {
		t.Errorf("seen %d, %v: an answer derived from it must wait for %d", seen, err, last)
	}
	waited := make(chan error, 1)
	go func() { waited <- db.WaitDurable(seen) }()
	select {
	case err := <-waited:
		t.Errorf("WaitDurable(%d) returned %v while the write was under way", seen, err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	// A connection that wrote it reads its own write.
	var rb ReadBatch
	rb.Add([]byte("a"))
	rb.After(last)
	if err := db.GetMany(&rb); err != nil || string(rb.Item(0).Value) != "new" {
		t.Error(err, rb.Err(0))
	}
	rb.Release()
}

func TestR15_VersionsStayForTheHorizon(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	var snaps []*Snapshot
	for i := range 20 {
		set(t, db, "a", strconv.Itoa(i))
		s, err := db.NewSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, s)
	}
	if h := db.horizon(); h != snaps[0].Seqno() {
		t.Errorf("horizon %d, oldest snapshot %d", h, snaps[0].Seqno())
	}
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	for i, s := range snaps {
		if it, err := s.Get(nil, []byte("a")); err != nil || string(it.Value) != strconv.Itoa(i) {
			t.Fatalf("snapshot %d: %q, %v", i, it.Value, err)
		}
		s.Close()
		if _, err := s.Get(nil, []byte("a")); !errors.Is(err, ErrClosed) {
			t.Fatalf("closed snapshot: %v", err)
		}
	}
	release := holdWrites(fs)
	defer release()
	var b Batch
	b.Set([]byte("a"), []byte("x"), Meta{})
	last, _ := db.Apply(&b, WriteOptions{NoWait: true})
	if h := db.horizon(); h >= last {
		t.Errorf("horizon %d is above D: %d is not durable", h, last)
	}
}

func TestR17_UpdatesAndBlindWritesLoseNothing(t *testing.T) {
	db := mustOpen(t, "data", testOptions(memfs.New()))
	defer db.Close()
	const workers, rounds = 8, 200
	var wg sync.WaitGroup
	for g := range workers {
		wg.Go(func() {
			for i := range rounds {
				_, err := db.Update([]byte("counter"), func(old *Item) (UpdateOp, []byte, Meta, error) {
					n := 0
					if old != nil {
						n, _ = strconv.Atoi(string(old.Value))
					}
					return UpdateSet, strconv.AppendInt(nil, int64(n+1), 10), Meta{}, nil
				})
				if err != nil {
					t.Error(err)
				}
				// Blind writes to other keys of every stripe, the same one too.
				db.Set(fmt.Appendf(nil, "blind%d-%d", g, i), nil, Meta{})
			}
		})
	}
	wg.Wait()
	if err := db.WaitDurable(db.Stats().NextSeqno - 1); err != nil {
		t.Fatal(err)
	}
	want(t, db, "counter", strconv.Itoa(workers*rounds))
}

func TestR17_UpdateIsRepeatedWhenTheKeyMoved(t *testing.T) {
	db := mustOpen(t, "data", testOptions(memfs.New()))
	defer db.Close()
	set(t, db, "a", "1")
	runs := 0
	seen, err := db.Update([]byte("a"), func(old *Item) (UpdateOp, []byte, Meta, error) {
		runs++
		if runs == 1 {
			set(t, db, "a", "2") // between the read and the numbering
		}
		return UpdateSet, append([]byte("seen "), old.Value...), Meta{}, nil
	})
	if err != nil || runs != 2 {
		t.Fatalf("%d runs, %v", runs, err)
	}
	if err := db.WaitDurable(seen); err != nil {
		t.Fatal(err)
	}
	want(t, db, "a", "seen 2")
}

func TestR17_NestedUpdateIsAnError(t *testing.T) {
	db := mustOpen(t, "data", testOptions(memfs.New()))
	defer db.Close()
	var inner error
	_, err := db.Update([]byte("a"), func(*Item) (UpdateOp, []byte, Meta, error) {
		_, inner = db.Update([]byte("b"), func(*Item) (UpdateOp, []byte, Meta, error) {
			return UpdateSet, nil, Meta{}, nil
		})
		return UpdateNone, nil, Meta{}, nil
	})
	if err != nil || !errors.Is(inner, ErrNestedUpdate) {
		t.Errorf("inner %v, outer %v", inner, err)
	}
	// Two at the same time on different goroutines are no nesting.
	started, finish := make(chan struct{}), make(chan struct{})
	go db.Update([]byte("c"), func(*Item) (UpdateOp, []byte, Meta, error) {
		close(started)
		<-finish
		return UpdateNone, nil, Meta{}, nil
	})
	<-started
	if _, err := db.Update([]byte("d"), func(*Item) (UpdateOp, []byte, Meta, error) {
		return UpdateNone, nil, Meta{}, nil
	}); err != nil {
		t.Error(err)
	}
	close(finish)
}

func TestR18_ReadersNeverGoBackWhileViewsChange(t *testing.T) {
	o := testOptions(memfs.New())
	o.NonDurable = true
	o.WriteCache = 32 * mib
	db := mustOpen(t, "data", o)
	defer db.Close()
	db.tableBytesMax = 16 * kib // memtables are full after a few hundred writes
	var stop atomic.Bool
	var acked atomic.Int64
	acked.Store(-1)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var rb ReadBatch
			seen := int64(-1)
			for !stop.Load() {
				low := acked.Load()
				rb.Reset()
				rb.Add([]byte("n"))
				if err := db.GetMany(&rb); err != nil {
					t.Error(err)
					return
				}
				got := int64(-1)
				if rb.Err(0) == nil {
					got, _ = strconv.ParseInt(string(rb.Item(0).Value), 10, 64)
				}
				if got < low || got < seen {
					t.Errorf("read %d after %d was acknowledged and %d was read", got, low, seen)
					return
				}
				seen = got
			}
			rb.Release()
		})
	}
	for i := range int64(4000) {
		if _, err := db.Set([]byte("n"), strconv.AppendInt(nil, i, 10), Meta{}); err != nil {
			t.Fatal(err)
		}
		acked.Store(i)
		db.Set(fmt.Appendf(nil, "other%d", i), nil, Meta{})
		if i%200 == 0 {
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	if n := db.Stats().Flushes; n < 10 {
		t.Errorf("only %d flushes: the test did not change views", n)
	}
}

func TestR19_AGroupAlwaysHasAWriter(t *testing.T) {
	for _, async := range []bool{false, true} {
		o := testOptions(memfs.New())
		o.NonDurable = async
		db := mustOpen(t, "data", o)
		var b Batch
		b.Set([]byte("a"), []byte("1"), Meta{})
		last, err := db.Apply(&b, WriteOptions{NoWait: true}) // and nobody waits
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for db.Stats().DurableSeqno < last {
			if time.Now().After(deadline) {
				t.Fatalf("async=%v: nobody wrote the group", async)
			}
			time.Sleep(time.Millisecond)
		}
		db.Close()
	}
}

func TestR19_ARefusedBatchLeavesNoTrace(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = mib
	o.Reject = true
	o.MaxItemBytes = 64 * kib
	db := mustOpen(t, "data", o)
	defer db.Close()
	next, used := db.Stats().NextSeqno, db.Stats().WriteCacheUsed
	var b Batch
	refused := func(want error) {
		t.Helper()
		if _, err := db.Apply(&b, WriteOptions{}); !errors.Is(err, want) {
			t.Errorf("apply: %v, want %v", err, want)
		}
		s := db.Stats()
		if s.NextSeqno != next || s.Entries != 0 || s.WriteCacheUsed != used {
			t.Errorf("after %v: next seqno %d (was %d), %d entries, %d bytes", want, s.NextSeqno, next, s.Entries, s.WriteCacheUsed)
		}
		b.Reset()
	}
	b.Set([]byte("k"), make([]byte, 64*kib), Meta{})
	refused(ErrValueSize)
	for i := range 10 {
		b.Set(fmt.Appendf(nil, "k%d", i), make([]byte, 60*kib), Meta{})
	}
	refused(ErrBatchTooLarge)
	db.quota.charge(mib)
	b.Set([]byte("k"), nil, Meta{})
	_, err := db.Apply(&b, WriteOptions{})
	if !errors.Is(err, ErrOverloaded) || db.Stats().NextSeqno != next {
		t.Error(err, db.Stats().NextSeqno)
	}
	db.quota.release(mib)
}

func TestR19_StalledWritersGoOnWhenMemoryIsFree(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = mib
	db := mustOpen(t, "data", o)
	proceed := make(chan struct{})
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpCreate && path.Base(path.Dir(op.Name)) == TablesDir {
			<-proceed
		}
		return nil
	})
	value := make([]byte, 10*kib)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 60 {
				if _, err := db.Set(fmt.Appendf(nil, "%d-%d", g, i), value, Meta{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for db.Stats().StalledNow == 0 {
		time.Sleep(time.Millisecond)
	}
	if cause := db.Stats().StallCause; cause != "write cache full, being flushed" {
		t.Errorf("cause of the stall: %q", cause)
	}
	close(proceed)
	wg.Wait()
	if s := db.Stats(); s.Writes != 240 || s.Stalled == 0 || s.Flushes == 0 {
		t.Errorf("%d writes, %d stalled, %d flushes", s.Writes, s.Stalled, s.Flushes)
	}
	// A writer that is stalled when the store closes is told so.
	db.quota.charge(mib)
	got := make(chan error)
	go func() {
		_, err := db.Set([]byte("x"), nil, Meta{})
		got <- err
	}()
	for db.Stats().StalledNow == 0 {
		time.Sleep(time.Millisecond)
	}
	db.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestR25_Bounds(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = 32 * mib
	o.MaxItemBytes = 2 * mib
	db := mustOpen(t, "data", o)
	if db.batchBytesMax != 8*mib {
		t.Errorf("a batch may have %d bytes, want a quarter of the write cache", db.batchBytesMax)
	}
	largest := int64(0)
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteDurable {
			largest = max(largest, op.Len)
		}
		return nil
	})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var b Batch
			for i := range 20 {
				b.Reset()
				for j := range 20 {
					b.Set(fmt.Appendf(nil, "%d-%d-%d", g, i, j), make([]byte, 1000), Meta{})
				}
				if _, err := db.Apply(&b, WriteOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if largest > int64(o.groupBytesMax) {
		t.Errorf("a shared group of %d bytes, at most %d", largest, o.groupBytesMax)
	}
	// Larger than a group and than a segment: a group of its own, one segment.
	big := bytes.Repeat([]byte("0123456789abcdef"), 100*kib)
	if _, err := db.Set([]byte("big"), big, Meta{}); err != nil {
		t.Fatal(err)
	}
	if largest < int64(len(big)) {
		t.Errorf("largest write has %d bytes, the value %d", largest, len(big))
	}
	var b Batch
	for i := range 7 {
		b.Set(fmt.Appendf(nil, "half%d", i), big[:mib], Meta{})
	}
	if _, err := db.Apply(&b, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	set(t, db, "small", "1")
	fs.SetHook(nil)
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	o.FS = disk
	db = mustOpen(t, "data", o)
	defer db.Close()
	want(t, db, "big", string(big))
	want(t, db, "half6", string(big[:mib]))
	want(t, db, "small", "1")
	want(t, db, "7-19-19", string(make([]byte, 1000)))
}

func TestReadOnlyAfterAFailedSync(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	set(t, db, "a", "1")
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteDurable && strings.HasSuffix(op.Name, ".seg") {
			return errors.New("device gone")
		}
		return nil
	})
	errs := make(chan error, 8)
	for range 8 {
		go func() {
			_, err := db.Set([]byte("a"), []byte("2"), Meta{})
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; !errors.Is(err, ErrReadOnly) {
			t.Errorf("set: %v", err)
		}
	}
	fs.SetHook(nil) // the device claims to work again: too late
	if _, err := db.Set([]byte("a"), []byte("3"), Meta{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("set after the failure: %v", err)
	}
	if _, err := db.Clear(time.Time{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("clear: %v", err)
	}
	want(t, db, "a", "1")
	if s := db.Stats(); s.ReadOnly == "" || !strings.Contains(s.ReadOnly, "device gone") {
		t.Errorf("stats: %q", s.ReadOnly)
	}
	if err := db.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("close: %v", err)
	}
	db = mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	want(t, db, "a", "1")
	set(t, db, "a", "4")
}

func TestR25_AnItemLargerThanTheWriteCacheGetsThroughAlone(t *testing.T) {
	o := testOptions(memfs.New())
	o.WriteCache = mib
	o.Reject = true
	db := mustOpen(t, "data", o)
	defer db.Close()
	pauseFlushes(db)
	big := strings.Repeat("v", 5*mib)
	set(t, db, "big", big)
	if _, err := db.Set([]byte("next"), nil, Meta{}); !errors.Is(err, ErrOverloaded) {
		t.Errorf("next: %v", err)
	}
	want(t, db, "big", big)
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	set(t, db, "next", "1")
}

func TestR25_GetManyReadsABoundedAmountFromTheDevice(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = 32 * mib
	db := mustOpen(t, "data", o)
	value := bytes.Repeat([]byte("v"), mib)
	const docs = 12
	for i := range docs {
		if _, err := db.Set(fmt.Appendf(nil, "big%02d", i), value, Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	set(t, db, "small", "1")
	db.Close()
	db = mustOpen(t, "data", o) // big values are in the log alone
	defer db.Close()
	var b ReadBatch
	for i := range docs {
		b.Add(fmt.Appendf(nil, "big%02d", i))
	}
	b.Add([]byte("small"))
	if err := db.GetMany(&b); err != nil {
		t.Fatal(err)
	}
	read := 0
	for i := range docs {
		switch {
		case b.Err(i) == nil && read == i && bytes.Equal(b.Item(i).Value, value):
			read++
		case !errors.Is(b.Err(i), ErrReadLimit):
			t.Errorf("key %d of which %d were read: %v", i, read, b.Err(i))
		}
	}
	if read != 7 { // 8 MiB, less what records add to values
		t.Errorf("%d documents of 1 MiB were read, want 7", read)
	}
	if b.Err(docs) != nil {
		t.Errorf("what is in memory: %v", b.Err(docs))
	}
	b.Release()
}

// TestR25_LimitAllHasNoException: with LimitAll the first key is bounded too, and
// a Limit that follows makes the exception again.
func TestR25_LimitAllHasNoException(t *testing.T) {
	db := mustOpen(t, "data", testOptions(memfs.New()))
	defer db.Close()
	for _, key := range []string{"a", "b"} {
		if _, err := db.Set([]byte(key), bytes.Repeat([]byte("v"), 100_000), Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	var b ReadBatch
	defer b.Release()
	b.Add([]byte("a"))
	b.Add([]byte("b"))
	for _, tc := range []struct {
		name  string
		limit func()
		want  [2]error
	}{
		{"all, below one", func() { b.LimitAll(50_000) }, [2]error{ErrReadLimit, ErrReadLimit}},
		{"all, above both", func() { b.LimitAll(250_000) }, [2]error{}},
		{"not the first", func() { b.Limit(50_000) }, [2]error{nil, ErrReadLimit}},
	} {
		tc.limit()
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		if got := [2]error{b.Err(0), b.Err(1)}; got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestOwnKeys: the keys of a batch that was started may be overwritten behind
// OwnKeys, while blocks and documents are being read.
func TestOwnKeys(t *testing.T) {
	db := mustOpen(t, "data", testOptions(memfs.New()))
	defer db.Close()
	const docs = 300 // more than have a read under way at once
	for i := range docs {
		if _, err := db.Set(fmt.Appendf(nil, "key%03d", i), fmt.Appendf(nil, "%0*d", 1+i%2*5000, i), Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	var b ReadBatch
	for waited := range 3 { // at different stages
		b.Reset()
		var keys []byte
		for i := range docs {
			keys = fmt.Appendf(keys, "key%03d", i)
		}
		for i := range docs {
			b.Add(keys[6*i : 6*i+6])
		}
		if err := db.StartMany(&b); err != nil {
			t.Fatal(err)
		}
		b.Wait(waited * docs / 4)
		b.OwnKeys()
		for i := range keys {
			keys[i] = 'x'
		}
		b.Wait(docs)
		for i := range docs {
			want, value := fmt.Sprintf("key%03d", i), fmt.Sprintf("%0*d", 1+i%2*5000, i)
			if err := b.Err(i); err != nil || string(b.Key(i)) != want || string(b.Item(i).Key) != want || string(b.Item(i).Value) != value {
				t.Fatalf("key %d: %v: %q, item %q of %d bytes", i, err, b.Key(i), b.Item(i).Key, len(b.Item(i).Value))
			}
		}
	}
	b.Release()
}
