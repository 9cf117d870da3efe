//go:build linux

package vfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sandboxes are what may be taken from a process, and the engines that it loses
// by that, with what the log says of each.
var sandboxes = []struct {
	name    string
	refused []uintptr
	errno   unix.Errno
	lost    map[string]string
}{
	{"as in Docker", []uintptr{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}, unix.EPERM,
		map[string]string{EngineURing: "io_uring_setup"}},
	{"no aio", []uintptr{unix.SYS_IO_SETUP}, unix.ENOSYS, map[string]string{EngineAIO: "io_setup"}},
	{"no aio that works", []uintptr{unix.SYS_IO_SUBMIT}, unix.EPERM, map[string]string{EngineAIO: "takes no read"}},
	{"no way to wait for aio", []uintptr{unix.SYS_IO_GETEVENTS}, unix.EPERM, map[string]string{EngineAIO: "io_getevents"}},
	{"neither", []uintptr{unix.SYS_IO_SETUP, unix.SYS_IO_URING_SETUP}, unix.EPERM,
		map[string]string{EngineAIO: "io_setup", EngineURing: "io_uring_setup"}},
	{"neither works", []uintptr{unix.SYS_IO_SUBMIT, unix.SYS_IO_URING_ENTER}, unix.ENOSYS,
		map[string]string{EngineAIO: "takes no read", EngineURing: "takes no read"}},
}

// refuse makes system calls of all threads of this process fail from now on.
func refuse(t *testing.T, calls []uintptr, errno unix.Errno) {
	t.Helper()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for _, call := range calls {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(call), Jt: 0, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Skip(err)
	}
	const setModeFilter, filterTSync = 1, 1
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, filterTSync, uintptr(unsafe.Pointer(&prog))); e != 0 {
		t.Skip("seccomp:", e)
	}
}

// TestEnginesInASandbox starts this test binary again with system calls that
// fail, and looks at which engine it takes and why.
func TestEnginesInASandbox(t *testing.T) {
	const env = "FLUXKV_TEST_SANDBOX"
	if name := os.Getenv(env); name != "" {
		for _, s := range sandboxes {
			if s.name != name {
				continue
			}
			refuse(t, s.refused, s.errno)
			o := IOOptions{Dir: t.TempDir(), FS: OS, Logf: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
			e, err := NewIO(o)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("chosen: %s\n", e.Engine())
			if names, err := OS.List(o.Dir); err != nil || len(names) > 0 {
				t.Errorf("the probe left %v, %v", names, err)
			}
			f, err := OS.Open("/proc/self/exe", OpenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			reads := make([]Read, 10)
			for i := range reads {
				reads[i] = Read{File: f, Buf: make([]byte, 100), Off: int64(i) * 100}
			}
			e.ReadMany(reads)
			for _, r := range reads {
				if r.Err != nil {
					t.Error(r.Err)
				}
			}
			if err := errors.Join(f.Close(), e.Close()); err != nil {
				t.Error(err)
			}
			for _, engine := range []string{EngineAIO, EngineURing} {
				o.Engine = engine
				if e, err := NewIO(o); err != nil {
					fmt.Printf("refused: %s: %v\n", engine, err)
				} else if e.Engine() != engine {
					t.Errorf("asked for %s, it is %s", engine, e.Engine())
				}
			}
		}
		return
	}
	has := map[string]bool{}
	for _, name := range engines(false) {
		ring, err := probeRing(IOOptions{Dir: t.TempDir(), FS: OS, Depth: 8}, name)
		if err != nil {
			t.Logf("%s is not there anyway: %v", name, err)
			continue
		}
		has[name] = true
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, s := range sandboxes {
		t.Run(s.name, func(t *testing.T) {
			child := exec.Command(os.Args[0], "-test.run=^TestEnginesInASandbox$", "-test.v")
			child.Env = append(os.Environ(), env+"="+s.name)
			out, err := child.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text := string(out)
			if strings.Contains(text, "--- SKIP") {
				t.Skip(text)
			}
			want := EnginePread
			for _, name := range engines(false) {
				if !has[name] {
					continue
				}
				why, lost := s.lost[name]
				if !lost {
					want = name
					break
				}
				if !strings.Contains(text, "I/O engine "+name+" cannot be used: ") || !strings.Contains(text, why) {
					t.Errorf("it does not say %q of %s:\n%s", why, name, text)
				}
			}
			if !strings.Contains(text, "chosen: "+want+"\n") {
				t.Errorf("it did not choose %s:\n%s", want, text)
			}
			for name := range s.lost {
				if !strings.Contains(text, "refused: "+name+": ") {
					t.Errorf("asked for %s by name it went on without:\n%s", name, text)
				}
			}
		})
	}
}

// TestBufferedFilesGetTheEngineThatReadsThem: aio would leave them to the pool.
func TestBufferedFilesGetTheEngineThatReadsThem(t *testing.T) {
	ring, err := probeRing(IOOptions{Dir: t.TempDir(), FS: OS, Depth: 8}, EngineURing)
	if err != nil {
		t.Skip(err)
	}
	_ = ring.Close()
	e, err := NewIO(IOOptions{Dir: t.TempDir(), FS: OS, Buffered: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if e.Engine() != EngineURing {
		t.Errorf("the engine is %s", e.Engine())
	}
}

// fullDisk is a disk with no room for one more file.
type fullDisk struct{ OSFS }

func (fullDisk) Create(name string, _ OpenOptions) (File, error) {
	return nil, fmt.Errorf("create %s: %w", name, ErrNoSpace)
}

// TestR22_AFullDiskCostsNoEngine: the probe's file does not fit.
func TestR22_AFullDiskCostsNoEngine(t *testing.T) {
	for _, name := range engines(false) {
		ring, err := probeRing(IOOptions{Dir: t.TempDir(), FS: OS, Depth: 8}, name)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		_ = ring.Close()
		if ring, err = probeRing(IOOptions{Dir: t.TempDir(), FS: fullDisk{}, Depth: 8}, name); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = ring.Close()
	}
}
