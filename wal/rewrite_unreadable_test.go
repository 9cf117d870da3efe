package wal

import (
	"errors"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// TestR21_RewriteNamesWhatItCannotRead: whichever call on a victim fails, one that
// reads ahead too, the error names its file: only that one is left alone.
func TestR21_RewriteNamesWhatItCannotRead(t *testing.T) {
	mem := memfs.New()
	r := newRewriteBench(t, mem)
	b := newLogBuilder(t, mem, 512, 1<<17)
	for id := entry.SegmentID(1); id <= 2; id++ {
		b.roll(id)
		for range 8 {
			b.sets(3, 4000)
		}
		b.seal(true, true)
	}
	r.take(b)
	sizes := r.sizes
	sizes.read = 2 * vfs.BlockBytes
	name := b.name(r.live[1].ID)
	for n := 1; ; n++ {
		fs := faultfs.Wrap(mem)
		fs.Add(faultfs.Rule{
			Kinds: []vfs.OpKind{vfs.OpOpen, vfs.OpReadAt, vfs.OpSize, vfs.OpClose}, Name: name, From: n, Once: true, Fault: faultfs.EIO,
		})
		r.fs = fs
		res, err := rewriteSegments(t.Context(), r.options(512, 1<<17), sizes, r.live, func(*Record) bool { return true })
		if fs.Injected() == 0 {
			if err != nil || n < 8 {
				t.Errorf("%d calls, %v", n, err)
			}
			fs.Clear()
			if err := res.Discard(fs); err != nil {
				t.Error(err)
			}
			return
		}
		var unreadable *vfs.ReadError
		if !errors.As(err, &unreadable) || unreadable.Name != name || !errors.Is(err, faultfs.ErrInjected) {
			t.Errorf("call %d, %v: %v; want one that names %s", n, fs.FirstInjected(), err, name)
		}
		if err == nil {
			fs.Clear()
			_ = res.Discard(fs)
		}
	}
}
