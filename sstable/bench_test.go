package sstable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

// benchKeys are n internal keys with 12-byte user keys: hashed ones as dense
// as in a kvstore of 62M or 1M random keys, or a sixteenth of dense decimals.
func benchKeys(shape string, n int) [][]byte {
	rnd := rand.New(rand.NewPCG(3, 4))
	keys := make([][]byte, n)
	for i := range keys {
		switch shape {
		case "hex62M":
			keys[i] = key(3, fmt.Sprintf("%012x", rnd.Uint64N(uint64(n)*(1<<48/62_000_000))))
		case "hex1M":
			keys[i] = key(3, fmt.Sprintf("%012x", rnd.Uint64N(uint64(n)*(1<<48/1_000_000))))
		case "decimal":
			keys[i] = key(3, fmt.Sprintf("%012d", uint64(i)*16+rnd.Uint64N(16)))
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	keys = slices.CompactFunc(keys, bytes.Equal)
	// One after another, as an iterator hands them over: else the builds
	// below would measure cache misses.
	var all []byte
	for _, k := range keys {
		all = append(all, k...)
	}
	for i, at := 0, 0; i < len(keys); i++ {
		n := len(keys[i])
		keys[i] = all[at : at+n : at+n]
		at += n
	}
	return keys
}

func benchVersions(shape string, n int, seqnoBits uint, address bool) ([]entry.Version, []uint64) {
	rnd := rand.New(rand.NewPCG(5, 6))
	keys := benchKeys(shape, n)
	vs, hashes := make([]entry.Version, len(keys)), make([]uint64, len(keys))
	for i, k := range keys {
		v := entry.Version{Key: k, Seqno: entry.Seqno(rnd.Uint64N(1 << seqnoBits))}
		if address {
			v.Value.Address = entry.Address{Segment: entry.SegmentID(1 + rnd.Uint32N(400)), Offset: rnd.Uint32N(128 << 20), Length: 1043}
		} else {
			v.Value = entry.Value{Bytes: []byte("12345678"), HasBytes: true}
		}
		vs[i], hashes[i] = v, hashOf(k)
	}
	return vs, hashes
}

func benchTable(b *testing.B, fs vfs.FS, name string, o WriterOptions, vs []entry.Version, hashes []uint64) (*Properties, int64) {
	f, err := fs.Create(name, vfs.OpenOptions{Write: true})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f, o)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for i := range vs {
		if err := w.Add(&vs[i], hashes[i]); err != nil {
			b.Fatal(err)
		}
	}
	p, size, err := w.Finish()
	if err != nil {
		b.Fatal(err)
	}
	return p, size
}

// cpu is the CPU time of this process; on a busy machine it says more than
// the clock does.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBuild writes a million entries of 8 B documents and reports what one
// takes beyond its user key and value: in the file, filter and index included.
func BenchmarkBuild(b *testing.B) {
	const n = 1_000_000
	for _, shape := range []string{"hex62M", "hex1M", "decimal"} {
		for _, bits := range []uint{24, 32, 40, 48} {
			for _, kind := range []string{"inline", "address", "snappy"} {
				if kind != "inline" && bits != 32 {
					continue
				}
				b.Run(fmt.Sprintf("%s/seqnos=%d/%s", shape, bits, kind), func(b *testing.B) {
					vs, hashes := benchVersions(shape, n, bits, kind == "address")
					o := testOptions()
					o.WriteBufferBytes = 1 << 20
					if kind == "snappy" {
						o.Compression = Snappy
					}
					b.ReportAllocs()
					b.ResetTimer()
					var size int64
					var p *Properties
					fs := vfs.OS
					dir := b.TempDir()
					start := cpu()
					for b.Loop() {
						name := dir + "/" + Name(testNumber)
						p, size = benchTable(b, fs, name, o, vs, hashes)
						if err := fs.Remove(name); err != nil {
							b.Fatal(err)
						}
					}
					plain := int64(p.KeyBytes) - 2*int64(p.Entries) + int64(p.ValueBytes)
					b.ReportMetric(float64(size-plain)/float64(p.Entries), "over-B/entry")
					b.ReportMetric(float64(p.Entries)/float64(p.DataBlocks), "entries/block")
					b.ReportMetric(float64(cpu()-start)/float64(b.N)/float64(p.Entries), "cpu-ns/entry")
					b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/float64(p.Entries), "ns/entry")
				})
			}
		}
	}
}

// BenchmarkLookup asks a table whose filter, index and data blocks are in
// memory.
func BenchmarkLookup(b *testing.B) {
	for _, shape := range []string{"hex62M", "decimal"} {
		vs, hashes := benchVersions(shape, 500_000, 32, false)
		fs := newFS(b)
		o := testOptions()
		benchTable(b, fs, "idx/"+Name(testNumber), o, vs, hashes)
		ro := readerOptions()
		ro.PinIndex, ro.PinFilter = true, true
		r := openTable(b, fs, "idx/"+Name(testNumber), false, ro)
		blocks := make([][]byte, r.size/pageBytes)
		if err := r.walkIndex(r.base, int(r.props.IndexLevels)-1, func(level int, ref BlockRef) ([]byte, error) {
			if level >= 0 {
				return r.pinned(ref), nil
			}
			var buf Buffer
			data, err := r.load(ref, &buf)
			blocks[ref.Offset/pageBytes] = data
			return nil, err
		}); err != nil {
			b.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(7, 8))
		order := make([]int, 1<<16)
		for i := range order {
			order[i] = rnd.IntN(len(vs))
		}
		missing := make([][]byte, len(order))
		for i := range missing {
			missing[i] = append([]byte(nil), vs[order[i]].Key...)
			missing[i][len(missing[i])-1]++ // 9 to ':', f to g, else perhaps a hit
		}
		run := func(name string, keys func(i int) ([]byte, uint64)) {
			b.Run(shape+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				var l Lookup
				found, start := 0, cpu()
				for i := 0; b.Loop(); i++ {
					k, h := keys(order[i&(len(order)-1)])
					for done := l.Start(r, h, k, entry.MaxSeqno); !done; {
						done = l.Feed(blocks[l.Need().Offset/pageBytes])
					}
					if l.Found() {
						found++
					}
				}
				b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/op")
				b.ReportMetric(float64(found)/float64(b.N), "found")
			})
		}
		run("hit", func(i int) ([]byte, uint64) { return vs[i].Key, hashes[i] })
		run("filter-miss", func(i int) ([]byte, uint64) { return vs[i].Key, hashes[i] * 0x9E3779B97F4A7C15 })
		run("block-miss", func(i int) ([]byte, uint64) {
			m := missing[i&(len(missing)-1)]
			return m, hashes[order[i&(len(missing)-1)]]
		})
	}
}

// BenchmarkGet reads one data block from the page cache for each key.
func BenchmarkGet(b *testing.B) {
	vs, hashes := benchVersions("hex62M", 500_000, 32, false)
	dir := b.TempDir()
	benchTable(b, vfs.OS, dir+"/"+Name(testNumber), testOptions(), vs, hashes)
	ro := readerOptions()
	ro.PinIndex, ro.PinFilter = true, true
	r := openTable(b, vfs.OS, dir+"/"+Name(testNumber), false, ro)
	rnd := rand.New(rand.NewPCG(7, 8))
	var buf Buffer
	defer buf.Free()
	var v entry.Version
	b.ReportAllocs()
	start := cpu()
	defer func() { b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/op") }()
	for b.Loop() {
		i := rnd.IntN(len(vs))
		if found, err := r.Get(hashes[i], vs[i].Key, entry.MaxSeqno, &buf, &v); !found || err != nil {
			b.Fatal(found, err)
		}
	}
}

// BenchmarkScan walks a table from the page cache, 256 KiB a read.
func BenchmarkScan(b *testing.B) {
	for _, shape := range []string{"hex62M", "decimal"} {
		for _, c := range []Compression{NoCompression, Snappy} {
			b.Run(fmt.Sprintf("%s/%v", shape, c), func(b *testing.B) {
				vs, hashes := benchVersions(shape, 500_000, 32, false)
				dir := b.TempDir()
				o := testOptions()
				o.Compression = c
				benchTable(b, vfs.OS, dir+"/"+Name(testNumber), o, vs, hashes)
				r := openTable(b, vfs.OS, dir+"/"+Name(testNumber), false, readerOptions())
				b.ReportAllocs()
				start := cpu()
				for b.Loop() {
					it := r.NewIter(IterOptions{ReadAheadBytes: 256 << 10})
					n := 0
					for ok := it.First(); ok; ok = it.Next() {
						n++
					}
					if n != len(vs) || it.Error() != nil {
						b.Fatal(n, it.Error())
					}
					it.Close()
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/float64(len(vs)), "ns/entry")
				b.ReportMetric(float64(cpu()-start)/float64(b.N)/float64(len(vs)), "cpu-ns/entry")
			})
		}
	}
}

// BenchmarkVerify rereads a table of a million entries of 8 B documents in
// memory, as a flush does with what it wrote.
func BenchmarkVerify(b *testing.B) {
	vs, hashes := benchVersions("hex62M", 1_000_000, 32, false)
	fs := newFS(b)
	benchTable(b, fs, "idx/"+Name(testNumber), testOptions(), vs, hashes)
	ro := readerOptions()
	ro.PinFilter = true
	r := openTable(b, fs, "idx/"+Name(testNumber), false, ro)
	start := cpu()
	for b.Loop() {
		if err := r.Verify(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpu()-start)/float64(b.N)/float64(len(vs)), "cpu-ns/entry")
}
