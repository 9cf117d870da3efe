// Package aio is asynchronous reading by the kernel, in two ways behind one
// interface: io_uring and libaio's system calls. It knows descriptors and
// slots; internal/vfs makes files, turns and waiting of them.
//
//	Submit  slot 3: fd 9, 4 KiB at 81920  --->  kernel
//	Wait    slot 3: 4096                  <---  ring of completions, shared with the kernel
package aio

// Op is one positional read. Until Wait has returned its Slot, the kernel
// writes to Buf, which must not be on a stack, and FD must stay open.
type Op struct {
	Buf  []byte // 1 byte or more
	Off  int64
	FD   int
	Slot uint32 // names it; below the ring's depth, one op at a time
}

// Event is one finished read.
type Event struct {
	Slot uint32
	Res  int32 // bytes read, 0 at the end of the file, or a negative errno
}

// Ring is implemented by the two kernel interfaces. At most its depth of reads
// may be in flight.
type Ring interface {
	// Name returns "uring" or "aio".
	Name() string
	// Buffered reports whether reads of files without O_DIRECT are
	// asynchronous too.
	Buffered() bool
	// Submit starts reads, in order, and returns how many the kernel took and
	// how many system calls that needed. It does not wait for them and is safe
	// for concurrent use. Those not taken were not touched: the kernel lacks
	// memory, or refuses the first of them.
	Submit(ops []Op) (taken, calls int)
	// Wait collects finished reads; it blocks until there are atLeast, which
	// must be in flight or be about to be, and returns how many and the system
	// calls that needed. One caller at a time.
	Wait(events []Event, atLeast int) (n, calls int)
	// Close gives the ring back. Nothing may be in flight.
	Close() error
}
