package lsm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fluxkv/compaction"
	"fluxkv/internal/vfs"
)

const (
	// Memtables are flushed when the active ones fill this share of the write
	// cache. What comes in during a flush has the room up to the mark from
	// which writers are slowed.
	flushNum, flushDen = 5, 8
	// One job takes the largest memtables up to this share of the write cache.
	flushJobDen = 8
	// The log that a restart must replay is bounded by this many times the
	// write cache, in bytes of records and in bytes with padding (design R26).
	replayRecordFactor, replayPaddedFactor = 2, 8
)

// scheduler runs background jobs: flushes, at most Options.Flushers at once on
// disjoint kvstores, merges of tables, collections of segments, and the end of
// tables that nothing needs. One goroutine decides; each job has one of its own.
// Whoever makes work calls wake.
type scheduler struct {
	kick   chan struct{}
	ctx    context.Context // ends jobs
	cancel context.CancelFunc
	done   sync.WaitGroup

	// usedAt and paddedAt are the fill of the write cache and the length of the
	// log at which writers wake the scheduler.
	usedAt, paddedAt atomic.Int64
	// tablesToRetire says that tables may be left which a clear ended.
	tablesToRetire atomic.Bool

	// now is the clock of fences.
	now func() time.Time

	// mu guards the fields below; nothing but committer.mu is taken under it.
	mu      sync.Mutex
	cond    sync.Cond // a job ended
	running int
	busy    [kvstoresMax]bool
	upTo    Seqno // flush whatever has a version at or below it
	flushes jobs
	// idle says that nobody writes. compact counts the callers of Compact, who
	// want everything merged and collected that is worth it.
	idle    bool
	compact int
	looks   int64 // for merges and collections that found nothing to do
	jobErr  error // of the last merge or collection that failed
	// jobsDone counts the flushes, merges and collections that succeeded.
	jobsDone int64
	// Merges: those under way, tables that they must leave alone, and as above.
	mergesNow []*compaction.Job
	mergeSeqs []uint64 // their numbers
	merges    jobs
	// Garbage collection: one at a time.
	collecting    bool
	space         spaceControl
	collections   jobs
	fencedIndexes fences // segments whose index could not be read
	ended         bool
}

func (s *scheduler) init() {
	s.kick = make(chan struct{}, 1)
	s.cond.L = &s.mu
	s.merges.fenced, s.collections.fenced, s.fencedIndexes = fences{}, fences{}, fences{}
	s.now = time.Now
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.usedAt.Store(math.MaxInt64)
	s.paddedAt.Store(math.MaxInt64)
}

// wake makes the scheduler look for work. It never blocks.
func (s *scheduler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// startScheduler is the end of Open.
func (db *DB) startScheduler() {
	db.sched.done.Add(1)
	go db.runScheduler()
	db.sched.wake()
}

// closing lets nobody wait for a flush any more.
func (s *scheduler) closing() {
	s.mu.Lock()
	s.cond.Broadcast()
	s.mu.Unlock()
}

// stop calls running jobs off and waits for them. Nobody is left waiting for a
// flush.
func (s *scheduler) stop() {
	s.mu.Lock()
	s.ended = true
	s.cond.Broadcast()
	s.mu.Unlock()
	s.cancel()
	s.done.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.merges.fenced.end()
	s.collections.fenced.end()
	s.fencedIndexes.end()
}

func (db *DB) runScheduler() {
	s := &db.sched
	defer s.done.Done()
	tick := time.NewTicker(max(db.o.IdleFlush/4, time.Millisecond))
	defer tick.Stop()
	idle := idleWatch{since: time.Now()}
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			rests := db.idleFor(&idle) >= db.o.IdleFlush
			s.mu.Lock()
			s.idle = rests
			s.mu.Unlock()
			switch {
			case rests && !idle.done:
				idle.done = true
				db.rest()
			case rests && db.log.Stats().Pooled > 0:
				// The promise of an idle log may have taken the next segment, and
				// what was freed since was kept for more.
				db.log.EmptyPool()
			}
		case <-s.kick:
		}
		db.removeObsolete()
		if err := db.retireTables(); err != nil {
			db.o.Logf("drop tables that were cleared: %v", err)
		}
		for db.startFlush() {
		}
		started, settled := db.startCompaction()
		for started {
			started, settled = db.startCompaction()
		}
		if _, none := db.startGC(); none && settled {
			db.settled()
		}
	}
}

// settled notes that there is nothing to merge or collect, for those who wait.
func (db *DB) settled() {
	s := &db.sched
	s.mu.Lock()
	s.looks++
	s.cond.Broadcast()
	s.mu.Unlock()
}

// Compact flushes, merges tables and collects segments as far as that gives
// space back or spares later reads, and returns when nothing worth it is left.
// It is not needed: a store does all of it by itself, and the rest when nobody
// writes. Errors: ErrClosed, ErrReadOnly, or what kept a job from its end, which
// may pass.
func (db *DB) Compact() error {
	if err := db.Flush(); err != nil {
		return err
	}
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	s := &db.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compact++
	defer func() { s.compact-- }()
	failed := s.merges.failed + s.collections.failed
	// A look that began before this call does not count.
	for target := s.looks + 2; ; {
		if err := db.writable(); err != nil {
			return err
		}
		switch {
		case s.ended:
			return ErrClosed
		case s.merges.failed+s.collections.failed != failed:
			return db.writeError(corruptError(s.jobErr))
		case s.looks >= target:
			return nil
		}
		s.wake()
		s.cond.Wait()
	}
}

// idleWatch is what the scheduler remembers to tell an idle store.
type idleWatch struct {
	next  Seqno
	since time.Time
	done  bool // the store was flushed since
}

func (db *DB) idleFor(w *idleWatch) time.Duration {
	db.commit.mu.Lock()
	next := db.commit.next
	db.commit.mu.Unlock()
	if next != w.next {
		*w = idleWatch{next: next, since: time.Now()}
	}
	return time.Since(w.since)
}

// rest gives back what an idle store holds (design R23).
func (db *DB) rest() {
	db.commit.mu.Lock()
	upTo := db.commit.next - 1
	db.commit.mu.Unlock()
	s := &db.sched
	s.mu.Lock()
	s.upTo = max(s.upTo, upTo)
	s.mu.Unlock()
	db.log.EmptyPool()
}

// flushStore is what the choice of a flush knows of one kvstore.
type flushStore struct {
	active int64 // bytes in the memtable that takes writes
	sealed int64 // and in those that take no more
	// first is where its oldest version is, 0 when all its memtables are
	// empty; record and padded are how much log replay must read for it.
	first          Seqno
	record, padded int64
	busy           bool
}

// flushLimits are the bounds that a flush keeps.
type flushLimits struct {
	active         int64 // of all active memtables
	job            int64 // that one job takes, about
	record, padded int64 // of log to replay
}

// pickFlush returns the kvstores to flush together; none when nothing needs it.
// Those go that have sealed memtables, that hold up the log, or that have a
// version at or below upTo. Otherwise the largest go once the active memtables
// pass their bound, or a writer is stalled whatever fills the cache.
func pickFlush(stores []flushStore, l flushLimits, upTo Seqno, stalled bool) (picked []int) {
	var order []int
	total := int64(0)
	for k := range stores {
		st := &stores[k]
		total += st.active
		switch {
		case st.busy || st.first == 0:
		case st.first <= upTo || st.sealed > 0 || st.record > l.record || st.padded > l.padded:
			picked = append(picked, k)
		default:
			order = append(order, k)
		}
	}
	if len(picked) > 0 {
		return picked
	}
	if total <= l.active && !stalled {
		return nil
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(stores[b].active, stores[a].active) })
	sum := int64(0)
	for _, k := range order {
		if len(picked) > 0 && (sum >= l.job || 2*stores[k].active < stores[order[0]].active) {
			break
		}
		picked = append(picked, k)
		sum += stores[k].active
	}
	return picked
}

func (db *DB) flushLimits() flushLimits {
	c := db.o.WriteCache
	return flushLimits{
		active: c / flushDen * flushNum, job: c / flushJobDen,
		record: replayRecordFactor * c, padded: replayPaddedFactor * c,
	}
}

// startFlush starts one job if there is need and leave for it.
func (db *DB) startFlush() bool {
	s := &db.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	if db.readOnly.Load() != nil {
		s.cond.Broadcast()
		return false // R1: a read-only store flushes nothing
	}
	s.usedAt.Store(math.MaxInt64)
	s.paddedAt.Store(math.MaxInt64)
	if s.ended || s.running >= db.o.Flushers || s.flushes.pause.holds() {
		return false // the end of the job, or of the pause, wakes us
	}
	l := db.flushLimits()
	stores, used, padded := db.flushStores()
	if db.o.flushOnDemand {
		l.active, l.record, l.padded = math.MaxInt64/4, math.MaxInt64/4, math.MaxInt64/4
		for k := range stores {
			stores[k].sealed = 0
		}
	}
	picked := pickFlush(stores, l, s.upTo, db.quota.stallsNow.Load() > 0)
	if len(picked) == 0 {
		active, pinned := int64(0), int64(0)
		for _, st := range stores {
			active += st.active
			pinned = max(pinned, st.padded)
		}
		s.usedAt.Store(used + l.active - active)
		// Records are shorter than padded groups: half as far is soon enough.
		s.paddedAt.Store(padded + max(min(l.padded-pinned, l.record/2), mib/2))
		return false
	}
	for _, k := range picked {
		s.busy[k] = true
	}
	s.running++
	s.done.Add(1)
	go func() {
		defer s.done.Done()
		db.flushEnded(picked, db.flush(s.ctx, picked))
	}()
	return true
}

// flushStores looks at all memtables, at the fill of the write cache, and at
// the length of the log.
func (db *DB) flushStores() (stores []flushStore, used, padded int64) {
	stores = make([]flushStore, db.kvstores)
	c := &db.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	record, padded := db.log.PlacedLocked()
	for k, ts := range &db.current.Load().tables {
		if k >= db.kvstores {
			break
		}
		st := &stores[k]
		st.busy = db.sched.busy[k]
		for i, t := range ts {
			if t.first.Segment == 0 {
				continue
			}
			if st.first == 0 || t.first.Seqno < st.first {
				st.first = t.first.Seqno
			}
			if i == 0 {
				st.active = t.bytes.Load()
			} else {
				st.sealed += t.bytes.Load()
			}
			st.record = max(st.record, record-t.record)
			st.padded = max(st.padded, padded-t.padded)
		}
	}
	return stores, db.quota.used.Load(), padded
}

// flushEnded notes the outcome of a job.
func (db *DB) flushEnded(picked []int, err error) {
	s := &db.sched
	s.mu.Lock()
	for _, k := range picked {
		s.busy[k] = false
	}
	s.running--
	s.jobEnded(&s.flushes, nil, err)
	s.cond.Broadcast()
	s.mu.Unlock()
	if err == nil {
		db.quota.unblock()
	} else if !errors.Is(err, context.Canceled) {
		db.o.Logf("%v", err)
		if errors.Is(err, vfs.ErrNoSpace) {
			db.log.EmptyPool() // what the log keeps to reuse is room for tables
		}
		db.quota.block(flushError(db.writeError(err)))
	}
	s.wake()
}

// flushError is what writers get while the write cache is full and cannot be
// flushed: something temporary in any case.
func flushError(err error) error {
	if errors.Is(err, ErrDiskFull) || errors.Is(err, ErrReadOnly) {
		return err
	}
	return fmt.Errorf("%w, and cannot be flushed: %w", ErrOverloaded, err)
}

// Flush writes everything that was written before the call to tables, and
// returns when it is there. It is not needed for durability; it shortens the
// next start and gives log segments back that nothing addresses. Errors:
// ErrClosed, ErrReadOnly, or what kept a flush from its end, which may pass.
func (db *DB) Flush() error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	db.commit.mu.Lock()
	target := db.commit.next - 1
	db.commit.mu.Unlock()
	s := &db.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := s.flushes.failed
	// Once is enough: from here on the ends of jobs and pauses wake the
	// scheduler. To wake it after each of its rounds, of which it tells, would
	// keep both busy for as long as the flush takes.
	s.upTo = max(s.upTo, target)
	s.wake()
	for {
		if err := db.writable(); err != nil {
			return err
		}
		switch {
		case s.ended:
			return ErrClosed
		case db.flushedUpTo(target):
			return nil
		case s.flushes.failed != failed:
			return db.writeError(s.flushes.err)
		}
		s.cond.Wait()
	}
}

// flushedUpTo reports whether no memtable has a version at or below s.
func (db *DB) flushedUpTo(s Seqno) bool {
	db.commit.mu.Lock()
	defer db.commit.mu.Unlock()
	for _, ts := range &db.current.Load().tables {
		for _, t := range ts {
			if t.first.Segment != 0 && t.first.Seqno <= s {
				return false
			}
		}
	}
	return true
}
