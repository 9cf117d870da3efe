package sstable

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/golang/snappy"

	"fluxkv/internal/entry"
)

// payloads are those of blocks of one kind in the golden tables.
func payloads(tb testing.TB, kind BlockKind) (out [][]byte) {
	for _, g := range goldenTables() {
		b, err := os.ReadFile(filepath.Join("testdata", "format", "v1", g.name+".sst"))
		if err != nil {
			tb.Fatal(err)
		}
		r, err := Open(&imageFile{name: g.name, data: b}, readerOptions())
		if err != nil {
			tb.Fatal(err)
		}
		add := func(data []byte) {
			if len(data) < 16<<10 {
				out = append(out, append([]byte(nil), data[:len(data)-tailBytes]...))
			}
		}
		var bufs [indexLevelsMax + 1]Buffer
		n := 0
		err = r.walkIndex(r.base, int(r.props.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
			data, err := r.load(ref, &bufs[level+1])
			if n++; err == nil && ref.Kind == kind && n < 4 {
				add(data)
			}
			return data, err
		})
		if err != nil {
			tb.Fatal(err)
		}
		if kind == IndexBlock {
			add(r.base)
		}
	}
	return out
}

// FuzzBlock: whatever passes check can be searched and walked.
func FuzzBlock(f *testing.F) {
	for _, p := range payloads(f, DataBlock) {
		f.Add(p, []byte("\x00\x01k"), uint64(75))
	}
	f.Fuzz(func(t *testing.T, payload, key []byte, at uint64) {
		data := append(payload, make([]byte, tailBytes)...)
		var c cursor
		if c.load(data) != nil || c.b.check(false) != nil {
			return
		}
		var v entry.Version
		n := 0
		for c.set(0); c.i < c.b.count; c.next() {
			c.version(&v)
			if n < 200 {
				i, _ := c.b.seek(v.Key, v.Seqno)
				if i < 0 || i > c.b.count {
					t.Fatalf("seek gives %d of %d", i, c.b.count)
				}
			}
			n++
		}
		if n != c.b.count {
			t.Fatalf("%d of %d entries", n, c.b.count)
		}
		for i := 0; i <= c.b.count; i += 1 + c.b.count/16 {
			c.set(i)
		}
		i, found := c.b.seek(key, entry.Seqno(at))
		if found {
			c.b.version(&c.c, c.b.place(&c.c, i), i, &v)
		}
	})
}

// sealedTable puts payloads into a table whose sums are right.
type sealedTable struct {
	data []byte
	foot footer
}

func (s *sealedTable) block(payload []byte, kind BlockKind, c Compression) BlockRef {
	ref := BlockRef{Offset: uint64(len(s.data)), Length: uint32(len(payload) + trailerBytes), Kind: kind}
	s.data = append(s.data, sealBlock(append([]byte(nil), payload...), c, testNumber)...)
	return ref
}

func (s *sealedTable) finish() []byte {
	s.foot.number, s.foot.storeID = testNumber, testStore
	n := int(roundPage(int64(len(s.data) + footerBytes)))
	s.data = append(s.data, make([]byte, n-footerBytes-len(s.data))...)
	return s.foot.encode(s.data)
}

// ask does what may be done with any table that opens.
func ask(t *testing.T, image []byte, key []byte) {
	for _, pin := range []bool{false, true} {
		ro := readerOptions()
		ro.PinIndex, ro.PinFilter = pin, pin
		r, err := Open(&imageFile{name: "t.sst", data: image}, ro)
		if err != nil {
			continue
		}
		var buf Buffer
		var v entry.Version
		if len(key) > entry.VBucketBytes {
			_, _ = r.Get(hashOf(key), key, entry.MaxSeqno, &buf, &v)
		}
		for _, o := range []IterOptions{{}, {Lower: key, ReadAheadBytes: 8192}, {Upper: key}} {
			it := r.NewIter(o)
			n := 0
			// Offsets may repeat in a forged index: it bounds the entries, not
			// this loop.
			for ok := it.First(); ok && n < 1<<16; ok = it.Next() {
				n++
			}
			it.SeekGE(key, 5)
			it.Close()
		}
		_ = r.Verify()
		buf.Free()
		r.Close()
	}
}

// FuzzIndex: a forged root over one good data block.
func FuzzIndex(f *testing.F) {
	data := payloads(f, DataBlock)[0]
	for _, p := range payloads(f, IndexBlock) {
		f.Add(p, []byte("\x00\x01k"), uint8(1))
	}
	f.Fuzz(func(t *testing.T, payload, key []byte, levels uint8) {
		if len(payload) > 64<<10 {
			return
		}
		var s sealedTable
		ref := s.block(data, DataBlock, NoCompression)
		s.foot.dataBytes = ref.end()
		s.foot.root = s.block(payload, IndexBlock, NoCompression)
		p := Properties{Number: testNumber, Entries: 10, DataBlocks: 1, HighestSeqno: entry.MaxSeqno, Smallest: []byte{0}, Largest: []byte{255}, IndexLevels: levels}
		s.foot.properties = s.block(p.encode(nil), DataBlock, NoCompression)
		ask(t, s.finish(), key)
	})
}

// FuzzData: a forged data block, plain or compressed, under a good index.
func FuzzData(f *testing.F) {
	for _, p := range payloads(f, DataBlock) {
		f.Add(p, []byte("\x00\x01k"), uint8(0))
		f.Add(snappy.Encode(nil, p), []byte("\x00\x01k"), uint8(1))
	}
	f.Fuzz(func(t *testing.T, stored, key []byte, compression uint8) {
		if len(stored) > 64<<10 {
			return
		}
		var s sealedTable
		ref := s.block(stored, DataBlock, Compression(compression))
		s.foot.dataBytes = ref.end()
		var b blockBuilder
		b.tryAdd(&blockEntry{key: []byte{255}, meta: metaAddress, address: [3]uint64{0, 0, uint64(ref.Length)}}, 0, 4096, 1)
		s.foot.root = s.block(b.encode(nil), IndexBlock, NoCompression)
		p := Properties{Number: testNumber, Entries: 10, DataBlocks: 1, HighestSeqno: entry.MaxSeqno, Smallest: []byte{0}, Largest: []byte{255}, IndexLevels: 1}
		s.foot.properties = s.block(p.encode(nil), DataBlock, NoCompression)
		ask(t, s.finish(), key)
	})
}

// FuzzProperties: decoding what was decoded and encoded gives the same.
func FuzzProperties(f *testing.F) {
	for _, g := range goldenTables() {
		fs := newFS(f)
		f.Add(writeTable(f, fs, "t.sst", false, g.o, g.versions).encode(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeProperties(b)
		if err != nil {
			return
		}
		again, err := decodeProperties(p.encode(nil))
		if err != nil || string(again.encode(nil)) != string(p.encode(nil)) {
			t.Fatalf("%+v reads as %+v, %v", p, again, err)
		}
	})
}

// FuzzFooter: a footer with a right sum in a file of some length.
func FuzzFooter(f *testing.F) {
	for _, g := range goldenTables() {
		fs := newFS(f)
		writeTable(f, fs, "t.sst", false, g.o, g.versions)
		b := image(f, fs, "t.sst")
		f.Add(b[len(b)-footerBytes:], uint32(len(b)), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, size uint32, seal bool) {
		if len(b) != footerBytes || size < pageBytes {
			return
		}
		b = append([]byte(nil), b...)
		if seal {
			copy(b[120:], footerMagic)
			binary.LittleEndian.PutUint64(b[112:], footerSum(testNumber, b))
		}
		foot, err := decodeFooter(b, int64(size), testNumber, testStore)
		if err != nil {
			return
		}
		end := uint64(size) - footerBytes
		for _, ref := range []BlockRef{foot.root, foot.properties, foot.sums(), {Offset: foot.filterOffset, Length: foot.pieces * pieceBytes}} {
			if ref.Offset > end || ref.end() > end {
				t.Fatalf("%v passes %d", ref, end)
			}
		}
	})
}

// FuzzTable: any change of a golden table, with the sum of the block it
// falls into put right.
func FuzzTable(f *testing.F) {
	var images [][]byte
	for i, g := range goldenTables() {
		fs := newFS(f)
		writeTable(f, fs, "t.sst", false, g.o, g.versions)
		images = append(images, image(f, fs, "t.sst"))
		f.Add(uint8(i), uint32(100*i), []byte{1, 2, 3}, []byte("\x00\x01k"), true)
	}
	f.Fuzz(func(t *testing.T, table uint8, pos uint32, change, key []byte, seal bool) {
		image := append([]byte(nil), images[int(table)%len(images)]...)
		r, err := Open(&imageFile{name: "t.sst", data: image}, readerOptions())
		if err != nil {
			t.Fatal(err)
		}
		at := uint64(pos) % uint64(len(image))
		copy(image[at:], change)
		if seal {
			reseal(r, image, at)
		}
		r.Close()
		ask(t, image, key)
	})
}

// reseal puts the sum of the block around at right.
func reseal(r *Reader, image []byte, at uint64) {
	refs := []BlockRef{r.foot.root, r.foot.properties, r.foot.sums()}
	clean := append([]byte(nil), image...)
	_ = r.walkIndex(r.base, int(r.props.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
		refs = append(refs, ref)
		if level < 0 {
			return nil, nil
		}
		return clean[ref.Offset:][:ref.Length-trailerBytes+tailBytes], nil
	})
	for _, ref := range refs {
		if at >= ref.Offset && at < ref.end() {
			stored := image[ref.Offset:ref.end()]
			n := len(stored) - 8
			le.PutUint64(stored[n:], sum64(testNumber, stored[:n]))
		}
	}
	if at >= uint64(len(image)-footerBytes) {
		b := image[len(image)-footerBytes:]
		le.PutUint64(b[112:], footerSum(testNumber, b))
	}
}
