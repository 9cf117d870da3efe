package doccache

import (
	"fmt"
	"runtime"
	"unsafe"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/s3fifo"
)

// BytesMin is the least that a cache can have.
const BytesMin = 128 << 10

// Options are the settings of a Cache.
type Options struct {
	// Bytes is the limit of all memory of the cache, at least BytesMin.
	Bytes int64
}

const (
	// wordsMax stripes are as many as the commits of a store have. Smaller caches
	// have one for each wordEvery bytes: a write makes the fills of its stripe
	// wait until it is visible, durable in a durable store, so few stripes cost
	// fills, not answers.
	wordsMax  = 1 << 16
	wordEvery = 512
	wordBytes = int(unsafe.Sizeof(entry.Seqno(0)))
)

// Cache holds at most one version of a key. Its methods are safe for concurrent
// use, except Close. None allocates.
type Cache struct {
	core   *s3fifo.Cache
	states []state // of the shards of core
	words  []byte  // of all shards, off the heap
	limit  int64
}

// state is what the lock of a shard guards beside its objects.
type state struct {
	// words has for each stripe of keys the seqno of the highest write to it that
	// Write was told of.
	words  []entry.Seqno
	counts counts
	_      [64]byte // of the next shard's
}

// counts only grow.
type counts struct {
	hits, negative, misses, newer      int64
	fills, refused, refreshed, dropped int64
	tooLarge                           int64
}

// New returns an empty cache. Close gives its memory back.
func New(o Options) (*Cache, error) {
	if o.Bytes < BytesMin {
		return nil, fmt.Errorf("doccache: a limit of %d bytes, want at least %d", o.Bytes, BytesMin)
	}
	words := wordsMax
	for int64(words)*wordEvery > o.Bytes {
		words /= 2
	}
	c := &Cache{limit: o.Bytes}
	var err error
	if c.words, err = offheap.Map(words * wordBytes); err != nil {
		return nil, fmt.Errorf("doccache: %w", err)
	}
	left := o.Bytes - int64(len(c.words))
	if c.core, err = s3fifo.New(s3fifo.Options{Bytes: left, Shards: shardsFor(left, runtime.GOMAXPROCS(0))}); err != nil {
		offheap.Unmap(c.words)
		return nil, fmt.Errorf("doccache: %w", err)
	}
	c.states = make([]state, len(c.core.Shards()))
	all := unsafe.Slice((*entry.Seqno)(unsafe.Pointer(unsafe.SliceData(c.words))), words)
	each := words / len(c.states)
	for i := range c.states {
		c.states[i].words = all[i*each : (i+1)*each : (i+1)*each]
	}
	return c, nil
}

// shardsFor returns how many locks a cache has: documents are copied under them,
// and every write takes one. They are two for each processor, as long as a shard
// has 16 MiB, and more where shards would be so large that doubling a table takes
// long.
func shardsFor(bytes int64, procs int) int {
	n := 1
	for n < 64 && (n < 2*procs && bytes/int64(2*n) >= 16<<20 || bytes/int64(2*n) >= 32<<20) {
		n *= 2
	}
	return n
}

// Close gives the memory back. Nobody may use the cache meanwhile, or afterwards.
func (c *Cache) Close() {
	c.core.Close()
	offheap.Unmap(c.words)
	c.words, c.states = nil, nil
}

// tag names a key to the core. Keys that share one are told apart by their
// bytes, and push each other out.
func (k *Key) tag() s3fifo.Tag {
	return s3fifo.Tag{k.Hash, uint64(k.VBucket)<<32 | uint64(len(k.User))}
}

// Touch loads the place where k would be, without a lock, so that the cache
// misses of a batch overlap.
func (c *Cache) Touch(k *Key) { c.core.Touch(k.tag()) }

// locked is a shard whose lock is held.
type locked struct {
	shard *s3fifo.Shard
	*state
	tag s3fifo.Tag
}

func (c *Cache) lock(k *Key) (l locked) {
	l.tag = k.tag()
	i := c.core.Index(l.tag)
	l.shard, l.state = &c.core.Shards()[i], &c.states[i]
	l.shard.Lock()
	return l
}

// word is that of the stripe of k.
func (s *state) word(k *Key) *entry.Seqno { return &s.words[k.Hash&uint64(len(s.words)-1)] }

// find returns what is kept of k; b is nil when it is nothing.
func (l *locked) find(k *Key) (o s3fifo.Obj, b []byte) {
	o, ok := l.shard.Find(l.tag)
	if !ok {
		return 0, nil
	}
	if b = l.shard.Bytes(o); !matches(b, k) {
		return o, nil
	}
	return o, b
}

// NoValue is a limit for Get that leaves the value where it is.
const NoValue = -1

// Get looks for the version of k that a reader at seqno at sees. d is written
// and true returned when the cache knows it: the value of at most limit bytes is
// appended to dst, and d.Value is the appended part; with NoValue there is none.
// A version above at, or too long, is not there. at must not be above the visible
// seqno.
func (c *Cache) Get(k *Key, at entry.Seqno, dst []byte, limit int, d *Doc) ([]byte, bool) {
	l := c.lock(k)
	defer l.shard.Unlock()
	o, b := l.find(k)
	if b == nil {
		l.counts.misses++
		l.shard.Miss()
		return dst, false
	}
	l.shard.Hit(o)
	if seqnoOf(b) > at && !mutant.ServeAboveReadSeqno {
		l.counts.newer++
		return dst, false
	}
	value := decode(b, d)
	if limit == NoValue {
		value = nil
	} else if len(value) > limit {
		l.counts.misses++
		return dst, false
	}
	if d.Kind == entry.KindDelete {
		l.counts.negative++
		return dst, true
	}
	l.counts.hits++
	n := len(dst)
	dst = append(dst, value...)
	d.Value = dst[n:len(dst):len(dst)]
	return dst, true
}

// Fill offers what a reader at seqno at found to be the version of k. It is
// refused when a write to the stripe of k came since: then the version may have
// been replaced, by a write that was here and found nothing to replace. k.User
// and d are copied.
func (c *Cache) Fill(k *Key, at entry.Seqno, d *Doc) {
	n := size(k, d)
	l := c.lock(k)
	defer l.shard.Unlock()
	if at < *l.word(k) && !mutant.FillBelowWord {
		l.counts.refused++
		return
	}
	o, b := l.find(k)
	if b != nil && seqnoOf(b) >= d.Seqno {
		return // another reader was faster
	}
	if l.put(o, b, k, d, n) {
		l.counts.fills++
	}
}

// Write tells of a write to k that readers do not see yet, and must be called
// for each write before they do. The seqno is noted in the word of the stripe;
// then what is kept of k is replaced by d, or dropped when d does not fit or the
// word is above it. A key that is not there stays out. k.User and d are copied.
func (c *Cache) Write(k *Key, d *Doc) {
	if mutant.KeepOnWrite {
		return
	}
	n := size(k, d)
	l := c.lock(k)
	defer l.shard.Unlock()
	word := l.word(k)
	above := *word > d.Seqno
	if !above {
		*word = d.Seqno
	}
	o, b := l.find(k)
	switch {
	case b == nil || seqnoOf(b) > d.Seqno: // a later write was faster
	case above:
		l.shard.Remove(o)
		l.counts.dropped++
	case l.put(o, b, k, d, n):
		l.counts.refreshed++
	default:
		l.counts.dropped++
	}
}

// put keeps d, of n bytes encoded, in the place of o, unless that is 0. b is
// what o holds of k; nil if it is another key with the same tag. It reports false
// when d does not fit; o is gone then.
func (l *locked) put(o s3fifo.Obj, b []byte, k *Key, d *Doc, n int) bool {
	if b != nil && n <= len(b) && n > len(b)/4*3 {
		encode(b, k, d) // its place in the queue is earned
		return true
	}
	if o != 0 {
		l.shard.Remove(o)
	}
	_, b, ok := l.shard.Insert(l.tag, (n+15)&^15, s3fifo.Low) // as slots are cut
	if !ok {
		l.counts.tooLarge++
		return false
	}
	encode(b, k, d)
	return true
}

// Stats is what a cache counted since New, and what it holds.
type Stats struct {
	Limit     int64 `json:"limit"` // bytes of all its memory
	Bytes     int64 `json:"bytes"` // in use
	Documents int64 `json:"documents"`

	Hits         int64 `json:"hits"`          // answered with a document
	NegativeHits int64 `json:"negative_hits"` // known to be deleted
	Misses       int64 `json:"misses"`
	// MissesNewer were asked for a version older than the one that is there; they
	// are not among Misses.
	MissesNewer int64 `json:"misses_newer"`
	Fills       int64 `json:"fills"`
	Refused     int64 `json:"refused_fills"` // a write came meanwhile
	Refreshed   int64 `json:"refreshed"`     // replaced by a write
	Dropped     int64 `json:"dropped"`       // taken out by a write
	// TooLarge are fills and refreshes for which there is no room.
	TooLarge int64 `json:"too_large"`
	Evicted  int64 `json:"evicted"`
	// GhostHits came back soon after they were evicted.
	GhostHits int64 `json:"ghost_hits"`
}

// Stats adds up all shards, one after the other.
func (c *Cache) Stats() Stats {
	core := c.core.Stats()
	s := Stats{
		Limit: c.limit, Bytes: core.Bytes + int64(len(c.words)), Documents: core.Objects[s3fifo.Low],
		Evicted: int64(core.Evicted[s3fifo.Low]), GhostHits: int64(core.GhostHits),
	}
	shards := c.core.Shards()
	for i := range c.states {
		shards[i].Lock()
		n := c.states[i].counts
		shards[i].Unlock()
		s.Hits += n.hits
		s.NegativeHits += n.negative
		s.Misses += n.misses
		s.MissesNewer += n.newer
		s.Fills += n.fills
		s.Refused += n.refused
		s.Refreshed += n.refreshed
		s.Dropped += n.dropped
		s.TooLarge += n.tooLarge
	}
	return s
}
