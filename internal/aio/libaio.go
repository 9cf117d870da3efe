//go:build linux

package aio

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iocb is struct iocb of linux/aio_abi.h. What is not named stays zero: no
// flags, and opcode 0, which is pread.
type iocb struct {
	data   uint64
	_      [2]uint32 // key and flags of the read, in the machine's order
	_      uint16    // opcode
	_      int16     // priority
	fd     uint32
	buf    uint64
	nbytes uint64
	offset int64
	_      uint64
	_      [2]uint32 // flags, eventfd
}

// ioEvent is struct io_event.
type ioEvent struct {
	data uint64
	obj  uint64
	res  int64
	res2 int64
}

// aioRing is struct aio_ring, the head of the ring of finished reads; an array
// of nr ioEvents follows it. The kernel maps it into the process and calls its
// address the context's id.
type aioRing struct {
	id, nr           uint32
	head, tail       uint32 // ours when we reap, the kernel's; both below nr
	magic            uint32
	compat, incompat uint32
	headerBytes      uint32
}

const aioRingMagic = 0xa10a10a1

// readBytesMax is the largest read the kernel does at once; it cuts longer ones
// short, as it does with pread.
const readBytesMax = 1<<31 - 4096

// libaio is io_submit and its relatives, without the library. Every thread may
// submit and every thread may collect, and what has finished is found without
// a system call.
type libaio struct {
	ctx    uintptr
	ring   *aioRing  // nil: of a layout we do not know
	events []ioEvent // ring's
	got    []ioEvent // where io_getevents puts its answers; the waiter's

	mu    sync.Mutex
	spare []*aioBatch
}

// aioBatch is what one io_submit points to.
type aioBatch struct {
	cbs  []iocb
	ptrs []*iocb // to cbs
}

// openAIO makes a context for depth reads.
func openAIO(depth int) (Ring, error) {
	a := &libaio{got: make([]ioEvent, depth)}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, uintptr(depth), uintptr(unsafe.Pointer(&a.ctx)), 0); errno != 0 {
		if errno == unix.EAGAIN {
			return nil, fmt.Errorf("io_setup for %d reads: %w (see /proc/sys/fs/aio-max-nr)", depth, errno)
		}
		return nil, fmt.Errorf("io_setup for %d reads: %w", depth, errno)
	}
	// Reads may finish without a call of io_getevents, so that reading alone
	// would not find out that it is forbidden.
	var zero unix.Timespec
	_, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.ctx, 0, uintptr(depth), uintptr(unsafe.Pointer(&a.got[0])), uintptr(unsafe.Pointer(&zero)), 0)
	if errno != 0 && errno != unix.EINTR {
		_ = a.Close()
		return nil, fmt.Errorf("io_getevents: %w", errno)
	}
	// The id is the address of memory that the kernel mapped.
	ring := *(**aioRing)(unsafe.Pointer(&a.ctx))
	if ring.magic == aioRingMagic && ring.incompat == 0 && ring.headerBytes == uint32(unsafe.Sizeof(*ring)) {
		a.ring = ring
		a.events = unsafe.Slice((*ioEvent)(unsafe.Add(unsafe.Pointer(ring), ring.headerBytes)), ring.nr)
	}
	return a, nil
}

func (a *libaio) Name() string { return "aio" }

// Buffered implements Ring: io_submit reads files without O_DIRECT at once.
func (a *libaio) Buffered() bool { return false }

func (a *libaio) batch(n int) *aioBatch {
	a.mu.Lock()
	var b *aioBatch
	if last := len(a.spare) - 1; last >= 0 {
		b, a.spare = a.spare[last], a.spare[:last]
	}
	a.mu.Unlock()
	if b == nil || len(b.cbs) < n {
		b = &aioBatch{cbs: make([]iocb, max(n, len(a.got))), ptrs: make([]*iocb, max(n, len(a.got)))}
		for i := range b.cbs {
			b.ptrs[i] = &b.cbs[i]
		}
	}
	return b
}

// Submit implements Ring.
func (a *libaio) Submit(ops []Op) (taken, calls int) {
	if len(ops) == 0 {
		return 0, 0
	}
	b := a.batch(len(ops))
	for i := range ops {
		op := &ops[i]
		b.cbs[i] = iocb{
			data:   uint64(op.Slot),
			fd:     uint32(op.FD),
			buf:    uint64(uintptr(unsafe.Pointer(unsafe.SliceData(op.Buf)))),
			nbytes: uint64(min(len(op.Buf), readBytesMax)),
			offset: op.Off,
		}
	}
	for taken < len(ops) {
		calls++
		n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, a.ctx, uintptr(len(ops)-taken), uintptr(unsafe.Pointer(&b.ptrs[taken])))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			break
		}
		taken += int(n)
	}
	runtime.KeepAlive(b)
	runtime.KeepAlive(ops)
	a.mu.Lock()
	a.spare = append(a.spare, b)
	a.mu.Unlock()
	return taken, calls
}

// Wait implements Ring.
func (a *libaio) Wait(events []Event, atLeast int) (n, calls int) {
	for {
		n += a.reap(events[n:])
		if n >= atLeast && (n > 0 || a.ring != nil) {
			return n, calls
		}
		want := min(len(events)-n, len(a.got))
		var zero unix.Timespec
		var timeout *unix.Timespec // nil: for ever
		if n >= atLeast {
			timeout = &zero
		}
		calls++
		got, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.ctx, uintptr(max(atLeast-n, 0)), uintptr(want),
			uintptr(unsafe.Pointer(&a.got[0])), uintptr(unsafe.Pointer(timeout)), 0)
		if errno != 0 {
			if errno != unix.EINTR {
				// Nothing is known to cause it. What is in flight writes to our
				// memory all the same, so there is no giving up.
				time.Sleep(time.Millisecond)
			}
			if timeout != nil {
				return n, calls
			}
			continue
		}
		for _, e := range a.got[:got] {
			events[n] = Event{Slot: uint32(e.data), Res: int32(max(e.res, -4095))}
			n++
		}
		if n >= atLeast {
			return n, calls
		}
	}
}

// reap takes finished reads from the mapped ring. Only io_getevents does that
// besides, and both are the waiter's.
func (a *libaio) reap(events []Event) (n int) {
	if a.ring == nil {
		return 0
	}
	head, tail := a.ring.head, atomic.LoadUint32(&a.ring.tail)
	if head == tail {
		return 0
	}
	for head != tail && n < len(events) {
		e := &a.events[head]
		events[n] = Event{Slot: uint32(e.data), Res: int32(max(e.res, -4095))}
		n++
		if head++; head == a.ring.nr {
			head = 0
		}
	}
	atomic.StoreUint32(&a.ring.head, head)
	return n
}

// Close implements Ring. It waits for reads in flight, of which there must be none.
func (a *libaio) Close() error {
	if _, _, errno := unix.Syscall(unix.SYS_IO_DESTROY, a.ctx, 0, 0); errno != 0 {
		return fmt.Errorf("io_destroy: %w", errno)
	}
	a.ring, a.events = nil, nil
	return nil
}
