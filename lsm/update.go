package lsm

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// UpdateOp is what an Update's function decides.
type UpdateOp int

const (
	// UpdateNone writes nothing.
	UpdateNone UpdateOp = iota
	// UpdateSet stores the returned value and Meta.
	UpdateSet
	// UpdateDelete writes a tombstone.
	UpdateDelete
)

// UpdateFunc decides from the newest version of a key (nil when there is none)
// what to write. It may run several times and must not keep old, whose slices
// are valid during the call. It must not call Update on the same DB.
type UpdateFunc func(old *Item) (op UpdateOp, value []byte, m Meta, err error)

// updateScratch is the memory of one Update.
type updateScratch struct {
	batch Batch
	item  Item // that the function gets: a variable would go to the heap
	old   []byte
	// withoutValue: the function wants to know what there is, not the bytes.
	withoutValue bool
}

var updateScratches = sync.Pool{New: func() any { return new(updateScratch) }}

// updatesInFunc counts the Updates whose function is running, of all stores.
var updatesInFunc atomic.Int64

// Update reads the newest version of key, durable or not, and writes what fn
// decides, as one step: no other write to the key comes between. Blind writes
// take no lock for that. Every commit notes its seqno in a word for each stripe
// of keys; Update reads the word, waits until it is visible, reads as of it, and is
// numbered only if the word is still the same, otherwise it looks again
// (design R17).
//
// It returns the seqno that the caller must wait for with WaitDurable before
// it gives away anything derived from the call, errors and misses included:
// the new version's, or that of the state that fn saw. fn's error is returned
// as it is, and nothing is written then.
func (db *DB) Update(key []byte, fn UpdateFunc) (Seqno, error) {
	return db.update(key, fn, false)
}

// UpdateKey is Update for a function that does not look at the old value: it is
// nil or what happened to be in memory, and never read from the log.
func (db *DB) UpdateKey(key []byte, fn UpdateFunc) (Seqno, error) {
	return db.update(key, fn, true)
}

func (db *DB) update(key []byte, fn UpdateFunc, withoutValue bool) (Seqno, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	if updatesInFunc.Load() > 0 && insideUpdateFunc() {
		return 0, ErrNestedUpdate
	}
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.leave()
	s := updateScratches.Get().(*updateScratch)
	s.withoutValue = withoutValue
	defer func() {
		s.batch.Reset()
		s.item = Item{}
		if cap(s.old) > mib {
			s.old = nil
		}
		updateScratches.Put(s)
	}()
	for {
		seen, err := db.updateOnce(s, key, fn)
		if errors.Is(err, errStripeMoved) {
			db.counts.updateRetries.Add(1)
			continue
		}
		return seen, err
	}
}

func (db *DB) updateOnce(s *updateScratch, key []byte, fn UpdateFunc) (Seqno, error) {
	if err := db.writable(); err != nil {
		return 0, err
	}
	stripe := stripeOf(xxhash.Sum64(key))
	word := db.stripeWord(stripe)
	db.publish.wait(word)

	// As of the word, not of V: a version that came since would be given away
	// under a seqno that does not cover it.
	v := db.pin()
	if v == nil {
		return 0, ErrClosed
	}
	// A flush may have dropped what the word saw for something newer: then the
	// stripe has moved.
	if db.stripeWord(stripe) != word {
		v.release()
		return 0, errStripeMoved
	}
	var err error
	s.item, err = db.getAt(v, word, s.old[:0], key, !s.withoutValue)
	var seen *Item
	switch {
	case err == nil:
		seen = &s.item
		s.old = s.item.Value
	case !errors.Is(err, ErrNotFound):
		v.release()
		return word, err
	}
	op, value, m, err := callUpdateFunc(fn, seen)
	v.release()
	if err != nil || op == UpdateNone {
		return word, err
	}
	s.batch.Reset()
	if op == UpdateDelete {
		err = s.batch.Delete(key)
	} else {
		err = s.batch.Set(key, value, m)
	}
	if err != nil {
		return word, err
	}
	last, err := db.apply(&s.batch, &condition{stripe, word})
	if err != nil {
		return word, err
	}
	return last, nil
}

func (db *DB) stripeWord(stripe uint16) Seqno {
	db.commit.mu.Lock()
	defer db.commit.mu.Unlock()
	return db.commit.stripes[stripe]
}

//go:noinline
func callUpdateFunc(fn UpdateFunc, old *Item) (UpdateOp, []byte, Meta, error) {
	updatesInFunc.Add(1)
	defer updatesInFunc.Add(-1)
	return fn(old)
}

// insideUpdateFunc looks for callUpdateFunc among the callers. It is asked only
// while some Update's function runs, which is a matter of nanoseconds unless
// functions are slow.
func insideUpdateFunc() bool {
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for {
			f, more := frames.Next()
			if strings.HasSuffix(f.Function, "lsm.callUpdateFunc") {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
