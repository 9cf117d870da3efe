package wal

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// faultBench is a disk with two segments of a log and an output, whose seqnos
// interleave with theirs.
func faultBench(t *testing.T, mem *memfs.FS) *rewriteBench {
	t.Helper()
	r := newRewriteBench(t, mem)
	b := newLogBuilder(t, mem, 512, 1<<15)
	for id := entry.SegmentID(1); id <= 3; id++ {
		b.roll(id)
		b.sets(4, 900)
		b.sets(3, 10)
		b.sets(4, 300)
		b.seal(true, true)
	}
	b.ok(mem.SyncDir("db/" + SegmentsDir))
	r.take(b)
	r.rewrite(r.options(512, 1<<15), r.victims(1, 3), func(s entry.Seqno) bool { return s%4 > 0 })
	return r
}

func keepAll(*Record) bool { return true }

// on returns the bench as it is on another disk, with its own record of where
// documents are.
func (r *rewriteBench) on(fs *memfs.FS) *rewriteBench {
	c := *r
	c.fs = fs
	c.nextID += 100
	c.docs = map[entry.Seqno]rewriteDoc{}
	for seqno, d := range r.docs {
		c.docs[seqno] = d
	}
	c.live = slices.Clone(r.live)
	return &c
}

// orphans returns the segments that the bench does not know, and fails when one
// of its own is missing.
func (r *rewriteBench) orphans() []string {
	r.t.Helper()
	names, err := r.fs.List("db/" + SegmentsDir)
	if err != nil {
		r.t.Fatal(err)
	}
	known := 0
	out := slices.DeleteFunc(names, func(n string) bool {
		id, kind, ok := ParseSegmentName(n)
		if !ok {
			r.t.Fatalf("%s is no segment", n)
		}
		found := slices.ContainsFunc(r.live, func(v RewriteVictim) bool { return v.ID == id && v.Kind == kind })
		if found {
			known++
		}
		// What garbage collection replaced is not removed by Rewrite.
		return found || id < 1000
	})
	if known != len(r.live) {
		r.t.Fatalf("%d segments of %v are left", known, r.live)
	}
	return out
}

// TestG8_RewriteCrashAtEveryCall: a power cut during a rewrite leaves the victims
// as they were and nothing but files that no manifest names; one after it leaves
// the outputs whole.
func TestG8_RewriteCrashAtEveryCall(t *testing.T) {
	for _, when := range []memfs.When{memfs.Before, memfs.Within} {
		calls := 0
		for n := int64(1); ; n++ {
			fs := memfs.New()
			r := faultBench(t, fs)
			o := r.options(512, 6000)
			fs.CrashAt(fs.Calls()+n, when)
			res, err := rewriteSegments(t.Context(), o, r.sizes, r.live, keepAll)
			if _, crashed := fs.Crashed(); !crashed {
				if err != nil || len(res.Outputs) < 3 {
					t.Fatalf("%d outputs, %v", len(res.Outputs), err)
				}
				break
			}
			calls++
			if err == nil {
				t.Fatalf("call %d: power cut, and no error", n)
			}
			for _, d := range memfs.Damages() {
				c := r.on(fs.CrashCopy(n, d))
				for _, orphan := range c.orphans() {
					if id, kind, _ := ParseSegmentName(orphan); kind != SegmentGC || id <= 1001 {
						t.Fatalf("%s is left", orphan)
					}
				}
				c.rewrite(c.options(512, 1<<15), c.live, func(entry.Seqno) bool { return true })
			}
		}
		if calls < 30 {
			t.Errorf("%d calls", calls)
		}
	}
	fs := memfs.New()
	r := faultBench(t, fs)
	r.rewrite(r.options(512, 6000), r.live, func(s entry.Seqno) bool { return s%3 > 0 })
	for _, d := range memfs.Damages() {
		c := r.on(fs.CrashCopy(1, d))
		if left := c.orphans(); len(left) != 1 { // the output that was a victim
			t.Errorf("%v: %v", d, left)
		}
		c.rewrite(c.options(512, 1<<15), c.live, func(entry.Seqno) bool { return true })
	}
}

// TestF1_RewriteFaultAtEveryCall: whatever fails, once or for ever, the victims
// are as they were, and nothing is left when files can be removed.
func TestF1_RewriteFaultAtEveryCall(t *testing.T) {
	for _, fault := range []faultfs.Fault{faultfs.EIO, faultfs.ENOSPC, faultfs.ShortWrite, faultfs.SyncDrop} {
		for _, once := range []bool{true, false} {
			t.Run(fmt.Sprint(fault, " once ", once), func(t *testing.T) {
				mem := memfs.New()
				r := faultBench(t, mem)
				r.verify = once
				for n := 1; ; n++ {
					disk := faultfs.Wrap(mem)
					fs := &openFiles{FS: disk}
					r.fs = fs
					o := r.options(512, 6000)
					disk.Add(faultfs.Rule{From: n, Once: once, Fault: fault})
					res, err := rewriteSegments(t.Context(), o, r.sizes, r.live, keepAll)
					if disk.Injected() == 0 {
						if err != nil || len(res.Outputs) < 3 {
							t.Fatalf("%d outputs, %v", len(res.Outputs), err)
						}
						if n < 4 {
							t.Errorf("%d calls", n)
						}
						return
					}
					if !errors.Is(err, faultfs.ErrInjected) || errors.Is(err, ErrCorrupt) || len(res.Outputs) != 0 {
						t.Fatalf("call %d: %d outputs, %v", n, len(res.Outputs), err)
					}
					if open := fs.open.Load(); open != 0 {
						t.Fatalf("call %d: %d files are open", n, open)
					}
					disk.Clear()
					for _, orphan := range r.orphans() {
						if once {
							t.Errorf("call %d: %s is left", n, orphan)
						}
						if err := mem.Remove("db/" + SegmentsDir + "/" + orphan); err != nil {
							t.Fatal(err)
						}
					}
					c := r.on(mem.CrashCopy(1, memfs.KeepAll))
					c.rewrite(c.options(512, 1<<15), c.live, func(entry.Seqno) bool { return true })
				}
			})
		}
	}
}

// TestR22_RewriteOnAFullDisk: no space is an error like any other, and the space
// that was taken is given back.
func TestR22_RewriteOnAFullDisk(t *testing.T) {
	fs := memfs.New()
	r := faultBench(t, fs)
	for free := int64(0); ; free += 4096 {
		fs.SetFree(free)
		o := r.options(512, 6000)
		res, err := rewriteSegments(t.Context(), o, r.sizes, r.live, keepAll)
		if err == nil {
			if free < 4096*3 {
				t.Errorf("%d bytes were enough for %d outputs", free, len(res.Outputs))
			}
			return
		}
		if left, lerr := fs.FreeBytes("db"); lerr != nil || left != free || len(r.orphans()) != 0 {
			t.Fatalf("%v: of %d free bytes %d are left, and %v", err, free, left, r.orphans())
		}
	}
}
