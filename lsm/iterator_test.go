package lsm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// keysOf walks an iterator from First to its end and returns "key=value".
func keysOf(t testing.TB, it *Iterator) []string {
	t.Helper()
	return rest(t, it, it.First())
}

func rest(t testing.TB, it *Iterator, ok bool) (out []string) {
	t.Helper()
	for ; ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil {
			t.Fatalf("item %s: %v", it.Key(), err)
		}
		if string(item.Key) != string(it.Key()) {
			t.Fatalf("item has key %q, iterator %q", item.Key, it.Key())
		}
		out = append(out, fmt.Sprintf("%s=%s", item.Key, item.Value))
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
	return out
}

func mustIter(t testing.TB, it *Iterator, err error) *Iterator {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { it.Close() })
	return it
}

func mustSet(t testing.TB, db *DB, key, value string) Seqno {
	t.Helper()
	s, err := db.Set([]byte(key), []byte(value), Meta{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// iterShapes are stores in which the orders differ: many vbuckets, one, several
// to a kvstore; with values in memory and, after a reopen, in the log.
var iterShapes = []struct {
	name              string
	vbuckets, kvstore int
}{
	{"one of each", 1, 1},
	{"sixteen", 16, 16},
	{"four vbuckets a kvstore", 16, 4},
	{"a thousand vbuckets", 1024, 16},
}

func TestIteratorOrders(t *testing.T) {
	for _, shape := range iterShapes {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reopened %v", shape.name, reopen), func(t *testing.T) {
				o := testOptions(memfs.New())
				o.VBuckets, o.KVStores, o.InlineLimit = shape.vbuckets, shape.kvstore, 3
				db := mustOpen(t, "data", o)
				defer func() { db.Close() }()
				var want []string
				for i := range 300 {
					key := fmt.Sprintf("k%03d", (i*7)%300)
					value := strings.Repeat("v", i%7)
					mustSet(t, db, key, "older")
					mustSet(t, db, key, value)
					want = append(want, key+"="+value)
				}
				for _, key := range []string{"a", "k050", "k299", "z"} {
					if _, err := db.Delete([]byte(key)); err != nil {
						t.Fatal(err)
					}
					want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, key+"=") })
				}
				slices.Sort(want)
				if reopen {
					if err := db.Close(); err != nil {
						t.Fatal(err)
					}
					db = mustOpen(t, "data", o)
				}
				within := func(lower, upper string) (out []string) {
					for _, s := range want {
						if key, _, _ := strings.Cut(s, "="); key >= lower && key < upper {
							out = append(out, s)
						}
					}
					return out
				}
				it, err := db.NewIter(nil, nil, IterOptions{})
				it = mustIter(t, it, err)
				if got := keysOf(t, it); !slices.Equal(got, want) {
					t.Fatalf("all: %d of %d: %v", len(got), len(want), got)
				}
				for _, seek := range []string{"", "k", "k1", "k050", "k1505", "k298", "k299", "l"} {
					if got := rest(t, it, it.SeekGE([]byte(seek))); !slices.Equal(got, within(seek, "zz")) {
						t.Errorf("from %q: %v", seek, got)
					}
				}
				for _, b := range [][2]string{{"k0", "k1"}, {"k050", "k051"}, {"k100", "k101"}, {"k2", "k1"}, {"", "k00"}, {"k298", "zz"}} {
					it, err := db.NewIter([]byte(b[0]), []byte(b[1]), IterOptions{})
					it = mustIter(t, it, err)
					if got := keysOf(t, it); !slices.Equal(got, within(b[0], b[1])) {
						t.Errorf("in %q: %v", b, got)
					}
					if got := rest(t, it, it.SeekGE([]byte("k1005"))); !slices.Equal(got, within(max("k1005", b[0]), b[1])) {
						t.Errorf("in %q from k1005: %v", b, got)
					}
				}
				testKVStoreOrder(t, db, within("k1", "k25"))
			})
		}
	}
}

// testKVStoreOrder wants every kvstore to show its share of want, which are the
// keys from k1 to k25, in the order (vbucket, key), from every place in it.
func testKVStoreOrder(t *testing.T, db *DB, want []string) {
	t.Helper()
	keyOf := func(s string) []byte { key, _, _ := strings.Cut(s, "="); return []byte(key) }
	sorted := slices.Clone(want)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return int(db.VBucket(keyOf(a))) - int(db.VBucket(keyOf(b)))
	})
	for k := range db.kvstores {
		var mine []string
		for _, s := range sorted {
			if int(db.VBucket(keyOf(s)))%db.kvstores == k {
				mine = append(mine, s)
			}
		}
		it, err := db.NewIter([]byte("k1"), []byte("k25"), IterOptions{OneKVStore: true, KVStore: k})
		it = mustIter(t, it, err)
		if got := keysOf(t, it); !slices.Equal(got, mine) {
			t.Fatalf("kvstore %d: %v, want %v", k, got, mine)
		}
		for i, s := range mine {
			if got := rest(t, it, it.SeekGE(keyOf(s))); !slices.Equal(got, mine[i:]) {
				t.Fatalf("kvstore %d from %s: %v", k, s, got)
			}
		}
	}
	if _, err := db.NewIter(nil, nil, IterOptions{OneKVStore: true, KVStore: db.kvstores}); err == nil {
		t.Error("an iterator over a kvstore that does not exist")
	}
}

// TestR18_IteratorsTakeFreshViews: whatever happens to memtables while an iterator is
// under way, it shows what was there when it was made, and lets old views go.
func TestR18_IteratorsTakeFreshViews(t *testing.T) {
	for _, one := range []bool{false, true} {
		t.Run(fmt.Sprintf("one kvstore %v", one), func(t *testing.T) {
			o := testOptions(memfs.New())
			o.VBuckets, o.KVStores = 16, 1
			db := mustOpen(t, "data", o)
			defer db.Close()
			for i := range 200 {
				mustSet(t, db, fmt.Sprintf("k%03d", i), fmt.Sprint(i))
			}
			it, err := db.NewIter(nil, nil, IterOptions{OneKVStore: one})
			it = mustIter(t, it, err)
			want := keysOf(t, it)
			it.viewAge = 0
			pauseFlushes(db)
			var got []string
			views := map[*view]bool{}
			for ok := it.First(); ok; ok = it.Next() {
				item, err := it.Item()
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%s=%s", item.Key, item.Value))
				views[it.view] = true
				switch i := len(got); i {
				case 20:
					mustSet(t, db, fmt.Sprintf("k%03d", 10*i), "newer")
				case 60:
					db.tableBytesMax = 0 // the memtable is full
					var b Batch
					b.Set([]byte("k150"), []byte("newer"), Meta{})
					if _, _, err := db.size(&b); err != nil {
						t.Fatal(err)
					}
					b.touched[0].bytes = 0
					db.tableBytesMax = 1
					if err := db.rotateFull(&b); err != nil {
						t.Fatal(err)
					}
					db.tableBytesMax = db.tableCapacity
				case 100:
					if _, err := db.Clear(time.Time{}); err != nil {
						t.Fatal(err)
					}
					mustSet(t, db, "k170", "new")
				}
			}
			if it.Error() != nil || !slices.Equal(got, want) {
				t.Fatalf("%v: %d of %d documents: %v", it.Error(), len(got), len(want), got)
			}
			if len(views) != 3 {
				t.Errorf("%d views, want 3", len(views))
			}
			if s := db.Stats(); s.Snapshots != 1 || s.Memtables != 3 {
				t.Errorf("with the iterator: %d snapshots, %d memtables", s.Snapshots, s.Memtables)
			}
			it.Close()
			if s := db.Stats(); s.Snapshots != 0 || s.Memtables != 1 {
				t.Errorf("without the iterator: %d snapshots, %d memtables", s.Snapshots, s.Memtables)
			}
		})
	}
}

func TestIteratorEndsWithTheStore(t *testing.T) {
	o := testOptions(memfs.New())
	o.InlineLimit = -1
	db := mustOpen(t, "data", o)
	for i := range 20 {
		mustSet(t, db, fmt.Sprintf("k%03d", i), "value")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = mustOpen(t, "data", o)
	it, err := db.NewIter(nil, nil, IterOptions{})
	it = mustIter(t, it, err)
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if !it.First() {
		t.Fatal(it.Error())
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := it.Item(); !errors.Is(err, ErrClosed) {
		t.Errorf("item: %v", err)
	}
	if it.Next() || !errors.Is(it.Error(), ErrClosed) {
		t.Errorf("next: %v", it.Error())
	}
	if it.First() || it.SeekGE([]byte("k")) {
		t.Error("moved")
	}
	if _, err := db.NewIter(nil, nil, IterOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("new iterator: %v", err)
	}
	if _, err := snap.NewIter(nil, nil, IterOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("new iterator of a snapshot: %v", err)
	}
	if err := errors.Join(it.Close(), it.Close(), snap.Close()); err != nil {
		t.Error(err)
	}
}

// TestIteratorReadsAhead: documents that must come from the log are read in few
// rounds, and only when they are asked for.
func TestIteratorReadsAhead(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.InlineLimit = -1
	db := mustOpen(t, "data", o)
	for i := range 500 {
		mustSet(t, db, fmt.Sprintf("k%03d", i), fmt.Sprint(i))
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = mustOpen(t, "data", o)
	defer db.Close()
	it, err := db.NewIter(nil, nil, IterOptions{})
	it = mustIter(t, it, err)
	for ok := it.First(); ok; ok = it.Next() {
		it.Key()
	}
	if n := db.Stats().DocumentReads; n != 0 {
		t.Errorf("%d documents read for keys alone", n)
	}
	rounds, last := 0, int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil || "k"+fmt.Sprintf("%03s", item.Value) != string(item.Key) {
			t.Fatalf("%s: %q, %v", it.Key(), item.Value, err)
		}
		if n := db.counts.documentReads.Load(); n != last {
			rounds, last = rounds+1, n
		}
	}
	if last != 500 || rounds > 12 {
		t.Errorf("%d documents read in %d rounds", last, rounds)
	}
	// A document that cannot be read does not end the iterator.
	broken := errors.New("broken")
	fs.SetHook(func(op memfs.Op) error {
		if op.Kind == vfs.OpReadAt {
			return broken
		}
		return nil
	})
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if _, err := it.Item(); !errors.Is(err, broken) {
			t.Fatalf("%s: %v", it.Key(), err)
		}
		n++
	}
	fs.SetHook(nil)
	if n != 500 || it.Error() != nil {
		t.Errorf("%d documents, %v", n, it.Error())
	}
}

// TestIteratorExpiry: a document that expires goes, also one looked at ahead.
func TestIteratorExpiry(t *testing.T) {
	now := time.Unix(1000, 0)
	o := testOptions(memfs.New())
	o.Now = func() time.Time { return now }
	db := mustOpen(t, "data", o)
	defer db.Close()
	for i, expiry := range []uint32{0, 1010, 1005, 999, 0} {
		if _, err := db.Set(fmt.Appendf(nil, "k%d", i), nil, Meta{Expiry: expiry}); err != nil {
			t.Fatal(err)
		}
	}
	it, err := db.NewIter(nil, nil, IterOptions{})
	it = mustIter(t, it, err)
	if got := keysOf(t, it); !slices.Equal(got, []string{"k0=", "k1=", "k2=", "k4="}) {
		t.Error(got)
	}
	it.First()
	now = time.Unix(1005, 0)
	it.Next()
	if got := rest(t, it, true); !slices.Equal(got, []string{"k1=", "k4="}) {
		t.Error(got)
	}
}

// TestIteratorsBesideWriters: batches are seen whole or not at all, in order,
// while memtables are filled, rotated and cleared, and the store is closed.
func TestIteratorsBesideWriters(t *testing.T) {
	for _, kvstores := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d kvstores", kvstores), func(t *testing.T) {
			o := testOptions(memfs.New())
			o.NonDurable, o.KVStores, o.WriteCache = true, kvstores, 16*mib
			db := mustOpen(t, "data", o)
			db.tableBytesMax = 64 * kib
			rounds := 300
			var writers, wg sync.WaitGroup
			for w := range 2 {
				writers.Go(func() {
					var b Batch
					for i := range rounds {
						b.Reset()
						for j := range 8 {
							b.Set(fmt.Appendf(nil, "%d-%d", j, w), fmt.Appendf(nil, "%0300d", i), Meta{})
						}
						if _, err := db.Apply(&b, WriteOptions{}); err != nil {
							t.Error(err)
							return
						}
						if w == 0 && i%100 == 99 {
							if _, err := db.Clear(time.Time{}); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			closed := make(chan struct{})
			for r := range 2 {
				wg.Go(func() {
					for {
						select {
						case <-closed:
							return
						default:
						}
						if err := walkBatches(db, r == 0); err != nil {
							if !errors.Is(err, ErrClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
			}
			writers.Wait()
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			close(closed)
			wg.Wait()
		})
	}
}

// walkBatches walks over the store once and wants the eight keys of each writer
// to be of one batch.
func walkBatches(db *DB, fresh bool) error {
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		return err
	}
	defer it.Close()
	if fresh {
		it.viewAge = 0
	}
	last, values, n := "", map[byte]string{}, 0
	for ok := it.First(); ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil {
			return err
		}
		key := string(item.Key)
		if key <= last {
			return fmt.Errorf("%q after %q", key, last)
		}
		last = key
		n++
		if v, seen := values[key[2]]; seen && v != string(item.Value) {
			return fmt.Errorf("%q is of another batch than the keys before", key)
		}
		values[key[2]] = string(item.Value)
	}
	if it.Error() == nil && n != 8*len(values) {
		return fmt.Errorf("%d keys of %d writers", n, len(values))
	}
	return it.Error()
}
