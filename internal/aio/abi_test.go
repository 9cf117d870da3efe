//go:build linux

package aio

import (
	"os"
	"testing"
	"unsafe"
)

// TestLayouts compares our structs with the kernel's headers.
func TestLayouts(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want uintptr
	}{
		{"struct iocb", unsafe.Sizeof(iocb{}), 64},
		{"iocb.aio_fildes", unsafe.Offsetof(iocb{}.fd), 20},
		{"iocb.aio_buf", unsafe.Offsetof(iocb{}.buf), 24},
		{"iocb.aio_offset", unsafe.Offsetof(iocb{}.offset), 40},
		{"struct io_event", unsafe.Sizeof(ioEvent{}), 32},
		{"struct aio_ring", unsafe.Sizeof(aioRing{}), 32},
		{"aio_ring.magic", unsafe.Offsetof(aioRing{}.magic), 16},
		{"struct io_uring_params", unsafe.Sizeof(uringParams{}), 120},
		{"io_uring_params.sq_off", unsafe.Offsetof(uringParams{}.sq), 40},
		{"io_uring_params.cq_off", unsafe.Offsetof(uringParams{}.cq), 80},
		{"struct io_uring_sqe", unsafe.Sizeof(uringSQE{}), 64},
		{"io_uring_sqe.user_data", unsafe.Offsetof(uringSQE{}.userData), 32},
		{"struct io_uring_cqe", unsafe.Sizeof(uringCQE{}), 16},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, tc.got, tc.want)
		}
	}
}

// TestAIOWithoutItsRing: a kernel whose ring has another layout is asked for
// what has finished.
func TestAIOWithoutItsRing(t *testing.T) {
	r, err := openAIO(4)
	if err != nil {
		t.Skip(err)
	}
	a := r.(*libaio)
	if a.ring == nil {
		t.Skip("the ring is of an unknown layout")
	}
	a.ring, a.events = nil, nil
	var events [4]Event
	if n, calls := a.Wait(events[:], 0); n != 0 || calls != 1 {
		t.Errorf("%d events out of nothing, in %d calls", n, calls)
	}
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	bufs := make([]byte, 300)
	ops := []Op{{Buf: bufs[:100], FD: fd, Slot: 1}, {Buf: bufs[100:200], FD: fd, Slot: 2}, {Buf: bufs[200:], FD: fd, Slot: 3}}
	if taken, _ := a.Submit(ops); taken != 3 {
		t.Fatalf("%d taken", taken)
	}
	seen := map[uint32]bool{}
	for len(seen) < 3 {
		n, _ := a.Wait(events[:2], 1)
		for _, e := range events[:n] {
			if e.Res != 100 || seen[e.Slot] {
				t.Errorf("%+v", e)
			}
			seen[e.Slot] = true
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
