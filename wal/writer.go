package wal

import (
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
	// Urgent batches free space: a segment made for them may use the reserve.
	Urgent bool
	// Deletes holds nothing but deletes, which free space in the end: a segment made
	// for them may take one segment of the reserve.
	Deletes bool
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
	active    *Segment // nil when the log started on a full disk
	activeOff uint32   // where the next group starts, when none is open
	open      *group
	pipeline  []*group // closed or in flight, in log order
	inflight  int      // started, not finished
	chain     Chain
	next      entry.Seqno
	placed    placedBytes
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

// pipelineMax bounds the groups that are closed and not yet durable. The shared
// buffers allow fewer; groups of their own and seals count as well.
const pipelineMax = 16

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

// freeBuffers gives all buffers back, also those of groups that a failed log
// could not write. Nobody writes or copies any more.
func (w *writer) freeBuffers() {
	for _, b := range append(w.buffers, w.own...) {
		offheap.FreeAligned(b.bytes)
	}
	groups := w.pipeline
	if w.open != nil {
		groups = append(groups, w.open)
	}
	for _, g := range groups {
		offheap.FreeAligned(g.buf)
	}
	w.buffers, w.own, w.pipeline, w.open = nil, nil, nil, nil
}

// DurableSeqno returns D: everything up to it survives a power cut.
func (l *Log) DurableSeqno() entry.Seqno { return entry.Seqno(l.durable.Load()) }

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
		if l.crowdedLocked(own) {
			return Place{}, ErrNoRoom
		}
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
	return s != nil && int64(off)+int64(alignUp(need, l.o.Align))+int64(l.o.Align) <= s.bytes
}

// crowdedLocked reports whether a group more would be too many that are closed
// and not yet durable: of any kind, of those with a buffer of their own, which
// are made as they are needed, or of seals. Somebody must write one first.
func (l *Log) crowdedLocked(own bool) bool {
	if len(l.pipeline) >= pipelineMax || len(l.prep.smalls) <= smallsSpare {
		return true
	}
	n := 0
	for _, g := range l.pipeline {
		if g.own {
			n++
		}
	}
	return own && n >= buffersFor(l.o.Inflight)
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
	l.placed.add(g, l.o.Align)
	l.activeOff = g.off + uint32(alignUp(g.used, l.o.Align))
	l.chain = Chain{g.seg.ID, l.activeOff, g.last}
	g.closed.Store(true)
	l.pipeline = append(l.pipeline, g)
}

// rollLocked ends the active segment with a seal group and goes on in the
// prepared one. The seal is an ordinary group without records: it is written
// in its turn and promises what is before it.
func (l *Log) rollLocked() {
	if l.active != nil {
		l.sealActiveLocked(0)
	}
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
	began := time.Now()
	defer func() { l.stats.waitNanos.Add(int64(time.Since(began))) }()
	own := l.needsOwn(s)
	need := GroupHeaderBytes + s.Bytes
	l.o.Mu.Lock()
	defer l.o.Mu.Unlock()
	seen := l.prep.attempts // the error of an attempt begun before this call is no answer to it
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
		if l.crowdedLocked(own) {
			l.leadOrWaitLocked()
			continue
		}
		if !l.fitsSegment(l.active, off, need) {
			if l.prep.ready == nil {
				if err := l.prep.err; err != nil && l.prep.errOf > seen {
					return err
				}
				l.prep.urgency = max(l.prep.urgency, s.urgency())
				l.prep.ask(int64(alignUp(need, l.o.Align)) + 2*int64(l.o.Align))
				asked := time.Now()
				l.space.Wait()
				l.stats.segmentWaitNanos.Add(int64(time.Since(asked)))
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
		switch {
		case l.haveBuffer(s, own):
			return nil
		case own:
			// Nobody else makes it: one made before may have gone to another batch.
			if err := l.makeOwnLocked(s); err != nil {
				return err
			}
		default:
			l.leadOrWaitLocked()
		}
	}
}

// makeOwnLocked adds a buffer for a batch that needs its own. o.Mu is held on
// entry and on return, not in between. Buffers that no batch came for, because
// it was refused, are kept for the next ones, as many as may be in use.
func (l *Log) makeOwnLocked(s BatchSize) error {
	l.o.Mu.Unlock()
	b, err := alignedBuffer(alignUp(GroupHeaderBytes+s.Bytes, l.o.Align), "buffer of a large batch")
	l.o.Mu.Lock()
	if err != nil {
		return err
	}
	if len(l.own) >= buffersFor(l.o.Inflight) {
		l.prep.trash = append(l.prep.trash, l.own[0].bytes)
		l.own = append(l.own[:0], l.own[1:]...)
		l.prep.wake()
	}
	l.own = append(l.own, &groupBuffer{b, make([]docRef, s.Docs)})
	return nil
}

// leadOrWaitLocked writes a group if one needs a leader, or waits until one is
// written.
func (l *Log) leadOrWaitLocked() {
	if l.inflight < l.o.Inflight && l.unstartedLocked() {
		l.leadLocked()
		return
	}
	l.space.Wait()
}

// unstartedLocked reports whether a group waits for a leader.
func (l *Log) unstartedLocked() bool {
	if l.open != nil {
		return true
	}
	n := len(l.pipeline)
	return n > 0 && !l.pipeline[n-1].started
}
