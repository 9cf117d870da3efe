// Package vfstest holds what every vfs.FS must do, as one set of tests that
// the real disk and both test disks pass.
package vfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// Run runs every test on a file system of its own. open returns one and an
// empty directory on it.
func Run(t *testing.T, open func(t *testing.T) (fsys vfs.FS, dir string)) {
	tests := []struct {
		name string
		run  func(t *testing.T, fsys vfs.FS, dir string)
	}{
		{"create and open", testCreateOpen},
		{"read and write", testReadWrite},
		{"read-only files refuse writes", testReadOnly},
		{"closed files refuse everything", testClosed},
		{"allocate and truncate", testSizes},
		{"rename replaces", testRename},
		{"links", testLinks},
		{"removed files stay readable while open", testRemoveOpen},
		{"directories", testDirectories},
		{"lock", testLock},
		{"direct I/O", testDirect},
		{"probe", testProbe},
		{"many reads", testReadMany},
		{"concurrent writers", testConcurrent},
		{"random operations equal a byte slice", testRandom},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fsys, dir := open(t)
			test.run(t, fsys, dir)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantIs(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func create(t *testing.T, fsys vfs.FS, name, content string) {
	t.Helper()
	f, err := fsys.Create(name, vfs.OpenOptions{Write: true})
	must(t, err)
	n, err := f.WriteAt([]byte(content), 0)
	must(t, err)
	if n != len(content) {
		t.Fatalf("wrote %d of %d bytes", n, len(content))
	}
	must(t, f.Close())
}

func read(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name, vfs.OpenOptions{})
	must(t, err)
	defer func() { must(t, f.Close()) }()
	size, err := f.Size()
	must(t, err)
	buf := make([]byte, size)
	_, err = f.ReadAt(buf, 0)
	must(t, err)
	return string(buf)
}

func testCreateOpen(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "a")
	_, err := fsys.Open(name, vfs.OpenOptions{})
	wantIs(t, err, fs.ErrNotExist)
	_, err = fsys.Size(name)
	wantIs(t, err, fs.ErrNotExist)
	_, err = fsys.Create(path.Join(dir, "missing", "a"), vfs.OpenOptions{})
	wantIs(t, err, fs.ErrNotExist)

	f, err := fsys.Create(name, vfs.OpenOptions{})
	must(t, err)
	if f.Name() != name {
		t.Fatalf("name %q, want %q", f.Name(), name)
	}
	_, err = f.WriteAt([]byte("hello"), 0) // Create always writes
	must(t, err)
	must(t, f.Close())
	_, err = fsys.Create(name, vfs.OpenOptions{})
	wantIs(t, err, fs.ErrExist)
	if got := read(t, fsys, name); got != "hello" {
		t.Fatalf("got %q", got)
	}
	size, err := fsys.Size(name)
	must(t, err)
	if size != 5 {
		t.Fatalf("size %d", size)
	}
	if _, err := fsys.Open(dir, vfs.OpenOptions{}); err == nil {
		t.Fatal("opened a directory as a file")
	}
	if _, err := fsys.Create(path.Join(name, "b"), vfs.OpenOptions{}); err == nil {
		t.Fatal("created a file below a file")
	}
}

func testReadWrite(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Create(path.Join(dir, "a"), vfs.OpenOptions{Write: true})
	must(t, err)
	defer f.Close()
	n, err := f.ReadAt(make([]byte, 10), 0)
	if n != 0 || err != io.EOF {
		t.Fatalf("empty file: %d %v", n, err)
	}
	n, err = f.WriteDurable([]byte("durable"), 10000)
	if n != 7 || err != nil {
		t.Fatalf("durable write: %d %v", n, err)
	}
	n, err = f.WriteAt(nil, 20000)
	if n != 0 || err != nil {
		t.Fatalf("empty write: %d %v", n, err)
	}
	size, err := f.Size()
	must(t, err)
	if size != 10007 {
		t.Fatalf("size %d", size)
	}
	buf := make([]byte, 20)
	n, err = f.ReadAt(buf, 9997)
	if n != 10 || err != io.EOF || string(buf[:n]) != "\x00\x00\x00durable" {
		t.Fatalf("read over the end: %d %v %q", n, err, buf[:n])
	}
	n, err = f.ReadAt(buf, 10007)
	if n != 0 || err != io.EOF {
		t.Fatalf("read at the end: %d %v", n, err)
	}
	if _, err = f.ReadAt(buf, -1); err == nil {
		t.Fatal("read at a negative offset")
	}
	if _, err = f.WriteAt(buf, -1); err == nil {
		t.Fatal("write at a negative offset")
	}
	if _, err = f.WriteDurable(buf, -1); err == nil {
		t.Fatal("durable write at a negative offset")
	}
	must(t, f.Sync())
}

func testReadOnly(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "a")
	create(t, fsys, name, "content")
	f, err := fsys.Open(name, vfs.OpenOptions{})
	must(t, err)
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("WriteAt went through")
	}
	if _, err := f.WriteDurable([]byte("x"), 0); err == nil {
		t.Error("WriteDurable went through")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("Truncate went through")
	}
	if err := f.Allocate(100); err == nil {
		t.Error("Allocate went through")
	}
	if got := read(t, fsys, name); got != "content" {
		t.Errorf("got %q", got)
	}
}

func testClosed(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Create(path.Join(dir, "a"), vfs.OpenOptions{Write: true})
	must(t, err)
	must(t, f.Close())
	b := make([]byte, 1)
	_, err = f.ReadAt(b, 0)
	wantIs(t, err, fs.ErrClosed)
	_, err = f.WriteAt(b, 0)
	wantIs(t, err, fs.ErrClosed)
	_, err = f.WriteDurable(b, 0)
	wantIs(t, err, fs.ErrClosed)
	wantIs(t, f.Sync(), fs.ErrClosed)
	wantIs(t, f.Allocate(1), fs.ErrClosed)
	wantIs(t, f.Truncate(1), fs.ErrClosed)
	_, err = f.Size()
	wantIs(t, err, fs.ErrClosed)
	wantIs(t, f.Close(), fs.ErrClosed)
}

func testSizes(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Create(path.Join(dir, "a"), vfs.OpenOptions{Write: true})
	must(t, err)
	defer f.Close()
	wantSize := func(want int64) {
		t.Helper()
		size, err := f.Size()
		must(t, err)
		if size != want {
			t.Fatalf("size %d, want %d", size, want)
		}
	}
	must(t, f.Allocate(0))
	wantSize(0)
	must(t, f.Allocate(10000))
	wantSize(10000)
	_, err = f.WriteAt(bytes.Repeat([]byte{7}, 10000), 0)
	must(t, err)
	must(t, f.Allocate(5000)) // never shrinks, never zeroes
	wantSize(10000)
	must(t, f.Truncate(5000))
	wantSize(5000)
	must(t, f.Truncate(9000))
	wantSize(9000)
	buf := make([]byte, 9000)
	_, err = f.ReadAt(buf, 0)
	must(t, err)
	if want := append(bytes.Repeat([]byte{7}, 5000), make([]byte, 4000)...); !bytes.Equal(buf, want) {
		t.Fatal("bytes after the cut are not zero")
	}
	if err := f.Truncate(-1); err == nil {
		t.Fatal("truncated to -1")
	}
	if err := f.Allocate(-1); err == nil {
		t.Fatal("allocated -1")
	}
	must(t, f.Sync())
}

func testRename(t *testing.T, fsys vfs.FS, dir string) {
	a, b := path.Join(dir, "a"), path.Join(dir, "b")
	create(t, fsys, a, "new")
	create(t, fsys, b, "old")
	old, err := fsys.Open(b, vfs.OpenOptions{})
	must(t, err)
	defer old.Close()
	must(t, fsys.Rename(a, b))
	if got := read(t, fsys, b); got != "new" {
		t.Fatalf("got %q", got)
	}
	buf := make([]byte, 3)
	_, err = old.ReadAt(buf, 0)
	must(t, err)
	if string(buf) != "old" {
		t.Fatalf("open file became %q", buf)
	}
	wantIs(t, fsys.Rename(a, b), fs.ErrNotExist)
	must(t, fsys.Rename(b, b))
	if got := read(t, fsys, b); got != "new" {
		t.Fatalf("after a rename to itself: %q", got)
	}
	sub := path.Join(dir, "sub")
	must(t, fsys.MkdirAll(sub))
	must(t, fsys.Rename(b, path.Join(sub, "c")))
	if got := read(t, fsys, path.Join(sub, "c")); got != "new" {
		t.Fatalf("in another directory: %q", got)
	}
	create(t, fsys, a, "x")
	if err := fsys.Rename(a, sub); err == nil {
		t.Fatal("a file replaced a directory")
	}
}

func testLinks(t *testing.T, fsys vfs.FS, dir string) {
	a, b, c := path.Join(dir, "a"), path.Join(dir, "b"), path.Join(dir, "sub", "c")
	wantLinks := func(name string, want int) {
		t.Helper()
		n, err := fsys.Links(name)
		must(t, err)
		if n != want {
			t.Fatalf("%s has %d names, want %d", name, n, want)
		}
	}
	must(t, fsys.MkdirAll(path.Join(dir, "sub")))
	create(t, fsys, a, "content")
	wantLinks(a, 1)
	must(t, fsys.Link(a, b))
	must(t, fsys.Link(b, c))
	wantLinks(a, 3)
	wantLinks(c, 3)
	must(t, fsys.SyncDir(dir))
	must(t, fsys.SyncDir(path.Join(dir, "sub")))

	create(t, fsys, path.Join(dir, "other"), "x")
	wantIs(t, fsys.Link(a, path.Join(dir, "other")), fs.ErrExist)
	wantIs(t, fsys.Link(a, b), fs.ErrExist)
	wantIs(t, fsys.Link(a, a), fs.ErrExist)
	wantIs(t, fsys.Link(path.Join(dir, "nothing"), path.Join(dir, "d")), fs.ErrNotExist)
	wantIs(t, fsys.Link(a, path.Join(dir, "nothing", "d")), fs.ErrNotExist)
	if err := fsys.Link(path.Join(dir, "sub"), path.Join(dir, "d")); err == nil {
		t.Fatal("linked a directory")
	}
	if _, err := fsys.Links(path.Join(dir, "sub")); err == nil {
		t.Fatal("links of a directory")
	}
	_, err := fsys.Links(path.Join(dir, "nothing"))
	wantIs(t, err, fs.ErrNotExist)

	// All names are one file.
	f, err := fsys.Open(b, vfs.OpenOptions{Write: true})
	must(t, err)
	_, err = f.WriteAt([]byte("C"), 0)
	must(t, err)
	must(t, f.Close())
	for _, name := range []string{a, b, c} {
		if got := read(t, fsys, name); got != "Content" {
			t.Fatalf("%s: %q", name, got)
		}
	}
	must(t, fsys.Rename(a, b)) // nothing, as they are one file
	wantLinks(a, 3)
	must(t, fsys.Remove(a))
	wantLinks(c, 2)
	must(t, fsys.Rename(path.Join(dir, "other"), b))
	wantLinks(c, 1)
	wantLinks(b, 1)
	if got := read(t, fsys, c); got != "Content" {
		t.Fatalf("the last name: %q", got)
	}
	must(t, fsys.Remove(c))
	_, err = fsys.Size(c)
	wantIs(t, err, fs.ErrNotExist)
}

func testRemoveOpen(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "a")
	create(t, fsys, name, "content")
	f, err := fsys.Open(name, vfs.OpenOptions{Write: true})
	must(t, err)
	defer f.Close()
	must(t, fsys.Remove(name))
	wantIs(t, fsys.Remove(name), fs.ErrNotExist)
	create(t, fsys, name, "other")
	_, err = f.WriteAt([]byte("C"), 0)
	must(t, err)
	buf := make([]byte, 7)
	_, err = f.ReadAt(buf, 0)
	must(t, err)
	if string(buf) != "Content" {
		t.Fatalf("got %q", buf)
	}
	if got := read(t, fsys, name); got != "other" {
		t.Fatalf("new file of that name: %q", got)
	}
}

func testDirectories(t *testing.T, fsys vfs.FS, dir string) {
	deep := path.Join(dir, "x", "y", "z")
	must(t, fsys.MkdirAll(deep))
	must(t, fsys.MkdirAll(deep))
	for _, name := range []string{"c", "a", "b"} {
		create(t, fsys, path.Join(dir, "x", "y", name), name)
	}
	names, err := fsys.List(path.Join(dir, "x", "y"))
	must(t, err)
	if want := []string{"a", "b", "c", "z"}; !slices.Equal(names, want) {
		t.Fatalf("listed %v, want %v", names, want)
	}
	must(t, fsys.SyncDir(deep))
	_, err = fsys.List(path.Join(dir, "nothing"))
	wantIs(t, err, fs.ErrNotExist)
	wantIs(t, fsys.SyncDir(path.Join(dir, "nothing")), fs.ErrNotExist)
	if err := fsys.Remove(deep); err == nil {
		t.Fatal("Remove removed a directory")
	}
	if err := fsys.MkdirAll(path.Join(dir, "x", "y", "a")); err == nil {
		t.Fatal("made a directory over a file")
	}
	if _, err := fsys.List(path.Join(dir, "x", "y", "a")); err == nil {
		t.Fatal("listed a file")
	}
	if err := fsys.SyncDir(path.Join(dir, "x", "y", "a")); err == nil {
		t.Fatal("synced a file as a directory")
	}
	if _, err := fsys.Size(deep); err == nil {
		t.Fatal("size of a directory")
	}
	free, err := fsys.FreeBytes(dir)
	must(t, err)
	if free <= 0 {
		t.Fatalf("free bytes %d", free)
	}
}

func testLock(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "LOCK")
	l, err := fsys.Lock(name)
	must(t, err)
	_, err = fsys.Lock(name)
	wantIs(t, err, vfs.ErrLocked)
	other, err := fsys.Lock(path.Join(dir, "OTHER"))
	must(t, err)
	must(t, other.Close())
	must(t, l.Close())
	if err := l.Close(); err == nil {
		t.Fatal("released twice")
	}
	if _, err := fsys.Size(name); err != nil {
		t.Fatalf("rule L1: the lock file must stay: %v", err)
	}
	l, err = fsys.Lock(name)
	must(t, err)
	must(t, l.Close())
}

func testDirect(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "a")
	f, err := fsys.Create(name, vfs.OpenOptions{Write: true, Direct: true})
	if errors.Is(err, vfs.ErrDirectUnsupported) {
		if _, err := fsys.Size(name); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("a refused Create left a file: %v", err)
		}
		t.Skip(err)
	}
	must(t, err)
	defer f.Close()
	buf, err := offheap.AlignedBuffer(4 * vfs.BlockBytes)
	must(t, err)
	defer offheap.FreeAligned(buf)
	for i := range buf {
		buf[i] = byte(i * 7 / 3)
	}
	want := slices.Clone(buf)
	must(t, f.Allocate(16*vfs.BlockBytes))
	_, err = f.WriteAt(buf[:2*vfs.BlockBytes], 0)
	must(t, err)
	_, err = f.WriteDurable(buf[2*vfs.BlockBytes:], 2*vfs.BlockBytes)
	must(t, err)
	clear(buf)
	_, err = f.ReadAt(buf, 0)
	must(t, err)
	if !bytes.Equal(buf, want) {
		t.Fatal("read other bytes than written")
	}
	must(t, f.Truncate(3*vfs.BlockBytes+100))
	n, err := f.ReadAt(buf[:2*vfs.BlockBytes], 2*vfs.BlockBytes)
	if n != vfs.BlockBytes+100 || err != io.EOF {
		t.Fatalf("read over the end: %d %v", n, err)
	}
	n, err = f.ReadAt(buf[:vfs.BlockBytes], 4*vfs.BlockBytes)
	if n != 0 || err != io.EOF {
		t.Fatalf("read after the end: %d %v", n, err)
	}
	r, err := fsys.Open(name, vfs.OpenOptions{Direct: true})
	must(t, err)
	defer r.Close()
	_, err = r.ReadAt(buf[:vfs.BlockBytes], 0)
	must(t, err)
	if !bytes.Equal(buf[:vfs.BlockBytes], want[:vfs.BlockBytes]) {
		t.Fatal("read other bytes through a second file")
	}
}

func testProbe(t *testing.T, fsys vfs.FS, dir string) {
	create(t, fsys, path.Join(dir, vfs.ProbeName), "left by a crash")
	if err := vfs.ProbeDirect(fsys, dir); err != nil && !errors.Is(err, vfs.ErrDirectUnsupported) {
		t.Fatal(err)
	}
	names, err := fsys.List(dir)
	must(t, err)
	if len(names) != 0 {
		t.Fatalf("probe left %v", names)
	}
	wantIs(t, vfs.ProbeDirect(fsys, path.Join(dir, "nothing")), fs.ErrNotExist)
}

func testReadMany(t *testing.T, fsys vfs.FS, dir string) {
	name := path.Join(dir, "a")
	f, err := fsys.Create(name, vfs.OpenOptions{Write: true})
	must(t, err)
	content := make([]byte, 100_000)
	for i := range content {
		content[i] = byte(i / 100)
	}
	_, err = f.WriteAt(content, 0)
	must(t, err)
	closed, err := fsys.Open(name, vfs.OpenOptions{})
	must(t, err)
	must(t, closed.Close())
	defer f.Close()
	e, err := vfs.NewIO(vfs.IOOptions{FS: fsys, Dir: dir})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	for _, count := range []int{0, 1, 2, 500} {
		reads := make([]vfs.Read, count)
		for i := range reads {
			reads[i] = vfs.Read{File: f, Buf: make([]byte, 100), Off: int64(i) * 200}
		}
		if count > 2 {
			reads[0].File = closed
			reads[1].Off = 99_950
			reads[2].Off = 99_900
		}
		e.ReadMany(reads)
		for i, r := range reads {
			switch {
			case count > 2 && i == 0:
				wantIs(t, r.Err, fs.ErrClosed)
			case count > 2 && i == 1:
				if r.N != 50 || r.Err != io.EOF {
					t.Fatalf("over the end: %d %v", r.N, r.Err)
				}
			default:
				must(t, r.Err)
				if r.N != 100 || !bytes.Equal(r.Buf, content[r.Off:r.Off+100]) {
					t.Fatalf("read %d of %d got %d wrong bytes", i, count, r.N)
				}
			}
		}
	}
}

func testConcurrent(t *testing.T, fsys vfs.FS, dir string) {
	f, err := fsys.Create(path.Join(dir, "a"), vfs.OpenOptions{Write: true})
	must(t, err)
	defer f.Close()
	const workers, rounds, size = 4, 20, 1000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := path.Join(dir, fmt.Sprint("own-", w))
			block := bytes.Repeat([]byte{byte(w + 1)}, size)
			got := make([]byte, size)
			for r := range rounds {
				off := int64((r*workers + w) * size)
				if _, err := f.WriteAt(block, off); err != nil {
					t.Error(err)
				}
				if _, err := f.ReadAt(got, off); err != nil || !bytes.Equal(got, block) {
					t.Errorf("own bytes differ: %v", err)
				}
				g, err := fsys.Create(name, vfs.OpenOptions{Write: true})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(g.Close(), fsys.Rename(name, name+"x"), fsys.Remove(name+"x")); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

func testRandom(t *testing.T, fsys vfs.FS, dir string) {
	const sizeMax = 40_000
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		f, err := fsys.Create(path.Join(dir, fmt.Sprint("f", seed)), vfs.OpenOptions{Write: true})
		must(t, err)
		var model []byte
		grow := func(size int) {
			if size > len(model) {
				model = append(model, make([]byte, size-len(model))...)
			}
		}
		for step := range 60 {
			off, n := rnd.IntN(sizeMax), 1+rnd.IntN(9000)
			switch op := rnd.IntN(8); op {
			case 0, 1, 2:
				p := bytes.Repeat([]byte{byte(step + 1)}, n)
				write := f.WriteAt
				if op == 2 {
					write = f.WriteDurable
				}
				if m, err := write(p, int64(off)); m != n || err != nil {
					t.Fatalf("seed %d step %d: write: %d %v", seed, step, m, err)
				}
				grow(off + n)
				copy(model[off:], p)
			case 3:
				must(t, f.Truncate(int64(off)))
				grow(off)
				model = model[:off:off]
			case 4:
				must(t, f.Allocate(int64(off)))
				grow(off)
			case 5:
				must(t, f.Sync())
			default:
				p := make([]byte, n)
				want := model[min(off, len(model)):min(off+n, len(model))]
				m, err := f.ReadAt(p, int64(off))
				if m != len(want) || !bytes.Equal(p[:m], want) || (m < n) != (err == io.EOF) {
					t.Fatalf("seed %d step %d: read [%d,%d) of %d: %d %v", seed, step, off, off+n, len(model), m, err)
				}
			}
			size, err := f.Size()
			must(t, err)
			if size != int64(len(model)) {
				t.Fatalf("seed %d step %d: size %d, want %d", seed, step, size, len(model))
			}
		}
		must(t, f.Close())
	}
}
