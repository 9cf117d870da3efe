package compaction

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// TestS07_FaultAtEveryCall fails each I/O call of a flush of several tables in
// turn, once and for ever. Removing works: what cannot be removed is in
// TestS07_LeftoverIsNamed.
func TestS07_FaultAtEveryCall(t *testing.T) {
	m := fill(t, manyOps(1500))
	defer m.Free()
	all := []vfs.OpKind{
		vfs.OpCreate, vfs.OpOpen, vfs.OpRename, vfs.OpMkdirAll, vfs.OpList, vfs.OpSize, vfs.OpSyncDir, vfs.OpReadAt,
		vfs.OpWriteAt, vfs.OpWriteDurable, vfs.OpSync, vfs.OpAllocate, vfs.OpTruncate, vfs.OpClose,
	}
	for _, c := range []struct {
		fault faultfs.Fault
		kinds []vfs.OpKind
		is    error
		least int // calls met
	}{
		{faultfs.EIO, all, syscall.EIO, 30},
		{faultfs.ENOSPC, all, vfs.ErrNoSpace, 10},
		{faultfs.ShortWrite, all, faultfs.ErrInjected, 10},
		{faultfs.SyncDrop, all, faultfs.ErrInjected, 2},
	} {
		for _, once := range []bool{true, false} {
			t.Run(fmt.Sprintf("fault %d once %t", c.fault, once), func(t *testing.T) {
				for n := 1; ; n++ {
					inner := memfs.New()
					mkdir(t, inner)
					fs := faultfs.Wrap(inner)
					fs.Add(faultfs.Rule{Kinds: c.kinds, From: n, Once: once, Fault: c.fault})
					o := options(fs)
					o.TableBytes = 32 << 10
					r, err := Flush(t.Context(), m.NewIter(nil, nil), o)
					if fs.Injected() == 0 {
						if err != nil || len(r.Tables) < 2 || n <= c.least {
							t.Fatalf("untouched at %d: %d tables, %v", n, len(r.Tables), err)
						}
						return
					}
					names := list(t, inner)
					if !errors.Is(err, faultfs.ErrInjected) || !errors.Is(err, c.is) {
						t.Fatalf("call %d, %v: error %v", n, fs.FirstInjected().Kind, err)
					}
					if len(names) != 0 || len(r.Tables)+len(r.Dead) != 0 {
						t.Fatalf("call %d, %v: files %v, %+v", n, fs.FirstInjected().Kind, names, r)
					}
				}
			})
		}
	}
}

func TestS07_LeftoverIsNamed(t *testing.T) {
	m := fill(t, manyOps(10))
	defer m.Free()
	inner := memfs.New()
	mkdir(t, inner)
	fs := faultfs.Wrap(inner)
	fs.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync, vfs.OpRemove}, Fault: faultfs.EIO})
	_, err := Flush(t.Context(), m.NewIter(nil, nil), options(fs))
	if want := "remove idx/000001.sst"; err == nil || !errors.Is(err, faultfs.ErrInjected) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
}
