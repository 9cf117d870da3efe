package wal

import (
	"bytes"
	"errors"
	"path"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

func segmentPath(id entry.SegmentID) string {
	return path.Join("db", SegmentsDir, SegmentName(id, SegmentLog))
}

func fileBytes(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name, vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestR20_LinkedFilesAreUnlinkedNeverReused: a checkpoint links the files of a
// store. Its segments stay as they are while the log frees its own name of them
// and goes on in other files.
func TestR20_LinkedFilesAreUnlinkedNeverReused(t *testing.T) {
	tests := []struct {
		name   string
		pooled bool // linked when the file is in the pool already
		fault  bool // the number of links cannot be found out
	}{
		{"linked before it is dropped", false, false},
		{"linked in the pool", true, false},
		{"links unknown", false, true},
		{"links unknown in the pool", true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fs := faultfs.Wrap(memfs.New())
			r := startRunning(t, runningOptions(fs), nil)
			defer r.close()
			if err := fs.MkdirAll("checkpoint"); err != nil {
				t.Fatal(err)
			}
			r.put(5, 300)
			r.waitAll()
			old := r.position().Segment
			r.roll()
			r.footers()
			until(t, "the next segment", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.ready != nil })
			link := func() {
				if test.fault {
					fs.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpLinks}, Fault: faultfs.EIO})
				}
				if err := fs.Link(segmentPath(old), "checkpoint/a"); err != nil {
					t.Fatal(err)
				}
			}
			if !test.pooled {
				link()
			}
			want := fileBytes(t, fs, segmentPath(old))
			r.drop(old)
			if test.pooled {
				until(t, "pooled", func() bool { return r.Stats().Pooled == 1 })
				link()
			} else {
				until(t, "removed", func() bool { return r.Stats().Removed == 1 })
			}
			for range 8 {
				r.put(9, 400)
				r.roll()
				r.waitAll()
			}
			if s := r.Stats(); s.Removed != 1 || s.Reused != 0 || s.Pooled != 0 {
				t.Errorf("%+v", s)
			}
			fs.Clear()
			if n, err := fs.Links("checkpoint/a"); n != 1 || err != nil {
				t.Errorf("%d names are left: %v", n, err)
			}
			if got := fileBytes(t, fs, "checkpoint/a"); !bytes.Equal(got, want) {
				t.Errorf("the linked file changed, %d bytes were %d", len(got), len(want))
			}
		})
	}
}

// TestR20_PooledFilesStayAsTheyAreUntilReused: until then the footer tells the
// next open at once what is in a file that nobody names.
func TestR20_PooledFilesStayAsTheyAreUntilReused(t *testing.T) {
	fs := memfs.New()
	r := startRunning(t, runningOptions(fs), nil)
	defer r.close()
	r.put(5, 300)
	r.waitAll()
	old := r.position().Segment
	r.roll()
	r.footers()
	want := fileBytes(t, fs, segmentPath(old))
	r.drop(old)
	until(t, "pooled", func() bool { return r.Stats().Pooled == 1 })
	if got := fileBytes(t, fs, segmentPath(old)); !bytes.Equal(got, want) {
		t.Errorf("%d bytes, were %d", len(got), len(want))
	}
	fs.ResetCounts()
	got, err := HighestSeqno(t.Context(), ScanOptions{FS: fs, Dir: "db", Secret: testSecret, StoreID: testStoreID}, old)
	if got != 5 || err != nil {
		t.Errorf("highest seqno %d, %v", got, err)
	}
	if n := fs.Count("", vfs.OpReadAt); n > 2 {
		t.Errorf("%d reads", n)
	}
}

// TestErrorsNameTheSegmentOfAReusedFile: they named the one it was before.
func TestErrorsNameTheSegmentOfAReusedFile(t *testing.T) {
	fs := memfs.New()
	r := startRunning(t, runningOptions(fs), nil)
	defer r.close()
	r.rollAndDrop(1)
	until(t, "pooled", func() bool { return r.Stats().Pooled == 1 })
	r.roll()
	until(t, "used again", func() bool { return r.Stats().Reused == 1 })
	r.roll()
	s := r.Acquire(r.position().Segment)
	defer s.Release()
	_, _, err := ReadDocument(s.File, entry.Address{Segment: s.ID, Offset: 4096, Length: 100}, 1, []byte("k"), &testSecret, false, nil)
	if want := SegmentName(s.ID, SegmentLog); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not name %s", err, want)
	}
}

// TestR22_PoolCountsAsFreeSpace: a full disk refuses writers only when the files
// of the pool do not help.
func TestR22_PoolCountsAsFreeSpace(t *testing.T) {
	const segment, reserve = 16 << 10, 40 << 10
	tests := []struct {
		name          string
		free          int64 // when the next segment is made
		pooled        int
		bytes         int64 // of the next segment
		urgency       urgency
		ok            bool
		reused        int64
		removed, left int64
	}{
		{"the reserve is free", reserve, 2, segment, usual, true, 1, 0, 1},
		{"the reserve is free, larger segments", reserve, 3, 2*segment + 4096, usual, true, 0, 3, 0},
		{"not quite", reserve - 4096, 2, segment, usual, true, 0, 2, 0},
		{"nothing is free", 0, 4, segment, usual, true, 0, 4, 0},
		{"the pool is not enough", 0, 2, segment, usual, false, 0, 2, 0},
		{"urgent", 0, 2, segment, urgent, true, 1, 0, 1},
		{"urgent, larger segments", 0, 3, 2*segment + 4096, urgent, true, 0, 3, 0},
		{"urgent, not enough", 0, 1, 2 * segment, urgent, false, 0, 1, 0},
		{"nothing pooled", reserve + segment - 4096, 0, segment, usual, false, 0, 0, 0},
		{"nothing pooled, enough", reserve + segment, 0, segment, usual, true, 0, 0, 0},
		{"deletes", reserve, 0, segment, deletes, true, 0, 0, 0},
		{"deletes, again", reserve - 4096, 0, segment, deletes, false, 0, 0, 0},
		{"deletes, with a pool", reserve - segment, 2, segment, deletes, true, 1, 0, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fs := memfs.New()
			l := bareLog(t, fs)
			var made []*Segment
			for range test.pooled {
				l.o.SegmentBytes = func() int64 { return segment }
				s, err := l.prepare(0, usual)
				if err != nil {
					t.Fatal(err)
				}
				made = append(made, s)
			}
			for _, s := range made {
				l.pool(s)
			}
			if n := len(l.prep.free); n != test.pooled {
				t.Fatalf("%d pooled", n)
			}
			l.o.SegmentBytes = func() int64 { return test.bytes }
			l.o.ReserveBytes = func(int64) int64 { return reserve }
			fs.SetFree(test.free)
			s, err := l.prepare(0, test.urgency)
			if ok := err == nil; ok != test.ok || !ok && !errors.Is(err, vfs.ErrNoSpace) {
				t.Fatalf("%v", err)
			}
			if s != nil {
				if n, err := s.File.Size(); n < test.bytes || err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
			}
			if l.stats.reused.Load() != test.reused || l.stats.removed.Load() != test.removed || int64(len(l.prep.free)) != test.left {
				t.Errorf("%d reused, %d removed, %d left in the pool", l.stats.reused.Load(), l.stats.removed.Load(), len(l.prep.free))
			}
		})
	}
}

// TestR22_FreedSegmentsAreNotKeptOnAFullDisk: what uses the reserve needs them.
func TestR22_FreedSegmentsAreNotKeptOnAFullDisk(t *testing.T) {
	fs := memfs.New()
	o := runningOptions(fs)
	o.ReserveBytes = func(n int64) int64 { return 3 * n }
	r := startRunning(t, o, nil)
	defer r.close()
	r.put(1, 300)
	r.waitAll()
	r.roll()
	r.footers()
	until(t, "the next segment", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.ready != nil })
	fs.SetFree(48<<10 - 1)
	r.drop(1)
	until(t, "removed", func() bool { return r.Stats().Removed == 1 })
}

// TestR22_RefusesAndHeals: writers are refused while the disk is full, however
// often they ask, and go on when segments are freed, also when these have their
// seals and footers still to come.
func TestR22_RefusesAndHeals(t *testing.T) {
	fs := memfs.New()
	o := runningOptions(fs)
	o.Logf = func(string, ...any) {}
	r := startRunning(t, o, nil)
	defer r.close()
	r.put(1, 300)
	r.waitAll()
	until(t, "the next segment", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.prep.ready != nil })
	fs.SetFree(0)
	var err error
	for err == nil {
		_, err = r.tryPut(3, 900)
	}
	if !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatal(err)
	}
	if s := r.Stats(); s.NoSpace == 0 {
		t.Errorf("%+v", s)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			for {
				_, err := r.tryPut(3, 900)
				if !errors.Is(err, vfs.ErrNoSpace) {
					ended <- err
					return
				}
			}
		}()
	}
	active := r.position().Segment
	for _, s := range r.segments() {
		if s.ID < active {
			r.drop(s.ID)
		}
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	r.waitAll()
}
