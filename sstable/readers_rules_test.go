package sstable

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
)

// TestR21_DamagedTablesAreFenced: the damaged and the missing table return
// their error, without a look at the disk until Retry passed; others serve. A
// table that is well again serves too.
func TestR21_DamagedTablesAreFenced(t *testing.T) {
	fs := storeOf(t, 3, 0)
	disk := faultfs.Wrap(fs)
	var c clock
	rs, hs := readersOf(t, disk, 4, func(o *ReadersOptions) { o.Now, o.Retry = c.now, 5*time.Second })
	defer rs.Close()
	name := "idx/" + Name(1)
	size, err := fs.Size(name)
	if err != nil {
		t.Fatal(err)
	}
	flipAt(t, fs, name, size-footerBytes)
	state := func(fenced, failures int) {
		t.Helper()
		if s := rs.Stats(); s.Fenced != fenced || s.Failures != int64(failures) || s.Open != 2 {
			t.Fatalf("%+v, want %d fenced after %d failures", s, fenced, failures)
		}
	}
	mustAcquire(t, hs[2])
	mustAcquire(t, hs[3])
	for round := 1; round <= 2; round++ {
		for range 3 {
			r, err := hs[1].Acquire()
			if e := isDamage(err, name, size); e != nil || r != nil {
				t.Fatal(e)
			}
			_, err = hs[4].Acquire()
			if e := isDamage(err, "idx/"+Name(4), 0); e != nil || !strings.Contains(err.Error(), "missing") {
				t.Fatalf("%v, %v", err, e)
			}
		}
		if n := disk.Count(Name(1), vfs.OpOpen); n != round {
			t.Fatalf("opened %d times, want %d", n, round)
		}
		state(2, 2*round)
		mustAcquire(t, hs[2])
		hs[2].Release()
		c.advance(5 * time.Second)
	}
	flipAt(t, fs, name, size-footerBytes)
	mustAcquire(t, hs[1])
	hs[1].Release()
	if err := hs[4].Close(); err != nil {
		t.Fatal(err)
	}
	if s := rs.Stats(); s.Fenced != 0 {
		t.Fatalf("%+v: a table that is well again, and one that is gone, are fenced", s)
	}
	for _, h := range hs[2:4] {
		h.Release()
	}
}

// TestR21_DamageOfOneBlockIsNotThatOfTheTable: with a damaged piece of the
// filter or block of the index, which cannot be pinned, keys elsewhere are
// served.
func TestR21_DamageOfOneBlockIsNotThatOfTheTable(t *testing.T) {
	const entries = 20_000
	fs := storeOf(t, 1, entries)
	name := "idx/" + Name(1)
	o := readerOptions()
	o.Number = 1
	r := openTable(t, fs, name, true, o)
	if r.foot.pieces < 2 || r.props.IndexLevels < 2 {
		t.Fatalf("%d filter pieces, %d levels of index", r.foot.pieces, r.props.IndexLevels)
	}
	refs := blocksOf(t, r)
	index := refs[slices.IndexFunc(refs, func(ref BlockRef) bool { return ref.Kind == IndexBlock })]
	for _, c := range []struct {
		name string
		off  uint64
	}{
		{"filter", r.foot.filterOffset + 100},
		{"index", index.Offset + 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			flipAt(t, fs, name, int64(c.off))
			defer flipAt(t, fs, name, int64(c.off))
			rs, hs := readersOf(t, fs, 1, nil)
			defer rs.Close()
			r, err := hs[1].Acquire()
			if err != nil {
				t.Fatal(err)
			}
			defer hs[1].Release()
			var buf Buffer
			defer buf.Free()
			served, failed := 0, 0
			for i, v := range tableVersions(1, entries) {
				if i%11 != 0 {
					continue
				}
				var got entry.Version
				found, err := r.Get(hashOf(v.Key), v.Key, v.Seqno, &buf, &got)
				switch {
				case err != nil:
					if e := isDamage(err, name, int64(c.off)); e != nil {
						t.Fatal(e)
					}
					failed++
				case !found || !bytes.Equal(got.Value.Bytes, v.Value.Bytes):
					t.Fatalf("%s: found %v, %v", show(&v), found, err)
				default:
					served++
				}
			}
			if served == 0 || failed == 0 {
				t.Fatalf("%d keys served, %d failed", served, failed)
			}
		})
	}
}

// TestF3_NoDescriptorsIsNotDamage: with too few descriptors idle tables make
// room; when none is idle the caller hears of it, and nothing is remembered.
func TestF3_NoDescriptorsIsNotDamage(t *testing.T) {
	fs := newFDs(storeOf(t, 20, 0))
	fs.max.Store(4)
	rs, hs := readersOf(t, fs, 20, nil)
	for i := 1; i <= 20; i++ {
		mustAcquire(t, hs[i])
		hs[i].Release()
	}
	if s := rs.Stats(); s.Failures != 0 || s.Open > 4 || s.Fenced != 0 {
		t.Fatalf("%+v with 4 descriptors", s)
	}
	for i := 1; i <= 4; i++ {
		mustAcquire(t, hs[i])
	}
	_, err := hs[5].Acquire()
	if !errors.Is(err, syscall.EMFILE) || errors.Is(err, ErrCorrupt) {
		t.Fatalf("acquire without descriptors: %v", err)
	}
	if s := rs.Stats(); s.Failures != 1 || s.Fenced != 0 || s.Open != 4 {
		t.Fatalf("%+v after a failure", s)
	}
	fs.max.Store(5)
	mustAcquire(t, hs[5])
	for i := 1; i <= 5; i++ {
		hs[i].Release()
	}
	if err := rs.Close(); err != nil || fs.open.Load() != 0 {
		t.Fatalf("close: %v, %d files open", err, fs.open.Load())
	}
}

// TestReadersFaultsAtEveryCall fails the n-th call of opening, reading and
// closing: the caller gets the error or the right answer, no file stays open,
// and no I/O error fences.
func TestReadersFaultsAtEveryCall(t *testing.T) {
	inner := storeOf(t, 20, 300)
	for _, once := range []bool{true, false} {
		for n := 1; ; n++ {
			disk := faultfs.Wrap(inner)
			disk.Add(faultfs.Rule{From: n, Fault: faultfs.EIO, Once: once})
			fs := newFDs(disk)
			budget := offheap.NewBudget(1 << 20)
			rs, hs := readersOf(t, fs, 20, func(o *ReadersOptions) { o.Memory = budget })
			var buf Buffer
			failed := 0
			for i := 1; i <= 20; i++ {
				r, err := hs[i].Acquire()
				if err == nil {
					err = checkTable(r, i, &buf)
					hs[i].Release()
				}
				if err != nil {
					if !errors.Is(err, faultfs.ErrInjected) && !strings.Contains(err.Error(), faultfs.ErrInjected.Error()) {
						t.Fatalf("call %d: %v", n, err)
					}
					failed++
				}
			}
			s := rs.Stats()
			if s.Fenced != 0 || once && failed > 1 {
				t.Fatalf("call %d: %d tables fail, %+v", n, failed, s)
			}
			disk.Clear()
			for i := 1; i <= 20; i++ {
				mustAcquire(t, hs[i])
				hs[i].Release()
			}
			if err := rs.Close(); err != nil || fs.open.Load() != 0 || budget.Used() != 0 {
				t.Fatalf("call %d: close: %v, %d files open, %d bytes charged", n, err, fs.open.Load(), budget.Used())
			}
			buf.Free()
			if disk.Injected() == 0 {
				break
			}
		}
	}
}

// TestS8_AnAcquiredTableOutlivesEviction: what an iterator and a lookup return
// stays as it was while every other table of the store is opened and closed.
func TestS8_AnAcquiredTableOutlivesEviction(t *testing.T) {
	const entries = 2000
	fs := newFDs(storeOf(t, 40, 0))
	o := testOptions()
	o.Number = 41
	vs := tableVersions(41, entries)
	writeTable(t, fs, "idx/"+Name(41), true, o, vs)
	rs, hs := readersOf(t, fs, 41, nil)
	defer rs.Close()
	r := mustAcquire(t, hs[41])
	it := r.NewIter(IterOptions{ReadAheadBytes: 16 << 10})
	var buf Buffer
	defer buf.Free()
	var got entry.Version
	if found, err := r.Get(hashOf(vs[7].Key), vs[7].Key, vs[7].Seqno, &buf, &got); err != nil || !found {
		t.Fatal(found, err)
	}
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		if i%50 == 0 {
			h := hs[1+i/50%40]
			mustAcquire(t, h)
			h.Release()
		}
		if !sameVersion(it.Version(), &vs[i]) || !sameVersion(&got, &vs[7]) {
			t.Fatalf("entry %d: %s; found before: %s", i, show(it.Version()), show(&got))
		}
		i++
	}
	if err := it.Error(); err != nil || i != len(vs) {
		t.Fatalf("%d of %d entries, %v", i, len(vs), err)
	}
	if again := mustAcquire(t, hs[41]); again != r {
		t.Fatal("a table that is held was opened again")
	}
	hs[41].Release()
	it.Close()
	hs[41].Release()
	if s := rs.Stats(); s.Evictions < 24 || s.Open != 16 {
		t.Fatalf("%+v", s)
	}
}
