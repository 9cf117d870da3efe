package wal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
)

func TestInlineRecordCostsThreeBytes(t *testing.T) {
	rec := AppendSet(nil, []byte("key"), entry.Meta{}, []byte("value"), false)
	if len(rec) != 3+3+5 || RecordBytes(3, entry.Meta{}, 5, false) != len(rec) {
		t.Fatalf("%d bytes over key and value, want 3", len(rec)-8)
	}
}

func TestTombstoneAndClearBytes(t *testing.T) {
	for _, n := range []int{1, 255, 256, MaxKeyBytes} {
		if rec := AppendDelete(nil, make([]byte, n)); len(rec) != DeleteBytes(n) {
			t.Errorf("tombstone of a key of %d bytes takes %d, DeleteBytes says %d", n, len(rec), DeleteBytes(n))
		}
	}
	if rec := AppendClear(nil); len(rec) != ClearBytes {
		t.Errorf("clear takes %d bytes", len(rec))
	}
}

func drawMeta(t *rapid.T) entry.Meta {
	var m entry.Meta
	if rapid.Bool().Draw(t, "has flags") {
		m.Flags = rapid.Uint32().Draw(t, "flags")
	}
	if rapid.Bool().Draw(t, "has expiry") {
		m.Expiry = rapid.Uint32().Draw(t, "expiry")
	}
	if rapid.Bool().Draw(t, "has datatype") {
		m.Datatype = rapid.Uint8().Draw(t, "datatype")
	}
	if rapid.Bool().Draw(t, "has cas") {
		m.CAS = rapid.Uint64().Draw(t, "cas")
	}
	return m
}

func drawRecord(t *rapid.T, first, delta bool) builtRecord {
	var r builtRecord
	if delta && !first {
		r.delta = rapid.Uint64Range(1, 1<<40).Draw(t, "delta")
	}
	r.kind = RecordKind(rapid.IntRange(0, 2).Draw(t, "kind"))
	if r.kind == RecordClear {
		return r
	}
	n := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(254, 258), rapid.IntRange(MaxKeyBytes-1, MaxKeyBytes)).Draw(t, "key bytes")
	r.key = bytes.Repeat([]byte{rapid.Byte().Draw(t, "key")}, n)
	if r.kind == RecordDelete {
		return r
	}
	n = rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(254, 258), rapid.IntRange(5000, 5001)).Draw(t, "value bytes")
	r.value = bytes.Repeat([]byte{rapid.Byte().Draw(t, "value")}, n)
	r.meta = drawMeta(t)
	r.separated = rapid.Bool().Draw(t, "separated")
	return r
}

// TestGroupRoundTrip encodes random groups of both kinds and reads them back.
func TestGroupRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		flags := rapid.SampledFrom([]uint16{0, GroupDelta}).Draw(rt, "flags")
		b := &logBuilder{t: t, align: 512, segment: 7, off: 512, next: 1000, last: 999, docs: NewIndexBuilder(0)}
		records := make([]builtRecord, rapid.IntRange(0, 12).Draw(rt, "records"))
		for i := range records {
			records[i] = drawRecord(rt, i == 0, flags == GroupDelta)
		}
		g, buf := b.encode(flags, records)
		h, ok := DecodeGroupHeader(buf, &testSecret, 7, 512)
		if !ok || h != g.GroupHeader {
			rt.Fatalf("decoded %v %+v, want %+v", ok, h, g.GroupHeader)
		}
		if !VerifyGroup(buf, &h, &testSecret) {
			rt.Fatal("group does not verify")
		}
		var rr RecordReader
		rr.Reset(buf[GroupHeaderBytes:h.Bytes], &h)
		var got Record
		seqno := h.First
		for i, want := range records {
			if flags == GroupDelta {
				seqno += entry.Seqno(want.delta)
			} else {
				seqno = h.First + entry.Seqno(i)
			}
			if !rr.Next(&got) {
				rt.Fatalf("record %d: %v", i, rr.Err())
			}
			if got.Kind != want.kind || got.Seqno != seqno || !bytes.Equal(got.Key, want.key) || !bytes.Equal(got.Value, want.value) ||
				got.Meta != want.meta || got.Separated != want.separated {
				rt.Fatalf("record %d: %+v, want %+v", i, got, want)
			}
			if want.separated {
				a := got.Address
				rec := buf[a.Offset-512 : a.Offset-512+a.Length]
				if a.Segment != 7 || !verifyDocument(rec, &testSecret, 7, a.Offset, seqno) {
					rt.Fatalf("document %d at %v does not verify", i, a)
				}
				if int(a.Length) != RecordBytes(len(want.key), want.meta, len(want.value), true) {
					rt.Fatalf("document %d has %d bytes, RecordBytes disagrees", i, a.Length)
				}
				if verifyDocument(rec, &testSecret, 7, a.Offset, seqno+1) || verifyDocument(rec, &testSecret, 8, a.Offset, seqno) ||
					verifyDocument(rec, &testSecret, 7, a.Offset+512, seqno) {
					rt.Fatal("document verifies elsewhere")
				}
			} else if !got.Address.IsZero() {
				rt.Fatalf("inline record has address %v", got.Address)
			}
		}
		if rr.Next(&got) || rr.Err() != nil {
			rt.Fatalf("after the last record: %v", rr.Err())
		}
	})
}

func TestBadRecords(t *testing.T) {
	long := make([]byte, 300)
	for _, c := range []struct {
		name  string
		bytes []byte
		flags uint16
		count uint32
		want  string
	}{
		{name: "nothing where a record should be", count: 1, want: "cut short"},
		{name: "presence byte only", bytes: []byte{0}, count: 1, want: "cut short"},
		{name: "value length missing", bytes: []byte{0, 1}, count: 1, want: "cut short"},
		{name: "long key length missing", bytes: []byte{0, 0, 1}, count: 1, want: "cut short"},
		{name: "short key in the long form", bytes: []byte{0, 0, 3, 0, 0, 'a', 'b', 'c'}, count: 1, want: "wrong form"},
		{name: "empty key", bytes: []byte{2, 0, 0, 0}, count: 1, want: "wrong form"},
		{name: "long value length missing", bytes: []byte{presenceLongValue, 1, 1, 0}, count: 1, want: "cut short"},
		{name: "short value in the long form", bytes: []byte{presenceLongValue, 1, 2, 0, 0, 0, 'k', 'v', 'v'}, count: 1, want: "out of bounds"},
		{name: "value length steers beyond 4 GiB", bytes: append([]byte{presenceLongValue, 1, 0xff, 0xff, 0xff, 0xff}, long...), count: 1, want: "out of bounds"},
		{name: "value reaches over the end", bytes: []byte{0, 1, 9, 'k', 'v'}, count: 1, want: "over the end"},
		{name: "meta reaches over the end", bytes: []byte{presenceCAS, 1, 0, 'k'}, count: 1, want: "over the end"},
		{name: "sum reaches over the end", bytes: []byte{kindSeparated, 1, 0, 'k', 1, 2, 3}, count: 1, want: "over the end"},
		{name: "unknown sub-kind", bytes: []byte{3, 2}, count: 1, want: "unknown kind"},
		{name: "clear with a flag", bytes: []byte{3 | presenceFlags, 1}, count: 1, want: "unknown kind"},
		{name: "tombstone with a value", bytes: []byte{kindDelete | presenceCompressed, 1, 'k'}, count: 1, want: "with a value"},
		{name: "bytes after the last record", bytes: []byte{3, 1, 3, 1}, count: 1, want: "after the last"},
		{name: "more records promised than there are", bytes: []byte{3, 1}, count: 2, want: "cut short"},
		{name: "first delta not zero", bytes: []byte{1, 3, 1}, flags: GroupDelta, count: 1, want: "do not rise"},
		{name: "second delta zero", bytes: []byte{0, 3, 1, 0, 3, 1}, flags: GroupDelta, count: 2, want: "do not rise"},
		{name: "delta cut short", bytes: []byte{0, 3, 1, 0x80}, flags: GroupDelta, count: 2, want: "delta cut short"},
		{name: "delta beyond the last seqno", bytes: []byte{0, 3, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 3, 1}, flags: GroupDelta, count: 2, want: "out of bounds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rr RecordReader
			rr.Reset(c.bytes, &GroupHeader{First: 5, Count: c.count, Flags: c.flags, Offset: 4096, Segment: 1})
			var r Record
			for rr.Next(&r) {
			}
			var corrupt *CorruptError
			if err := rr.Err(); !errors.Is(err, ErrCorrupt) || !errors.As(err, &corrupt) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if off := corrupt.Offset - 4096 - GroupHeaderBytes; off < 0 || off > int64(len(c.bytes)) {
				t.Fatalf("offset %d of %d bytes", off, len(c.bytes))
			}
			if rr.Next(&r) {
				t.Fatal("a record after the error")
			}
		})
	}
}

// TestEveryDamagedByteOfAGroupIsSeen changes each byte of a group in turn.
func TestEveryDamagedByteOfAGroupIsSeen(t *testing.T) {
	b := &logBuilder{t: t, align: 512, segment: 3, off: 1024, next: 10, last: 9, durable: 9, docs: NewIndexBuilder(0)}
	_, buf := b.encode(0, []builtRecord{{key: []byte("a"), value: []byte("1")}, {kind: RecordDelete, key: []byte("b")}})
	intact := func() bool {
		h, ok := DecodeGroupHeader(buf, &testSecret, 3, 1024)
		return ok && VerifyGroup(buf, &h, &testSecret)
	}
	h, _ := DecodeGroupHeader(buf, &testSecret, 3, 1024)
	for i := range h.Bytes {
		for _, flip := range []byte{1, 0x80, 0xff} {
			buf[i] ^= flip
			if intact() {
				t.Fatalf("byte %d ^ %x is not seen", i, flip)
			}
			buf[i] ^= flip
		}
	}
	if !intact() {
		t.Fatal("the whole group is not intact")
	}
	other := testSecret
	other[5] ^= 1
	if _, ok := DecodeGroupHeader(buf, &other, 3, 1024); ok {
		t.Fatal("valid in another store")
	}
	if _, ok := DecodeGroupHeader(buf, &testSecret, 4, 1024); ok {
		t.Fatal("valid in another segment")
	}
	if _, ok := DecodeGroupHeader(buf, &testSecret, 3, 2048); ok {
		t.Fatal("valid at another offset")
	}
	if _, ok := DecodeGroupHeader(buf[:GroupHeaderBytes-1], &testSecret, 3, 1024); ok {
		t.Fatal("valid although cut")
	}
	if VerifyGroup(buf[:h.Bytes-1], &h, &testSecret) {
		t.Fatal("verifies although cut")
	}
	if _, ok := DecodeGroupHeader(make([]byte, 4096), &testSecret, 3, 1024); ok {
		t.Fatal("zeros are a group")
	}
}

func TestSegmentHeader(t *testing.T) {
	want := SegmentHeader{Kind: SegmentGC, Align: 4096, ID: 41, Size: 128 << 20, StoreID: testStoreID}
	buf := bytes.Repeat([]byte{0xee}, 4096)
	want.Encode(buf)
	got, err := DecodeSegmentHeader(buf)
	if err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
	if !isZero(buf[segmentHeaderBytes:]) {
		t.Fatal("the rest of the block is not zero")
	}
	for i := range segmentHeaderBytes {
		buf[i] ^= 0x10
		if _, err := DecodeSegmentHeader(buf); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		buf[i] ^= 0x10
	}
	if _, err := DecodeSegmentHeader(buf[:segmentHeaderBytes-1]); !errors.Is(err, ErrCorrupt) {
		t.Fatal("cut header accepted")
	}
	le.PutUint16(buf[8:], 2)
	le.PutUint64(buf[40:], sum64(0, buf[:40]))
	if _, err := DecodeSegmentHeader(buf); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Fatalf("unknown version: %v", err)
	}
}

func TestSegmentNames(t *testing.T) {
	for _, c := range []struct {
		name string
		id   entry.SegmentID
		kind SegmentKind
		ok   bool
	}{
		{"000041.seg", 41, SegmentLog, true},
		{"000041.gc.seg", 41, SegmentGC, true},
		{"4294967295.seg", 4294967295, SegmentLog, true},
		{"41.seg", 0, 0, false},
		{"0000041.seg", 0, 0, false},
		{"000000.seg", 0, 0, false},
		{"+00041.seg", 0, 0, false},
		{"4294967296.seg", 0, 0, false},
		{"000041.seg.tmp", 0, 0, false},
		{"000041.gc.gc.seg", 0, 0, false},
		{".seg", 0, 0, false},
		{"", 0, 0, false},
	} {
		id, kind, ok := ParseSegmentName(c.name)
		if ok != c.ok || ok && (id != c.id || kind != c.kind || SegmentName(id, kind) != c.name) {
			t.Errorf("%q: %d %v %v", c.name, id, kind, ok)
		}
	}
}

func TestInflate(t *testing.T) {
	// Blocks by hand: length, then elements (literal tag = (n-1)<<2).
	for _, c := range []struct {
		name  string
		block []byte
		want  string // of the value, or of the error when it starts with "!"
	}{
		{name: "empty", block: []byte{0}, want: ""},
		{name: "literal", block: []byte{3, 2 << 2, 'a', 'b', 'c'}, want: "abc"},
		{name: "copy that overlaps", block: []byte{9, 0 << 2, 'x', 4<<2 | 1, 1}, want: "xxxxxxxxx"},
		{name: "copy of two-byte offset", block: []byte{6, 2 << 2, 'a', 'b', 'c', 2<<2 | 2, 3, 0}, want: "abcabc"},
		{name: "copy of four-byte offset", block: []byte{6, 2 << 2, 'a', 'b', 'c', 2<<2 | 3, 3, 0, 0, 0}, want: "abcabc"},
		{name: "literal with its length in a byte", block: []byte{2, 60 << 2, 1, 'h', 'i'}, want: "hi"},
		{name: "no length", block: nil, want: "!declares"},
		{name: "bomb", block: []byte{0xff, 0xff, 0xff, 0xff, 3, 0, 'x'}, want: "!declares"},
		{name: "copy from before the start", block: []byte{6, 0 << 2, 'x', 1<<2 | 1, 9}, want: "!corrupt input"},
		{name: "copy of offset 0", block: []byte{6, 0 << 2, 'x', 1<<2 | 1, 0}, want: "!corrupt input"},
		{name: "more than declared", block: []byte{2, 2 << 2, 'a', 'b', 'c'}, want: "!corrupt input"},
		{name: "less than declared", block: []byte{4, 2 << 2, 'a', 'b', 'c'}, want: "!corrupt input"},
		{name: "literal cut short", block: []byte{3, 2 << 2, 'a'}, want: "!corrupt input"},
		{name: "copy cut short", block: []byte{6, 0 << 2, 'x', 1<<2 | 2, 1}, want: "!corrupt input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Record{Compressed: true, Value: c.block}
			got, err := r.AppendValue([]byte("before"))
			if want, bad := strings.CutPrefix(c.want, "!"); bad {
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), want) || string(got) != "before" {
					t.Fatalf("%q, %v", got, err)
				}
			} else if err != nil || string(got) != "before"+c.want {
				t.Fatalf("%q, %v", got, err)
			}
		})
	}
}

func TestRecordPathsAllocateNothing(t *testing.T) {
	key, value := []byte("some-key"), bytes.Repeat([]byte("v"), 1000)
	buf := make([]byte, 0, 1<<16)
	h := GroupHeader{Segment: 1, Offset: 4096, First: 1}
	var rr RecordReader
	var r Record
	if n := testing.AllocsPerRun(100, func() {
		buf = buf[:GroupHeaderBytes]
		h.Count = 0
		for range 20 {
			start := len(buf)
			buf = AppendSet(buf, key, entry.Meta{Flags: 7}, value, true)
			FinishDocument(buf[start:], &testSecret, 1, 4096+uint32(start), h.First+entry.Seqno(h.Count))
			h.Count++
		}
		h.Bytes = uint32(len(buf))
		h.Encode(buf, &testSecret)
		d, ok := DecodeGroupHeader(buf, &testSecret, 1, 4096)
		if !ok || !VerifyGroup(buf, &d, &testSecret) {
			t.Fatal("not intact")
		}
		rr.Reset(buf[GroupHeaderBytes:], &d)
		for rr.Next(&r) {
		}
		if rr.Err() != nil {
			t.Fatal(rr.Err())
		}
	}); n != 0 {
		t.Fatalf("encode and decode a group: %v allocations, want 0", n)
	}
}

// FuzzRecord parses arbitrary records of a group, and what parses must encode
// to something that parses the same.
func FuzzRecord(f *testing.F) {
	b := &logBuilder{t: f, align: 512, segment: 1, off: 512, next: 1, docs: NewIndexBuilder(0)}
	for _, flags := range []uint16{0, GroupDelta} {
		b.docs = NewIndexBuilder(1)
		_, buf := b.encode(flags, []builtRecord{
			{key: []byte("k"), value: []byte("v"), meta: entry.Meta{Flags: 1, Expiry: 2, Datatype: 3, CAS: 4}},
			{key: bytes.Repeat([]byte("k"), 300), value: bytes.Repeat([]byte("v"), 300), separated: true, delta: 1},
			{kind: RecordDelete, key: []byte("k"), delta: 300},
			{kind: RecordClear, delta: 1},
		})
		h, _ := DecodeGroupHeader(buf, &testSecret, 1, 512)
		f.Add(buf[GroupHeaderBytes:h.Bytes], h.Count, flags)
	}
	f.Add([]byte{presenceLongValue, 1, 0xff, 0xff, 0xff, 0xff}, uint32(1), uint16(0))
	f.Fuzz(func(t *testing.T, payload []byte, count uint32, flags uint16) {
		h := GroupHeader{Segment: 1, Offset: 512, First: 1, Count: count % 1000, Flags: flags & GroupDelta}
		var rr RecordReader
		rr.Reset(payload, &h)
		var r, again Record
		last := entry.Seqno(0)
		for n := uint32(0); rr.Next(&r); n++ {
			if n >= h.Count || r.Seqno <= last || r.Seqno > entry.MaxSeqno {
				t.Fatalf("record %d of %d has seqno %d after %d", n, h.Count, r.Seqno, last)
			}
			last = r.Seqno
			var rec []byte
			switch {
			case r.Kind == RecordClear:
				rec = AppendClear(nil)
			case r.Kind == RecordDelete:
				rec = AppendDelete(nil, r.Key)
			case r.Compressed:
				rec = AppendCompressedSet(nil, r.Key, r.Meta, r.Value, r.Separated)
				if out, err := r.AppendValue(nil); err == nil && len(out) > MaxValueBytes {
					t.Fatalf("inflated to %d bytes", len(out))
				}
			default:
				rec = AppendSet(nil, r.Key, r.Meta, r.Value, r.Separated)
			}
			if m, reason := parseRecord(rec, &again); m != len(rec) || again.Kind != r.Kind || !bytes.Equal(again.Key, r.Key) ||
				!bytes.Equal(again.Value, r.Value) || again.Compressed != r.Compressed || again.Separated != r.Separated ||
				r.Kind == RecordSet && again.Meta != r.Meta {
				t.Fatalf("%+v encodes to %x, which is %+v %s", r, rec, again, reason)
			}
		}
		if err := rr.Err(); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

func BenchmarkAppendSet(b *testing.B) {
	for _, size := range []int{8, 100, 1000} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			key, value := []byte("0123456789abcdef"), make([]byte, size)
			buf := make([]byte, 0, 1<<20)
			b.ReportAllocs()
			b.SetBytes(int64(RecordBytes(len(key), entry.Meta{}, size, size > 255)))
			for b.Loop() {
				if cap(buf)-len(buf) < 2*size+100 {
					buf = buf[:0]
				}
				start := len(buf)
				buf = AppendSet(buf, key, entry.Meta{}, value, size > 255)
				if size > 255 {
					FinishDocument(buf[start:], &testSecret, 1, uint32(start), 1)
				}
			}
		})
	}
}

func BenchmarkEncodeGroup(b *testing.B) {
	for _, size := range []int{4 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			buf := make([]byte, size)
			h := GroupHeader{Segment: 1, Offset: 4096, First: 1, Bytes: uint32(size)}
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				h.Encode(buf, &testSecret)
			}
		})
	}
}

func BenchmarkReadRecords(b *testing.B) {
	buf := make([]byte, GroupHeaderBytes)
	h := GroupHeader{Segment: 1, Offset: 4096, First: 1}
	for len(buf) < 32<<10 {
		buf = AppendSet(buf, []byte("0123456789abcdef"), entry.Meta{}, make([]byte, 100), false)
		h.Count++
	}
	h.Bytes = uint32(len(buf))
	h.Encode(buf, &testSecret)
	var rr RecordReader
	var r Record
	b.ReportAllocs()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if !VerifyGroup(buf, &h, &testSecret) {
			b.Fatal("not intact")
		}
		rr.Reset(buf[GroupHeaderBytes:], &h)
		for rr.Next(&r) {
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(h.Count), "ns/record")
}
