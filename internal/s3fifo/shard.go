package s3fifo

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"fluxkv/internal/invariants"
	"fluxkv/internal/offheap"
)

// Obj is an object of one shard. It is valid until the shard is unlocked, or
// Insert, Remove, RemoveOwner or Resize may have evicted or moved it; a pinned
// one is valid until Unpin.
type Obj uint32

// header lies before the bytes of an object.
type header struct {
	tag                  Tag
	next, prev           Obj // in the queue: next is older; next alone in a list of free slots
	ownerNext, ownerPrev Obj
	bytes                uint32
	pins                 atomic.Uint32 // and removed, once it is
	queue                queueID       // queueNone: the slot is free
	uses                 uint8         // hits since it came into its queue, at most usesMax
	_                    [6]byte
}

const (
	headerBytes = int(unsafe.Sizeof(header{}))

	// removed marks an object that nobody finds any more and that lives on
	// because it is pinned.
	removed = 1 << 31

	usesMax = 3 // the paper's two bits

	ownerChains = 256
)

// Shard is one lock and what it guards: a part of the tags, of the limit and of
// the memory. Methods other than Lock and Unpin need it held.
type Shard struct {
	mu sync.Mutex

	classes    *classes
	base       unsafe.Pointer // of data
	data       []byte
	areas      [2][]byte // for the table
	bitsMax    int
	chunkShift uint
	hugeEnd    int64 // data before is backed by huge pages, whole ones
	fixedBytes int64

	// tableBits is bits, for Touch.
	tableBits atomic.Uint32

	bits   int // of the table; 0: the shard is off
	table  []uint64
	ghosts []uint32

	chunks        []chunk
	chunkTable    []byte // the memory of chunks
	freshChunks   uint32 // chunks that were ever used; those behind never were
	released      uint32 // chunks given back to the kernel
	draining      uint32
	highChunks    uint32
	lowChunks     uint32
	search        uint32 // counts calls of reclaim
	freeChunk     uint32
	releasedChunk uint32
	partial       [int(priorities) * classesMax]uint32

	queues [queueCount]queue
	limit  int64
	stats  Stats

	ownersOn bool
	owners   [ownerChains]Obj
}

// lockTries is how often Lock tries before it may park: what is done under the
// lock takes less than a microsecond mostly.
const lockTries = 8

// Lock takes the shard.
func (s *Shard) Lock() {
	for range lockTries {
		if s.mu.TryLock() {
			return
		}
	}
	s.mu.Lock()
}

// Unlock gives the shard back.
func (s *Shard) Unlock() { s.mu.Unlock() }

func (s *Shard) at(o Obj) *header {
	return (*header)(unsafe.Add(s.base, (uintptr(o)-1)*slotAlign))
}

func entryOf(hash uint64, o Obj) uint64 { return hash<<32 | uint64(o) }

func ownerOf(t Tag) int { return int(t[0] * 0x9e3779b97f4a7c15 >> 56) }

// On reports whether the shard may hold anything. It needs no lock.
func (s *Shard) On() bool { return s.tableBits.Load() != 0 }

// Find returns the object of a tag. It counts nothing.
func (s *Shard) Find(t Tag) (Obj, bool) {
	if s.bits == 0 {
		return 0, false
	}
	hash := hashOf(t)
	mask := len(s.table) - 1
	for i := s.home(hash << 32); ; i = (i + 1) & mask {
		e := s.table[i]
		if e == 0 {
			return 0, false
		}
		if uint32(e>>32) == uint32(hash) && s.at(Obj(e)).tag == t {
			return Obj(e), true
		}
	}
}

// Hit counts a use of an object, which lets it stay longer.
func (s *Shard) Hit(o Obj) {
	h := s.at(o)
	if h.queue == queueHigh {
		s.stats.Hits[High]++
	} else {
		s.stats.Hits[Low]++
	}
	if h.uses < usesMax {
		h.uses++
	}
}

// Miss counts a look-up that found nothing.
func (s *Shard) Miss() { s.stats.Misses++ }

// Bytes returns the bytes of an object, as long as Insert was told. They may be
// written under the lock only, and only while nobody has the object pinned. Of
// a pinned object this needs no lock.
func (s *Shard) Bytes(o Obj) []byte {
	h := s.at(o)
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(h), headerBytes)), h.bytes)
}

// Pin keeps an object where it is until Unpin, even when it is removed.
func (s *Shard) Pin(o Obj) {
	if n := s.at(o).pins.Add(1); invariants.Enabled && n&removed != 0 {
		panic("s3fifo: pinned an object that was removed")
	}
}

// Unpin takes one Pin back. It needs no lock, and takes it itself when the
// object was removed meanwhile: the caller must not hold it.
func (s *Shard) Unpin(o Obj) {
	n := s.at(o).pins.Add(^uint32(0))
	if invariants.Enabled && n&^removed == removed-1 {
		panic("s3fifo: unpinned an object that was not pinned")
	}
	if n == removed {
		s.Lock()
		s.freeSlot(o)
		s.Unlock()
	}
}

// Insert makes an object of n bytes, and returns it with its bytes for the
// caller to fill before it unlocks. It evicts others to make room; whatever
// objects the caller knew may be gone or have moved. It reports false when
// there is no room: n is more than Cache.ObjectBytesMax, the cache is off, or
// too much is pinned. The tag must not be there.
func (s *Shard) Insert(t Tag, n int, p Priority) (Obj, []byte, bool) {
	if invariants.Enabled {
		if _, ok := s.Find(t); ok {
			panic(fmt.Sprintf("s3fifo: %x is inserted twice", t))
		}
	}
	if s.bits == 0 || n > int(1)<<s.chunkShift-headerBytes || !s.tableRoom(p) {
		s.stats.Refused++
		return 0, nil, false
	}
	k := s.classOf(n, p)
	o := s.slotFor(k)
	if o == 0 {
		s.stats.Refused++
		return 0, nil, false
	}
	hash := hashOf(t)
	h := s.at(o)
	h.tag = t
	h.bytes = uint32(n)
	h.pins.Store(0)
	h.uses = 0
	id := queueSmall
	if p == High {
		id = queueHigh
	} else if s.ghostTake(hash) {
		s.stats.GhostHits++
		id = queueMain
	}
	s.enqueue(id, o)
	s.tablePut(entryOf(hash, o))
	if s.ownersOn {
		chain := &s.owners[ownerOf(t)]
		h.ownerPrev, h.ownerNext = 0, *chain
		if *chain != 0 {
			s.at(*chain).ownerPrev = o
		}
		*chain = o
	}
	s.stats.Inserted[p]++
	return o, s.Bytes(o), true
}

// Remove takes an object out. Its memory is free when nobody has it pinned any
// more.
func (s *Shard) Remove(o Obj) {
	h := s.at(o)
	s.tableDelete(entryOf(hashOf(h.tag), o))
	s.dequeue(o)
	if s.ownersOn {
		if h.ownerPrev == 0 {
			s.owners[ownerOf(h.tag)] = h.ownerNext
		} else {
			s.at(h.ownerPrev).ownerNext = h.ownerNext
		}
		if h.ownerNext != 0 {
			s.at(h.ownerNext).ownerPrev = h.ownerPrev
		}
	}
	if h.pins.Or(removed) == 0 {
		s.freeSlot(o)
	} else {
		h.queue = queueRemoved
	}
}

// RemoveOwner removes all objects whose tags begin with owner, and returns how
// many. It looks at these and, of the others, at about one in 256. The cache
// must have Options.Owners.
func (s *Shard) RemoveOwner(owner uint64) int {
	removals := 0
	for o := s.owners[ownerOf(Tag{owner})]; o != 0; {
		h := s.at(o)
		next := h.ownerNext
		if h.tag[0] == owner {
			s.Remove(o)
			removals++
		}
		o = next
	}
	return removals
}

// used is all memory of the shard, in bytes. Of a shard that is off only the
// struct is left, which is not counted.
func (s *Shard) used() int64 {
	if s.bits == 0 && s.freshChunks == 0 {
		return 0
	}
	return s.fixedBytes + s.tableBytes() + s.dataBytes()
}

// objects is how many the table names.
func (s *Shard) objects() int {
	n := int64(0)
	for i := range s.queues {
		n += s.queues[i].objects
	}
	return int(n)
}

// tableRoom makes the table take one more entry: it doubles it, or evicts.
func (s *Shard) tableRoom(p Priority) bool {
	if s.objects() < loadMax(s.bits) {
		return true
	}
	if s.bits < s.bitsMax {
		need := int64(tableAreaBytes(s.bits + 1))
		for s.used()+need > s.limit && s.giveBack() {
		}
		if s.used()+need <= s.limit {
			s.rehash(s.bits + 1)
			return true
		}
	}
	if s.objects() < loadMax(s.bits) {
		return true
	}
	return s.evictLow() || s.evictHigh()
}

// giveBack releases one chunk to the kernel.
func (s *Shard) giveBack() bool {
	if s.freeChunk == none {
		high := s.lowChunks == 0 || s.highChunks > s.highChunksMax()
		if !s.freeChunkOf(high) && !s.freeChunkOf(!high) {
			return false
		}
	}
	s.releaseFree()
	return true
}

// freeChunkOf makes a chunk of one priority free. As much as it holds is evicted
// in the order of the queues first, and then the emptiest chunk can be left by
// moving what is in it: emptied by itself it would take used objects along.
func (s *Shard) freeChunkOf(high bool) bool {
	for bytes := s.objectBytes(); s.freeChunk == none && bytes-s.objectBytes() < 1<<s.chunkShift; {
		if high && !s.evictHigh() || !high && !s.evictLow() {
			break
		}
	}
	return s.freeChunk != none || s.reclaim(high, noClass)
}

func (s *Shard) objectBytes() int64 {
	n := int64(0)
	for i := range s.queues {
		n += s.queues[i].bytes
	}
	return n
}

// setLimit brings the shard under limit, pinned objects excepted.
func (s *Shard) setLimit(limit int64) {
	if s.data == nil {
		return
	}
	s.limit = limit
	if end := hugeEndFor(limit); end < s.hugeEnd {
		s.leaveHuge(end)
	}
	if limit < s.fixedBytes+int64(tableAreaBytes(tableBitsMin))+int64(1)<<s.chunkShift {
		for ci := uint32(0); ci < s.freshChunks; ci++ { // which becomes 0 with the last one
			s.drain(ci)
		}
		for s.freeChunk != none {
			s.releaseFree()
		}
		s.closeTable()
		return
	}
	if s.bits == 0 {
		s.openTable(tableBitsMin)
	}
	for s.used()-int64(s.draining)<<s.chunkShift > limit {
		switch {
		case s.bits > tableBitsMin && s.objects() < loadMax(s.bits)/4:
			s.rehash(s.bits - 1)
		case s.giveBack():
		default:
			if !s.drainOne() {
				return
			}
		}
	}
}

// leaveHuge ends the huge pages at end, which is less than hugeEnd, so that the
// kernel backs what is used there and no more.
func (s *Shard) leaveHuge(end int64) {
	offheap.SmallPages(s.data[end:])
	before := s.backed(s.freshChunks)
	s.hugeEnd = end
	if after := s.backed(s.freshChunks); after < before {
		offheap.Release(s.data[after:before])
	}
}

// drainOne drains a chunk that has pinned objects.
func (s *Shard) drainOne() bool {
	for ci := range s.freshChunks {
		if s.chunks[ci].state == chunkUsed {
			s.drain(ci)
			return true
		}
	}
	return false
}

// drain removes all objects of a used chunk, which is released with the last of
// them.
func (s *Shard) drain(ci uint32) {
	c := &s.chunks[ci]
	if c.state != chunkUsed {
		return
	}
	s.stop(ci, chunkDraining)
	for i := range c.carved {
		if s.freshChunks == 0 || c.state == chunkFree {
			return // released: it must not be touched again
		}
		if o := s.slotOf(ci, i); s.at(o).queue.holds() {
			s.count(o)
			s.Remove(o)
		}
	}
}
