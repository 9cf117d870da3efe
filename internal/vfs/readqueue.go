package vfs

// ReadQueue is one caller's reads under way. It is used by one goroutine at a
// time and allocates nothing once Init was called. Nothing is ever cancelled:
// who stops early calls Next until it returns nil, because until then the
// buffers belong to the device.
type ReadQueue struct {
	io    *IO
	fresh readList // added and not submitted; the owner's
	ready readList // finished; the owner's
	len   int      // the owner's

	// Guarded by io.mu:
	added  readList // submitted, not in flight
	done   readList // finished, not seen by the owner
	listed bool     // in io.turns
	next   *ReadQueue
	waiter waiter
}

// Init makes a zero queue one of e's. It is called once.
func (q *ReadQueue) Init(e *IO) {
	if q.io != nil {
		panic("vfs: a queue of reads was made twice")
	}
	q.io = e
	q.waiter.wake = make(chan struct{}, 1)
}

// Len returns how many reads were added and not yet returned.
func (q *ReadQueue) Len() int { return q.len }

// Add adds a read. r and r.Buf stay where they are, on the heap or outside of
// it, and are nobody else's, until Next or TryNext has returned r.
func (q *ReadQueue) Add(r *Read) {
	r.N, r.Err = 0, nil
	r.queue = q
	q.fresh.push(r)
	q.len++
}

// Submit gives what was added to the device, as far as Depth allows, one read
// of each queue in turn. It does not wait for any read.
func (q *ReadQueue) Submit() {
	if q.fresh.head == nil {
		return
	}
	e := q.io
	e.mu.Lock()
	e.listLocked(q)
	if e.inFlight >= e.depth && e.mayReapLocked() {
		// Perhaps the slots are only taken by what nobody has collected.
		e.reapLocked(0)
	}
	e.pumpLocked(nil)
	e.passOnLocked()
	e.mu.Unlock()
}

// TryNext is Next without waiting: nil means that none has finished.
func (q *ReadQueue) TryNext() *Read {
	if q.fresh.head == nil && q.ready.head != nil {
		return q.take()
	}
	if q.len == 0 {
		return nil
	}
	e := q.io
	e.mu.Lock()
	e.listLocked(q)
	e.pumpLocked(nil)
	if q.ready.head == nil && q.done.head == nil && e.mayReapLocked() {
		e.reapLocked(0)
		e.pumpLocked(nil)
	}
	q.ready.append(&q.done)
	e.passOnLocked()
	e.mu.Unlock()
	return q.take()
}

// Next submits what was added and returns a finished read, in any order. It
// waits if there is none, and returns nil if none is under way. N and Err are
// set as ReadMany sets them.
func (q *ReadQueue) Next() *Read {
	if q.fresh.head == nil && q.ready.head != nil {
		return q.take()
	}
	if q.len == 0 {
		return nil
	}
	e := q.io
	e.mu.Lock()
	e.listLocked(q)
	if q.ready.head != nil {
		e.pumpLocked(nil)
	}
	for q.ready.head == nil {
		own := e.pumpLocked(q)
		if own == nil && e.pool.head != nil && e.pool.head.queue == q {
			// Submitted earlier, and no goroutine has come to it.
			own = e.pool.pop()
		}
		if own != nil {
			e.mu.Unlock()
			own.do()
			e.mu.Lock()
			e.stats.Alone++
			e.finishLocked(own)
			e.pumpLocked(nil)
		}
		if q.done.head != nil {
			q.ready.append(&q.done)
			break
		}
		if e.mayReapLocked() {
			e.reapLocked(1)
			continue
		}
		e.parkLocked(&q.waiter)
	}
	e.passOnLocked()
	e.mu.Unlock()
	return q.take()
}

// submitTogether is how many added reads are worth a system call while others
// can be taken without one: it saves a fifth of the processor time of a read,
// and more at a time saves no more.
const submitTogether = 8

// Take returns a read that finished earlier, without a system call and without
// submitting what was added; nil: call Next, or TryNext. Who adds a read for
// each one it takes thus submits several at once; before it turns to anything
// else it calls Submit.
func (q *ReadQueue) Take() *Read {
	if q.fresh.n >= submitTogether {
		return nil
	}
	return q.take()
}

// take returns a finished read, if there is one.
func (q *ReadQueue) take() *Read {
	r := q.ready.pop()
	if r == nil {
		return nil
	}
	q.len--
	r.queue = nil
	if r.again {
		r.readAgain()
	}
	return r
}
