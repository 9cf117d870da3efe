package lsm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// The primes of xxhash64.
const (
	xxPrime1 = 0x9E3779B185EBCA87
	xxPrime2 = 0xC2B2AE3D27D4EB4F
	xxPrime4 = 0x85EBCA77C2B2AE63
	xxPrime5 = 0x27D4EB2F165667C5
)

// sameHash returns n keys of 16 bytes with one xxhash64 between them. Such keys
// are hashed in two steps of 8 bytes, each of which can be undone:
//
//	h = rotate(h XOR rotate(lane*P2, 31)*P1, 27)*P1 + P4
func sameHash(t *testing.T, n int) (keys []string) {
	t.Helper()
	mix := func(lane uint64) uint64 {
		lane *= xxPrime2
		return bits.RotateLeft64(lane, 31) * xxPrime1
	}
	inverse := func(odd uint64) uint64 { // modulo 2^64
		x := odd
		for range 5 {
			x *= 2 - odd*x
		}
		return x
	}
	p1, p2 := uint64(xxPrime1), uint64(xxPrime2)
	seed := uint64(xxPrime5)
	const between = 12345 // h before its last rotation, of all of them
	for i := range n {
		first := uint64(1000 + i)
		h := bits.RotateLeft64((seed+16)^mix(first), 27)*p1 + xxPrime4
		second := bits.RotateLeft64((h^between)*inverse(p1), -31) * inverse(p2)
		keys = append(keys, string(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, first), second)))
		if xxhash.Sum64String(keys[i]) != xxhash.Sum64String(keys[0]) {
			t.Fatal("the keys do not collide")
		}
	}
	return keys
}

// probing asks whether a document has been replaced, as a collection that begins
// now would.
func probing(db *DB, key string, seqno Seqno) bool {
	v := db.pin()
	defer v.release()
	var p prober
	p.init(db, v.version, db.horizon())
	defer p.end()
	return p.replaced(&wal.Record{Key: []byte(key), Seqno: seqno})
}

// TestR05_OnlyANewerVersionOfExactlyThisKeyCounts: wherever the other version is,
// and whatever it is. The keys have one hash, so that nothing but the key tells
// them apart; some are a prefix of others.
func TestR05_OnlyANewerVersionOfExactlyThisKeyCounts(t *testing.T) {
	same := sameHash(t, 3)
	keys := append(same, "k", "k\x00", "k\x00\x00", strings.Repeat("k", KeyBytesMax), strings.Repeat("k", KeyBytesMax-1))
	value := strings.Repeat("v", 300)
	for _, where := range []string{"memtable", "sealed memtable", "table", "older table"} {
		for _, kind := range []string{"document", "small", "tombstone"} {
			t.Run(where+"/"+kind, func(t *testing.T) {
				db := mustOpen(t, "data", gcOptions(memfs.New()))
				defer db.Close()
				set(t, db, "first", "")
				mustFlush(t, db) // or tombstones would go with their first flush
				for _, key := range keys {
					old := map[string]Seqno{}
					for _, k := range keys {
						old[k] = set(t, db, k, value)
					}
					switch kind {
					case "document":
						set(t, db, key, value+"new")
					case "small":
						set(t, db, key, "new")
					default:
						del(t, db, key)
					}
					switch where {
					case "sealed memtable":
						j := &flushJob{db: db}
						if err := j.seal([]int{0}); err != nil {
							t.Fatal(err)
						}
						defer j.end()
					case "table":
						mustFlush(t, db)
					case "older table":
						mustFlush(t, db)
						set(t, db, "a", "")
						set(t, db, "z", "")
						mustFlush(t, db)
					}
					for _, k := range keys {
						if got := probing(db, k, old[k]); got != (k == key) {
							t.Errorf("%.20q is replaced: %v, but it was %.20q that was written again", k, got, key)
						}
					}
				}
			})
		}
	}
}

// TestR05_AVersionIsNotReplacedByItself, nor by an older one.
func TestR05_AVersionIsNotReplacedByItself(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	set(t, db, "k", "older")
	last := set(t, db, "k", "newest")
	for _, flushed := range []bool{false, true} {
		if flushed {
			mustFlush(t, db)
		}
		if probing(db, "k", last) || !probing(db, "k", last-1) {
			t.Errorf("flushed %v: the newest version counts as replaced, or the one before does not", flushed)
		}
	}
}

// TestR05_VersionsAboveTheHorizonDoNotCount: a snapshot may still need the one
// before, and so may everybody after a power cut that takes the newer one back.
func TestR05_VersionsAboveTheHorizonDoNotCount(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		t.Run(fmt.Sprintf("flushed=%v", flushed), func(t *testing.T) {
			db := mustOpen(t, "data", gcOptions(memfs.New()))
			defer db.Close()
			old := set(t, db, "k", "1")
			snap, err := db.NewSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			set(t, db, "k", "2")
			if flushed {
				mustFlush(t, db)
			}
			if probing(db, "k", old) {
				t.Error("what a snapshot sees counts as replaced")
			}
			snap.Close()
			if !probing(db, "k", old) {
				t.Error("what nobody sees any more does not count as replaced")
			}
		})
	}
	t.Run("not durable", func(t *testing.T) {
		fs := memfs.New()
		o := gcOptions(fs)
		o.NonDurable = true
		db := mustOpen(t, "data", o)
		old := set(t, db, "k", "1")
		if err := db.Sync(old); err != nil {
			t.Fatal(err)
		}
		release := holdWrites(fs)
		last := set(t, db, "k", "2")
		want(t, db, "k", "2")
		if probing(db, "k", old) {
			t.Error("a version that is not durable replaces one that is")
		}
		release()
		if err := db.Sync(last); err != nil {
			t.Fatal(err)
		}
		if !probing(db, "k", old) {
			t.Error("replaced by what is durable, and does not count")
		}
		db.Close()
	})
}

// TestR05_WhatMemoryDoesNotShowIsAlive: tables that there is no room for, that
// cannot be read, or that are in the last level, say nothing.
func TestR05_WhatMemoryDoesNotShowIsAlive(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	db := mustOpen(t, "data", o)
	old := set(t, db, "k", "1")
	set(t, db, "k", "2")
	mustFlush(t, db)
	if !probing(db, "k", old) || db.memory.probe.Used() == 0 {
		t.Fatal("a table in memory does not show the newer version")
	}
	name := db.tableName(db.edits.log.State().Tables[0].Number)
	db.Close()

	t.Run("no room", func(t *testing.T) {
		db := mustOpen(t, "data", o)
		defer db.Close()
		db.memory.probe = offheap.NewBudget(100)
		if probing(db, "k", old) || db.memory.probe.Used() != 0 {
			t.Error("a table that is not in memory was asked")
		}
	})
	t.Run("last level", func(t *testing.T) {
		p := o
		p.FS = fs.CrashCopy(0, memfs.DropAll)
		db := mustOpen(t, "data", p)
		defer db.Close()
		mergeAll(t, db)
		if st := db.edits.log.State(); len(st.Tables) != 1 || st.Tables[0].Level != 1 {
			t.Fatalf("%+v", st.Tables)
		}
		if probing(db, "k", old) || db.memory.probe.Used() != 0 {
			t.Error("the last level was loaded to be asked")
		}
	})
	t.Run("damaged", func(t *testing.T) {
		db := mustOpen(t, "data", o)
		defer db.Close()
		damage(t, fs, name, 10) // its only data block
		if probing(db, "k", old) {
			t.Error("a damaged table was believed")
		}
	})
}

// TestR05_ACollectionKeepsWhatMemoryDoesNotShow: no document of two keys with one
// hash, under a snapshot or not in memory, is lost by a collection.
func TestR05_ACollectionKeepsWhatMemoryDoesNotShow(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	same := sameHash(t, 2)
	value := separated(t, db, same[0], same[1], "seen", "replaced")
	once, _ := collectable(db)
	set(t, db, same[1], value+"new")
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	set(t, db, "seen", "new")
	if err := collectByHand(db, once, nil); err != nil {
		t.Fatal(err)
	}
	want(t, db, same[0], value)
	want(t, db, same[1], value+"new")
	want(t, db, "seen", "new")
	if it, err := snap.Get(nil, []byte("seen")); err != nil || string(it.Value) != value {
		t.Errorf("a snapshot sees %d bytes, %v", len(it.Value), err)
	}
	if s := db.Stats(); s.Collections != 1 || s.GCDropped != 1 || s.ProbesReplaced != 1 {
		t.Errorf("%d documents dropped, %d known by the probe, want the one that was written again", s.GCDropped, s.ProbesReplaced)
	}
	if err := checkStore(db); err != nil {
		t.Error(err)
	}
}
