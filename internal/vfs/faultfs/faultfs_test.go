package faultfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/internal/vfs/vfstest"
)

func TestConformsWithoutRules(t *testing.T) {
	t.Run("memfs", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return Wrap(memfs.New()), "" })
	})
	t.Run("os", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return Wrap(vfs.OS), t.TempDir() })
	})
}

// calls has one call of every kind, on a disk with a file "a" of "12345678".
var calls = map[vfs.OpKind]func(f *FS, a vfs.File) error{
	vfs.OpCreate: func(f *FS, a vfs.File) error {
		_, err := f.Create("new", vfs.OpenOptions{})
		return err
	},
	vfs.OpOpen: func(f *FS, a vfs.File) error {
		_, err := f.Open("a", vfs.OpenOptions{})
		return err
	},
	vfs.OpRemove: func(f *FS, a vfs.File) error { return f.Remove("a") },
	vfs.OpRename: func(f *FS, a vfs.File) error { return f.Rename("a", "b") },
	vfs.OpLink:   func(f *FS, a vfs.File) error { return f.Link("a", "b") },
	vfs.OpLinks: func(f *FS, a vfs.File) error {
		_, err := f.Links("a")
		return err
	},
	vfs.OpMkdirAll: func(f *FS, a vfs.File) error { return f.MkdirAll("dir") },
	vfs.OpList: func(f *FS, a vfs.File) error {
		_, err := f.List("")
		return err
	},
	vfs.OpSize: func(f *FS, a vfs.File) error {
		_, err := f.Size("a")
		_, fileErr := a.Size()
		return errors.Join(err, fileErr)
	},
	vfs.OpSyncDir: func(f *FS, a vfs.File) error { return f.SyncDir("") },
	vfs.OpLock: func(f *FS, a vfs.File) error {
		_, err := f.Lock("LOCK")
		return err
	},
	vfs.OpFreeBytes: func(f *FS, a vfs.File) error {
		_, err := f.FreeBytes("")
		return err
	},
	vfs.OpReadAt: func(f *FS, a vfs.File) error {
		_, err := a.ReadAt(make([]byte, 8), 0)
		return err
	},
	vfs.OpWriteAt: func(f *FS, a vfs.File) error {
		_, err := a.WriteAt([]byte("xxxx"), 2)
		return err
	},
	vfs.OpWriteDurable: func(f *FS, a vfs.File) error {
		_, err := a.WriteDurable([]byte("xxxx"), 2)
		return err
	},
	vfs.OpSync:     func(f *FS, a vfs.File) error { return a.Sync() },
	vfs.OpAllocate: func(f *FS, a vfs.File) error { return a.Allocate(100) },
	vfs.OpTruncate: func(f *FS, a vfs.File) error { return a.Truncate(1) },
	vfs.OpClose:    func(f *FS, a vfs.File) error { return a.Close() },
}

func newDisk(t *testing.T) (*FS, *memfs.FS, vfs.File) {
	t.Helper()
	mem := memfs.New()
	f := Wrap(mem)
	a, err := f.Create("a", vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.WriteDurable([]byte("12345678"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.SyncDir(""); err != nil {
		t.Fatal(err)
	}
	return f, mem, a
}

func state(t *testing.T, mem *memfs.FS) string {
	t.Helper()
	names, err := mem.List("")
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprint(names)
	for _, name := range names {
		f, err := mem.Open(name, vfs.OpenOptions{})
		if err != nil {
			continue // a directory
		}
		b := make([]byte, 200)
		n, _ := f.ReadAt(b, 0)
		out += fmt.Sprintf(" %q", b[:n])
	}
	return out
}

func TestEveryCallFailsWithoutEffect(t *testing.T) {
	if len(calls) != int(vfs.OpKinds) {
		t.Fatalf("%d kinds of calls, want %d", len(calls), vfs.OpKinds)
	}
	for kind, call := range calls {
		for fault, want := range map[Fault]error{EIO: syscall.EIO, ENOSPC: vfs.ErrNoSpace} {
			f, mem, a := newDisk(t)
			f.Add(Rule{Kinds: []vfs.OpKind{kind}, Fault: fault})
			before := state(t, mem)
			err := call(f, a)
			if !fault.hits(kind) {
				if err != nil {
					t.Errorf("%v cannot meet %v: %v", kind, fault, err)
				}
				continue
			}
			if !errors.Is(err, ErrInjected) || !errors.Is(err, want) {
				t.Errorf("%v with %v: %v", kind, fault, err)
			}
			if after := state(t, mem); after != before {
				t.Errorf("%v with %v had an effect: %s, then %s", kind, fault, before, after)
			}
			if f.Injected() == 0 {
				t.Errorf("%v with %v is not counted", kind, fault)
			}
		}
	}
}

func TestWhichCallsARuleMeets(t *testing.T) {
	tests := []struct {
		name string
		rule Rule
		want string // of six syncs of a, b, a, b, a, b: X failed
	}{
		{"every call", Rule{}, "XXXXXX"},
		{"from the third on", Rule{From: 3}, "..XXXX"},
		{"the third only", Rule{From: 3, Once: true}, "..X..."},
		{"the first only", Rule{Once: true}, "X....."},
		{"one name", Rule{Name: "b"}, ".X.X.X"},
		{"the second of one name", Rule{Name: "b", From: 2, Once: true}, "...X.."},
		{"another kind", Rule{Kinds: []vfs.OpKind{vfs.OpTruncate, vfs.OpReadAt}}, "......"},
		{"several kinds", Rule{Kinds: []vfs.OpKind{vfs.OpTruncate, vfs.OpSync}}, "XXXXXX"},
		{"a fault that cannot hit a sync", Rule{Fault: ShortWrite}, "......"},
	}
	for _, test := range tests {
		f, _, a := newDisk(t)
		b, err := f.Create("b", vfs.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if test.rule.Fault == None {
			test.rule.Fault = EIO
		}
		f.Add(test.rule)
		got := ""
		for i := range 6 {
			if err := []vfs.File{a, b}[i%2].Sync(); err != nil {
				got += "X"
			} else {
				got += "."
			}
		}
		if got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
		f.Clear()
		if err := b.Sync(); err != nil {
			t.Errorf("%s: after Clear: %v", test.name, err)
		}
	}
}

func TestTheFirstRuleDecides(t *testing.T) {
	f, _, a := newDisk(t)
	f.Add(Rule{Kinds: []vfs.OpKind{vfs.OpSync}, From: 2, Fault: ENOSPC})
	f.Add(Rule{Kinds: []vfs.OpKind{vfs.OpSync}, From: 2, Once: true, Fault: EIO})
	if err := a.Sync(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Sync(); !errors.Is(err, vfs.ErrNoSpace) {
			t.Fatal(err)
		}
	}
}

func TestShortWrite(t *testing.T) {
	f, mem, a := newDisk(t)
	f.Add(Rule{Fault: ShortWrite})
	n, err := a.WriteDurable([]byte("abcde"), 0)
	if n != 2 || !errors.Is(err, io.ErrShortWrite) || !errors.Is(err, ErrInjected) {
		t.Fatal(n, err)
	}
	if got := state(t, mem.CrashCopy(1, memfs.DropAll)); got != `[a] "ab345678"` {
		t.Fatal(got)
	}

	direct, err := f.Create("d", vfs.OpenOptions{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	buf, err := offheap.AlignedBuffer(3 * vfs.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer offheap.FreeAligned(buf)
	if n, err := direct.WriteAt(buf, 0); n != vfs.BlockBytes || !errors.Is(err, io.ErrShortWrite) {
		t.Fatal(n, err)
	}
	if n, err := direct.WriteAt(buf[:vfs.BlockBytes], 0); n != 0 || !errors.Is(err, io.ErrShortWrite) {
		t.Fatal(n, err)
	}
}

func TestW9_SyncDropLosesDataThatReadsStillSee(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpSync, vfs.OpWriteDurable} {
		f, mem, a := newDisk(t)
		f.Add(Rule{Kinds: []vfs.OpKind{kind}, Fault: SyncDrop, Once: true})
		var err error
		if kind == vfs.OpSync {
			if _, err := a.WriteAt([]byte("xx"), 0); err != nil {
				t.Fatal(err)
			}
			err = a.Sync()
		} else {
			_, err = a.WriteDurable([]byte("xx"), 0)
		}
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("%v: %v", kind, err)
		}
		if err := a.Sync(); err != nil {
			t.Fatalf("%v: the next sync must lie: %v", kind, err)
		}
		if got := state(t, mem); got != `[a] "xx345678"` {
			t.Fatalf("%v: reads see %s", kind, got)
		}
		for _, d := range memfs.Damages() {
			if got := state(t, mem.CrashCopy(1, d)); got != `[a] "12345678"` {
				t.Fatalf("%v, %v: survived %s", kind, d, got)
			}
		}
	}
}

func TestF5_BitFlipHurtsOneRead(t *testing.T) {
	f, _, a := newDisk(t)
	f.Add(Rule{Fault: BitFlip, Once: true})
	want, first, second := []byte("12345678"), make([]byte, 8), make([]byte, 8)
	_, err := a.ReadAt(first, 0)
	_, again := a.ReadAt(second, 0)
	if err != nil || again != nil || bytes.Equal(first, want) || !bytes.Equal(second, want) {
		t.Fatalf("%q %v, then %q %v", first, err, second, again)
	}
}

func TestLatencyHoldsUpOneCall(t *testing.T) {
	f, _, a := newDisk(t)
	f.Add(Rule{Kinds: []vfs.OpKind{vfs.OpSync}, Latency: time.Millisecond})
	start := time.Now()
	if err := a.Sync(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < time.Millisecond {
		t.Fatalf("took %v", took)
	}
	if f.Injected() != 0 || f.FirstInjected().N != 0 {
		t.Fatal("latency alone is no fault")
	}
}

func TestHookAndCounts(t *testing.T) {
	f, _, a := newDisk(t)
	f.ResetCounts()
	var ops []string
	boom := errors.New("boom")
	f.SetHook(func(op vfs.Op) error {
		ops = append(ops, op.String())
		if op.Kind == vfs.OpRemove {
			return boom
		}
		return nil
	})
	if err := f.Remove("a"); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if err := a.Truncate(3); err != nil {
		t.Fatal(err)
	}
	f.SetHook(nil)
	if want := []string{"4 Remove a", "5 Truncate a 3"}; !slices.Equal(ops, want) {
		t.Fatalf("got %q, want %q", ops, want)
	}
	if f.Calls() != 5 || f.Count("a") != 2 || f.Count("", vfs.OpTruncate) != 1 || f.Count("b") != 0 {
		t.Fatal("counts are wrong")
	}
}

// A fault loop ends: some n is past the last call.
func TestFaultLoop(t *testing.T) {
	for _, once := range []bool{true, false} {
		n := 1
		for ; ; n++ {
			f := Wrap(memfs.New())
			f.Add(Rule{From: n, Once: once, Fault: EIO})
			g, err := f.Create("a", vfs.OpenOptions{})
			if err == nil {
				_, err = g.WriteAt([]byte("x"), 0)
				err = errors.Join(err, g.Sync(), g.Close())
			}
			if (f.Injected() > 0) != errors.Is(err, ErrInjected) {
				t.Fatalf("call %d: injected %d, scenario returned %v", n, f.Injected(), err)
			}
			if f.Injected() == 0 {
				break
			}
		}
		if n != 5 {
			t.Errorf("ended at call %d, want 5", n)
		}
	}
}

func TestConcurrentCallsAreCountedOnce(t *testing.T) {
	f, _, a := newDisk(t)
	f.Add(Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, From: 50, Once: true, Fault: EIO})
	var wg sync.WaitGroup
	failed := make(chan error, 200)
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 50 {
				if _, err := a.WriteAt([]byte("y"), 0); err != nil {
					failed <- err
				}
			}
		}()
	}
	wg.Wait()
	if op := f.FirstInjected(); op.Kind != vfs.OpWriteAt || op.Name != "a" {
		t.Fatal(op)
	}
	if len(failed) != 1 || f.Count("a", vfs.OpWriteAt) != 200 {
		t.Fatalf("%d failed of %d", len(failed), f.Count("a", vfs.OpWriteAt))
	}
}
