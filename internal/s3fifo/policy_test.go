package s3fifo

import (
	"container/list"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"fluxkv/internal/offheap"
)

// lru is the cache that everybody compares with: the plainest LRU of a number
// of bytes, without any overhead.
type lru struct {
	bytes, bytesMax int
	order           *list.List // of lruObject
	at              map[uint64]*list.Element
}

type lruObject struct {
	key   uint64
	bytes int
}

func newLRU(bytesMax int) *lru {
	return &lru{bytesMax: bytesMax, order: list.New(), at: map[uint64]*list.Element{}}
}

func (l *lru) read(k uint64, n int) bool {
	if e, ok := l.at[k]; ok {
		l.order.MoveToFront(e)
		return true
	}
	for l.bytes+n > l.bytesMax {
		old := l.order.Remove(l.order.Back()).(lruObject)
		delete(l.at, old.key)
		l.bytes -= old.bytes
	}
	l.bytes += n
	l.at[k] = l.order.PushFront(lruObject{k, n})
	return false
}

// zipf draws ranks below n with probability in proportion to 1/(rank+1)^s, by
// the inverse of the sum of probabilities; rand.Zipf needs s > 1.
type zipf struct {
	sums []float64
	rng  *rand.Rand
}

func newZipf(n int, s float64, seed uint64) *zipf {
	z := &zipf{make([]float64, n), rand.New(rand.NewPCG(seed, 99))}
	sum := 0.0
	for i := range z.sums {
		sum += math.Pow(float64(i+1), -s)
		z.sums[i] = sum
	}
	return z
}

func (z *zipf) draw() uint64 {
	x := z.rng.Float64() * z.sums[len(z.sums)-1]
	return uint64(sort.SearchFloat64s(z.sums, x))
}

// read looks up and, on a miss, puts, as a reader does.
func read(t testing.TB, c *Cache, k uint64, n int) bool {
	if get(t, c, Tag{k}) {
		return true
	}
	if !put(c, Tag{k}, n, Low) {
		t.Fatalf("object %d of %d bytes was refused", k, n)
	}
	return false
}

const blockBytes = 4080

// playZipf returns how many of reads hit in the cache and in an LRU of so many
// bytes, after a third as many that fill both.
func playZipf(t *testing.T, c *Cache, l *lru, z *zipf, reads int, size func(k uint64) int) (ours, theirs int) {
	for i := range reads + reads/3 {
		k := z.draw()
		hit, lruHit := read(t, c, k, size(k)), l.read(k, size(k))
		if i < reads/3 {
			continue
		}
		if hit {
			ours++
		}
		if lruHit {
			theirs++
		}
	}
	t.Logf("S3-FIFO %.4f LRU %.4f", float64(ours)/float64(reads), float64(theirs)/float64(reads))
	return ours, theirs
}

func TestZipfHitRatioIsAtLeastThatOfLRU(t *testing.T) {
	slowWithRace(t)
	const objects, objectBytes = 20_000, 1000
	for _, tc := range []struct{ s, share float64 }{{0.99, 0.1}, {0.99, 0.01}, {0.7, 0.1}, {1.2, 0.1}} {
		// Memory for a share of the slots: table, ghosts and what chunks leave
		// unused go off it.
		c := newCache(t, Options{Bytes: int64(tc.share * objects * (objectBytes + 48)), Shards: 1})
		l := newLRU(int(tc.share * objects * objectBytes))
		ours, theirs := playZipf(t, c, l, newZipf(objects, tc.s, 7), 150_000, func(uint64) int { return objectBytes })
		if ours < theirs {
			t.Errorf("zipf %v with %v of the objects: %d hits, LRU %d", tc.s, tc.share, ours, theirs)
		}
		checkCache(t, c)
	}
}

// Sizes of many classes at once must not leave much memory in slots of the
// wrong ones.
func TestMixedSizesAreAsGoodAsLRU(t *testing.T) {
	slowWithRace(t)
	c := newCache(t, Options{Bytes: 16 << 20, Shards: 1})
	// From 64 bytes to 8 KiB, as many of each power of two.
	size := func(k uint64) int {
		x := hashOf(Tag{k, 5})
		n := 64 << (x % 7)
		return n + int(x>>8)%n
	}
	ours, theirs := playZipf(t, c, newLRU(16<<20), newZipf(100_000, 0.99, 7), 250_000, size)
	s := c.Stats()
	if ours < theirs || s.ObjectBytes[Low] < s.Bytes*85/100 {
		t.Errorf("%d hits, LRU %d, %+v", ours, theirs, s)
	}
	checkCache(t, c)
}

// slowWithRace skips tests of one goroutine that make many reads: the race
// detector has nothing to see in them, and other builds run them.
func slowWithRace(t *testing.T) {
	t.Helper()
	if offheap.OnGoHeap && testing.Short() {
		t.Skip("slow in the race build")
	}
}

func TestScanDoesNotPushOutHotObjects(t *testing.T) {
	slowWithRace(t)
	c := newCache(t, Options{Bytes: 16 << 20, Shards: 1})
	const hot = 2500 // 10 MiB
	for range 4 {
		for k := range uint64(hot) {
			read(t, c, k, blockBytes)
		}
	}
	// Each object of the scan once; the hot set is not even read meanwhile.
	for k := range uint64(50_000) {
		read(t, c, 1<<32+k, blockBytes)
	}
	found := 0
	for k := range uint64(hot) {
		if get(t, c, Tag{k}) {
			found++
		}
	}
	if found < hot*99/100 {
		t.Fatalf("after a scan %d of %d hot objects are there: %+v", found, hot, c.Stats())
	}
	checkCache(t, c)
}

// A lower limit takes what the queues would give up, not what happens to lie in
// a chunk; many small steps no more than a large one.
func TestShrinkingKeepsWhatIsUsed(t *testing.T) {
	const bytes = 16 << 20
	for _, steps := range []int64{1, 60} {
		c := newCache(t, Options{Bytes: bytes, Shards: 1})
		for k := range uint64(300) {
			if !put(c, Tag{k, 1}, blockBytes, High) {
				t.Fatal("refused")
			}
		}
		const hot = 1200 // 5 MiB, with others between that are read once
		once := uint64(0)
		for range 4 {
			for k := range uint64(hot) {
				read(t, c, k, blockBytes)
				once++
				read(t, c, 1<<32+once, blockBytes)
			}
		}
		for i := range steps {
			c.Resize(bytes - (i+1)*bytes/2/steps)
		}
		found := 0
		for k := range uint64(hot) {
			if get(t, c, Tag{k}) {
				found++
			}
		}
		s := c.Stats()
		if found < hot*95/100 || s.Evicted[High] != 0 || s.Bytes > bytes/2 {
			t.Errorf("%d steps: %d of %d hot objects are left: %+v", steps, found, hot, s)
		}
		checkCache(t, c)
	}
}

func TestUniformMissesDoNotChurnMain(t *testing.T) {
	slowWithRace(t)
	c := newCache(t, Options{Bytes: 8 << 20, Shards: 1})
	const hot = 1700 // nine tenths of what fits
	for range 4 {
		for k := range uint64(hot) {
			read(t, c, k, blockBytes)
		}
	}
	for k := range uint64(4000) { // everything else leaves
		read(t, c, 1<<40+k, blockBytes)
	}
	before := c.Stats()
	rng := rand.New(rand.NewPCG(3, 3))
	for range 100_000 {
		// So many objects that one comes back before its ghost has left in two
		// cases of a thousand.
		read(t, c, 1<<32+rng.Uint64N(1_000_000), blockBytes)
	}
	s := c.Stats()
	if into := s.Promotions + s.GhostHits - before.Promotions - before.GhostHits; into > 500 {
		t.Errorf("%d objects came into the main queue", into)
	}
	found := 0
	for k := range uint64(hot) {
		if get(t, c, Tag{k}) {
			found++
		}
	}
	if found < hot*3/4 {
		t.Errorf("%d of %d hot objects survived: %+v", found, hot, s)
	}
	if small, all := s.SmallBytes, s.ObjectBytes[Low]; small > all/7 {
		t.Errorf("the small queue has %d of %d bytes", small, all)
	}
}

func TestGhostsBringBack(t *testing.T) {
	c := newCache(t, Options{Bytes: 8 << 20, Shards: 1})
	for k := range uint64(6000) {
		read(t, c, 1<<32+k, blockBytes) // fills main's share with nothing: all are new
	}
	back := uint64(1<<32 + 6000 - 2500)
	for get(t, c, Tag{back}) {
		back--
	}
	// One that left the small queue lately goes to the main queue at once, and
	// stays there while ten times the small queue passes by.
	if read(t, c, back, blockBytes) {
		t.Fatal("it is there")
	}
	if s := c.Stats(); s.GhostHits != 1 {
		t.Fatalf("%d ghost hits, want 1", s.GhostHits)
	}
	for k := range uint64(20_000) {
		read(t, c, 1<<33+k, blockBytes)
	}
	if !get(t, c, Tag{back}) {
		t.Fatalf("what came back was evicted by what was new: %+v", c.Stats())
	}
	// A ghost does not stay for ever.
	if read(t, c, 1<<32, blockBytes); c.Stats().GhostHits != 1 {
		t.Fatal("a ghost of long ago brought an object back")
	}
}

func TestHighStaysUntilItsShareIsFull(t *testing.T) {
	// The others cannot use the last huge page to its end.
	for _, o := range []Options{{Bytes: 32 << 20, Shards: 1}, {Bytes: 21<<20 - 1, BytesMax: 100 << 20, Shards: 1}, {Bytes: 19 << 20, BytesMax: 1 << 30, Shards: 2}} {
		highStays(t, newCache(t, o))
	}
}

func highStays(t *testing.T, c *Cache) {
	t.Helper()
	const high = 3000 // 12 MiB
	for k := range uint64(high) {
		if !put(c, Tag{k, 1}, blockBytes, High) {
			t.Fatal("refused")
		}
	}
	for k := range uint64(20_000) {
		read(t, c, 1<<32+k, 1000+int(k%3)*1500)
		read(t, c, 1<<32+k, 1000+int(k%3)*1500)
	}
	if s := c.Stats(); s.Evicted[High] != 0 || s.Objects[High] != high || s.Evicted[Low] == 0 {
		t.Fatalf("objects of low priority evicted others: %+v", s)
	}
	// More than fits: low keeps its sixteenth, high goes round among itself.
	for k := range uint64(10_000) {
		if !put(c, Tag{1000 + k, 2}, blockBytes, High) {
			t.Fatal("refused")
		}
	}
	s := c.Stats()
	if s.Evicted[High] == 0 || s.ObjectBytes[High] < s.Limit*8/10 || s.Objects[Low] == 0 {
		t.Fatalf("%+v", s)
	}
	for k := range uint64(1000) {
		read(t, c, 1<<33+k, 3000)
	}
	if after := c.Stats(); after.Evicted[High] != s.Evicted[High] || after.Objects[Low] < 100 {
		t.Fatalf("low got nothing, or at the cost of high: %+v", after)
	}
	checkCache(t, c)
}

// With one chunk both priorities must still be able to get in.
func TestTinyCacheTakesBothPriorities(t *testing.T) {
	c := newCache(t, Options{Bytes: 64 << 10})
	for i := range uint64(200) {
		p := Priority(i / 5 % 2)
		if !put(c, Tag{i}, 1000, p) || !get(t, c, Tag{i}) {
			t.Fatalf("object %d of priority %d was refused: %+v", i, p, c.Stats())
		}
		checkCache(t, c)
	}
}
