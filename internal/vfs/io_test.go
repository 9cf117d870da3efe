package vfs_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"

	"golang.org/x/sys/unix"
)

// ioCase is one way to read: an engine, a disk, and whether files are direct.
type ioCase struct {
	name   string
	engine string
	direct bool
	fsys   func() vfs.FS
}

func ioCases() []ioCase {
	osfs := func() vfs.FS { return vfs.OS }
	return []ioCase{
		{name: "pread", engine: vfs.EnginePread, fsys: osfs},
		{name: "pread direct", engine: vfs.EnginePread, direct: true, fsys: osfs},
		{name: "aio direct", engine: vfs.EngineAIO, direct: true, fsys: osfs},
		{name: "aio", engine: vfs.EngineAIO, fsys: osfs},
		{name: "uring direct", engine: vfs.EngineURing, direct: true, fsys: osfs},
		{name: "uring", engine: vfs.EngineURing, fsys: osfs},
		{name: "the best", fsys: osfs},
		{name: "the best direct", direct: true, fsys: osfs},
		{name: "memfs", fsys: func() vfs.FS { return memfs.New() }},
		{name: "faultfs", fsys: func() vfs.FS { return faultfs.Wrap(memfs.New()) }},
	}
}

const ioTailBytes = 1000 // of the test file, behind its last whole block

// ioDisk is a file of known content, 64 whole blocks and a piece, and an IO.
type ioDisk struct {
	ioCase
	fs   vfs.FS
	dir  string
	file string
	size int64
	io   *vfs.IO
}

func (c ioCase) open(t testing.TB, depth int) *ioDisk {
	t.Helper()
	d := &ioDisk{ioCase: c, fs: c.fsys(), dir: "/db"}
	if _, real := d.fs.(vfs.OSFS); real {
		d.dir = t.TempDir()
	}
	if err := d.fs.MkdirAll(d.dir); err != nil {
		t.Fatal(err)
	}
	d.file = path.Join(d.dir, "file")
	d.size = 64*vfs.BlockBytes + ioTailBytes
	f, err := d.fs.Create(d.file, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, d.size)
	ioContent(content, 0)
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	d.io, err = vfs.NewIO(vfs.IOOptions{Engine: c.engine, Depth: depth, Dir: d.dir, FS: d.fs, Logf: t.Logf})
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = d.io.Close() })
	return d
}

// reader opens the file once more.
func (d *ioDisk) reader(t testing.TB) vfs.File {
	t.Helper()
	f, err := d.fs.Open(d.file, vfs.OpenOptions{Direct: d.direct})
	if errors.Is(err, vfs.ErrDirectUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (d *ioDisk) queue() *vfs.ReadQueue {
	q := new(vfs.ReadQueue)
	q.Init(d.io)
	return q
}

// ioContent fills p, which begins at a multiple of 8, with the words at off.
func ioContent(p []byte, off int64) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(off+int64(i))*0x9e3779b97f4a7c15)
	}
}

// blocks makes n reads of one block each, at blocks at, at+1, .. mod 64.
func blocks(t testing.TB, f vfs.File, n, at int) []vfs.Read {
	t.Helper()
	buf, err := offheap.AlignedBuffer(max(n, 1) * vfs.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { offheap.FreeAligned(buf) })
	reads := make([]vfs.Read, n)
	for i := range reads {
		reads[i] = vfs.Read{File: f, Buf: buf[i*vfs.BlockBytes : (i+1)*vfs.BlockBytes], Off: int64((at+i)%64) * vfs.BlockBytes}
	}
	return reads
}

// wantFilled fails unless r has read what is in the file.
func wantFilled(t testing.TB, r *vfs.Read) {
	t.Helper()
	if r.Err != nil || r.N != len(r.Buf) {
		t.Errorf("read of %d bytes at %d: %d, %v", len(r.Buf), r.Off, r.N, r.Err)
		return
	}
	for i := 0; i+8 <= len(r.Buf); i += 8 {
		if binary.LittleEndian.Uint64(r.Buf[i:]) != uint64(r.Off+int64(i))*0x9e3779b97f4a7c15 {
			t.Errorf("read at %d: wrong byte %d", r.Off, i)
			return
		}
	}
	clear(r.Buf)
}

// TestIO is what every engine does on every disk.
func TestIO(t *testing.T) {
	tests := []struct {
		name string
		run  func(t *testing.T, c ioCase)
	}{
		{"an empty queue has nothing", testIOEmpty},
		{"reads come back once each", testIOAll},
		{"ReadMany", testIOReadMany},
		{"the end of the file", testIOEnd},
		{"errors stay with their read", testIOErrors},
		{"random queues of many goroutines", testIORandom},
		{"depth 1", testIODepth1},
		{"a queue that nobody takes from holds up nobody", testIOAbandoned},
		{"a file closed by the owner of its reads", testIOCloseByOwner},
		{"files closed under readers", testIOCloseConcurrent},
		{"the IO closed", testIOClose},
	}
	for _, c := range ioCases() {
		t.Run(c.name, func(t *testing.T) {
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) { test.run(t, c) })
			}
		})
	}
}

func testIOEmpty(t *testing.T, c ioCase) {
	d := c.open(t, 8)
	q := d.queue()
	q.Submit()
	if q.Next() != nil || q.TryNext() != nil || q.Len() != 0 {
		t.Error("a read came out of nothing")
	}
	var zero vfs.ReadQueue
	if zero.Submit(); zero.Next() != nil || zero.TryNext() != nil {
		t.Error("a read came out of a zero queue")
	}
}

func testIOAll(t *testing.T, c ioCase) {
	d := c.open(t, 8)
	q := d.queue()
	for _, n := range []int{1, 2, 7, 8, 9, 60} {
		reads := blocks(t, d.reader(t), n, n)
		left := map[*vfs.Read]bool{}
		for i := range reads {
			left[&reads[i]] = true
			q.Add(&reads[i])
			if i%3 == 1 {
				q.Submit()
			}
		}
		if q.Len() != n {
			t.Fatalf("%d under way, want %d", q.Len(), n)
		}
		for r := q.Next(); r != nil; r = q.Next() {
			if !left[r] {
				t.Fatal("a read came back twice, or was never added")
			}
			delete(left, r)
			wantFilled(t, r)
			if q.Len() != len(left) {
				t.Fatalf("%d under way, want %d", q.Len(), len(left))
			}
		}
		if len(left) > 0 {
			t.Fatalf("%d of %d reads did not come back", len(left), n)
		}
		for i := range reads {
			q.Add(&reads[i])
		}
		for q.Len() > 0 {
			if r := q.TryNext(); r != nil {
				wantFilled(t, r)
			}
		}
	}
	s := d.io.Stats()
	if want := uint64(2 * (1 + 2 + 7 + 8 + 9 + 60)); s.Reads != want || s.Bytes != want*vfs.BlockBytes || s.InFlight != 0 || s.Queued != 0 {
		t.Errorf("%d reads were counted as %+v", want, s)
	}
}

func testIOReadMany(t *testing.T, c ioCase) {
	d := c.open(t, 8)
	for _, n := range []int{0, 1, 100} {
		reads := blocks(t, d.reader(t), n, 3)
		d.io.ReadMany(reads)
		for i := range reads {
			wantFilled(t, &reads[i])
		}
	}
}

func testIOEnd(t *testing.T, c ioCase) {
	d := c.open(t, 8)
	f := d.reader(t)
	buf, err := offheap.AlignedBuffer(8 * vfs.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer offheap.FreeAligned(buf)
	end := int64(64 * vfs.BlockBytes)
	reads := []vfs.Read{
		{Buf: buf[:4096], Off: end},
		{Buf: buf[4096 : 4*4096], Off: end - 4096},
		{Buf: buf[4*4096 : 5*4096], Off: end + 4096},
		{Buf: buf[5*4096 : 6*4096], Off: end - 4096},
		{Buf: buf[6*4096 : 6*4096], Off: 0},
	}
	for i := range reads {
		reads[i].File = f
	}
	d.io.ReadMany(reads)
	for i, want := range []struct {
		n   int
		err error
	}{{ioTailBytes, io.EOF}, {4096 + ioTailBytes, io.EOF}, {0, io.EOF}, {4096, nil}, {0, nil}} {
		if r := &reads[i]; r.N != want.n || r.Err != want.err {
			t.Errorf("read %d of %d bytes at %d: %d, %v; want %d, %v", i, len(r.Buf), r.Off, r.N, r.Err, want.n, want.err)
		}
		part := reads[i]
		part.Buf, part.Err = part.Buf[:part.N], nil
		wantFilled(t, &part)
	}
}

func testIOErrors(t *testing.T, c ioCase) {
	d := c.open(t, 8)
	good, closed := d.reader(t), d.reader(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	reads := blocks(t, good, 30, 0)
	want := map[int]error{4: fs.ErrClosed, 11: fs.ErrClosed}
	for i := range want {
		reads[i].File = closed
	}
	if disk, ok := d.fs.(*faultfs.FS); ok {
		if err := d.fs.Link(d.file, path.Join(d.dir, "bad")); err != nil {
			t.Fatal(err)
		}
		bad, err := d.fs.Open(path.Join(d.dir, "bad"), vfs.OpenOptions{Direct: d.direct})
		if err != nil {
			t.Fatal(err)
		}
		defer bad.Close()
		disk.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: "bad", Fault: faultfs.EIO})
		reads[17].File, want[17] = bad, syscall.EIO
	}
	reads[20].Off = -4096
	d.io.ReadMany(reads)
	for i := range reads {
		switch r := &reads[i]; {
		case i == 20:
			if r.Err == nil || r.N != 0 {
				t.Errorf("read at %d: %d, %v", r.Off, r.N, r.Err)
			}
		case want[i] != nil:
			if !errors.Is(r.Err, want[i]) || r.N != 0 {
				t.Errorf("read %d: %d, %v; want %v", i, r.N, r.Err, want[i])
			}
		default:
			wantFilled(t, r)
		}
	}
	// The same read, with another file.
	reads[4].File = good
	d.io.ReadMany(reads[4:5])
	wantFilled(t, &reads[4])
}

func testIORandom(t *testing.T, c ioCase) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, depth := range []int{1, 3, 128} {
		d := c.open(t, depth)
		files := []vfs.File{d.reader(t), d.reader(t), d.reader(t)}
		rounds := 40
		if testing.Short() || raceBuild {
			rounds = 10
		}
		var wg sync.WaitGroup
		for g := range 64 {
			wg.Add(1)
			reads := blocks(t, nil, 20, 0)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(seed, uint64(g)))
				q := d.queue()
				var idle []*vfs.Read
				for i := range reads {
					idle = append(idle, &reads[i])
				}
				took := func(r *vfs.Read) {
					wantFilled(t, r)
					idle = append(idle, r)
				}
				for range rounds {
					for range rnd.IntN(len(idle) + 1) {
						r := idle[len(idle)-1]
						idle = idle[:len(idle)-1]
						r.File, r.Off = files[rnd.IntN(len(files))], int64(rnd.IntN(64))*vfs.BlockBytes
						q.Add(r)
					}
					switch rnd.IntN(5) {
					case 0:
						q.Submit()
					case 1:
						if r := q.TryNext(); r != nil {
							took(r)
						}
					case 2:
						if r := q.Next(); r != nil {
							took(r)
						}
					case 3:
						for r := q.Take(); r != nil; r = q.Take() {
							took(r)
						}
					case 4:
						for r := q.Next(); r != nil; r = q.Next() {
							took(r)
						}
					}
					if len(idle)+q.Len() != len(reads) {
						t.Errorf("%d idle and %d under way of %d", len(idle), q.Len(), len(reads))
						return
					}
				}
				for r := q.Next(); r != nil; r = q.Next() {
					took(r)
				}
			}()
		}
		wg.Wait()
		if s := d.io.Stats(); s.InFlight != 0 || s.Queued != 0 {
			t.Errorf("after all: %+v", s)
		}
	}
}

func testIODepth1(t *testing.T, c ioCase) {
	d := c.open(t, 1)
	reads := blocks(t, d.reader(t), 50, 0)
	d.io.ReadMany(reads)
	for i := range reads {
		wantFilled(t, &reads[i])
	}
}

func testIOAbandoned(t *testing.T, c ioCase) {
	for _, depth := range []int{1, 4} {
		d := c.open(t, depth)
		reads := blocks(t, d.reader(t), 20, 0)
		left := d.queue()
		for i := range 10 {
			left.Add(&reads[i])
		}
		left.Submit()
		d.io.ReadMany(reads[10:])
		for i := range reads[10:] {
			wantFilled(t, &reads[10+i])
		}
		for r := left.Next(); r != nil; r = left.Next() {
			wantFilled(t, r)
		}
	}
}

// wantFilledOrClosed is wantFilled for a read that a Close may have met.
func wantFilledOrClosed(t *testing.T, r *vfs.Read) (closed bool) {
	t.Helper()
	if errors.Is(r.Err, fs.ErrClosed) {
		return true
	}
	wantFilled(t, r)
	return false
}

// A Close waits for reads in flight. That must not be for ever when their owner
// is who closes, or when the reads of others keep the device full.
func testIOCloseByOwner(t *testing.T, c ioCase) {
	for _, depth := range []int{1, 4, 64} {
		d := c.open(t, depth)
		f := d.reader(t)
		reads := blocks(t, f, 32, 0)
		q := d.queue()
		for i := range reads {
			q.Add(&reads[i])
		}
		q.Submit()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		n := 0
		for r := q.Next(); r != nil; r = q.Next() {
			wantFilledOrClosed(t, r)
			n++
		}
		if n != len(reads) {
			t.Errorf("%d of %d reads came back", n, len(reads))
		}
		if d.io.ReadMany(reads[:1]); !errors.Is(reads[0].Err, fs.ErrClosed) {
			t.Errorf("a read after Close: %v", reads[0].Err)
		}
		if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("the second Close: %v", err)
		}
	}
}

func testIOCloseConcurrent(t *testing.T, c ioCase) {
	d := c.open(t, 6)
	rounds := 20
	if testing.Short() || raceBuild {
		rounds = 5
	}
	for range rounds {
		f, kept := d.reader(t), d.reader(t)
		var wg sync.WaitGroup
		var started, closedSeen atomic.Int64
		for g := range 8 {
			wg.Add(1)
			reads := blocks(t, f, 8, g)
			go func() {
				defer wg.Done()
				q := d.queue()
				for closed := false; !closed; {
					for i := range reads {
						if reads[i].File = f; i%2 == 1 {
							reads[i].File = kept
						}
						q.Add(&reads[i])
					}
					for r := q.Next(); r != nil; r = q.Next() {
						if wantFilledOrClosed(t, r) {
							if closed = true; r.File == kept {
								t.Error("a read of the other file was closed")
							}
							closedSeen.Add(1)
						}
					}
					started.Add(1)
				}
			}()
		}
		for started.Load() < 8 {
			kept.ReadAt(make([]byte, 0), 0)
		}
		for range 3 { // several may close
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := f.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		if closedSeen.Load() == 0 {
			t.Error("no read failed")
		}
	}
}

func testIOClose(t *testing.T, c ioCase) {
	d := c.open(t, 4)
	reads := blocks(t, d.reader(t), 32, 0)
	q := d.queue()
	for i := range 30 {
		q.Add(&reads[i])
	}
	q.Submit()
	if err := d.io.Close(); err != nil {
		t.Fatal(err)
	}
	q.Add(&reads[30])
	n, closed := 0, 0
	for r := q.Next(); r != nil; r = q.Next() {
		if n++; wantFilledOrClosed(t, r) {
			closed++
		}
	}
	if n != 31 || closed != 1 || !errors.Is(reads[30].Err, fs.ErrClosed) {
		t.Errorf("%d reads came back, %d closed; the last with %v", n, closed, reads[30].Err)
	}
	if err := d.io.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("the second Close: %v", err)
	}
}

// gatedFile is a file whose reads wait for the gate, and are noted.
type gatedFile struct {
	vfs.File
	gate chan struct{}
	most int // at once, at most

	mu    sync.Mutex
	order []int64 // offsets in the order of starting
	now   int
	over  bool
}

func (f *gatedFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	f.order = append(f.order, off)
	if f.now++; f.now > f.most {
		f.over = true
	}
	f.mu.Unlock()
	<-f.gate
	f.mu.Lock()
	f.now--
	f.mu.Unlock()
	return len(p), nil
}

// TestIOTakesTurns: however many reads one caller has, another one's are
// started in turn with them; and there are never more in flight than Depth.
func TestIOTakesTurns(t *testing.T) {
	for _, depth := range []int{1, 4} {
		e, err := vfs.NewIO(vfs.IOOptions{Engine: vfs.EnginePread, Depth: depth, FS: memfs.New()})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		f := &gatedFile{gate: make(chan struct{}), most: depth}
		buf := make([]byte, 1)
		var long, short vfs.ReadQueue
		long.Init(e)
		short.Init(e)
		for i := range 1000 {
			long.Add(&vfs.Read{File: f, Buf: buf, Off: int64(i)})
		}
		long.Submit()
		for i := range 3 {
			short.Add(&vfs.Read{File: f, Buf: buf, Off: int64(10_000 + i)})
		}
		short.Submit()
		close(f.gate)
		n := 0
		for short.Next() != nil {
			n++
		}
		for long.Next() != nil {
			n++
		}
		if n != 1003 || len(f.order) != n {
			t.Fatalf("%d reads came back, %d were done", n, len(f.order))
		}
		// With more in flight, goroutines may come to their reads in another
		// order than they were given them.
		if want := []int64{0, 1, 10_000, 2, 10_001, 3, 10_002, 4}; depth == 1 && !slices.Equal(f.order[:len(want)], want) {
			t.Errorf("reads were started in the order %d, want %d", f.order[:len(want)], want)
		}
		if f.over {
			t.Errorf("more than %d reads at once", depth)
		}
	}
}

func TestIOOptionsAreChecked(t *testing.T) {
	for _, o := range []vfs.IOOptions{
		{Engine: "mmap", FS: vfs.OS},
		{Engine: vfs.EnginePread, FS: vfs.OS, Depth: -1},
		{Engine: vfs.EnginePread, FS: vfs.OS, Depth: vfs.IODepthMax + 1},
	} {
		if e, err := vfs.NewIO(o); err == nil {
			t.Errorf("%+v: %v", o, e.Engine())
		}
	}
	for _, name := range []string{"", vfs.EngineAIO, vfs.EngineURing} {
		e, err := vfs.NewIO(vfs.IOOptions{Engine: name, FS: memfs.New()})
		if err != nil {
			t.Fatal(err)
		}
		if e.Engine() != vfs.EnginePread {
			t.Errorf("a test disk is read by %s", e.Engine())
		}
	}
}

func TestIODoesNotAllocate(t *testing.T) {
	if raceBuild {
		t.Skip("the race detector allocates")
	}
	for _, c := range ioCases() {
		if c.name == "faultfs" {
			continue // it keeps a list of its calls
		}
		t.Run(c.name, func(t *testing.T) {
			d := c.open(t, 16)
			q := d.queue()
			for _, n := range []int{1, 40} {
				reads := blocks(t, d.reader(t), n, 0)
				allocs := testing.AllocsPerRun(100, func() {
					for i := range reads {
						q.Add(&reads[i])
					}
					q.Submit()
					for q.Next() != nil {
					}
				})
				// A goroutine of the pool may have to be made.
				if allocs >= 1 {
					t.Errorf("%d reads: %v allocations", n, allocs)
				}
			}
		})
	}
}

var ioFile = flag.String("io-file", "", "BenchmarkIO reads this file, with O_DIRECT where that is asked for, instead of a small one of its own")

// BenchmarkIO reads blocks at random, by several goroutines with several reads
// in flight each. Its figures mean something with a -io-file that is larger
// than what the device caches.
func BenchmarkIO(b *testing.B) {
	for _, c := range ioCases() {
		if *ioFile != "" && (!c.direct || c.engine == "") {
			continue
		}
		for _, shape := range []struct{ goroutines, each int }{{1, 1}, {2, 1}, {8, 1}, {64, 1}, {1, 8}, {1, 128}, {8, 16}} {
			b.Run(fmt.Sprintf("%s/%dx%d", c.name, shape.goroutines, shape.each), func(b *testing.B) {
				d := c.open(b, 128)
				if *ioFile != "" {
					size, err := d.fs.Size(*ioFile)
					if err != nil {
						b.Fatal(err)
					}
					d.file, d.size = *ioFile, size
				}
				f := d.reader(b)
				var left atomic.Int64
				left.Store(int64(b.N))
				readers := make([][]vfs.Read, shape.goroutines)
				queues := make([]*vfs.ReadQueue, shape.goroutines)
				for g := range readers {
					readers[g], queues[g] = blocks(b, f, shape.each, g), d.queue()
				}
				var before, after unix.Rusage
				_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for g, reads := range readers {
					wg.Add(1)
					go func() {
						defer wg.Done()
						rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(g)))
						add := func(r *vfs.Read) {
							if left.Add(-1) >= 0 {
								r.Off = rnd.Int64N(d.size/vfs.BlockBytes) * vfs.BlockBytes
								queues[g].Add(r)
							}
						}
						for i := range reads {
							add(&reads[i])
						}
						next := func() *vfs.Read {
							if r := queues[g].Take(); r != nil {
								return r
							}
							return queues[g].Next()
						}
						for r := next(); r != nil; r = next() {
							if r.Err != nil {
								b.Error(r.Err)
							}
							add(r)
						}
					}()
				}
				wg.Wait()
				b.StopTimer()
				_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
				cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
				s := d.io.Stats()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
				b.ReportMetric(float64(cpu)/1e3/float64(b.N), "cpu-us/op")
				b.ReportMetric(float64(s.Submits+s.Waits)/float64(b.N), "calls/op")
			})
		}
	}
}
