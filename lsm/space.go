package lsm

import (
	"errors"

	"fluxkv/internal/vfs"
	"fluxkv/wal"
)

// A disk that is nearly full (design R22). Log segments of writers leave the
// reserve free; what frees space may use it:
//
//	writer finds no room --> flush, if that lets go of a segment: then garbage is known, too
//	                     --> a merge or a collection, which take one victim at a time
//	                     --> tries again, when a job ended
//	                     --> ErrDiskFull, when none is left, or one failed
//
// With Reject a writer has ErrDiskFull at once, and the jobs start all the same.

// makeRoom is wal.(*Log).MakeRoom, with the wait for space.
func (db *DB) makeRoom(size wal.BatchSize) error {
	for {
		err := db.log.MakeRoom(size)
		if err == nil || !errors.Is(err, vfs.ErrNoSpace) || errors.Is(err, wal.ErrFailed) || size.Urgent {
			return err
		}
		if !db.waitForSpace() {
			// The last job may have freed some behind that.
			return db.log.MakeRoom(size)
		}
	}
}

// waitForSpace starts what can free space, and waits until a job has ended. It
// returns false when none is left to wait for: nothing is worth it, one failed, the
// store rejects writers instead of stalling them, or it is closing.
func (db *DB) waitForSpace() bool {
	s := &db.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	if db.o.flushOnDemand || s.ended || db.writable() != nil {
		return false
	}
	db.flushForSpaceLocked()
	s.wake()
	if db.o.Reject {
		return false
	}
	done, failed := s.jobsDone, s.failures()
	db.spaceWaits.Add(1)
	defer db.spaceWaits.Add(-1)
	// A look that began before this call does not count.
	for target := s.looks + 2; ; {
		switch {
		case s.ended || db.writable() != nil || s.failures() != failed:
			return false
		case s.jobsDone != done:
			return true
		case s.looks >= target && s.running == 0:
			return false
		}
		s.wake()
		s.cond.Wait()
	}
}

// flushForSpaceLocked has everything flushed once that lets go of half a segment of
// the log, about: what is dead in the others is known then. scheduler.mu is held.
func (db *DB) flushForSpaceLocked() {
	stores, _, _ := db.flushStores()
	for k := range stores {
		if stores[k].padded >= db.segmentBytes()/2 {
			db.commit.mu.Lock()
			db.sched.upTo = max(db.sched.upTo, db.commit.next-1)
			db.commit.mu.Unlock()
			return
		}
	}
}

// failures counts the jobs that failed. mu is held.
func (s *scheduler) failures() int64 {
	return s.flushes.failed + s.merges.failed + s.collections.failed
}

// reserveBytes is the free space that log segments leave to the manifest and to
// whatever frees space (design R22): three segments, two tables and a
// manifest. A table of a flush is no larger than the write cache.
func (db *DB) reserveBytes(segment int64) int64 {
	return 3*segment + 2*min(db.o.TableBytes, db.o.WriteCache/flushJobDen) + 4*mib
}
