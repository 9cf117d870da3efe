//go:build linux

package vfs

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"fluxkv/internal/aio"
)

// lateRing is a ring with every liberty the kernel has: it takes fewer reads
// than it is given, reads as late as it can, and in any order, and stops short or
// fails where it likes.
type lateRing struct {
	t     *testing.T
	calm  bool // takes all, reads all
	depth int

	mu      sync.Mutex
	some    sync.Cond
	rnd     *rand.Rand
	waiting bool
	held    bool // nothing finishes
	ops     []aio.Op
	order   []int64 // offsets, as taken
	refused int
	cut     int
}

func newLateRing(t *testing.T, depth int) *lateRing {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := &lateRing{t: t, depth: depth, rnd: rand.New(rand.NewPCG(seed, 0))}
	r.some.L = &r.mu
	return r
}

func (r *lateRing) Name() string   { return "late" }
func (r *lateRing) Buffered() bool { return true }

func (r *lateRing) Close() error {
	if len(r.ops) > 0 {
		r.t.Errorf("closed with %d reads in flight", len(r.ops))
	}
	return nil
}

func (r *lateRing) Submit(ops []aio.Op) (taken, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken = len(ops)
	if !r.calm && r.rnd.IntN(10) == 0 {
		taken = r.rnd.IntN(len(ops) + 1)
		r.refused += len(ops) - taken
	}
	for _, op := range ops[:taken] {
		for i := range r.ops {
			if r.ops[i].Slot == op.Slot {
				r.t.Errorf("slot %d is used twice", op.Slot)
			}
		}
		r.ops = append(r.ops, op)
		r.order = append(r.order, op.Off)
	}
	if len(r.ops) > r.depth {
		r.t.Errorf("%d reads in flight", len(r.ops))
	}
	r.some.Signal()
	return taken, 1
}

func (r *lateRing) Wait(events []aio.Event, atLeast int) (n, calls int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting {
		r.t.Error("two wait at once")
	}
	r.waiting = true
	for len(r.ops) < atLeast || r.held && atLeast > 0 {
		r.some.Wait()
	}
	r.waiting = false
	if r.held || len(r.ops) == 0 {
		return 0, 1
	}
	want := min(len(events), max(atLeast, 1+r.rnd.IntN(len(r.ops))))
	for ; n < want; n++ {
		at := r.rnd.IntN(len(r.ops))
		op := r.ops[at]
		r.ops = slices.Delete(r.ops, at, at+1)
		buf := op.Buf
		if !r.calm && r.rnd.IntN(10) == 0 {
			buf = buf[:r.rnd.IntN(len(buf))]
		}
		res, err := unix.Pread(op.FD, buf, op.Off)
		if err == unix.EBADF {
			r.t.Error("the descriptor was closed under a read in flight")
		}
		if err != nil {
			res = -int(err.(unix.Errno))
		}
		if !r.calm && r.rnd.IntN(20) == 0 {
			res = -int(unix.EIO)
		}
		if res < len(op.Buf) {
			r.cut++
		}
		events[n] = aio.Event{Slot: op.Slot, Res: int32(res)}
	}
	return n, 1
}

func (r *lateRing) hold(held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
	r.some.Signal()
}

// lateFile makes a file of n bytes, byte i being i/16, opened as often as
// asked for.
func lateFile(t *testing.T, n, opens int) []File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	f, err := OS.Create(name, OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, n)
	for i := range content {
		content[i] = byte(i / 16)
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	files := make([]File, opens)
	for i := range files {
		if files[i], err = OS.Open(name, OpenOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = files[i].Close() })
	}
	return files
}

func wantLate(t *testing.T, r *Read) {
	t.Helper()
	if r.Err != nil || r.N != len(r.Buf) {
		t.Errorf("read at %d: %d, %v", r.Off, r.N, r.Err)
		return
	}
	for i, c := range r.Buf {
		if c != byte((r.Off+int64(i))/16) {
			t.Errorf("read at %d: byte %d is %d", r.Off, i, c)
			return
		}
	}
	clear(r.Buf)
}

// TestF6_WhatAnEngineLeavesOutIsReadAgain: reads that the kernel refuses, cuts
// short or fails are done again, so that a caller sees what File.ReadAt says.
func TestF6_WhatAnEngineLeavesOutIsReadAgain(t *testing.T) {
	const depth = 7
	ring := newLateRing(t, depth)
	e := newIO(ring, depth)
	files := lateFile(t, 200_000, 3)
	files[2] = struct{ File }{files[2]} // for the pool
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			var q ReadQueue
			q.Init(e)
			reads := make([]Read, 9)
			for i := range reads {
				reads[i].Buf = make([]byte, 8192)
			}
			for range 30 {
				n := 1 + rnd.IntN(len(reads))
				for i := range reads[:n] {
					reads[i].File, reads[i].Off = files[rnd.IntN(3)], int64(rnd.IntN(190_000))
					q.Add(&reads[i])
				}
				for r := q.Next(); r != nil; r = q.Next() {
					wantLate(t, r)
					n--
				}
				if n != 0 {
					t.Errorf("%d reads did not come back", n)
				}
			}
		}()
	}
	wg.Wait()
	s := e.Stats()
	if ring.refused == 0 || ring.cut == 0 || s.Retried != uint64(ring.refused+ring.cut) {
		t.Errorf("%d refused and %d cut, %+v", ring.refused, ring.cut, s)
	}
	if s.InFlight != 0 || s.Queued != 0 || len(e.freeSlots) != depth || e.submitted != 0 || e.waiters.head != nil {
		t.Errorf("not all is over: %+v", s)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestR20_DescriptorsAndBuffersStayWithTheKernel closes files with reads in
// flight that finish late. The ring notices a descriptor that went too early.
func TestR20_DescriptorsAndBuffersStayWithTheKernel(t *testing.T) {
	for _, owner := range []bool{true, false} {
		ring := newLateRing(t, 8)
		ring.calm = true
		e := newIO(ring, 8)
		f := lateFile(t, 100_000, 1)[0]
		var q ReadQueue
		q.Init(e)
		reads := make([]Read, 12)
		for i := range reads {
			reads[i] = Read{File: f, Buf: make([]byte, 100), Off: int64(i) * 1000}
			q.Add(&reads[i])
		}
		ring.hold(true)
		q.Submit()
		closed := make(chan error)
		go func() { closed <- f.Close() }()
		// Close has begun when the file takes no more reads.
		for f.(*osFile).acquireRead(e) {
			e.mu.Lock()
			if f.(*osFile).releaseRead() {
				e.wakeClosersLocked(f.(*osFile))
			}
			e.mu.Unlock()
		}
		select {
		case err := <-closed:
			t.Fatalf("closed under reads in flight: %v", err)
		default:
		}
		ring.hold(false)
		if owner {
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
		}
		n, late := 0, 0
		for r := q.Next(); r != nil; r = q.Next() {
			if n++; errors.Is(r.Err, fs.ErrClosed) {
				late++
				continue
			}
			wantLate(t, r)
		}
		if !owner {
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
		}
		// Eight were in flight; four came to a file that was being closed.
		if n != 12 || late > 4 {
			t.Errorf("%d reads came back, %d of them closed", n, late)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestIOTakesTurnsInTheKernel: one read of each queue, whatever is waiting.
func TestIOTakesTurnsInTheKernel(t *testing.T) {
	ring := newLateRing(t, 4)
	ring.calm = true
	e := newIO(ring, 4)
	f := lateFile(t, 200_000, 1)[0]
	var long, short ReadQueue
	long.Init(e)
	short.Init(e)
	for i := range 1000 {
		long.Add(&Read{File: f, Buf: make([]byte, 16), Off: int64(i)})
	}
	ring.hold(true)
	long.Submit()
	for i := range 3 {
		short.Add(&Read{File: f, Buf: make([]byte, 16), Off: int64(10_000 + i)})
	}
	short.Submit()
	ring.hold(false)
	for short.Next() != nil {
	}
	for long.Next() != nil {
	}
	if want := []int64{0, 1, 2, 3, 4, 10_000, 5, 10_001, 6, 10_002, 7}; !slices.Equal(ring.order[:len(want)], want) {
		t.Errorf("reads were started in the order %d, want %d", ring.order[:len(want)], want)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestTakeMakesNoSystemCall: what is finished is taken first, and what was added
// meanwhile is submitted together.
func TestTakeMakesNoSystemCall(t *testing.T) {
	const depth = 32
	ring := newLateRing(t, depth)
	ring.calm = true
	e := newIO(ring, depth)
	f := lateFile(t, 100_000, 1)[0]
	var q ReadQueue
	q.Init(e)
	if q.Take() != nil {
		t.Error("a read came out of nothing")
	}
	add := func(n int) {
		for i := range n {
			q.Add(&Read{File: f, Buf: make([]byte, 100), Off: int64(i)})
		}
	}
	add(depth)
	q.Submit()
	for q.done.n < depth {
		e.mu.Lock()
		e.reapLocked(1)
		e.mu.Unlock()
	}
	wantLate(t, q.Next())
	calls := func() uint64 { s := e.Stats(); return s.Submits + s.Waits }
	before := calls()
	for range submitTogether {
		r := q.Take()
		if r == nil {
			t.Fatal("nothing to take")
		}
		wantLate(t, r)
		add(1)
	}
	if q.Take() != nil {
		t.Error("it takes on without submitting what was added")
	}
	if got := calls(); got != before {
		t.Errorf("%d system calls", got-before)
	}
	wantLate(t, q.Next())
	if got := calls(); got != before+1 {
		t.Errorf("%d system calls to submit %d reads", got-before, submitTogether)
	}
	for q.Next() != nil {
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestAFileOfTwoIOs: reads of a file that another IO reads too are done without
// the kernel's engine, so that a Close knows whom to ask.
func TestAFileOfTwoIOs(t *testing.T) {
	f := lateFile(t, 100_000, 1)[0]
	ring := newLateRing(t, 4)
	ring.calm = true
	a, b := newIO(ring, 4), newIO(newLateRing(t, 4), 4)
	var q ReadQueue
	q.Init(a)
	reads := make([]Read, 6)
	for i := range reads {
		reads[i] = Read{File: f, Buf: make([]byte, 100), Off: int64(i)}
	}
	for i := range 3 {
		q.Add(&reads[i])
	}
	ring.hold(true)
	q.Submit()
	b.ReadMany(reads[3:])
	if s := b.Stats(); s.Submits != 0 || s.Reads != 3 {
		t.Errorf("the second IO: %+v", s)
	}
	ring.hold(false)
	for q.Next() != nil {
	}
	for i := range reads {
		wantLate(t, &reads[i])
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}
