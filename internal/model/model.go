// Package model is what the engine is supposed to be: a sorted map that keeps
// every version. Random tests do each operation on both and compare.
//
//	a  #3 "x"   #7 delete
//	b  #4 "y"   #9 "z"          clears: #5
//
//	at 4: a=x b=y      at 6: nothing      at 9: b=z
package model

import (
	"iter"
	"maps"
	"slices"

	"fluxkv/internal/entry"
)

// Version is one version of a key.
type Version struct {
	Seqno  entry.Seqno
	Delete bool
	Value  string
	Meta   entry.Meta
}

// CAS is what readers get: the explicit one, or the seqno.
func (v Version) CAS() uint64 {
	if v.Meta.CAS != 0 {
		return v.Meta.CAS
	}
	return uint64(v.Seqno)
}

// Store is the map. The zero value is empty. It is not safe for concurrent use.
type Store struct {
	keys   map[string][]Version // ascending by seqno
	sorted []string             // nil: must be made again
	clears []entry.Seqno        // ascending
	// ends are the seqnos at which a batch or a clear ended, ascending: a crash
	// leaves the store as it was at one of them.
	ends []entry.Seqno
}

// Set adds a version, newer than all before.
func (s *Store) Set(key string, v Version) {
	if s.keys == nil {
		s.keys = make(map[string][]Version)
	}
	old, known := s.keys[key]
	if !known {
		s.sorted = nil
	}
	s.keys[key] = append(old, v)
}

// Clear hides all versions up to seqno. It ends a batch.
func (s *Store) Clear(seqno entry.Seqno) {
	s.clears = append(s.clears, seqno)
	s.End(seqno)
}

// End notes that a batch ended with seqno.
func (s *Store) End(seqno entry.Seqno) { s.ends = append(s.ends, seqno) }

// Last returns where the last batch ended, 0 if there was none.
func (s *Store) Last() entry.Seqno {
	if len(s.ends) == 0 {
		return 0
	}
	return s.ends[len(s.ends)-1]
}

// EndAt returns where the last batch ended that ended at or below seqno, 0 if
// none did.
func (s *Store) EndAt(seqno entry.Seqno) entry.Seqno {
	i, ok := slices.BinarySearch(s.ends, seqno)
	if ok {
		return seqno
	}
	if i == 0 {
		return 0
	}
	return s.ends[i-1]
}

// Cut forgets everything above seqno: a crash lost it.
func (s *Store) Cut(seqno entry.Seqno) {
	for key, versions := range s.keys {
		i, _ := slices.BinarySearchFunc(versions, seqno+1, func(v Version, s entry.Seqno) int { return compare(v.Seqno, s) })
		if i == 0 {
			delete(s.keys, key)
			s.sorted = nil
			continue
		}
		s.keys[key] = versions[:i]
	}
	above := func(at entry.Seqno) bool { return at > seqno }
	s.clears = slices.DeleteFunc(s.clears, above)
	s.ends = slices.DeleteFunc(s.ends, above)
}

func compare(a, b entry.Seqno) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Get returns what a reader at seqno at sees of key at time now, in Unix
// seconds.
func (s *Store) Get(key string, at entry.Seqno, now int64) (Version, bool) {
	versions := s.keys[key]
	for i := len(versions) - 1; i >= 0; i-- {
		v := versions[i]
		if v.Seqno > at {
			continue
		}
		expired := v.Meta.Expiry != 0 && int64(v.Meta.Expiry) <= now
		return v, !v.Delete && !expired && v.Seqno > s.clearAt(at)
	}
	return Version{}, false
}

// clearAt returns the last clear that a reader at seqno at sees.
func (s *Store) clearAt(at entry.Seqno) entry.Seqno {
	for i := len(s.clears) - 1; i >= 0; i-- {
		if s.clears[i] <= at {
			return s.clears[i]
		}
	}
	return 0
}

// Range yields what a reader at seqno at sees at time now, in the order of keys,
// from lower on.
func (s *Store) Range(lower string, at entry.Seqno, now int64) iter.Seq2[string, Version] {
	if s.sorted == nil {
		s.sorted = slices.Sorted(maps.Keys(s.keys))
	}
	return func(yield func(string, Version) bool) {
		from, _ := slices.BinarySearch(s.sorted, lower)
		for _, key := range s.sorted[from:] {
			if v, ok := s.Get(key, at, now); ok && !yield(key, v) {
				return
			}
		}
	}
}

// All yields every version of every key, in no order.
func (s *Store) All() iter.Seq2[string, Version] {
	return func(yield func(string, Version) bool) {
		for key, versions := range s.keys {
			for _, v := range versions {
				if !yield(key, v) {
					return
				}
			}
		}
	}
}

// Visible reports whether a reader at some seqno from..to sees version seqno of
// key at time now. Readers above the last write see what one at it sees.
func (s *Store) Visible(key string, seqno, from, to entry.Seqno, now int64) bool {
	see := func(at entry.Seqno) bool {
		v, ok := s.Get(key, at, now)
		return ok && v.Seqno == seqno
	}
	// A version only ever disappears, so the lowest of them sees it, if any.
	at := max(from, seqno)
	return at <= to && see(at)
}

// Keys returns every key ever written, in order.
func (s *Store) Keys() []string { return slices.Sorted(maps.Keys(s.keys)) }
