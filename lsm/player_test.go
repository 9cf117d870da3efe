package lsm

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
)

// player uses a store as its clients do, and writes the history. In crash loops
// the first error ends it; with faults injected (faulty) it goes on as a server
// would, and judges the errors.
type player struct {
	fs     vfs.FS
	o      Options
	h      *history
	db     *DB
	clock  atomic.Int64
	faulty bool
	fault  faultfs.Fault // which one, when faulty
	halted func() bool   // the disk will not answer any more

	snapshots []*shot // open ones, the oldest first
	refused   int64   // flushes that may have failed

	mu        sync.Mutex
	dead      error
	problems  []error        // wrong behaviour, as opposed to errors that may happen
	interlude *interlude     // what happens inside a call to come
	within    sync.WaitGroup // interludes under way
}

// clockStart is the time at which scenarios begin.
var clockStart = time.Unix(1_700_000_000, 0)

func tinyOptions() Options {
	return Options{
		VBuckets: 4, KVStores: 1, MemQuota: 16 * mib, WriteCache: mib, BlockCacheBytes: mib, InlineLimit: 64, MaxItemBytes: 64 * kib,
		SegmentBytes: 32 * kib, segmentBytesMin: 32 * kib, groupBytesMax: 16 * kib, replayBufferBytes: 64 * kib, AsyncWindow: time.Millisecond,
		TableBytes: 64 * kib, tableBytesMin: 16 * kib, TableWriteBuffer: 8 * kib, writeCacheMin: 16 * kib, flushOnDemand: true,
	}
}

func newPlayer(fs vfs.FS, o Options, h *history) *player {
	p := &player{fs: fs, o: o, h: h, halted: func() bool { return false }}
	p.clock.Store(clockStart.UnixNano())
	return p
}

func (p *player) options() Options {
	o := p.o
	o.FS = &tapFS{inner: p.fs, call: p.call}
	o.Now = func() time.Time { return time.Unix(0, p.clock.Load()) }
	return o
}

func (p *player) problem(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, fmt.Errorf(format, args...))
}

// over reports that nothing more can be done.
func (p *player) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead != nil || p.db == nil
}

func (p *player) die(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead == nil {
		p.dead = err
	}
}

// open starts the store. With faults, an Open that failed must have released
// the lock and left the files usable: it is tried again.
func (p *player) open() {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead != nil {
		return
	}
	if at := p.h.wish.at; !at.IsZero() && p.clock.Load() >= at.UnixNano() && p.h.wish.doneBy == nil {
		p.h.wish.doneBy = &asked{clear: true}
		p.h.clients[0].ops = append(p.h.clients[0].ops, p.h.wish.doneBy)
	}
	for try := 0; ; try++ {
		db, err := Open("data", p.options())
		if err == nil {
			p.db = db
			break
		}
		if !p.faulty {
			p.die(fmt.Errorf("open: %w", err))
			return
		}
		if !errors.Is(err, faultfs.ErrInjected) && p.fault != faultfs.BitFlip {
			p.problem("open: %w", err)
		}
		if try == 2 {
			p.die(err)
			return
		}
	}
	if p.faulty || p.h.wish.doneBy != nil {
		p.settle()
	}
}

// settle takes what a reader of the running store sees as settled.
func (p *player) settle() {
	h, err := p.h.check(p.db)
	switch {
	case err == nil:
		p.h = h
	case p.halted() || p.faulty && errors.Is(err, faultfs.ErrInjected):
		p.die(err)
	default:
		p.problem("running store: %w", err)
	}
}

// verify checks that the running store agrees with its history.
func (p *player) verify() {
	if p.over() {
		return
	}
	if _, err := p.h.check(p.db); err != nil && !p.halted() && !(p.faulty && errors.Is(err, faultfs.ErrInjected)) {
		p.problem("running store: %w", err)
	}
}

func (p *player) close() {
	if p.db == nil {
		return
	}
	p.closeSnapshots()
	p.db.commit.mu.Lock()
	p.h.handedOut = max(p.h.handedOut, p.db.commit.next-1)
	p.db.commit.mu.Unlock()
	err := p.db.Close()
	p.db = nil
	switch {
	case err == nil:
	case p.faulty && errors.Is(err, faultfs.ErrInjected):
		if p.fault == faultfs.SyncDrop && !p.o.BufferedIO {
			p.die(err)
		}
	default:
		p.die(fmt.Errorf("close: %w", err))
	}
}

func (p *player) reopen() { p.close(); p.open() }

// passes moves the clock.
func (p *player) passes(d time.Duration) { p.clock.Add(int64(d)) }

// value makes the value of a client's next operation: n bytes that no other
// operation writes.
func (c *client) value(key string, n int) []byte {
	v := fmt.Appendf(nil, "%s.%d.%s.", c.name, len(c.ops), key)
	for len(v) < n {
		v = append(v, byte('a'+len(v)%26))
	}
	return v
}

// now is the time in Unix seconds.
func (p *player) now() uint32 { return uint32(p.clock.Load() / int64(time.Second)) }

// write is one batch of client i: "key" or "key:bytes" puts, "key+10" one that
// expires in ten seconds, "-key" deletes.
func (p *player) write(i int, words ...string) { p.send(i, WriteOptions{}, words...) }

func (p *player) send(i int, w WriteOptions, words ...string) *asked {
	if p.over() {
		return nil
	}
	c := p.h.clients[i]
	o := &asked{}
	var b Batch
	for _, word := range words {
		d := doc{key: word, flags: uint32(len(c.ops) + 1)}
		n := 0
		if word[0] == '-' {
			d.key = word[1:]
			_ = b.Delete([]byte(d.key))
		} else {
			key, seconds, expires := strings.Cut(word, "+")
			key, bytes, _ := strings.Cut(key, ":")
			d.key = key
			fmt.Sscan(bytes, &n)
			if expires {
				fmt.Sscan(seconds, &d.expiry)
				d.expiry += p.now()
			}
			d.value = c.value(d.key, n)
			_ = b.Set([]byte(d.key), d.value, Meta{Flags: d.flags, Expiry: d.expiry})
		}
		o.docs = append(o.docs, d)
	}
	c.ops = append(c.ops, o)
	_, err := p.db.Apply(&b, w)
	o.first = b.Seqno(0)
	p.answer(c, o, "write", err, !w.NoWait && p.db.Durable())
	return o
}

// answer notes what a client was told. After every error but ErrReadOnly the
// operation has not happened and never will.
func (p *player) answer(c *client, o *asked, verb string, err error, durable bool) {
	if err == nil {
		o.told = durable
		return
	}
	if !p.faulty {
		p.die(fmt.Errorf("%s: %w", verb, err))
	} else {
		p.judge(verb, err)
	}
	if !errors.Is(err, ErrReadOnly) {
		c.drop(o)
	}
}

// judge looks at an error under a fault: only documented ones may come.
func (p *player) judge(verb string, err error) {
	switch {
	case p.fault == faultfs.SyncDrop && errors.Is(err, faultfs.ErrInjected) && !p.o.BufferedIO && errors.Is(err, ErrReadOnly):
		// The disk shows what the device does not have. Direct I/O reads the
		// device; this disk would let a restart build on sand. What else fails
		// to sync, such as a table, is thrown away.
		p.die(err)
	case errors.Is(err, ErrReadOnly):
	case errors.Is(err, ErrDiskFull) && p.fault == faultfs.ENOSPC:
	case errors.Is(err, faultfs.ErrInjected) && p.fault != faultfs.ENOSPC:
	default:
		p.problem("%s: undocumented error: %w", verb, err)
	}
}

// sync waits until all that client i sent is durable.
func (p *player) sync(i int) {
	c := p.h.clients[i]
	if p.over() || len(c.ops) == 0 {
		return
	}
	o := c.ops[len(c.ops)-1]
	if o.first == 0 {
		return // it was refused
	}
	err := p.db.Sync(o.first + Seqno(len(o.docs)) - 1)
	if err == nil {
		o.told = true
		return
	}
	if !p.faulty {
		p.die(fmt.Errorf("sync: %w", err))
	} else if p.judge("sync", err); !errors.Is(err, ErrReadOnly) {
		p.problem("sync: undocumented error: %w", err)
	}
}

// look is a reader: what it sees of client i's key must never vanish.
func (p *player) look(i int, key string) {
	if p.over() {
		return
	}
	if !p.db.Durable() {
		return
	}
	c := p.h.clients[i]
	it, err := p.db.Get(nil, []byte(key))
	if errors.Is(err, ErrNotFound) {
		return
	}
	if err != nil {
		p.answer(c, nil, "get", err, false)
		return
	}
	for _, o := range c.ops {
		for _, d := range o.docs {
			if d.key == key && string(d.value) == string(it.Value) {
				o.told = true
				return
			}
		}
	}
	p.problem("get %s: %s was never sent", key, short(it.Value))
}

// update appends to the value of a key, or deletes it when it has n bytes.
func (p *player) update(i int, key string, n int) {
	if p.over() {
		return
	}
	c := p.h.clients[i]
	was, had := c.after(len(c.ops), p.now())[key]
	d := doc{key: key, flags: uint32(len(c.ops) + 1)}
	o := &asked{}
	c.ops = append(c.ops, o)
	seen, err := p.db.Update([]byte(key), func(old *Item) (UpdateOp, []byte, Meta, error) {
		o.docs = []doc{{}} // decided below
		if had != (old != nil) || had && string(was.value) != string(old.Value) {
			p.problem("update of %s does not see the last write", key)
		}
		if had && len(was.value) >= n {
			d.value = nil
			return UpdateDelete, nil, Meta{}, nil
		}
		d.value = append(append([]byte(nil), was.value...), fmt.Sprintf("%d;", len(c.ops))...)
		return UpdateSet, d.value, Meta{Flags: d.flags}, nil
	})
	if o.docs != nil {
		o.docs[0] = d
	}
	if err == nil {
		o.first = seen
		err = p.db.WaitDurable(seen)
	}
	p.answer(c, o, "update", err, true)
}

// clear empties the store now.
func (p *player) clear() {
	if p.over() {
		return
	}
	c := p.h.clients[0]
	o := &asked{clear: true}
	c.ops = append(c.ops, o)
	seqno, err := p.db.Clear(time.Time{})
	o.first = seqno
	if err != nil && seqno != 0 && !errors.Is(err, ErrReadOnly) {
		o.told = true // done; what failed is giving space back
		if !p.faulty {
			p.die(err)
		}
		return
	}
	p.answer(c, o, "clear", err, true)
}

// clearLater asks for a clear in d.
func (p *player) clearLater(d time.Duration) {
	if p.over() {
		return
	}
	p.h.wish.at, p.h.wish.told = time.Unix(0, p.clock.Load()).Add(d), false
	_, err := p.db.Clear(p.h.wish.at)
	p.h.wish.told = err == nil
	switch {
	case err == nil:
	case !p.faulty:
		p.die(fmt.Errorf("delayed clear: %w", err))
	case !errors.Is(err, ErrReadOnly):
		p.h.wish.at = time.Time{}
		p.answer(p.h.clients[0], nil, "delayed clear", err, true)
	}
}

// background waits until the log's own goroutines have nothing to do: a
// segment is ready, sealed ones have their footers, dropped ones are in the
// pool (at least pooled).
func (p *player) background(pooled int) {
	limit := time.Minute
	if p.faulty {
		limit = 30 * time.Millisecond
	}
	p.wait(limit, func(s Stats) bool {
		unsealed := 0
		for _, seg := range p.db.edits.log.State().Segments {
			if seg.Kind == manifest.SegmentLog && !seg.Sealed && !seg.Ended {
				unsealed++
			}
		}
		made := s.Log.Segments + s.Log.Reused
		return unsealed == 2 && made >= 2+s.Log.Seals && s.Log.Pooled >= pooled
	})
}

// idle waits until the log has promised that all is durable.
func (p *player) idle() {
	p.wait(time.Minute, func(s Stats) bool { return s.Log.Promises > 0 })
}

func (p *player) wait(limit time.Duration, done func(Stats) bool) {
	for start := time.Now(); !p.over() && !p.halted(); time.Sleep(20 * time.Microsecond) {
		s := p.db.Stats()
		if done(s) || s.ReadOnly != "" {
			return
		}
		if time.Since(start) > limit {
			if !p.faulty {
				p.problem("nothing happens any more: %+v", s)
			}
			return
		}
	}
}

func (p *player) report(t *testing.T, where string) bool {
	for _, err := range p.problems {
		t.Errorf("%s: %v", where, err)
	}
	return len(p.problems) > 0
}
