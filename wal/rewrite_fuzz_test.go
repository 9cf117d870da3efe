package wal

import (
	"bytes"
	"errors"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs/memfs"
)

// fuzzVictim makes a segment of one group of arbitrary records. The sums are
// right, those of documents too, as far as the records can be read: what is left
// to find is what a sum does not.
func fuzzVictim(b *logBuilder, id entry.SegmentID, payload []byte, count uint32, first uint64) RewriteVictim {
	b.roll(id)
	h := GroupHeader{
		Bytes: uint32(GroupHeaderBytes + len(payload)), Count: count % uint32(1+len(payload)/recordBytesMin),
		Segment: id, Offset: 512, First: 1 + entry.Seqno(first)%(entry.MaxSeqno-1<<20),
	}
	if b.kind == SegmentGC {
		h.Flags = GroupDelta
	}
	buf := append(make([]byte, GroupHeaderBytes), payload...)
	buf = append(buf, make([]byte, h.PaddedBytes(512)-len(buf))...)
	var rr RecordReader
	var r Record
	for rr.Reset(buf[GroupHeaderBytes:h.Bytes], &h); rr.Next(&r); {
		if r.Separated {
			at := r.Address.Offset - h.Offset
			FinishDocument(buf[at:at+r.Address.Length], &testSecret, id, r.Address.Offset, r.Seqno)
		}
	}
	h.Encode(buf, &testSecret)
	_, err := b.file.WriteAt(buf, 512)
	b.ok(err)
	b.closeFile()
	return RewriteVictim{ID: id, Kind: b.kind, End: h.End(512)}
}

// FuzzRewrite rewrites two segments of arbitrary records: either it says what is
// wrong and leaves nothing, or the output holds what was kept.
func FuzzRewrite(f *testing.F) {
	b := &logBuilder{t: f, align: 512, segment: 1, off: 512, next: 1, docs: NewIndexBuilder(0)}
	records := []builtRecord{
		{key: []byte("k"), value: []byte("v"), meta: entry.Meta{Flags: 1, Expiry: 2, Datatype: 3, CAS: 4}, separated: true},
		{key: bytes.Repeat([]byte("k"), 300), value: bytes.Repeat([]byte("v"), 300), separated: true, delta: 1},
		{kind: RecordDelete, key: []byte("k"), delta: 300},
		{kind: RecordClear, delta: 1},
		{key: []byte("k"), value: []byte("v"), separated: true, compressed: true, delta: 1 << 40},
	}
	var payloads [2][]byte
	for i, flags := range []uint16{0, GroupDelta} {
		b.docs = NewIndexBuilder(1)
		g, buf := b.encode(flags, records)
		payloads[i] = buf[GroupHeaderBytes:g.Bytes]
	}
	f.Add(payloads[0], uint32(5), uint64(0), payloads[1], uint32(5), uint64(2))
	f.Add(payloads[0], uint32(5), uint64(10), payloads[1], uint32(5), uint64(9))
	f.Add(payloads[0], uint32(4), uint64(10), []byte{}, uint32(0), uint64(9))
	f.Add([]byte{}, uint32(0), uint64(1<<60), payloads[1], uint32(5), uint64(entry.MaxSeqno))
	f.Fuzz(func(t *testing.T, log []byte, logCount uint32, logFirst uint64, gc []byte, gcCount uint32, gcFirst uint64) {
		if len(log) > 1<<16 || len(gc) > 1<<16 {
			return
		}
		fs := memfs.New()
		b := newLogBuilder(t, fs, 512, 1<<17)
		victims := []RewriteVictim{fuzzVictim(b, 1, log, logCount, logFirst)}
		b.kind = SegmentGC
		victims = append(victims, fuzzVictim(b, 2, gc, gcCount, gcFirst))
		r := newRewriteBench(t, fs)
		type doc struct {
			seqno      entry.Seqno
			key, value []byte
			meta       entry.Meta
		}
		var kept []doc
		res, err := rewriteSegments(t.Context(), r.options(512, 4096), r.sizes, victims, func(rec *Record) bool {
			if rec.Seqno%5 == 0 {
				return false
			}
			kept = append(kept, doc{rec.Seqno, bytes.Clone(rec.Key), bytes.Clone(rec.Value), rec.Meta})
			return true
		})
		if err != nil {
			names, lerr := fs.List("db/" + SegmentsDir)
			if !errors.Is(err, ErrCorrupt) || lerr != nil || len(names) != 2 {
				t.Fatalf("%v, left %v, %v", err, names, lerr)
			}
			return
		}
		for i := range res.Outputs {
			out := &res.Outputs[i]
			var rr RecordReader
			var rec Record
			for at := uint32(512); at < out.End; {
				buf := make([]byte, out.End-at)
				if _, err := out.Segment.File.ReadAt(buf, int64(at)); err != nil {
					t.Fatal(err)
				}
				h, ok := DecodeGroupHeader(buf, &testSecret, out.ID, at)
				if !ok || !VerifyGroup(buf, &h, &testSecret) {
					t.Fatalf("no group at %d", at)
				}
				for rr.Reset(buf[GroupHeaderBytes:h.Bytes], &h); rr.Next(&rec); kept = kept[1:] {
					raw := buf[rec.Address.Offset-at:][:rec.Address.Length]
					if k := kept[0]; rec.Seqno != k.seqno || !bytes.Equal(rec.Key, k.key) || !bytes.Equal(rec.Value, k.value) || rec.Meta != k.meta ||
						!verifyDocument(raw, &testSecret, out.ID, rec.Address.Offset, rec.Seqno) {
						t.Fatalf("%+v, want %+v", rec, k)
					}
				}
				if err := rr.Err(); err != nil {
					t.Fatal(err)
				}
				at = h.End(512)
			}
		}
		if len(kept) > 0 {
			t.Fatalf("%d documents are missing", len(kept))
		}
		if err := res.Discard(fs); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRewriteImage rewrites arbitrary bytes behind a right header.
func FuzzRewriteImage(f *testing.F) {
	for _, kind := range []SegmentKind{SegmentLog, SegmentGC} {
		b := newMemBuilder(f, 512, 8192)
		b.kind = kind
		b.roll(1)
		flags := uint16(0)
		if kind == SegmentGC {
			flags = GroupDelta
		}
		for range 3 {
			b.group(flags, builtRecord{key: []byte("k"), value: bytes.Repeat([]byte("v"), 300), separated: true})
		}
		f.Add(b.peek(1, 512, int(b.off)-512), kind == SegmentGC)
		b.closeFile()
	}
	f.Fuzz(func(t *testing.T, image []byte, gc bool) {
		if len(image) > 1<<16 {
			return
		}
		fs := memfs.New()
		b := newLogBuilder(t, fs, 512, 1<<17)
		if gc {
			b.kind = SegmentGC
		}
		b.roll(1)
		image = append(image, make([]byte, (512-len(image)%512)%512)...)
		if len(image) > 0 {
			_, err := b.file.WriteAt(image, 512)
			b.ok(err)
		}
		b.closeFile()
		r := newRewriteBench(t, fs)
		o := r.options(512, 4096)
		victims := []RewriteVictim{{ID: 1, Kind: b.kind, End: uint32(512 + len(image))}}
		res, err := rewriteSegments(t.Context(), o, r.sizes, victims, keepAll)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if err := res.Discard(fs); err != nil {
			t.Fatal(err)
		}
		if names, err := fs.List("db/" + SegmentsDir); err != nil || len(names) != 1 {
			t.Fatalf("left %v, %v", names, err)
		}
	})
}
