package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"fluxkv/mcbp"
)

// setExtrasBytes is flags and expiry; getExtrasBytes is the flags of an answer.
const (
	setExtrasBytes = 8
	getExtrasBytes = 4
)

// request is one open request: the index of its key, and what was asked.
type request struct {
	index uint64
	op    mcbp.Opcode
}

// batch is a run of requests that were made at the same moment.
type batch struct {
	end  uint32 // sequence number after its last request
	made int64  // or due, nanoseconds on the loop's clock
}

// conn is one connection of a loop. Requests are numbered, the number is the
// opaque, and answers must come in that order.
type conn struct {
	fd     int
	window int // open requests allowed in this phase
	closed bool

	// out is the rest of what write(2) did not take yet.
	buffer []byte
	out    []byte

	// slots and batches are rings of a power of two; sequence number s lives
	// in slot s & mask.
	slots        []request
	batches      []batch
	mask         uint32
	sent         uint32 // next sequence number
	answered     uint32 // sequence number whose answer is due
	batchHead    uint32
	batchTail    uint32
	gets, sets   int64 // answered since the last flush of latencies
	headerBuffer [mcbp.HeaderBytes]byte
	headerHave   int
	bodyLeft     int
	bodyAt       int
	status       mcbp.Status
	extras       int
	wrong        bool // the answer being read is not what it should be
}

func newConn(fd, windowMax, requestBytesMax int) *conn {
	ring := 1
	for ring < windowMax {
		ring *= 2
	}
	return &conn{
		fd:      fd,
		slots:   make([]request, ring),
		batches: make([]batch, ring),
		mask:    uint32(ring - 1),
		buffer:  make([]byte, 0, min(windowMax*requestBytesMax, sendBytesMax+requestBytesMax)),
	}
}

// sendBytesMax ends a batch early: large values go out in pieces that the
// socket can take, instead of a window of them being copied first.
const sendBytesMax = 256 << 10

func (c *conn) open() int { return int(c.sent - c.answered) }

// refill makes new requests when half of the window is free, or as much as was
// asked for, and sends what the socket takes.
func (c *conn) refill(l *loop) error {
	for {
		if len(c.out) > 0 {
			if blocked, err := c.write(); err != nil || blocked {
				return err
			}
		}
		free := c.window - c.open()
		if l.open != nil || l.stopping || free == 0 || free < l.refillAt(c.window) {
			return nil
		}
		if !c.make(l, free, 0) {
			return nil
		}
	}
}

// make appends up to n requests to out, which is empty. Their time counts from
// due on; 0 is now.
func (c *conn) make(l *loop, n int, due int64) bool {
	buf := c.buffer[:0]
	keyBytes, valueBytes := l.keys.bytes, l.values.bytes
	first := c.sent
	for ; n > 0 && len(buf) < sendBytesMax; n-- {
		index, op, ok := l.choose()
		if !ok {
			break
		}
		at := len(buf)
		switch op {
		case mcbp.OpNoop:
			buf = buf[:at+mcbp.HeaderBytes]
			b := buf[at:]
			copy(b, l.noopHeader[:])
			binary.BigEndian.PutUint32(b[12:], c.sent)
		case mcbp.OpGet:
			buf = buf[:at+mcbp.HeaderBytes+keyBytes]
			b := buf[at:]
			copy(b, l.getHeader[:])
			binary.BigEndian.PutUint32(b[12:], c.sent)
			l.keys.Put(b[mcbp.HeaderBytes:], index)
		default:
			buf = buf[:at+mcbp.HeaderBytes+setExtrasBytes+keyBytes+valueBytes]
			b := buf[at:]
			copy(b, l.setHeader[:])
			binary.BigEndian.PutUint32(b[12:], c.sent)
			l.keys.Put(b[mcbp.HeaderBytes+setExtrasBytes:], index)
			l.values.Put(b[mcbp.HeaderBytes+setExtrasBytes+keyBytes:], index)
		}
		c.slots[c.sent&c.mask] = request{index: index, op: op}
		c.sent++
	}
	if c.sent == first {
		return false
	}
	if due == 0 {
		due = l.clock()
	}
	c.batches[c.batchTail&c.mask] = batch{end: c.sent, made: due}
	c.batchTail++
	c.buffer, c.out = buf, buf
	return true
}

// write sends out. It reports true when the socket is full; the event loop
// comes back when it drains.
func (c *conn) write() (blocked bool, err error) {
	for len(c.out) > 0 {
		n, errno := rawWrite(c.fd, c.out)
		switch errno {
		case 0:
			c.out = c.out[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return true, nil
		default:
			return false, fmt.Errorf("write: %w", errno)
		}
	}
	return false, nil
}

// receive reads until the socket is empty and counts the answers. A short read
// says that it is, unless the peer has ended: that is reported once, with the
// last bytes, and only another read tells.
func (c *conn) receive(l *loop, ended bool) error {
	for {
		n, errno := rawRead(c.fd, l.readBuffer)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return nil
		case errno != 0:
			return fmt.Errorf("read: %w", errno)
		case n == 0:
			return io.EOF
		}
		l.now = l.clock()
		before := c.answered
		if err := c.parse(l, l.readBuffer[:n]); err != nil {
			return err
		}
		if c.answered != before {
			l.lastAnswer = l.now
			c.record(l)
		}
		l.stats.bytesIn += int64(n)
		if n < len(l.readBuffer) && !ended {
			return nil
		}
	}
}

var errProtocol = errors.New("protocol error")

func (c *conn) parse(l *loop, b []byte) error {
	for len(b) > 0 {
		switch {
		case c.bodyLeft > 0:
			n := min(c.bodyLeft, len(b))
			c.body(l, b[:n])
			b = b[n:]
			if c.bodyLeft == 0 {
				c.finish(l)
			}
		case c.headerHave == 0 && len(b) >= mcbp.HeaderBytes:
			if err := c.header(l, b[:mcbp.HeaderBytes]); err != nil {
				return err
			}
			b = b[mcbp.HeaderBytes:]
		default:
			n := copy(c.headerBuffer[c.headerHave:], b)
			c.headerHave += n
			b = b[n:]
			if c.headerHave == mcbp.HeaderBytes {
				c.headerHave = 0
				if err := c.header(l, c.headerBuffer[:]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *conn) header(l *loop, h []byte) error {
	_ = h[mcbp.HeaderBytes-1]
	due := c.slots[c.answered&c.mask]
	opaque := binary.BigEndian.Uint32(h[12:])
	if mcbp.Magic(h[0]) != mcbp.MagicResponse || mcbp.Opcode(h[1]) != due.op || opaque != c.answered || c.answered == c.sent {
		return fmt.Errorf("%w: answer with magic 0x%02x, %v, opaque %d; due is %v, opaque %d (%d open)",
			errProtocol, h[0], mcbp.Opcode(h[1]), opaque, due.op, c.answered, c.open())
	}
	c.bodyLeft = int(binary.BigEndian.Uint32(h[8:]))
	c.bodyAt = 0
	c.status = mcbp.Status(binary.BigEndian.Uint16(h[6:]))
	c.extras = int(h[4]) + int(binary.BigEndian.Uint16(h[2:])) // a key here is never asked for
	c.wrong = false
	if due.op == mcbp.OpGet && c.status == mcbp.StatusSuccess {
		c.wrong = c.extras != getExtrasBytes || c.bodyLeft != getExtrasBytes+l.values.bytes
	}
	if c.bodyLeft == 0 {
		c.finish(l)
	}
	return nil
}

func (c *conn) body(l *loop, b []byte) {
	if l.verify && c.status == mcbp.StatusSuccess && !c.wrong {
		due := c.slots[c.answered&c.mask]
		part, at := b, c.bodyAt-c.extras
		if at < 0 {
			skip := min(-at, len(part))
			part, at = part[skip:], at+skip
		}
		if due.op == mcbp.OpGet && len(part) > 0 && !l.values.Matches(due.index, at, part) {
			c.wrong = true
		}
	}
	c.bodyAt += len(b)
	c.bodyLeft -= len(b)
}

// finish counts one whole answer.
func (c *conn) finish(l *loop) {
	get := c.slots[c.answered&c.mask].op != mcbp.OpSet
	if get {
		c.gets++
	} else {
		c.sets++
	}
	switch {
	case c.status != mcbp.StatusSuccess:
		l.stats.failed(c.status, get)
	case c.wrong:
		l.stats.wrong++
	}
	c.answered++
	if c.answered == c.batches[c.batchHead&c.mask].end {
		c.record(l)
		c.batchHead++
	}
}

// record gives the answers counted since the last call the latency of the
// batch they belong to. Answers of one read share a moment.
func (c *conn) record(l *loop) {
	if c.gets == 0 && c.sets == 0 {
		return
	}
	made := c.batches[c.batchHead&c.mask].made
	if l.open == nil || made >= l.open.countFrom {
		l.stats.add(l.now, max(l.now-made, 0), c.gets, c.sets)
	}
	c.gets, c.sets = 0, 0
}
