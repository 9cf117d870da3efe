package sstable

import (
	"math/rand/v2"
	"testing"

	"fluxkv/internal/entry"
)

// interrogate asks the table in b everything its versions answer. Every
// answer is right or damage is reported; it returns the first report.
func interrogate(t *testing.T, b []byte, ro ReaderOptions, vs []entry.Version) error {
	t.Helper()
	r, err := Open(&imageFile{name: "t.sst", data: b}, ro)
	if err != nil {
		return err
	}
	defer r.Close()
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	var buf Buffer
	defer buf.Free()
	for i := range vs {
		var v entry.Version
		found, e := r.Get(hashOf(vs[i].Key), vs[i].Key, vs[i].Seqno, &buf, &v)
		if e == nil && (!found || !sameVersion(&v, &vs[i])) {
			t.Fatalf("get %s: found %v, %s", show(&vs[i]), found, show(&v))
		}
		keep(e)
	}
	it := r.NewIter(IterOptions{ReadAheadBytes: 8192})
	defer it.Close()
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		if i == len(vs) || !sameVersion(it.Version(), &vs[i]) {
			t.Fatalf("entry %d of a scan: %s", i, show(it.Version()))
		}
		i++
	}
	if it.Error() == nil && i != len(vs) {
		t.Fatalf("a scan ended quietly after %d of %d entries", i, len(vs))
	}
	keep(it.Error())
	e := r.Verify()
	if err != nil && e == nil {
		t.Fatalf("Verify finds nothing where a read reports %v", err)
	}
	keep(e)
	return err
}

// coveredBytes says which bytes of a table are under a sum: all but the zeros
// between its parts.
func coveredBytes(t *testing.T, b []byte) []bool {
	r, err := Open(&imageFile{name: "t.sst", data: b}, readerOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	covered := make([]bool, len(b))
	cover := func(off uint64, n int) {
		for i := range n {
			if covered[off+uint64(i)] {
				t.Fatalf("parts overlap at %d", off+uint64(i))
			}
			covered[off+uint64(i)] = true
		}
	}
	var buf Buffer
	defer buf.Free()
	if err := r.walkIndex(r.base, int(r.props.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
		cover(ref.Offset, int(ref.Length))
		if level < 0 {
			return nil, nil
		}
		data, err := r.load(ref, &buf)
		return append([]byte(nil), data...), err
	}); err != nil {
		t.Fatal(err)
	}
	cover(r.foot.root.Offset, int(r.foot.root.Length))
	cover(r.foot.properties.Offset, int(r.foot.properties.Length))
	cover(r.foot.filterOffset, int(r.foot.pieces)*pieceBytes)
	cover(r.foot.sums().Offset, int(r.foot.sums().Length))
	cover(uint64(len(b)-footerBytes), footerBytes)
	for i, c := range covered {
		if !c && b[i] != 0 {
			t.Fatalf("byte at %d is neither under a sum nor zero", i)
		}
	}
	return covered
}

// pieceRange is where the filter lies.
func pieceRange(t *testing.T, b []byte) [2]int {
	r := openImage(t, &imageFile{data: b}, readerOptions())
	from := int(r.foot.filterOffset)
	return [2]int{from, from + int(r.foot.pieces)*pieceBytes}
}

// TestEveryFlippedByteIsReportedOrHarmless flips each byte of small tables.
func TestEveryFlippedByteIsReportedOrHarmless(t *testing.T) {
	for _, g := range goldenTables() {
		if g.name == "large" || testing.Short() && g.name != "versions" {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			vs := g.versions
			if len(vs) > 60 {
				vs = vs[:60] // enough for two levels of an index and for groups
			}
			fs := newFS(t)
			writeTable(t, fs, "t.sst", false, g.o, vs)
			b := image(t, fs, "t.sst")
			rnd := rand.New(rand.NewPCG(9, uint64(len(b))))
			covered := coveredBytes(t, b)
			harmless, reported := 0, 0
			filter := pieceRange(t, b)
			for pos := range b {
				if testing.Short() && pos%5 != 0 {
					continue
				}
				if pos >= filter[0] && pos < filter[1] && pos%16 != 0 {
					continue // one sum over 4 KiB: a sample is enough
				}
				bit := byte(1) << rnd.IntN(8)
				b[pos] ^= bit
				ro := readerOptions()
				ro.PinIndex, ro.PinFilter = pos%2 == 0, pos%2 == 0
				err := interrogate(t, b, ro, vs)
				b[pos] ^= bit
				if covered[pos] != (err != nil) {
					t.Fatalf("flip of bit %#x at %d: under a sum %v, reported %v", bit, pos, covered[pos], err)
				}
				if err == nil {
					harmless++
					continue
				}
				reported++
				if err := isDamage(err, "t.sst", int64(pos)); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d bytes: %d flips reported, %d in padding", len(b), reported, harmless)
		})
	}
}

// TestCutTablesAreRefused cuts tables at every page and within one.
func TestCutTablesAreRefused(t *testing.T) {
	g := goldenTables()[1]
	fs := newFS(t)
	writeTable(t, fs, "t.sst", false, g.o, g.versions)
	b := image(t, fs, "t.sst")
	for n := 0; n < len(b); n += 512 {
		_, err := Open(&imageFile{name: "t.sst", data: b[:n]}, readerOptions())
		if err := isDamage(err, "t.sst", int64(n)); err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
}

// TestOtherTablesBytesAreRefused: a page of another table, intact in itself,
// does not pass.
func TestOtherTablesBytesAreRefused(t *testing.T) {
	g := goldenTables()[1]
	fs := newFS(t)
	writeTable(t, fs, "a.sst", false, g.o, g.versions)
	o := g.o
	o.Number++
	writeTable(t, fs, "b.sst", false, o, g.versions)
	a, b := image(t, fs, "a.sst"), image(t, fs, "b.sst")
	if len(a) != len(b) {
		t.Fatal("the tables differ in length")
	}
	for page := 0; page < len(a); page += pageBytes {
		mixed := append([]byte(nil), a...)
		copy(mixed[page:page+pageBytes], b[page:])
		if err := interrogate(t, mixed, readerOptions(), g.versions); err == nil && page < len(a)-pageBytes {
			// Only a filter piece can be the same in both.
			if _, err := Open(&imageFile{name: "a.sst", data: mixed}, readerOptions()); err != nil {
				t.Fatal(err)
			}
			var same = string(a[page:page+pageBytes]) == string(b[page:page+pageBytes])
			if !same {
				t.Fatalf("page at %d of another table went unnoticed", page)
			}
		}
	}
}
