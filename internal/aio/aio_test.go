//go:build linux

package aio_test

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"fluxkv/internal/aio"
)

var names = []string{"uring", "aio"}

func open(t *testing.T, name string, depth int) aio.Ring {
	t.Helper()
	r, err := aio.Open(name, depth)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// file makes one of n bytes, byte i being i/8. It is not direct: reads are done
// at once by one ring, and by workers or from the page cache by the other.
func file(t *testing.T, n int) (fd int, content []byte) {
	t.Helper()
	content = make([]byte, n)
	for i := range content {
		content[i] = byte(i / 8)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return int(f.Fd()), content
}

// collect waits for n events, by slot.
func collect(t *testing.T, r aio.Ring, n, room int) map[uint32]int32 {
	t.Helper()
	got := map[uint32]int32{}
	events := make([]aio.Event, room)
	for len(got) < n {
		k, _ := r.Wait(events, 1)
		if k < 1 || k > room {
			t.Fatalf("Wait for one returned %d", k)
		}
		for _, e := range events[:k] {
			if _, twice := got[e.Slot]; twice {
				t.Fatalf("slot %d came twice", e.Slot)
			}
			got[e.Slot] = e.Res
		}
	}
	if k, _ := r.Wait(events, 0); k != 0 {
		t.Fatalf("%d events more", k)
	}
	return got
}

func TestReads(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			const depth = 6
			r := open(t, name, depth)
			if r.Name() != name {
				t.Errorf("it is called %s", r.Name())
			}
			fd, content := file(t, 10_000)
			// Often enough for every ring to come around.
			for round := range 200 {
				n := 1 + round%depth
				ops := make([]aio.Op, n)
				for i := range ops {
					ops[i] = aio.Op{FD: fd, Slot: uint32(i + depth - n), Off: int64(97 * i), Buf: make([]byte, 1000)}
				}
				for at := 0; at < n; {
					taken, calls := r.Submit(ops[at:min(n, at+4)])
					if taken < 1 || calls < 1 {
						t.Fatalf("%d taken in %d calls", taken, calls)
					}
					at += taken
				}
				for slot, res := range collect(t, r, n, 1+round%4) {
					op := ops[int(slot)-depth+n]
					if res != 1000 || !bytes.Equal(op.Buf, content[op.Off:op.Off+1000]) {
						t.Fatalf("slot %d: %d, or wrong bytes", slot, res)
					}
				}
			}
		})
	}
}

func TestEndsAndErrors(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			r := open(t, name, 8)
			fd, content := file(t, 5000)
			buf := make([]byte, 4096)
			for _, tc := range []struct {
				off  int64
				want int32
			}{{4500, 500}, {5000, 0}, {1 << 40, 0}} {
				if taken, _ := r.Submit([]aio.Op{{FD: fd, Slot: 5, Off: tc.off, Buf: buf}}); taken != 1 {
					t.Fatal("not taken")
				}
				if got := collect(t, r, 1, 8)[5]; got != tc.want {
					t.Errorf("at %d: %d, want %d", tc.off, got, tc.want)
				} else if got > 0 && !bytes.Equal(buf[:got], content[tc.off:]) {
					t.Errorf("at %d: wrong bytes", tc.off)
				}
			}
			// A bad one in the middle: the kernel may refuse to take it, or take
			// it and answer with the error. What was before is read either way,
			// and what comes after can be submitted again.
			bad, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			badFD := int(bad.Fd())
			_ = bad.Close()
			ops := []aio.Op{{FD: fd, Slot: 0, Buf: buf[:10]}, {FD: badFD, Slot: 1, Buf: buf[10:20]}, {FD: fd, Slot: 2, Buf: buf[20:30]}}
			taken, _ := r.Submit(ops)
			got := collect(t, r, taken, 8)
			switch {
			case taken == 1 && got[0] == 10:
				if taken, _ := r.Submit(ops[2:]); taken != 1 || collect(t, r, 1, 8)[2] != 10 {
					t.Error("the third was not read")
				}
			case taken == 3 && got[0] == 10 && got[1] == -int32(unix.EBADF) && got[2] == 10:
			default:
				t.Errorf("%d taken: %v", taken, got)
			}
		})
	}
}

// TestManyThreads submits from many goroutines while another one collects.
func TestManyThreads(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			const callers, each, rounds = 8, 4, 200
			r := open(t, name, callers*each)
			fd, content := file(t, 100_000)
			var wg sync.WaitGroup
			done := make([]chan uint32, callers)
			ops := make([][]aio.Op, callers)
			for g := range ops {
				done[g] = make(chan uint32, each)
				for i := range each {
					ops[g] = append(ops[g], aio.Op{FD: fd, Slot: uint32(g*each + i), Buf: make([]byte, 512)})
				}
			}
			for g := range callers {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for round := range rounds {
						for i := range ops[g] {
							ops[g][i].Off = int64((round*31 + g*7 + i*1013) % 90_000)
						}
						for at := 0; at < each; {
							taken, _ := r.Submit(ops[g][at:])
							at += taken
						}
						for range each {
							op := ops[g][<-done[g]%each]
							if !bytes.Equal(op.Buf, content[op.Off:op.Off+512]) {
								t.Errorf("wrong bytes at %d", op.Off)
							}
						}
					}
				}()
			}
			events := make([]aio.Event, 5)
			for left := callers * each * rounds; left > 0; {
				n, _ := r.Wait(events, 1)
				for _, e := range events[:n] {
					if e.Res != 512 {
						t.Errorf("slot %d: %d", e.Slot, e.Res)
					}
					done[e.Slot/each] <- e.Slot
				}
				left -= n
			}
			wg.Wait()
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, name := range names {
		if r, err := aio.Open(name, 0); err == nil {
			t.Errorf("a %s of depth 0", name)
			_ = r.Close()
		}
	}
	if _, err := aio.Open("pread", 1); err == nil {
		t.Error("a ring of pread")
	}
	for _, name := range names {
		if r, err := aio.Open(name, aio.DepthMax+1); err == nil {
			t.Errorf("a %s of depth %d", name, aio.DepthMax+1)
			_ = r.Close()
		}
	}
}

// TestRingsAreGivenBack: a process that opens and closes stores keeps nothing.
func TestRingsAreGivenBack(t *testing.T) {
	// The next descriptor's number says how many are open.
	next := func() int {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		return fd
	}
	// Most systems have room for 65,536 reads of aio in all.
	for name, depth := range map[string]int{"aio": 1024, "uring": 8} {
		t.Run(name, func(t *testing.T) {
			open(t, name, 1)
			before := next()
			for range 70 {
				r, err := aio.Open(name, depth)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if after := next(); after > before+10 {
				t.Errorf("%d descriptors more", after-before)
			}
		})
	}
}
