package wal

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
)

// ownBytes is the value size from which a batch gets a group, and a buffer, of
// its own: copying it must not hold up the batches of other writers.
const ownBytes = 256 << 10

// BatchSize is what a batch needs of the log.
type BatchSize struct {
	Count int // records, each takes one seqno
	Bytes int // records, encoded
	Docs  int // of them separated documents
	// Largest is the length of the longest record; above 256 KiB the batch
	// gets a group of its own.
	Largest int
}

// Place is where a batch goes. The caller copies its records to Buf, fills
// Docs, and then calls Done, in any order with other batches.
type Place struct {
	// Buf is exactly as long as the batch's records.
	Buf []byte
	// Segment and Offset are the address of Buf[0].
	Segment entry.SegmentID
	Offset  uint32
	// Docs has one slot for each separated document, in order.
	Docs []docRef
	g    *group
}

// docRef is one separated document of a group or segment.
type docRef struct {
	delta  uint32 // seqno - base
	offset uint32 // in the segment
}

// SetDoc notes that separated document i of the batch has the i'th lowest
// seqno of them and starts at offset in the segment.
func (p *Place) SetDoc(i int, seqno entry.Seqno, offset uint32) {
	p.Docs[i] = docRef{uint32(seqno - p.g.first), offset}
}

// Done says that the batch's records are in place. The group may be written
// from then on.
func (p *Place) Done() { p.g.done() }

// Position is the start of the group that holds the batch.
func (p *Place) Position() entry.Position {
	return entry.Position{Segment: p.g.seg.ID, Offset: p.g.off, Seqno: p.g.first}
}

// group is what one log write carries.
type group struct {
	groupState // guarded by o.Mu while the group is open, then by its leader

	// pending counts the batches that are still copying; closed says that no
	// more will come. The last one to finish a closed group fills filled. A
	// struct is used again while that last one may still look at closed, so
	// these are never reset by plain stores, and a leader may find a token in
	// filled that was meant for an earlier group: it counts pending again.
	pending atomic.Int32
	closed  atomic.Bool
	filled  chan struct{}
}

type groupState struct {
	seg         *Segment
	off         uint32
	b           *groupBuffer // where buf and docs come from; nil for a group without records
	buf         []byte       // aligned; starts with room for the header
	used, limit int
	first, last entry.Seqno
	count       int
	flags       uint16
	prev        Chain
	docs        []docRef
	ndocs       int
	own         bool
	opened      time.Time
	started     bool // a leader has it
	finished    bool // written; waits for its predecessors
	waiters     *waiter
	next        *group // list of groups that became durable together
}

func (g *group) done() {
	if g.pending.Add(-1) == 0 && g.closed.Load() {
		select {
		case g.filled <- struct{}{}:
		default:
		}
	}
}

// awaitFilled returns when every batch of the closed group is copied.
func (g *group) awaitFilled() {
	for i := 0; g.pending.Load() != 0; i++ {
		if i < 4 {
			runtime.Gosched() // a copy takes about a microsecond
			continue
		}
		<-g.filled
	}
}

// waiter is one goroutine that waits for a group, or for its turn to lead.
type waiter struct {
	ch   chan struct{}
	next *waiter
}

var waiters = sync.Pool{New: func() any { return &waiter{ch: make(chan struct{}, 1)} }}

func (w *waiter) wake() { w.ch <- struct{}{} } // cap 1, sent once per enqueue

// writer is the part of Log that groups go through:
//
//	open group -> closed groups (queue) -> in flight (at most Inflight) -> durable, in order
//
// A batch joins the open group. Whoever needs a seqno durable and finds fewer
// than Inflight writes under way becomes leader: it closes the open group,
// writes it and hands the next one to one of that group's waiters. There is no
// hand-off to another goroutine while the server is idle. A flusher goroutine
// leads only for groups nobody waits for, and writes promises.
type writer struct {
	// Guarded by o.Mu.
	active    *Segment
	activeOff uint32 // where the next group starts, when none is open
	open      *group
	pipeline  []*group // closed or in flight, in log order
	inflight  int      // started, not finished
	chain     Chain
	next      entry.Seqno
	failed    error
	promised  entry.Seqno // highest durable seqno a written header carries
	lastWrite time.Time
	buffers   []*groupBuffer // free
	own       []*groupBuffer // made by MakeRoom for batches that need their own
	groups    []*group       // free group structs
	space     sync.Cond      // on o.Mu: a buffer came back, a segment is ready, or the log failed

	durable atomic.Uint64
	kick    chan struct{} // wakes the flusher
	// flusherAt is when the flusher looks again by itself; guarded by o.Mu.
	flusherAt time.Time
}

type groupBuffer struct {
	bytes []byte
	docs  []docRef
}

// buffersFor is how many shared group buffers there are: one being filled, one
// closed, and those in flight.
func buffersFor(inflight int) int { return 2 + inflight }

// groupsFree is how many group structs are kept: every buffer, and the seals
// and promises between them, with room to spare.
const groupsFree = 32

func (w *writer) init(o *LogOptions) error {
	w.chain = o.After
	w.next = o.Next
	w.durable.Store(uint64(o.Next - 1))
	w.promised = o.Next - 1
	w.kick = make(chan struct{}, 1)
	w.space.L = o.Mu
	w.flusherAt = time.Now().Add(time.Hour)
	w.pipeline = make([]*group, 0, groupsFree)
	w.groups = make([]*group, 0, groupsFree)
	for range groupsFree {
		w.groups = append(w.groups, &group{filled: make(chan struct{}, 1)})
	}
	for range buffersFor(o.Inflight) {
		b, err := alignedBuffer(alignUp(o.GroupBytesMax, o.Align), "group buffer")
		if err != nil {
			w.freeBuffers()
			return err
		}
		w.buffers = append(w.buffers, &groupBuffer{b, make([]docRef, o.DocsMax)})
	}
	return nil
}

func (w *writer) freeBuffers() {
	for _, b := range append(w.buffers, w.own...) {
		offheap.FreeAligned(b.bytes)
	}
	w.buffers, w.own = nil, nil
}

// DurableSeqno returns D: everything up to it survives a power cut.
func (l *Log) DurableSeqno() entry.Seqno { return entry.Seqno(l.durable.Load()) }

// FailedLocked returns the error that ended the log, or nil. o.Mu is held.
func (l *Log) FailedLocked() error { return l.failed }

func (l *Log) needsOwn(s BatchSize) bool {
	return s.Largest > ownBytes || GroupHeaderBytes+s.Bytes > l.o.GroupBytesMax || s.Docs > l.o.DocsMax
}

// PlaceLocked gives a batch its place, beginning with seqno first, or fails
// without a trace: with ErrNoRoom when the caller must unlock, call MakeRoom and
// come again, or with an error wrapping ErrFailed. o.Mu is held; it does no I/O
// and does not allocate (design R19).
func (l *Log) PlaceLocked(s BatchSize, first entry.Seqno) (Place, error) {
	if l.failed != nil {
		return Place{}, l.failed
	}
	own := l.needsOwn(s)
	g := l.open
	if g != nil && (own || g.used+s.Bytes > g.limit || g.ndocs+s.Docs > len(g.docs)) {
		l.closeOpenLocked()
		l.kickFlusher()
		g = nil
	}
	if g == nil {
		need := GroupHeaderBytes + s.Bytes
		if !l.fitsSegment(l.active, l.activeOff, need) {
			if l.prep.ready == nil || !l.fitsSegment(l.prep.ready, uint32(l.o.Align), need) {
				return Place{}, ErrNoRoom
			}
			if !l.haveBuffer(s, own) {
				return Place{}, ErrNoRoom
			}
			l.rollLocked()
		}
		b := l.takeBuffer(s, own)
		if b == nil {
			return Place{}, ErrNoRoom
		}
		g = l.openGroupLocked(b, first)
		g.own = own
		if own {
			g.limit = need
		}
	}
	p := Place{
		Buf:     g.buf[g.used : g.used+s.Bytes],
		Segment: g.seg.ID, Offset: g.off + uint32(g.used),
		Docs: g.docs[g.ndocs : g.ndocs+s.Docs],
		g:    g,
	}
	g.used += s.Bytes
	g.ndocs += s.Docs
	g.count += s.Count
	g.last = first + entry.Seqno(s.Count) - 1
	l.next = g.last + 1
	g.pending.Add(1)
	if g.own {
		l.closeOpenLocked()
		l.kickFlusher()
	}
	return p, nil
}

// fitsSegment reports whether a group of need bytes at off leaves room for the
// seal group behind it.
func (l *Log) fitsSegment(s *Segment, off uint32, need int) bool {
	return int64(off)+int64(alignUp(need, l.o.Align))+int64(l.o.Align) <= s.bytes
}

func (l *Log) haveBuffer(s BatchSize, own bool) bool {
	if !own {
		return len(l.buffers) > 0
	}
	for _, b := range l.own {
		if len(b.bytes) >= GroupHeaderBytes+s.Bytes && len(b.docs) >= s.Docs {
			return true
		}
	}
	return false
}

func (l *Log) takeBuffer(s BatchSize, own bool) *groupBuffer {
	if !own {
		n := len(l.buffers)
		if n == 0 {
			return nil
		}
		b := l.buffers[n-1]
		l.buffers = l.buffers[:n-1]
		return b
	}
	for i, b := range l.own {
		if len(b.bytes) >= GroupHeaderBytes+s.Bytes && len(b.docs) >= s.Docs {
			l.own = append(l.own[:i], l.own[i+1:]...)
			return b
		}
	}
	return nil
}

// newGroup takes a struct from the free list or makes one.
func (l *Log) newGroup() *group {
	if n := len(l.groups); n > 0 {
		g := l.groups[n-1]
		l.groups = l.groups[:n-1]
		g.groupState = groupState{}
		g.closed.Store(false)
		return g
	}
	return &group{filled: make(chan struct{}, 1)}
}

func (l *Log) openGroupLocked(b *groupBuffer, first entry.Seqno) *group {
	g := l.newGroup()
	g.seg, g.off = l.active, l.activeOff
	g.b, g.buf, g.docs = b, b.bytes, b.docs
	g.used = GroupHeaderBytes
	room := l.active.bytes - int64(l.o.Align) - int64(g.off)
	g.limit = int(min(int64(l.o.GroupBytesMax), room))
	g.first, g.last = first, l.chain.Last
	g.prev = l.chain
	g.opened = time.Now()
	l.open = g
	l.flushByLocked(g.opened.Add(l.o.Window))
	return g
}

// closeOpenLocked moves the open group to the pipeline; the next group starts
// behind it.
func (l *Log) closeOpenLocked() {
	g := l.open
	l.open = nil
	l.activeOff = g.off + uint32(alignUp(g.used, l.o.Align))
	l.chain = Chain{g.seg.ID, l.activeOff, g.last}
	g.closed.Store(true)
	l.pipeline = append(l.pipeline, g)
}

// rollLocked ends the active segment with a seal group and goes on in the
// prepared one. The seal is an ordinary group without records: it is written
// in its turn and promises what is before it.
func (l *Log) rollLocked() {
	l.sealActiveLocked(0)
	l.active = l.prep.ready
	l.prep.ready = nil
	l.activeOff = uint32(l.o.Align)
	l.prep.ask(0)
}

func (l *Log) sealActiveLocked(flags uint16) {
	g := l.emptyGroupLocked(GroupSeal | flags)
	g.seg.end = l.activeOff
	g.seg.last = g.last
}

// emptyGroupLocked appends a group without records to the pipeline. It uses
// the small buffer that each segment brings along.
func (l *Log) emptyGroupLocked(flags uint16) *group {
	g := l.newGroup()
	g.seg, g.off = l.active, l.activeOff
	g.buf = l.prep.takeSmall()
	g.used = GroupHeaderBytes
	g.first, g.last = l.next, l.chain.Last
	g.prev = l.chain
	g.flags = flags
	g.opened = time.Now()
	l.open = g
	l.closeOpenLocked()
	return g
}

// MakeRoom waits until PlaceLocked has a chance to place a batch of this size.
// o.Mu is not held. It returns an error wrapping vfs.ErrNoSpace when no segment
// could be made, ErrFailed when the log has failed.
func (l *Log) MakeRoom(s BatchSize) error {
	own := l.needsOwn(s)
	if own {
		l.o.Mu.Lock()
		have := l.haveBuffer(s, true)
		l.o.Mu.Unlock()
		if !have {
			b, err := alignedBuffer(alignUp(GroupHeaderBytes+s.Bytes, l.o.Align), "buffer of a large batch")
			if err != nil {
				return err
			}
			gb := &groupBuffer{b, make([]docRef, s.Docs)}
			l.o.Mu.Lock()
			l.own = append(l.own, gb)
			l.o.Mu.Unlock()
		}
	}
	need := GroupHeaderBytes + s.Bytes
	l.o.Mu.Lock()
	defer l.o.Mu.Unlock()
	seen := l.prep.attempts // an error older than this call is not an answer to it
	for {
		if l.failed != nil {
			return l.failed
		}
		off := l.activeOff
		if l.open != nil {
			if !own && l.open.used+s.Bytes <= l.open.limit && l.open.ndocs+s.Docs <= len(l.open.docs) {
				return nil
			}
			off = l.open.off + uint32(alignUp(l.open.used, l.o.Align))
		}
		if !l.fitsSegment(l.active, off, need) {
			if l.prep.ready == nil {
				if err := l.prep.err; err != nil && l.prep.attempts != seen {
					return err
				}
				l.prep.ask(int64(alignUp(need, l.o.Align)) + 2*int64(l.o.Align))
				l.space.Wait()
				continue
			}
			if !l.fitsSegment(l.prep.ready, uint32(l.o.Align), need) {
				// Too small for this batch: step over it. It costs one seal.
				if l.open != nil {
					l.closeOpenLocked()
					l.kickFlusher()
				}
				l.rollLocked()
				continue
			}
		}
		if l.haveBuffer(s, own) {
			return nil
		}
		if l.inflight < l.o.Inflight && l.unstartedLocked() {
			l.leadLocked()
			continue
		}
		l.space.Wait()
	}
}

// unstartedLocked reports whether a group waits for a leader.
func (l *Log) unstartedLocked() bool {
	if l.open != nil {
		return true
	}
	n := len(l.pipeline)
	return n > 0 && !l.pipeline[n-1].started
}

// Wait returns when s is durable, leading the write itself where it can. An
// error wraps ErrFailed. It must not be called with o.Mu held.
func (l *Log) Wait(s entry.Seqno) error {
	if entry.Seqno(l.durable.Load()) >= s {
		return nil
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
	if woken != nil && l.o.Durable != nil {
		l.o.Durable(l.DurableSeqno())
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
	h.Encode(buf[:g.used], &l.o.Secret)
	if _, err := g.seg.File.WriteDurable(buf, int64(g.off)); err != nil {
		return 0, fmt.Errorf("%w: write %d bytes at %d of %s: %w", ErrFailed, bytes, g.off, g.seg.File.Name(), err)
	}
	l.stats.groups.Add(1)
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

// flushByLocked makes sure that the flusher looks at time t or before. Under
// load it wakes once a Window, not once a group.
func (l *Log) flushByLocked(t time.Time) {
	if l.flusherAt.After(t) {
		l.flusherAt = t
		l.kickFlusher()
	}
}

func (l *Log) kickFlusher() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// runFlusher leads for groups that nobody waits for, at the latest when they
// are Window old, and writes a promise when the log has been idle.
func (l *Log) runFlusher() {
	defer l.workers.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.kick:
		case <-timer.C:
		}
		l.o.Mu.Lock()
		wait := l.flushDueLocked()
		l.flusherAt = time.Now().Add(wait)
		l.o.Mu.Unlock()
		timer.Reset(wait)
	}
}

// flushDueLocked leads what is due and returns when to look again. Kicks may
// come much more often than groups fall due.
func (l *Log) flushDueLocked() time.Duration {
	for l.failed == nil {
		now := time.Now()
		closed := false
		for _, c := range l.pipeline {
			closed = closed || !c.started
		}
		switch {
		case l.inflight >= l.o.Inflight:
			return time.Hour // its completion hands on
		case closed, l.open != nil && now.Sub(l.open.opened) >= l.o.Window:
			l.leadLocked()
		case l.open != nil:
			return l.o.Window - now.Sub(l.open.opened)
		case l.promised >= entry.Seqno(l.durable.Load()) || len(l.pipeline) > 0:
			return time.Hour
		case now.Sub(l.lastWrite) < promiseDelay:
			return promiseDelay - now.Sub(l.lastWrite)
		case !l.fitsSegment(l.active, l.activeOff, GroupHeaderBytes):
			if l.prep.ready == nil {
				return time.Hour // the next group promises
			}
			l.rollLocked() // its seal is the promise
		default:
			l.emptyGroupLocked(GroupPromise)
			l.stats.promises.Add(1)
		}
	}
	return time.Hour
}

// finish writes what is left and the final seal, after the goroutines ended.
func (l *Log) finish() error {
	l.o.Mu.Lock()
	defer l.o.Mu.Unlock()
	for l.failed == nil && l.unstartedLocked() {
		l.leadLocked()
	}
	if l.failed != nil {
		return l.failed
	}
	l.sealActiveLocked(GroupClose)
	for l.failed == nil && l.unstartedLocked() {
		l.leadLocked()
	}
	return l.failed
}
