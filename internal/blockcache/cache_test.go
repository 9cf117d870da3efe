package blockcache

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

func newCache(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// block is what the block of a file at an offset must be: its name over and
// over.
func block(buf []byte, file, offset uint64, n int) []byte {
	buf = buf[:0]
	for len(buf) < n {
		buf = binary.LittleEndian.AppendUint64(buf, file)
		buf = binary.LittleEndian.AppendUint64(buf, offset)
	}
	return buf[:n]
}

func TestGetReturnsWhatWasPut(t *testing.T) {
	c := newCache(t, Options{Bytes: 1 << 20})
	if h := c.Get(1, 0); h.Valid() {
		t.Fatal("an empty cache has a block")
	} else {
		h.Release()
	}
	for i, n := range []int{0, 1, 15, 16, 100, 4000, 4095, 4096, 20_000} {
		want := block(nil, 1, uint64(i), n)
		data := bytes.Clone(want)
		c.Put(1, uint64(i), data, Priority(i&1))
		clear(data) // the cache has a copy
		c.Put(1, uint64(i), []byte("another"), Low)
		c.Touch(1, uint64(i))
		h := c.Get(1, uint64(i))
		if !h.Valid() || !bytes.Equal(h.Bytes(), want) {
			t.Fatalf("block of %d bytes: valid %v", n, h.Valid())
		}
		h.Release()
	}
	c.Put(1, 99, make([]byte, 1<<20), Low)
	if c.Get(1, 99).Valid() {
		t.Fatal("a block as large as the cache is in it")
	}
	s := c.Stats()
	if s.Hits != [2]uint64{5, 4} || s.Inserted != [2]uint64{5, 4} || s.Misses != 2 || s.Refused != 1 || s.Bytes > s.Limit {
		t.Fatalf("%+v", s)
	}
}

func TestOff(t *testing.T) {
	c := newCache(t, Options{BytesMax: 1 << 20})
	c.Put(1, 2, []byte("x"), High)
	c.Drop(1)
	if c.Get(1, 2).Valid() {
		t.Fatal("a cache of 0 bytes has a block")
	}
	c.Resize(1 << 20)
	c.Put(1, 2, []byte("x"), High)
	h := c.Get(1, 2)
	if !h.Valid() {
		t.Fatal("nothing after Resize")
	}
	c.Resize(0)
	if string(h.Bytes()) != "x" || c.Get(1, 2).Valid() {
		t.Fatalf("after Resize to 0 a pinned block is %q", h.Bytes())
	}
	h.Release()
	if s := c.Stats(); s.Bytes != 0 || s.Limit != 0 {
		t.Fatalf("%+v", s)
	}
	if _, err := New(Options{Bytes: -1}); err == nil {
		t.Fatal("a negative limit was taken")
	}
}

func TestDropForgetsOneFile(t *testing.T) {
	c := newCache(t, Options{Bytes: 4 << 20})
	for file := range uint64(20) {
		for i := range uint64(20) {
			c.Put(file, i<<12, block(nil, file, i<<12, 4000), Priority(i&1))
		}
	}
	h := c.Get(7, 3<<12)
	c.Drop(7)
	for file := range uint64(20) {
		for i := range uint64(20) {
			got := c.Get(file, i<<12)
			if got.Valid() == (file == 7) {
				t.Errorf("file %d block %d: valid %v after file 7 was dropped", file, i, got.Valid())
			}
			got.Release()
		}
	}
	if !bytes.Equal(h.Bytes(), block(nil, 7, 3<<12, 4000)) {
		t.Error("a pinned block changed when its file was dropped")
	}
	h.Release()
	if s := c.Stats(); s.Objects != [2]int64{190, 190} {
		t.Errorf("%+v", s)
	}
}

// TestConcurrentUse has readers compare pinned blocks with their names while
// others put, drop and resize.
func TestConcurrentUse(t *testing.T) {
	const (
		bytesMax = 4 << 20
		rounds   = 6000
		files    = 40
		offsets  = 60
	)
	c := newCache(t, Options{Bytes: bytesMax, Shards: 2, BlockBytesMax: 60_000})
	// sizeOf is fixed for a block, as for any table's.
	sizeOf := func(file, offset uint64) int {
		x := file*7919 + offset*104729
		if x%13 == 0 {
			return int(x % 60_000)
		}
		return int(x % 4096)
	}
	var oldest atomic.Uint64 // files below were dropped
	var wg sync.WaitGroup
	var hits atomic.Int64
	for w := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(w, 1))
			var buf []byte
			var held []Handle
			var names [][2]uint64
			check := func(i int) {
				buf = block(buf, names[i][0], names[i][1], sizeOf(names[i][0], names[i][1]))
				if !bytes.Equal(held[i].Bytes(), buf) {
					t.Errorf("block %v has other bytes", names[i])
				}
			}
			for range rounds {
				file, offset := oldest.Load()+rng.Uint64N(files), rng.Uint64N(offsets)
				c.Touch(file, offset)
				if h := c.Get(file, offset); h.Valid() {
					hits.Add(1)
					held, names = append(held, h), append(names, [2]uint64{file, offset})
					check(len(held) - 1)
				} else {
					buf = block(buf, file, offset, sizeOf(file, offset))
					c.Put(file, offset, buf, Priority(offset%8/7))
				}
				if len(held) > 6 {
					i := rng.IntN(len(held))
					check(i)
					held[i].Release()
					held[i], names[i] = held[len(held)-1], names[len(held)-1]
					held, names = held[:len(held)-1], names[:len(names)-1]
				}
			}
			for i := range held {
				check(i)
				held[i].Release()
			}
		})
	}
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		rng := rand.New(rand.NewPCG(9, 9))
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch rng.IntN(8) {
			case 0:
				c.Resize(rng.Int64N(bytesMax))
			case 1:
				c.Resize(bytesMax)
			case 2:
				c.Drop(oldest.Add(1) - 1)
			default:
				if s := c.Stats(); s.Limit > bytesMax {
					t.Errorf("limit %d", s.Limit)
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	changes.Wait()
	c.Resize(bytesMax / 2)
	if s := c.Stats(); s.Bytes > s.Limit || hits.Load() == 0 {
		t.Fatalf("%d hits, %+v", hits.Load(), s)
	}
	c.Resize(0)
	if s := c.Stats(); s.Bytes != 0 || s.Objects != [2]int64{} {
		t.Fatalf("after the end: %+v", s)
	}
}

func TestNothingAllocates(t *testing.T) {
	c := newCache(t, Options{Bytes: 2 << 20})
	data := make([]byte, 4000)
	i := uint64(0)
	if n := testing.AllocsPerRun(5000, func() {
		i++
		c.Touch(i%9, i)
		c.Put(i%9, i, data, Priority(i%9/8))
		h := c.Get(i%9, i)
		h.Release()
		if i%1000 == 0 {
			c.Drop(i / 1000)
		}
	}); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func BenchmarkGet(b *testing.B) {
	c := newCache(b, Options{Bytes: 1 << 30})
	const n = 200_000
	data := make([]byte, 4000)
	for i := range uint64(n) {
		c.Put(i&7, i, data, Low)
	}
	b.ReportAllocs()
	rng := rand.New(rand.NewPCG(1, 1))
	hits := 0
	for b.Loop() {
		i := rng.Uint64N(n)
		h := c.Get(i&7, i)
		if h.Valid() {
			hits++
		}
		h.Release()
	}
	if hits == 0 {
		b.Fatal("no hit")
	}
}

func BenchmarkPutEvict(b *testing.B) {
	c := newCache(b, Options{Bytes: 256 << 20})
	data := make([]byte, 4000)
	i := uint64(0)
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		i++
		c.Put(i&7, i, data, Low)
	}
}

func BenchmarkDrop(b *testing.B) {
	c := newCache(b, Options{Bytes: 1 << 30})
	data := make([]byte, 4000)
	file := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		file++
		for i := range uint64(1000) {
			c.Put(file, i, data, Low)
		}
		if file > 100 {
			c.Drop(file - 100)
		}
	}
}
