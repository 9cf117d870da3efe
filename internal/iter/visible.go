package iter

import (
	"bytes"

	"fluxkv/internal/entry"
)

// VisibleOptions say what a reader sees.
type VisibleOptions struct {
	// At is the read seqno: newer versions are absent. 0 shows nothing.
	At entry.Seqno
	// Clear is the seqno of the last clear the reader sees: versions at or
	// below it are absent. 0 means none.
	Clear entry.Seqno
	// Expired, if not nil, tells whether a document whose Meta.Expiry is not
	// 0 has expired; it is then absent, as are its older versions.
	Expired func(expiry uint32) bool
}

// Visible shows of each key the newest version at or below the read seqno, and
// nothing if that is a tombstone, cleared or expired. Moving allocates nothing
// once its buffer has grown to the longest key.
//
// It owns its source and closes it.
type Visible struct {
	src entry.Iterator
	o   VisibleOptions
	v   *entry.Version
	key []byte // of the last version seen
	// decided says that the newest version of key that the reader may see was
	// met: its further versions are passed over.
	decided bool
}

var _ entry.Iterator = (*Visible)(nil)

// NewVisible shows src through o. It stands nowhere until First or SeekGE.
func NewVisible(src entry.Iterator, o VisibleOptions) *Visible {
	return &Visible{src: src, o: o}
}

// stepsMax is how many versions of one key are passed one by one before
// seeking behind them: a seek costs about as much as this many steps.
const stepsMax = 16

// First moves to the first visible version.
func (x *Visible) First() bool {
	x.forget()
	return x.settle(x.src.First())
}

// SeekGE moves to the first visible version at or after (key, seqno).
func (x *Visible) SeekGE(key []byte, seqno entry.Seqno) bool {
	// From the newest version on: starting at seqno would take an older
	// version for the visible one.
	x.forget()
	if !x.settle(x.src.SeekGE(key, entry.MaxSeqno)) {
		return false
	}
	if x.v.Seqno > seqno && bytes.Equal(x.v.Key, key) {
		return x.Next()
	}
	return true
}

// Next moves to the following visible version.
func (x *Visible) Next() bool {
	if x.v == nil {
		return false
	}
	return x.settle(x.src.Next())
}

// forget the key: no internal key is empty.
func (x *Visible) forget() { x.key, x.decided = x.key[:0], false }

// settle moves the source, which stands if ok, on to a version that is visible.
func (x *Visible) settle(ok bool) bool {
	x.v = nil
	for steps := 0; ok; {
		v := x.src.Version()
		if !bytes.Equal(v.Key, x.key) {
			x.key = append(x.key[:0], v.Key...)
			x.decided = false
			steps = 0
		}
		if !x.decided && v.Seqno <= x.o.At {
			x.decided = true
			if x.shown(v) {
				x.v = v
				return true
			}
		}
		if steps++; steps <= stepsMax {
			ok = x.src.Next()
			continue
		}
		steps = 0
		behind := x.o.At
		if x.decided {
			behind = 0 // no version has seqno 0
		}
		ok = x.src.SeekGE(x.key, behind)
	}
	return false
}

func (x *Visible) shown(v *entry.Version) bool {
	return v.Kind != entry.KindDelete && v.Seqno > x.o.Clear &&
		(v.Meta.Expiry == 0 || x.o.Expired == nil || !x.o.Expired(v.Meta.Expiry))
}

// Version returns the current version, owned by the source and valid until the
// next move.
func (x *Visible) Version() *entry.Version { return x.v }

// Error returns the source's error.
func (x *Visible) Error() error { return x.src.Error() }

// Close closes the source.
func (x *Visible) Close() error {
	x.v = nil
	return x.src.Close()
}
