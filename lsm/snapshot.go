package lsm

import (
	"sync"
	"sync/atomic"
)

// snapshots are the seqnos that readers registered. A snapshot pins versions,
// not files: what it may need is kept because nothing newer than the oldest
// registered seqno counts for dropping versions.
type snapshots struct {
	// mu guards the map. Order: committer.mu, snapshots.mu. A horizon is taken
	// under it, and a snapshot takes its seqno under it, so that none can
	// appear below a horizon already in use.
	mu   sync.Mutex
	open map[Seqno]int // seqno -> how many
}

func (s *snapshots) oldestLocked(none Seqno) Seqno {
	for q := range s.open {
		none = min(none, q)
	}
	return none
}

// horizon returns H: a version may be dropped only when a newer one of its key
// is at most H. It is min(D, V, oldest snapshot).
func (db *DB) horizon() Seqno {
	db.snapshots.mu.Lock()
	defer db.snapshots.mu.Unlock()
	h := min(Seqno(db.publish.visible.Load()), db.log.DurableSeqno())
	return db.snapshots.oldestLocked(h)
}

// register counts a reader at the seqno of snapshot s, or at that of a plain
// read when s is nil, and stores it in at.
func (r *snapshots) register(db *DB, s *Snapshot, at *Seqno) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s == nil:
		*at = db.readSeqno(0)
	case s.closed.Load():
		return ErrClosed
	default:
		*at = s.seqno // counted until we unlock: Close comes after closed
	}
	r.open[*at]++
	return nil
}

// unregister takes the count back.
func (r *snapshots) unregister(at Seqno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[at]--; r.open[at] == 0 {
		delete(r.open, at)
	}
}

// retireSoon does what the end of a reader allows, unless the store is closing.
func (db *DB) retireSoon() {
	if db.enter() != nil {
		return
	}
	defer db.leave()
	db.retireCleared()
	if db.sched.tablesToRetire.Load() {
		db.sched.wake()
	}
}

// Snapshot reads the store as of one moment. It is safe for concurrent use and
// must be closed: the versions it can see are kept until then.
type Snapshot struct {
	db     *DB
	seqno  Seqno
	closed atomic.Bool
}

// NewSnapshot returns a snapshot of everything a plain read sees now.
func (db *DB) NewSnapshot() (*Snapshot, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	s := &Snapshot{db: db}
	if err := db.snapshots.register(db, nil, &s.seqno); err != nil {
		return nil, err
	}
	return s, nil
}

// Seqno returns the highest seqno that the snapshot sees.
func (s *Snapshot) Seqno() Seqno { return s.seqno }

// Get is DB.Get as of the snapshot. Expiry is judged by the present time.
func (s *Snapshot) Get(dst, key []byte) (Item, error) {
	if err := checkKey(key); err != nil {
		return Item{}, err
	}
	if err := s.db.enter(); err != nil {
		return Item{}, err
	}
	defer s.db.leave()
	v := s.db.pin()
	if v == nil {
		return Item{}, ErrClosed
	}
	defer v.release()
	// After the pin: a view from before Close still has what s sees.
	if s.closed.Load() {
		return Item{}, ErrClosed
	}
	return s.db.getAt(v, s.seqno, dst, key, true)
}

// Close lets the versions go that only this snapshot needed. Closing again
// does nothing.
func (s *Snapshot) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.db.snapshots.unregister(s.seqno)
	s.db.retireSoon()
	return nil
}
