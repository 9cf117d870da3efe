package compaction

import (
	"fmt"

	"fluxkv/internal/entry"
)

// Policy says which versions nobody can see any more. It is taken once, at the
// start of a job, and stays as it is until its end.
type Policy struct {
	// Horizon is H: every present and future reader reads at or above it.
	// 0 keeps every version.
	Horizon entry.Seqno
	// Clear is the seqno of the last clear, 0 for none. It counts only when
	// it is at most Horizon: otherwise a reader may be older than the clear.
	Clear entry.Seqno
	// Now is the clock for expiry, in Unix seconds: the highest time at which
	// any version was ever given up. A document whose expiry is at or below it
	// is gone. 0 expires nothing.
	Now uint32
	// Bottom says that no older version of these keys is anywhere else, in
	// memory or in tables: only then may the last version of a key go.
	Bottom bool
}

// Verdict is what happens to one version.
type Verdict uint8

const (
	// Keep writes the version as it is.
	Keep Verdict = iota
	// Bury writes a tombstone with its seqno in place of a document that has
	// expired, because older versions of its key may be elsewhere.
	Bury
	// Superseded drops a version: a newer one of its key is at or below the
	// horizon.
	Superseded
	// Cleared drops a version at or below the clear seqno.
	Cleared
	// Deleted drops a tombstone with nothing below it.
	Deleted
	// Expired drops a document that has expired, with nothing below it.
	Expired

	verdicts = int(Expired) + 1
)

// Drops reports whether the version is not written.
func (v Verdict) Drops() bool { return v >= Superseded }

func (v Verdict) String() string {
	switch v {
	case Keep:
		return "keep"
	case Bury:
		return "bury"
	case Superseded:
		return "superseded"
	case Cleared:
		return "cleared"
	case Deleted:
		return "deleted"
	case Expired:
		return "expired"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Elision decides, version by version in the order of entry.Compare, which may
// go. It looks at nothing but what it is given and is not safe for concurrent
// use.
//
//	H = 6           a#9  a#7  a#6      a#3        a#2 DEL
//	reads at 6..    keep keep keep     superseded superseded
//	                          the newest that a reader at H can see
type Elision struct {
	policy Policy
	// covered says that a version of this key at or below the horizon was met:
	// no reader sees an older one.
	covered bool
}

// NewElision returns an Elision that stands before the first version.
func NewElision(p Policy) Elision { return Elision{policy: p} }

// Decide returns the verdict on v; fresh says that its key is not that of the
// version before, which must be newer otherwise.
func (e *Elision) Decide(v *entry.Version, fresh bool) Verdict {
	if fresh {
		e.covered = false
	}
	if e.covered {
		return Superseded
	}
	p := &e.policy
	if v.Seqno > p.Horizon {
		return Keep
	}
	e.covered = true
	switch {
	case p.Clear <= p.Horizon && v.Seqno <= p.Clear:
		return Cleared
	case v.Kind == entry.KindDelete:
		if p.Bottom {
			return Deleted
		}
	case v.Meta.Expiry != 0 && v.Meta.Expiry <= p.Now:
		if p.Bottom {
			return Expired
		}
		return Bury
	}
	return Keep
}
