package manifest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzManifest gives the readers of this package bytes of three kinds: a whole
// file, edits wrapped in intact records (so that the fuzzer gets behind the
// checksums), and an intact file followed by anything. None may panic, or take
// memory by a length in the file; what opens must be a state that can be
// written and read again.
func FuzzManifest(f *testing.F) {
	f.Add(byte(0), []byte{})
	for _, number := range []uint64{7, 12, 20} {
		golden, err := os.ReadFile(filepath.Join(goldenDir, Name(number)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(0), golden)
		f.Add(byte(0), golden[:len(golden)-9])
		for off := int64(headerBytes); off < int64(len(golden)); {
			edit, _, ok := recordAt(golden, off, testSecret, number)
			if !ok {
				f.Fatalf("golden record at %d", off)
			}
			f.Add(byte(1), edit)
			f.Add(byte(2), golden[off:off+recordHeaderBytes+int64(len(edit))])
			off += recordHeaderBytes + int64(len(edit))
		}
	}
	tables := parseEdit(f, "add 2 log 65536; flushed 1 9; table 3 kv=1 run=1 keys=a..c seqnos=1..9 seg=2; dead 2 1,5,6; forward 1 2:1..9; next 9; expiry 1700000000")
	f.Add(byte(1), append([]byte{0}, tables.Append(nil)...))
	f.Add(byte(1), []byte("\x01\x0d\x02\x00\x00\x00\x01\x00\x10\x00\x00\x00\x00\x00\x00\x04\x04\x02\x00\x00\x00"))
	f.Add(byte(1), []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))

	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		file, synced := b, int64(headerBytes)
		switch kind % 3 {
		case 1:
			// Two records: the bytes, split by their first byte.
			file = appendHeader(nil, testSecret, 7)
			cut := 0
			if len(b) > 0 {
				cut = int(b[0]) % len(b)
				b = b[1:]
			}
			for _, part := range [][]byte{b[:cut], b[cut:]} {
				file = appendRaw(file, part)
			}
		case 2:
			start := parseEdit(t, "add 2 log 65536; add 3 gc 65536; next 9; replay 2 4096 1; flushed 1 8; table 4 kv=1 run=1 keys=a..c seqnos=1..7 seg=2; dead 2 3,4")
			file = appendHeader(nil, testSecret, 7)
			file = appendRecord(file, testSecret, 7, headerBytes, headerBytes, &start)
			synced = int64(len(file))
			file = append(file, b...)
		}
		r, err := replay("f", file, testSecret, 7, synced)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		if r.end > int64(len(file)) || r.end < synced {
			t.Fatalf("ends at %d of %d", r.end, len(file))
		}
		if err := Validate(r.state); err != nil {
			t.Fatal(err)
		}
		snapshot := r.state.edit()
		again := appendHeader(nil, testSecret, 7)
		again = appendRecord(again, testSecret, 7, headerBytes, headerBytes, &snapshot)
		r2, err := replay("f", again, testSecret, 7, int64(len(again)))
		if err != nil {
			t.Fatalf("the snapshot does not open: %v", err)
		}
		if dump(r2.state) != dump(r.state) {
			t.Fatalf("the snapshot makes\n%sof\n%s", dump(r2.state), dump(r.state))
		}
	})
}

// FuzzFormat gives FORMAT and CURRENT any bytes. What opens is written back
// unchanged: nothing in them is outside the checksum.
func FuzzFormat(f *testing.F) {
	for _, name := range []string{FormatName, CurrentName} {
		b, err := os.ReadFile(filepath.Join(goldenDir, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if f, err := decodeFormat(FormatName, b); err == nil {
			if !bytes.Equal(f.encode()[:14], b[:14]) || !bytes.Equal(f.encode()[16:56], b[16:56]) {
				t.Fatalf("%+v came from %x", f, b)
			}
		}
		if c, err := decodeCurrent(CurrentName, b, testSecret); err == nil && !bytes.Equal(c.encode(testSecret), b) {
			t.Fatalf("%+v came from %q", c, b)
		}
		if e, err := DecodeEdit(b); err == nil {
			again, err := DecodeEdit(e.Append(nil))
			if err != nil || !reflect.DeepEqual(again, e) {
				t.Fatalf("%+v came back as %+v: %v", e, again, err)
			}
		}
	})
}

// appendRaw appends an intact record of any bytes at the end of file.
func appendRaw(file, edit []byte) []byte {
	off := int64(len(file))
	file = append(file, make([]byte, recordHeaderBytes)...)
	file = append(file, edit...)
	rec := file[off:]
	le.PutUint32(rec[8:], uint32(len(edit)))
	le.PutUint32(rec[12:], uint32(off))
	le.PutUint64(rec, sum(seed(testSecret, 7, off), rec[8:]))
	return file
}
