package wal

import (
	"errors"
	"time"

	"fluxkv/internal/entry"
)

// flushByLocked makes sure that the flusher looks at time t or before. Under
// load it wakes once a Window, not once a group.
func (l *Log) flushByLocked(t time.Time) {
	if l.flusherAt.After(t) {
		l.flusherAt = t
		l.kickFlusher()
	}
}

func (l *Log) kickFlusher() { notify(l.kick) }

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
		promises := l.stats.promises.Load()
		wait := l.flushDueLocked()
		l.flusherAt = time.Now().Add(wait)
		l.o.Mu.Unlock()
		timer.Reset(wait)
		if l.o.Idle != nil && l.stats.promises.Load() != promises {
			if err := l.o.Idle(); err != nil {
				l.o.Logf("promise of an idle store: %v", err)
				if errors.Is(err, ErrFailed) {
					l.Fail(err)
				}
			}
		}
	}
}

// flushDueLocked leads what is due and returns when to look again: soon as long
// as the log is in use, so that no group has to wake the flusher, which costs
// more than the group.
func (l *Log) flushDueLocked() time.Duration {
	for l.failed == nil {
		now := time.Now()
		closed := false
		for _, c := range l.pipeline {
			closed = closed || !c.started
		}
		switch {
		case l.inflight >= l.o.Inflight:
			return l.o.Window // its completion hands on
		case closed, l.open != nil && now.Sub(l.open.opened) >= l.o.Window:
			l.leadLocked()
		case l.open != nil:
			return l.o.Window - now.Sub(l.open.opened)
		case len(l.pipeline) > 0:
			return l.o.Window
		case l.promised >= entry.Seqno(l.durable.Load()):
			return time.Hour
		case now.Sub(l.lastWrite) < promiseDelay:
			return min(promiseDelay-now.Sub(l.lastWrite), l.o.Window)
		case !l.fitsSegment(l.active, l.activeOff, GroupHeaderBytes):
			if l.prep.ready == nil {
				return time.Hour // the next group promises
			}
			l.rollLocked() // its seal is the promise
		default:
			l.emptyGroupLocked(GroupPromise)
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
	if l.active == nil {
		return nil // nothing was written since the end that the caller recorded
	}
	l.sealActiveLocked(GroupClose)
	for l.failed == nil && l.unstartedLocked() {
		l.leadLocked()
	}
	return l.failed
}
