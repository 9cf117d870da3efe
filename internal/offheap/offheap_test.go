package offheap

import (
	"sync"
	"testing"
	"unsafe"
)

func TestMapIsZeroAlignedAndWritable(t *testing.T) {
	for _, n := range []int{1, 4095, 4096, 4097, hugeBytes - 1, hugeBytes, hugeBytes + 1, 5*hugeBytes + 123} {
		b, err := Map(n)
		if err != nil {
			t.Fatalf("map %d: %v", n, err)
		}
		if len(b) != n || cap(b) != n {
			t.Fatalf("map %d: len %d cap %d", n, len(b), cap(b))
		}
		if p := uintptr(unsafe.Pointer(&b[0])); p%AlignBytes != 0 {
			t.Fatalf("map %d: address %x is not aligned", n, p)
		}
		for i, c := range b {
			if c != 0 {
				t.Fatalf("map %d: byte %d is %d", n, i, c)
			}
		}
		b[0], b[n-1] = 1, 2
		Unmap(b)
	}
}

func TestMapRefusesSizesOutOfRange(t *testing.T) {
	for _, n := range []int{-1, 0, mapBytesMax + 1} {
		if b, err := Map(n); err == nil {
			t.Errorf("map %d: got %d bytes, want an error", n, len(b))
		}
	}
	Unmap(nil)
}

func TestMappedCountsMaps(t *testing.T) {
	before := Mapped()
	var maps [][]byte
	sum := int64(0)
	for _, n := range []int{1, 4096, 4097, hugeBytes + 1} {
		b, err := Map(n)
		if err != nil {
			t.Fatal(err)
		}
		maps = append(maps, b[:1]) // a part of it gives all of it back
		sum += int64(n)
		if got := Mapped() - before; got != sum {
			t.Errorf("%d bytes mapped, want %d", got, sum)
		}
	}
	if _, err := Map(0); err == nil || Mapped()-before != sum {
		t.Errorf("a map that was refused counts: %d bytes, want %d", Mapped()-before, sum)
	}
	a, err := NewArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if got := Mapped() - before - sum; got != 1<<20 {
		t.Errorf("an arena of %d bytes counts %d", 1<<20, got)
	}
	a.Free()
	a.Free()
	for _, b := range maps {
		Unmap(b)
	}
	Unmap(nil)
	if got := Mapped() - before; got != 0 {
		t.Errorf("%d bytes left", got)
	}
}

func TestMapIsBackedLazily(t *testing.T) {
	if raceBuild {
		t.Skip("the race build takes Go heap")
	}
	// More than any test machine has: touching one page must be enough.
	b, err := Map(1 << 38)
	if err != nil {
		t.Fatal(err)
	}
	b[1<<37] = 1
	Unmap(b)
}

func TestAlignedBuffer(t *testing.T) {
	b, err := AlignedBuffer(3 * AlignBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer FreeAligned(b)
	if uintptr(unsafe.Pointer(&b[0]))%AlignBytes != 0 || len(b) != 3*AlignBytes {
		t.Fatalf("got %d bytes at %p", len(b), &b[0])
	}
}

func TestArenaAlloc(t *testing.T) {
	a, err := NewArena(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	steps := []struct {
		name     string
		n, align int
		off      uint32
		ok       bool
	}{
		{"the first allocation skips the head", 3, 1, 64, true},
		{"no alignment, no gap", 1, 1, 67, true},
		{"aligned up", 8, 8, 72, true},
		{"nothing is legal", 0, 1, 80, true},
		{"a cache line", 64, 64, 128, true},
		{"too large takes nothing", 4096, 1, 0, false},
		{"larger than the arena", 1 << 40, 1, 0, false},
		{"the rest exactly", 4096 - 192, 1, 192, true},
		{"full", 1, 1, 0, false},
		{"nothing still fits", 0, 1, 4096, true},
	}
	for _, s := range steps {
		if off, ok := a.Alloc(s.n, s.align); off != s.off || ok != s.ok {
			t.Errorf("%s: got %d %v, want %d %v", s.name, off, ok, s.off, s.ok)
		}
	}
	if a.Used() != 4096 || len(a.Bytes()) != 4096 {
		t.Errorf("used %d of %d", a.Used(), len(a.Bytes()))
	}
	a.Reset()
	if off, ok := a.Alloc(1, 1); off != 64 || !ok {
		t.Errorf("after reset: got %d %v", off, ok)
	}
}

func TestArenaCapacityBounds(t *testing.T) {
	for _, n := range []int{-1, 0, arenaHead, ArenaBytesMax + 1} {
		if _, err := NewArena(n); err == nil {
			t.Errorf("capacity %d: want an error", n)
		}
	}
	if raceBuild {
		return
	}
	a, err := NewArena(ArenaBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := a.Alloc(ArenaBytesMax-arenaHead-8, 8); !ok {
		t.Fatal("the whole capacity must be one allocation")
	}
	off, ok := a.Alloc(8, 8)
	if !ok || int(off) != ArenaBytesMax-8 {
		t.Fatalf("last allocation: %d %v", off, ok)
	}
	a.Bytes()[off+7] = 1
	a.Free()
	a.Free()
	if _, ok := a.Alloc(1, 1); ok {
		t.Fatal("allocation after Free")
	}
}

func TestArenaConcurrentAllocationsDoNotOverlap(t *testing.T) {
	a, err := NewArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	const workers, each, size = 8, 500, 24
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range each {
				off, ok := a.Alloc(size, 8)
				if !ok {
					t.Error("arena full")
					return
				}
				for i := range uint32(size) {
					if a.Bytes()[off+i] != 0 {
						t.Errorf("offset %d was handed out twice", off)
						return
					}
					a.Bytes()[off+i] = byte(w + 1)
				}
			}
		}()
	}
	wg.Wait()
	if want := arenaHead + workers*each*size; a.Used() != want {
		t.Fatalf("used %d, want %d", a.Used(), want)
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget(100)
	if !b.TryReserve(60) || b.TryReserve(41) || !b.TryReserve(40) || !b.TryReserve(0) {
		t.Fatal("limit not exact")
	}
	b.Reserve(50)
	if b.Used() != 150 || b.Limit() != 100 {
		t.Fatalf("used %d of %d", b.Used(), b.Limit())
	}
	if b.TryReserve(0) {
		t.Fatal("reserved nothing while over the limit")
	}
	b.Release(150)
	if b.Used() != 0 || b.TryReserve(1<<62) {
		t.Fatalf("used %d", b.Used())
	}
}

func TestBudgetConcurrentReservationsStayBelowLimit(t *testing.T) {
	b := NewBudget(10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 1000 {
				if b.TryReserve(3) {
					if used := b.Used(); used > 10 {
						t.Errorf("used %d of 10", used)
					}
					b.Release(3)
				}
			}
		}()
	}
	wg.Wait()
	if b.Used() != 0 {
		t.Fatalf("used %d at the end", b.Used())
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	a, err := NewArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	b := NewBudget(1 << 40)
	if n := testing.AllocsPerRun(1000, func() { a.Alloc(16, 8); b.TryReserve(16); b.Release(16) }); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func BenchmarkArenaAlloc(b *testing.B) {
	b.ReportAllocs()
	a, err := NewArena(1 << 24)
	if err != nil {
		b.Fatal(err)
	}
	defer a.Free()
	for b.Loop() {
		if _, ok := a.Alloc(64, 8); !ok {
			a.Reset()
		}
	}
}
