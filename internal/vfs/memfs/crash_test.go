package memfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// byteModel is one file as sets of allowed bytes: what the byte durably is, and
// what it has been since.
type byteModel struct {
	durable, current []byte
	since            [][]byte // values written after they were last durable
	placed           []bool   // its block was durable, or was written and then synced
	written          []bool   // its block was written
	minSize, maxSize int      // sizes a crash may show
}

const modelBytes = 5_000 // a block, sectors, and a part of each

func newByteModel() *byteModel {
	return &byteModel{
		durable: make([]byte, modelBytes), current: make([]byte, modelBytes), since: make([][]byte, modelBytes),
		placed: make([]bool, modelBytes), written: make([]bool, modelBytes),
	}
}

func (m *byteModel) write(p []byte, off int, durable bool) {
	end := off + len(p)
	for i := off; i < end; i++ {
		m.current[i] = p[i-off]
		if durable {
			m.durable[i], m.since[i] = p[i-off], nil
		} else {
			m.since[i] = append(m.since[i], p[i-off])
		}
	}
	for i := off - off%pageBytes; i < min(modelBytes, end+pageBytes-1-(end-1)%pageBytes); i++ {
		m.written[i] = true
		m.placed[i] = m.placed[i] || durable
	}
	m.maxSize = max(m.maxSize, end)
	if durable {
		m.minSize = max(m.minSize, end)
	}
}

func (m *byteModel) sync() {
	copy(m.durable, m.current)
	copy(m.placed, m.written)
	clear(m.since)
	m.minSize = m.maxSize
}

// check reports the first byte that no power cut may show. In blocks that were
// never durable Zeros and OldContent show zero, and bytes of the grave, where
// something is unsynced; elsewhere what is durable.
func (m *byteModel) check(got []byte, d Damage, grave byte) error {
	if len(got) < m.minSize || len(got) > m.maxSize {
		return fmt.Errorf("size %d, want %d to %d", len(got), m.minSize, m.maxSize)
	}
	for i, b := range got {
		ok := b == m.durable[i] || bytes.IndexByte(m.since[i], b) >= 0
		switch {
		case d == DropAll:
			ok = b == m.durable[i]
		case d == KeepAll:
			ok = b == m.current[i]
		case d == Zeros:
			ok = b == m.durable[i] // 0 in a block that was never durable
		case d == OldContent:
			ok = b == m.durable[i] || !m.placed[i] && len(m.since[i]) > 0 && b == grave
		}
		if !ok {
			return fmt.Errorf("byte %d is %d, want %d or one of %v", i, b, m.durable[i], m.since[i])
		}
	}
	return nil
}

func TestCrashKeepsWhatIsDurable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const grave = 255
		f := New()
		old, _ := f.Create("old", vfs.OpenOptions{})
		old.WriteAt(bytes.Repeat([]byte{grave}, modelBytes), 0)
		f.Remove("old")
		files := make([]vfs.File, 2)
		models := []*byteModel{newByteModel(), newByteModel()}
		for i := range files {
			files[i], _ = f.Create(fmt.Sprint(i), vfs.OpenOptions{})
		}
		if err := f.SyncDir(""); err != nil {
			t.Fatal(err)
		}
		value := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "file")
				off := rapid.IntRange(0, modelBytes-1).Draw(t, "off")
				n := rapid.IntRange(1, modelBytes-off).Draw(t, "n")
				durable := rapid.Bool().Draw(t, "durable")
				value = value%200 + 1
				p := bytes.Repeat([]byte{value}, n)
				write := files[i].WriteAt
				if durable {
					write = files[i].WriteDurable
				}
				if m, err := write(p, int64(off)); m != n || err != nil {
					t.Fatal(m, err)
				}
				clear(p) // the disk must not keep the caller's slice
				p = bytes.Repeat([]byte{value}, n)
				models[i].write(p, off, durable)
			},
			"sync": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "file")
				if err := files[i].Sync(); err != nil {
					t.Fatal(err)
				}
				models[i].sync()
			},
			"": func(t *rapid.T) {
				for i, m := range models {
					if got := contentOf(t, f, fmt.Sprint(i)); !bytes.Equal(got, m.current[:m.maxSize]) {
						t.Fatalf("the original was disturbed")
					}
				}
			},
			"crash": func(t *rapid.T) {
				d := rapid.SampledFrom(Damages()).Draw(t, "damage")
				seed := rapid.Int64().Draw(t, "seed")
				c, again := f.CrashCopy(seed, d), f.CrashCopy(seed, d)
				for i, m := range models {
					name := fmt.Sprint(i)
					got := contentOf(t, c, name)
					if err := m.check(got, d, grave); err != nil {
						t.Fatalf("%v: file %d: %v", d, i, err)
					}
					if !bytes.Equal(got, contentOf(t, again, name)) {
						t.Fatalf("%v: one seed, two disks", d)
					}
					// What happens on the copy is the copy's.
					g, _ := c.Open(name, vfs.OpenOptions{Write: true})
					g.WriteAt(bytes.Repeat([]byte{222}, modelBytes), 0)
					g.Sync()
					g.Truncate(100)
				}
			},
		})
	})
}

func contentOf(t interface{ Fatal(...any) }, f *FS, name string) []byte {
	file, err := f.Open(name, vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	size, _ := file.Size()
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

// replace is the usual way to change a small file; a step can be left out.
func replace(f *FS, content, leftOut string) error {
	g, err := f.Create("d/tmp", vfs.OpenOptions{})
	if err != nil {
		return err
	}
	if _, err := g.WriteAt([]byte(content), 0); err != nil {
		return err
	}
	if leftOut != "sync" {
		if err := g.Sync(); err != nil {
			return err
		}
	}
	if err := errors.Join(g.Close(), f.Rename("d/tmp", "d/file")); err != nil {
		return err
	}
	if leftOut != "syncdir" {
		return f.SyncDir("d")
	}
	return nil
}

// crashLoop crashes replace at every call and returns the first finding. It
// runs on disks where the file exists durably as "old".
func crashLoop(leftOut string) error {
	for n := int64(1); ; n++ {
		f := New()
		if err := f.MkdirAll("d"); err != nil {
			return err
		}
		if err := replace(f, "old", ""); err != nil {
			return err
		}
		f.CrashAt(f.Calls()+n, Within)
		err := replace(f, "new", leftOut)
		op, crashed := f.Crashed()
		if errors.Is(err, ErrCrashed) != crashed {
			return fmt.Errorf("crashed %v, but the scenario returned %v", crashed, err)
		}
		for _, d := range Damages() {
			for seed := range int64(5) {
				c := f.CrashCopy(seed, d)
				g, err := c.Open("d/file", vfs.OpenOptions{})
				if err != nil {
					return fmt.Errorf("%v, %v: %w", op, d, err)
				}
				b := make([]byte, 3)
				if _, err := g.ReadAt(b, 0); err != nil {
					return fmt.Errorf("%v, %v: %w", op, d, err)
				}
				if got := string(b); got != "new" && (got != "old" || !crashed) {
					return fmt.Errorf("%v, %v: file is %q", op, d, got)
				}
			}
		}
		if !crashed {
			return nil
		}
	}
}

// TestLostWritesSpareDurableBlocks: a block that was durable is overwritten in its
// place. When that is lost, also through the page cache, it shows what it had;
// only blocks that have no place yet show zeros, or what somebody else had there.
func TestLostWritesSpareDurableBlocks(t *testing.T) {
	block := func(b byte) []byte { return bytes.Repeat([]byte{b}, pageBytes) }
	f := New()
	old, _ := f.Create("old", vfs.OpenOptions{Write: true})
	for i := range int64(6) {
		old.WriteAt(block('o'), i*pageBytes)
	}
	f.Remove("old")
	g, _ := f.Create("new", vfs.OpenOptions{Write: true})
	g.WriteDurable(block('a'), 0)
	g.WriteAt(block('b'), pageBytes)
	g.Allocate(4 * pageBytes)
	g.WriteAt(block('c'), 3*pageBytes)
	if err := errors.Join(g.Sync(), f.SyncDir("")); err != nil {
		t.Fatal(err)
	}
	g.WriteAt(block('a'), 0)           // the same once more
	g.WriteAt(block('x'), pageBytes)   // something else
	g.WriteAt(block('x'), 2*pageBytes) // allocated, and never written
	g.Truncate(3 * pageBytes)
	g.WriteAt(block('c'), 3*pageBytes) // given back, and allocated again
	g.WriteAt(block('x'), 4*pageBytes) // new
	for d, want := range map[Damage]string{Zeros: "ab\x00\x00\x00", OldContent: "abooo", KeepAll: "axxcx", DropAll: "ab\x00c"} {
		got := contentOf(t, f.CrashCopy(1, d), "new")
		for i := range min(len(want), len(got)/pageBytes) {
			if !bytes.Equal(got[i*pageBytes:][:pageBytes], block(want[i])) {
				t.Errorf("%v: block %d begins with %q, want %q", d, i, got[i*pageBytes], want[i])
			}
		}
		if len(got) != len(want)*pageBytes {
			t.Errorf("%v: %d blocks, want %d", d, len(got)/pageBytes, len(want))
		}
	}
}

func TestCrashLoopFindsMissingSyncs(t *testing.T) {
	if err := crashLoop(""); err != nil {
		t.Errorf("the right order: %v", err)
	}
	for _, leftOut := range []string{"sync", "syncdir"} {
		if err := crashLoop(leftOut); err == nil {
			t.Errorf("no crash shows that %s is missing", leftOut)
		} else {
			t.Logf("without %s: %v", leftOut, err)
		}
	}
}

func TestHookSeesAndFailsCalls(t *testing.T) {
	f := New()
	var ops []string
	boom := errors.New("boom")
	f.SetHook(func(op Op) error {
		ops = append(ops, op.String())
		if op.Kind == vfs.OpWriteAt {
			if f.CrashCopy(1, KeepAll).Calls() != 0 {
				t.Error("a copy counts from 0")
			}
			return boom
		}
		return nil
	})
	g, err := f.Create("a", vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.WriteAt([]byte("abc"), 5); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	f.SetHook(nil)
	if size, _ := g.Size(); size != 0 {
		t.Fatalf("a failed write had an effect: size %d", size)
	}
	if got, want := fmt.Sprint(ops), "[1 Create a 2 WriteAt a [5,8)]"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if f.Calls() != 3 || f.Count("a") != 3 || f.Count("b*") != 0 || f.Count("", vfs.OpCreate, vfs.OpSize) != 2 {
		t.Fatal("counts are wrong")
	}
	f.ResetCounts()
	if f.Calls() != 3 || f.Count("") != 0 {
		t.Fatal("ResetCounts")
	}
}

// A call that was in its hook when the power went is under way at the crash.
func TestCrashCatchesCallsUnderWay(t *testing.T) {
	f := New()
	g, _ := f.Create("a", vfs.OpenOptions{})
	if err := f.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	f.CrashAt(4, Within)
	f.SetHook(func(op Op) error {
		if op.N == 3 {
			if _, err := g.WriteDurable([]byte("2"), 1); !errors.Is(err, ErrCrashed) {
				t.Error(err)
			}
		}
		return nil
	})
	if _, err := g.WriteDurable([]byte("1"), 0); !errors.Is(err, ErrCrashed) {
		t.Fatal(err)
	}
	for d, want := range map[Damage]string{DropAll: "", KeepAll: "12"} {
		if got := contentOf(t, f.CrashCopy(1, d), "a"); string(got) != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestCrashBetweenCalls(t *testing.T) {
	f := New()
	l, err := f.Lock("LOCK")
	if err != nil {
		t.Fatal(err)
	}
	f.Crash()
	if _, err := f.List(""); !errors.Is(err, ErrCrashed) {
		t.Fatal(err)
	}
	c := f.CrashCopy(1, KeepAll)
	if _, err := c.Lock("LOCK"); err != nil {
		t.Fatalf("a lock outlived its process: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFullDisk(t *testing.T) {
	f := New()
	g, _ := f.Create("a", vfs.OpenOptions{})
	f.SetFree(3 * pageBytes)
	if _, err := g.WriteAt(make([]byte, 4*pageBytes), 0); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatal(err)
	}
	if err := g.Allocate(2 * pageBytes); err != nil {
		t.Fatal(err)
	}
	if free, _ := f.FreeBytes(""); free != pageBytes {
		t.Fatalf("free %d", free)
	}
	if _, err := g.WriteDurable(make([]byte, 3*pageBytes), 0); err != nil {
		t.Fatalf("two of three blocks were allocated: %v", err)
	}
	if _, err := f.Create("b", vfs.OpenOptions{}); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatal(err)
	}
	if err := g.Allocate(1 << 30); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatal(err)
	}
	if _, err := g.WriteAt(make([]byte, 3*pageBytes), 0); err != nil {
		t.Fatalf("overwriting needs no space: %v", err)
	}
	if err := g.Truncate(1); err != nil {
		t.Fatal(err)
	}
	if free, _ := f.FreeBytes(""); free != 2*pageBytes {
		t.Fatalf("free %d after the cut", free)
	}
	if err := errors.Join(f.Remove("a"), g.Close()); err != nil {
		t.Fatal(err)
	}
	if free, _ := f.FreeBytes(""); free != 3*pageBytes {
		t.Fatalf("free %d after the removal", free)
	}
	if free, _ := f.CrashCopy(1, KeepAll).FreeBytes(""); free != 3*pageBytes {
		t.Fatalf("free %d on the copy", free)
	}
}

func TestDirectIsEnforced(t *testing.T) {
	f := New()
	g, err := f.Create("a", vfs.OpenOptions{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []struct {
		name string
		n    int
		off  int64
	}{{"length", 100, 0}, {"offset", 4096, 512}} {
		if _, err := g.WriteAt(make([]byte, call.n), call.off); err == nil {
			t.Errorf("unaligned %s went through", call.name)
		}
	}
	b, err := offheap.AlignedBuffer(2 * vfs.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer offheap.FreeAligned(b)
	if _, err := g.WriteAt(b[1:vfs.BlockBytes+1], 0); err == nil {
		t.Error("unaligned address went through")
	}
	f.SetDirect(false)
	if _, err := f.Create("b", vfs.OpenOptions{Direct: true}); !errors.Is(err, vfs.ErrDirectUnsupported) {
		t.Error(err)
	}
	if err := vfs.ProbeDirect(f, ""); !errors.Is(err, vfs.ErrDirectUnsupported) {
		t.Error(err)
	}
}

// The table of pages against plain bytes and plain counting.
func TestContentEqualsBytes(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		const size = 3*leafBytes + 777
		var c content
		model, blocks := make([]byte, size), make([]bool, size/pageBytes+1)
		for step := range 100 {
			off := rnd.Int64N(size)
			n := 1 + rnd.Int64N(size-off)
			switch rnd.IntN(6) {
			case 0:
				c.cut(off)
				clear(model[off:])
				clear(blocks[(off+pageBytes-1)/pageBytes:])
			case 1:
				want := int64(0)
				for _, there := range blocks[:(off+pageBytes-1)/pageBytes] {
					if !there {
						want++
					}
				}
				if got := c.missing(0, off); got != want {
					t.Fatalf("seed %d step %d: %d blocks missing, want %d", seed, step, got, want)
				}
				c.reserve(off)
				for i := range blocks[:(off+pageBytes-1)/pageBytes] {
					blocks[i] = true
				}
			case 2:
				c.zero(off, off+n)
				clear(model[off : off+n])
			case 3:
				old := c.clone()
				old.write(make([]byte, size), 0)
			default:
				n = 1 + rnd.Int64N(min(n, 10000))
				p := bytes.Repeat([]byte{byte(step + 1)}, int(n))
				c.write(p, off)
				copy(model[off:], p)
				for i := off / pageBytes; i <= (off+n-1)/pageBytes; i++ {
					blocks[i] = true
				}
			}
			got, count := make([]byte, size), int64(0)
			c.read(got, 0)
			for _, there := range blocks {
				if there {
					count++
				}
			}
			if !bytes.Equal(got, model) || c.blocks != count {
				t.Fatalf("seed %d step %d: content differs, or %d blocks are not %d", seed, step, c.blocks, count)
			}
		}
	}
}

// busyDisk has 20 files of 4 MiB, allocated, half written, some of it unsynced.
func busyDisk(tb testing.TB) *FS {
	f := New()
	for i := range 20 {
		g, err := f.Create(fmt.Sprint(i), vfs.OpenOptions{})
		if err != nil {
			tb.Fatal(err)
		}
		if err := g.Allocate(4 << 20); err != nil {
			tb.Fatal(err)
		}
		g.WriteDurable(make([]byte, 2<<20), 0)
		if i < 2 {
			g.WriteAt(make([]byte, 32<<10), 2<<20)
		}
	}
	if err := f.SyncDir(""); err != nil {
		tb.Fatal(err)
	}
	return f
}

func BenchmarkCrashCopy(b *testing.B) {
	for _, d := range Damages() {
		b.Run(d.String(), func(b *testing.B) {
			f := busyDisk(b)
			b.ReportAllocs()
			for b.Loop() {
				f.CrashCopy(1, d)
			}
		})
	}
}

func BenchmarkAllocate4MiB(b *testing.B) {
	f := New()
	b.ReportAllocs()
	for b.Loop() {
		g, _ := f.Create("a", vfs.OpenOptions{})
		g.Allocate(4 << 20)
		g.Close()
		f.Remove("a")
		f.SyncDir("")
	}
}

func TestReadAllocatesNothing(t *testing.T) {
	f := New()
	g, _ := f.Create("a", vfs.OpenOptions{})
	b := make([]byte, 10000)
	g.WriteAt(b, 0)
	if n := testing.AllocsPerRun(100, func() { g.ReadAt(b, 0) }); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func TestRenamesOfOneFileNeverOvertakeEachOther(t *testing.T) {
	f := New()
	if _, err := f.Create("a", vfs.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.SyncDir(""), f.Rename("a", "b"), f.Rename("b", "c")); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for seed := range int64(50) {
		names, err := f.CrashCopy(seed, Random).List("")
		if err != nil || len(names) != 1 {
			t.Fatalf("seed %d: %v %v, want one name", seed, names, err)
		}
		seen[names[0]] = true
	}
	if len(seen) != 3 {
		t.Fatalf("only %v of three states", seen)
	}
}

func TestBytesBehindALostSizeStayLost(t *testing.T) {
	f := New()
	g, _ := f.Create("a", vfs.OpenOptions{})
	g.WriteAt(bytes.Repeat([]byte{1}, 3*pageBytes), 0)
	if err := f.SyncDir(""); err != nil {
		t.Fatal(err)
	}
	for seed := range int64(50) {
		for _, d := range Damages() {
			c := f.CrashCopy(seed, d)
			size, _ := c.Size("a")
			h, _ := c.Open("a", vfs.OpenOptions{Write: true})
			if err := h.Truncate(4 * pageBytes); err != nil {
				t.Fatal(err)
			}
			if got := contentOf(t, c, "a")[size:]; bytes.IndexByte(got, 1) >= 0 {
				t.Fatalf("%v, seed %d: bytes behind %d came back", d, seed, size)
			}
		}
	}
}
