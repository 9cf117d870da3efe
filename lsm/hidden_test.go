package lsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
)

// TestG9_HiddenGarbageIsLookedFor: documents are replaced, but what replaces them
// is less than a merge is worth by itself, so nobody knows that they are dead. The
// store is over its target: it merges, finds them, and collects. And it ends:
// where nothing is to be found, nothing is merged, although the target is missed.
func TestG9_HiddenGarbageIsLookedFor(t *testing.T) {
	o := testOptions(memfs.New())
	o.VBuckets, o.KVStores = 1, 1
	o.SpaceAmp, o.MergeShare, o.IdleFlush = 1.1, 0.5, time.Hour
	o.mergeFloor = -1
	db := mustOpen(t, "data", o)
	defer db.Close()
	value := strings.Repeat("v", 3000)
	for i := range 100 {
		set(t, db, fmt.Sprintf("key%02d", i), value)
	}
	mustFlush(t, db)
	until(t, "a last level", func() bool { return db.Stats().CompactionMoves == 1 })
	for i := range 40 {
		set(t, db, fmt.Sprintf("key%02d", i), value)
	}
	mustFlush(t, db)
	until(t, "merge and collection", func() bool {
		s := db.Stats()
		return s.Compactions == 1 && s.Collections > 0
	})
	for i := range 10 {
		set(t, db, fmt.Sprintf("key%02d", i), value)
	}
	mustFlush(t, db)
	looks := func() int64 {
		db.sched.mu.Lock()
		defer db.sched.mu.Unlock()
		return db.sched.looks
	}
	from := looks()
	until(t, "looks that find nothing to do", func() bool {
		db.sched.wake()
		return looks() >= from+20
	})
	if s := db.Stats(); s.Compactions != 1 || s.CollectionReason != "hidden" {
		t.Errorf("%d merges, a reason of %q; want 1 merge, and a target that cannot be reached", s.Compactions, s.CollectionReason)
	}
	for i := range 100 {
		want(t, db, fmt.Sprintf("key%02d", i), value)
	}
}

// TestR23_WhatASnapshotKeptIsReclaimed: versions that a merge left in the last level
// for a snapshot are garbage when that is closed, after a restart too, and although
// nothing lies above them.
func TestR23_WhatASnapshotKeptIsReclaimed(t *testing.T) {
	for _, leveled := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("leveled=%v/restart=%v", leveled, restart), func(t *testing.T) {
				o := gcOptions(memfs.New())
				o.Leveled = leveled
				db := mustOpen(t, "data", o)
				defer func() { db.Close() }()
				const n = 30
				value := func(round int) string { return strings.Repeat(fmt.Sprint(round), 3000) }
				put := func(round int) {
					for i := range n {
						set(t, db, fmt.Sprintf("key%02d", i), value(round))
					}
				}
				put(1)
				snap, err := db.NewSnapshot()
				if err != nil {
					t.Fatal(err)
				}
				put(2)
				mustCompact(t, db)
				if s := db.Stats(); s.TableEntries != 2*n || s.GarbageKnown != 0 {
					t.Fatalf("%d entries, %d documents known to be dead; the test wants both rounds kept", s.TableEntries, s.GarbageKnown)
				}
				if err := snap.Close(); err != nil {
					t.Fatal(err)
				}
				if restart {
					if err := db.Close(); err != nil {
						t.Fatal(err)
					}
					db = mustOpen(t, "data", o)
				}
				mustCompact(t, db)
				if s := db.Stats(); s.TableEntries != n || s.Compactions == 0 {
					t.Errorf("%d entries in tables, %d documents are live", s.TableEntries, n)
				}
				if err := checkCollected(db); err != nil {
					t.Error(err)
				}
				for i := range n {
					want(t, db, fmt.Sprintf("key%02d", i), value(2))
				}
			})
		}
	}
}
