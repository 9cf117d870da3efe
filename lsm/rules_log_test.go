package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

// The tests of this file and of rules_commit_test.go are named after the rules
// in docs/rules.md.

func set(t testing.TB, db *DB, key, value string) Seqno {
	t.Helper()
	s, err := db.Set([]byte(key), []byte(value), Meta{})
	if err != nil {
		t.Fatalf("set %s: %v", key, err)
	}
	return s
}

func want(t testing.TB, db *DB, key, value string) {
	t.Helper()
	it, err := db.Get(nil, []byte(key))
	if value == "" && errors.Is(err, ErrNotFound) {
		return
	}
	if err != nil || string(it.Value) != value {
		t.Fatalf("get %s: %q, %v; want %q", key, it.Value, err, value)
	}
}

// logFiles returns the segments on disk.
func logFiles(t testing.TB, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(path.Join(dir, wal.SegmentsDir))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// damage flips one byte.
func damage(t testing.TB, fs vfs.FS, name string, off int64) {
	t.Helper()
	f, err := fs.Open(name, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// dump is everything on a disk, to prove that a failed open changed nothing.
func dump(t testing.TB, fs vfs.FS, dirs ...string) string {
	t.Helper()
	var out strings.Builder
	for _, dir := range dirs {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			f, err := fs.Open(path.Join(dir, n), vfs.OpenOptions{})
			if err != nil {
				continue // a directory
			}
			size, _ := f.Size()
			b := make([]byte, size)
			f.ReadAt(b, 0)
			f.Close()
			fmt.Fprintf(&out, "%s %d %x\n", path.Join(dir, n), size, xxhash.Sum64(b))
		}
	}
	return out.String()
}

func TestR04_SeqnosJumpAndNothingIsAppendedAfterATornTail(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	last := set(t, db, "a", "1")
	before := logFiles(t, fs, "data")
	cut := fs.CrashCopy(1, memfs.DropAll)
	db.Close()

	o.FS = cut
	db = mustOpen(t, "data", o)
	if next := db.Stats().NextSeqno; next <= last+seqnoJump {
		t.Errorf("next seqno %d after %d: no jump of 2^24", next, last)
	}
	st := db.edits.log.State()
	ended := 0
	for _, s := range st.Segments {
		if s.Ended {
			ended++
			if s.Last != last || s.Next != db.Stats().NextSeqno {
				t.Errorf("recorded end %+v, last seqno %d", s, last)
			}
		}
	}
	if ended != 1 {
		t.Errorf("%d recorded ends, want 1: %+v", ended, st.Segments)
	}
	if p := db.log.Stats(); p.Groups != 0 {
		t.Errorf("open wrote %d groups", p.Groups)
	}
	set(t, db, "b", "2")
	for _, s := range st.Segments {
		if s.Ended {
			name := path.Join("data", wal.SegmentsDir, wal.SegmentName(s.ID, wal.SegmentLog))
			if n, _ := cut.Size(name); n != int64(s.End) {
				t.Errorf("%s has %d bytes behind its end at %d", name, n-int64(s.End), s.End)
			}
		}
	}
	t.Logf("before %v, after %v", before, logFiles(t, cut, "data"))
	// The segment that was prepared before the crash is no part of the log.
	for range 3 {
		again := cut.CrashCopy(2, memfs.DropAll)
		db.Close()
		cut, o.FS = again, again
		db = mustOpen(t, "data", o)
		want(t, db, "a", "1")
		want(t, db, "b", "2")
	}
	db.Close()
}

func TestR09_OnlyRegisteredSegmentsAreLog(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	set(t, db, "a", "1")
	db.Close()

	t.Run("unregistered is not replayed", func(t *testing.T) {
		disk := fs.CrashCopy(1, memfs.KeepAll)
		names := logFiles(t, disk, "data")
		orphan := path.Join("data", wal.SegmentsDir, wal.SegmentName(90, wal.SegmentLog))
		f, err := disk.Create(orphan, vfs.OpenOptions{Write: true})
		if err != nil {
			t.Fatal(err)
		}
		src, _ := disk.Open(path.Join("data", wal.SegmentsDir, names[0]), vfs.OpenOptions{})
		size, _ := src.Size()
		b := make([]byte, size)
		src.ReadAt(b, 0)
		f.WriteAt(b, 0)
		f.Sync()
		f.Close()
		src.Close()
		o := o
		o.FS = disk
		db := mustOpen(t, "data", o)
		defer db.Close()
		want(t, db, "a", "1")
		for _, n := range logFiles(t, disk, "data") {
			if id, _, _ := wal.ParseSegmentName(n); id == 90 {
				t.Error("the orphan is still there")
			} else if id > 90 {
				return // numbers above the orphan's: it is never taken again
			}
		}
		t.Error("a new segment has a number below the orphan's")
	})
	t.Run("a registered one that is missing is corruption", func(t *testing.T) {
		disk := fs.CrashCopy(1, memfs.KeepAll)
		name := path.Join("data", wal.SegmentsDir, logFiles(t, disk, "data")[0])
		if err := disk.Remove(name); err != nil {
			t.Fatal(err)
		}
		o := o
		o.FS = disk
		_, err := Open("data", o)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("open: %v, want ErrCorrupt naming %s", err, name)
		}
	})
}

func TestR11_DamageBelowAPromiseIsCorruption(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	for i := range 5 {
		set(t, db, fmt.Sprintf("key%d", i), strings.Repeat("v", 100))
	}
	// The third of five groups: two later ones promise that it is durable.
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	name := path.Join("data", wal.SegmentsDir, logFiles(t, disk, "data")[0])
	open := func(off int64) error {
		d := disk.CrashCopy(1, memfs.KeepAll)
		damage(t, d, name, off)
		was := dump(t, d, "data", path.Join("data", wal.SegmentsDir))
		o := o
		o.FS = d
		db, err := Open("data", o)
		if err == nil {
			for i := range 4 {
				want(t, db, fmt.Sprintf("key%d", i), strings.Repeat("v", 100))
			}
			want(t, db, "key4", "")
			db.Close()
		} else if now := dump(t, d, "data", path.Join("data", wal.SegmentsDir)); now != was {
			t.Error("a refused open changed the directory")
		}
		return err
	}
	for group := int64(1); group <= 4; group++ {
		for _, at := range []int64{20, 80} { // header, records
			err := open(group*4096 + at)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), fmt.Sprint(group*4096)) {
				t.Errorf("damage in group %d at %d: %v; want ErrCorrupt naming file and offset %d", group, at, err, group*4096)
			}
		}
	}
	// Nothing was written after the last group, so its damage is a torn tail.
	if err := open(5*4096 + 80); err != nil {
		t.Errorf("damage in the last group: %v", err)
	}
}

func TestR11_IdleLogPromises(t *testing.T) {
	fs := memfs.New()
	db := mustOpen(t, "data", testOptions(fs))
	defer db.Close()
	set(t, db, "a", "1")
	deadline := time.Now().Add(10 * time.Second)
	for db.log.Stats().Promises == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no promise group though the log is idle")
		}
		time.Sleep(5 * time.Millisecond)
	}
	groups := db.log.Stats().Groups
	time.Sleep(300 * time.Millisecond)
	if g := db.log.Stats().Groups; g != groups {
		t.Errorf("an idle log wrote %d more groups: one promise is enough", g-groups)
	}
}

func TestR12_RecoveryThatRefusesChangesNothing(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	for i := range 200 {
		set(t, db, fmt.Sprintf("key%d", i), strings.Repeat("v", 1000))
	}
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	name := path.Join("data", wal.SegmentsDir, logFiles(t, disk, "data")[1])
	for what, harm := range map[string]func(d *memfs.FS){
		"segment missing": func(d *memfs.FS) { d.Remove(name) },
		"segment too short": func(d *memfs.FS) {
			f, _ := d.Open(name, vfs.OpenOptions{Write: true})
			f.Truncate(8192)
			f.Sync()
			f.Close()
		},
		"segment header damaged": func(d *memfs.FS) { damage(t, d, name, 3) },
		"FORMAT damaged":         func(d *memfs.FS) { damage(t, d, "data/FORMAT", 20) },
		"FORMAT missing":         func(d *memfs.FS) { d.Remove("data/FORMAT") },
		"CURRENT missing":        func(d *memfs.FS) { d.Remove("data/CURRENT") },
	} {
		t.Run(what, func(t *testing.T) {
			d := disk.CrashCopy(1, memfs.KeepAll)
			harm(d)
			was := dump(t, d, "data", path.Join("data", wal.SegmentsDir))
			o := o
			o.FS = d
			var first string
			for range 2 {
				db, err := Open("data", o)
				if err == nil {
					db.Close()
					t.Fatal("opened")
				}
				if first == "" {
					first = err.Error()
				}
				if err.Error() != first {
					t.Errorf("second open: %v\nfirst: %v", err, first)
				}
				t.Log(err)
			}
			if now := dump(t, d, "data", path.Join("data", wal.SegmentsDir)); now != was {
				t.Error("the refused open changed the directory")
			}
		})
	}
}

func TestR12_WhatWasReplayedIsSyncedBeforeTheEdit(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	db := mustOpen(t, "data", o)
	set(t, db, "a", "1")
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	var order []string
	disk.SetHook(func(op vfs.Op) error {
		base := path.Base(op.Name)
		switch {
		case op.Kind == vfs.OpSync && strings.HasSuffix(base, ".seg"):
			order = append(order, "sync segment")
		case op.Kind == vfs.OpCreate && strings.HasPrefix(base, "MANIFEST"):
			order = append(order, "manifest")
		case op.Kind == vfs.OpRemove && strings.HasSuffix(base, ".seg"):
			order = append(order, "remove orphan")
		}
		return nil
	})
	o.FS = disk
	db = mustOpen(t, "data", o)
	disk.SetHook(nil)
	db.Close()
	got := strings.Join(order, ", ")
	if !strings.HasPrefix(got, "sync segment, manifest") {
		t.Errorf("order of recovery: %s", got)
	}
	if i, j := strings.Index(got, "manifest"), strings.Index(got, "remove orphan"); j >= 0 && j < i {
		t.Errorf("orphans went before the edit: %s", got)
	}
}

func TestR13_ClearIsOneRecordAndOutlivesACrash(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.flushOnDemand = true
	db := mustOpen(t, "data", o)
	big := strings.Repeat("v", 2000)
	for i := range 100 {
		set(t, db, fmt.Sprintf("key%d", i), big)
	}
	snap, err := db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	used := db.Stats().WriteCacheUsed
	seq, err := db.Clear(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	set(t, db, "after", "1")
	for i := range 100 {
		want(t, db, fmt.Sprintf("key%d", i), "")
		if it, err := snap.Get(nil, fmt.Appendf(nil, "key%d", i)); err != nil || string(it.Value) != big {
			t.Fatalf("older snapshot: %v", err)
		}
	}
	want(t, db, "after", "1")
	if got := db.Stats().WriteCacheUsed; got < used {
		t.Errorf("memtables of an older snapshot were freed: %d of %d bytes", got, used)
	}
	snap.Close()
	if got := db.Stats().WriteCacheUsed; got > used/10 {
		t.Errorf("%d of %d bytes still used after the last snapshot", got, used)
	}
	st := db.edits.log.State()
	for range 1000 { // the scheduler drops the segments
		if st = db.edits.log.State(); len(st.Segments) <= 3 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if st.ClearSeqno != seq || st.ReplayFrom.Seqno > seq+1 || len(st.Segments) > 3 {
		t.Errorf("state after the clear: %+v", st)
	}
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	o.FS = disk
	db = mustOpen(t, "data", o)
	defer db.Close()
	want(t, db, "key1", "")
	want(t, db, "after", "1")
	if r := db.Stats().Recovery.Records; r > 10 {
		t.Errorf("replayed %d records of a cleared store", r)
	}
}

func TestR13_DelayedClear(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	now := time.Now()
	o.Now = func() time.Time { return now }
	db := mustOpen(t, "data", o)
	set(t, db, "a", "1")
	at := now.Add(time.Hour)
	if s, err := db.Clear(at); err != nil || s != 0 {
		t.Fatal(s, err)
	}
	set(t, db, "b", "1") // stored before the time comes: goes as well
	want(t, db, "a", "1")
	disk := fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	o.FS = disk
	db = mustOpen(t, "data", o)
	want(t, db, "a", "1")
	want(t, db, "b", "1")
	if got := db.Stats().PendingClear; !got.Equal(at) {
		t.Errorf("pending clear %v, want %v", got, at)
	}
	db.Close()
	now = at
	db = mustOpen(t, "data", o)
	want(t, db, "a", "")
	want(t, db, "b", "")
	set(t, db, "c", "1")
	db.Close()
	db = mustOpen(t, "data", o)
	defer db.Close()
	want(t, db, "c", "1") // it fires once
}

func TestR13_DelayedClearFires(t *testing.T) {
	db := mustOpen(t, "data", testOptions(memfs.New()))
	defer db.Close()
	set(t, db, "a", "1")
	if _, err := db.Clear(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	want(t, db, "a", "1")
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := db.Get(nil, []byte("a")); errors.Is(err, ErrNotFound) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the clear did not fire")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestR20_FilesLiveAsLongAsTheirReaders(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.flushOnDemand = true
	db := mustOpen(t, "data", o)
	value := bytes.Repeat([]byte("v"), 5000)
	for i := range 60 {
		if _, err := db.Set(fmt.Appendf(nil, "key%d", i), value, Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	db.Close()
	db = mustOpen(t, "data", o) // values are in the log alone now
	defer db.Close()
	if n := db.Stats().DocumentReads; n != 0 {
		t.Fatal("document reads before any read:", n)
	}
	snap, _ := db.NewSnapshot()
	if _, err := db.Clear(time.Time{}); err != nil {
		t.Fatal(err)
	}
	// More writes than a pool of reused segments holds.
	for i := range 100 {
		if _, err := db.Set(fmt.Appendf(nil, "new%d", i), value, Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 60 {
		it, err := snap.Get(nil, fmt.Appendf(nil, "key%d", i))
		if err != nil || !bytes.Equal(it.Value, value) {
			t.Fatalf("snapshot lost key%d: %v", i, err)
		}
	}
	snap.Close()
	deadline := time.Now().Add(10 * time.Second)
	for {
		s := db.log.Stats()
		if s.Pooled > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no dropped segment reached the pool: %+v", s)
		}
		time.Sleep(5 * time.Millisecond)
	}
	// A pooled file is no part of the store: the pool is emptied at open.
	disk := fs.CrashCopy(3, memfs.KeepAll)
	o.FS = disk
	db2 := mustOpen(t, "data", o)
	defer db2.Close()
	until(t, "files that are no part of the store to be gone", func() bool {
		for _, n := range logFiles(t, disk, "data") {
			id, _, ok := wal.ParseSegmentName(n)
			st := db2.edits.log.State()
			if _, known := st.Segment(entry.SegmentID(id)); ok && !known { // the next one is made before it is registered
				return false
			}
		}
		return true
	})
}

func TestR22_DiskFullIsTemporary(t *testing.T) {
	for _, reject := range []bool{false, true} {
		t.Run(fmt.Sprint("reject=", reject), func(t *testing.T) {
			fs := memfs.New()
			o := testOptions(fs)
			o.Reject = reject
			o.WriteCache = 32 * mib
			db := mustOpen(t, "data", o)
			defer db.Close()
			free, _ := fs.FreeBytes("data")
			fs.SetFree(100)
			value := strings.Repeat("v", 3000)
			acked := 0
			var err error
			for ; acked < 1000; acked++ {
				if _, err = db.Set(fmt.Appendf(nil, "key%d", acked), []byte(value), Meta{}); err != nil {
					break
				}
			}
			if !errors.Is(err, ErrDiskFull) {
				t.Fatalf("after %d writes: %v, want ErrDiskFull", acked, err)
			}
			for i := range acked {
				want(t, db, fmt.Sprintf("key%d", i), value)
			}
			if db.Stats().ReadOnly != "" || db.Stats().DiskFull == 0 {
				t.Errorf("stats: %+v", db.Stats())
			}
			used := db.Stats().WriteCacheUsed
			if _, err := db.Set([]byte("x"), []byte(value), Meta{}); err != nil && db.Stats().WriteCacheUsed != used {
				t.Error("a refused write keeps memory")
			}
			fs.SetFree(free)
			deadline := time.Now().Add(10 * time.Second)
			for {
				if _, err = db.Set([]byte("healed"), []byte(value), Meta{}); err == nil {
					break
				}
				if !errors.Is(err, ErrDiskFull) || time.Now().After(deadline) {
					t.Fatal("does not heal:", err)
				}
			}
			want(t, db, "healed", value)
		})
	}
}

func TestR22_AFullDiskOpens(t *testing.T) {
	fs := memfs.New()
	o := testOptions(fs)
	o.WriteCache = 32 * mib
	db := mustOpen(t, "data", o)
	fs.SetFree(100)
	acked := 0
	for ; ; acked++ {
		if _, err := db.Set(fmt.Appendf(nil, "key%d", acked), make([]byte, 3000), Meta{}); err != nil {
			break
		}
	}
	for _, free := range []int64{4 * mib, 32 * kib} { // the reserve is there, or not even that
		disk := fs.CrashCopy(1, memfs.DropAll)
		disk.SetFree(free)
		o.FS = disk
		again := mustOpen(t, "data", o)
		for i := range acked {
			want(t, again, fmt.Sprintf("key%d", i), string(make([]byte, 3000)))
		}
		var err error
		for range 300 {
			if _, err = again.Set([]byte("more"), make([]byte, 3000), Meta{}); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrDiskFull) {
			t.Errorf("%d bytes free: %v, want ErrDiskFull", free, err)
		}
		if free == 4*mib { // a clear may use the reserve
			if _, err := again.Clear(time.Time{}); err != nil {
				t.Errorf("clear: %v", err)
			}
			want(t, again, "key0", "")
		}
		disk.SetFree(64 * mib)
		deadline := time.Now().Add(10 * time.Second)
		for {
			if _, err = again.Set([]byte("healed"), []byte("1"), Meta{}); err == nil {
				break
			}
			if !errors.Is(err, ErrDiskFull) || time.Now().After(deadline) {
				t.Fatal("does not heal:", err)
			}
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		again = mustOpen(t, "data", o)
		want(t, again, "healed", "1")
		again.Close()
	}
	db.Close()
}
