package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
)

// What a player does to tables.

// call passes a call of the store on, after what was arranged to happen inside
// it.
func (p *player) call(op vfs.Op, do func() error, _ *tapFile, _ []byte) error {
	p.mu.Lock()
	i := p.interlude
	if i != nil && i.kind == op.Kind && vfs.MatchName(i.pattern, op.Name) && calledBy(i.caller) {
		p.interlude = nil
		p.within.Add(1)
		defer p.within.Done()
	} else {
		i = nil
	}
	p.mu.Unlock()
	if i != nil {
		if err := i.do(); err != nil {
			return err
		}
	}
	return do()
}

// during arranges for do to run inside the next such call, before it is carried
// out. An error of do becomes the call's.
func (p *player) during(kind vfs.OpKind, pattern string, do func() error) {
	p.mu.Lock()
	p.interlude = &interlude{kind: kind, pattern: pattern, do: do}
	p.mu.Unlock()
}

// duringBy is during for a call that a function of this package leads to: other
// goroutines make such calls too.
func (p *player) duringBy(caller string, kind vfs.OpKind, pattern string, do func() error) {
	p.mu.Lock()
	p.interlude = &interlude{kind, pattern, caller, do}
	p.mu.Unlock()
}

// calledBy reports whether a function of this package, as in "(*flushJob).install",
// is among the callers. "" always is.
func calledBy(function string) bool {
	if function == "" {
		return true
	}
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "/lsm."+function) {
			return true
		}
		if !more {
			return false
		}
	}
}

// calledOff ends what during arranged: it does not happen any more, or is done.
// A flush may be given up while its job still runs.
func (p *player) calledOff() {
	p.mu.Lock()
	p.interlude = nil
	p.mu.Unlock()
	p.within.Wait()
}

// flush flushes the store for client i: what that client sent before is durable
// then, in any store.
func (p *player) flush(i int) {
	if p.over() {
		return
	}
	sent := slices.Clone(p.h.clients[i].ops)
	err := p.db.Flush()
	p.calledOff()
	switch {
	case err == nil:
		for _, o := range sent {
			o.told = o.told || o.first != 0
		}
		if s := p.db.Stats(); s.FlushesFailed > p.refused && p.fault == faultfs.None && !p.halted() {
			p.problem("a flush failed for no reason: %+v", s)
		}
	case !p.faulty:
		p.die(fmt.Errorf("flush: %w", err))
	default:
		p.judge("flush", err)
	}
}

// cannotFlush flushes, and must get want, unless the store's own second try was
// faster than the answer.
func (p *player) cannotFlush(want error) {
	if p.over() {
		return
	}
	failed := p.db.Stats().FlushesFailed
	p.refused++
	err := p.db.Flush()
	p.calledOff()
	switch {
	case err == nil:
		if p.db.Stats().FlushesFailed == failed && !p.faulty {
			p.problem("a flush that cannot be done succeeds")
		}
	case errors.Is(err, want):
	case !p.faulty:
		p.die(fmt.Errorf("flush: %w", err))
	default:
		p.judge("flush", err)
	}
}

// flushed waits until the store was flushed n times since it was opened.
func (p *player) flushed(n int64) {
	limit := time.Minute
	if p.faulty {
		limit = 30 * time.Millisecond
	}
	p.wait(limit, func(s Stats) bool { return s.Flushes >= n })
}

// sees demands something of the store's own figures, so that a scenario cannot
// quietly stop testing what its name says.
func (p *player) sees(what string, holds func(s Stats) bool) {
	if p.over() || p.faulty || p.halted() || os.Getenv("FLUXKV_MUTANT") != "" {
		return // a defect must be caught by what it does
	}
	if s := p.db.Stats(); !holds(s) && !p.halted() && s.ReadOnly == "" {
		p.problem("no %s: %+v", what, s)
	}
}

// shot is a snapshot and what it showed when it was made.
type shot struct {
	*Snapshot
	want map[string]Item
}

// snapshot opens a snapshot of a store that nobody writes to.
func (p *player) snapshot() {
	if p.over() {
		return
	}
	s, err := p.db.NewSnapshot()
	if err != nil {
		p.answer(p.h.clients[0], nil, "snapshot", err, false)
		return
	}
	shot := &shot{Snapshot: s}
	if shot.want, err = shot.read(); err != nil {
		_ = s.Close()
		p.answer(p.h.clients[0], nil, "read of a snapshot", err, false)
		return
	}
	p.snapshots = append(p.snapshots, shot)
}

// read reads everything by an iterator, and each of it by Get.
func (s *shot) read() (map[string]Item, error) {
	it, err := s.NewIter(nil, nil, IterOptions{})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	all := map[string]Item{}
	for ok := it.First(); ok; ok = it.Next() {
		item, err := it.Item()
		if err != nil {
			return nil, err
		}
		item.Key, item.Value = nil, bytes.Clone(item.Value)
		key := string(it.Key())
		all[key] = item
		got, err := s.Get(nil, []byte(key))
		if err != nil {
			return nil, fmt.Errorf("key %s of a snapshot: an iterator finds it, Get says: %w", key, err)
		}
		if !bytes.Equal(got.Value, item.Value) || got.Seqno != item.Seqno {
			return nil, fmt.Errorf("key %s of a snapshot: an iterator and Get differ", key)
		}
	}
	return all, it.Error()
}

// again demands that every open snapshot shows what it showed before. Nothing
// that it has may expire meanwhile.
func (p *player) again() {
	if p.over() {
		return
	}
	for _, s := range p.snapshots {
		got, err := s.read()
		if err != nil {
			if !p.halted() && !(p.faulty && errors.Is(err, faultfs.ErrInjected)) {
				p.problem("snapshot at %d: %w", s.seqno, err)
			}
			continue
		}
		same := func(a, b Item) bool { return a.Seqno == b.Seqno && bytes.Equal(a.Value, b.Value) }
		if !maps.EqualFunc(got, s.want, same) {
			p.problem("snapshot at %d: %d documents, it showed %d others before", s.seqno, len(got), len(s.want))
		}
	}
}

// closeSnapshots closes all of them.
func (p *player) closeSnapshots() {
	for _, s := range p.snapshots {
		_ = s.Close()
	}
	p.snapshots = nil
}

// store checks what must hold in any open store.
func (p *player) store() {
	if p.over() {
		return
	}
	check := checkStore
	if p.faulty {
		check = checkDead // files that could not be removed may stay
	}
	if err := check(p.db); err != nil && !p.halted() && !(p.faulty && errors.Is(err, faultfs.ErrInjected)) {
		p.problem("running store: %w", err)
	}
}
