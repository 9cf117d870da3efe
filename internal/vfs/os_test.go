//go:build linux

package vfs_test

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/vfstest"
)

func TestOSConforms(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return vfs.OS, t.TempDir() })
}

func TestOSModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := vfs.OS.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	f, err := vfs.OS.Create(filepath.Join(dir, "f"), vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, want := range map[string]fs.FileMode{dir: 0o700, f.Name(): 0o600} {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
}

func TestOSFullDeviceIsErrNoSpace(t *testing.T) {
	f, err := vfs.OS.Open("/dev/full", vfs.OpenOptions{Write: true})
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	_, err = f.WriteAt(make([]byte, 10), 0)
	if !errors.Is(err, vfs.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	if _, err = f.WriteDurable(make([]byte, 10), 0); !errors.Is(err, vfs.ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
}

func TestOSUnalignedDirectWriteFails(t *testing.T) {
	f, err := vfs.OS.Create(filepath.Join(t.TempDir(), "a"), vfs.OpenOptions{Direct: true})
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if _, err := f.WriteDurable(make([]byte, 100), 1); err == nil {
		t.Fatal("100 bytes at 1 went through O_DIRECT")
	}
}

// TestL1_LockExcludesOtherProcesses starts this test binary again, which takes
// the lock and tells so.
func TestL1_LockExcludesOtherProcesses(t *testing.T) {
	const env = "FLUXKV_TEST_LOCK"
	if name := os.Getenv(env); name != "" {
		if _, err := vfs.OS.Lock(name); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("locked\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until killed
		return
	}
	name := filepath.Join(t.TempDir(), "LOCK")
	child := exec.Command(os.Args[0], "-test.run=^TestL1_LockExcludesOtherProcesses$")
	child.Env = append(os.Environ(), env+"="+name)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "locked\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	if _, err := vfs.OS.Lock(name); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("while another process holds it: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	l, err := vfs.OS.Lock(name)
	if err != nil {
		t.Fatalf("after the holder was killed: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func openBlock(tb testing.TB) (vfs.File, []byte) {
	f, err := vfs.OS.Create(filepath.Join(tb.TempDir(), "a"), vfs.OpenOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	buf, err := offheap.AlignedBuffer(vfs.BlockBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { offheap.FreeAligned(buf) })
	if _, err := f.WriteAt(buf, 0); err != nil {
		tb.Fatal(err)
	}
	return f, buf
}

func TestOSHotPathsDoNotAllocate(t *testing.T) {
	f, buf := openBlock(t)
	for name, call := range map[string]func(){
		"ReadAt":       func() { f.ReadAt(buf, 0) },
		"WriteAt":      func() { f.WriteAt(buf, 0) },
		"WriteDurable": func() { f.WriteDurable(buf, 0) },
	} {
		if n := testing.AllocsPerRun(50, call); n >= 1 && !raceBuild {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkOSWriteDurable(b *testing.B) {
	f, buf := openBlock(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.WriteDurable(buf, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func TestOpenRefusesANamedPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []vfs.OpenOptions{{}, {Write: true}} {
		if f, err := vfs.OS.Open(name, o); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("open %+v: %v, %v", o, f, err)
		}
	}
}
