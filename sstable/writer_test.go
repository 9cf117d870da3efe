package sstable

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

func TestNames(t *testing.T) {
	for _, c := range []struct {
		base   string
		number uint64
		ok     bool
	}{
		{"000187.sst", 187, true}, {"1000000.sst", 1000000, true}, {"000000.sst", 0, false}, {"187.sst", 0, false},
		{"000187.seg", 0, false}, {"+00187.sst", 0, false}, {"000187.sst.tmp", 0, false}, {".sst", 0, false},
	} {
		number, ok := ParseName(c.base)
		if number != c.number || ok != c.ok {
			t.Errorf("%q: %d %v", c.base, number, ok)
		}
		if ok && Name(number) != c.base {
			t.Errorf("%d is named %q", number, Name(number))
		}
	}
}

func TestWriterOptionsReportEveryProblem(t *testing.T) {
	f, err := newFS(t).Create("t.sst", vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = NewWriter(f, WriterOptions{BlockBytes: 100, Compression: 2, BloomBits: 65, WriteBufferBytes: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"Number", "BlockBytes", "Compression", "BloomBits", "WriteBufferBytes"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v; want %s in it", err, name)
		}
	}
}

func TestWriterRefusesWhatTablesCannotHold(t *testing.T) {
	for _, c := range []struct {
		name string
		v    entry.Version
	}{
		{"key without a user key", entry.Version{Key: []byte{0, 1}, Seqno: 1, Kind: entry.KindDelete}},
		{"key of 65,536 bytes", entry.Version{Key: make([]byte, 2+65536), Seqno: 1, Kind: entry.KindDelete}},
		{"seqno above the highest", entry.Version{Key: key(1, "k"), Seqno: entry.MaxSeqno + 1, Kind: entry.KindDelete}},
		{"unknown kind", entry.Version{Key: key(1, "k"), Seqno: 1, Kind: 2}},
		{"neither bytes nor address", entry.Version{Key: key(1, "k"), Seqno: 1}},
		{"huge inline value", set("k", 1, strings.Repeat("x", MaxInlineBytes+1))},
	} {
		if err := writeTo(newFS(t), "t.sst", testOptions(), []entry.Version{c.v}, func(*entry.Version) uint64 { return 0 }); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
	}
	if err := writeTo(newFS(t), "t.sst", testOptions(), nil, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("empty table: %v", err)
	}
}

func TestAddressWinsOverBytes(t *testing.T) {
	v := at("k", 5, 12, 4096, 300)
	v.Value.Bytes, v.Value.HasBytes = []byte("fresh, still in memory"), true
	r := memTable(t, testOptions(), readerOptions(), []entry.Version{v})
	var buf Buffer
	defer buf.Free()
	v.Value.Bytes, v.Value.HasBytes = nil, false
	checkGet(t, r, &buf, []entry.Version{v}, v.Key, 5)
}

func TestLargestValuesAndKeys(t *testing.T) {
	vs := sortVersions([]entry.Version{
		set("a", 1, strings.Repeat("x", MaxInlineBytes)),
		set(strings.Repeat("\xff", 65535), 3, "x"), set(strings.Repeat("\xff", 65535), 2, "y"), set(strings.Repeat("\xff", 65534), 2, "z"),
		set(strings.Repeat("\xff", 65533)+"\x00\x00", 9, ""),
	})
	for _, c := range []Compression{NoCompression, Snappy} {
		o := testOptions()
		o.BlockBytes, o.Compression = 512, c
		r := memTable(t, o, readerOptions(), vs)
		if err := r.Verify(); err != nil {
			t.Fatal(err)
		}
		it := r.NewIter(IterOptions{ReadAheadBytes: 1 << 20})
		checkScan(t, it, vs)
		it.Close()
		var buf Buffer
		for i := range vs {
			checkGet(t, r, &buf, vs, vs[i].Key, vs[i].Seqno)
		}
		buf.Free()
	}
}

func TestIndexOfThreeLevels(t *testing.T) {
	var vs []entry.Version
	for i, k := range keysOf("hex", 40_000, rand.New(rand.NewPCG(1, 1))) {
		vs = append(vs, set(k, entry.Seqno(1+i), strings.Repeat("x", 100)))
	}
	o := testOptions()
	o.BlockBytes = 512
	for _, pin := range []bool{false, true} {
		ro := readerOptions()
		ro.PinIndex = pin
		r := memTable(t, o, ro, vs)
		if n := r.Properties().IndexLevels; n < 3 {
			t.Fatalf("%d levels", n)
		}
		if err := r.Verify(); err != nil {
			t.Fatal(err)
		}
		var buf Buffer
		for i := 0; i < len(vs); i += 97 {
			checkGet(t, r, &buf, vs, vs[i].Key, entry.MaxSeqno)
			checkGet(t, r, &buf, vs, append(slices.Clone(vs[i].Key), 'x'), entry.MaxSeqno)
		}
		buf.Free()
		it := r.NewIter(IterOptions{})
		checkScan(t, it, vs)
		for i := len(vs) - 1; i >= 0; i -= 331 {
			if !it.SeekGE(vs[i].Key, vs[i].Seqno) || !sameVersion(it.Version(), &vs[i]) {
				t.Fatalf("seek %d: %v", i, it.Error())
			}
		}
		it.Close()
	}
}

// TestPageRule: no block touches more pages than its size needs, and none is
// above the target while it holds more than one entry.
func TestPageRule(t *testing.T) {
	vs, _ := benchVersionsFor(t, 20_000)
	for _, c := range []Compression{NoCompression, Snappy} {
		for _, target := range []int{700, 4096, 10_000, 64 << 10} {
			o := testOptions()
			o.BlockBytes, o.Compression = target, c
			r := memTable(t, o, readerOptions(), vs)
			stored := 0
			refs := append(blocksOf(t, r), r.foot.root, r.foot.properties)
			for i, ref := range refs {
				if got, need := pagesTouched(int64(ref.Offset), int(ref.Length)), pagesTouched(0, int(ref.Length)); got > need {
					t.Fatalf("%v, %d: %v touches %d pages, needs %d", c, target, ref, got, need)
				}
				if ref.Kind == DataBlock && int(ref.Length) > target {
					t.Fatalf("%v, %d: %v", c, target, ref)
				}
				if ref.Kind == DataBlock && i < len(refs)-4 {
					stored += int(ref.Length)
				}
			}
			n := int(r.props.DataBlocks) - 1
			plainMax := int(r.props.DataPlain) / int(r.props.DataBlocks)
			if fill := float64(stored) / float64(n*target); fill < 0.90 && plainMax < 60_000 && n > 5 {
				t.Errorf("%v, %d: blocks are %.2f full", c, target, fill)
			}
		}
	}
}

func benchVersionsFor(t *testing.T, n int) ([]entry.Version, []uint64) {
	t.Helper()
	return benchVersions("hex62M", n, 32, false)
}

// TestDirectFiles writes and reads through the operating system, past its
// cache where the file system allows it.
func TestDirectFiles(t *testing.T) {
	dir := t.TempDir()
	direct := vfs.ProbeDirect(vfs.OS, dir) == nil
	t.Logf("direct: %v", direct)
	g := goldenTables()[1]
	name := dir + "/" + Name(testNumber)
	writeTable(t, vfs.OS, name, direct, g.o, g.versions)
	for _, pin := range []bool{false, true} {
		ro := readerOptions()
		ro.PinIndex, ro.PinFilter = pin, pin
		r := openTable(t, vfs.OS, name, direct, ro)
		if err := r.Verify(); err != nil {
			t.Fatal(err)
		}
		var buf Buffer
		for i := range g.versions {
			checkGet(t, r, &buf, g.versions, g.versions[i].Key, g.versions[i].Seqno)
		}
		buf.Free()
		// All lookups of a batch, each round's blocks read together.
		lookups, bufs := make([]Lookup, len(g.versions)), make([]Buffer, len(g.versions))
		var waiting []int
		for i := range lookups {
			v := &g.versions[i]
			if !lookups[i].Start(r, hashOf(v.Key), v.Key, v.Seqno) {
				waiting = append(waiting, i)
			}
		}
		rounds := 0
		for ; len(waiting) > 0; rounds++ {
			reads := make([]vfs.Read, len(waiting))
			for j, i := range waiting {
				var err error
				if reads[j], err = r.Plan(lookups[i].Need(), &bufs[i]); err != nil {
					t.Fatal(err)
				}
			}
			for i := range reads {
				reads[i].N, reads[i].Err = reads[i].File.ReadAt(reads[i].Buf, reads[i].Off)
			}
			var left []int
			for j, i := range waiting {
				data, err := r.Finish(lookups[i].Need(), &reads[j], &bufs[i])
				if err != nil {
					t.Fatal(err)
				}
				if !lookups[i].Feed(data) {
					left = append(left, i)
				}
			}
			waiting = left
		}
		want := 1 // the data block
		if !pin {
			want = 1 + int(r.props.IndexLevels) // filter piece, index blocks below the root, data block
		}
		if rounds != want {
			t.Errorf("pin=%v: %d rounds of reads, want %d", pin, rounds, want)
		}
		for i := range lookups {
			if !lookups[i].Found() || !sameVersion(lookups[i].Version(), &g.versions[i]) {
				t.Fatalf("lookup %d: %v", i, lookups[i].Err())
			}
			bufs[i].Free()
		}
	}
}

func TestClosedThingsSaySo(t *testing.T) {
	b, vs := levelsTable(t)
	r := openImage(t, &imageFile{data: b}, readerOptions())
	it := r.NewIter(IterOptions{})
	it.First()
	for range 2 {
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if it.Next() || it.Error() != nil || it.First() || it.Error() == nil {
		t.Fatal("a closed iterator moves")
	}
	f, err := newFS(t).Create("t.sst", vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(&vs[0], 1); err != nil {
		t.Fatal(err)
	}
	if w.EstimatedBytes() == 0 || w.Entries() != 1 {
		t.Fatal(w.EstimatedBytes(), w.Entries())
	}
	w.Close()
	w.Close()
	if w.Add(&vs[1], 1) == nil || w.EstimatedBytes() != 0 {
		t.Fatal("a closed writer adds")
	}
	if _, _, err := w.Finish(); err == nil {
		t.Fatal("a closed writer finishes")
	}
}

// TestEstimatedBytesFollowsTheFile: tables are cut by it.
func TestEstimatedBytesFollowsTheFile(t *testing.T) {
	vs, hashes := benchVersionsFor(t, 50_000)
	for _, c := range []Compression{NoCompression, Snappy} {
		f, err := newFS(t).Create("t.sst", vfs.OpenOptions{Write: true})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		o := testOptions()
		o.Compression = c
		paced := 0
		o.Pace = func(n int) { paced += n }
		w, err := NewWriter(f, o)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for i := range vs {
			if err := w.Add(&vs[i], hashes[i]); err != nil {
				t.Fatal(err)
			}
		}
		estimate := w.EstimatedBytes()
		_, size, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if ratio := float64(estimate) / float64(size); ratio < 0.97 || ratio > 1.03 {
			t.Errorf("%v: estimated %d, is %d", c, estimate, size)
		}
		if int64(paced) != size {
			t.Errorf("%v: paced %d of %d bytes", c, paced, size)
		}
	}
}
