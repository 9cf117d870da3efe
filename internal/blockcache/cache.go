// Package blockcache keeps decoded blocks of tables outside the Go heap.
//
//	reader ---> Get(file, offset) ---> Handle: pinned bytes ---> Release
//	   |              | not there
//	   +-- device ----+--> Put(file, offset, bytes, Low: data block | High: index block, filter piece)
//
//	table removed ---> Drop(file)
//
// Blocks never change, and a file's number is never given out again: there is
// nothing to be coherent with. What is evicted when is said in
// internal/s3fifo: data blocks that are read once, as by a scan, pass through a
// tenth of the memory, and index blocks and filter pieces stay until they fill
// fifteen sixteenths of it.
package blockcache

import "fluxkv/internal/s3fifo"

// Priority says which blocks go first.
type Priority = s3fifo.Priority

// Low is for data blocks. High is for index blocks and filter pieces, which
// every look-up in their part of a table needs.
const (
	Low  = s3fifo.Low
	High = s3fifo.High
)

// Options are the settings of a Cache.
type Options struct {
	// Bytes is the limit of all memory of the cache: blocks, their headers, hash
	// table and ghosts. 0 is off: Get finds nothing.
	Bytes int64
	// BytesMax is the largest limit that Resize can set. It costs address space
	// only. Default Bytes.
	BytesMax int64
	// Shards is how many locks there are, a power of two up to 256. Default: one
	// for each 32 MiB of BytesMax, at most 64.
	Shards int
	// BlockBytesMax is the size of the largest block that must fit, at most 16 MiB
	// less 48 bytes; a shard that has no room for eight of them refuses them.
	// The default is a 256th of a shard, between 32 KiB and 256 KiB, less 48
	// bytes; more costs memory when many sizes are cached.
	BlockBytesMax int
}

// Cache is a block cache. All methods but Close are safe for concurrent use.
type Cache struct{ core *s3fifo.Cache }

// New returns an empty cache. It fails when an option is out of range, or the
// address space cannot be had.
func New(o Options) (*Cache, error) {
	core, err := s3fifo.New(s3fifo.Options{
		Bytes: o.Bytes, BytesMax: o.BytesMax, Shards: o.Shards, ObjectBytes: o.BlockBytesMax, Owners: true,
	})
	if err != nil {
		return nil, err
	}
	return &Cache{core: core}, nil
}

// Close gives the memory back. Every Handle must have been released, and
// nothing else may be under way.
func (c *Cache) Close() { c.core.Close() }

// Handle is a block that stays where it is until Release. The zero Handle is
// none.
type Handle struct {
	shard *s3fifo.Shard
	obj   s3fifo.Obj
}

// Valid reports whether there is a block.
func (h Handle) Valid() bool { return h.shard != nil }

// Bytes returns the block, to be read until Release and never written.
func (h Handle) Bytes() []byte { return h.shard.Bytes(h.obj) }

// Release gives the block back, once. Of the zero Handle it does nothing.
func (h Handle) Release() {
	if h.shard != nil {
		h.shard.Unpin(h.obj)
	}
}

// Touch begins to load what Get will look at, so that the cache misses of
// several Gets overlap.
func (c *Cache) Touch(file, offset uint64) { c.core.Touch(s3fifo.Tag{file, offset}) }

// Get returns the block of a file at an offset, pinned, or the zero Handle.
func (c *Cache) Get(file, offset uint64) Handle {
	tag := s3fifo.Tag{file, offset}
	s := c.core.Shard(tag)
	if !s.On() {
		return Handle{}
	}
	s.Lock()
	o, ok := s.Find(tag)
	if !ok {
		s.Miss()
		s.Unlock()
		return Handle{}
	}
	s.Hit(o)
	s.Pin(o)
	s.Unlock()
	return Handle{shard: s, obj: o}
}

// Put copies a block of a file into the cache, unless it is there already, or
// there is no room: it is larger than BlockBytesMax, or too much is pinned. The
// file must not have been dropped.
func (c *Cache) Put(file, offset uint64, data []byte, p Priority) {
	tag := s3fifo.Tag{file, offset}
	s := c.core.Shard(tag)
	if !s.On() {
		return
	}
	s.Lock()
	if _, ok := s.Find(tag); !ok {
		if _, to, ok := s.Insert(tag, len(data), p); ok {
			copy(to, data)
		}
	}
	s.Unlock()
}

// Drop forgets all blocks of a file that left the store. Nobody may read the
// file any more, or a late Put keeps its block until it is evicted. It looks at
// these blocks and at about one in 256 of the others.
func (c *Cache) Drop(file uint64) {
	for i := range c.core.Shards() {
		s := &c.core.Shards()[i]
		if !s.On() {
			continue
		}
		s.Lock()
		s.RemoveOwner(file)
		s.Unlock()
	}
}

// Resize sets the limit, at most BytesMax. It shrinks at once: it evicts blocks
// and gives memory back to the kernel. Pinned blocks give theirs back when they
// are released.
func (c *Cache) Resize(bytes int64) { c.core.Resize(bytes) }

// Stats is what a cache has counted and holds; see s3fifo.Stats. While the
// cache is off it counts nothing.
type Stats = s3fifo.Stats

// Stats adds up all shards, one after the other.
func (c *Cache) Stats() Stats { return c.core.Stats() }
