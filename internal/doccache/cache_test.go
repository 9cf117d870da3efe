package doccache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
)

func newCache(t testing.TB, bytes int64) *Cache {
	t.Helper()
	c, err := New(Options{Bytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// world is what a store would be around a cache: versions of some keys, of which
// the visible ones are those below the first that Write was not told of.
type world struct {
	t        *testing.T
	c        *Cache
	rnd      *rand.Rand
	keys     []Key
	versions [][]Doc // of each key, ascending
	next     entry.Seqno
	pending  []pendingWrite
	reads    []pendingRead
	right    int
}

type pendingWrite struct {
	key int
	doc Doc
}

// pendingRead is a reader that has been at the device.
type pendingRead struct {
	key int
	at  entry.Seqno
	doc Doc
}

// visible is the highest seqno that readers may read at.
func (w *world) visible() entry.Seqno {
	v := w.next - 1
	for i := range w.pending {
		v = min(v, w.pending[i].doc.Seqno-1)
	}
	return v
}

// truth is the version of a key at a seqno.
func (w *world) truth(key int, at entry.Seqno) (d Doc, ok bool) {
	vs := w.versions[key]
	for i := len(vs) - 1; i >= 0; i-- {
		if vs[i].Seqno <= at {
			return vs[i], true
		}
	}
	return Doc{}, false
}

func (w *world) number() {
	key := w.rnd.IntN(len(w.keys))
	d := Doc{Seqno: w.next, Kind: entry.KindDelete}
	if w.rnd.IntN(4) > 0 {
		d.Kind = entry.KindSet
		d.Value = bytes.Repeat([]byte{byte(w.next), byte(key)}, w.rnd.IntN([]int{1, 20, 400, 20_000}[w.rnd.IntN(4)]))
		if w.rnd.IntN(3) == 0 {
			d.Meta = entry.Meta{CAS: 1<<60 | uint64(w.next), Flags: w.rnd.Uint32(), Expiry: w.rnd.Uint32(), Datatype: uint8(w.next)}
		}
	}
	w.next++
	w.versions[key] = append(w.versions[key], d)
	w.pending = append(w.pending, pendingWrite{key, d})
}

func (w *world) write() {
	if len(w.pending) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.pending))
	p := w.pending[i]
	w.pending = append(w.pending[:i], w.pending[i+1:]...)
	w.c.Write(&w.keys[p.key], &p.doc)
}

// at is where some reader reads: at the visible seqno mostly, or behind it.
func (w *world) at() entry.Seqno {
	v := w.visible()
	if w.rnd.IntN(3) == 0 {
		v -= min(v, entry.Seqno(w.rnd.IntN(20)))
	}
	return v
}

func (w *world) read() {
	key, at := w.rnd.IntN(len(w.keys)), w.at()
	d, ok := w.truth(key, at)
	if !ok {
		return
	}
	w.reads = append(w.reads, pendingRead{key, at, d})
}

func (w *world) fill() {
	if len(w.reads) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.reads))
	r := w.reads[i]
	w.reads = append(w.reads[:i], w.reads[i+1:]...)
	w.c.Fill(&w.keys[r.key], r.at, &r.doc)
}

func (w *world) get() {
	key, at := w.rnd.IntN(len(w.keys)), w.at()
	want, exists := w.truth(key, at)
	var got Doc
	dst, ok := w.c.Get(&w.keys[key], at, []byte("before"), 1<<20, &got)
	if !ok {
		if string(dst) != "before" {
			w.t.Fatalf("a miss made %q of the destination", dst)
		}
		return
	}
	w.right++
	if !exists || got.Seqno != want.Seqno || got.Kind != want.Kind || got.Meta != want.Meta || !bytes.Equal(got.Value, want.Value) ||
		string(dst) != "before"+string(want.Value) {
		w.t.Fatalf("key %d at %d of %d: got %d %v %+v, %d bytes; want %v %d %v %+v, %d bytes", key, at, w.visible(),
			got.Seqno, got.Kind, got.Meta, len(got.Value), exists, want.Seqno, want.Kind, want.Meta, len(want.Value))
	}
}

// TestR16_NoOrderOfStepsServesTheWrongVersion takes the steps of many writers and
// readers in random order, each as late as it likes: numbering, Write and
// visibility of the ones, reading, Fill and Get of the others. Some keys share a
// stripe, some even the tag that names them to the core. Whatever is answered is
// what a reader at that seqno must see.
func TestR16_NoOrderOfStepsServesTheWrongVersion(t *testing.T) {
	for _, of := range []struct {
		name  string
		keys  int
		bytes int64
	}{
		{"six keys", 6, 4 << 20},
		{"more than fit", 400, 1 << 20},
		{"a tiny cache", 40, BytesMin},
	} {
		t.Run(of.name, func(t *testing.T) {
			for seed := range uint64(8) {
				w := &world{t: t, c: newCache(t, of.bytes), rnd: rand.New(rand.NewPCG(seed, 1)), next: 1}
				for i := range of.keys {
					k := Key{Hash: w.rnd.Uint64(), VBucket: uint16(i % 3), User: fmt.Appendf(nil, "key %04d", i)}
					if i%3 == 1 { // the word of the key before
						k.Hash = k.Hash&^0xffff | w.keys[i-1].Hash&0xffff
					}
					if i%6 == 5 { // its tag
						k.Hash, k.VBucket = w.keys[i-1].Hash, w.keys[i-1].VBucket
					}
					w.keys = append(w.keys, k)
				}
				w.versions = make([][]Doc, len(w.keys))
				for range 20_000 {
					switch p := w.rnd.IntN(20); {
					case p < 2:
						w.number()
					case p < 4 || len(w.pending) > 12:
						w.write()
					case p < 8:
						w.read()
					case p < 12 || len(w.reads) > 30:
						w.fill()
					default:
						w.get()
					}
				}
				s := w.c.Stats()
				if w.right == 0 || s.Hits == 0 || s.NegativeHits == 0 || s.Fills == 0 || s.Refused == 0 || s.Refreshed == 0 || s.Dropped == 0 || s.MissesNewer == 0 {
					t.Errorf("seed %d met too little: %+v", seed, s)
				}
				if of.keys > 6 && s.Evicted == 0 {
					t.Errorf("seed %d evicted nothing: %+v", seed, s)
				}
				if s.Bytes > s.Limit || s.Limit != of.bytes {
					t.Errorf("seed %d: %d bytes in use, the limit is %d of %d", seed, s.Bytes, s.Limit, of.bytes)
				}
			}
		})
	}
}

// TestWordsAreOfTheirStripe: a write refuses fills of the keys that share its
// word, and of no others, for reads below it.
func TestWordsAreOfTheirStripe(t *testing.T) {
	c := newCache(t, BytesMin)
	a := Key{Hash: 0x1234_0000_0000_0007, User: []byte("a")}
	same := Key{Hash: a.Hash, VBucket: 1, User: []byte("another")}
	other := Key{Hash: a.Hash + 1, User: []byte("other")}
	c.Write(&a, &Doc{Seqno: 10, Value: []byte("a")})
	for _, k := range []*Key{&a, &other} {
		c.Fill(k, 9, &Doc{Seqno: 5, Value: []byte("value")})
	}
	var d Doc
	if _, ok := c.Get(&a, 9, nil, 100, &d); ok {
		t.Error("a fill at 9 came in after a write at 10")
	}
	if _, ok := c.Get(&other, 9, nil, 100, &d); !ok {
		t.Error("a fill was refused for a key of another stripe")
	}
	c.Fill(&a, 10, &Doc{Seqno: 10, Value: []byte("a")})
	if _, ok := c.Get(&a, 10, nil, 100, &d); !ok || d.Seqno != 10 {
		t.Errorf("a fill at the word was refused: %+v", d)
	}
	if c.core.Index(a.tag()) == c.core.Index(same.tag()) { // one shard: certain
		c.Fill(&same, 9, &Doc{Seqno: 5, Value: []byte("value")})
		if _, ok := c.Get(&same, 9, nil, 100, &d); ok {
			t.Error("a fill at 9 came in below the word of its stripe")
		}
	} else {
		t.Error("a cache of 1 MiB has several shards")
	}
}

// TestSizes: documents of every size up to the bound are kept whole, also when
// they are rewritten by shorter and longer ones; beyond the bound the old one
// goes.
func TestSizes(t *testing.T) {
	c := newCache(t, 16<<20)
	k := Key{Hash: 1, VBucket: 7, User: bytes.Repeat([]byte("k"), 65535)}
	short := Key{Hash: 2, VBucket: 7, User: []byte("k")}
	seqno := entry.Seqno(0)
	for _, k := range []*Key{&k, &short} {
		for _, n := range []int{0, 1, 15, 16, 17, 100, 90, 60, 4096, 4000, 10_000, 0, 40_000, 39_000, 100_000, 180_000} {
			for _, meta := range []entry.Meta{{}, {Flags: 1}, {CAS: 1 << 63, Datatype: 255, Expiry: 1<<32 - 1}} {
				seqno++
				value := bytes.Repeat([]byte{byte(seqno)}, n)
				want := Doc{Seqno: seqno, Meta: meta, Value: value}
				if seqno%2 == 0 {
					c.Write(k, &want)
				}
				c.Fill(k, seqno, &want)
				var d Doc
				_, ok := c.Get(k, seqno, nil, n, &d)
				fits := size(k, &want) <= c.core.ObjectBytesMax()
				if ok != fits || ok && (d.Seqno != seqno || d.Meta != meta || !bytes.Equal(d.Value, value)) {
					t.Fatalf("%d bytes of key, %d of value: %v %d %+v, %d bytes", len(k.User), n, ok, d.Seqno, d.Meta, len(d.Value))
				}
				if n > 0 && ok {
					if _, ok := c.Get(k, seqno, nil, n-1, &d); ok {
						t.Fatalf("%d bytes were answered to a reader with room for %d", n, n-1)
					}
					if dst, ok := c.Get(k, seqno, nil, NoValue, &d); !ok || len(dst)+len(d.Value) > 0 || d.Seqno != seqno {
						t.Fatalf("without the value: %v %+v", ok, d)
					}
				}
			}
		}
	}
	seqno++
	c.Write(&short, &Doc{Seqno: seqno, Value: []byte("there")})
	c.Fill(&short, seqno, &Doc{Seqno: seqno, Value: []byte("there")})
	before := c.Stats()
	seqno++
	c.Write(&short, &Doc{Seqno: seqno, Value: make([]byte, 1<<20)})
	var d Doc
	if _, ok := c.Get(&short, seqno, nil, 1<<21, &d); ok {
		t.Errorf("after a document too large %d is there", d.Seqno)
	}
	if s := c.Stats(); s.Dropped != before.Dropped+1 || s.Documents != before.Documents-1 {
		t.Errorf("%+v, before %+v", s, before)
	}
}

func TestShards(t *testing.T) {
	for _, of := range []struct {
		bytes int64
		procs int
		want  int
	}{
		{BytesMin, 64, 1}, {31 << 20, 64, 1}, {32 << 20, 64, 2}, {64 << 20, 1, 2}, {64 << 20, 2, 4}, {64 << 20, 64, 4},
		{1 << 30, 1, 32}, {1 << 30, 16, 32}, {1 << 30, 64, 64}, {1 << 40, 1, 64}, {1 << 40, 256, 64},
	} {
		if got := shardsFor(of.bytes, of.procs); got != of.want {
			t.Errorf("%d bytes, %d processors: %d shards, want %d", of.bytes, of.procs, got, of.want)
		}
	}
}

func TestNewRefusesWhatIsTooSmall(t *testing.T) {
	for _, n := range []int64{-1, 0, BytesMin - 1} {
		if c, err := New(Options{Bytes: n}); err == nil {
			c.Close()
			t.Errorf("a cache of %d bytes", n)
		}
	}
}

// TestAUniformStreamLeavesHotDocuments: documents that are read again and again
// stay while others come once, several times as many as fit.
func TestAUniformStreamLeavesHotDocuments(t *testing.T) {
	c := newCache(t, 4<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	value := make([]byte, 1000)
	hot := make([]Key, 1000) // a quarter of what fits, about
	for i := range hot {
		hot[i] = Key{Hash: rnd.Uint64(), User: fmt.Appendf(nil, "hot%d", i)}
	}
	var d Doc
	var dst []byte
	hits, asked := 0, 0
	for i := range 60_000 {
		k := Key{Hash: rnd.Uint64(), User: fmt.Appendf(nil, "cold%d", i)}
		c.Fill(&k, 1, &Doc{Seqno: 1, Value: value})
		h := &hot[rnd.IntN(len(hot))]
		var ok bool
		if dst, ok = c.Get(h, 1, dst[:0], 1<<20, &d); !ok {
			c.Fill(h, 1, &Doc{Seqno: 1, Value: value})
		}
		if i > 20_000 {
			asked++
			if ok {
				hits++
			}
		}
	}
	if hits*100 < asked*95 {
		t.Errorf("%d of %d reads of hot documents were answered, want 95 %%", hits, asked)
	}
}

func TestNothingAllocates(t *testing.T) {
	if invariants.Enabled {
		t.Skip("race builds allocate in the runtime")
	}
	c := newCache(t, 4<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	keys := make([]Key, 10_000)
	for i := range keys {
		keys[i] = Key{Hash: rnd.Uint64(), User: fmt.Appendf(nil, "key%d", i)}
	}
	value := make([]byte, 1000)
	seqno := entry.Seqno(0)
	dst := make([]byte, 0, 1<<16)
	if n := testing.AllocsPerRun(50_000, func() {
		seqno++
		k := &keys[rnd.IntN(len(keys))]
		c.Touch(k)
		var d Doc
		if dst, ok := c.Get(k, seqno, dst[:0], 1<<20, &d); ok && len(dst) > 0 {
			c.Write(k, &Doc{Seqno: seqno, Value: value[:seqno%1000]})
		} else {
			c.Fill(k, seqno, &Doc{Seqno: seqno, Value: value[:seqno%1000]})
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if s := c.Stats(); s.Hits == 0 || s.Fills == 0 || s.Refreshed == 0 || s.Evicted == 0 {
		t.Errorf("%+v", s)
	}
}
