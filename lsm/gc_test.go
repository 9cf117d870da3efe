package lsm

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// TestGCKeepsTheStore overwrites large documents many times over, with merges
// and collections under way, and compares everything with a map; then space is
// bounded.
func TestGCKeepsTheStore(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.NonDurable = true
	o.WriteCache = mib
	o.KVStores, o.VBuckets = 2, 4
	o.rangeBytesMin, o.tableBytesMin, o.TableBytes = 64*kib, 8*kib, 64*kib
	db := mustOpen(t, "data", o)
	rnd := rand.New(rand.NewSource(1))
	truth := map[string]string{}
	filler := strings.Repeat("v", 2000)
	check := func() {
		t.Helper()
		for i := range 3000 {
			key := fmt.Sprintf("key%05d", i)
			it, err := db.Get(nil, []byte(key))
			if v, ok := truth[key]; ok != (err == nil) || ok && string(it.Value) != v || err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatalf("%s: %d bytes, %v; want %d bytes", key, len(it.Value), err, len(v))
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
				t.Fatalf("iterator: %s, %d bytes, %v", x.Key, len(x.Value), err)
			}
			n++
		}
		if it.Error() != nil || n != len(truth) {
			t.Fatalf("iterator: %d documents, %v; want %d", n, it.Error(), len(truth))
		}
	}
	for round := range 6 {
		for range 5000 {
			key := fmt.Sprintf("key%05d", rnd.Intn(3000))
			if rnd.Intn(20) == 0 {
				if _, err := db.Delete([]byte(key)); err != nil {
					t.Fatal(err)
				}
				delete(truth, key)
				continue
			}
			value := filler[:300+rnd.Intn(1700)]
			set(t, db, key, value)
			truth[key] = value
		}
		check()
		if round == 3 {
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = mustOpen(t, "data", o)
			check()
		}
	}
	mustFlush(t, db)
	until(t, "background work to end", func() bool {
		s := db.Stats()
		return s.CompactionsNow == 0 && !s.CollectingNow && s.FlushesNow == 0
	})
	check()
	s := db.Stats()
	live := int64(0)
	for k, v := range truth {
		live += int64(len(k) + len(v))
	}
	t.Logf("%d collections (%s, failed %d %s), kept %d, dropped %d, probes %d of %d, allocated %d, live %d (%d), written %+v, forwards %d",
		s.Collections, s.CollectionReason, s.CollectionsFailed, s.CollectionError, s.GCKept, s.GCDropped, s.ProbesReplaced, s.Probes, s.Allocated, s.Live, live, s.Written, s.Forwards)
	if s.Collections == 0 || s.CollectionsFailed != 0 || s.CompactionsFailed != 0 {
		t.Errorf("%d collections, failed %d (%s), merges failed %d (%s)", s.Collections, s.CollectionsFailed, s.CollectionError, s.CompactionsFailed, s.CompactionError)
	}
	verified(t, db)
	db.Close()
	db = mustOpen(t, "data", o)
	check()
	db.Close()
}

// TestCompactGivesSpaceBack deletes most of a store and compacts it.
func TestCompactGivesSpaceBack(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.NonDurable = true
	db := mustOpen(t, "data", o)
	defer db.Close()
	value := strings.Repeat("v", 2000)
	for i := range 5000 {
		set(t, db, fmt.Sprintf("key%d", i), value)
	}
	mustFlush(t, db)
	for i := range 5000 {
		if i%10 != 0 {
			if _, err := db.Delete(fmt.Appendf(nil, "key%d", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		w := ""
		if i%10 == 0 {
			w = value
		}
		want(t, db, fmt.Sprintf("key%d", i), w)
	}
	s := db.Stats()
	verified(t, db)
	if s.TableEntries != 500 || s.LogBytes > 500*2000*3/2+4*mib || s.GarbageKnown > 100 {
		t.Errorf("%d entries, %d bytes of log, %d dead documents: %+v", s.TableEntries, s.LogBytes, s.GarbageKnown, s)
	}
}

// verified demands that the store agrees with itself.
func verified(t testing.TB, db *DB) VerifyReport {
	t.Helper()
	r, err := db.Verify(context.Background())
	if err != nil {
		t.Errorf("verify: %v", err)
	}
	return r
}
