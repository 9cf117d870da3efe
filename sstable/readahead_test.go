package sstable

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

// aheadTable is a table with some hundred data blocks of 4 KiB, and its blocks.
func aheadTable(t testing.TB) (b []byte, vs []entry.Version, refs []BlockRef) {
	t.Helper()
	vs = tableVersions(1, 20_000)
	fs := newFS(t)
	o := testOptions()
	o.BlockBytes = 4096
	writeTable(t, fs, "t.sst", false, o, vs)
	b = image(t, fs, "t.sst")
	refs = slices.DeleteFunc(blocksOf(t, openImage(t, &imageFile{data: b}, readerOptions())), func(r BlockRef) bool { return r.Kind != DataBlock })
	if len(refs) < 200 {
		t.Fatalf("%d data blocks", len(refs))
	}
	return b, vs, refs
}

// reads are the pages [from, to) of data that an iterator read.
type dataRead struct{ from, to int64 }

// watch notes the reads of data blocks.
func watch(f *imageFile, dataBytes uint64) *[]dataRead {
	var reads []dataRead
	f.onRead = func(_ int, p []byte, off int64) error {
		if off < int64(dataBytes) {
			reads = append(reads, dataRead{off, off + int64(len(p))})
		}
		return nil
	}
	return &reads
}

func TestReadAheadGrows(t *testing.T) {
	b, vs, _ := aheadTable(t)
	const kib = 1 << 10
	for _, c := range []struct {
		name  string
		ahead int
		steps int
		most  []int64 // length of each read, at most, and more than half of it
	}{
		{"one entry", 256 * kib, 1, []int64{4 * kib}},
		{"a short scan", 256 * kib, 60, []int64{4 * kib, 8 * kib}},
		{"a longer one", 256 * kib, 35 * 50, []int64{4 * kib, 8 * kib, 16 * kib, 32 * kib, 64 * kib, 128 * kib}},
		{"up to the limit", 32 * kib, 35 * 30, []int64{4 * kib, 8 * kib, 16 * kib, 32 * kib, 32 * kib, 32 * kib}},
		{"block by block", 0, 35 * 3, []int64{4 * kib, 4 * kib, 4 * kib}},
		{"less than a block", 100, 35 * 3, []int64{4 * kib, 4 * kib, 4 * kib}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &imageFile{data: b}
			r := openImage(t, f, readerOptions())
			reads := watch(f, r.foot.dataBytes)
			it := r.NewIter(IterOptions{ReadAheadBytes: c.ahead})
			defer it.Close()
			i := 5000
			ok := it.SeekGE(vs[i].Key, vs[i].Seqno)
			for range c.steps - 1 {
				i++
				ok = ok && it.Next()
			}
			if !ok || !sameVersion(it.Version(), &vs[i]) {
				t.Fatalf("after %d steps: %v, %v", c.steps, ok, it.Error())
			}
			if len(*reads) < len(c.most) {
				t.Fatalf("%d reads, want %d", len(*reads), len(c.most))
			}
			for j, rd := range *reads {
				want := c.most[min(j, len(c.most)-1)]
				// A block of 4 KiB may lie over the edge of a page.
				if n := rd.to - rd.from; n > want+4*kib || n < want/2 {
					t.Errorf("read %d has %d bytes, want %d", j, n, want)
				}
				if rd.from%pageBytes != 0 || rd.to%pageBytes != 0 {
					t.Errorf("read %d is not of whole pages: %v", j, rd)
				}
				if j > 0 && rd.from < (*reads)[j-1].to-pageBytes {
					t.Errorf("read %d, %v, repeats what read %d had: %v", j, rd, j-1, (*reads)[j-1])
				}
			}
		})
	}
}

// TestReadAheadEndsAtUpper: nothing is read that the bounds exclude.
func TestReadAheadEndsAtUpper(t *testing.T) {
	b, vs, refs := aheadTable(t)
	for _, upper := range []int{5001, 5040, 5100, 6000, 12_345, len(vs) - 1} {
		f := &imageFile{data: b}
		r := openImage(t, f, readerOptions())
		// The block of the first version at Upper: the separator in front of
		// it may leave room for one below Upper.
		var last BlockRef
		at := 0
		var buf Buffer
		for _, ref := range refs {
			data, err := r.load(ref, &buf)
			if err != nil {
				t.Fatal(err)
			}
			var blk block
			if err := blk.parse(data); err != nil {
				t.Fatal(err)
			}
			if at += blk.count; at > upper {
				last = ref
				break
			}
		}
		buf.Free()
		reads := watch(f, r.foot.dataBytes)
		it := r.NewIter(IterOptions{Lower: vs[5000].Key, Upper: vs[upper].Key, ReadAheadBytes: 1 << 20})
		checkScan(t, it, vs[5000:upper])
		it.Close()
		for _, rd := range *reads {
			if end := roundPage(int64(last.end())); rd.to > end {
				t.Errorf("upper %d: read %v, the block of Upper ends in the page before %d", upper, rd, end)
			}
		}
	}
}

// TestReadAheadAnswersLikeBlockByBlock: seeks and moves in any order over small
// blocks, wide ones and compressed ones.
func TestReadAheadAnswersLikeBlockByBlock(t *testing.T) {
	type table struct {
		r  *Reader
		vs []entry.Version
	}
	var tables []table
	for _, change := range []func(*WriterOptions){
		func(o *WriterOptions) { o.BlockBytes = 512 },
		func(o *WriterOptions) { o.BlockBytes = 16 << 10 },
		func(o *WriterOptions) { o.Compression = Snappy },
	} {
		o := testOptions()
		change(&o)
		vs := tableVersions(1, 5000)
		tables = append(tables, table{memTable(t, o, readerOptions(), vs), vs})
	}
	rapid.Check(t, func(t *rapid.T) {
		tb := rapid.SampledFrom(tables).Draw(t, "table")
		vs := tb.vs
		it := tb.r.NewIter(IterOptions{ReadAheadBytes: rapid.SampledFrom([]int{0, 100, 5000, 64 << 10, 1 << 30}).Draw(t, "ahead")})
		defer it.Close()
		for range rapid.IntRange(1, 10).Draw(t, "seeks") {
			i := rapid.IntRange(0, len(vs)-1).Draw(t, "seek")
			ok := it.SeekGE(vs[i].Key, vs[i].Seqno)
			for range rapid.IntRange(0, 600).Draw(t, "steps") {
				if !ok || !sameVersion(it.Version(), &vs[i]) {
					t.Fatalf("at %d: %v, %v", i, ok, it.Error())
				}
				if ok, i = it.Next(), i+1; i == len(vs) {
					if ok || it.Error() != nil {
						t.Fatalf("behind the end: %v, %v", ok, it.Error())
					}
					break
				}
			}
		}
		if n := it.ahead.buf.Bytes(); n > readAheadMax+2*pageBytes {
			t.Fatalf("%d bytes of buffers", n)
		}
	})
}

// TestS8_AClosedIteratorHoldsNothing: no buffer, and nothing that points into
// one, outlives Close.
func TestS8_AClosedIteratorHoldsNothing(t *testing.T) {
	b, vs, _ := aheadTable(t)
	r := openImage(t, &imageFile{data: b}, readerOptions())
	it := r.NewIter(IterOptions{ReadAheadBytes: 64 << 10})
	checkScan(t, it, vs)
	it.First()
	v := it.Version()
	for range 2 {
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := it.ahead.buf.Bytes() + it.ahead.one.Bytes(); n != 0 || it.index != nil || v.Key != nil || v.Value.Bytes != nil || it.data.b.data != nil {
		t.Fatalf("%d bytes, %d levels, %+v after Close", n, len(it.index), v)
	}
	if it.First() || it.Next() || it.SeekGE(vs[0].Key, 1) || it.Error() == nil {
		t.Fatal("a closed iterator moves")
	}
}

// BenchmarkReadAhead scans a table on disk, past the system's cache. short
// starts a new iterator for every hundred entries, about three blocks.
func BenchmarkReadAhead(b *testing.B) {
	_, vs, refs := aheadTable(b)
	name := filepath.Join(b.TempDir(), "t.sst")
	o := testOptions()
	o.BlockBytes = 4096
	direct := true
	if f, err := vfs.OS.Create(name+".probe", vfs.OpenOptions{Write: true, Direct: true}); err == nil {
		f.Close()
	} else if errors.Is(err, vfs.ErrDirectUnsupported) {
		direct = false
	} else {
		b.Fatal(err)
	}
	writeTable(b, vfs.OS, name, direct, o, vs)
	ro := readerOptions()
	ro.PinIndex = true
	r := openTable(b, vfs.OS, name, direct, ro)
	for _, ahead := range []int{0, 16 << 10, 64 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("scan/ahead=%dKiB", ahead>>10), func(b *testing.B) {
			for b.Loop() {
				it := r.NewIter(IterOptions{ReadAheadBytes: ahead})
				for ok := it.First(); ok; ok = it.Next() {
				}
				it.Close()
			}
			b.ReportMetric(float64(len(refs)*b.N)/b.Elapsed().Seconds(), "blocks/s")
		})
		b.Run(fmt.Sprintf("short/ahead=%dKiB", ahead>>10), func(b *testing.B) {
			i := 0
			for b.Loop() {
				i = (i + 7919) % (len(vs) - 100)
				it := r.NewIter(IterOptions{ReadAheadBytes: ahead})
				for ok, n := it.SeekGE(vs[i].Key, vs[i].Seqno), 0; ok && n < 100; ok, n = it.Next(), n+1 {
				}
				it.Close()
			}
		})
	}
}
