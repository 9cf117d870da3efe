package s3fifo

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"fluxkv/internal/offheap"
)

// Tag names an object. Two objects with one tag are one object.
type Tag [2]uint64

// Priority says which objects go first.
type Priority uint8

// Objects of priority High are evicted for those of priority Low only when
// nothing else is left; see the package comment.
const (
	Low Priority = iota
	High
	priorities
)

const (
	hugeBytes = 2 << 20 // a huge page

	// hugeShardBytesMin: with less, rounding up to huge pages while a shard fills
	// counts too much.
	hugeShardBytesMin = 4 * hugeBytes

	// chunkBytesMin holds seven decoded blocks of 4 KiB: a cache of 1 MiB has
	// 30 chunks, so a few sizes at once still find room.
	chunkBytesMin = 32 << 10
	chunkBytesMax = 256 << 10 // the default for large shards; Options may ask for more

	// chunksWanted is how many chunks a shard has at least, if they are larger
	// than chunkBytesMin. Objects from 64 bytes to 8 KiB have 50 classes: with 64
	// chunks half of the memory lay in slots of classes that were not asked for,
	// with 256 a tenth.
	chunksWanted = 256

	// shardBytesMin keeps the locks few enough that chunks are not too small.
	shardBytesMin = 32 << 20
	shardsMax     = 256

	// A slot's number, in units of slotAlign, is 32 bits wide.
	shardBytesMax = 64 << 30
)

// Options are the fixed and the first settings of a Cache.
type Options struct {
	// Bytes is the limit of all memory: slots, table, ghosts. 0 is off: nothing
	// is ever found.
	Bytes int64
	// BytesMax is the largest limit that Resize can set; address space for it is
	// mapped at once, memory is used as it is needed. Default Bytes.
	BytesMax int64
	// Shards is how many locks there are, a power of two up to 256. Default: one
	// for each 32 MiB of BytesMax, at most 64.
	Shards int
	// ObjectBytes is the size of the largest object that must fit, at most 16
	// MiB less the header of 48. Chunks, at least that large, are what sizes share memory in. Default:
	// a 256th of a shard, between 32 KiB and 256 KiB, less the header. When a
	// shard has no room for eight chunks, the bound is lower; see ObjectBytesMax.
	ObjectBytes int
	// Owners keeps chains of the objects whose tags begin with the same word, for
	// RemoveOwner.
	Owners bool
}

// objectBytesMax bounds Options.ObjectBytes.
const objectBytesMax = 16<<20 - headerBytes

// Cache is a set of shards. Shard, Touch and Stats are safe for concurrent use;
// Resize is, too; Close is not.
type Cache struct {
	shards     []Shard
	shardShift uint // of the hash
	data       []byte
	tables     []byte
	bytesMax   int64
	chunkBytes int
	resizeMu   sync.Mutex // one Resize at a time: all shards end with one limit
}

// New returns an empty cache. Close gives its memory back.
func New(o Options) (*Cache, error) {
	o.BytesMax = max(o.BytesMax, o.Bytes)
	if o.Bytes < 0 {
		return nil, fmt.Errorf("s3fifo: a limit of %d bytes", o.Bytes)
	}
	if o.Shards < 0 || o.Shards > shardsMax || o.Shards&(o.Shards-1) != 0 {
		return nil, fmt.Errorf("s3fifo: %d shards; a power of two up to %d is possible", o.Shards, shardsMax)
	}
	if o.ObjectBytes < 0 || o.ObjectBytes > objectBytesMax {
		return nil, fmt.Errorf("s3fifo: objects of %d bytes; at most %d are possible", o.ObjectBytes, objectBytesMax)
	}
	if o.Shards == 0 {
		o.Shards = 1
		for o.Shards < 64 && o.BytesMax/int64(2*o.Shards) >= shardBytesMin {
			o.Shards *= 2
		}
	}
	shardBytes := o.BytesMax / int64(o.Shards)
	if shardBytes > shardBytesMax {
		return nil, fmt.Errorf("s3fifo: %d bytes in a shard; at most %d are possible", shardBytes, int64(shardBytesMax))
	}
	c := &Cache{
		shards:     make([]Shard, o.Shards),
		shardShift: uint(64 - bits.TrailingZeros(uint(o.Shards))),
		bytesMax:   o.BytesMax,
		chunkBytes: chunkBytesFor(shardBytes, o.ObjectBytes),
	}
	if dataBytes := shardBytes &^ int64(c.chunkBytes-1); dataBytes > 0 {
		if err := c.mapShards(o, dataBytes); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.Resize(o.Bytes)
	return c, nil
}

// chunkBytesFor returns a power of two that fits objects of objectBytes, unless
// a shard had no eight chunks then.
func chunkBytesFor(shardBytes int64, objectBytes int) int {
	chunk := chunkBytesMin
	for chunk < chunkBytesMax && int64(chunk)*2 <= shardBytes/chunksWanted {
		chunk *= 2
	}
	for chunk < objectBytes+headerBytes && int64(chunk)*2 <= shardBytes/8 {
		chunk *= 2
	}
	return chunk
}

func (c *Cache) mapShards(o Options, dataBytes int64) error {
	chunks := int(dataBytes / int64(c.chunkBytes))
	bitsMax := tableBitsMin
	for bitsMax < tableBitsMax && int(dataBytes)/slotBytesMin > loadMax(bitsMax) {
		bitsMax++
	}
	tableBytes := tableAreaBytes(bitsMax) + tableAreaBytes(bitsMax-1) + chunkTableBytes(chunks)
	n := len(c.shards)
	var err error
	// Huge pages for the part of a shard that will be full whatever table and
	// ghosts take; they must not round up beyond.
	hugeEnd, stride := hugeEndFor(dataBytes), dataBytes
	if hugeEnd > 0 {
		stride = roundHuge(dataBytes)
	}
	if c.data, err = offheap.Map(n * int(stride)); err != nil {
		return fmt.Errorf("s3fifo: %w", err)
	}
	if hugeEnd == 0 {
		offheap.SmallPages(c.data)
	}
	if c.tables, err = offheap.Map(n * tableBytes); err != nil {
		return fmt.Errorf("s3fifo: %w", err)
	}
	offheap.SmallPages(c.tables)
	classes := newClasses(c.chunkBytes)
	for i := range c.shards {
		s := &c.shards[i]
		s.classes = classes
		s.data = c.data[int64(i)*stride:][:stride]
		if s.hugeEnd = hugeEnd; hugeEnd > 0 {
			offheap.SmallPages(s.data[hugeEnd:])
		}
		s.base = unsafe.Pointer(unsafe.SliceData(s.data))
		s.chunkShift = uint(bits.TrailingZeros(uint(c.chunkBytes)))
		tables := c.tables[i*tableBytes:][:tableBytes]
		s.bitsMax = bitsMax
		s.areas[bitsMax&1] = tables[:tableAreaBytes(bitsMax)]
		tables = tables[tableAreaBytes(bitsMax):]
		s.areas[bitsMax&1^1] = tables[:tableAreaBytes(bitsMax-1)]
		tables = tables[tableAreaBytes(bitsMax-1):]
		s.chunkTable = tables
		s.chunks = unsafe.Slice((*chunk)(unsafe.Pointer(unsafe.SliceData(tables))), chunks)
		s.fixedBytes = int64(chunkTableBytes(chunks)) + int64(unsafe.Sizeof(*s))
		s.ownersOn = o.Owners
		s.freeChunk, s.releasedChunk = none, none
		for k := range s.partial {
			s.partial[k] = none
		}
	}
	return nil
}

// hugeEndFor is how much of the data of a shard may have huge pages under a
// limit.
func hugeEndFor(limit int64) int64 {
	if limit < hugeShardBytesMin {
		return 0
	}
	return limit / 8 * 7 &^ (hugeBytes - 1)
}

func roundHuge(n int64) int64 { return (n + hugeBytes - 1) &^ (hugeBytes - 1) }

// Close gives all memory back. Nothing of the cache may be used afterwards, nor
// by others meanwhile: no object may be pinned.
func (c *Cache) Close() {
	offheap.Unmap(c.data)
	offheap.Unmap(c.tables)
	c.data, c.tables, c.shards = nil, nil, nil
}

// hashOf mixes a tag: the upper bits choose the shard, the lower half is the
// fingerprint and, by its upper bits, the home in the shard's table. The steps
// are those of the finalizer of MurmurHash3.
func hashOf(t Tag) uint64 {
	h := t[0] * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h = (h ^ t[1]) * 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Shard returns the shard where t belongs.
func (c *Cache) Shard(t Tag) *Shard { return &c.shards[c.Index(t)] }

// Index says which of Shards is that of t.
func (c *Cache) Index(t Tag) int { return int(hashOf(t) >> c.shardShift) }

// Shards returns all shards, for what goes through all of them.
func (c *Cache) Shards() []Shard { return c.shards }

// Touch loads the place of the table where t would be, without a lock, so that
// the cache misses of a batch of look-ups overlap.
func (c *Cache) Touch(t Tag) {
	h := hashOf(t)
	c.shards[h>>c.shardShift].touch(h)
}

// ObjectBytesMax is the size of the largest object that Insert takes.
func (c *Cache) ObjectBytesMax() int { return c.chunkBytes - headerBytes }

// Resize sets the limit to bytes, or to the largest one that is possible. It
// shrinks at once: it evicts, and gives whole chunks back to the kernel. What is
// pinned is not found any more and goes with its last Unpin.
func (c *Cache) Resize(bytes int64) {
	bytes = max(0, min(bytes, c.bytesMax))
	c.resizeMu.Lock()
	defer c.resizeMu.Unlock()
	for i := range c.shards {
		s := &c.shards[i]
		s.Lock()
		s.setLimit(bytes / int64(len(c.shards)))
		s.Unlock()
	}
}

// Stats is what a cache has counted and holds. Arrays are indexed by Priority.
type Stats struct {
	Hits        [priorities]uint64 `json:"hits"`
	Misses      uint64             `json:"misses"`     // what Miss was told
	GhostHits   uint64             `json:"ghost_hits"` // objects that came back after they had left the small queue
	Promotions  uint64             `json:"promotions"` // objects that moved from the small to the main queue
	Refused     uint64             `json:"refused"`    // objects that found no room: too large, or everything is pinned
	Moved       uint64             `json:"moved"`      // objects that moved to another slot when a chunk was emptied
	Inserted    [priorities]uint64 `json:"inserted"`
	Evicted     [priorities]uint64 `json:"evicted"`
	Objects     [priorities]int64  `json:"objects"`      // in the cache now
	ObjectBytes [priorities]int64  `json:"object_bytes"` // slots of these, headers included
	SmallBytes  int64              `json:"small_bytes"`  // the part of ObjectBytes[Low] that is in the small queue
	TableBytes  int64              `json:"table_bytes"`  // table and ghosts
	Bytes       int64              `json:"bytes"`        // all memory in use, at most Limit unless pinned objects outlived a Resize
	Limit       int64              `json:"limit"`
}

// Stats adds up all shards, one after the other.
func (c *Cache) Stats() Stats {
	var t Stats
	for i := range c.shards {
		s := &c.shards[i]
		s.Lock()
		u := s.stats
		u.Objects[High] = s.queues[queueHigh].objects
		u.Objects[Low] = s.queues[queueSmall].objects + s.queues[queueMain].objects
		u.ObjectBytes[High] = s.queues[queueHigh].bytes
		u.ObjectBytes[Low] = s.queues[queueSmall].bytes + s.queues[queueMain].bytes
		u.SmallBytes = s.queues[queueSmall].bytes
		u.Bytes = s.used()
		u.Limit = s.limit
		u.TableBytes = s.tableBytes()
		s.Unlock()
		t.Misses += u.Misses
		t.GhostHits += u.GhostHits
		t.Promotions += u.Promotions
		t.Refused += u.Refused
		t.Moved += u.Moved
		for p := range priorities {
			t.Hits[p] += u.Hits[p]
			t.Inserted[p] += u.Inserted[p]
			t.Evicted[p] += u.Evicted[p]
			t.Objects[p] += u.Objects[p]
			t.ObjectBytes[p] += u.ObjectBytes[p]
		}
		t.SmallBytes += u.SmallBytes
		t.TableBytes += u.TableBytes
		t.Bytes += u.Bytes
		t.Limit += u.Limit
	}
	return t
}
