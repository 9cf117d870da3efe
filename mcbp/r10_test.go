package mcbp

import (
	"errors"
	"strings"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

func TestR10_EveryAnswerWaits(t *testing.T) {
	db := testStore(t, nil, nil)
	srv := testServer(t, db, Options{})
	d := newDriver(t, srv)
	r := d.p.pass(&d.s, setFrame(OpSetQ, "k"))
	if r.wait == 0 || len(d.p.out) != 0 {
		t.Fatalf("SETQ: wait %d, %d bytes", r.wait, len(d.p.out))
	}
	high := r.wait
	insane := keyRequestFrame(OpGet, "k", nil)
	insane[2] = 0xff
	for _, tc := range []struct {
		name string
		in   []byte
	}{
		{"NOOP", keyRequestFrame(OpNoop, "", nil)},
		{"STAT", keyRequestFrame(OpStat, "", nil)},
		{"VERSION", keyRequestFrame(OpVersion, "", nil)},
		{"GET", keyRequestFrame(OpGet, "k", nil)},
		{"GET miss", keyRequestFrame(OpGet, "none", nil)},
		{"unknown opcode", keyRequestFrame(0x70, "", nil)},
		{"malformed", keyRequestFrame(OpNoop, "key", nil)},
		{"DELETE miss", keyRequestFrame(OpDelete, "none", nil)},
		{"QUIT", keyRequestFrame(OpQuit, "", nil)},
		{"out of step", insane},
	} {
		if r := d.p.pass(&d.s, tc.in); r.wait < high || len(d.p.out) == 0 {
			t.Errorf("%s: waits for %d, want %d; %d bytes", tc.name, r.wait, high, len(d.p.out))
		}
	}
	other := newDriver(t, srv)
	wrong := keyRequest(OpDelete, "k")
	wrong.CAS = 1 << 60
	if r := other.p.pass(&other.s, wrong.Append(nil)); r.wait < high || responses(t, other.p.out)[0].Status != StatusExists {
		t.Errorf("an error from Update waits for %d, want at least %d", r.wait, high)
	}
}

func TestR10_FailedSyncTakesAnswersBack(t *testing.T) {
	fs := memfs.New()
	db := testStore(t, fs, nil)
	srv := testServer(t, db, Options{})
	d := newDriver(t, srv)
	d.ask(setRequest(OpSet, "old", "1", 0, 0))
	broken := errors.New("device gone")
	fs.SetHook(func(op memfs.Op) error {
		switch op.Kind {
		case vfs.OpWriteAt, vfs.OpWriteDurable, vfs.OpSync:
			return broken
		}
		return nil
	})
	var b []byte
	for _, r := range []Request{
		setRequest(OpSet, "k", "v", 0, 0),
		setRequest(OpSetQ, "k", "v", 0, 0),
		keyRequest(OpGet, "k"),
		keyRequest(OpDelete, "k"),
		{Opcode: OpNoop},
	} {
		b = r.Append(b)
	}
	got := responses(t, d.feed(b))
	if len(got) != 5 {
		t.Fatalf("%d answers: %+v", len(got), got)
	}
	// The NOOP too: it would vouch for quiet writes.
	for _, r := range got {
		if r.Status != StatusOutOfMemory || !strings.Contains(string(r.Value), "read-only") {
			t.Errorf("%v: %v %q", r.Opcode, r.Status, r.Value)
		}
	}
	if r := d.ask(keyRequest(OpGet, "old")); string(r.Value) != "1" {
		t.Errorf("what was durable: %+v", r)
	}
	if r := d.ask(keyRequest(OpGet, "k")); r.Status != StatusNotFound {
		t.Errorf("what was not durable: %+v", r)
	}
	if r := d.ask(setRequest(OpSet, "x", "y", 0, 0)); r.Status != StatusOutOfMemory {
		t.Errorf("SET on a read-only store: %+v", r)
	}
}
