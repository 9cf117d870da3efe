package s3fifo

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fluxkv/internal/offheap"
)

// resident returns the bytes of b that the kernel has backed.
func resident(t *testing.T, b []byte) int64 {
	t.Helper()
	if len(b) == 0 {
		return 0
	}
	pages := make([]byte, (len(b)+offheap.AlignBytes-1)/offheap.AlignBytes)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(pages)))); errno != 0 {
		t.Fatal(errno)
	}
	n := int64(0)
	for _, p := range pages {
		n += int64(p&1) * offheap.AlignBytes
	}
	return n
}

// TestMemoryIsWhatStatsSay compares the pages that the kernel has backed with
// what the cache says it uses.
func TestMemoryIsWhatStatsSay(t *testing.T) {
	if offheap.OnGoHeap {
		t.Skip("the race build takes Go heap")
	}
	for _, o := range []Options{
		{Bytes: 1 << 20},
		{Bytes: 12 << 20, Shards: 4, Owners: true},
		{Bytes: 96 << 20, Shards: 1}, // with huge pages
		{Bytes: 30<<20 + 5, BytesMax: 80 << 20, Shards: 1},
	} {
		c := newCache(t, o)
		check := func(when string) Stats {
			t.Helper()
			s := c.Stats()
			got := resident(t, c.data) + resident(t, c.tables)
			if got > 0 {
				got += int64(len(c.shards)) * int64(unsafe.Sizeof(Shard{}))
			}
			if got > s.Bytes {
				t.Errorf("%+v, %s: %d bytes are in memory, the cache says %d", o, when, got, s.Bytes)
			}
			if s.Bytes > s.Limit {
				t.Errorf("%+v, %s: %d bytes of %d", o, when, s.Bytes, s.Limit)
			}
			checkCache(t, c)
			return s
		}
		rng := rand.New(rand.NewPCG(5, 5))
		play := func(sizeMax int) {
			n := uint64(3 * o.Bytes / int64(sizeMax)) // half as much again as fits
			for i := range 2 * n {
				k := rng.Uint64N(n)
				c.Touch(Tag{k})
				read(t, c, k<<20|uint64(sizeMax), 1+int(k*7919)%sizeMax)
				if i%(n/2) == 0 {
					check("while it fills")
				}
			}
		}
		small := 200
		if o.Bytes > 16<<20 {
			small = 1500 // 200 would take long
		}
		check("empty")
		play(6000)
		if s := check("full"); s.Bytes < s.Limit*95/100 {
			t.Errorf("%+v: full with %d of %d bytes", o, s.Bytes, s.Limit)
		}
		play(small)
		check("full of small objects")
		c.Resize(o.Bytes / 3)
		if s := check("smaller"); s.Limit > o.Bytes/3 || s.Objects[Low] == 0 {
			t.Errorf("%+v: after Resize %+v", o, s)
		}
		play(6000)
		check("smaller and full")
		c.Resize(0)
		check("off")
		c.Resize(o.Bytes)
		play(3000)
		if s := check("on again"); s.Bytes < s.Limit*9/10 {
			t.Errorf("%+v: full again with %d of %d bytes", o, s.Bytes, s.Limit)
		}
	}
}

// A shard that is partly filled gives the rest of its last huge page back when
// huge pages end before.
func TestLowerLimitEndsHugePages(t *testing.T) {
	if offheap.OnGoHeap {
		t.Skip("the race build takes Go heap")
	}
	c := newCache(t, Options{Bytes: 96 << 20, Shards: 1})
	for k := range uint64(1800) {
		read(t, c, k, blockBytes) // 7.2 MiB
	}
	before := c.Stats()
	c.Resize(9 << 20)
	s := c.Stats()
	if s.Bytes >= before.Bytes || s.Evicted[Low] != 0 {
		t.Errorf("before %+v, then %+v", before, s)
	}
	if got := resident(t, c.data) + resident(t, c.tables); got > s.Bytes {
		t.Errorf("%d bytes are in memory, the cache says %d", got, s.Bytes)
	}
	checkCache(t, c)
}
