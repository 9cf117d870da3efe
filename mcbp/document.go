package mcbp

import (
	"encoding/binary"
	"errors"

	"fluxkv/lsm"
)

// notFoundText is at hand so that a miss looks up nothing.
var notFoundText = StatusNotFound.String()

// get joins the open run of reads.
func (p *pipeline) get(*session) {
	f := &p.f
	p.open.reads.Add(f.key)
	p.open.gets = append(p.open.gets, pendingGet{
		at: p.at, opaque: f.Opaque, opcode: f.Opcode,
		quiet: p.cmd.quiet, withKey: f.Opcode == OpGetK || f.Opcode == OpGetKQ,
	})
}

// answerGet answers read i of r, which must be ready. It returns false, and
// answers nothing, when the answer does not fit.
func (p *pipeline) answerGet(r *roll, i int) bool {
	g := &r.gets[i]
	err := r.reads.Err(i)
	if err == lsm.ErrReadLimit {
		return false // it is read again, and those behind it
	}
	var key []byte
	if g.withKey {
		key = r.reads.Key(i)
	}
	if err == nil {
		item := r.reads.Item(i)
		if !p.room(HeaderBytes + 4 + len(key) + len(item.Value)) {
			return false
		}
		p.tally[cmdGet]++
		p.tally[getHits]++
		p.out = appendHit(p.out, g.opcode, g.opaque, key, item.Value, item.Flags, item.CAS)
		return true
	}
	if !p.room(HeaderBytes + KeyBytesMax) {
		return false
	}
	p.tally[cmdGet]++
	if err != lsm.ErrNotFound && !errors.Is(err, lsm.ErrNotFound) {
		p.fail(g.opcode, g.opaque, err)
		return true
	}
	p.tally[getMisses]++
	switch {
	case g.quiet:
	case g.withKey:
		p.out = appendPair(p.out, g.opcode, StatusNotFound, g.opaque, key, nil)
	default:
		p.out = appendText(p.out, g.opcode, StatusNotFound, g.opaque, notFoundText)
	}
	return true
}

// set joins the open run of writes; one that depends on what is stored runs
// alone.
func (p *pipeline) set(s *session) {
	f := &p.f
	m := lsm.Meta{
		Flags:  binary.BigEndian.Uint32(f.extras),
		Expiry: absoluteExpiry(binary.BigEndian.Uint32(f.extras[4:]), p.srv.now),
	}
	if f.CAS != 0 || f.preserveTTL {
		p.tally[cmdSet]++
		p.update.set(f.value, m, f.CAS, f.preserveTTL)
		p.runUpdate(s)
		return
	}
	if err := p.batch.Set(f.key, f.value, m); err != nil {
		p.flushWrites(s)
		p.fail(f.Opcode, f.Opaque, err)
		return
	}
	p.sets = append(p.sets, pendingSet{opaque: f.Opaque, opcode: f.Opcode})
}

// delete removes a document that exists.
func (p *pipeline) delete(s *session) {
	p.update.delete(p.f.CAS)
	p.runUpdate(s)
}

// runUpdate runs p.update on the key of p.f and answers.
func (p *pipeline) runUpdate(s *session) {
	f, u := &p.f, &p.update
	p.inEngine = true
	seen, err := p.srv.db.UpdateKey(f.key, u.fn)
	p.inEngine = false
	s.high = max(s.high, seen)
	p.tallyUpdate(err)
	u.value = nil
	switch {
	case err != nil:
		p.fail(f.Opcode, f.Opaque, err)
	case u.status != StatusSuccess:
		p.refuse(f.Opcode, f.Opaque, u.status)
	case p.cmd.quiet:
	case u.op == lsm.UpdateDelete:
		// A plain client wants no CAS with this one.
		p.out = appendEmpty(p.out, f.Opcode, StatusSuccess, f.Opaque, 0)
	default:
		p.out = appendEmpty(p.out, f.Opcode, StatusSuccess, f.Opaque, uint64(seen))
	}
}

func (p *pipeline) tallyUpdate(err error) {
	u := &p.update
	var c counter
	switch {
	case err != nil:
		return
	case u.op == lsm.UpdateDelete && u.status == StatusSuccess:
		c = deleteHits
	case u.op == lsm.UpdateDelete && u.status == StatusNotFound:
		c = deleteMisses
	case u.cas == 0:
		return
	case u.status == StatusSuccess:
		c = casHits
	case u.status == StatusExists:
		c = casBadval
	default:
		c = casMisses
	}
	p.tally[c]++
}

// update is one conditional write: a SET or DELETE that looks at what is
// stored. The engine may ask decide more than once.
type update struct {
	fn func(*lsm.Item) (lsm.UpdateOp, []byte, lsm.Meta, error) // decide, bound once

	op       lsm.UpdateOp // what to do when the condition holds
	value    []byte
	meta     lsm.Meta
	cas      uint64 // what the stored document must have; 0 = anything
	preserve bool   // keep the stored expiry
	status   Status // what decide said
}

func (u *update) set(value []byte, m lsm.Meta, cas uint64, preserve bool) {
	u.op, u.value, u.meta, u.cas, u.preserve = lsm.UpdateSet, value, m, cas, preserve
}

func (u *update) delete(cas uint64) {
	u.op, u.value, u.meta, u.cas, u.preserve = lsm.UpdateDelete, nil, lsm.Meta{}, cas, false
}

// decide is called with the stored document, nil when there is none.
func (u *update) decide(old *lsm.Item) (lsm.UpdateOp, []byte, lsm.Meta, error) {
	u.status = StatusSuccess
	switch {
	case old == nil && (u.cas != 0 || u.op == lsm.UpdateDelete):
		u.status = StatusNotFound
	case old != nil && u.cas != 0 && u.cas != old.CAS:
		u.status = StatusExists
	}
	if u.status != StatusSuccess {
		return lsm.UpdateNone, nil, lsm.Meta{}, nil
	}
	m := u.meta
	if u.preserve && old != nil {
		m.Expiry = old.Expiry
	}
	return u.op, u.value, m, nil
}
