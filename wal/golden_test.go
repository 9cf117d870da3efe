package wal

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// writeGolden makes golden files that are missing. Files that exist are never
// changed: every later version must read them.
var writeGolden = flag.Bool("write-golden", false, "write golden files that do not exist yet")

// goldenLog builds two segments with every kind of record, group and footer.
func goldenLog(t testing.TB) *logBuilder {
	b := newMemBuilder(t, 512, 16384)
	b.roll(41)
	b.group(0,
		builtRecord{key: []byte("plain"), value: []byte("inline value")},
		builtRecord{key: []byte("k"), value: []byte{}},
		builtRecord{key: []byte("all meta"), value: []byte("v"), meta: entry.Meta{Flags: 0xdeadbeef, Expiry: 1800000000, Datatype: 1, CAS: 1<<63 + 5}},
		builtRecord{kind: RecordDelete, key: []byte("gone")},
	)
	b.group(0,
		builtRecord{key: []byte("separated"), value: bytes.Repeat([]byte("0123456789"), 40), separated: true},
		builtRecord{key: bytes.Repeat([]byte("long key "), 40), value: []byte("short"), separated: true, meta: entry.Meta{Flags: 7}},
		builtRecord{kind: RecordDelete, key: bytes.Repeat([]byte("long key "), 40)},
		builtRecord{kind: RecordClear},
		builtRecord{key: []byte("snappy"), value: []byte{100, 0 << 2, 'x', 62<<2 | 2, 1, 0, 35<<2 | 2, 1, 0}, separated: true, compressed: true},
	)
	b.group(GroupPromise)
	b.seal(true, true)
	b.roll(42)
	b.sets(1, 3)
	b.durable = b.last
	b.group(GroupSeal | GroupClose)
	return b
}

// goldenGC builds an output of garbage collection.
func goldenGC(t testing.TB) *logBuilder {
	b := newMemBuilder(t, 512, 4096)
	b.kind = SegmentGC
	b.roll(43)
	b.next, b.last = 1000, 999
	b.group(GroupDelta,
		builtRecord{key: []byte("a"), value: []byte("moved"), separated: true},
		builtRecord{key: []byte("b"), value: []byte("moved too"), separated: true, delta: 1},
		builtRecord{key: []byte("c"), value: bytes.Repeat([]byte("z"), 300), separated: true, delta: 70000},
	)
	return b
}

// describe reads the bytes of a segment as text.
func describe(t testing.TB, image []byte) string {
	var out strings.Builder
	head, err := DecodeSegmentHeader(image)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "segment %d kind %v align %d size %d store %x\n", head.ID, head.Kind, head.Align, head.Size, head.StoreID)
	off := head.Align
	for off < len(image) {
		h, ok := DecodeGroupHeader(image[off:], &testSecret, head.ID, uint32(off))
		if !ok || !VerifyGroup(image[off:], &h, &testSecret) {
			break
		}
		fmt.Fprintf(&out, "group at %d: %d bytes, %d records, flags %d, first %d, durable %d, prev %d:%d last %d\n",
			off, h.Bytes, h.Count, h.Flags, h.First, h.Durable, h.PrevSegment, h.PrevEnd, h.PrevLast)
		var rr RecordReader
		var r Record
		rr.Reset(image[off+GroupHeaderBytes:off+int(h.Bytes)], &h)
		for rr.Next(&r) {
			value, err := r.AppendValue(nil)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "  %d %v key %s value %s", r.Seqno, r.Kind, shortened(r.Key), shortened(value))
			if !r.Meta.IsZero() {
				fmt.Fprintf(&out, " meta %+v", r.Meta)
			}
			if r.Compressed {
				fmt.Fprintf(&out, " compressed %d", len(r.Value))
			}
			if a := r.Address; r.Separated {
				ok := verifyDocument(image[a.Offset:a.Offset+a.Length], &testSecret, a.Segment, a.Offset, r.Seqno)
				fmt.Fprintf(&out, " document %v sum right %v", a, ok)
			}
			out.WriteString("\n")
		}
		if rr.Err() != nil {
			t.Fatal(rr.Err())
		}
		off = int(h.End(head.Align))
	}
	fmt.Fprintf(&out, "groups end at %d of %d\n", off, len(image))
	foot, index, err := ReadFooter(&imageFile{image: image}, &testSecret, head.ID)
	if err != nil {
		fmt.Fprintf(&out, "%v\n", err)
		return out.String()
	}
	fmt.Fprintf(&out, "footer: end %d, records %d, seqnos %d..%d, durable %d\n", foot.End, foot.Records, foot.First, foot.Last, foot.Durable)
	for seqno, at := range index.All() {
		fmt.Fprintf(&out, "  index: %d at %d\n", seqno, at)
	}
	return out.String()
}

func shortened(b []byte) string {
	if len(b) > 40 {
		return fmt.Sprintf("%q..%d", b[:10], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// TestGoldenFiles: the encoders make the same bytes as ever, and the files of
// every version read as ever.
func TestGoldenFiles(t *testing.T) {
	log, gc := goldenLog(t), goldenGC(t)
	for _, c := range []struct {
		b  *logBuilder
		id entry.SegmentID
	}{{log, 41}, {log, 42}, {gc, 43}} {
		name := SegmentName(c.id, c.b.kind)
		size, err := c.b.fs.Size(c.b.name(c.id))
		c.b.ok(err)
		image := c.b.peek(c.id, 0, int(size))
		golden(t, name, image, image)
	}
	// Files of the first version, read by this one.
	files, err := filepath.Glob("testdata/format/v1/*.seg")
	if err != nil || len(files) < 3 {
		t.Fatalf("golden segments: %v, %v", files, err)
	}
	for _, name := range files {
		image, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, strings.TrimSuffix(filepath.Base(name), ".seg")+".txt", []byte(describe(t, image)), image)
	}
}

// TestGoldenLogScans replays the golden log as recovery would.
func TestGoldenLogScans(t *testing.T) {
	fs := memfs.New()
	b := newLogBuilder(t, fs, 512, 16384)
	for _, id := range []entry.SegmentID{41, 42} {
		image, err := os.ReadFile(filepath.Join("testdata/format/v1", SegmentName(id, SegmentLog)))
		b.ok(err)
		f, err := fs.Create(b.name(id), vfs.OpenOptions{Write: true})
		b.ok(err)
		_, err = f.WriteAt(image, 0)
		b.ok(err)
		b.ok(f.Close())
		b.segments = append(b.segments, ScanSegment{ID: id})
	}
	got := collect(t, b.options())
	if got.err != nil || !got.res.Clean || runs(got.seqnos) != "1-10" {
		t.Fatalf("seqnos %s, %+v, %v", runs(got.seqnos), got.res, got.err)
	}
}

// golden compares got with a golden file.
func golden(t *testing.T, name string, got, image []byte) {
	t.Helper()
	file := filepath.Join("testdata/format/v1", name)
	want, err := os.ReadFile(file)
	if os.IsNotExist(err) && *writeGolden {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what the first version wrote:\n%s", file, describe(t, image))
	}
}
