package mcbp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// vectors is one session of a client, in order, with the answers that
// memcached 1.6.18 gives, byte for byte; CCCC stands for any CAS but 0. The
// names are those of the protocol notes that they were collected in.
var vectors = []struct{ name, request, response string }{
	{"V1 GET miss",
		"8000000300000000 0000000300000001 0000000000000000 | 666f6f",
		"8100000000000001 0000000900000001 0000000000000000 | 4e6f7420666f756e 64"},
	{"V2 SET with flags",
		"8001000308000000 0000000e00000002 0000000000000000 | deadbeef00000000 666f6f626172",
		"8101000000000000 0000000000000002 cccccccccccccccc"},
	{"V3 GET hit with flags",
		"8000000300000000 0000000300000003 0000000000000000 | 666f6f",
		"8100000004000000 0000000700000003 cccccccccccccccc | deadbeef626172"},
	{"V4 GETK hit",
		"800c000300000000 0000000300000004 0000000000000000 | 666f6f",
		"810c000304000000 0000000a00000004 cccccccccccccccc | deadbeef666f6f62 6172"},
	{"V5 GETK miss echoes the key",
		"800c000400000000 0000000400000005 0000000000000000 | 6e6f7065",
		"810c000400000001 0000000400000005 0000000000000000 | 6e6f7065"},
	{"V6 GETKQ miss then NOOP",
		"800d000400000000 0000000400000006 0000000000000000 | 6e6f7065" +
			"800a000000000000 0000000000000007 0000000000000000",
		"810a000000000000 0000000000000007 0000000000000000"},
	{"V7 SET with wrong CAS",
		"8001000308000000 0000000c00000008 0000000000000001 | 0000000000000000 666f6f78",
		"8101000000000002 0000001400000008 0000000000000000 | 4461746120657869 73747320666f7220 6b65792e"},
	{"V8 SET with CAS on a missing key",
		"8001000508000000 0000000e00000009 0000000000000001 | 0000000000000000 6e6f6b657978",
		"8101000000000001 0000000900000009 0000000000000000 | 4e6f7420666f756e 64"},
	{"V18 DELETE answers CAS 0",
		"8004000300000000 0000000300000014 0000000000000000 | 666f6f",
		"8104000000000000 0000000000000014 0000000000000000"},
	{"V19 GET with a key of 251 bytes",
		"800000fb00000000 000000fb00000015 0000000000000000 | " + strings.Repeat("6b", 251),
		"8100000000000004 0000001100000015 0000000000000000 | 496e76616c696420 617267756d656e74 73"},
	{"V34 opcode 0x70 with key and value",
		"8070000200000000 0000000700000024 0000000000000000 | 6b6b68656c6c6f",
		"8170000000000081 0000000f00000024 0000000000000000 | 556e6b6e6f776e20 636f6d6d616e64"},
}

// normalize replaces every CAS but 0 in a run of answers.
func normalize(t testing.TB, b []byte) []byte {
	t.Helper()
	b = bytes.Clone(b)
	for rest := b; len(rest) > 0; {
		_, n, err := DecodeResponse(rest)
		if err != nil {
			t.Fatalf("%v: %x", err, rest)
		}
		if binary.BigEndian.Uint64(rest[16:]) != 0 {
			copy(rest[16:], bytes.Repeat([]byte{0xcc}, 8))
		}
		rest = rest[n:]
	}
	return b
}

// TestVectors runs the session once for every place that a frame can be cut
// at.
func TestVectors(t *testing.T) {
	longest := 0
	for _, v := range vectors {
		longest = max(longest, len(unhex(t, v.request)))
	}
	db := testStore(t, nil, nil)
	srv := testServer(t, db, Options{})
	for cut := range longest {
		d := newDriver(t, srv)
		// The store's first CAS is the one that V7 takes to be wrong.
		d.feed(setFrame(OpSet, fmt.Sprint("first", cut)))
		for _, v := range vectors {
			request := unhex(t, v.request)
			at := min(cut, len(request))
			got := append(d.feed(request[:at]), d.feed(request[at:])...)
			if want := unhex(t, v.response); !bytes.Equal(normalize(t, got), want) {
				t.Fatalf("%s, cut at %d:\ngot  %x\nwant %x", v.name, at, got, want)
			}
		}
	}
}

func setFrame(op Opcode, key string) []byte {
	r := setRequest(op, key, "v", 0, 0)
	return r.Append(nil)
}

// TestVectorsByteByByte lets every byte of the whole session arrive alone.
func TestVectorsByteByByte(t *testing.T) {
	d := newDriver(t, testServer(t, testStore(t, nil, nil), Options{}))
	d.feed(setFrame(OpSet, "first"))
	for _, v := range vectors {
		var got []byte
		for _, b := range unhex(t, v.request) {
			got = append(got, d.feed([]byte{b})...)
		}
		if want := unhex(t, v.response); !bytes.Equal(normalize(t, got), want) {
			t.Fatalf("%s:\ngot  %x\nwant %x", v.name, got, want)
		}
	}
}

// TestVectorsInOneWrite sends the session as one buffer.
func TestVectorsInOneWrite(t *testing.T) {
	d := newDriver(t, testServer(t, testStore(t, nil, nil), Options{}))
	d.feed(setFrame(OpSet, "first"))
	var request, want []byte
	for _, v := range vectors {
		request = append(request, unhex(t, v.request)...)
		want = append(want, unhex(t, v.response)...)
	}
	if got := normalize(t, d.feed(request)); !bytes.Equal(got, want) {
		t.Fatalf("got  %x\nwant %x", got, want)
	}
	if d.passes != 2 {
		t.Errorf("%d passes, want 2", d.passes)
	}
}
