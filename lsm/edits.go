package lsm

import (
	"errors"
	"fmt"
	"sync"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/wal"
)

// edits makes changes of the manifest one after the other. A manifest that
// failed ends writing: what it says after a restart is not known.
type edits struct {
	// mu makes "look at the state, then edit it" one step. It is held across
	// I/O; nothing that a reader or a writer of documents needs waits for it.
	mu  sync.Mutex
	log *manifest.Log
}

// edit applies what change makes of the current state; a nil edit changes
// nothing. An error that wraps wal.ErrFailed must end the log: see edited.
func (db *DB) edit(change func(manifest.State) *manifest.Edit) (manifest.State, error) {
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	e := change(st)
	if e == nil {
		return st, nil
	}
	return db.applyLocked(e)
}

// applyLocked makes e durable. edits.mu is held.
func (db *DB) applyLocked(e *manifest.Edit) (manifest.State, error) {
	st, err := db.edits.log.Apply(e)
	if err != nil && errors.Is(err, manifest.ErrPoisoned) {
		err = fmt.Errorf("%w: %w", wal.ErrFailed, err)
	}
	return st, err
}

// edited ends the log when the manifest failed under it.
func (db *DB) edited(err error) error {
	if errors.Is(err, wal.ErrFailed) {
		db.log.Fail(err)
	}
	return err
}

// promiseEdits lets the manifest vouch for its last edit too when the store
// is idle: damage to that edit would pass for a torn tail otherwise.
func (db *DB) promiseEdits() error {
	db.edits.mu.Lock()
	err := db.edits.log.Promise()
	db.edits.mu.Unlock()
	if errors.Is(err, manifest.ErrPoisoned) {
		err = fmt.Errorf("%w: %w", wal.ErrFailed, err)
	}
	return err
}

// register makes a prepared segment part of the store.
func (db *DB) register(id entry.SegmentID, kind wal.SegmentKind, bytes int64) error {
	_, err := db.edit(func(st manifest.State) *manifest.Edit {
		e := &manifest.Edit{AddSegments: []manifest.AddSegment{{ID: id, Kind: manifest.SegmentKind(kind), Size: bytes}}}
		if st.ReplayFrom.Segment == 0 { // the first of the store
			e.ReplayFrom = entry.Position{Segment: id, Seqno: st.NextSeqno}
		}
		return e
	})
	return err
}

// sealed records that a segment is complete, unless it was dropped meanwhile.
func (db *DB) sealed(s wal.SealedSegment) error {
	_, err := db.edit(func(st manifest.State) *manifest.Edit {
		if _, ok := st.Segment(s.ID); !ok {
			return nil
		}
		if s.Bytes == 0 {
			return &manifest.Edit{EndSegments: []manifest.EndSegment{{ID: s.ID, End: s.End, Last: s.Last, Next: s.Next}}}
		}
		return &manifest.Edit{SealSegments: []manifest.SealSegment{{
			ID: s.ID, End: s.End, Last: s.Last, FileBytes: s.Bytes, Footer: true,
		}}}
	})
	return err
}
