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
	db.snapshots.mu.Lock()
	defer db.snapshots.mu.Unlock()
	s := &Snapshot{db: db, seqno: db.readSeqno(0)}
	db.snapshots.open[s.seqno]++
	return s, nil
}

// Seqno returns the highest seqno that the snapshot sees.
func (s *Snapshot) Seqno() Seqno { return s.seqno }

// Get is DB.Get as of the snapshot. Expiry is judged by the present time.
func (s *Snapshot) Get(dst, key []byte) (Item, error) {
	if err := checkKey(key); err != nil {
		return Item{}, err
	}
	if s.closed.Load() {
		return Item{}, ErrClosed
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
	return s.db.getAt(v, s.seqno, dst, key)
}

// Close lets the versions go that only this snapshot needed. Closing again
// does nothing.
func (s *Snapshot) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	db := s.db
	db.snapshots.mu.Lock()
	if db.snapshots.open[s.seqno]--; db.snapshots.open[s.seqno] == 0 {
		delete(db.snapshots.open, s.seqno)
	}
	db.snapshots.mu.Unlock()
	db.retireCleared()
	return nil
}
