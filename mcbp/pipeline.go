package mcbp

import "fluxkv/lsm"

// Bounds of one pass.
const (
	// passWriteBytesMax ends a pass that has this much to write: about 1 ms of
	// a fast device, so that one connection does not hold the log for longer.
	passWriteBytesMax = 1 << 20
	// passAnswerBytesMax ends a pass whose answers reach it; one larger answer
	// goes alone.
	passAnswerBytesMax = 8 << 20
	// freeAnswerBytes of answers are not counted against the server's budget:
	// 4096 connections x 256 KiB is what --max-conns promises to afford.
	freeAnswerBytes = 256 << 10
	// answerStepBytes is the granularity of what is counted.
	answerStepBytes = 1 << 20
	// runReadsMax bounds a run of reads: a connection keeps 250 bytes for each
	// key, and the values of a run are held twice until the last one is copied.
	// Longer runs are no faster.
	runReadsMax = 256
)

// session is what a connection carries from one pass to the next.
type session struct {
	// high is the highest seqno that this connection wrote or saw from an
	// Update. No byte of an answer leaves before it is durable (R10).
	high lsm.Seqno
	// readsMax adapts the length of a run of reads to the size of its values:
	// after a cut it is what fitted, and it grows back by doubling.
	readsMax int
	// While refusing is set the input goes on with skip bytes of a refused
	// body; then refused is answered.
	refusing bool
	skip     int64
	refused  refusal
}

type refusal struct {
	opaque uint32
	opcode Opcode
	status Status
}

// frame is the request that a pass is at. Slices alias the input.
type frame struct {
	Header
	framing
	extras []byte
	key    []byte
	value  []byte
}

// pendingGet is a read of a run: its frame is at in[at:] while the run is open.
type pendingGet struct {
	at             int
	opaque         uint32
	opcode         Opcode
	quiet, withKey bool
}

type pendingSet struct {
	opaque uint32
	opcode Opcode
}

// passResult says what became of a pass.
type passResult struct {
	// consumed bytes of the input are done.
	consumed int
	// need is the length of the incomplete frame that follows, as far as it is
	// known; at least HeaderBytes.
	need int
	// memory is what srv.buffers must grant before the next pass; 0 = nothing.
	memory int64
	// wait must be durable before a byte of the answers leaves; 0 = nothing.
	wait lsm.Seqno
	// sync: wait is for the device in any store (Sync, not WaitDurable),
	// because a request asked for it.
	sync bool
	// more: complete frames remain; pass again before reading.
	more bool
	// close: nothing after the answers of this pass.
	close bool
}

// pipeline runs passes. It has the memory that a pass needs and keeps nothing
// from one to the next but reads under way; connections borrow it while they
// have input or such reads.
type pipeline struct {
	srv *Server

	out      []byte // the answers
	reserved int64  // of srv.buffers, for out

	in     []byte // the input
	f      frame
	cmd    *command // of f
	at     int      // where f starts in the input
	batch  lsm.Batch
	sets   []pendingSet
	open   *roll // the run of reads that grows
	update update

	rolls  []*roll      // runs of reads under way, the oldest first
	spares []*roll      // empty
	led    []pendingSet // reads of earlier passes that this one has answered
	number uint64       // of this pass

	written int   // bytes of frames with writes
	cutAt   int   // where the pass ends early
	memory  int64 // what is missing for the answer at cutAt
	quitted bool
	synced  bool // a request of this pass asked for durability
	// leadAt and leadOut say where, in input and answers, a refusal ends whose
	// frame began in an earlier pass.
	leadAt, leadOut int
	// inEngine is set while a call into the store is under way: a panic there
	// ends the process.
	inEngine bool

	tally tally
}

func newPipeline(srv *Server) *pipeline {
	p := &pipeline{srv: srv, open: new(roll)}
	p.update.fn = p.update.decide
	return p
}

// pass runs the complete frames at the front of in, in order, and leaves the
// answers in p.out. The slice must not change before the pass is over.
func (p *pipeline) pass(s *session, in []byte) (r passResult) {
	p.begin(in)
	pos, whole := p.frames(s, in, &r)
	if whole {
		if r.more || r.close {
			whole = p.flushReads(s)
		} else {
			whole = p.leaveReads(s)
		}
	}
	if !whole {
		pos = p.cutAt
		r = passResult{more: true, memory: p.memory}
	}
	p.flushWrites(s)
	r.consumed = pos
	r.wait, r.sync = s.high, p.synced
	p.tally[passes]++
	p.tally[bytesRead] += uint64(pos)
	p.srv.counters.add(&p.tally)
	return r
}

// begin readies p for a pass over in.
func (p *pipeline) begin(in []byte) {
	p.in, p.out = in, p.out[:0]
	p.written, p.memory, p.quitted, p.synced = 0, 0, false, false
	p.leadAt, p.leadOut = 0, 0
	p.led = p.led[:0]
	p.number++
}

// frames walks in. It returns where it stopped, and false when a run of reads
// was cut at p.cutAt. Runs may be left open.
func (p *pipeline) frames(s *session, in []byte, r *passResult) (pos int, whole bool) {
	for {
		if s.refusing {
			n := min(s.skip, int64(len(in)-pos))
			s.skip -= n
			pos += int(n)
			if s.skip > 0 {
				return pos, true
			}
			s.refusing = false
			p.refuse(s.refused.opcode, s.refused.opaque, s.refused.status)
			if pos == int(n) { // the frame began in an earlier pass
				p.leadAt, p.leadOut = pos, len(p.out)
			}
		}
		if len(p.out) >= p.answerBytesMax() {
			r.more = true
			return pos, true
		}
		rest := in[pos:]
		r.need = HeaderBytes
		if len(rest) < HeaderBytes {
			return pos, true
		}
		f := &p.f
		f.decode(rest)
		p.at = pos
		if (f.Magic != MagicRequest && f.Magic != MagicAltRequest) || !f.Sane() || int64(f.BodyBytes) > p.srv.frameBytesMax {
			return p.disorder(s, in, pos, r)
		}
		if status := judge(&f.Header, p.srv.itemBytesMax); status != StatusSuccess {
			if !p.flushRuns(s) {
				return pos, false
			}
			s.refusing = true
			s.skip = int64(f.BodyBytes)
			s.refused = refusal{opaque: f.Opaque, opcode: f.Opcode, status: status}
			pos += HeaderBytes
			continue
		}
		n := HeaderBytes + int(f.BodyBytes)
		if len(rest) < n {
			r.need = n
			return pos, true
		}
		var framingBytes []byte
		framingBytes, f.extras, f.key, f.value = splitBody(&f.Header, rest[HeaderBytes:n])
		more, whole := p.frame(s, framingBytes)
		switch {
		case !whole:
			return pos, false
		case more:
			r.more = true
			return pos, true
		}
		pos += n
		if p.quitted {
			// What was sent behind a QUIT is not looked at.
			r.close = true
			return len(in), true
		}
	}
}

// frame runs p.f, whose body is whole. It returns more when the pass must end
// in front of it, and whole = false when a run of reads was cut.
func (p *pipeline) frame(s *session, framingBytes []byte) (more, whole bool) {
	f := &p.f
	c := &commands[f.Opcode]
	p.cmd = c
	kind, status := c.kind, StatusSuccess
	f.framing = framing{}
	if len(framingBytes) > 0 {
		status = f.framing.parse(framingBytes, c)
		p.synced = p.synced || f.durable
	}
	if kind == runWrite && (f.CAS != 0 || f.preserveTTL) || status != StatusSuccess {
		kind = alone
	}
	if c.kind == runWrite {
		n := HeaderBytes + int(f.BodyBytes)
		if p.written > 0 && p.written+n > p.srv.passWriteBytesMax {
			return true, true
		}
		p.written += n
	}
	if (kind != runRead || len(p.open.gets) >= s.readsMax) && !p.flushReads(s) {
		return false, false
	}
	if kind != runWrite {
		p.flushWrites(s)
	}
	if status != StatusSuccess {
		p.refuse(f.Opcode, f.Opaque, status)
		return false, true
	}
	c.run(p, s)
	return false, true
}

// disorder ends a connection that is out of step, or that announces a frame
// above every limit: what follows cannot be told from a body.
func (p *pipeline) disorder(s *session, in []byte, pos int, r *passResult) (int, bool) {
	if !p.flushRuns(s) {
		return pos, false
	}
	f := &p.f
	switch {
	case f.Magic != MagicRequest && f.Magic != MagicAltRequest:
		p.srv.logBadMagic(f.Magic)
	case !f.Sane():
		p.refuse(f.Opcode, f.Opaque, StatusInvalid)
	default:
		p.refuse(f.Opcode, f.Opaque, StatusTooLarge)
	}
	r.close = true
	return len(in), true
}

// await returns when the answers of a pass may leave. An error says that they
// never may: refuseAll replaces them.
func (p *pipeline) await(r *passResult) (err error) {
	if r.wait == 0 {
		return nil
	}
	p.inEngine = true
	if r.sync {
		err = p.srv.db.Sync(r.wait)
	} else {
		err = p.srv.db.WaitDurable(r.wait)
	}
	p.inEngine = false
	return err
}

func (p *pipeline) flushRuns(s *session) bool {
	if !p.flushReads(s) {
		return false
	}
	p.flushWrites(s)
	return true
}

// flushWrites applies the open run of writes and answers it.
func (p *pipeline) flushWrites(s *session) {
	if len(p.sets) == 0 {
		return
	}
	p.inEngine = true
	last, err := p.srv.db.Apply(&p.batch, lsm.WriteOptions{NoWait: true})
	p.inEngine = false
	p.tally[cmdSet] += uint64(len(p.sets))
	if err != nil {
		// The engine took all of them or none.
		for _, w := range p.sets {
			p.fail(w.opcode, w.opaque, err)
		}
	} else {
		s.high = max(s.high, last)
		for i, w := range p.sets {
			if w.opcode == OpSet {
				p.out = appendEmpty(p.out, w.opcode, StatusSuccess, w.opaque, uint64(p.batch.Seqno(i)))
			}
		}
	}
	p.sets = p.sets[:0]
	p.batch.Reset()
}

// room reports whether n more bytes of answers may be made in this pass. When
// they may not, p.memory is what an empty pass would need and did not get.
func (p *pipeline) room(n int) bool {
	total := len(p.out) + n
	if total <= freeAnswerBytes || int64(total) <= p.reserved {
		return true
	}
	if len(p.out) > 0 && total > passAnswerBytesMax {
		return false
	}
	want := int64(total+answerStepBytes-1) / answerStepBytes * answerStepBytes
	if p.srv.buffers.TryReserve(want - p.reserved) {
		p.reserved = want
		return true
	}
	if len(p.out) == 0 {
		p.memory = want
	}
	return false
}

// answerBytesMax is where a pass stops looking at frames. Small answers may go
// a little over it: one of them has at most a few KiB.
func (p *pipeline) answerBytesMax() int {
	if p.reserved > 0 {
		return passAnswerBytesMax
	}
	return freeAnswerBytes
}

// refuse answers with a status and its text.
func (p *pipeline) refuse(op Opcode, opaque uint32, status Status) {
	p.tally[answerErrors]++
	p.out = appendText(p.out, op, status, opaque, status.String())
}

// fail answers with what the engine said.
func (p *pipeline) fail(op Opcode, opaque uint32, err error) {
	status, text := failure(err)
	if status == StatusInternal {
		p.srv.logInternal(op, err)
	}
	p.tally[answerErrors]++
	p.out = appendText(p.out, op, status, opaque, text)
}

// refuseAll replaces the answers of the last pass, whose input was in, and of
// the reads under way: the store could not make durable what they rest on, so
// none of them may leave.
// Every request is told so, a NOOP too: it would vouch for quiet writes of
// earlier passes, which had no answer to lose. The connection forgets what it
// saw, since reads go on at the last durable state.
func (p *pipeline) refuseAll(s *session, in []byte, err error) {
	s.high = 0
	p.out = p.out[:p.leadOut]
	p.refuseReads(err)
	for pos := p.leadAt; len(in)-pos >= HeaderBytes; {
		h := DecodeHeader(in[pos:])
		n := HeaderBytes + int64(h.BodyBytes)
		if n > int64(len(in)-pos) {
			break
		}
		switch h.Opcode {
		case OpQuitQ:
		default:
			p.fail(h.Opcode, h.Opaque, err)
		}
		if h.Opcode == OpQuit || h.Opcode == OpQuitQ {
			break
		}
		pos += int(n)
	}
	p.srv.counters.add(&p.tally)
}

// recycle readies p for another connection, and lets go of what an unusual
// pass made large.
func (p *pipeline) recycle() {
	p.drop()
	p.release()
	if cap(p.out) > answerStepBytes {
		p.out = nil
	}
	p.in, p.f = nil, frame{}
}

// release gives back what the answers had reserved, once they have left.
func (p *pipeline) release() {
	p.srv.buffers.Release(p.reserved)
	p.reserved = 0
}
