package mcbp

import (
	"bytes"
	"testing"

	"fluxkv/lsm"
)

// FuzzFrames hands arbitrary bytes to a session, whole and cut in two, and
// checks that the answers are well-formed frames, that what is consumed and
// what is held stay within bounds, and that cutting changes no status.
func FuzzFrames(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v.request), uint16(13))
	}
	set := setRequest(OpSet, "k", "value", 1, 60)
	f.Add(keyRequestFrame(OpGet, "k", set.Append(nil)), uint16(24))
	set.Framing = []byte{0x13, 1, 0x23, 0x28, 0x50}
	f.Add(keyRequestFrame(OpDelete, "k", set.Append(nil)), uint16(27))
	f.Add(keyRequestFrame(OpStat, "settings", nil), uint16(0))
	f.Add(keyRequestFrame(OpQuit, "", setFrame(OpSetQ, "q")), uint16(3))
	large := Header{Magic: MagicRequest, Opcode: OpSet, KeyBytes: 1, ExtrasBytes: 8, BodyBytes: 1 << 20}
	f.Add(large.Append(nil), uint16(1))
	// A store each, with the same history: a quiet GET answers or not by what
	// was there.
	server := func() *Server {
		db := testStore(f, nil, func(o *lsm.Options) { o.NonDurable, o.MaxItemBytes = true, 4096 })
		return testServer(f, db, Options{MaxItemBytes: 4096})
	}
	one, other := server(), server()
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		whole, parts := newDriver(t, one), newDriver(t, other)
		statuses := func(out []byte) (s []byte) {
			for _, r := range responses(t, out) {
				s = append(s, byte(r.Opcode), byte(r.Status>>8), byte(r.Status))
			}
			return s
		}
		at := min(int(cut), len(b))
		first := statuses(whole.feed(b))
		second := statuses(append(parts.feed(b[:at]), parts.feed(b[at:])...))
		for _, d := range []*driver{whole, parts} {
			// Only a frame that is well-formed and within the item limit is
			// ever waited for.
			if !d.closed && (len(d.pending) >= max(d.need, HeaderBytes) || d.need > HeaderBytes+255+255+4096) {
				t.Fatalf("%d bytes are held for a frame of %d", len(d.pending), d.need)
			}
		}
		if whole.closed != parts.closed || !bytes.Equal(first, second) {
			t.Fatalf("whole: closed %v, %x\ncut at %d: closed %v, %x", whole.closed, first, at, parts.closed, second)
		}
	})
}
