//go:build linux

package aio

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/io_uring.h.
const (
	uringOpRead = 22

	uringEnterGetEvents = 1 << 0

	uringFeatSingleMmap = 1 << 0
	uringFeatNoDrop     = 1 << 1

	uringOffRing = 0
	uringOffSQEs = 0x10000000

	uringSQOverflow = 1 << 1 // in the flags of the submission ring
)

// uringParams is struct io_uring_params.
type uringParams struct {
	sqEntries, cqEntries      uint32
	flags                     uint32
	sqThreadCPU, sqThreadIdle uint32
	features, wqFD            uint32
	_                         [3]uint32
	sq                        struct {
		head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
		_                                                           uint64
	}
	cq struct {
		head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
		_                                                           uint64
	}
}

// uringSQE is struct io_uring_sqe.
type uringSQE struct {
	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	rwFlags  uint32
	userData uint64
	_        [3]uint64
}

// uringCQE is struct io_uring_cqe.
type uringCQE struct {
	userData uint64
	res      int32
	flags    uint32
}

// uring is one io_uring. Completions are run by the thread that submitted the
// read, whenever that thread enters or leaves the kernel; a thread that does
// neither is interrupted for it. Goroutines change threads, so the modes that
// bind a ring to one thread are out.
type uring struct {
	fd        int
	ringMem   []byte
	sqeMem    []byte
	sqHead    *uint32
	sqTail    *uint32
	sqFlags   *uint32
	sqMask    uint32
	sqes      []uringSQE
	cqHead    *uint32
	cqTail    *uint32
	cqMask    uint32
	cqes      []uringCQE
	sqEntries uint32

	mu sync.Mutex // guards what is submitted, over the system call
}

// openURing makes a ring for depth reads.
func openURing(depth int) (_ Ring, err error) {
	var p uringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(depth), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		if errno == unix.EPERM {
			return nil, fmt.Errorf("io_uring_setup: %w (see /proc/sys/kernel/io_uring_disabled)", errno)
		}
		return nil, fmt.Errorf("io_uring_setup: %w", errno)
	}
	u := &uring{fd: int(fd), sqEntries: p.sqEntries}
	defer func() {
		if err != nil {
			_ = u.Close()
		}
	}()
	if need := uint32(uringFeatSingleMmap | uringFeatNoDrop); p.features&need != need {
		return nil, fmt.Errorf("io_uring of this kernel is too old: features %#x", p.features)
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	ringBytes := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(uringCQE{}))))
	if u.ringMem, err = unix.Mmap(u.fd, uringOffRing, ringBytes, prot, flags); err != nil {
		return nil, fmt.Errorf("map the rings of io_uring: %w", err)
	}
	if u.sqeMem, err = unix.Mmap(u.fd, uringOffSQEs, int(p.sqEntries)*int(unsafe.Sizeof(uringSQE{})), prot, flags); err != nil {
		return nil, fmt.Errorf("map the entries of io_uring: %w", err)
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&u.ringMem[off])) }
	u.sqHead, u.sqTail, u.sqFlags, u.sqMask = word(p.sq.head), word(p.sq.tail), word(p.sq.flags), *word(p.sq.ringMask)
	u.cqHead, u.cqTail, u.cqMask = word(p.cq.head), word(p.cq.tail), *word(p.cq.ringMask)
	u.sqes = unsafe.Slice((*uringSQE)(unsafe.Pointer(&u.sqeMem[0])), p.sqEntries)
	u.cqes = unsafe.Slice((*uringCQE)(unsafe.Pointer(&u.ringMem[p.cq.cqes])), p.cqEntries)
	// Entry i of the ring is always entry i of the array.
	array := unsafe.Slice(word(p.sq.array), p.sqEntries)
	for i := range array {
		array[i] = uint32(i)
	}
	return u, nil
}

func (u *uring) Name() string { return "uring" }

// Buffered implements Ring: what is not in the page cache is read by the
// kernel's own workers.
func (u *uring) Buffered() bool { return true }

func (u *uring) enter(submit, wait int, flags uintptr) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), uintptr(submit), uintptr(wait), flags, 0, 0)
	return int(n), errno
}

// Submit implements Ring.
func (u *uring) Submit(ops []Op) (taken, calls int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for taken < len(ops) {
		// The kernel looks at the ring only within enter, so that all of it is free.
		part := ops[taken:min(len(ops), taken+int(u.sqEntries))]
		tail := *u.sqTail
		for i := range part {
			op := &part[i]
			u.sqes[(tail+uint32(i))&u.sqMask] = uringSQE{
				opcode:   uringOpRead,
				fd:       int32(op.FD),
				off:      uint64(op.Off),
				addr:     uint64(uintptr(unsafe.Pointer(unsafe.SliceData(op.Buf)))),
				len:      uint32(min(len(op.Buf), readBytesMax)),
				userData: uint64(op.Slot),
			}
		}
		atomic.StoreUint32(u.sqTail, tail+uint32(len(part)))
		calls++
		n, errno := u.enter(len(part), 0, 0)
		// What was not consumed is ours again.
		head := atomic.LoadUint32(u.sqHead)
		atomic.StoreUint32(u.sqTail, head)
		taken += int(head - tail)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			break
		}
	}
	runtime.KeepAlive(ops)
	return taken, calls
}

// Wait implements Ring.
func (u *uring) Wait(events []Event, atLeast int) (n, calls int) {
	for {
		n += u.reap(events[n:])
		overflow := atomic.LoadUint32(u.sqFlags)&uringSQOverflow != 0
		if n >= atLeast && (!overflow || calls > 0 || n == len(events)) {
			return n, calls
		}
		calls++
		if _, errno := u.enter(0, max(atLeast-n, 0), uringEnterGetEvents); errno != 0 && errno != unix.EINTR {
			// Busy, or out of memory. What is in flight writes to our memory all
			// the same, so there is no giving up.
			time.Sleep(time.Millisecond)
		}
	}
}

func (u *uring) reap(events []Event) (n int) {
	head, tail := *u.cqHead, atomic.LoadUint32(u.cqTail)
	if head == tail {
		return 0
	}
	for head != tail && n < len(events) {
		e := &u.cqes[head&u.cqMask]
		events[n] = Event{Slot: uint32(e.userData), Res: e.res}
		n++
		head++
	}
	atomic.StoreUint32(u.cqHead, head)
	return n
}

// Close implements Ring.
func (u *uring) Close() error {
	var err error
	if u.ringMem != nil {
		err = unix.Munmap(u.ringMem)
	}
	if u.sqeMem != nil {
		err = errors.Join(err, unix.Munmap(u.sqeMem))
	}
	return errors.Join(err, unix.Close(u.fd))
}
