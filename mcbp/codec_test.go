package mcbp

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Request{
			Framing:  rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "framing"),
			Extras:   rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "extras"),
			Key:      rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "key"),
			Value:    rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "value"),
			CAS:      rapid.Uint64().Draw(t, "cas"),
			Opaque:   rapid.Uint32().Draw(t, "opaque"),
			VBucket:  rapid.Uint16().Draw(t, "vbucket"),
			Opcode:   Opcode(rapid.Byte().Draw(t, "opcode")),
			Datatype: rapid.Byte().Draw(t, "datatype"),
		}
		b := want.Append(nil)
		for cut := range b {
			if _, _, err := DecodeRequest(b[:cut]); !errors.Is(err, ErrShort) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
		}
		got, n, err := DecodeRequest(append(b, "next"...))
		if err != nil || n != len(b) || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %d, %v\nwant %+v, %d", got, n, err, want, len(b))
		}
	})
}

func TestResponseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Response{
			Framing: rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "framing"),
			Extras:  rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "extras"),
			Key:     rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "key"),
			Value:   rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "value"),
			CAS:     rapid.Uint64().Draw(t, "cas"),
			Opaque:  rapid.Uint32().Draw(t, "opaque"),
			Status:  Status(rapid.Uint16().Draw(t, "status")),
			Opcode:  Opcode(rapid.Byte().Draw(t, "opcode")),
		}
		b := want.Append(nil)
		got, n, err := DecodeResponse(b)
		if err != nil || n != len(b) || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %d, %v\nwant %+v, %d", got, n, err, want, len(b))
		}
	})
}

func TestShortcutsEncodeTheSame(t *testing.T) {
	set := setRequest(OpSet, "key", "value", 7, 9)
	set.Opaque = 3
	get := Request{Opcode: OpGet, Key: []byte("key"), Opaque: 3}
	if got := AppendSet(nil, []byte("key"), []byte("value"), 7, 9, 3); !bytes.Equal(got, set.Append(nil)) {
		t.Errorf("AppendSet: %x", got)
	}
	if got := AppendGet(nil, []byte("key"), 3); !bytes.Equal(got, get.Append(nil)) {
		t.Errorf("AppendGet: %x", got)
	}
}

func TestHeaderSane(t *testing.T) {
	for _, tc := range []struct {
		name string
		h    Header
		want bool
	}{
		{"nothing", Header{}, true},
		{"parts fill the body", Header{FramingBytes: 1, ExtrasBytes: 2, KeyBytes: 3, BodyBytes: 6}, true},
		{"one byte short", Header{FramingBytes: 1, ExtrasBytes: 2, KeyBytes: 3, BodyBytes: 5}, false},
		{"framing extras count", Header{FramingBytes: 255, BodyBytes: 254}, false},
		{"largest parts", Header{FramingBytes: 255, ExtrasBytes: 255, KeyBytes: 65535, BodyBytes: 66044}, false},
		{"largest body", Header{KeyBytes: 65535, BodyBytes: 1<<32 - 1}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.h.Sane(); got != tc.want {
				t.Errorf("Sane() = %v", got)
			}
		})
	}
}

func TestDecodeRefusesOtherMagic(t *testing.T) {
	request := keyRequest(OpGet, "k")
	b := request.Append(nil)
	if _, _, err := DecodeResponse(b); !errors.Is(err, ErrFrame) {
		t.Errorf("request as response: %v", err)
	}
	b[0] = byte(MagicResponse)
	if _, _, err := DecodeRequest(b); !errors.Is(err, ErrFrame) {
		t.Errorf("response as request: %v", err)
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{OpGetKQ.String(), "GETKQ"},
		{Opcode(0x70).String(), "opcode 0x70"},
		{StatusNotFound.String(), "Not found"},
		{Status(0x1234).String(), "status 0x1234"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}
