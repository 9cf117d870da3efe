package mcbp

import "fluxkv/lsm"

// Bounds of the reads of one connection that are under way while it goes on.
const (
	// rollsMax is how many runs are under way together.
	rollsMax = 8
	// rollKeysMax is how many keys they have; never more than fitted into one
	// pass lately (session.readsMax).
	rollKeysMax = 1024
	// rollBytesMax bounds what each run but the first reads from the device, so
	// that all together read twice what one pass may answer at most.
	rollBytesMax = passAnswerBytesMax / rollsMax
	// rollShare is the part of the reads under way that is worth a write to the
	// socket: fewer make a system call of each answer, more let the device
	// drain before the client knows that it may ask again.
	rollShare = 8
)

// roll is a run of reads, executed as one lsm.ReadBatch. The open run of a pass
// is one. When it ends because the input does, and memory could not answer all of
// it, it stays under way while the connection reads and starts the next:
//
//	pipeline.rolls   [a b c d][e f g h][i j]     open   [k l
//	answered          . .|
//	ready             . . . .  . .|
//
// Answers leave in the order of the requests, so only what is ready from the
// front on can be answered.
type roll struct {
	reads    lsm.ReadBatch
	gets     []pendingGet
	answered int    // gets in front whose answers were made
	started  bool   // false for one that waits for its place, behind all that have it
	pass     uint64 // pipeline.number of the pass that took its frames
}

// startReads has the store begin with r. alone: nothing else of this
// connection is under way.
func (p *pipeline) startReads(s *session, r *roll, alone bool) {
	r.reads.After(s.high)
	if alone {
		r.reads.Limit(passAnswerBytesMax)
	} else {
		r.reads.LimitAll(rollBytesMax)
	}
	r.started = true
	p.inEngine = true
	// Its error is that of each key, too.
	_ = p.srv.db.StartMany(&r.reads)
	p.inEngine = false
}

// free empties r, which nobody will answer any more. Reads under way end first.
func (p *pipeline) free(r *roll) {
	p.inEngine = true
	r.reads.Reset()
	p.inEngine = false
	r.gets, r.answered, r.started = r.gets[:0], 0, false
}

// spare returns an empty run.
func (p *pipeline) spare() *roll {
	if n := len(p.spares); n > 0 {
		r := p.spares[n-1]
		p.spares = p.spares[:n-1]
		return r
	}
	return new(roll)
}

// flushReads runs the open run of reads to its end and answers it, after all that
// are under way. It returns false when an answer did not fit: the pass then ends
// at p.cutAt, and the requests from there on run again in the next one.
func (p *pipeline) flushReads(s *session) bool {
	o := p.open
	if len(o.gets) == 0 && len(p.rolls) == 0 {
		return true
	}
	p.cutAt = p.at
	if len(o.gets) > 0 {
		p.cutAt = o.gets[0].at
		if p.mayStart() {
			p.startReads(s, o, len(p.rolls) == 0)
		}
	}
	for len(p.rolls) > 0 {
		if !p.answerOldest(s, len(p.rolls[0].gets)) {
			p.free(o)
			return false
		}
	}
	if len(o.gets) == 0 {
		return true
	}
	if !o.started {
		p.startReads(s, o, true)
	}
	p.inEngine = true
	o.reads.Wait(len(o.gets))
	p.inEngine = false
	return p.answerOpen(s)
}

// answerOpen answers the open run, all of which is ready and which is the only
// one.
func (p *pipeline) answerOpen(s *session) bool {
	o, whole := p.open, true
	for i := range o.gets {
		if !p.answerGet(o, i) {
			s.readsMax = max(1, i)
			p.cutAt = o.gets[i].at
			whole = false
			break
		}
	}
	if whole && len(o.gets) >= s.readsMax {
		s.readsMax = min(2*s.readsMax, runReadsMax)
	}
	p.free(o)
	return whole
}

// leaveReads starts the open run of reads, behind which the input has ended. If
// memory has it all, it is answered at once; else it is left under way. Answers
// of what was under way and is ready by now are made if they are worth it. It
// returns false as flushReads does.
func (p *pipeline) leaveReads(s *session) bool {
	o := p.open
	if len(o.gets) > 0 {
		for len(p.rolls) > 0 && (len(p.rolls) >= rollsMax || p.underWay()+len(o.gets) > min(rollKeysMax, s.readsMax)) {
			p.cutAt = o.gets[0].at
			if !p.answerOldest(s, len(p.rolls[0].gets)) {
				p.free(o)
				return false
			}
		}
		switch {
		case len(p.rolls) == 0:
			p.startReads(s, o, true)
			p.inEngine = true
			ready := o.reads.Ready()
			p.inEngine = false
			if ready == len(o.gets) {
				return p.answerOpen(s)
			}
		case p.mayStart():
			p.startReads(s, o, false)
		}
		p.inEngine = true
		o.reads.OwnKeys() // the input moves on
		p.inEngine = false
		o.pass = p.number
		p.rolls = append(p.rolls, o)
		p.srv.rolls.Add(1)
		p.open = p.spare()
	}
	if len(p.rolls) > 0 && p.ready() >= p.worth() {
		p.answerReady(s) // what finds no room now is answered by a turn
	}
	return true
}

// turn answers reads under way. It waits for some if none is ready. The result
// is that of a pass over no input; there must be reads under way.
func (p *pipeline) turn(s *session) (r passResult) {
	p.begin(nil)
	whole := true
	if p.ready() > 0 {
		whole = p.answerReady(s)
	} else {
		whole = p.answerOldest(s, p.worth())
	}
	if !whole {
		r = passResult{more: true, memory: p.memory}
	}
	r.wait = s.high
	p.srv.counters.add(&p.tally)
	return r
}

// mayStart reports whether another run may be started: not before the ones in
// front of it, or it could see an older state than they do.
func (p *pipeline) mayStart() bool {
	n := len(p.rolls)
	return n == 0 || p.rolls[n-1].started
}

// underWay returns how many keys have no answer yet.
func (p *pipeline) underWay() (n int) {
	for _, r := range p.rolls {
		n += len(r.gets) - r.answered
	}
	return n
}

// full reports whether no more input may be taken before something is answered.
func (p *pipeline) full() bool {
	return len(p.rolls) >= rollsMax || p.underWay() >= rollKeysMax
}

// worth returns how many answers are worth a write.
func (p *pipeline) worth() int { return max(1, p.underWay()/rollShare) }

// ready takes what has been read by now, of all runs, and returns how many
// answers can be made, in order.
func (p *pipeline) ready() (n int) {
	p.inEngine = true
	front := true
	for _, r := range p.rolls {
		if !r.started {
			break
		}
		k := r.reads.Ready()
		if front {
			n += k - r.answered
			front = k == len(r.gets)
		}
	}
	p.inEngine = false
	return n
}

// answerReady answers what is ready. It returns false when an answer did not fit.
func (p *pipeline) answerReady(s *session) bool {
	for len(p.rolls) > 0 && p.rolls[0].started {
		r := p.rolls[0]
		if !p.answerOldest(s, 0) {
			return false
		}
		if len(p.rolls) > 0 && p.rolls[0] == r {
			break
		}
	}
	return true
}

// answerOldest waits for the next n answers of the oldest run under way, or for
// all that it has left, and makes those that are ready then. It returns false
// when one did not fit.
func (p *pipeline) answerOldest(s *session, n int) bool {
	r := p.rolls[0]
	if !r.started {
		p.startReads(s, r, true)
	}
	p.inEngine = true
	ready := r.reads.Wait(min(r.answered+n, len(r.gets)))
	p.inEngine = false
	for ; r.answered < ready; r.answered++ {
		if r.reads.Err(r.answered) == lsm.ErrReadLimit {
			p.readAgain(s)
			return true
		}
		if !p.answerGet(r, r.answered) {
			return false
		}
		if r.pass != p.number {
			g := &r.gets[r.answered]
			p.led = append(p.led, pendingSet{opaque: g.opaque, opcode: g.opcode})
		}
	}
	if r.answered == len(r.gets) {
		p.dropFirst()
	}
	return true
}

// readAgain readies what is left of the oldest run, whose next key met the limit
// of its reads, to be read with nothing else under way.
func (p *pipeline) readAgain(s *session) {
	r := p.rolls[0]
	s.readsMax = max(1, r.answered)
	rest := p.spare()
	rest.pass = r.pass
	for i := r.answered; i < len(r.gets); i++ {
		rest.reads.Add(r.reads.Key(i))
	}
	rest.gets = append(rest.gets, r.gets[r.answered:]...)
	p.inEngine = true
	rest.reads.OwnKeys()
	p.inEngine = false
	p.free(r)
	p.spares = append(p.spares, r)
	p.rolls[0] = rest
	p.park()
}

// park lets go of what the reads under way hold in the store, when they end. Each
// run is read again, at its turn, so the answers are those of requests that
// arrived then.
func (p *pipeline) park() {
	p.inEngine = true
	for _, r := range p.rolls {
		if r.started {
			r.started = false
			r.reads.Release()
		}
	}
	p.inEngine = false
}

// parked reports whether the reads under way hold nothing in the store.
func (p *pipeline) parked() bool {
	return len(p.rolls) == 0 || !p.rolls[0].started
}

// dropFirst forgets the oldest run under way.
func (p *pipeline) dropFirst() {
	r := p.rolls[0]
	n := copy(p.rolls, p.rolls[1:])
	p.rolls[n] = nil
	p.rolls = p.rolls[:n]
	p.srv.rolls.Add(-1)
	p.free(r)
	p.spares = append(p.spares, r)
}

// drop forgets all reads, when those under way have ended.
func (p *pipeline) drop() {
	for len(p.rolls) > 0 {
		p.dropFirst()
	}
	if len(p.open.gets) > 0 {
		p.free(p.open) // a panic came between
	}
}

// refuseReads answers err to the reads of earlier passes, those that this pass
// has answered and those under way. The reads of this pass are forgotten: the
// caller has their frames.
func (p *pipeline) refuseReads(err error) {
	for _, g := range p.led {
		p.fail(g.opcode, g.opaque, err)
	}
	p.led = p.led[:0]
	for _, r := range p.rolls {
		if r.pass == p.number {
			break
		}
		for _, g := range r.gets[r.answered:] {
			p.fail(g.opcode, g.opaque, err)
		}
	}
	p.drop()
}
