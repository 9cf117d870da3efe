package lsm

import (
	"errors"
	"fmt"
	"path"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/wal"
)

// heldVersion is a version of a key, newest first with the others of that key.
type heldVersion struct {
	seqno   Seqno
	address entry.Address // zero without a document in the log
}

// checkCollected is what must hold of addresses, dead sets, forwards and
// segments, whatever was merged and collected before:
//
//   - An address leads to a document of that key and seqno, unless a newer version
//     of the key is at or below the horizon, or a clear ended it (design R5, R8).
//   - Of the documents of a segment that all is flushed from, those that no table
//     addresses are dead, those that one addresses are not, and no two versions
//     address the same (R6, R7, reliability G3).
//   - Files are what is registered.
//
// Nobody writes meanwhile. What is expired counts as any other version: merges
// bury it first.
func checkCollected(db *DB) error {
	if err := checkAddresses(db); err != nil {
		return err
	}
	for start := time.Now(); ; time.Sleep(100 * time.Microsecond) { // who reads keeps files
		if err := checkSegmentFiles(db); err == nil || time.Since(start) > 10*time.Second {
			return err
		}
	}
}

func checkAddresses(db *DB) error {
	db.edits.mu.Lock() // the view is that of the state, and stays
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	pinned := db.pin()
	defer pinned.release()
	ver := pinned.version
	horizon := db.horizon()
	cleared := pinned.clearFor(horizon)

	var younger []*wal.Segment
	defer func() {
		for _, s := range younger {
			s.Release()
		}
	}()

	held := map[string][]heldVersion{}
	if err := eachVersion(db, pinned, func(v *entry.Version) error {
		h := heldVersion{seqno: v.Seqno}
		if v.Kind == entry.KindSet {
			h.address = v.Value.Address
		}
		held[string(v.Key)] = append(held[string(v.Key)], h)
		return nil
	}); err != nil {
		return err
	}
	locate := func(a entry.Address, seqno Seqno) (*wal.Segment, entry.Address, error) {
		if _, ok := st.Segment(a.Segment); !ok || ver.segments[a.Segment] != nil {
			return ver.locate(a, seqno)
		}
		// Younger than the version: readers have what is in it from memory.
		s := db.log.Acquire(a.Segment)
		if s == nil {
			return nil, a, db.lostAddress(a)
		}
		younger = append(younger, s)
		return s, a, nil
	}
	type place struct {
		segment entry.SegmentID
		seqno   Seqno
	}
	addressed := map[place]string{}
	for key, versions := range held {
		_, user := entry.SplitKey([]byte(key))
		for _, h := range versions {
			if h.address.IsZero() || h.seqno > horizon {
				continue
			}
			s, a, err := locate(h.address, h.seqno)
			if err != nil {
				replaced := h.seqno <= cleared
				for _, other := range versions {
					replaced = replaced || other.seqno > h.seqno && other.seqno <= horizon
				}
				if !replaced || !errors.Is(err, ErrCorrupt) {
					return fmt.Errorf("key %q, seqno %d, at %v: %w", user, h.seqno, h.address, err)
				}
				continue
			}
			p := place{s.ID, h.seqno}
			if other, twice := addressed[p]; twice {
				return fmt.Errorf("keys %q and %q both have seqno %d of segment %06d", user, other, p.seqno, p.segment)
			}
			addressed[p] = string(user)
			if _, _, err := wal.ReadDocument(s.File, a, h.seqno, user, &db.secret, !db.o.BufferedIO, nil); err != nil {
				return fmt.Errorf("key %q, seqno %d, at %v, which is %v now: %w", user, h.seqno, h.address, a, err)
			}
		}
	}

	for _, s := range st.Segments {
		replayed := s.Kind == manifest.SegmentLog && s.ID >= st.ReplayFrom.Segment
		if replayed || !s.Sealed && !s.Ended {
			continue // what of it is in memory, and what was given up, is not known here
		}
		index, err := seqnoIndex(db, s.ID)
		if err != nil || index == nil {
			return fmt.Errorf("index of segment %06d: %w", s.ID, err)
		}
		dead := st.DeadSet(s.ID)
		for q := range index.All() {
			key, live := addressed[place{s.ID, q}]
			switch {
			case live && dead.Contains(q):
				return fmt.Errorf("seqno %d counts as dead in segment %06d, but key %q has it", q, s.ID, key)
			case !live && !dead.Contains(q) && q > cleared && q <= horizon:
				return fmt.Errorf("seqno %d of segment %06d is addressed by nothing, and does not count as dead", q, s.ID)
			}
		}
		for _, q := range dead.AppendSeqnos(nil) {
			if _, ok := index.Lookup(q); !ok {
				return fmt.Errorf("seqno %d counts as dead in segment %06d, which has no such document", q, s.ID)
			}
		}
	}
	return nil
}

// checkNeeded: a segment is there because something addresses it, or replay needs
// it. One that a collection was at work on when the power failed goes with the
// next edit, so this is for stores that were compacted.
func checkNeeded(db *DB) error {
	st := db.edits.log.State()
	used := map[entry.SegmentID]bool{}
	for _, t := range st.Tables {
		for _, use := range t.Segments {
			used[use.Segment] = true
		}
	}
	for _, f := range st.Forwards {
		for _, r := range f.To { // a forward may wait for the next edit to go
			used[r.Segment] = true
		}
	}
	for _, s := range st.Segments {
		if !used[s.ID] && (s.Kind != manifest.SegmentLog || s.ID < st.ReplayFrom.Segment) {
			return fmt.Errorf("segment %06d is needed by nothing", s.ID)
		}
	}
	return nil
}

// checkSegmentFiles: an output of garbage collection is on disk exactly when it
// is registered; a log segment that is not was prepared, or is in the pool.
func checkSegmentFiles(db *DB) error {
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	names, err := db.fs.List(path.Join(db.dir, wal.SegmentsDir))
	if err != nil {
		return err
	}
	have := map[entry.SegmentID]bool{}
	for _, n := range names {
		id, kind, ok := wal.ParseSegmentName(n)
		if !ok {
			continue
		}
		s, known := st.Segment(id)
		have[id] = have[id] || known && wal.SegmentKind(s.Kind) == kind
		if !known && kind == wal.SegmentGC {
			return fmt.Errorf("%s is registered by nothing", n)
		}
	}
	for _, s := range st.Segments {
		if !have[s.ID] {
			return fmt.Errorf("segment %06d has no file", s.ID)
		}
	}
	return nil
}

// checkEnds: a start has recorded where every segment of the log ends that was
// there before. For stores that were just opened, on disks that are whole.
func checkEnds(db *DB) error {
	st := db.edits.log.State()
	db.commit.mu.Lock()
	at, ok := db.log.NextPositionLocked()
	db.commit.mu.Unlock()
	for _, s := range st.Segments {
		if (!ok || s.ID < at.Segment) && !s.Sealed && !s.Ended {
			return fmt.Errorf("segment %06d has no end: %+v", s.ID, s)
		}
	}
	return nil
}
