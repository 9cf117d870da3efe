package s3fifo

import (
	"math/rand/v2"
	"testing"
)

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{
		{Bytes: -1},
		{Bytes: 1 << 20, Shards: -1},
		{Bytes: 1 << 20, Shards: 3},
		{Bytes: 1 << 20, Shards: 512},
		{Bytes: 1 << 20, ObjectBytes: -1},
		{Bytes: 1 << 20, ObjectBytes: objectBytesMax + 1},
		{Bytes: 1 << 40, Shards: 1},
	} {
		if c, err := New(o); err == nil {
			c.Close()
			t.Errorf("%+v: want an error", o)
		}
	}
}

func TestOffFindsNothing(t *testing.T) {
	for _, o := range []Options{{}, {Bytes: 100}, {BytesMax: 1 << 20}, {Bytes: 40 << 10}} {
		c := newCache(t, o)
		tag := Tag{1, 2}
		c.Touch(tag)
		if put(c, tag, 10, Low) || put(c, tag, 10, High) || get(t, c, tag) {
			t.Errorf("%+v: an object was taken", o)
		}
		if s := c.Stats(); s.Bytes > s.Limit || s.Refused != 2 || s.Misses != 1 {
			t.Errorf("%+v: %+v", o, s)
		}
		checkCache(t, c)
	}
}

func TestClasses(t *testing.T) {
	for chunkBytes := chunkBytesMin; chunkBytes <= 16<<20; chunkBytes *= 2 {
		k := newClasses(chunkBytes)
		exact := false
		for i, bytes := range k.bytes {
			c := k.all[i]
			if int(c.slotBytes) < bytes+headerBytes || c.slotBytes%slotAlign != 0 || c.slotBytes >= alignedFrom && c.slotBytes%64 != 0 || int(c.slotBytes*c.slots) > chunkBytes || c.slots == 0 {
				t.Errorf("chunk %d: class of %d bytes is %+v", chunkBytes, bytes, c)
			}
			exact = exact || bytes >= 4096 && bytes < 4096+64
			if i == 0 {
				continue
			}
			step := bytes - k.bytes[i-1]
			if step <= 0 || step > 16 && bytes < chunkBytes/8-headerBytes && step*8 > k.bytes[i-1]+64*8 {
				t.Errorf("chunk %d: step from %d to %d", chunkBytes, k.bytes[i-1], bytes)
			}
		}
		if largest := k.bytes[len(k.bytes)-1]; largest != chunkBytes-headerBytes {
			t.Errorf("chunk %d: the largest object is %d", chunkBytes, largest)
		}
		if chunkBytes >= 64<<10 && !exact {
			t.Errorf("chunk %d: no class for just 4096 bytes", chunkBytes)
		}
		for n := range 1 << 15 {
			if n > chunkBytes-headerBytes {
				break
			}
			if i := k.find(n); k.bytes[i] < n || i > 0 && k.bytes[i-1] >= n {
				t.Fatalf("chunk %d: %d bytes are of class %d", chunkBytes, n, i)
			}
		}
	}
}

func TestObjectsKeepTheirBytes(t *testing.T) {
	c := newCache(t, Options{Bytes: 8 << 20, Shards: 4, Owners: true})
	rng := rand.New(rand.NewPCG(1, 2))
	kept := 0
	for i := range uint64(20_000) {
		tag := Tag{i % 50, i}
		if !put(c, tag, rng.IntN(9000), Priority(i%8/7)) {
			t.Fatalf("object %d was refused", i)
		}
		if get(t, c, Tag{rng.Uint64N(50), rng.Uint64N(i + 1)}) {
			kept++
		}
		if i%4000 == 0 {
			checkCache(t, c)
		}
	}
	checkCache(t, c)
	s := c.Stats()
	if s.Bytes > s.Limit || s.Bytes < s.Limit*9/10 || kept == 0 {
		t.Fatalf("%d found, %+v", kept, s)
	}
	n := s.Objects[Low] + s.Objects[High]
	removals := 0
	for owner := range uint64(50) {
		for i := range c.Shards() {
			sh := &c.Shards()[i]
			sh.Lock()
			removals += sh.RemoveOwner(owner)
			sh.Unlock()
		}
	}
	if s = c.Stats(); int64(removals) != n || s.Objects[Low] != 0 || s.Objects[High] != 0 {
		t.Fatalf("%d of %d objects removed, %+v", removals, n, s)
	}
	checkCache(t, c)
}

func TestLargestObject(t *testing.T) {
	c := newCache(t, Options{Bytes: 64 << 20, ObjectBytes: 1 << 20})
	n := c.ObjectBytesMax()
	if n < 1<<20 || !put(c, Tag{1}, n, Low) || !get(t, c, Tag{1}) || put(c, Tag{2}, n+1, Low) {
		t.Fatalf("the largest object of %d bytes: %+v", n, c.Stats())
	}
	checkCache(t, c)
}

// A change of sizes must not strand memory in the classes of the old ones.
func TestNewSizesGetTheMemory(t *testing.T) {
	slowWithRace(t)
	c := newCache(t, Options{Bytes: 16 << 20, Shards: 1})
	next := uint64(0)
	for _, size := range []int{4000, 100, 20_000, 700, 4000} {
		for range 3 * 16 << 20 / (size + headerBytes) {
			next++
			if !put(c, Tag{next}, size, Low) {
				t.Fatalf("size %d: refused, %+v", size, c.Stats())
			}
		}
		checkCache(t, c)
		found := 0
		for i := next; i > 0 && get(t, c, Tag{i}); i-- {
			found++
		}
		// All of them new, so all of them in the small queue: the newest are there.
		if bytes := found * (size + headerBytes); bytes < 10<<20 {
			t.Errorf("size %d: only %d bytes of the newest %d objects are there: %+v", size, bytes, found, c.Stats())
		}
	}
}

// With everything pinned nothing more fits, and nothing breaks: what is pinned
// stays, also when the limit falls, and memory comes back with the last Unpin.
func TestEverythingPinned(t *testing.T) {
	for _, n := range []int{3000, 16} {
		const bytes = 2 << 20
		c := newCache(t, Options{Bytes: bytes, Shards: 1, Owners: true})
		s := c.Shard(Tag{})
		type pin struct {
			o Obj
			t Tag
		}
		var pins []pin
		// insert puts and pins until there is no room.
		insert := func(from uint64, p Priority) {
			for i := from; ; i++ {
				tag := Tag{i % 3, i}
				s.Lock()
				o, b, ok := s.Insert(tag, n, p)
				if ok {
					fill(b, tag)
					s.Pin(o)
					pins = append(pins, pin{o, tag})
				}
				s.Unlock()
				if !ok {
					break
				}
			}
			checkCache(t, c)
		}
		insert(0, Low)
		low := len(pins)
		insert(1<<32, High)
		check := func(when string) {
			t.Helper()
			for _, p := range pins {
				if !filled(s.Bytes(p.o), p.t) {
					t.Fatalf("%s: pinned object %x changed", when, p.t)
				}
			}
			checkCache(t, c)
		}
		check("full")
		if st := c.Stats(); st.Evicted != [2]uint64{} || st.Bytes > st.Limit || st.ObjectBytes[Low] < bytes/2 || st.Refused != 2 {
			t.Fatalf("%d pinned of low priority, %+v", low, st)
		}
		c.Resize(bytes / 4)
		check("smaller")
		if get(t, c, pins[0].t) && get(t, c, pins[low-1].t) && get(t, c, pins[low/2].t) {
			t.Error("pinned objects beyond the limit are still found")
		}
		for i, p := range pins {
			s.Unpin(p.o)
			if i%(len(pins)/4+1) == 0 {
				checkCache(t, c)
			}
		}
		pins = nil
		checkCache(t, c)
		if st := c.Stats(); st.Bytes > st.Limit {
			t.Errorf("nothing is pinned any more: %+v", st)
		}
		c.Resize(bytes)
		for i := range uint64(2000) {
			if !put(c, Tag{i, 1 << 40}, n, Priority(i%2)) {
				t.Fatalf("object %d was refused: %+v", i, c.Stats())
			}
		}
		checkCache(t, c)
	}
}

func TestHighPinnedMakesLowGoOn(t *testing.T) {
	c := newCache(t, Options{Bytes: 1 << 20, Shards: 1})
	s := c.Shard(Tag{})
	var pins []Obj
	for i := uint64(0); ; i++ {
		s.Lock()
		o, b, ok := s.Insert(Tag{i}, blockBytes, High)
		if ok {
			fill(b, Tag{i})
			s.Pin(o)
			pins = append(pins, o)
		}
		s.Unlock()
		if !ok {
			break
		}
	}
	for i := range uint64(100) {
		if !put(c, Tag{i, 1}, blockBytes, Low) || !get(t, c, Tag{i, 1}) {
			t.Fatalf("%d objects of high priority pinned, %d of low taken: %+v", len(pins), i, c.Stats())
		}
	}
	checkCache(t, c)
	for _, o := range pins {
		s.Unpin(o)
	}
}
