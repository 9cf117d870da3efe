package lsm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/wal"
)

// clearer empties the store: now, or at a time that the manifest remembers.
type clearer struct {
	// mu lets one clear run at a time. It is taken before edits.mu and
	// committer.mu and held across I/O; only clears wait for it.
	mu    sync.Mutex
	timer *time.Timer // of the pending clear; nil if none
	ended bool
}

// Clear makes every document written before it absent, at once (at is zero) or
// at the given time; until then they can be read, and documents written
// meanwhile go as well. A pending clear survives restarts, and a later call
// replaces it. It returns when the clear, or the intention, is durable, in any
// store; the seqno is that of the clear, 0 for a pending one.
//
// A clear takes one record of the log and no memory, whatever the store holds,
// so it works when the write cache is full, and frees it.
func (db *DB) Clear(at time.Time) (Seqno, error) {
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.leave()
	if err := db.writable(); err != nil {
		return 0, err
	}
	db.clears.mu.Lock()
	defer db.clears.mu.Unlock()
	if at.IsZero() || !at.After(db.o.Now()) {
		return db.clearNow()
	}
	if _, err := db.edit(func(manifest.State) *manifest.Edit {
		return &manifest.Edit{SetPendingClear: true, PendingClear: at.UnixNano()}
	}); err != nil {
		return 0, db.writeError(db.edited(err))
	}
	db.armClear(at)
	return 0, nil
}

// armClear starts the timer of a pending clear. clears.mu is held, or Open
// runs.
func (db *DB) armClear(at time.Time) {
	db.clears.cancel()
	if !db.clears.ended {
		db.clears.timer = time.AfterFunc(max(at.Sub(db.o.Now()), 0), func() { db.pendingClear(at) })
	}
}

// pendingClear runs on the timer's goroutine. Close waits for it like for any
// call.
func (db *DB) pendingClear(at time.Time) {
	if db.enter() != nil {
		return
	}
	defer db.leave()
	db.clears.mu.Lock()
	defer db.clears.mu.Unlock()
	if db.edits.log.State().PendingClear != at.UnixNano() {
		return // replaced meanwhile
	}
	if db.o.Now().Before(at) {
		db.armClear(at) // the clock was set back
		return
	}
	if _, err := db.clearNow(); err != nil && !errors.Is(err, ErrClosed) {
		db.o.Logf("delayed clear: %v; trying again in a second", err)
		if db.readOnly.Load() == nil && !db.clears.ended {
			db.clears.timer = time.AfterFunc(time.Second, func() { db.pendingClear(at) })
		}
	}
}

func (c *clearer) cancel() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// stop ends pending clears; the manifest keeps them for the next open.
func (c *clearer) stop() {
	c.mu.Lock()
	c.ended = true
	c.cancel()
	c.mu.Unlock()
}

// clearNow writes the clear record, starts fresh memtables behind it, and then
// gives back what only older seqnos could see. clears.mu is held.
func (db *DB) clearNow() (Seqno, error) {
	seqno, err := db.placeClear()
	if err != nil {
		return 0, db.writeError(err)
	}
	wait := func() error { return db.waitDurable(seqno, true) }
	if err := mutant.Skip(mutant.ClearBeforeDurable, wait); err != nil {
		return 0, err
	}
	db.counts.clears.Add(1)
	// The clear is done. What follows frees space and may fail: the log has
	// the record until the edit is there.
	db.retireCleared()
	if err := db.recordClear(seqno); err != nil {
		return seqno, db.writeError(fmt.Errorf("record the clear: %w", db.edited(err)))
	}
	db.clears.cancel()
	return seqno, nil
}

// recordClear puts a durable clear into the manifest, and drops what only
// older seqnos could see unless a snapshot still does.
func (db *DB) recordClear(seqno Seqno) error {
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	e := &manifest.Edit{ClearSeqno: seqno, SetPendingClear: true}
	e.ReplayFrom = db.replayFrom(&st, func(*table) bool { return false }, true)
	if seqno <= db.horizon() || mutant.ClearUnderSnapshot {
		e.DropTables = clearedTables(&st, seqno)
		db.dropForwards(&st, e)
		db.unneeded(&st, e)
	} else {
		db.sched.tablesToRetire.Store(true)
	}
	if mutant.DropBeforeEdit {
		db.log.Drop(e.DropSegments)
		time.Sleep(time.Millisecond)
	}
	return db.installEdit(e, func(*view) { db.commit.clearPin = entry.Position{} })
}

// clearedTables are those with nothing but versions that a clear ended.
func clearedTables(st *manifest.State, cleared Seqno) (numbers []uint64) {
	for _, t := range st.Tables {
		if t.HighestSeqno <= cleared {
			numbers = append(numbers, t.Number)
		}
	}
	return numbers
}

// retireTables drops what a clear ended and a snapshot kept in tables and
// segments, once that snapshot is gone.
func (db *DB) retireTables() error {
	if !db.sched.tablesToRetire.Load() || db.readOnly.Load() != nil {
		return nil
	}
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	if st.ClearSeqno == 0 || st.ClearSeqno > db.horizon() {
		return nil
	}
	db.sched.tablesToRetire.Store(false)
	e := &manifest.Edit{DropTables: clearedTables(&st, st.ClearSeqno)}
	e.ReplayFrom = db.replayFrom(&st, func(*table) bool { return false }, false)
	db.dropForwards(&st, e)
	if db.unneeded(&st, e); len(e.DropTables)+len(e.DropSegments)+len(e.DropForwards) == 0 {
		return nil
	}
	if err := db.installEdit(e, func(*view) {}); err != nil {
		db.sched.tablesToRetire.Store(true)
		return db.edited(err)
	}
	return nil
}

// placeClear numbers the clear and makes it visible.
func (db *DB) placeClear() (seqno Seqno, err error) {
	size := wal.BatchSize{Count: 1, Bytes: len(wal.AppendClear(nil)), Urgent: true}
	size.Largest = size.Bytes
	var fresh [kvstoresMax]*table
	for i := range db.kvstores {
		if fresh[i], err = db.newTable(); err != nil {
			db.freeTables(fresh[:i])
			return 0, err
		}
	}
	c := &db.commit
	for {
		c.mu.Lock()
		var place wal.Place
		err := db.checkLocked(&Batch{}, nil)
		if err == nil {
			place, err = db.log.PlaceLocked(size, c.next)
		}
		if err == nil {
			seqno = c.next
			c.next++
			ticket, _ := db.publish.enter(seqno)
			for i := range c.stripes {
				c.stripes[i] = seqno
			}
			v := db.current.Load().derive()
			for i := range db.kvstores {
				for _, t := range v.tables[i] {
					if t.cleared == 0 {
						t.cleared = seqno
					}
				}
				c.active[i].sealed = seqno
				v.tables[i] = append([]*table{fresh[i]}, v.tables[i]...)
				c.active[i] = fresh[i]
			}
			v.clears = append(v.clears, seqno)
			old := db.installLocked(v)
			if c.clearPin.Segment == 0 {
				c.clearPin = place.Position()
			}
			c.mu.Unlock()
			old.release()
			wal.AppendClear(place.Buf[:0])
			place.Done()
			db.publish.finish(ticket)
			return seqno, nil
		}
		c.mu.Unlock()
		if err := db.makeWay(err, size); err != nil {
			db.freeTables(fresh[:db.kvstores])
			return 0, err
		}
	}
}

func (db *DB) freeTables(tables []*table) {
	for _, t := range tables {
		db.spares.free(t)
	}
}

// retireCleared drops the memtables that a clear ended and that no reader can
// need any more: the clear is durable and visible, and no snapshot is older.
func (db *DB) retireCleared() {
	h := db.horizon()
	c := &db.commit
	c.mu.Lock()
	cur := db.current.Load()
	if cur == nil {
		c.mu.Unlock()
		return
	}
	v := cur.derive()
	changed := false
	for i := range v.tables {
		ts := v.tables[i][:0]
		for _, t := range v.tables[i] {
			switch {
			case t.cleared == 0:
			case t.cleared <= h:
				changed = true
				continue
			}
			ts = append(ts, t)
		}
		v.tables[i] = ts
	}
	if !changed {
		c.mu.Unlock()
		return
	}
	// Only the last clear at or below the horizon matters, and those above.
	for len(v.clears) > 1 && v.clears[1] <= h {
		v.clears = v.clears[1:]
	}
	old := db.installLocked(v)
	c.mu.Unlock()
	old.release()
}
