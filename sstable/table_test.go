package sstable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

var testStore = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

const testNumber = 7

func testOptions() WriterOptions {
	return WriterOptions{Number: testNumber, StoreID: testStore, BloomBits: 10, WriteBufferBytes: 64 << 10}
}

func readerOptions() ReaderOptions { return ReaderOptions{Number: testNumber, StoreID: testStore} }

func hashOf(internal []byte) uint64 { return xxhash.Sum64(internal[entry.VBucketBytes:]) }

func key(vbucket uint16, user string) []byte { return entry.AppendKey(nil, vbucket, []byte(user)) }

func set(k string, seqno entry.Seqno, value string) entry.Version {
	return entry.Version{Key: key(1, k), Seqno: seqno, Value: entry.Value{Bytes: []byte(value), HasBytes: true}}
}

func del(k string, seqno entry.Seqno) entry.Version {
	return entry.Version{Key: key(1, k), Seqno: seqno, Kind: entry.KindDelete}
}

func at(k string, seqno entry.Seqno, segment entry.SegmentID, offset, length uint32) entry.Version {
	return entry.Version{Key: key(1, k), Seqno: seqno, Value: entry.Value{Address: entry.Address{Segment: segment, Offset: offset, Length: length}}}
}

func sortVersions(vs []entry.Version) []entry.Version {
	slices.SortFunc(vs, func(a, b entry.Version) int { return entry.Compare(a.Key, a.Seqno, b.Key, b.Seqno) })
	return slices.CompactFunc(vs, func(a, b entry.Version) bool { return entry.Compare(a.Key, a.Seqno, b.Key, b.Seqno) == 0 })
}

// writeTable makes a table of vs in fs.
func writeTable(t testing.TB, fs vfs.FS, name string, direct bool, o WriterOptions, vs []entry.Version) *Properties {
	t.Helper()
	f, err := fs.Create(name, vfs.OpenOptions{Write: true, Direct: direct})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f, o)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range vs {
		if err := w.Add(&vs[i], hashOf(vs[i].Key)); err != nil {
			t.Fatalf("add %d: %v", i, err)
		}
	}
	p, size, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Size(); err != nil || got != size || size%pageBytes != 0 {
		t.Fatalf("file of %d bytes (%v), Finish said %d", got, err, size)
	}
	return p
}

func openTable(t testing.TB, fs vfs.FS, name string, direct bool, o ReaderOptions) *Reader {
	t.Helper()
	r, err := tryOpen(fs, name, direct, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func tryOpen(fs vfs.FS, name string, direct bool, o ReaderOptions) (*Reader, error) {
	f, err := fs.Open(name, vfs.OpenOptions{Direct: direct})
	if err != nil {
		return nil, err
	}
	r, err := Open(f, o)
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// memTable makes a table in memory and opens it.
func memTable(t testing.TB, o WriterOptions, ro ReaderOptions, vs []entry.Version) *Reader {
	t.Helper()
	fs := newFS(t)
	writeTable(t, fs, "idx/"+Name(o.Number), true, o, vs)
	return openTable(t, fs, "idx/"+Name(o.Number), true, ro)
}

func newFS(t testing.TB) *memfs.FS {
	t.Helper()
	fs := memfs.New()
	if err := fs.MkdirAll("idx"); err != nil {
		t.Fatal(err)
	}
	return fs
}

// image returns the bytes of a file.
func image(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name, vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func sameVersion(a, b *entry.Version) bool {
	return bytes.Equal(a.Key, b.Key) && a.Seqno == b.Seqno && a.Kind == b.Kind && a.Meta == b.Meta &&
		a.Value.HasBytes == b.Value.HasBytes && bytes.Equal(a.Value.Bytes, b.Value.Bytes) && a.Value.Address == b.Value.Address
}

func show(v *entry.Version) string {
	vb, k := entry.SplitKey(v.Key)
	s := fmt.Sprintf("%d/%.40q#%d %v", vb, k, v.Seqno, v.Kind)
	if v.Value.HasBytes {
		s += fmt.Sprintf(" %.40q", v.Value.Bytes)
	}
	if !v.Value.Address.IsZero() {
		s += " " + v.Value.Address.String()
	}
	if !v.Meta.IsZero() {
		s += fmt.Sprintf(" %+v", v.Meta)
	}
	return s
}

// modelGet is what a table of vs must answer.
func modelGet(vs []entry.Version, key []byte, at entry.Seqno) *entry.Version {
	i, _ := slices.BinarySearchFunc(vs, key, func(v entry.Version, key []byte) int { return entry.Compare(v.Key, v.Seqno, key, at) })
	if i < len(vs) && bytes.Equal(vs[i].Key, key) {
		return &vs[i]
	}
	return nil
}

func modelSeek(vs []entry.Version, key []byte, at entry.Seqno) int {
	i, _ := slices.BinarySearchFunc(vs, key, func(v entry.Version, key []byte) int { return entry.Compare(v.Key, v.Seqno, key, at) })
	return i
}

func checkGet(t testing.TB, r *Reader, buf *Buffer, vs []entry.Version, k []byte, seqno entry.Seqno) {
	t.Helper()
	var v entry.Version
	found, err := r.Get(hashOf(k), k, seqno, buf, &v)
	if err != nil {
		t.Fatalf("get %q at %d: %v", k, seqno, err)
	}
	want := modelGet(vs, k, seqno)
	if found != (want != nil) {
		t.Fatalf("get %q at %d: found %v, want %v", k, seqno, found, want)
	}
	if found && !sameVersion(&v, want) {
		t.Fatalf("get %q at %d: %s, want %s", k, seqno, show(&v), show(want))
	}
}

// checkScan holds an iterator against vs.
func checkScan(t testing.TB, it entry.Iterator, vs []entry.Version) {
	t.Helper()
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		if i == len(vs) {
			t.Fatalf("%s behind the end", show(it.Version()))
		}
		if !sameVersion(it.Version(), &vs[i]) {
			t.Fatalf("entry %d: %s, want %s", i, show(it.Version()), show(&vs[i]))
		}
		i++
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
	if i != len(vs) {
		t.Fatalf("%d entries, want %d", i, len(vs))
	}
}

// keysOf makes n different sorted user keys.
func keysOf(shape string, n int, rnd *rand.Rand) []string {
	keys := make([]string, n)
	for i := range keys {
		switch shape {
		case "hex":
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], rnd.Uint64())
			keys[i] = fmt.Sprintf("%x", b[:6])
		case "decimal":
			keys[i] = fmt.Sprintf("%012d", i)
		default:
			keys[i] = fmt.Sprintf("k%0*d", 1+rnd.IntN(20), rnd.Uint32())
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
