package iter

import (
	"bytes"
	"errors"
	"sort"

	"fluxkv/internal/entry"
)

// Part is one piece of a run: an iterator that is opened when it is reached.
type Part struct {
	// Smallest and Largest are the internal keys of its first and last
	// version.
	Smallest, Largest []byte
	// Open returns an iterator over all versions of the part, which stands
	// nowhere.
	Open func() (entry.Iterator, error)
}

// Concat walks the versions of parts that follow each other: every version of
// a part is, in the order of entry.Compare, before all of the next part. One
// part is open at a time. Moving within a part allocates nothing.
//
//	parts   [a#9 a#4 c#7] [c#2 d#3]        [f#1]
//	SeekGE(e)     -> binary search by Largest ^
//
// The first error ends it for good: going on behind a part that cannot be read
// would pass over the versions it has.
type Concat struct {
	parts  []Part
	cur    entry.Iterator // of parts[i], or nil
	i      int
	at     bool // cur stands at a version
	err    error
	closed bool
}

var _ entry.Iterator = (*Concat)(nil)

var errConcatClosed = errors.New("iter: Concat is closed")

// NewConcat concatenates parts, which are in order of keys. The slice and the
// keys are kept until Close. It stands nowhere until First or SeekGE, and
// opens nothing before.
func NewConcat(parts []Part) *Concat { return &Concat{parts: parts} }

// First moves to the first version of all.
func (c *Concat) First() bool {
	if !c.enter(0) {
		return false
	}
	return c.settle(c.cur.First())
}

// SeekGE moves to the first version at or after (key, seqno).
func (c *Concat) SeekGE(key []byte, seqno entry.Seqno) bool {
	i := sort.Search(len(c.parts), func(i int) bool { return bytes.Compare(c.parts[i].Largest, key) >= 0 })
	for ; c.enter(i); i++ {
		if c.cur.SeekGE(key, seqno) {
			c.at = true
			return true
		}
		if !c.check() {
			return false
		}
		// Only versions of the key itself can still lie in front of seqno.
		if i+1 == len(c.parts) || !bytes.Equal(c.parts[i+1].Smallest, key) {
			return c.forward()
		}
	}
	return false
}

// Next moves to the following version.
func (c *Concat) Next() bool {
	if !c.at {
		return false
	}
	if c.cur.Next() {
		return true
	}
	return c.settle(false)
}

// settle goes on to the first version of a following part unless ok, which
// says that the open part stands at a version.
func (c *Concat) settle(ok bool) bool {
	if ok {
		c.at = true
		return true
	}
	if !c.check() {
		return false
	}
	return c.forward()
}

// forward moves to the first version behind the open part.
func (c *Concat) forward() bool {
	for c.enter(c.i + 1) {
		if c.cur.First() {
			c.at = true
			return true
		}
		if !c.check() {
			return false
		}
	}
	return false
}

// enter opens part i, if it is another one than the open one, and closes that.
// It reports false behind the last part and on an error.
func (c *Concat) enter(i int) bool {
	c.at = false
	if c.closed && c.err == nil {
		c.err = errConcatClosed
	}
	if c.err != nil {
		return false
	}
	if c.cur != nil && c.i == i {
		return true
	}
	if !c.leave() || i >= len(c.parts) {
		return false
	}
	cur, err := c.parts[i].Open()
	if err != nil {
		c.err = err
		return false
	}
	c.cur, c.i = cur, i
	return true
}

// leave closes the open part.
func (c *Concat) leave() bool {
	if c.cur == nil {
		return true
	}
	err := c.cur.Close()
	c.cur = nil
	if c.err == nil {
		c.err = err
	}
	return c.err == nil
}

// check takes over the error of the open part and reports false if there is
// one.
func (c *Concat) check() bool {
	c.at = false
	if err := c.cur.Error(); err != nil && c.err == nil {
		c.err = err
	}
	return c.err == nil
}

// Version returns the current version, owned by the open part and valid until
// the next move.
func (c *Concat) Version() *entry.Version { return c.cur.Version() }

// Error returns the first error of a part, of opening or of closing one.
func (c *Concat) Error() error { return c.err }

// Close closes the open part and returns the error of that.
func (c *Concat) Close() error {
	if c.closed {
		return nil
	}
	c.closed, c.at = true, false
	var err error
	if c.cur != nil {
		err = c.cur.Close()
	}
	c.cur, c.parts = nil, nil
	return err
}
