package mcbp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"fluxkv/internal/invariants"
)

const (
	// inputBytes is the read buffer of a connection that has input.
	inputBytes = 64 << 10
	// slowestBytesPerSecond is what a peer must manage, on top of the fixed
	// part of a deadline.
	slowestBytesPerSecond = 64 << 10
	// lingerTime and lingerBytes bound how long a closing connection takes
	// input it will not look at: closing with unread input resets the
	// connection, and a reset destroys answers under way.
	lingerTime  = 250 * time.Millisecond
	lingerBytes = 1 << 20
	// parkAfter is how long a peer may leave its answers before the reads that
	// are under way behind them let go of the store, to be read again later.
	parkAfter = 100 * time.Millisecond
)

// input is a read buffer: buf[start:end] has arrived and is not done.
type input struct {
	buf        []byte
	start, end int
}

// armed says what the read deadline that is set is for.
type armed uint8

const (
	armedNone  armed = iota
	armedIdle        // the next request
	armedFrame       // the rest of a started frame
)

// conn is one connection and the goroutine that serves it: read, pass, wait,
// write, in turn. It is the only writer of its socket. While reads of the store
// are under way it does not wait for input: it takes what has come, and answers
// what is ready.
type conn struct {
	srv *Server
	nc  net.Conn
	raw syscall.RawConn
	ses session

	pipe     *pipeline // while reads are under way or a pass is
	in       *input    // nil while nothing is pending
	reserved int64     // of srv.frames, for in
	need     int       // length of the frame at the front of in, as far as known

	readFn, writeFn func(fd uintptr) bool // bound once: no closure a call
	readN           int
	readNone        bool // nothing has come, and nobody waits for it
	readErr         error
	writeRest       []byte
	writeErr        error
	writeEnd        time.Time // of the write as a whole; zero until it must wait
	parkAt          time.Time // set with writeEnd
	readArmed       armed
	writeArmed      bool

	// mu guards draining, and setting the read deadline, which draining has
	// the last word on. It is held for a system call at most.
	mu       sync.Mutex
	draining bool
}

func newConn(s *Server, nc net.Conn) (*conn, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("mcbp: %T has no descriptor", nc)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{srv: s, nc: nc, raw: raw, ses: session{readsMax: runReadsMax}}
	c.readFn, c.writeFn = c.tryRead, c.tryWrite
	return c, nil
}

// serve runs the connection to its end.
func (c *conn) serve() {
	defer c.end()
	for {
		if err := c.read(); err != nil {
			// What was asked before is answered, also to a peer that has closed
			// its side.
			if !c.answer(answerAll) {
				return
			}
			c.logEnd(err)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.linger()
			}
			return
		}
		todo := answerInput
		if c.readNone {
			todo = answerSome
		}
		if !c.answer(todo) {
			return
		}
		if !c.makeRoom() {
			return
		}
	}
}

// end closes the socket and gives everything back.
func (c *conn) end() {
	c.nc.Close()
	if p := c.pipe; p != nil {
		c.returnPipe(p)
	}
	c.srv.frames.Release(c.reserved)
	c.reserved = 0
	if c.in != nil {
		c.releaseInput()
	}
}

func (c *conn) returnPipe(p *pipeline) {
	c.pipe = nil
	p.recycle()
	c.srv.pipelines.Put(p)
}

// rolling reports whether reads are under way.
func (c *conn) rolling() bool { return c.pipe != nil && len(c.pipe.rolls) > 0 }

// answering says what answer is to do.
type answering uint8

const (
	answerInput answering = iota // what has arrived
	answerSome                   // some of the reads under way, waiting if it must
	answerAll                    // all of them
)

// answer runs passes until what has arrived is done, or turns that answer reads
// under way, and reports whether the connection goes on. A panic in the protocol's
// own code costs the connection that brought it about; one in the store means that
// memory cannot be trusted, and ends the process.
func (c *conn) answer(todo answering) (goOn bool) {
	if todo != answerInput && !c.rolling() {
		return true
	}
	p := c.pipe
	if p == nil {
		p = c.srv.pipelines.Get().(*pipeline)
		c.pipe = p
	}
	defer func() {
		cause := recover()
		if cause == nil {
			if !goOn || len(p.rolls) == 0 {
				c.returnPipe(p)
			}
			return
		}
		c.pipe = nil
		p.release()
		if p.inEngine {
			panic(cause)
		}
		p.drop()
		c.srv.opts.Logf("connection closed: panic in a pass: %v\n%s", cause, debug.Stack())
		goOn = false
	}()
	for {
		var in []byte
		var r passResult
		if todo == answerInput {
			in = c.in.buf[c.in.start:c.in.end]
			skip := c.ses.skip
			r = p.pass(&c.ses, in)
			if int64(r.consumed) > skip {
				c.disarmRead(armedFrame) // the frame that it was for is whole
			}
		} else {
			r = p.turn(&c.ses)
		}
		if len(p.out) > 0 {
			if err := p.await(&r); err != nil {
				p.refuseAll(&c.ses, in[:r.consumed], err)
			}
			if err := c.write(p.out); err != nil {
				c.logEnd(err)
				return false
			}
			p.srv.counters[bytesWritten].Add(uint64(len(p.out)))
		}
		p.release()
		if todo == answerInput {
			c.in.start += r.consumed
			c.need = r.need
		}
		if r.close {
			c.linger()
			return false
		}
		if todo != answerInput && len(p.rolls) == 0 || !r.more && todo != answerAll {
			return true
		}
		if r.memory > 0 {
			p.park() // no memory of the store is held while others are waited for
			if !c.srv.waitMemory(p.srv.buffers, r.memory) {
				return false
			}
			p.reserved = r.memory
		}
	}
}

// makeRoom readies the input for the next read: nothing pending, no buffer;
// else the pending bytes go to the front of a buffer that has room. It returns
// false when the server closes.
func (c *conn) makeRoom() bool {
	in := c.in
	if in == nil {
		return true // only answers were made
	}
	pending := in.end - in.start
	if pending == 0 {
		c.releaseInput()
		return true
	}
	if len(in.buf) > inputBytes && pending < inputBytes && c.need <= inputBytes {
		small := c.srv.inputs.Get().(*input)
		small.end = copy(small.buf, in.buf[in.start:in.end])
		c.releaseInput()
		c.in = small
		return true
	}
	if pending < len(in.buf) {
		if in.start > 0 && (in.start+c.need > len(in.buf) || in.end == len(in.buf)) {
			in.end = copy(in.buf, in.buf[in.start:in.end])
			in.start = 0
		}
		return true
	}
	// The buffer is full of one frame: it grows by what has arrived, never to
	// what was announced.
	size := min(2*len(in.buf), c.need)
	if !c.answer(answerAll) { // nothing is held while memory is waited for
		return false
	}
	if !c.reserveFrame() {
		return false
	}
	large := &input{buf: make([]byte, size)}
	large.end = copy(large.buf, in.buf[in.start:in.end])
	c.srv.putInput(in)
	c.in = large
	return true
}

// reserveFrame takes the budget of the frame at the front of c.in, all of it at
// once: connections that took theirs in steps would wait for each other with
// their hands full, for ever. It holds nothing while it waits, except when a
// large frame came in behind another one; that one has the deadline of a frame.
func (c *conn) reserveFrame() bool {
	if int64(c.need) <= c.reserved {
		return true
	}
	more := int64(c.need) - c.reserved
	if c.reserved == 0 {
		if !c.srv.waitMemory(c.srv.frames, more) {
			return false
		}
	} else {
		for end := time.Now().Add(c.srv.opts.FrameTimeout); !c.srv.frames.TryReserve(more); {
			if time.Now().After(end) {
				c.logEnd(os.ErrDeadlineExceeded)
				return false
			}
			select {
			case <-c.srv.done:
				return false
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	c.reserved = int64(c.need)
	return true
}

// putInput takes an empty buffer into the pool; a grown one goes to the
// collector.
func (s *Server) putInput(in *input) {
	if len(in.buf) == inputBytes {
		in.start, in.end = 0, 0
		s.inputs.Put(in)
	}
}

// releaseInput gives the buffer back.
func (c *conn) releaseInput() {
	in := c.in
	c.in = nil
	c.srv.putInput(in)
	c.srv.frames.Release(c.reserved)
	c.reserved = 0
}

// read waits for input and appends it to c.in, which it takes from the pool
// only when there is something to put into it. While reads are under way it does
// not wait, but sets readNone.
func (c *conn) read() error {
	c.readN, c.readErr, c.readNone = 0, nil, false
	if c.rolling() && c.pipe.full() {
		c.readNone = true
		return nil
	}
	if err := c.raw.Read(c.readFn); err != nil {
		return err
	}
	if c.readErr != nil {
		return c.readErr
	}
	if c.readNone {
		return nil
	}
	if c.readN == 0 {
		return io.EOF
	}
	c.in.end += c.readN
	c.disarmRead(armedIdle)
	return nil
}

// tryRead is called when the socket may be readable; false waits until it is.
func (c *conn) tryRead(fd uintptr) bool {
	idle := c.in == nil
	if idle {
		c.in = c.srv.inputs.Get().(*input)
	}
	if invariants.Enabled && c.in.end == len(c.in.buf) {
		panic("mcbp: read into a full buffer, which looks like the end of the connection")
	}
	for {
		n, err := syscall.Read(int(fd), c.in.buf[c.in.end:])
		switch err {
		case nil:
			c.readN = n
			return true
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			if idle {
				c.releaseInput()
			}
			if c.rolling() {
				c.readNone = true
				return true
			}
			c.armRead()
			return false
		}
		c.readErr = os.NewSyscallError("read", err)
		return true
	}
}

// armRead sets the deadline of a read that must wait: for the rest of a
// started frame, which has one deadline as a whole, or for the next request.
func (c *conn) armRead() {
	if c.in != nil || c.ses.refusing {
		if c.readArmed != armedFrame {
			c.setReadDeadline(armedFrame, c.srv.opts.FrameTimeout+slowest(int64(c.need)+c.ses.skip))
		}
	} else if d := c.srv.opts.IdleTimeout; d > 0 {
		c.setReadDeadline(armedIdle, d)
	}
}

// disarmRead takes a deadline back that was met: it must not strike later,
// while nobody waits for input.
func (c *conn) disarmRead(a armed) {
	if c.readArmed == a {
		c.setReadDeadline(armedNone, 0)
	}
}

func (c *conn) setReadDeadline(a armed, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return
	}
	c.readArmed = a
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	c.nc.SetReadDeadline(at)
}

// slowest is the time that n bytes take at the lowest rate a peer may have.
func slowest(n int64) time.Duration {
	return time.Duration(n) * time.Second / slowestBytesPerSecond
}

// write sends b, and blocks as long as the peer does not take it, up to a
// deadline. Nothing is read from it meanwhile, and reads under way are parked
// when it takes long.
func (c *conn) write(b []byte) error {
	c.writeRest, c.writeErr, c.writeEnd = b, nil, time.Time{}
	err := c.raw.Write(c.writeFn)
	if c.pipe != nil && !c.pipe.parked() && errors.Is(err, os.ErrDeadlineExceeded) {
		c.pipe.park()
		c.nc.SetWriteDeadline(time.Time{})
		err = c.raw.Write(c.writeFn)
	}
	c.writeRest = nil
	if c.writeArmed {
		c.nc.SetWriteDeadline(time.Time{})
		c.writeArmed = false
	}
	if err != nil {
		return err
	}
	return c.writeErr
}

// tryWrite is called when the socket may be writable; false waits until it is.
func (c *conn) tryWrite(fd uintptr) bool {
	for len(c.writeRest) > 0 {
		n, err := syscall.Write(int(fd), c.writeRest)
		switch err {
		case nil:
			c.writeRest = c.writeRest[n:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			c.armWrite()
			return false
		default:
			c.writeErr = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}

// armWrite sets the deadline of a write that must wait: WriteTimeout from now,
// which progress renews, and no more for the whole than the lowest rate allows.
func (c *conn) armWrite() {
	now := time.Now()
	if c.writeEnd.IsZero() {
		c.writeEnd = now.Add(c.srv.opts.WriteTimeout + slowest(int64(len(c.writeRest))))
		c.parkAt = now.Add(parkAfter)
	}
	at := now.Add(c.srv.opts.WriteTimeout)
	if at.After(c.writeEnd) {
		at = c.writeEnd
	}
	if c.pipe != nil && !c.pipe.parked() && at.After(c.parkAt) {
		at = c.parkAt
	}
	c.nc.SetWriteDeadline(at)
	c.writeArmed = true
}

// drain ends the connection when the pass in progress is answered.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// linger says that no more will be sent and takes input for a moment, so that
// the last answers reach the peer.
func (c *conn) linger() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	c.mu.Lock()
	c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	c.mu.Unlock()
	io.CopyN(io.Discard, c.nc, lingerBytes)
}

// logEnd logs an end that an operator may want to know about. A peer that
// leaves, or is told to at shutdown, is none.
func (c *conn) logEnd(err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		select {
		case <-c.srv.done:
		default:
			c.srv.logEvent("connection %v closed: no progress before its deadline", c.nc.RemoteAddr())
		}
		return
	}
	c.srv.logEvent("connection %v closed: %v", c.nc.RemoteAddr(), err)
}
