package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
			out := ReadDocuments(reads, &testSecret, direct, []byte("before"))
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
			ReadDocuments(batch, &testSecret, true, nil)
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
	ReadDocuments(reads, &testSecret, true, nil)
	if reads[0].Err != nil || !bytes.Equal(reads[0].Value, values[0]) || DocumentRereads() != before+1 {
		t.Fatalf("%v after %d rereads", reads[0].Err, DocumentRereads()-before)
	}
	f.lies = 2
	ReadDocuments(reads, &testSecret, true, nil)
	if !errors.Is(reads[0].Err, ErrCorrupt) || f.lies != 0 {
		t.Fatalf("%v, %d lies left", reads[0].Err, f.lies)
	}
}

func TestReadDocumentPassesDeviceErrorsOn(t *testing.T) {
	f, reads, _ := documents(2, 500, 0)
	f.err = errors.New("input/output error")
	ReadDocuments(reads, &testSecret, true, nil)
	for _, r := range reads {
		if !errors.Is(r.Err, f.err) || errors.Is(r.Err, ErrCorrupt) {
			t.Fatal(r.Err)
		}
	}
}

func TestReadCompressedDocument(t *testing.T) {
	block := []byte{100, 0 << 2, 'x', 62<<2 | 2, 1, 0, 35<<2 | 2, 1, 0} // 1 + 63 + 36
	read := func(block []byte) ([]byte, error) {
		image := AppendCompressedSet(make([]byte, 5000), []byte("k"), entry.Meta{}, block, true)
		FinishDocument(image[5000:], &testSecret, 1, 5000, 7)
		a := entry.Address{Segment: 1, Offset: 5000, Length: uint32(len(image) - 5000)}
		value, _, err := ReadDocument(&imageFile{image: image}, a, 7, []byte("k"), &testSecret, true, nil)
		return value, err
	}
	if value, err := read(block); err != nil || string(value) != strings.Repeat("x", 100) {
		t.Fatalf("%q, %v", value, err)
	}
	block[0] = 99
	if _, err := read(block); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
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
