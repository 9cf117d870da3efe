package mcbp

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/lsm"
)

// testStore opens a small store on a disk in memory.
func testStore(t testing.TB, fs vfs.FS, change func(*lsm.Options)) *lsm.DB {
	t.Helper()
	if fs == nil {
		fs = memfs.New()
	}
	o := lsm.Options{FS: fs, KVStores: 2, MemQuota: 64 << 20, WriteCache: 48 << 20}
	if change != nil {
		change(&o)
	}
	db, err := lsm.Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return db
}

func testServer(t testing.TB, db *lsm.DB, o Options) *Server {
	t.Helper()
	s, err := New(db, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// driver hands bytes to a session as a connection would, without a socket.
type driver struct {
	t       testing.TB
	p       *pipeline
	s       session
	pending []byte
	passes  int
	need    int
	closed  bool
}

func newDriver(t testing.TB, srv *Server) *driver {
	return &driver{t: t, p: newPipeline(srv), s: session{readsMax: runReadsMax}}
}

// feed returns the answers to what is whole after b has arrived.
func (d *driver) feed(b []byte) (out []byte) {
	d.t.Helper()
	if d.closed {
		return nil
	}
	d.pending = append(d.pending, b...)
	for {
		r := d.step(true)
		out = append(out, d.p.out...)
		if d.settle(&r) {
			return out
		}
		if !r.more {
			break
		}
	}
	for len(d.p.rolls) > 0 {
		r := d.step(false)
		out = append(out, d.p.out...)
		d.settle(&r)
	}
	return out
}

// step runs a pass over what is pending, or a turn of the reads under way, and
// leaves the answers in d.p.out.
func (d *driver) step(pass bool) (r passResult) {
	d.t.Helper()
	var in []byte
	if pass {
		// Memory of its own, which is overwritten behind the pass, as the buffer
		// of a connection is.
		in = append(in, d.pending...)
		r = d.p.pass(&d.s, in)
		d.passes++
	} else {
		r = d.p.turn(&d.s)
	}
	if r.consumed > len(in) {
		d.t.Fatalf("pass consumed %d of %d bytes", r.consumed, len(in))
	}
	if len(d.p.out) > 0 {
		if err := d.p.await(&r); err != nil {
			d.p.refuseAll(&d.s, in[:r.consumed], err)
		}
	}
	if pass {
		d.pending = append([]byte(nil), d.pending[r.consumed:]...)
		d.need = r.need
	}
	for i := range in {
		in[i] = 0xee
	}
	return r
}

// settle does what follows when the answers of a step have left, and reports
// whether the connection is over.
func (d *driver) settle(r *passResult) (over bool) {
	d.p.release()
	if r.close {
		d.closed = true
		return true
	}
	if r.memory > 0 {
		d.p.park()
		d.p.reserved = r.memory
		d.p.srv.buffers.Reserve(r.memory)
	}
	return false
}

// ask feeds one request and decodes the one answer to it.
func (d *driver) ask(r Request) Response {
	d.t.Helper()
	all := responses(d.t, d.feed(r.Append(nil)))
	if len(all) != 1 {
		d.t.Fatalf("%d answers to %v, want 1", len(all), r.Opcode)
	}
	return all[0]
}

// responses takes a run of answers apart; they must be whole.
func responses(t testing.TB, b []byte) (all []Response) {
	t.Helper()
	for len(b) > 0 {
		r, n, err := DecodeResponse(b)
		if err != nil {
			t.Fatalf("answer %d: %v: %x", len(all), err, b)
		}
		all = append(all, r)
		b = b[n:]
	}
	return all
}

func setRequest(op Opcode, key, value string, flags, expiry uint32) Request {
	ext := binary.BigEndian.AppendUint32(nil, flags)
	return Request{Opcode: op, Key: []byte(key), Value: []byte(value), Extras: binary.BigEndian.AppendUint32(ext, expiry)}
}

func keyRequest(op Opcode, key string) Request {
	return Request{Opcode: op, Key: []byte(key)}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// clock is a settable time. The store looks at it in the background.
type clock struct{ at atomic.Pointer[time.Time] }

func newClock(at time.Time) *clock {
	c := new(clock)
	c.set(at)
	return c
}

func (c *clock) set(at time.Time) { c.at.Store(&at) }

func (c *clock) now() time.Time { return *c.at.Load() }
