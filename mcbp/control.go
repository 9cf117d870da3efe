package mcbp

import "encoding/binary"

// succeed answers p.f with success and nothing else.
func (p *pipeline) succeed() {
	if !p.cmd.quiet {
		p.out = appendEmpty(p.out, p.f.Opcode, StatusSuccess, p.f.Opaque, 0)
	}
}

// noop is the fence of quiet commands: everything before it has run.
func (p *pipeline) noop(*session) {
	p.tally[cmdNoop]++
	p.succeed()
}

// verbosity is taken and ignored: the log has one level.
func (p *pipeline) verbosity(*session) { p.succeed() }

func (p *pipeline) version(*session) {
	p.out = appendText(p.out, p.f.Opcode, StatusSuccess, p.f.Opaque, Version)
}

func (p *pipeline) quit(*session) {
	p.quitted = true
	p.succeed()
}

// flush clears the store, now or later.
func (p *pipeline) flush(s *session) {
	var delay uint32
	if len(p.f.extras) == 4 {
		delay = binary.BigEndian.Uint32(p.f.extras)
	}
	p.tally[cmdFlush]++
	p.inEngine = true
	seqno, err := p.srv.db.Clear(flushTime(delay, p.srv.now))
	p.inEngine = false
	if err != nil {
		p.fail(p.f.Opcode, p.f.Opaque, err)
		return
	}
	s.high = max(s.high, seqno)
	p.succeed()
}
