package sstable

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// fds counts the open files of a file system, and fails with EMFILE above max.
type fds struct {
	vfs.FS
	open, max, most atomic.Int64
}

type fdsFile struct {
	vfs.File
	fs     *fds
	closed atomic.Bool
}

func newFDs(fs vfs.FS) *fds {
	f := &fds{FS: fs}
	f.max.Store(1 << 30)
	return f
}

func (f *fds) Open(name string, o vfs.OpenOptions) (vfs.File, error) {
	n := f.open.Add(1)
	if n > f.max.Load() {
		f.open.Add(-1)
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	for m := f.most.Load(); n > m && !f.most.CompareAndSwap(m, n); m = f.most.Load() {
	}
	file, err := f.FS.Open(name, o)
	if err != nil {
		f.open.Add(-1)
		return nil, err
	}
	return &fdsFile{File: file, fs: f}, nil
}

func (f *fdsFile) Close() error {
	if !f.closed.Swap(true) {
		f.fs.open.Add(-1)
	}
	return f.File.Close()
}

// storeOf makes tables 1..n; table i has one key, "t<i>", and more of them
// with long values when entries are asked for.
func storeOf(t testing.TB, n, entries int) *memfs.FS {
	t.Helper()
	fs := newFS(t)
	for i := 1; i <= n; i++ {
		o := testOptions()
		o.Number = uint64(i)
		writeTable(t, fs, "idx/"+Name(o.Number), true, o, tableVersions(i, entries))
	}
	return fs
}

func tableVersions(i, entries int) []entry.Version {
	vs := []entry.Version{set(fmt.Sprintf("t%d", i), entry.Seqno(i), fmt.Sprint(i))}
	for j := range entries {
		vs = append(vs, set(fmt.Sprintf("u%08d", j), entry.Seqno(1000+j), strings.Repeat("v", 100)))
	}
	return vs
}

// check reads the key that only table i has.
func checkTable(r *Reader, i int, buf *Buffer) error {
	var v entry.Version
	k := key(1, fmt.Sprintf("t%d", i))
	found, err := r.Get(hashOf(k), k, entry.MaxSeqno, buf, &v)
	if err != nil || !found || string(v.Value.Bytes) != fmt.Sprint(i) {
		return fmt.Errorf("table %d: found %v, %q, %v", i, found, v.Value.Bytes, err)
	}
	return nil
}

// readersOf returns the set over tables 1..n of fs and their handles, by
// number.
func readersOf(t testing.TB, fs vfs.FS, n int, change func(*ReadersOptions)) (*Readers, []*Handle) {
	t.Helper()
	o := ReadersOptions{FS: fs, Dir: "idx", StoreID: testStore, Direct: true, MaxOpen: 16}
	if change != nil {
		change(&o)
	}
	rs := NewReaders(o)
	hs := make([]*Handle, n+1)
	for i := 1; i <= n; i++ {
		hs[i] = rs.Add(uint64(i))
	}
	return rs, hs
}

// mustAcquire opens table i and reads from it.
func mustAcquire(t testing.TB, h *Handle) *Reader {
	t.Helper()
	r, err := h.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	var buf Buffer
	defer buf.Free()
	if err := checkTable(r, int(h.Number()), &buf); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReadersStayWithinTheirBound(t *testing.T) {
	fs := newFDs(storeOf(t, 40, 0))
	rs, hs := readersOf(t, fs, 40, nil)
	want := func(what string, open int) {
		t.Helper()
		if got := rs.Stats().Open; got != open || fs.open.Load() != int64(open) {
			t.Fatalf("%s: %d tables open by the statistics, %d files, want %d", what, got, fs.open.Load(), open)
		}
	}
	want("nothing acquired", 0)
	for i := 1; i <= 40; i++ {
		mustAcquire(t, hs[i])
		hs[i].Release()
	}
	want("one after another", 16)
	for i := 1; i <= 30; i++ {
		mustAcquire(t, hs[i])
	}
	want("30 held", 30)
	hs[1].Release()
	want("29 held", 29)
	for i := 2; i <= 14; i++ {
		hs[i].Release()
	}
	want("16 held", 16)
	mustAcquire(t, hs[40])
	want("17 held", 17)
	hs[40].Release()
	want("16 held again", 16)
	for i := 15; i <= 30; i++ {
		hs[i].Release()
	}
	want("none held", 16)
	if err := rs.Close(); err != nil {
		t.Fatal(err)
	}
	want("closed", 0)
	if _, err := hs[1].Acquire(); !errors.Is(err, ErrHandleClosed) {
		t.Fatalf("acquire after Close: %v", err)
	}
	if s := rs.Stats(); s.MemoryBytes != 0 || s.Evictions != s.Opens-16 || s.Failures != 0 || s.MaxOpen != 16 {
		t.Fatalf("%+v", s)
	}
}

// TestReadersKeepWhatIsUsed: tables used between the passes of the clock stay.
func TestReadersKeepWhatIsUsed(t *testing.T) {
	fs := storeOf(t, 60, 0)
	rs, hs := readersOf(t, fs, 60, nil)
	defer rs.Close()
	use := func(i int) {
		mustAcquire(t, hs[i])
		hs[i].Release()
	}
	for i := 1; i <= 60; i++ {
		use(i)
		for hot := 1; hot <= 4; hot++ {
			use(hot)
		}
	}
	// Each of the 60 was opened once, and the hot ones not much oftener.
	if s := rs.Stats(); s.Opens > 60+12 {
		t.Fatalf("%d opens: the tables in use are closed again and again", s.Opens)
	}
}

func TestReadersOpenATableOnce(t *testing.T) {
	disk := faultfs.Wrap(storeOf(t, 2, 0))
	inOpen, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	disk.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpReadAt && strings.HasSuffix(op.Name, Name(1)) {
			once.Do(func() {
				close(inOpen)
				<-goOn
			})
		}
		return nil
	})
	rs, hs := readersOf(t, disk, 2, nil)
	defer rs.Close()
	var wg sync.WaitGroup
	readers := make([]*Reader, 8)
	for i := range readers {
		wg.Go(func() {
			r, err := hs[1].Acquire()
			if err != nil {
				t.Error(err)
			}
			readers[i] = r
		})
	}
	<-inOpen
	// Table 1 is being opened; table 2 can be opened, used and closed.
	mustAcquire(t, hs[2])
	hs[2].Release()
	if err := hs[2].Close(); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	wg.Wait()
	for _, r := range readers {
		if r == nil || r != readers[0] {
			t.Fatal("two readers of one table")
		}
		hs[1].Release()
	}
	if n := disk.Count(Name(1), vfs.OpOpen); n != 1 {
		t.Fatalf("opened %d times", n)
	}
}

func TestHandleClose(t *testing.T) {
	fs := newFDs(storeOf(t, 3, 0))
	rs, hs := readersOf(t, fs, 3, nil)
	mustAcquire(t, hs[1])
	if err := hs[1].Close(); !errors.Is(err, ErrHandleInUse) {
		t.Fatalf("close of a table in use: %v", err)
	}
	mustAcquire(t, hs[1]) // nothing changed
	hs[1].Release()
	hs[1].Release()
	for i := 1; i <= 2; i++ { // one that is open, one that never was
		for range 2 {
			if err := hs[i].Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := hs[i].Acquire(); !errors.Is(err, ErrHandleClosed) {
			t.Fatalf("acquire after Close: %v", err)
		}
	}
	if s := rs.Stats(); s.Open != 0 || s.MemoryBytes != 0 || fs.open.Load() != 0 {
		t.Fatalf("%+v, %d files", s, fs.open.Load())
	}
	mustAcquire(t, hs[3])
	if err := rs.Close(); !errors.Is(err, ErrHandleInUse) || fs.open.Load() != 1 {
		t.Fatalf("close with a table held: %v", err)
	}
	hs[3].Release()
	if fs.open.Load() != 0 {
		t.Fatal("the last release did not close the table")
	}
}

// TestReadersPinWhatFits: the index before the filter, and neither when there
// is no memory; what was taken is given back.
func TestReadersPinWhatFits(t *testing.T) {
	const entries = 20_000
	fs := storeOf(t, 1, entries)
	var root, index, filter int64
	for i, size := range []*int64{&root, &index, &filter} {
		o := readerOptions()
		o.Number, o.PinIndex, o.PinFilter = 1, i == 1, i == 2
		r := openTable(t, fs, "idx/"+Name(1), true, o)
		if *size = int64(r.MemoryBytes()); i > 0 {
			*size -= root
		}
	}
	if index <= 0 || filter <= 0 {
		t.Fatalf("index of %d, filter of %d bytes", index, filter)
	}
	for _, c := range []struct {
		name   string
		limit  int64
		memory int64
	}{
		{"nothing fits", 0, root},
		{"one byte short of the index", root + index - 1, root},
		{"the index fits", root + index, root + index},
		{"one byte short of both", root + index + filter - 1, root + index},
		{"both fit", root + index + filter, root + index + filter},
	} {
		if c.limit == root+index-1 && filter <= index-1 {
			c.memory += filter // it takes the room that the index did not
		}
		t.Run(c.name, func(t *testing.T) {
			budget := offheap.NewBudget(c.limit)
			rs, hs := readersOf(t, fs, 1, func(o *ReadersOptions) { o.Memory = budget })
			r := mustAcquire(t, hs[1])
			if got := int64(r.MemoryBytes()); got != c.memory || budget.Used() != got || rs.Stats().MemoryBytes != got {
				t.Fatalf("%d bytes in memory, %d charged, %d by the statistics, want %d", got, budget.Used(), rs.Stats().MemoryBytes, c.memory)
			}
			var buf Buffer
			defer buf.Free()
			for i, v := range tableVersions(1, entries) {
				if i%37 != 0 {
					continue
				}
				var got entry.Version
				if found, err := r.Get(hashOf(v.Key), v.Key, v.Seqno, &buf, &got); err != nil || !found || !bytes.Equal(got.Value.Bytes, v.Value.Bytes) {
					t.Fatalf("%s: found %v, %v", show(&v), found, err)
				}
			}
			hs[1].Release()
			if err := rs.Close(); err != nil || budget.Used() != 0 {
				t.Fatalf("close: %v, %d bytes still charged", err, budget.Used())
			}
		})
	}
}

// clock is a time that tests move.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// flipAt changes one byte of a table's file.
func flipAt(t testing.TB, fs vfs.FS, name string, off int64) {
	t.Helper()
	f, err := fs.Open(name, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

func TestAcquireOfAnOpenTableAllocatesNothing(t *testing.T) {
	rs, hs := readersOf(t, storeOf(t, 1, 0), 1, nil)
	defer rs.Close()
	mustAcquire(t, hs[1])
	hs[1].Release()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := hs[1].Acquire(); err != nil {
			t.Fatal(err)
		}
		hs[1].Release()
	}); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

// TestReadersConcurrently: many goroutines use, close and add tables, far more
// than may be open; nobody sees a closed or a wrong one.
func TestReadersConcurrently(t *testing.T) {
	const tables = 100
	fs := newFDs(storeOf(t, tables, 100))
	budget := offheap.NewBudget(200 << 10)
	rs, hs := readersOf(t, fs, tables, func(o *ReadersOptions) { o.Memory = budget })
	var live [tables + 1]struct {
		sync.RWMutex // held for reading while the handle is used
		h            *Handle
	}
	for i := range live {
		live[i].h = hs[i]
	}
	var wg sync.WaitGroup
	const workers = 16
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(w)))
			var buf Buffer
			defer buf.Free()
			for range 300 {
				i := 1 + rnd.IntN(tables)
				if rnd.IntN(2) == 0 {
					i = 1 + rnd.IntN(8) // hot ones
				}
				slot := &live[i]
				if rnd.IntN(40) == 0 {
					slot.Lock()
					if err := slot.h.Close(); err != nil {
						t.Error(err)
					}
					slot.h = rs.Add(uint64(i))
					slot.Unlock()
					continue
				}
				slot.RLock()
				h := slot.h
				if r, err := h.Acquire(); err != nil {
					t.Error(err)
				} else {
					if err := checkTable(r, i, &buf); err != nil {
						t.Error(err)
					}
					h.Release()
				}
				slot.RUnlock()
				if rnd.IntN(50) == 0 {
					rs.Stats()
				}
			}
		})
	}
	wg.Wait()
	s := rs.Stats()
	if s.Open > 16 || fs.open.Load() != int64(s.Open) || s.Failures != 0 || budget.Used() != s.MemoryBytes {
		t.Fatalf("%+v, %d files open, %d bytes charged", s, fs.open.Load(), budget.Used())
	}
	// While a worker opens a table it holds it, and closes another first.
	if most := fs.most.Load(); most > 16+2*workers {
		t.Fatalf("%d files were open at once", most)
	}
	if err := rs.Close(); err != nil || fs.open.Load() != 0 || budget.Used() != 0 {
		t.Fatalf("close: %v, %d files, %d bytes", err, fs.open.Load(), budget.Used())
	}
}

// TestReadersAgainstModel: acquires, releases and closes in any order, against
// counts by hand.
func TestReadersAgainstModel(t *testing.T) {
	const tables = 40
	inner := storeOf(t, tables, 0)
	rapid.Check(t, func(rt *rapid.T) {
		fs := newFDs(inner)
		rs, hs := readersOf(t, fs, tables, nil)
		var held [tables + 1]int
		var gone [tables + 1]bool
		inUse := func() (n int) {
			for _, c := range held {
				if c > 0 {
					n++
				}
			}
			return n
		}
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			i := rapid.IntRange(1, tables).Draw(rt, "table")
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				err := hs[i].Close()
				if held[i] > 0 && !errors.Is(err, ErrHandleInUse) || held[i] == 0 && err != nil {
					rt.Fatalf("close with %d holders: %v", held[i], err)
				}
				gone[i] = gone[i] || err == nil
			case 1, 2, 3, 4, 5:
				_, err := hs[i].Acquire()
				if gone[i] != errors.Is(err, ErrHandleClosed) || !gone[i] && err != nil {
					rt.Fatalf("acquire, gone %v: %v", gone[i], err)
				}
				if err == nil {
					held[i]++
				}
			default:
				if held[i] > 0 {
					hs[i].Release()
					held[i]--
				}
			}
			open := rs.Stats().Open
			if fs.open.Load() != int64(open) || open < inUse() || open > max(16, inUse()) {
				rt.Fatalf("%d tables open, %d files, %d in use", open, fs.open.Load(), inUse())
			}
		}
		for i := range held {
			for ; held[i] > 0; held[i]-- {
				hs[i].Release()
			}
		}
		if err := rs.Close(); err != nil || fs.open.Load() != 0 {
			rt.Fatalf("close: %v, %d files open", err, fs.open.Load())
		}
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	rs, hs := readersOf(b, storeOf(b, 1, 0), 1, nil)
	defer rs.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hs[1].Acquire(); err != nil {
			b.Fatal(err)
		}
		hs[1].Release()
	}
}

// BenchmarkOpenTable is the price of using a table that is closed.
func BenchmarkOpenTable(b *testing.B) {
	rs, hs := readersOf(b, storeOf(b, 40, 20_000), 40, nil)
	defer rs.Close()
	i := 0
	for b.Loop() {
		h := hs[1+i%40]
		i++
		if _, err := h.Acquire(); err != nil {
			b.Fatal(err)
		}
		h.Release()
	}
}
