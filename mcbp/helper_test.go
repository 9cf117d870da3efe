package mcbp

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
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
		r := d.p.pass(&d.s, d.pending)
		d.passes++
		if r.consumed > len(d.pending) {
			d.t.Fatalf("pass consumed %d of %d bytes", r.consumed, len(d.pending))
		}
		if len(d.p.out) > 0 {
			if err := d.p.await(&r); err != nil {
				d.p.refuseAll(&d.s, d.pending[:r.consumed], err)
			}
		}
		out = append(out, d.p.out...)
		d.p.release()
		d.pending = append([]byte(nil), d.pending[r.consumed:]...)
		d.need = r.need
		if r.close {
			d.closed = true
			return out
		}
		if !r.more {
			return out
		}
		d.p.reserved = r.memory
		d.p.srv.buffers.Reserve(r.memory)
	}
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

// clock is a settable time.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }
