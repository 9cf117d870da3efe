package sstable

import (
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

// TestHotPathsDoNotAllocate: lookups over five tables, batched reads, scans,
// and, but for growing buffers, building.
func TestHotPathsDoNotAllocate(t *testing.T) {
	b, vs := levelsTable(t)
	for _, pin := range []bool{false, true} {
		ro := readerOptions()
		ro.PinIndex, ro.PinFilter = pin, pin
		var tables [5]*Reader
		for i := range tables {
			tables[i] = openImage(t, &imageFile{data: b}, ro)
		}
		var buf Buffer
		defer buf.Free()
		var v entry.Version
		i := 0
		get := func() {
			k := vs[i*31%len(vs)]
			i++
			h := hashOf(k.Key)
			for _, r := range tables {
				if found, err := r.Get(h, k.Key, k.Seqno, &buf, &v); !found || err != nil {
					t.Fatal(found, err)
				}
				if found, err := r.Get(h+1, k.Key, k.Seqno, &buf, &v); err != nil {
					t.Fatal(found, err)
				}
			}
		}
		get()
		if n := testing.AllocsPerRun(200, get); n != 0 {
			t.Errorf("pin=%v: get from five tables: %v allocations, want 0", pin, n)
		}
		// A batch: all lookups as far as they go, then all reads at once.
		lookups, bufs, reads := make([]Lookup, 8), make([]Buffer, 8), make([]vfs.Read, 8)
		done := make([]bool, 8)
		batch := func() {
			for j := range lookups {
				k := vs[(i+j*7)%len(vs)]
				done[j] = lookups[j].Start(tables[j%5], hashOf(k.Key), k.Key, k.Seqno)
			}
			i++
			for left := true; left; {
				left = false
				for j := range lookups {
					if done[j] {
						reads[j] = vfs.Read{File: tables[0].File(), Buf: bufs[j].raw[:0]}
						continue
					}
					left = true
					var err error
					if reads[j], err = lookups[j].r.Plan(lookups[j].Need(), &bufs[j]); err != nil {
						t.Fatal(err)
					}
				}
				for j := range reads {
					if !done[j] {
						r := &reads[j]
						r.N, r.Err = r.File.ReadAt(r.Buf, r.Off)
					}
				}
				for j := range lookups {
					if done[j] {
						continue
					}
					data, err := lookups[j].r.Finish(lookups[j].Need(), &reads[j], &bufs[j])
					if err != nil {
						t.Fatal(err)
					}
					done[j] = lookups[j].Feed(data)
				}
			}
			for j := range lookups {
				if !lookups[j].Found() {
					t.Fatal(lookups[j].Err())
				}
			}
		}
		batch()
		if n := testing.AllocsPerRun(100, batch); n != 0 {
			t.Errorf("pin=%v: batch: %v allocations, want 0", pin, n)
		}
		for j := range bufs {
			bufs[j].Free()
		}
		it := tables[0].NewIter(IterOptions{ReadAheadBytes: 8192})
		scan := func() {
			n := 0
			for ok := it.First(); ok; ok = it.Next() {
				n++
			}
			if n != len(vs) {
				t.Fatal(n, it.Error())
			}
		}
		scan()
		if n := testing.AllocsPerRun(10, scan); n != 0 {
			t.Errorf("pin=%v: scan: %v allocations, want 0", pin, n)
		}
		it.Close()
	}
}

// TestBuildingAllocatesOnlyToGrow: far less than one allocation for ten
// entries, for a small table.
func TestBuildingAllocatesOnlyToGrow(t *testing.T) {
	var vs []entry.Version
	for _, k := range benchKeys("decimal", 20_000) {
		vs = append(vs, entry.Version{Key: k, Seqno: 5, Value: entry.Value{HasBytes: true, Bytes: []byte("12345678")}})
	}
	fs := newFS(t)
	f, err := fs.Create("t.sst", vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	i := 0
	n := testing.AllocsPerRun(len(vs)-1, func() {
		if err := w.Add(&vs[i], uint64(i)); err != nil {
			t.Fatal(err)
		}
		i++
	})
	if n > 0.1 {
		t.Fatalf("%v allocations an entry", n)
	}
}
