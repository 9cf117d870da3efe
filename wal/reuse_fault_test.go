package wal

import (
	"fmt"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// TestFaultsWhileAFileIsReused: whatever call fails, the log goes on with
// another file, everything in it is found, and no file is left open or lying
// about.
func TestFaultsWhileAFileIsReused(t *testing.T) {
	kinds := []vfs.OpKind{vfs.OpLinks, vfs.OpRename, vfs.OpOpen, vfs.OpClose, vfs.OpAllocate, vfs.OpWriteAt,
		vfs.OpSync, vfs.OpSyncDir, vfs.OpFreeBytes, vfs.OpRemove}
	for _, kind := range kinds {
		for _, fault := range []faultfs.Fault{faultfs.EIO, faultfs.ENOSPC} {
			t.Run(fmt.Sprint(kind, " ", fault), func(t *testing.T) {
				mem := memfs.New()
				disk := faultfs.Wrap(mem)
				files := &openFiles{FS: disk}
				r := startRunning(t, runningOptions(files), nil)
				r.rollAndDrop(2)
				until(t, "pooled", func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					return len(r.prep.free) == 2 && r.prep.ready != nil
				})
				from := r.position()
				disk.Add(faultfs.Rule{Kinds: []vfs.OpKind{kind}, Fault: fault, Once: true})
				for range 4 {
					r.put(2, 300)
					r.waitAll()
					r.roll()
				}
				disk.Clear()
				r.waitAll()
				last := r.next - 1
				r.footersOrNot()
				r.close()
				wantSeqnos(t, scanFrom(t, mem, bareSegments(r.segments()), from), from.Seqno, last)
				if n := files.open.Load(); n != 0 {
					t.Errorf("%d files are open", n)
				}
				names, err := mem.List("db/" + SegmentsDir)
				if err != nil {
					t.Fatal(err)
				}
				lost := 0
				if kind == vfs.OpRemove || kind == vfs.OpClose {
					lost = 1 // the next open removes it
				}
				if reg := r.segments(); len(names) > len(reg)+lost {
					t.Errorf("files %v, registered %v", names, reg)
				}
			})
		}
	}
}

// footersOrNot waits until the preparer has nothing to do.
func (r *runningLog) footersOrNot() {
	r.t.Helper()
	until(r.t, "the preparer", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.prep.sealing) == 0 && r.prep.ready != nil && len(r.prep.recycled) == 0
	})
}
