package sstable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/golang/snappy"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// levelsTable is a table with two levels of index and a filter.
func levelsTable(t testing.TB) (b []byte, vs []entry.Version) {
	t.Helper()
	g := goldenTables()[1]
	fs := newFS(t)
	writeTable(t, fs, "t.sst", false, g.o, g.versions)
	return image(t, fs, "t.sst"), g.versions
}

func openImage(t testing.TB, f *imageFile, ro ReaderOptions) *Reader {
	t.Helper()
	if f.name == "" {
		f.name = "t.sst"
	}
	r, err := Open(f, ro)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// blocksOf lists the data and index blocks below the root.
func blocksOf(t testing.TB, r *Reader) (refs []BlockRef) {
	t.Helper()
	var buf Buffer
	defer buf.Free()
	if err := r.walkIndex(r.base, int(r.props.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
		refs = append(refs, ref)
		if level < 0 {
			return nil, nil
		}
		data, err := r.load(ref, &buf)
		return bytes.Clone(data), err
	}); err != nil {
		t.Fatal(err)
	}
	return refs
}

// TestS1_SumsCoverTheCompressionByteAtEveryRead: the byte is flipped in every
// block after the table was opened, and every way of reading notices.
func TestS1_SumsCoverTheCompressionByteAtEveryRead(t *testing.T) {
	b, vs := levelsTable(t)
	f := &imageFile{data: b}
	r := openImage(t, f, readerOptions())
	for _, ref := range blocksOf(t, r) {
		at := ref.end() - trailerBytes
		b[at] ^= 1
		if err := isDamage(r.Verify(), "t.sst", int64(at)); err != nil {
			t.Fatalf("Verify, %v: %v", ref, err)
		}
		for _, ahead := range []int{0, 4096, 64 << 10} {
			it := r.NewIter(IterOptions{ReadAheadBytes: ahead})
			for ok := it.First(); ok; ok = it.Next() {
			}
			if err := isDamage(it.Error(), "t.sst", int64(at)); err != nil {
				t.Fatalf("scan %d ahead, %v: %v", ahead, ref, err)
			}
			it.Close()
		}
		bad := 0
		var buf Buffer
		for i := range vs {
			var v entry.Version
			if _, err := r.Get(hashOf(vs[i].Key), vs[i].Key, vs[i].Seqno, &buf, &v); err != nil {
				if err := isDamage(err, "t.sst", int64(at)); err != nil {
					t.Fatal(err)
				}
				bad++
			}
		}
		buf.Free()
		if bad == 0 || bad == len(vs) {
			t.Fatalf("%v: %d of %d gets fail; those of the block should", ref, bad, len(vs))
		}
		b[at] ^= 1
	}
}

// TestS2_FootersOfOtherVersionsAreRefused: their sums are right.
func TestS2_FootersOfOtherVersionsAreRefused(t *testing.T) {
	b, _ := levelsTable(t)
	for _, c := range []struct {
		name   string
		change func(foot []byte)
		ro     func(*ReaderOptions)
		want   string
	}{
		{name: "magic of another kind of file", change: func(b []byte) { copy(b[120:], "fluxend\n") }, want: "bad magic"},
		{name: "version 2", change: func(b []byte) { b[110] = 2 }, want: "format version 2"},
		{name: "version 0", change: func(b []byte) { b[110] = 0 }, want: "format version 0"},
		{name: "unknown checksum", change: func(b []byte) { b[68] = 2 }, want: "kind of checksum 2"},
		{name: "unknown compression", change: func(b []byte) { b[69] = 2 }, want: "unknown compression 2"},
		{name: "another store", change: func(b []byte) { b[52]++ }, want: "store"},
		{name: "another number", ro: func(o *ReaderOptions) { o.Number++ }, want: "not table 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, ro := bytes.Clone(b), readerOptions()
			foot := b[len(b)-footerBytes:]
			if c.change != nil {
				c.change(foot)
				le.PutUint64(foot[112:], footerSum(testNumber, foot))
			}
			if c.ro != nil {
				c.ro(&ro)
			}
			_, err := Open(&imageFile{name: "t.sst", data: b}, ro)
			if e := isDamage(err, "t.sst", int64(len(b))); e != nil {
				t.Fatal(e)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v; want %q in it", err, c.want)
			}
		})
	}
}

// TestS3_FinishSyncsTheTable: what Finish returned for survives a power cut once
// the directory is synced, and a failed sync is not a table.
func TestS3_FinishSyncsTheTable(t *testing.T) {
	g := goldenTables()[1]
	fs := newFS(t)
	name := "idx/" + Name(testNumber)
	writeTable(t, fs, name, true, g.o, g.versions)
	if err := fs.SyncDir("idx"); err != nil {
		t.Fatal(err)
	}
	for _, d := range memfs.Damages() {
		r := openTable(t, fs.CrashCopy(1, d), name, true, readerOptions())
		if err := r.Verify(); err != nil {
			t.Fatalf("%v: %v", d, err)
		}
	}
}

// TestFailedWritesEndTheTable: whichever call fails, Finish does.
func TestFailedWritesEndTheTable(t *testing.T) {
	g := goldenTables()[1]
	g.o.WriteBufferBytes = 4096
	for _, c := range []struct {
		name string
		rule faultfs.Rule
		want error
	}{
		{"first write", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, From: 1, Fault: faultfs.EIO}, syscall.EIO},
		{"a later write", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, From: 4, Fault: faultfs.EIO}, syscall.EIO},
		{"disk full", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, From: 3, Fault: faultfs.ENOSPC}, vfs.ErrNoSpace},
		{"sync", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync}, From: 1, Fault: faultfs.EIO}, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := faultfs.Wrap(newFS(t))
			f, err := fs.Create("idx/t.sst", vfs.OpenOptions{Write: true, Direct: true})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w, err := NewWriter(f, g.o)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			fs.Add(c.rule)
			for i := range g.versions {
				if err = w.Add(&g.versions[i], 1); err != nil {
					break
				}
			}
			if err == nil {
				_, _, err = w.Finish()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "t.sst") {
				t.Fatalf("%v; want %v", err, c.want)
			}
			if _, _, again := w.Finish(); again == nil {
				t.Fatal("Finish succeeds after a failure")
			}
		})
	}
}

// TestS4_ForgedBoundsAreErrors: every field of a footer and of a block's head
// is set to extreme values under a right sum.
func TestS4_ForgedBoundsAreErrors(t *testing.T) {
	b, _ := levelsTable(t)
	extremes := []uint64{0, 1, 7, 127, 4095, 1<<31 - 1, 1<<32 - 1, 1 << 48, 1<<56 - 1, 1<<63 - 1, 1<<64 - 129, 1<<64 - 1}
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := 0; at < 110; at += step {
		for _, x := range extremes {
			for _, width := range []int{1, 2, 4, 8} {
				b := bytes.Clone(b)
				foot := b[len(b)-footerBytes:]
				var v [8]byte
				le.PutUint64(v[:], x)
				copy(foot[at:min(at+width, 110)], v[:])
				le.PutUint64(foot[112:], footerSum(testNumber, foot))
				r, err := Open(&imageFile{name: "t.sst", data: b}, readerOptions())
				if err != nil {
					if !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
					continue
				}
				r.Close()
			}
		}
	}
	for _, kind := range []BlockKind{DataBlock, IndexBlock} {
		for _, p := range payloads(t, kind) {
			for at := range min(len(p), 80) {
				for _, x := range extremes {
					p := append(bytes.Clone(p), make([]byte, tailBytes)...)
					var v [8]byte
					le.PutUint64(v[:], x)
					copy(p[at:len(p)-tailBytes], v[:1+at%8])
					walkBlock(p, kind == IndexBlock)
				}
			}
		}
	}
}

// walkBlock does with a payload what readers do with one that passes check.
func walkBlock(data []byte, index bool) {
	var c cursor
	if c.load(data) != nil || c.b.check(index) != nil {
		return
	}
	var v entry.Version
	for c.set(0); c.i < c.b.count; c.next() {
		c.version(&v)
	}
	c.b.seek([]byte("\x00\x01k"), 5)
}

// TestS4b_CountsAreBoundedBeforeMemoryIsTaken: forged counts of filter pieces and of
// lists in the properties.
func TestS4b_CountsAreBoundedBeforeMemoryIsTaken(t *testing.T) {
	b, _ := levelsTable(t)
	foot := b[len(b)-footerBytes:]
	le.PutUint32(foot[32:], 1<<32-1)
	le.PutUint64(foot[112:], footerSum(testNumber, foot))
	if _, err := Open(&imageFile{name: "t.sst", data: b}, readerOptions()); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if _, err := decodeProperties([]byte{tagNumber, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}); err == nil {
		t.Fatal("a field of 2^64-1 bytes passes")
	}
}

// TestS5_DeclaredPlainLengthIsBounded: five bytes ask for 4 GiB, under a
// right sum.
func TestS5_DeclaredPlainLengthIsBounded(t *testing.T) {
	for _, stored := range [][]byte{
		{0xff, 0xff, 0xff, 0xff, 0x0f},
		{0x81, 0x80, 0x80, 0x08, 0, 0}, // 16 MiB and one byte
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		snappy.Encode(nil, make([]byte, 20)), // shorter than a head
		{},
	} {
		var s sealedTable
		ref := s.block(append(stored, make([]byte, 30)...)[:max(len(stored), 1)], DataBlock, Snappy)
		r := &Reader{file: &imageFile{name: "t.sst", data: s.data}, foot: footer{number: testNumber, dataBytes: ref.end()}}
		var buf Buffer
		n := testing.AllocsPerRun(1, func() {
			if _, err := r.check(ref, s.data, &buf); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%x: %v", stored, err)
			}
		})
		if n > 20 || cap(buf.plain) > 1<<20 {
			t.Fatalf("%x: %v allocations, %d bytes", stored, n, cap(buf.plain))
		}
	}
}

// TestS6_VerifyComparesEntriesWithProperties: tables whose sums are all right, written by a writer
// that erred.
func TestS6_VerifyComparesEntriesWithProperties(t *testing.T) {
	vs := goldenTables()[1].versions
	for _, c := range []struct {
		name string
		lie  func(*Properties)
	}{
		{"an entry too many", func(p *Properties) { p.Entries++ }},
		{"a superseded entry too many", func(p *Properties) { p.Superseded++ }},
		{"a tombstone too few", func(p *Properties) { p.Tombstones-- }},
		{"key bytes", func(p *Properties) { p.KeyBytes++ }},
		{"value bytes", func(p *Properties) { p.ValueBytes-- }},
		{"lowest seqno", func(p *Properties) { p.LowestSeqno++ }},
		{"highest seqno", func(p *Properties) { p.HighestSeqno++ }},
		{"smallest key", func(p *Properties) { p.Smallest = p.Smallest[:3] }},
		{"largest key", func(p *Properties) { p.Largest = append(p.Largest, 0) }},
		{"a segment missing", func(p *Properties) { p.Segments = p.Segments[1:] }},
		{"bytes of a segment", func(p *Properties) { p.Segments[1].Bytes++ }},
		{"expiring entries", func(p *Properties) { p.Expiry[0].Entries++ }},
		{"blocks", func(p *Properties) { p.DataBlocks++ }},
		{"filter of other keys", nil},
		{"order of keys", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &imageFile{name: "t.sst"}
			fs := newFS(t)
			out, err := fs.Create("t.sst", vfs.OpenOptions{Write: true})
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			w, err := NewWriter(out, goldenTables()[1].o)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			for i := range vs {
				h := hashOf(vs[i].Key)
				if c.name == "filter of other keys" && i == 77 {
					h++
				}
				if c.name == "order of keys" && i == 300 {
					// Behind the writer's back.
					n := w.data.size.count
					k := w.data.key(n - 1)
					k[len(k)-1] = 0
				}
				if err := w.Add(&vs[i], h); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := w.Finish(); err != nil {
				t.Fatal(err)
			}
			f.data = image(t, fs, "t.sst")
			if c.lie != nil {
				f.data = rewriteProperties(t, f.data, c.lie)
			}
			r := openImage(t, f, readerOptions())
			if err := isDamage(r.Verify(), "t.sst", int64(len(f.data))); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// rewriteProperties changes the properties of a table and puts the sums right.
func rewriteProperties(t *testing.T, b []byte, change func(*Properties)) []byte {
	r := openImage(t, &imageFile{data: bytes.Clone(b)}, readerOptions())
	foot, p := r.foot, *r.props
	change(&p)
	s := sealedTable{data: b[:foot.properties.Offset], foot: foot}
	s.foot.properties = s.block(p.encode(nil), DataBlock, NoCompression)
	return s.finish()
}

// TestS7_AnErrorStopsTheIterator: it does not go on behind what it cannot read.
func TestS7_AnErrorStopsTheIterator(t *testing.T) {
	for _, ahead := range []int{0, 4096, 64 << 10} {
		t.Run(fmt.Sprintf("ahead=%d", ahead), func(t *testing.T) { failEveryRead(t, IterOptions{ReadAheadBytes: ahead}) })
	}
}

func failEveryRead(t *testing.T, o IterOptions) {
	b, vs := levelsTable(t)
	boom := errors.New("boom")
	for fail := 1; ; fail++ {
		f := &imageFile{name: "t.sst", data: b}
		r := openImage(t, f, readerOptions())
		f.reads.Store(0)
		f.onRead = func(n int, _ []byte, _ int64) error {
			if n == fail {
				return boom
			}
			return nil
		}
		it := r.NewIter(o)
		i := 0
		for ok := it.First(); ok; ok = it.Next() {
			if !sameVersion(it.Version(), &vs[i]) {
				t.Fatalf("entry %d: %s", i, show(it.Version()))
			}
			i++
		}
		if it.Error() == nil {
			if i != len(vs) || fail < 4 {
				t.Fatalf("read %d: ended quietly after %d entries", fail, i)
			}
			it.Close()
			return
		}
		if !errors.Is(it.Error(), boom) || errors.Is(it.Error(), ErrCorrupt) || !strings.Contains(it.Error().Error(), "t.sst") {
			t.Fatalf("read %d: %v", fail, it.Error())
		}
		for range 3 {
			if it.Next() {
				t.Fatal("goes on behind an error")
			}
		}
		if it.Error() == nil {
			t.Fatal("forgets its error")
		}
		// A new seek may try again.
		if !it.First() || !sameVersion(it.Version(), &vs[0]) {
			t.Fatalf("First after an error: %v", it.Error())
		}
		it.Close()
	}
}

// TestS8_ReadersShareATable: many goroutines, each with its own buffers; the race
// detector watches.
func TestS8_ReadersShareATable(t *testing.T) {
	b, vs := levelsTable(t)
	for _, pin := range []bool{false, true} {
		ro := readerOptions()
		ro.PinIndex, ro.PinFilter = pin, pin
		r := openImage(t, &imageFile{data: b}, ro)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				var buf Buffer
				defer buf.Free()
				for i := g; i < len(vs); i += 2 {
					var v entry.Version
					found, err := r.Get(hashOf(vs[i].Key), vs[i].Key, vs[i].Seqno, &buf, &v)
					if err != nil || !found || !sameVersion(&v, &vs[i]) {
						t.Errorf("get %s: %v %v", show(&vs[i]), found, err)
						return
					}
				}
				it := r.NewIter(IterOptions{ReadAheadBytes: 8192})
				defer it.Close()
				n := 0
				for ok := it.First(); ok; ok = it.Next() {
					if !sameVersion(it.Version(), &vs[n]) {
						t.Errorf("entry %d: %s", n, show(it.Version()))
						return
					}
					n++
				}
			}()
		}
		wg.Wait()
	}
}

// TestS8_TwoIteratorsKeepTheirOwnVersions: moving one leaves the other's version alone.
func TestS8_TwoIteratorsKeepTheirOwnVersions(t *testing.T) {
	b, vs := levelsTable(t)
	r := openImage(t, &imageFile{data: b}, readerOptions())
	x, y := r.NewIter(IterOptions{}), r.NewIter(IterOptions{ReadAheadBytes: 8192})
	defer x.Close()
	defer y.Close()
	x.First()
	for i := range vs {
		y.SeekGE(vs[len(vs)-1-i].Key, vs[len(vs)-1-i].Seqno)
		if !sameVersion(x.Version(), &vs[i]) || !sameVersion(y.Version(), &vs[len(vs)-1-i]) {
			t.Fatalf("entry %d: %s and %s", i, show(x.Version()), show(y.Version()))
		}
		x.Next()
	}
}

// TestS9_EveryFuzzerHasItsCorpus in the tree.
func TestS9_EveryFuzzerHasItsCorpus(t *testing.T) {
	source, err := os.ReadFile("fuzz_test.go")
	if err != nil {
		t.Fatal(err)
	}
	fuzzers := regexp.MustCompile(`func (Fuzz\w+)`).FindAllSubmatch(source, -1)
	if len(fuzzers) < 6 {
		t.Fatalf("%d fuzzers", len(fuzzers))
	}
	for _, m := range fuzzers {
		files, err := filepath.Glob(fmt.Sprintf("testdata/fuzz/%s/*", m[1]))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no corpus (%v)", m[1], err)
		}
	}
}
