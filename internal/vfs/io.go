package vfs

import (
	"fmt"
	"io/fs"
	"sync"

	"fluxkv/internal/aio"
)

// IOOptions says how an IO reads.
type IOOptions struct {
	// Engine is how reads reach the device: "uring", "aio" or "pread". Empty:
	// the best that a probe finds usable.
	Engine string
	// Depth is the most reads in flight at the device, of all callers together,
	// 1 to IODepthMax. More raises the rate of a flash device and the time of
	// each read. Default 128.
	Depth int
	// Dir is where the probe writes and reads a file, on the file system of the
	// store. Needed by engines of the kernel only.
	Dir string
	// Buffered says that files are read through the page cache.
	Buffered bool
	// FS is OS or a test disk. Anything but OSFS is read by "pread", through
	// File.ReadAt.
	FS FS
	// Logf is told, once, which engine was chosen and why not a better one. It
	// may be nil.
	Logf func(format string, args ...any)
}

const (
	// ioDepthDefault is where the flash devices measured reach their best rate.
	ioDepthDefault = 128
	// IODepthMax bounds IOOptions.Depth: with the pread engine each read in
	// flight holds a thread of the system, and 1,024 are 8 MiB of stacks in
	// the kernel.
	IODepthMax = 1024
)

// The names of the engines.
const (
	EngineURing = "uring"
	EngineAIO   = "aio"
	EnginePread = "pread"
)

// IOStats counts what an IO did since it was made.
type IOStats struct {
	Reads    uint64 `json:"reads"`     // finished, whatever their outcome
	Bytes    uint64 `json:"bytes"`     // that they brought
	Submits  uint64 `json:"submits"`   // system calls that started reads
	Waits    uint64 `json:"waits"`     // system calls that collected finished reads
	Alone    uint64 `json:"alone"`     // reads that their caller did itself, without an engine
	Pooled   uint64 `json:"pooled"`    // reads by goroutines of the pool
	Retried  uint64 `json:"retried"`   // reads that an engine of the kernel left short, failed or refused: done again by File.ReadAt
	InFlight int    `json:"in_flight"` // at the device now, or given to the pool
	Queued   int    `json:"queued"`    // submitted and not in flight yet
}

// IO does the reads of many callers together on one engine (docs/io.md). There is one per
// store; it is safe for concurrent use.
//
//	queue A  [r][r][r]  \                            slot 0  A's read
//	queue B  [r]         > one of each in turn ----> slot 1  B's read
//	queue C  [r][r]     /                            ..Depth
//
// No thread is dedicated to it. Callers that wait take turns: one of them, the
// reaper, waits in the kernel for whatever finishes first, hands finished
// reads to their queues, starts what is next, and leaves the role to another
// one when its own read is there. All others sleep.
//
// What no engine of the kernel can read, a file of a test disk for one, is
// read by goroutines through File.ReadAt, within the same Depth. The pread
// engine is nothing but this.
type IO struct {
	ring  aio.Ring // nil: pread
	depth int
	help  func() // helpPool; starting a kept func allocates nothing

	queues sync.Pool // of ReadMany

	// mu guards everything below, and the parts of ReadQueue and Read that say
	// so. It is taken before osFile.asyncMu and never held over a system call.
	mu     sync.Mutex
	closed bool
	// turns lists the queues that have reads to start; each comes once.
	turns    queueList
	queued   int
	inFlight int

	slots     []*Read  // by slot: what the kernel reads into; keeps buffers reachable
	freeSlots []uint32 // a stack
	submitted int      // taken by the kernel, less those handed to their queues; below 0 while a submitter is late
	reaping   bool     // somebody is the reaper, and owns events
	events    []aio.Event
	batches   []*ioBatch // spare ones
	waiters   waiterList // asleep, longest first
	heir      *waiter    // woken to become the reaper and not there yet

	pool     readList // in flight, waiting for a goroutine
	starting int      // goroutines that are on their way to it

	stats IOStats
}

// ioBatch is what one caller gives to the kernel at once.
type ioBatch struct {
	ops []aio.Op
}

// NewIO returns an IO. An engine that was asked for by name and that the
// kernel refuses is an error that says why.
func NewIO(o IOOptions) (*IO, error) {
	if o.Depth == 0 {
		o.Depth = ioDepthDefault
	}
	if o.Depth < 0 || o.Depth > IODepthMax {
		return nil, fmt.Errorf("I/O depth %d is not within 1 to %d", o.Depth, IODepthMax)
	}
	ring, err := openRing(o)
	if err != nil {
		return nil, err
	}
	return newIO(ring, o.Depth), nil
}

// newIO takes the ring over; nil means pread.
func newIO(ring aio.Ring, depth int) *IO {
	e := &IO{ring: ring, depth: depth}
	e.help = e.helpPool
	if ring != nil {
		e.slots = make([]*Read, depth)
		e.events = make([]aio.Event, depth)
		e.freeSlots = make([]uint32, depth)
		for i := range e.freeSlots {
			e.freeSlots[i] = uint32(depth - 1 - i)
		}
	}
	e.queues.New = func() any {
		q := new(ReadQueue)
		q.Init(e)
		return q
	}
	return e
}

// Engine returns the name of the engine in use.
func (e *IO) Engine() string {
	if e.ring == nil {
		return EnginePread
	}
	return e.ring.Name()
}

// Depth returns the most reads in flight.
func (e *IO) Depth() int { return e.depth }

// Stats returns the counts so far.
func (e *IO) Stats() IOStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.InFlight, s.Queued = e.inFlight, e.queued
	return s
}

// Close waits for what was submitted, which may mean to read it, and gives the
// engine back. Reads added later fail with fs.ErrClosed; those finished can
// still be taken from their queues. Closing again returns fs.ErrClosed.
func (e *IO) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return fs.ErrClosed
	}
	e.closed = true
	w := newWaiter()
	for e.inFlight > 0 || e.queued > 0 {
		e.waitLocked(w)
	}
	e.passOnLocked()
	e.mu.Unlock()
	if e.ring == nil {
		return nil
	}
	return e.ring.Close()
}

// drainFile waits until no read of f is in the kernel. f must refuse new ones.
func (e *IO) drainFile(f *osFile) {
	e.mu.Lock()
	w := newWaiter()
	w.file = f
	for f.reading() {
		e.waitLocked(w)
	}
	e.passOnLocked()
	e.mu.Unlock()
}

// waitLocked waits for something to finish on behalf of w, which is no queue.
// It returns with mu held, maybe for nothing.
func (e *IO) waitLocked(w *waiter) {
	if e.pumpLocked(nil); e.mayReapLocked() {
		e.reapLocked(1)
		e.pumpLocked(nil)
		return
	}
	e.parkLocked(w)
}

// ReadMany does all reads, many at once, and returns when the last is done.
// Files may repeat; buffers must not overlap, and neither they nor reads may
// be on a stack. It keeps no slice.
func (e *IO) ReadMany(reads []Read) {
	q := e.queues.Get().(*ReadQueue)
	for i := range reads {
		q.Add(&reads[i])
	}
	for q.Next() != nil {
	}
	e.queues.Put(q)
}

// listLocked lets q's fresh reads take turns with those of other queues.
func (e *IO) listLocked(q *ReadQueue) {
	if q.fresh.head == nil {
		return
	}
	if e.closed {
		for r := q.fresh.pop(); r != nil; r = q.fresh.pop() {
			r.Err = errIOClosed
			q.ready.push(r)
		}
		return
	}
	e.queued += q.fresh.n
	q.added.append(&q.fresh)
	if !q.listed {
		q.listed = true
		e.turns.push(q)
	}
}

var errIOClosed = fmt.Errorf("read after the end of I/O: %w", fs.ErrClosed)

// pumpLocked starts reads while slots are free. When q is not nil, its caller
// is about to wait for a read of q: one that only a thread can do, or that is
// the only one of all, is returned for the caller to do itself. It gives mu up
// for system calls.
func (e *IO) pumpLocked(q *ReadQueue) (own *Read) {
	for e.turns.head != nil && e.inFlight < e.depth {
		var b *ioBatch
		for e.turns.head != nil && e.inFlight < e.depth {
			turn := e.turns.pop()
			r := turn.added.pop()
			if turn.added.head != nil {
				e.turns.push(turn)
			} else {
				turn.listed = false
			}
			e.queued--
			e.inFlight++
			if q == turn && own == nil && e.inFlight == 1 && e.turns.head == nil {
				own = r
				break
			}
			if e.ring != nil && r.startAsync(e) {
				if b == nil {
					b = e.batchLocked()
				}
				slot := e.freeSlots[len(e.freeSlots)-1]
				e.freeSlots = e.freeSlots[:len(e.freeSlots)-1]
				e.slots[slot] = r
				b.ops = append(b.ops, aio.Op{FD: r.async.fd, Slot: slot, Buf: r.Buf, Off: r.Off})
				continue
			}
			if q == turn && own == nil {
				own = r
				continue
			}
			e.pool.push(r)
		}
		e.startHelpersLocked()
		if b != nil {
			e.submitLocked(b)
		}
	}
	return own
}

func (e *IO) batchLocked() *ioBatch {
	if n := len(e.batches); n > 0 {
		b := e.batches[n-1]
		e.batches = e.batches[:n-1]
		return b
	}
	return &ioBatch{ops: make([]aio.Op, 0, e.depth)}
}

// submitLocked gives a batch to the kernel. What the kernel does not take goes
// to the pool, whose File.ReadAt says what is wrong, if anything is.
func (e *IO) submitLocked(b *ioBatch) {
	e.mu.Unlock()
	n, calls := e.ring.Submit(b.ops)
	e.mu.Lock()
	e.submitted += n
	e.stats.Submits += uint64(calls)
	for i := n; i < len(b.ops); i++ {
		r := e.freeSlotLocked(b.ops[i].Slot)
		e.stats.Retried++
		e.pool.push(r)
	}
	e.startHelpersLocked()
	clear(b.ops)
	b.ops = b.ops[:0]
	e.batches = append(e.batches, b)
}

// freeSlotLocked takes a read back from the kernel, which must have no use for
// its buffer and descriptor any more.
func (e *IO) freeSlotLocked(slot uint32) *Read {
	r := e.slots[slot]
	e.slots[slot] = nil
	e.freeSlots = append(e.freeSlots, slot)
	f := r.async
	r.async = nil
	if f.releaseRead() {
		e.wakeClosersLocked(f)
	}
	return r
}

// mayReapLocked reports whether the caller may become the reaper: nobody is,
// and something will finish.
func (e *IO) mayReapLocked() bool { return !e.reaping && e.submitted > 0 }

// reapLocked makes the caller the reaper until at least atLeast reads have
// finished, and hands those that did to their queues. It gives mu up while it waits.
func (e *IO) reapLocked(atLeast int) {
	e.reaping = true
	e.mu.Unlock()
	n, calls := e.ring.Wait(e.events, atLeast)
	e.mu.Lock()
	e.reaping = false
	e.stats.Waits += uint64(calls)
	e.submitted -= n
	for _, event := range e.events[:n] {
		r := e.freeSlotLocked(event.Slot)
		raceWrote(r.Buf)
		if r.N = int(max(event.Res, 0)); r.N < len(r.Buf) {
			// The end of the file, an error, or a device that stopped in the
			// middle. Who takes the read finds out.
			r.again = true
			e.stats.Retried++
		}
		e.finishLocked(r)
	}
}

// finishLocked gives a read back to its queue.
func (e *IO) finishLocked(r *Read) {
	e.inFlight--
	e.stats.Reads++
	e.stats.Bytes += uint64(r.N)
	q := r.queue
	q.done.push(r)
	e.wakeLocked(&q.waiter)
	if e.closed && e.inFlight == 0 && e.queued == 0 {
		e.wakeClosersLocked(nil)
	}
}

// passOnLocked makes sure that there is a reaper while anybody sleeps who may
// be waiting for the kernel. Whoever gives mu up for good calls it.
func (e *IO) passOnLocked() {
	if e.heir == nil && e.waiters.head != nil && e.mayReapLocked() {
		e.heir = e.waiters.head
		e.wakeLocked(e.heir)
	}
}

// parkLocked sleeps until somebody wakes w.
func (e *IO) parkLocked(w *waiter) {
	w.parked = true
	e.waiters.push(w)
	e.mu.Unlock()
	<-w.wake
	e.mu.Lock()
	if e.heir == w {
		e.heir = nil
	}
}

func (e *IO) wakeLocked(w *waiter) {
	if w.parked {
		w.parked = false
		e.waiters.remove(w)
		w.wake <- struct{}{} // has room: one for each time it parks
	}
}

// wakeClosersLocked wakes those who wait to close f, or the IO when f is nil.
func (e *IO) wakeClosersLocked(f *osFile) {
	for w := e.waiters.head; w != nil; {
		next := w.next
		if w.closer && w.file == f {
			e.wakeLocked(w)
		}
		w = next
	}
}

// startHelpersLocked starts a goroutine for each read of the pool that none is
// on its way to.
func (e *IO) startHelpersLocked() {
	for e.pool.n > e.starting {
		e.starting++
		go e.help()
	}
}

// helpPool reads for others until there is nothing to read. Helpers are as many as
// reads in the pool's hands, so Depth bounds them.
func (e *IO) helpPool() {
	e.mu.Lock()
	e.starting--
	for r := e.pool.pop(); r != nil; r = e.pool.pop() {
		e.mu.Unlock()
		r.do()
		e.mu.Lock()
		e.stats.Pooled++
		e.finishLocked(r)
		e.starting++ // this one comes for what is next
		e.pumpLocked(nil)
		e.starting--
	}
	e.passOnLocked()
	e.mu.Unlock()
}
