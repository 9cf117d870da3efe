package compaction

import (
	"fmt"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/iter"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/sstable"

	"github.com/cespare/xxhash/v2"
)

const testDir = "idx"

var testStore = [16]byte{1, 2, 3}

// failer is what testing.TB and rapid.T share.
type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// fill returns a memtable of ops; hashes and heights are set here.
func fill(tb failer, ops []memtable.Op) *memtable.Table {
	tb.Helper()
	n := 0
	rnd := uint64(7)
	for i := range ops {
		ops[i].Hash = xxhash.Sum64(ops[i].Key)
		ops[i].Height = memtable.RandomHeight(&rnd)
		n += ops[i].NodeBytes()
	}
	m, err := memtable.New(memtable.Options{Capacity: n + 4096})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	var s memtable.Scratch
	m.Prepare(len(ops))
	place, ok := m.Reserve(n)
	if !ok {
		tb.Fatalf("no room for %d bytes", n)
	}
	m.InsertBatch(place, ops, &s)
	return m
}

func set(key string, seqno int, value string) memtable.Op {
	return memtable.Op{VBucket: 1, Key: []byte(key), Seqno: entry.Seqno(seqno), Value: []byte(value), HasValue: true}
}

// doc is a separated document, its bytes at hand.
func doc(key string, seqno int, segment entry.SegmentID) memtable.Op {
	op := set(key, seqno, "a large value")
	op.Address = entry.Address{Segment: segment, Offset: uint32(seqno) * 4096, Length: 300}
	return op
}

func del(key string, seqno int) memtable.Op {
	return memtable.Op{VBucket: 1, Key: []byte(key), Seqno: entry.Seqno(seqno), Kind: entry.KindDelete}
}

func options(fs vfs.FS) FlushOptions {
	number := uint64(0)
	return FlushOptions{Output: Output{
		FS: fs, Dir: testDir, StoreID: testStore, KVStore: 3, BloomBits: 16, Hash: xxhash.Sum64,
		NextNumber: func() uint64 { number++; return number }, WriteBufferBytes: 4096,
	}}
}

func mkdir(tb failer, fs vfs.FS) {
	tb.Helper()
	if err := fs.MkdirAll(testDir); err != nil {
		tb.Fatalf("%v", err)
	}
}

func list(tb failer, fs vfs.FS) []string {
	tb.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return names
}

// show tells all that a table keeps of a version: not the bytes of a document
// that has an address.
func show(v *entry.Version) string {
	vb, key := entry.SplitKey(v.Key)
	value := fmt.Sprintf("%q", v.Value.Bytes)
	if a := v.Value.Address; !a.IsZero() {
		value = a.String()
	}
	return fmt.Sprintf("%d/%s#%d %s %s %+v", vb, key, v.Seqno, v.Kind, value, v.Meta)
}

func walk(tb failer, it entry.Iterator) []string {
	tb.Helper()
	var out []string
	for ok := it.First(); ok; ok = it.Next() {
		out = append(out, show(it.Version()))
	}
	if err := it.Error(); err != nil {
		tb.Fatalf("%v", err)
	}
	if err := it.Close(); err != nil {
		tb.Fatalf("%v", err)
	}
	return out
}

// openTables returns readers of ts; closing them is up to the caller.
func openTables(tb failer, fs vfs.FS, ts []Table) []*sstable.Reader {
	tb.Helper()
	var all []*sstable.Reader
	for _, t := range ts {
		f, err := fs.Open(t.Name, vfs.OpenOptions{})
		if err != nil {
			tb.Fatalf("%v", err)
		}
		r, err := sstable.Open(f, sstable.ReaderOptions{Number: t.Number, StoreID: testStore})
		if err != nil {
			tb.Fatalf("%v", err)
		}
		all = append(all, r)
	}
	return all
}

func closeAll(tb failer, rs []*sstable.Reader) {
	tb.Helper()
	for _, r := range rs {
		if err := r.Close(); err != nil {
			tb.Fatalf("%v", err)
		}
	}
}

func iters(rs []*sstable.Reader) []entry.Iterator {
	var all []entry.Iterator
	for _, r := range rs {
		all = append(all, r.NewIter(sstable.IterOptions{}))
	}
	return all
}

// contents are all versions in ts.
func contents(tb failer, fs vfs.FS, ts []Table) []string {
	tb.Helper()
	rs := openTables(tb, fs, ts)
	defer closeAll(tb, rs)
	return walk(tb, iter.NewMerge(iters(rs)...))
}

func equal(t testing.TB, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q\nwant %q", what, got, want)
	}
}
