package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A history is what the clients of a store asked for and what they were told.
// After a crash the store must agree with it:
//
//	client 0:  put a   put b   clear   put c | put d
//	           told    told    told    told  | asked, no answer yet
//	                                         ^ up to here everything must be there; behind it each
//	                                           client's operations may be there as far as a prefix
//
// Every operation makes values of its own, so what is found tells which
// operations are there.
type history struct {
	clients []*client
	// handedOut is the highest seqno that any run of the store gave away,
	// whether or not it left a trace. None may be given away again (T1).
	handedOut Seqno
	// wish is a delayed clear that was asked for; doneBy is the operation of
	// client 0 that stands for its execution, once a store was opened late
	// enough to do it.
	wish struct {
		at     time.Time
		told   bool
		doneBy *asked
	}
}

// client sends one operation after the other and owns its keys.
type client struct {
	name string
	ops  []*asked
}

// asked is one operation of a client.
type asked struct {
	docs  []doc
	clear bool
	first Seqno // seqno of docs[0], or of the clear; 0 when it was not told
	told  bool  // the client knows that it is durable: by success, or because it saw it
}

// doc is one write: a value, or a tombstone when it is nil.
type doc struct {
	key    string
	value  []byte
	flags  uint32
	expiry uint32 // Unix seconds, 0: never
}

// gone reports whether d is absent at a time: deleted, or expired.
func (d *doc) gone(now uint32) bool { return d.value == nil || d.expiry != 0 && d.expiry <= now }

func newHistory(clients ...string) *history {
	h := &history{}
	for _, name := range clients {
		h.clients = append(h.clients, &client{name: name})
	}
	return h
}

// clone copies the lists; the operations' docs are never written to.
func (h *history) clone() *history {
	out := &history{handedOut: h.handedOut, wish: h.wish}
	for _, c := range h.clients {
		n := &client{name: c.name}
		for _, o := range c.ops {
			copied := *o
			if o == h.wish.doneBy {
				out.wish.doneBy = &copied
			}
			n.ops = append(n.ops, &copied)
		}
		out.clients = append(out.clients, n)
	}
	return out
}

// fingerprint identifies everything that a check depends on.
func (h *history) fingerprint() uint64 {
	var b strings.Builder
	fmt.Fprint(&b, h.handedOut, h.wish.at.UnixNano(), h.wish.told, h.wish.doneBy != nil)
	for _, c := range h.clients {
		b.WriteString(c.name)
		for _, o := range c.ops {
			fmt.Fprint(&b, " ", len(o.docs), o.clear, o.first, o.told)
		}
	}
	return xxhash.Sum64String(b.String())
}

// toldOps is how many operations of the client must be there.
func (c *client) toldOps() int {
	for i := len(c.ops); i > 0; i-- {
		if c.ops[i-1].told {
			return i
		}
	}
	return 0
}

// after returns what the client's keys hold after its first n operations, at a
// time in Unix seconds.
func (c *client) after(n int, now uint32) map[string]doc {
	m := map[string]doc{}
	for _, o := range c.ops[:n] {
		if o.clear {
			clear(m)
		}
		for _, d := range o.docs {
			if d.gone(now) {
				delete(m, d.key)
			} else {
				m[d.key] = d
			}
		}
	}
	return m
}

// drop takes back an operation of which the store said that it did not happen.
func (c *client) drop(o *asked) {
	c.ops = slices.DeleteFunc(c.ops, func(p *asked) bool { return p == o })
}

func (c *client) keys() []string {
	m := map[string]bool{}
	for _, o := range c.ops {
		for _, d := range o.docs {
			m[d.key] = true
		}
	}
	return slices.Sorted(maps.Keys(m))
}

// found is what a reader sees of one client's keys.
func (c *client) found(db *DB) (map[string]Item, error) {
	m := map[string]Item{}
	var b ReadBatch
	keys := c.keys()
	for _, k := range keys {
		b.Add([]byte(k))
	}
	if err := db.GetMany(&b); err != nil {
		return nil, err
	}
	defer b.Release()
	for i, k := range keys {
		it, err := db.Get(nil, []byte(k))
		many := b.Err(i)
		switch {
		case errors.Is(err, ErrNotFound) && errors.Is(many, ErrNotFound):
			continue
		case err != nil || many != nil:
			return nil, fmt.Errorf("key %s: %w", k, errors.Join(err, many))
		case !bytes.Equal(it.Value, b.Item(i).Value) || it.Seqno != b.Item(i).Seqno:
			return nil, fmt.Errorf("key %s: Get and GetMany differ", k)
		}
		m[k] = it
	}
	return m, nil
}

func sameDocs(want map[string]doc, got map[string]Item) error {
	for k, d := range want {
		it, ok := got[k]
		switch {
		case !ok:
			return fmt.Errorf("%s is missing", k)
		case !bytes.Equal(it.Value, d.value):
			return fmt.Errorf("%s holds %s, want %s", k, short(it.Value), short(d.value))
		case it.Flags != d.flags:
			return fmt.Errorf("%s has flags %d, want %d", k, it.Flags, d.flags)
		case it.CAS != uint64(it.Seqno):
			return fmt.Errorf("%s has CAS %d at seqno %d", k, it.CAS, it.Seqno)
		}
	}
	for k, it := range got {
		if _, ok := want[k]; !ok {
			return fmt.Errorf("%s holds %s, want nothing", k, short(it.Value))
		}
	}
	return nil
}

func short(v []byte) string {
	if len(v) > 24 {
		return fmt.Sprintf("%q... (%d bytes)", v[:24], len(v))
	}
	return fmt.Sprintf("%q", v)
}

// check compares a recovered store with the history, and returns the history
// as the store settled it: what is there is certain from now on, what is not
// never happened.
func (h *history) check(db *DB) (*history, error) {
	out := h.clone()
	if err := out.settleWish(db); err != nil {
		return nil, err
	}
	var present, absent []*asked
	now := uint32(db.o.Now().Unix())
	all := map[string]Item{}
	for _, c := range out.clients {
		got, err := c.found(db)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, got)
		n, fits := -1, -1
		var why error
		for i := c.toldOps(); i <= len(c.ops); i++ {
			if err := sameDocs(c.after(i, now), got); err != nil {
				if why == nil {
					why = err
				}
				continue
			}
			if n < 0 {
				n = i
			}
			fits = i
		}
		if n < 0 {
			return nil, fmt.Errorf("client %s was told of %d operations of %d, and finds: %w", c.name, c.toldOps(), len(c.ops), why)
		}
		present = append(present, c.ops[:n]...)
		absent = append(absent, c.ops[fits:]...)
		// Operations that change nothing cannot be told apart; take the store's
		// seqnos for it below.
		c.ops = c.ops[:n]
		for _, o := range c.ops {
			o.told = true
		}
	}
	for _, p := range present {
		for _, a := range absent {
			if p.first != 0 && a.first != 0 && a.first < p.first {
				return nil, fmt.Errorf("seqno %d is missing, but the later %d is there", a.first, p.first)
			}
		}
	}
	if err := sameScan(db, all); err != nil {
		return nil, err
	}
	if err := out.checkVersions(db); err != nil {
		return nil, err
	}
	next := db.Stats().NextSeqno
	if next <= h.handedOut {
		return nil, fmt.Errorf("the next seqno is %d, but %d was handed out before", next, h.handedOut)
	}
	out.handedOut = next - 1
	return out, nil
}

// settleWish looks at a delayed clear: it is remembered until it is done.
func (h *history) settleWish(db *DB) error {
	got := db.Stats().PendingClear
	now := db.o.Now()
	switch {
	case h.wish.at.IsZero():
		if !got.IsZero() {
			return fmt.Errorf("a clear is pending at %v that nobody asked for", got)
		}
	case now.Before(h.wish.at):
		if h.wish.told && !got.Equal(h.wish.at) || !got.IsZero() && !got.Equal(h.wish.at) {
			return fmt.Errorf("a clear is pending at %v, asked for was %v", got, h.wish.at)
		}
		if got.IsZero() {
			h.wish.at = time.Time{}
		}
		h.wish.told = true
	default:
		if !got.IsZero() {
			return fmt.Errorf("a clear is still pending at %v, and it is %v", got, now)
		}
		if h.wish.told && h.wish.doneBy != nil {
			h.wish.doneBy.told = true
		}
		h.wish.at, h.wish.doneBy = time.Time{}, nil
	}
	return nil
}
