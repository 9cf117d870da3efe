package lsm

import (
	"errors"
	"fmt"
	"math/rand"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// TestCompactionKeepsTheStore overwrites and deletes random keys through many
// flushes, with merges under way, and compares everything with a map.
func TestCompactionKeepsTheStore(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = mib
	o.KVStores, o.VBuckets = 2, 4
	o.rangeBytesMin, o.tableBytesMin, o.TableBytes = 64*kib, 8*kib, 64*kib
	db := mustOpen(t, "data", o)
	rnd := rand.New(rand.NewSource(1))
	truth := map[string]string{}
	for i := range 40_000 {
		key := fmt.Sprintf("key%05d", rnd.Intn(3000))
		switch rnd.Intn(10) {
		case 0:
			if _, err := db.Delete([]byte(key)); err != nil {
				t.Fatal(err)
			}
			delete(truth, key)
		default:
			value := fmt.Sprint(i, string(make([]byte, []int{0, 10, 300}[rnd.Intn(3)])))
			set(t, db, key, value)
			truth[key] = value
		}
		if i%1000 == 999 {
			mustFlush(t, db)
		}
	}
	until(t, "merges to end", func() bool { return db.Stats().CompactionsNow == 0 })
	check := func() {
		t.Helper()
		for i := range 3000 {
			key := fmt.Sprintf("key%05d", i)
			it, err := db.Get(nil, []byte(key))
			if v, ok := truth[key]; ok != (err == nil) || ok && string(it.Value) != v || err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatalf("%s: %q, %v; want %q", key, it.Value, err, v)
			}
		}
		it, err := db.NewIter(nil, nil, IterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			x, err := it.Item()
			if err != nil || truth[string(x.Key)] != string(x.Value) {
				t.Fatalf("iterator: %s=%q, %v; want %q", x.Key, x.Value, err, truth[string(x.Key)])
			}
			n++
		}
		if it.Error() != nil || n != len(truth) {
			t.Fatalf("iterator: %d documents, %v; want %d", n, it.Error(), len(truth))
		}
	}
	check()
	s := db.Stats()
	if s.Compactions == 0 || s.CompactionsFailed > 0 || s.RunsMax > 13 {
		t.Errorf("%d merges, %d failed (%s), %d runs", s.Compactions, s.CompactionsFailed, s.CompactionError, s.RunsMax)
	}
	t.Logf("%d merges, %d moves, %d tables, %d entries of %d, %d runs, written %+v", s.Compactions, s.CompactionMoves, s.Tables, s.TableEntries, len(truth), s.RunsMax, s.Written)
	mustCompact(t, db) // no collection must be at work on what is looked at
	deadSetsHold(t, db)
	db.Close()
	db = mustOpen(t, "data", o)
	check()
	db.Close()
}
