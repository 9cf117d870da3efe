package vfs

// waiter is somebody who sleeps until something has finished.
type waiter struct {
	wake   chan struct{} // capacity 1
	closer bool          // not a queue
	file   *osFile       // closer: the file it closes; nil: the IO

	// Guarded by IO.mu:
	parked     bool
	prev, next *waiter
}

func newWaiter() *waiter { return &waiter{wake: make(chan struct{}, 1), closer: true} }

type waiterList struct{ head, tail *waiter }

func (l *waiterList) push(w *waiter) {
	w.prev, w.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = w
	} else {
		l.head = w
	}
	l.tail = w
}

func (l *waiterList) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.tail = w.prev
	}
	w.prev, w.next = nil, nil
}

type queueList struct{ head, tail *ReadQueue }

func (l *queueList) push(q *ReadQueue) {
	if l.tail != nil {
		l.tail.next = q
	} else {
		l.head = q
	}
	l.tail = q
}

func (l *queueList) pop() *ReadQueue {
	q := l.head
	if l.head = q.next; l.head == nil {
		l.tail = nil
	}
	q.next = nil
	return q
}

// readList is a list through Read.next, first in, first out.
type readList struct {
	head, tail *Read
	n          int
}

func (l *readList) push(r *Read) {
	if l.tail != nil {
		l.tail.next = r
	} else {
		l.head = r
	}
	l.tail = r
	l.n++
}

// pop returns nil when the list is empty.
func (l *readList) pop() *Read {
	r := l.head
	if r == nil {
		return nil
	}
	if l.head = r.next; l.head == nil {
		l.tail = nil
	}
	r.next = nil
	l.n--
	return r
}

// append moves all of m to the end of l.
func (l *readList) append(m *readList) {
	if m.head == nil {
		return
	}
	if l.tail != nil {
		l.tail.next = m.head
	} else {
		l.head = m.head
	}
	l.tail = m.tail
	l.n += m.n
	*m = readList{}
}
