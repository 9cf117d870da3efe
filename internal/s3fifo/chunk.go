package s3fifo

import (
	"unsafe"

	"fluxkv/internal/offheap"
)

// none is no chunk.
const none = ^uint32(0)

// A chunk is cut into slots of one class, or free, or released to the kernel.
type chunk struct {
	next, prev uint32 // in the list of its class's chunks with free slots, of free or of released ones
	free       Obj    // freed slots, linked by their headers
	carved     uint32 // slots that were ever used; those behind are free, too
	live       uint32 // slots in use, by removed objects that are still pinned, too
	skip       uint32 // the search for a chunk to empty that found it pinned
	class      uint8
	state      chunkState
}

type chunkState uint8

const (
	chunkFree     chunkState = iota // also: released, or never used
	chunkUsed                       // has objects; free slots are for new ones
	chunkEmptying                   // nothing new comes in; free when the last object has gone
	chunkDraining                   // nothing new comes in; released when the last object has gone
)

func chunkTableBytes(chunks int) int {
	n := chunks * int(unsafe.Sizeof(chunk{}))
	return (n + offheap.AlignBytes - 1) &^ (offheap.AlignBytes - 1)
}

// class is what the slots of a chunk are cut for. The classes of one priority
// come first, then those of the other.
type class struct {
	slotBytes uint32 // header and object, a multiple of slotAlign
	slots     uint32 // in a chunk
}

const (
	slotAlign    = 16
	slotBytesMin = headerBytes + 16
	classesMax   = 128 // of one priority

	// Slots of a KiB and more begin with a cache line, so that a header is one
	// cache miss; smaller ones would lose too much by it.
	alignedFrom = 1 << 10
	cacheLine   = 64
)

// classes are the sizes of slots, ascending.
type classes struct {
	all   []class
	bytes []int // the largest object of each
}

// newClasses makes steps of 16 bytes up to 128, then of an eighth of the power
// of two below, which 4096 is one of; beyond an eighth of the chunk whole
// fractions of the chunk, since any other size would leave its end unused.
func newClasses(chunkBytes int) *classes {
	k := &classes{}
	add := func(bytes int) {
		slot := bytes + headerBytes
		if slot >= alignedFrom {
			slot = min((slot+cacheLine-1)&^(cacheLine-1), chunkBytes)
		}
		k.bytes = append(k.bytes, slot-headerBytes)
		k.all = append(k.all, class{slotBytes: uint32(slot), slots: uint32(chunkBytes / slot)})
	}
	step := 16
	for bytes := 16; bytes+headerBytes <= chunkBytes/8; bytes += step {
		add(bytes)
		if bytes >= 128 && bytes&(bytes-1) == 0 {
			step = bytes / 8
		}
	}
	for n := 7; n >= 1; n-- {
		add(chunkBytes/n&^(cacheLine-1) - headerBytes)
	}
	if len(k.all) > classesMax {
		panic("s3fifo: too many classes")
	}
	return k
}

// find returns the class for objects of n bytes, n at most the largest.
func (k *classes) find(n int) int {
	lo, hi := 0, len(k.bytes)-1
	for lo < hi {
		if mid := (lo + hi) / 2; k.bytes[mid] < n {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// classOf returns the class for n bytes in the numbering of chunks, which keeps
// the two priorities apart.
func (s *Shard) classOf(n int, p Priority) uint8 {
	return uint8(s.classes.find(n)) | uint8(p)<<7
}

func (s *Shard) class(k uint8) *class { return &s.classes.all[k&(classesMax-1)] }

func highClass(k uint8) bool { return k >= classesMax }

// dataBytes is how much of the data is in memory.
func (s *Shard) dataBytes() int64 { return s.backed(s.freshChunks) - int64(s.released)<<s.chunkShift }

// backed is how much of the data the kernel may back when so many chunks have
// been used: whole huge pages, as far as there are.
func (s *Shard) backed(fresh uint32) int64 {
	n := int64(fresh) << s.chunkShift
	if n < s.hugeEnd {
		return roundHuge(n)
	}
	return n
}

// push makes a chunk the first of a list.
func (s *Shard) push(list *uint32, ci uint32) {
	c := &s.chunks[ci]
	c.prev, c.next = none, *list
	if *list != none {
		s.chunks[*list].prev = ci
	}
	*list = ci
}

func (s *Shard) unlink(list *uint32, ci uint32) {
	c := &s.chunks[ci]
	if c.prev == none {
		*list = c.next
	} else {
		s.chunks[c.prev].next = c.next
	}
	if c.next != none {
		s.chunks[c.next].prev = c.prev
	}
}

// takeChunk gives class k one more chunk, if one is free or the limit allows.
func (s *Shard) takeChunk(k uint8) bool {
	var ci uint32
	chunkBytes := int64(1) << s.chunkShift
	switch {
	case s.freeChunk != none:
		ci = s.freeChunk
		s.unlink(&s.freeChunk, ci)
	case s.releasedChunk != none && s.used()+chunkBytes <= s.limit:
		ci = s.releasedChunk
		s.unlink(&s.releasedChunk, ci)
		s.released--
	case int(s.freshChunks) < len(s.chunks) && s.used()+s.backed(s.freshChunks+1)-s.backed(s.freshChunks) <= s.limit:
		ci = s.freshChunks
		s.freshChunks++
	default:
		return false
	}
	s.chunks[ci] = chunk{class: k, state: chunkUsed}
	s.push(&s.partial[k], ci)
	if highClass(k) {
		s.highChunks++
	} else {
		s.lowChunks++
	}
	return true
}

// leaveClass takes the chunk, which has no object any more, from its class.
func (s *Shard) leaveClass(ci uint32) {
	c := &s.chunks[ci]
	if highClass(c.class) {
		s.highChunks--
	} else {
		s.lowChunks--
	}
	release := c.state == chunkDraining
	if release {
		s.draining--
	}
	c.state = chunkFree
	s.push(&s.freeChunk, ci)
	if release {
		s.releaseFree()
	}
}

// releaseFree gives the first free chunk back to the kernel.
func (s *Shard) releaseFree() {
	ci := s.freeChunk
	s.unlink(&s.freeChunk, ci)
	s.push(&s.releasedChunk, ci)
	s.released++
	at := int64(ci) << s.chunkShift
	if at < s.hugeEnd {
		// Or the kernel may put the huge page together again.
		offheap.SmallPages(s.data[at&^(hugeBytes-1) : roundHuge(at+1<<s.chunkShift)])
	}
	offheap.Release(s.data[at:][:1<<s.chunkShift])
	if s.released == s.freshChunks {
		// Nothing is left. A huge page may back more than the chunks.
		offheap.Release(s.data[:s.backed(s.freshChunks)])
		s.freshChunks, s.released, s.releasedChunk = 0, 0, none
		offheap.Release(s.chunkTable)
	}
}

// slotOf returns slot i of a chunk.
func (s *Shard) slotOf(ci, i uint32) Obj {
	off := uint64(ci)<<s.chunkShift + uint64(i)*uint64(s.class(s.chunks[ci].class).slotBytes)
	return Obj(off/slotAlign + 1)
}

func (s *Shard) chunkOf(o Obj) uint32 {
	return uint32((uint64(o) - 1) * slotAlign >> s.chunkShift)
}

// takeSlot returns a slot of class k, 0 if no chunk has one.
func (s *Shard) takeSlot(k uint8) Obj {
	ci := s.partial[k]
	if ci == none {
		return 0
	}
	c := &s.chunks[ci]
	o := c.free
	if o != 0 {
		c.free = s.at(o).next
	} else {
		o = s.slotOf(ci, c.carved)
		c.carved++
	}
	c.live++
	if c.live == s.class(k).slots {
		s.unlink(&s.partial[k], ci)
	}
	return o
}

// freeSlot takes back a slot that no queue and no table names.
func (s *Shard) freeSlot(o Obj) {
	ci := s.chunkOf(o)
	c := &s.chunks[ci]
	h := s.at(o)
	h.queue = queueNone
	h.next = c.free
	c.free = o
	k := s.class(c.class)
	if c.state == chunkUsed && c.live == k.slots {
		s.push(&s.partial[c.class], ci)
	}
	c.live--
	if c.live == 0 {
		if c.state == chunkUsed {
			s.unlink(&s.partial[c.class], ci)
		}
		s.leaveClass(ci)
	}
}

// stop lets no new objects into a used chunk.
func (s *Shard) stop(ci uint32, state chunkState) {
	c := &s.chunks[ci]
	if c.live < s.class(c.class).slots {
		s.unlink(&s.partial[c.class], ci)
	}
	c.state = state
	if state == chunkDraining {
		s.draining++
	}
}

// reclaim frees the chunk with the fewest bytes in use among those of the
// priority, but of another class than avoid; noClass avoids none. Objects
// move to free slots of their class in other chunks, or are evicted. It reports
// false when there is no such chunk without a pinned object among the first
// candidates.
func (s *Shard) reclaim(high bool, avoid uint16) bool {
	s.search++
	for range reclaimTries {
		best, bestBytes := none, ^uint32(0)
		for ci := range s.freshChunks {
			c := &s.chunks[ci]
			if c.state != chunkUsed || highClass(c.class) != high || uint16(c.class) == avoid || c.skip == s.search {
				continue
			}
			if n := c.live * s.class(c.class).slotBytes; n < bestBytes {
				best, bestBytes = ci, n
			}
		}
		if best == none {
			return false
		}
		if s.empty(best) {
			return true
		}
		s.chunks[best].skip = s.search
	}
	return false
}

const (
	reclaimTries = 4
	noClass      = 1 << 8
)

// empty makes a used chunk free, unless an object in it is pinned.
func (s *Shard) empty(ci uint32) bool {
	c := &s.chunks[ci]
	for i := range c.carved {
		if h := s.at(s.slotOf(ci, i)); h.queue != queueNone && h.pins.Load() != 0 {
			return false
		}
	}
	s.stop(ci, chunkEmptying)
	for i := range c.carved {
		o := s.slotOf(ci, i)
		if s.at(o).queue == queueNone {
			continue
		}
		if to := s.takeSlot(c.class); to != 0 {
			s.move(o, to)
		} else {
			s.evict(o)
		}
	}
	return true
}

// move copies an object that is not pinned to another slot of its class.
func (s *Shard) move(o, to Obj) {
	h := s.at(o)
	n := headerBytes + int(h.bytes)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(s.at(to))), n), unsafe.Slice((*byte)(unsafe.Pointer(h)), n))
	hash := hashOf(h.tag)
	s.tableReplace(entryOf(hash, o), entryOf(hash, to))
	q := &s.queues[h.queue]
	if h.prev == 0 {
		q.head = to
	} else {
		s.at(h.prev).next = to
	}
	if h.next == 0 {
		q.tail = to
	} else {
		s.at(h.next).prev = to
	}
	if s.ownersOn {
		if h.ownerPrev == 0 {
			s.owners[ownerOf(h.tag)] = to
		} else {
			s.at(h.ownerPrev).ownerNext = to
		}
		if h.ownerNext != 0 {
			s.at(h.ownerNext).ownerPrev = to
		}
	}
	s.stats.Moved++
	s.freeSlot(o)
}
