package wal

import (
	"errors"
	"fmt"
	"io"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
)

// Wait returns when s is durable, leading the write itself where it can. An
// error wraps ErrFailed. It must not be called with o.Mu held.
func (l *Log) Wait(s entry.Seqno) error {
	if entry.Seqno(l.durable.Load()) >= s {
		return nil
	}
	if mutant.AckBeforeSync {
		return nil // the flusher writes the group in its own time
	}
	l.o.Mu.Lock()
	for {
		switch {
		case entry.Seqno(l.durable.Load()) >= s:
			l.o.Mu.Unlock()
			return nil
		case l.failed != nil:
			err := l.failed
			l.o.Mu.Unlock()
			return err
		case l.inflight < l.o.Inflight && l.unstartedLocked():
			l.leadLocked()
			continue
		}
		g := l.groupOfLocked(s)
		if g == nil {
			next := l.next
			l.o.Mu.Unlock()
			return fmt.Errorf("wal: wait for seqno %d, next is %d", s, next)
		}
		w := waiters.Get().(*waiter)
		w.next = g.waiters
		g.waiters = w
		l.o.Mu.Unlock()
		<-w.ch
		w.next = nil
		waiters.Put(w)
		if entry.Seqno(l.durable.Load()) >= s {
			return nil
		}
		l.o.Mu.Lock()
	}
}

// groupOfLocked finds the group whose durability makes s durable.
func (l *Log) groupOfLocked(s entry.Seqno) *group {
	for _, g := range l.pipeline {
		if g.last >= s {
			return g
		}
	}
	if l.open != nil && l.open.last >= s {
		return l.open
	}
	return nil
}

// leadLocked writes the first group that has no leader yet. o.Mu is held on
// entry and on return, not in between.
func (l *Log) leadLocked() {
	var g *group
	for _, c := range l.pipeline {
		if !c.started {
			g = c
			break
		}
	}
	if g == nil {
		g = l.open
		l.closeOpenLocked()
	}
	g.started = true
	l.inflight++
	l.o.Mu.Unlock()

	g.awaitFilled()
	promise, err := l.writeGroup(g)

	l.o.Mu.Lock()
	l.inflight--
	woken := l.completeLocked(g, promise, err)
	l.o.Mu.Unlock()

	// Wake without the lock: the woken take it at once.
	for d := woken; d != nil; d = d.next {
		wakeAll(d.waiters)
		d.waiters = nil
	}
	l.o.Mu.Lock()
	for woken != nil {
		d := woken
		woken = d.next
		d.next = nil
		if len(l.groups) < groupsFree {
			l.groups = append(l.groups, d)
		}
	}
}

func wakeAll(w *waiter) {
	for w != nil {
		next := w.next // w may be reused as soon as it is woken
		w.wake()
		w = next
	}
}

// writeGroup encodes the header and writes the group. It returns the durable
// seqno that the header promises.
func (l *Log) writeGroup(g *group) (entry.Seqno, error) {
	bytes := alignUp(g.used, l.o.Align)
	buf := g.buf[:bytes]
	clear(buf[g.used:])
	h := GroupHeader{
		Flags: g.flags, Bytes: uint32(g.used), Count: uint32(g.count),
		Segment: g.seg.ID, Offset: g.off, First: g.first,
		Durable:     l.DurableSeqno(),
		PrevSegment: g.prev.Segment, PrevEnd: g.prev.End, PrevLast: g.prev.Last,
	}
	if mutant.PromiseEarly {
		h.Durable = g.first - 1
	}
	h.Encode(buf[:g.used], &l.o.Secret)
	write := g.seg.File.WriteDurable
	if mutant.SkipGroupSync {
		write = g.seg.File.WriteAt
	}
	_, err := write(buf, int64(g.off))
	if mutant.IgnoreShortWrite && errors.Is(err, io.ErrShortWrite) {
		err = nil
	}
	if mutant.RetryFailedSync && err != nil {
		err = g.seg.File.Sync()
	}
	if err != nil {
		return 0, fmt.Errorf("%w: write %d bytes at %d of %s: %w", ErrFailed, bytes, g.off, g.seg.File.Name(), err)
	}
	l.stats.groups.Add(1)
	if g.flags&GroupPromise != 0 {
		l.stats.promises.Add(1)
	}
	l.stats.groupBytes.Add(int64(bytes))
	l.stats.recordBytes.Add(int64(g.used - GroupHeaderBytes))
	l.stats.records.Add(int64(g.count))
	return h.Durable, nil
}

// completeLocked takes a written group out of the pipeline when all before it
// are, moves D, and hands on. It returns the groups that became durable (or, on
// failure, all that can never be), linked by next, for their waiters to be
// woken.
func (l *Log) completeLocked(g *group, promise entry.Seqno, err error) *group {
	if err != nil || l.failed != nil {
		return l.failLocked(err)
	}
	g.finished = true
	if mutant.DurableOutOfOrder {
		l.durable.Store(max(l.durable.Load(), uint64(g.last)))
	}
	l.promised = max(l.promised, promise)
	l.lastWrite = time.Now()
	var head, tail *group
	n := 0
	for n < len(l.pipeline) && l.pipeline[n].finished {
		d := l.pipeline[n]
		n++
		d.seg.addDocs(d)
		if d.flags&GroupSeal != 0 {
			l.stats.seals.Add(1)
			l.prep.seal(d.seg)
		}
		l.releaseBuffer(d)
		if tail == nil {
			head = d
		} else {
			tail.next = d
		}
		tail = d
	}
	if n > 0 {
		rest := copy(l.pipeline, l.pipeline[n:])
		clear(l.pipeline[rest:])
		l.pipeline = l.pipeline[:rest]
		if last := uint64(tail.last); last > l.durable.Load() {
			l.durable.Store(last)
		}
		l.space.Broadcast()
	}
	l.handOnLocked()
	return head
}

// handOnLocked wakes one waiter of the next group that needs a leader.
func (l *Log) handOnLocked() {
	if l.inflight >= l.o.Inflight {
		return
	}
	var g *group
	for _, c := range l.pipeline {
		if !c.started {
			g = c
			break
		}
	}
	closed := g != nil
	if g == nil {
		g = l.open
	}
	if g == nil {
		l.flushByLocked(l.lastWrite.Add(promiseDelay)) // to promise, should the log now fall idle
		return
	}
	if w := g.waiters; w != nil {
		g.waiters = w.next
		w.wake()
	} else if closed {
		l.kickFlusher()
	}
}

// failLocked ends the log. Everybody who waits learns of it; nothing is
// retried, because after a failed sync the device may claim success for data
// that is gone.
func (l *Log) failLocked(err error) *group {
	if l.failed == nil {
		if err == nil {
			err = ErrFailed
		}
		l.failed = err
		l.o.Logf("log failed, the store is read-only from now on: %v", err)
		if l.o.Failed != nil {
			l.o.Failed(err)
		}
	}
	var head *group
	all := l.pipeline
	if l.open != nil {
		all = append(all, l.open)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].waiters != nil {
			all[i].next = head
			head = all[i]
		}
	}
	// Buffers stay where they are: a write may still be under way in them, and
	// batches may still be copying.
	l.space.Broadcast()
	if head == nil {
		return nil
	}
	// The structs stay in the pipeline; hand out copies of the waiter lists.
	var out *group
	for g := head; g != nil; {
		next := g.next
		g.next = nil
		out = &group{groupState: groupState{waiters: g.waiters, next: out}, filled: make(chan struct{}, 1)}
		g.waiters = nil
		g = next
	}
	return out
}

// Fail ends the log for a reason outside it, such as a manifest that could not
// be written. It may be called at any time without o.Mu.
func (l *Log) Fail(cause error) {
	l.o.Mu.Lock()
	woken := l.failLocked(fmt.Errorf("%w: %w", ErrFailed, cause))
	l.o.Mu.Unlock()
	for ; woken != nil; woken = woken.next {
		wakeAll(woken.waiters)
	}
}

func (l *Log) releaseBuffer(g *group) {
	switch {
	case g.b == nil:
		l.prep.smalls = append(l.prep.smalls, g.buf)
	case g.own:
		l.prep.trash = append(l.prep.trash, g.buf) // unmapped by the preparer, not under the lock
		l.prep.wake()
	default:
		l.buffers = append(l.buffers, g.b)
	}
	g.b, g.buf, g.docs = nil, nil, nil
}

// addDocs appends the documents of a durable group to the segment's list, from
// which its exact seqno index is made when it is sealed. Groups become durable
// in order, so the list is sorted.
func (s *Segment) addDocs(g *group) {
	if s.first == 0 {
		s.first = g.first
	}
	s.records += g.count
	if g.ndocs == 0 {
		return
	}
	if len(s.docs) == 0 {
		s.base = g.first
	}
	shift := uint32(g.first - s.base)
	for _, d := range g.docs[:g.ndocs] {
		s.docs = append(s.docs, docRef{d.delta + shift, d.offset})
	}
}
