package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fluxkv/internal/vfs"
)

// imageFile is a file in memory whose reads can be made to fail or lie.
type imageFile struct {
	vfs.File // nil: anything but the methods below is an error of the test
	image    []byte
	lies     int // so many reads have their first byte of a document changed
	lieAt    int64
	err      error
	aligned  bool
}

func (f *imageFile) Name() string { return "image" }

func (f *imageFile) Size() (int64, error) { return int64(len(f.image)), nil }

func (f *imageFile) ReadAt(p []byte, off int64) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.aligned && (off%vfs.BlockBytes != 0 || len(p)%vfs.BlockBytes != 0) {
		return 0, fmt.Errorf("unaligned read of %d at %d", len(p), off)
	}
	n := 0
	if off < int64(len(f.image)) {
		n = copy(p, f.image[off:])
	}
	if f.lies > 0 && f.lieAt >= off && f.lieAt < off+int64(n) {
		f.lies--
		p[f.lieAt-off] ^= 4
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// documents makes an image of a segment with n documents of rising size.
func documents(n, firstBytes, step int) (*imageFile, []DocRead, [][]byte) {
	image := make([]byte, 4096+GroupHeaderBytes)
	f := &imageFile{aligned: true}
	var reads []DocRead
	var values [][]byte
	for i := range n {
		key := fmt.Appendf(nil, "key-%d", i)
		value := bytes.Repeat([]byte{byte(i + 1)}, firstBytes+i*step)
		off := uint32(len(image))
		image = AppendSet(image, key, entry.Meta{Flags: uint32(i)}, value, true)
		seqno := entry.Seqno(100 + i)
		FinishDocument(image[off:], &testSecret, 5, off, seqno)
		reads = append(reads, DocRead{File: f, Seqno: seqno, Key: key,
			Address: entry.Address{Segment: 5, Offset: off, Length: uint32(len(image)) - off}})
		values = append(values, value)
	}
	f.image = image
	return f, reads, values
}

func TestReadDocuments(t *testing.T) {
	for _, direct := range []bool{true, false} {
		for _, c := range []struct{ n, first, step int }{{1, 0, 0}, {130, 256, 61}, {3, 300 << 10, 1}, {5, 5 << 20, 1 << 20}} {
			f, reads, values := documents(c.n, c.first, c.step)
			f.aligned = direct
			out := ReadDocuments(reads, testIO, &testSecret, direct, []byte("before"), math.MaxInt)
			if !bytes.HasPrefix(out, []byte("before")) {
				t.Fatal("dst was overwritten")
			}
			for i, r := range reads {
				if r.Err != nil || !bytes.Equal(r.Value, values[i]) || r.Meta.Flags != uint32(i) {
					t.Fatalf("%+v direct %v: document %d: %d bytes, %v, %v", c, direct, i, len(r.Value), r.Meta, r.Err)
				}
			}
			r := reads[c.n-1]
			value, meta, err := ReadDocument(f, r.Address, r.Seqno, r.Key, &testSecret, direct, []byte("before"))
			if err != nil || string(value) != "before"+string(values[c.n-1]) || meta != r.Meta {
				t.Fatalf("%+v: %d bytes, %v, %v", c, len(value), meta, err)
			}
		}
	}
}

func TestReadDocumentRefusesWhatIsNotIt(t *testing.T) {
	f, reads, _ := documents(3, 500, 100)
	good := reads[1]
	for _, c := range []struct {
		name string
		edit func(*DocRead)
		want string
	}{
		{"another seqno", func(r *DocRead) { r.Seqno++ }, "wrong sum"},
		{"another key", func(r *DocRead) { r.Key = []byte("key-2") }, "another key"},
		{"another segment", func(r *DocRead) { r.Address.Segment = 6 }, "wrong sum"},
		{"one byte off", func(r *DocRead) { r.Address.Offset++ }, "wrong sum"},
		{"too short", func(r *DocRead) { r.Address.Length-- }, "wrong sum"},
		{"too long", func(r *DocRead) { r.Address.Length++ }, "wrong sum"},
		{"shorter than any document", func(r *DocRead) { r.Address.Length = 11 }, "no document can be"},
		{"longer than any document", func(r *DocRead) { r.Address.Length = 1<<32 - 1 }, "no document can be"},
		{"no offset", func(r *DocRead) { r.Address.Offset = 0 }, "no document can be"},
		{"behind the end of the file", func(r *DocRead) { r.Address.Offset = 1 << 20 }, "file ends"},
		{"over the end of the file", func(r *DocRead) { r.Address.Offset = uint32(len(f.image)) - 100 }, "file ends"},
	} {
		t.Run(c.name, func(t *testing.T) {
			batch := []DocRead{good, good, good}
			c.edit(&batch[1])
			ReadDocuments(batch, testIO, &testSecret, true, nil, math.MaxInt)
			if batch[0].Err != nil || batch[2].Err != nil || len(batch[0].Value) != 600 {
				t.Fatalf("the other documents: %v, %v", batch[0].Err, batch[2].Err)
			}
			var corrupt *CorruptError
			if err := batch[1].Err; !errors.As(err, &corrupt) || corrupt.File != "image" || !strings.Contains(err.Error(), c.want) || batch[1].Value != nil {
				t.Fatalf("%v, want %q", err, c.want)
			}
			dst, _, err := ReadDocument(f, batch[1].Address, batch[1].Seqno, batch[1].Key, &testSecret, true, []byte("x"))
			if !errors.Is(err, ErrCorrupt) || string(dst) != "x" {
				t.Fatalf("%q, %v", dst, err)
			}
		})
	}
}

// TestF5_ReadIsRepeatedOnce: a checksum that fails once was a flip in memory,
// twice it is damage.
func TestF5_ReadIsRepeatedOnce(t *testing.T) {
	f, reads, values := documents(1, 500, 0)
	f.lieAt = int64(reads[0].Address.Offset) + 20
	before := DocumentRereads()
	f.lies = 1
	ReadDocuments(reads, testIO, &testSecret, true, nil, math.MaxInt)
	if reads[0].Err != nil || !bytes.Equal(reads[0].Value, values[0]) || DocumentRereads() != before+1 {
		t.Fatalf("%v after %d rereads", reads[0].Err, DocumentRereads()-before)
	}
	f.lies = 2
	ReadDocuments(reads, testIO, &testSecret, true, nil, math.MaxInt)
	if !errors.Is(reads[0].Err, ErrCorrupt) || f.lies != 0 {
		t.Fatalf("%v, %d lies left", reads[0].Err, f.lies)
	}
}

func TestReadDocumentPassesDeviceErrorsOn(t *testing.T) {
	f, reads, _ := documents(2, 500, 0)
	f.err = errors.New("input/output error")
	ReadDocuments(reads, testIO, &testSecret, true, nil, math.MaxInt)
	for _, r := range reads {
		if !errors.Is(r.Err, f.err) || errors.Is(r.Err, ErrCorrupt) {
			t.Fatal(r.Err)
		}
	}
}

// compressedDocument returns a file with one document whose value is stored as
// block.
func compressedDocument(block []byte) (*imageFile, DocRead) {
	image := AppendCompressedSet(make([]byte, 5000), []byte("k"), entry.Meta{}, block, true)
	FinishDocument(image[5000:], &testSecret, 1, 5000, 7)
	f := &imageFile{image: image}
	a := entry.Address{Segment: 1, Offset: 5000, Length: uint32(len(image) - 5000)}
	return f, DocRead{File: f, Address: a, Seqno: 7, Key: []byte("k")}
}

// TestReadCompressedDocument: a block that is not one is damage at its record,
// although its sum is right.
func TestReadCompressedDocument(t *testing.T) {
	block := []byte{100, 0 << 2, 'x', 62<<2 | 2, 1, 0, 35<<2 | 2, 1, 0} // 1 + 63 + 36
	_, r := compressedDocument(block)
	value, _, err := ReadDocument(r.File, r.Address, r.Seqno, r.Key, &testSecret, true, []byte("before"))
	if err != nil || string(value) != "before"+strings.Repeat("x", 100) {
		t.Fatalf("%q, %v", value, err)
	}
	for _, bad := range [][]byte{
		append([]byte{99}, block[1:]...),              // declares less than there is
		{0xff, 0xff, 0xff, 0xff, 3, 0, 'x'},           // a bomb
		append([]byte{0x80, 0x80, 0x80, 1}, block...), // 2 MiB in 13 bytes
		nil,
	} {
		_, r := compressedDocument(bad)
		var corrupt *CorruptError
		value, _, err := ReadDocument(r.File, r.Address, r.Seqno, r.Key, &testSecret, true, []byte("before"))
		if !errors.As(err, &corrupt) || corrupt.File != "image" || corrupt.Offset != 5000 || string(value) != "before" {
			t.Errorf("block %x: %q, %v", bad, value, err)
		}
		if cap(value) > 4096 {
			t.Errorf("block %x took %d bytes", bad, cap(value))
		}
	}
}

// TestReadDocumentsStopsAtItsLimit: the values of a batch take no more than they
// may, however short the records are; the first one is always read.
func TestReadDocumentsStopsAtItsLimit(t *testing.T) {
	const n, size = 6, 1000
	f := &imageFile{image: make([]byte, 4096)}
	var reads []DocRead
	for i := range n {
		off := uint32(len(f.image))
		key := []byte{byte('a' + i)}
		if i == 4 { // shorter, and not compressed: it must not slip in
			f.image = AppendSet(f.image, key, entry.Meta{}, []byte("tiny"), true)
		} else {
			block, ok := AppendBlock(nil, bytes.Repeat(key, size))
			if !ok {
				t.Fatal("not compressed")
			}
			f.image = AppendCompressedSet(f.image, key, entry.Meta{}, block, true)
		}
		FinishDocument(f.image[off:], &testSecret, 1, off, entry.Seqno(i+1))
		a := entry.Address{Segment: 1, Offset: off, Length: uint32(len(f.image)) - off}
		reads = append(reads, DocRead{File: f, Address: a, Seqno: entry.Seqno(i + 1), Key: key})
	}
	for _, c := range []struct{ limit, want int }{
		{-5, 1}, {0, 1}, {size - 1, 1}, {size, 1}, {2*size - 1, 1}, {2 * size, 2}, {3 * size, 3},
		{4*size + 3, 4}, {4*size + 4, 5}, {5*size + 4, 6}, {math.MaxInt, 6},
	} {
		out := ReadDocuments(reads, testIO, &testSecret, false, nil, c.limit)
		for i, r := range reads {
			switch {
			case i >= c.want:
				if r.Err != ErrReadLimit || r.Value != nil {
					t.Errorf("limit %d: document %d: %d bytes, %v", c.limit, i, len(r.Value), r.Err)
				}
			case r.Err != nil || r.Value[0] != byte('a'+i) && i != 4:
				t.Errorf("limit %d: document %d: %v", c.limit, i, r.Err)
			}
		}
		if c.want > 1 && len(out) > c.limit {
			t.Errorf("limit %d: %d bytes", c.limit, len(out))
		}
	}
	// One of the later rounds reaches it, too.
	reads = reads[:2]
	block, _ := AppendBlock(nil, make([]byte, 40<<20))
	f.image, reads = f.image[:4096], reads[:0]
	for i := range 12 {
		off := uint32(len(f.image))
		f.image = AppendCompressedSet(f.image, []byte("k"), entry.Meta{}, block, true)
		FinishDocument(f.image[off:], &testSecret, 1, off, entry.Seqno(i+1))
		a := entry.Address{Segment: 1, Offset: off, Length: uint32(len(f.image)) - off}
		reads = append(reads, DocRead{File: f, Address: a, Seqno: entry.Seqno(i + 1), Key: []byte("k")})
	}
	if int(reads[0].Address.Length)*len(reads) <= docRoundBytesMax {
		t.Fatal("one round reads all")
	}
	if out := ReadDocuments(reads, testIO, &testSecret, false, nil, 50<<20); len(out) != 40<<20 {
		t.Errorf("%d bytes", len(out))
	}
	for i, r := range reads {
		if (i == 0) != (r.Err == nil) || i > 0 && r.Err != ErrReadLimit {
			t.Errorf("document %d: %v", i, r.Err)
		}
	}
}

// TestAppendBlock: what is worth it is kept, and comes back.
func TestAppendBlock(t *testing.T) {
	noise := make([]byte, 100<<10)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	half := func(n int) []byte {
		return append(bytes.Repeat([]byte("0123456789abcdef"), n/32), noise[:n-n/32*16]...)
	}
	for _, c := range []struct {
		name  string
		value []byte
		want  bool
	}{
		{"empty", nil, false},
		{"too short", bytes.Repeat([]byte("x"), compressBytesMin-1), false},
		{"just long enough", bytes.Repeat([]byte("x"), compressBytesMin), true},
		{"noise", noise, false},
		{"half noise", half(100 << 10), true},
		{"saves 11 %", append(bytes.Repeat([]byte("x"), 1200), noise[:10000-1200]...), false},
		{"saves 13 %", append(bytes.Repeat([]byte("x"), 1480), noise[:10000-1480]...), true},
		{"long", bytes.Repeat([]byte("a document, "), 1<<18), true},
		{"the longest", make([]byte, MaxInflatedBytes), true},
		{"longer than that", make([]byte, MaxInflatedBytes+1), false},
	} {
		block, ok := AppendBlock([]byte("before"), c.value)
		if ok != c.want || !bytes.HasPrefix(block, []byte("before")) || !ok && len(block) != len("before") {
			t.Errorf("%s: kept %v, %d bytes of %d", c.name, ok, len(block), len(c.value))
			continue
		}
		if !ok {
			continue
		}
		block = block[len("before"):]
		if 100*len(block) > 88*len(c.value) {
			t.Errorf("%s: %d bytes of %d", c.name, len(block), len(c.value))
		}
		r := Record{Compressed: true, Value: block}
		got, err := r.AppendValue(nil)
		if n, _ := r.valueBytes(); err != nil || !bytes.Equal(got, c.value) || n != len(c.value) {
			t.Errorf("%s: %d bytes, %v", c.name, len(got), err)
		}
	}
}

// FuzzCompressedDocument reads a document that is stored as an arbitrary block
// under a right sum, and one whose value is compressed.
func FuzzCompressedDocument(f *testing.F) {
	block, _ := AppendBlock(nil, bytes.Repeat([]byte("0123456789"), 100))
	f.Add(block)
	f.Add([]byte{100, 0 << 2, 'x', 62<<2 | 2, 1, 0, 35<<2 | 2, 1, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 3, 0, 'x'})
	f.Add(bytes.Repeat([]byte("a document of no great length, "), 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			return
		}
		_, r := compressedDocument(data)
		value, _, err := ReadDocument(r.File, r.Address, r.Seqno, r.Key, &testSecret, true, nil)
		var corrupt *CorruptError
		if err != nil && (!errors.As(err, &corrupt) || corrupt.File != "image" || corrupt.Offset != 5000 || len(value) != 0) {
			t.Fatalf("%d bytes, %v", len(value), err)
		}
		// Growing takes up to twice what is asked for.
		if cap(value) > 2*snappyExpansionMax*len(data)+64 {
			t.Fatalf("took %d bytes for a block of %d", cap(value), len(data))
		}
		block, ok := AppendBlock(nil, data)
		if !ok {
			return
		}
		_, r = compressedDocument(block)
		if value, _, err = ReadDocument(r.File, r.Address, r.Seqno, r.Key, &testSecret, true, nil); err != nil || !bytes.Equal(value, data) {
			t.Fatalf("%d bytes come back as %d, %v", len(data), len(value), err)
		}
	})
}

func TestReadDocumentAllocatesNothing(t *testing.T) {
	f, reads, _ := documents(1, 1000, 0)
	dst := make([]byte, 0, 64<<10)
	r := reads[0]
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := ReadDocument(f, r.Address, r.Seqno, r.Key, &testSecret, true, dst); err != nil {
			t.Fatal(err)
		}
	}); n != 0 && !invariants.Enabled { // race builds drop pooled things at random
		t.Fatalf("%v allocations, want 0", n)
	}
	value := bytes.Repeat([]byte("0123456789"), 1000)
	scratch := make([]byte, 0, 20<<10)
	block, ok := AppendBlock(scratch, value)
	if !ok || len(block) > 2000 {
		t.Fatalf("%d bytes", len(block))
	}
	_, r = compressedDocument(block)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := AppendBlock(scratch, value); !ok {
			t.Fatal("not compressed")
		}
		if got, _, err := ReadDocument(r.File, r.Address, r.Seqno, r.Key, &testSecret, true, dst); err != nil || len(got) != len(value) {
			t.Fatal(len(got), err)
		}
	}); n != 0 && !invariants.Enabled {
		t.Fatalf("compressed: %v allocations, want 0", n)
	}
}

func BenchmarkReadDocument(b *testing.B) {
	f, reads, _ := documents(1, 1000, 0)
	dst := make([]byte, 0, 64<<10)
	r := reads[0]
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ReadDocument(f, r.Address, r.Seqno, r.Key, &testSecret, true, dst); err != nil {
			b.Fatal(err)
		}
	}
}
