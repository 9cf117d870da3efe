package mcbp

import (
	"fmt"
	"testing"

	"fluxkv/internal/invariants"
	"fluxkv/lsm"
)

// passBench is a session with a run of requests that can be repeated.
func passBench(t testing.TB, op Opcode, run int) (pass func(), srv *Server) {
	t.Helper()
	db := testStore(t, nil, func(o *lsm.Options) {
		o.NonDurable, o.MemQuota, o.WriteCache = true, 1<<30, 900<<20
	})
	srv = testServer(t, db, Options{})
	d := newDriver(t, srv)
	var sets, b []byte
	for i := range run {
		key := fmt.Sprintf("%08x", i*2654435761)
		set := setRequest(OpSet, key, "12345678", 0, 0)
		sets = set.Append(sets)
		if op == OpGet {
			b = keyRequestFrame(OpGet, key, b)
		}
	}
	d.feed(sets)
	if op == OpSet {
		b = sets
	}
	return func() {
		if r := d.p.pass(&d.s, b); r.consumed != len(b) {
			t.Fatalf("consumed %d of %d", r.consumed, len(b))
		}
		d.p.release()
	}, srv
}

func TestPassesAllocateNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	for _, op := range []Opcode{OpGet, OpSet} {
		pass, _ := passBench(t, op, 128)
		pass()
		if n := testing.AllocsPerRun(200, pass); n != 0 {
			t.Errorf("128 x %v: %v allocations a pass, want 0", op, n)
		}
	}
}

func benchmarkPass(b *testing.B, op Opcode) {
	const run = 128
	pass, _ := passBench(b, op, run)
	b.ReportAllocs()
	for i := 0; i < b.N; i += run {
		pass()
	}
}

// One operation is one request of a pass of 128.
func BenchmarkPassGet(b *testing.B) { benchmarkPass(b, OpGet) }
func BenchmarkPassSet(b *testing.B) { benchmarkPass(b, OpSet) }

func BenchmarkDecodeHeader(b *testing.B) {
	frame := setFrame(OpSet, "12345678")
	b.ReportAllocs()
	for b.Loop() {
		h := DecodeHeader(frame)
		if !h.Sane() {
			b.Fatal(h)
		}
	}
}
