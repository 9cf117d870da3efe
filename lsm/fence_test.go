package lsm

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
)

// stopFenceClock stops the clock of fences and returns what moves it on.
func stopFenceClock(db *DB) (pass func(time.Duration)) {
	s := &db.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.now = func() time.Time { return now }
	return func(d time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		now = now.Add(d)
	}
}

// pauses returns the ends of the pauses that hold up all merges, and all
// collections; zero for none.
func (db *DB) pauses() (merges, collections time.Time) {
	db.sched.mu.Lock()
	defer db.sched.mu.Unlock()
	return db.sched.merges.pause.until, db.sched.collections.pause.until
}

// logged counts the lines of a log with some text.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logged) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func TestFencesDoubleUpToABound(t *testing.T) {
	f := fences{}
	defer f.end()
	now := time.Unix(1000, 0)
	wake := func() {}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600} {
		want *= time.Second
		if known := f.put(7, now, wake); known != (i > 0) {
			t.Errorf("failure %d: known=%v", i+1, known)
		}
		if !f.has(7, now.Add(want-1)) || f.has(7, now.Add(want)) || f.has(8, now) {
			t.Errorf("failure %d: want a pause of %v, not %v", i+1, want, f[7].pause)
		}
		if f.lasts(7) != (i >= 3) {
			t.Errorf("failure %d: lasts=%v", i+1, f.lasts(7))
		}
		now = now.Add(want)
	}
	f.lift(7)
	if f.put(7, now, wake) || f.has(7, now.Add(time.Second)) {
		t.Error("a fault that passed is remembered")
	}
}

// TestR21_AnUnreadableVictimIsLeftAlone: the device does not give one segment.
// That one waits, longer each time; all others are collected at once.
func TestR21_AnUnreadableVictimIsLeftAlone(t *testing.T) {
	faulty := faultfs.Wrap(memfs.New())
	var log logged
	o := gcOptions(nil)
	o.FS, o.noGC, o.Logf = faulty, true, log.logf
	db := mustOpen(t, "data", o)
	keys, value := garbage(t, db)
	mustCompact(t, db)
	db.Close()
	o.noGC = false
	db = mustOpen(t, "data", o)
	defer db.Close()
	pass := stopFenceClock(db)
	v := db.pin()
	job, ok := compaction.PickSegments(db.gcPicture(v))
	v.release()
	if !ok || len(job.Once) < 3 {
		t.Fatalf("the test wants several victims of one collection, not %v", job.Once)
	}
	st := db.edits.log.State()
	bad, _ := st.Segment(job.Once[1])
	name := segmentName(bad)
	faulty.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: name, Fault: faultfs.EIO})
	fails := func(n int64) {
		t.Helper()
		if err := db.Compact(); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), name) {
			t.Errorf("collection of a segment that cannot be read: %v", err)
		}
		if s := db.Stats(); s.CollectionsFailed != n || s.GCFenced != 1 || s.CompactionFenced != 0 {
			t.Errorf("%d collections failed, %d segments and %d tables fenced; want %d, 1, 0", s.CollectionsFailed, s.GCFenced, s.CompactionFenced, n)
		}
		if _, at := db.pauses(); !at.IsZero() {
			t.Error("one segment that cannot be read holds up all collections")
		}
	}
	fails(1)
	mustCompact(t, db)
	st = db.edits.log.State()
	for _, id := range job.Once {
		if _, there := st.Segment(id); there != (id == bad.ID) {
			t.Errorf("segment %06d is there: %v; %06d cannot be read", id, there, bad.ID)
		}
	}
	pass(fenceMin)
	fails(2)
	pass(fenceMin)
	mustCompact(t, db) // twice as long this time
	if n := log.count(name); n != 1 {
		t.Errorf("%d lines of the log are about %s", n, name)
	}
	faulty.Clear()
	pass(fenceMin)
	mustCompact(t, db)
	st = db.edits.log.State()
	if _, there := st.Segment(bad.ID); there || db.Stats().GCFenced != 0 {
		t.Errorf("segment %06d is there: %v; %d segments fenced; it can be read again", bad.ID, there, db.Stats().GCFenced)
	}
	for _, key := range keys {
		want(t, db, key, value)
	}
	if err := checkCollected(db); err != nil {
		t.Error(err)
	}
}

// TestR21_AnUnreadableTableIsLeftAlone: the same for an input of a merge. Its
// range waits, other ranges are merged.
func TestR21_AnUnreadableTableIsLeftAlone(t *testing.T) {
	faulty := faultfs.Wrap(memfs.New())
	var log logged
	o := gcOptions(nil)
	o.FS, o.Logf = faulty, log.logf
	o.VBuckets, o.KVStores = 2, 2
	db := mustOpen(t, "data", o)
	defer db.Close()
	bad, good := keyOf(db, 0, 0), keyOf(db, 1, 0)
	for round := range 3 {
		set(t, db, bad, fmt.Sprint(round))
		set(t, db, good, fmt.Sprint(round))
		mustFlush(t, db)
	}
	pass := stopFenceClock(db)
	st := db.edits.log.State()
	name := db.tableName(st.LevelTables(0, 0)[1].Number)
	faulty.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: name, Fault: faultfs.EIO})
	fails := func(n int64) {
		t.Helper()
		if err := db.Compact(); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), name) {
			t.Errorf("merge of a table that cannot be read: %v", err)
		}
		if s := db.Stats(); s.CompactionsFailed != n || s.CompactionFenced != 1 || s.GCFenced != 0 {
			t.Errorf("%d merges failed, %d tables and %d segments fenced; want %d, 1, 0", s.CompactionsFailed, s.CompactionFenced, s.GCFenced, n)
		}
		if at, _ := db.pauses(); !at.IsZero() {
			t.Error("one table that cannot be read holds up all merges")
		}
	}
	fails(1)
	mustCompact(t, db)
	st = db.edits.log.State()
	if n, m := len(st.LevelTables(0, 0)), len(st.LevelTables(1, 0)); n != 3 || m != 0 {
		t.Errorf("%d and %d tables above the last level; want 3, whose range waits, and 0", n, m)
	}
	pass(fenceMin)
	fails(2)
	pass(fenceMin)
	mustCompact(t, db)
	if n := log.count(name); n != 1 {
		t.Errorf("%d lines of the log are about %s", n, name)
	}
	faulty.Clear()
	pass(fenceMin)
	mustCompact(t, db)
	st = db.edits.log.State()
	if n := len(st.LevelTables(0, 0)); n != 0 || db.Stats().CompactionFenced != 0 {
		t.Errorf("%d tables above the last level, %d fenced; they can be read again", n, db.Stats().CompactionFenced)
	}
	want(t, db, bad, "2")
	want(t, db, good, "2")
}

// TestR21_WhatIsOfNoFileFencesNone: a full disk, an output, or a process without
// descriptors says nothing about inputs. Jobs of that kind pause, and all of it
// is merged and collected afterwards.
func TestR21_WhatIsOfNoFileFencesNone(t *testing.T) {
	for _, tc := range []struct {
		name string
		rule faultfs.Rule
		hook func(db *DB, before uint64) func(vfs.Op) error
		gc   bool
	}{
		{name: "no space for a table", rule: faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "*.sst", Fault: faultfs.ENOSPC}},
		{name: "a table cannot be written", rule: faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "*.sst", Fault: faultfs.EIO}},
		{name: "a new table cannot be read", hook: newTables(syscall.EIO)},
		{name: "no descriptors for tables", hook: func(*DB, uint64) func(vfs.Op) error {
			return func(op vfs.Op) error {
				if op.Kind == vfs.OpOpen && strings.HasSuffix(op.Name, ".sst") {
					return &fs.PathError{Op: "open", Path: op.Name, Err: syscall.EMFILE}
				}
				return nil
			}
		}},
		{name: "no space for a segment", gc: true, rule: faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpAllocate}, Name: "*.gc.seg", Fault: faultfs.ENOSPC}},
		{name: "a segment cannot be written", gc: true, rule: faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "*.gc.seg", Fault: faultfs.EIO}},
		{name: "a new segment is not synced", gc: true, rule: faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync}, Name: "*.gc.seg", Fault: faultfs.SyncDrop}},
		{name: "no descriptors for segments", gc: true, hook: func(*DB, uint64) func(vfs.Op) error {
			return func(op vfs.Op) error {
				if op.Kind == vfs.OpOpen && strings.HasSuffix(op.Name, ".seg") {
					return &fs.PathError{Op: "open", Path: op.Name, Err: syscall.EMFILE}
				}
				return nil
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			faulty := faultfs.Wrap(memfs.New())
			o := gcOptions(nil)
			o.FS, o.noGC, o.OpenTables = faulty, true, 16
			db := mustOpen(t, "data", o)
			keys, value := garbage(t, db)
			mustCompact(t, db)
			if !tc.gc { // and something to merge
				for _, key := range keys[:10] {
					set(t, db, key, value)
				}
				mustFlush(t, db)
			}
			db.Close() // tables and segments are open no more
			o.noGC = !tc.gc
			db = mustOpen(t, "data", o)
			defer db.Close()
			stopFenceClock(db)
			if tc.hook != nil {
				faulty.SetHook(tc.hook(db, db.edits.log.State().NextFileNumber))
			} else {
				faulty.Add(tc.rule)
			}
			if err := db.Compact(); err == nil {
				t.Fatal("the fault hits nothing")
			}
			s := db.Stats()
			if s.CompactionFenced != 0 || s.GCFenced != 0 {
				t.Errorf("%d tables and %d segments are fenced", s.CompactionFenced, s.GCFenced)
			}
			if m, c := db.pauses(); m.IsZero() == !tc.gc || c.IsZero() == tc.gc {
				t.Errorf("pauses until %v and %v", m, c)
			}
			faulty.SetHook(nil)
			faulty.Clear()
			until(t, "the disk works again", func() bool { return db.Compact() == nil })
			for _, key := range keys {
				want(t, db, key, value)
			}
		})
	}
}

// newTables fails reads of the tables that are made from now on.
func newTables(err error) func(db *DB, before uint64) func(vfs.Op) error {
	return func(db *DB, before uint64) func(vfs.Op) error {
		return func(op vfs.Op) error {
			if op.Kind == vfs.OpReadAt && strings.HasSuffix(op.Name, ".sst") && op.Name >= db.tableName(before) {
				return &fs.PathError{Op: "read", Path: op.Name, Err: err}
			}
			return nil
		}
	}
}

// TestR21_AnUnreadableIndexHoldsUpNoMerge: where documents of a collected segment
// are now is in the index of an output. A merge waits for it a few times, so that
// what it drops counts as dead, and then goes on without: old addresses stay,
// and lead to their documents when the index can be read again.
func TestR21_AnUnreadableIndexHoldsUpNoMerge(t *testing.T) {
	faulty := faultfs.Wrap(memfs.New())
	var log logged
	o := gcOptions(nil)
	o.FS, o.Logf = faulty, log.logf
	db := mustOpen(t, "data", o)
	keys, value := garbage(t, db)
	mustCompact(t, db)
	st := db.edits.log.State()
	outputs := 0
	for _, s := range st.Segments {
		if s.Kind == manifest.SegmentGC {
			outputs++
		}
	}
	if outputs == 0 || len(st.Forwards) == 0 {
		t.Fatalf("%d outputs, %d forwards: the test wants documents that were moved", outputs, len(st.Forwards))
	}
	set(t, db, keys[0], "newer")
	mustFlush(t, db)
	db.Close()
	db = mustOpen(t, "data", o)
	defer db.Close()
	pass := stopFenceClock(db)
	faulty.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: "*.gc.seg", Fault: faultfs.EIO})
	for _, key := range keys[1:10] {
		del(t, db, key)
	}
	mustFlush(t, db)
	failed := 0
	for ; failed < 10 && db.Stats().Compactions == 0; failed++ {
		if err := db.Compact(); err != nil && !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		pass(fenceMin << failed)
	}
	s := db.Stats()
	if s.Compactions == 0 || failed < 2 || s.GCFenced == 0 {
		t.Errorf("%d merges after %d tries, %d segments fenced", s.Compactions, failed, s.GCFenced)
	}
	if n := log.count("index of segment"); n != s.GCFenced {
		t.Errorf("%d lines of the log are about %d indexes", n, s.GCFenced)
	}
	want(t, db, keys[0], "newer")
	faulty.Clear()
	pass(fenceMax)
	for _, key := range keys[10:] {
		want(t, db, key, value)
	}
	want(t, db, keys[1], "")
	mustCompact(t, db)
	if n := db.Stats().GCFenced; n != 0 {
		t.Errorf("%d segments are fenced, all can be read", n)
	}
}

// TestBlamedIsTheFileOfTheFault: what a job is told decides what it leaves alone.
func TestBlamedIsTheFileOfTheFault(t *testing.T) {
	db := &DB{dir: "data"}
	st := &manifest.State{Segments: []manifest.Segment{{ID: 4, Kind: manifest.SegmentLog}, {ID: 5, Kind: manifest.SegmentGC}}}
	c := &compactJob{db: db, job: compaction.Job{Inputs: [][]*manifest.Table{{{Number: 7}}, {{Number: 8}}}}}
	g := &gcJob{db: db, from: &version{state: st}, job: compaction.GCJob{Once: []entry.SegmentID{4}, Again: []entry.SegmentID{5}}}
	for _, tc := range []struct {
		name     string
		err      error
		tables   []uint64
		segments []uint64
	}{
		{name: "nothing"},
		{name: "an input cannot be read", err: vfs.Unreadable(db.tableName(8), syscall.EIO), tables: []uint64{8}},
		{name: "an input is damaged", err: fmt.Errorf("merge: %w", &sstable.CorruptError{File: db.tableName(7)}), tables: []uint64{7}},
		{name: "an output is damaged", err: &sstable.CorruptError{File: db.tableName(9)}},
		{name: "an output cannot be read", err: vfs.Unreadable(db.tableName(9), syscall.EIO)},
		{name: "versions out of order", err: sstable.ErrOrder, tables: []uint64{7, 8}},
		{name: "a victim cannot be read", err: vfs.Unreadable(segmentName(st.Segments[1]), syscall.EIO), tables: []uint64{7, 8}, segments: []uint64{5}},
		{name: "a file that nobody names is damaged", err: &sstable.CorruptError{}, tables: []uint64{7, 8}, segments: []uint64{4, 5}},
		{name: "no space", err: vfs.ErrNoSpace},
		{name: "no descriptors", err: vfs.Unreadable(db.tableName(8), syscall.EMFILE)},
	} {
		if got := c.unreadable(tc.err); !slices.Equal(got, tc.tables) {
			t.Errorf("%s: a merge blames tables %v, want %v", tc.name, got, tc.tables)
		}
		if got := g.unreadable(tc.err); !slices.Equal(got, tc.segments) {
			t.Errorf("%s: a collection blames segments %v, want %v", tc.name, got, tc.segments)
		}
	}
}

// TestR21_EveryReadOfAnInputNamesIt: whichever call on one input fails, no other
// table is left alone for it, and merges do not pause.
func TestR21_EveryReadOfAnInputNamesIt(t *testing.T) {
	base := memfs.New()
	o := gcOptions(base)
	db := mustOpen(t, "data", o)
	for round := range 3 {
		for i := range 200 {
			set(t, db, fmt.Sprintf("key%03d", i), strings.Repeat(fmt.Sprint(round), 200))
		}
		mustFlush(t, db)
	}
	st := db.edits.log.State()
	bad := st.LevelTables(0, 0)[1].Number
	name := db.tableName(bad)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := 1; ; n++ {
		faulty := faultfs.Wrap(base.CrashCopy(1, memfs.DropAll))
		o.FS = faulty
		db := mustOpen(t, "data", o)
		stopFenceClock(db)
		faulty.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpOpen, vfs.OpSize, vfs.OpReadAt}, Name: name, From: n, Once: true, Fault: faultfs.EIO})
		err := db.Compact() // nil where what failed was read for advice only
		db.sched.mu.Lock()
		for number := range db.sched.merges.fenced {
			if number != bad {
				t.Errorf("call %d, %v: table %d is left alone, too", n, faulty.FirstInjected(), number)
			}
		}
		if err != nil && len(db.sched.merges.fenced) != 1 || !db.sched.merges.pause.until.IsZero() {
			t.Errorf("call %d, %v: %d tables are left alone, all merges until %v", n, faulty.FirstInjected(), len(db.sched.merges.fenced), db.sched.merges.pause.until)
		}
		db.sched.mu.Unlock()
		if err != nil {
			failed++
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), name) {
				t.Errorf("call %d: %v", n, err)
			}
		}
		want(t, db, "key007", strings.Repeat("2", 200))
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		if faulty.Injected() == 0 {
			if err != nil || failed == 0 {
				t.Errorf("%d calls, %d of them failed a merge, %v", n, failed, err)
			}
			return
		}
	}
}
