package lsm

import (
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// bytesOnDisk is the size of all files of tables and of the log.
func bytesOnDisk(t *testing.T, fs *memfs.FS) (n int64) {
	t.Helper()
	for _, dir := range []string{TablesDir, wal.SegmentsDir} {
		names, err := fs.List(path.Join("data", dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			size, err := fs.Size(path.Join("data", dir, name))
			if err != nil {
				continue // it went meanwhile
			}
			n += size
		}
	}
	return n
}

// TestR23_C12_AnIdleStoreGivesSpaceBack: what was deleted, or has expired, is
// reclaimed when nobody writes any more, whatever is left of it. Of a store with
// nothing in it there is the segment that is written to, the next one, and the one
// before when replay starts at its end.
func TestR23_C12_AnIdleStoreGivesSpaceBack(t *testing.T) {
	const documents = 1500
	large := strings.Repeat("v", 2000)
	for _, c := range []struct {
		name    string
		goes    int // of ten documents
		expires bool
	}{
		{"all deleted", 10, false}, {"most deleted", 9, false}, {"half deleted", 5, false}, {"some deleted", 1, false},
		{"all expired", 10, true}, {"most expired", 9, true}, {"some expired", 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := memfs.New()
			o := testOptions(fs)
			o.VBuckets, o.KVStores, o.NonDurable = 4, 2, true
			o.IdleFlush = 20 * time.Millisecond
			var clock atomic.Int64
			o.Now = func() time.Time { return clockStart.Add(time.Duration(clock.Load())) }
			db := mustOpen(t, "data", o)
			defer func() { db.Close() }()
			goes := func(i int) bool { return i%10 < c.goes }
			value := func(i int) string {
				if i%3 == 0 {
					return "small"
				}
				return large
			}
			live := int64(0)
			for i := range documents {
				var b Batch
				m := Meta{}
				if c.expires && goes(i) {
					m.Expiry = uint32(clockStart.Add(time.Minute).Unix())
				}
				key := fmt.Sprintf("key%05d", i)
				b.Set([]byte(key), []byte(value(i)), m)
				if _, err := db.Apply(&b, WriteOptions{}); err != nil {
					t.Fatal(err)
				}
				if !goes(i) {
					live += int64(len(key) + len(value(i)))
				}
			}
			mustFlush(t, db)
			full := bytesOnDisk(t, fs)
			if c.expires {
				clock.Store(int64(time.Hour))
			} else {
				for i := range documents {
					if goes(i) {
						del(t, db, fmt.Sprintf("key%05d", i))
					}
				}
			}
			// Nobody writes any more. The smallest table of a kvstore takes 12 KiB.
			fixed := 3*db.segmentBytes() + 2*12*kib
			most := fixed + live*3/2
			if c.goes > 1 && full < most+most/4 {
				t.Fatalf("%d bytes before, %d afterwards: the test wants more to win", full, most)
			}
			until(t, "space to be given back", func() bool {
				s := db.Stats()
				return s.Entries == 0 && s.Log.Pooled == 0 && bytesOnDisk(t, fs) <= most && s.TableEntries == documents/10*int64(10-c.goes)
			})
			if c.goes == 10 {
				until(t, "the last files to go", func() bool {
					st := db.edits.log.State()
					return len(st.Tables) == 0 && len(st.Segments) <= 3 && len(outputs(db)) == 0
				})
			}
			for i := range documents {
				w := value(i)
				if goes(i) {
					w = ""
				}
				want(t, db, fmt.Sprintf("key%05d", i), w)
			}
		})
	}
}

// expiring is a store with a clock that can be set, and two kvstores: what is
// merged is in the first one.
type expiring struct {
	t     *testing.T
	fs    *memfs.FS
	o     Options
	db    *DB
	clock atomic.Int64 // Unix seconds
}

func newExpiring(t *testing.T) *expiring {
	x := &expiring{t: t, fs: memfs.New()}
	x.clock.Store(1000)
	x.o = gcOptions(x.fs)
	x.o.VBuckets, x.o.KVStores = 2, 2
	x.o.Now = func() time.Time { return time.Unix(x.clock.Load(), 0) }
	x.db = mustOpen(t, "data", x.o)
	return x
}

func (x *expiring) set(key, value string, expiry uint32) Seqno {
	x.t.Helper()
	s, err := x.db.Set([]byte(key), []byte(value), Meta{Expiry: expiry})
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// restarts runs checks in the running store, after a power cut, and after a
// close.
func (x *expiring) restarts(checks func()) {
	x.t.Helper()
	checks()
	running, fs := x.db, x.fs
	x.o.FS = fs.CrashCopy(1, memfs.DropAll)
	x.db = mustOpen(x.t, "data", x.o)
	checks()
	x.db.Close()
	running.Close()
	x.o.FS = fs
	x.db = mustOpen(x.t, "data", x.o)
	checks()
}

// TestR24_AMergeThatExpiresMovesTheClock: a document expired, a merge dropped it
// for that, and the clock was set back. It stays away, and so does everything
// that expired no later; what it replaced does not come back, and no address
// leads to what was collected since.
func TestR24_AMergeThatExpiresMovesTheClock(t *testing.T) {
	for _, large := range []bool{false, true} {
		for _, bottom := range []bool{true, false} {
			t.Run(fmt.Sprintf("large=%v/bottom=%v", large, bottom), func(t *testing.T) {
				x := newExpiring(t)
				defer func() { x.db.Close() }()
				key, other := keyOf(x.db, 0, 0), keyOf(x.db, 1, 0)
				value := "small"
				if large {
					value = strings.Repeat("v", 3000)
				}
				x.set(key, value+"older", 0)
				mustFlush(t, x.db)
				mergeAll(t, x.db)
				x.set(key, value, 2000)
				x.set(other, value, 2000)
				x.set(keyOf(x.db, 1, 1), value, 2001)
				separated(t, x.db)
				want(t, x.db, key, value)
				want(t, x.db, other, value)

				x.clock.Store(2000)
				job := allOf(x.db)
				if !bottom { // only what is above the last level: an older version is below
					job.Inputs = job.Inputs[:len(job.Inputs)-1]
					job.OutLevel, job.OutTier, job.Bottom = 0, 1, false
					job.Bytes, job.Entries = 0, 0
					for _, run := range job.Inputs {
						for _, table := range run {
							job.Bytes, job.Entries = job.Bytes+table.FileBytes, job.Entries+table.Entries
						}
					}
				}
				if err := mergeByHand(x.db, job); err != nil {
					t.Fatal(err)
				}
				once, _ := collectable(x.db)
				if err := collectByHand(x.db, once, nil); err != nil {
					t.Fatal(err)
				}
				x.clock.Store(1500)
				x.restarts(func() {
					t.Helper()
					want(t, x.db, key, "")
					want(t, x.db, other, "")
					want(t, x.db, keyOf(x.db, 1, 1), value) // it never expired
					it, err := x.db.NewIter(nil, nil, IterOptions{})
					if err != nil {
						t.Fatal(err)
					}
					defer it.Close()
					for ok := it.First(); ok; ok = it.Next() {
						if k := string(it.Key()); k == key || k == other {
							t.Errorf("an iterator shows %s", k)
						}
					}
					if err := checkCollected(x.db); err != nil {
						t.Error(err)
					}
				})
				// What is written now expires by the same clock.
				x.set(key, "new", 1800)
				want(t, x.db, key, "")
				x.set(key, "new", 2100)
				want(t, x.db, key, "new")
			})
		}
	}
}

// TestR24_WhatDidNotDecideMovesNothing: a merge that drops nothing for its expiry
// leaves the clock alone, or a clock that was wrong for a minute would cost what
// nobody has dropped.
func TestR24_WhatDidNotDecideMovesNothing(t *testing.T) {
	x := newExpiring(t)
	defer func() { x.db.Close() }()
	key, other := keyOf(x.db, 0, 0), keyOf(x.db, 1, 0)
	x.set(key, "1", 0)
	mustFlush(t, x.db)
	x.set(key, "2", 9000)
	x.set(other, "1", 2000)
	mustFlush(t, x.db)
	x.clock.Store(5000)
	mergeAll(t, x.db)
	want(t, x.db, other, "")
	x.clock.Store(1500)
	x.restarts(func() {
		t.Helper()
		want(t, x.db, key, "2")
		want(t, x.db, other, "1")
	})
}
