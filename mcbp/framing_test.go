package mcbp

import (
	"bytes"
	"testing"
	"time"

	"fluxkv/lsm"
)

func TestFraming(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	set := setRequest(OpSet, "k", "v", 0, 0)
	for _, tc := range []struct {
		name    string
		framing string
		r       Request
		want    Status
	}{
		{"barrier", "00", set, StatusSuccess},
		{"barrier with data", "01 00", set, StatusInvalid},
		{"durability level", "11 01", set, StatusSuccess},
		{"durability and timeout", "13 03 2328", set, StatusSuccess},
		{"timeout 0", "13 01 0000", set, StatusInvalid},
		{"timeout all ones", "13 01 ffff", set, StatusInvalid},
		{"level 0", "11 00", set, StatusDurabilityLevel},
		{"level 4", "11 04", set, StatusDurabilityLevel},
		{"durability of 2 bytes", "12 0100", set, StatusInvalid},
		{"durability on a GET", "11 01", keyRequest(OpGet, "k"), StatusInvalid},
		{"durability on a quiet SET", "11 01", setRequest(OpSetQ, "k", "v", 0, 0), StatusInvalid},
		{"durability on a DELETE", "11 02", keyRequest(OpDelete, "k"), StatusSuccess},
		{"stream id", "22 0001", set, StatusSuccess},
		{"stream id of 1 byte", "21 00", set, StatusInvalid},
		{"unused", "30", set, StatusUnknownFrameInfo},
		{"impersonate", "41 61", set, StatusNoAccess},
		{"preserve TTL", "50", set, StatusSuccess},
		{"preserve TTL with data", "51 00", set, StatusInvalid},
		{"preserve TTL on a GET", "50", keyRequest(OpGet, "k"), StatusNotSupported},
		{"privilege", "60", set, StatusNoAccess},
		{"unknown behind a known one", "11 01 80", set, StatusUnknownFrameInfo},
		{"escaped id", "f1 00 00", set, StatusUnknownFrameInfo},
		{"escape at the very end", "f0", set, StatusInvalid},
		{"length escape at the very end", "0f", set, StatusInvalid},
		{"both escapes, one there", "ff 00", set, StatusInvalid},
		{"element longer than the run", "13 01", set, StatusInvalid},
		{"length escape beyond the run", "0f 01", set, StatusInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDriver(t, srv)
			d.feed(setFrame(OpSet, "k"))
			r := tc.r
			r.Framing = unhex(t, tc.framing)
			noop := Request{Opcode: OpNoop}
			got := responses(t, d.feed(noop.Append(r.Append(nil))))
			if got[0].Status != tc.want && !(tc.r.Opcode == OpSetQ && tc.want == StatusSuccess) {
				t.Errorf("%v, want %v", got[0].Status, tc.want)
			}
			if last := got[len(got)-1]; last.Opcode != OpNoop {
				t.Errorf("out of step: %+v", last)
			}
		})
	}
}

// TestDurabilityOnAnAsyncStore asks for durability on one request: its answer
// waits for the sync.
func TestDurabilityOnAnAsyncStore(t *testing.T) {
	db := testStore(t, nil, func(o *lsm.Options) { o.NonDurable, o.AsyncWindow = true, time.Minute })
	d := newDriver(t, testServer(t, db, Options{}))
	d.ask(setRequest(OpSet, "k", "v", 0, 0))
	if got := db.Stats().DurableSeqno; got >= d.s.high {
		t.Fatalf("durable seqno is %d before anything asked for it", got)
	}
	r := setRequest(OpSet, "k", "v", 0, 0)
	r.Framing = []byte{0x11, 1}
	if got := d.ask(r); got.Status != StatusSuccess {
		t.Errorf("%v", got.Status)
	}
	if got := db.Stats().DurableSeqno; got < d.s.high {
		t.Errorf("answered at durable seqno %d, the write has %d", got, d.s.high)
	}
}

func TestPreserveTTL(t *testing.T) {
	c := newClock(time.Unix(1_800_000_000, 0))
	db := testStore(t, nil, func(o *lsm.Options) { o.Now = c.now })
	d := newDriver(t, testServer(t, db, Options{Now: c.now}))
	d.ask(setRequest(OpSet, "k", "1", 0, 100))
	r := setRequest(OpSet, "k", "2", 3, 0)
	r.Framing = []byte{0x50}
	if got := d.ask(r); got.Status != StatusSuccess || got.CAS == 0 {
		t.Fatalf("%+v", got)
	}
	if got := d.ask(keyRequest(OpGet, "k")); string(got.Value) != "2" || !bytes.Equal(got.Extras, []byte{0, 0, 0, 3}) {
		t.Fatalf("%+v", got)
	}
	c.set(c.now().Add(100 * time.Second))
	if got := d.ask(keyRequest(OpGet, "k")); got.Status != StatusNotFound {
		t.Errorf("the expiry was not kept: %v", got.Status)
	}
	r = setRequest(OpSet, "new", "1", 0, 100)
	r.Framing = []byte{0x50}
	d.ask(r)
	c.set(c.now().Add(101 * time.Second))
	if got := d.ask(keyRequest(OpGet, "new")); got.Status != StatusNotFound {
		t.Errorf("the given expiry was not used: %v", got.Status)
	}
}
