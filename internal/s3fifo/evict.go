package s3fifo

type queueID uint8

const (
	queueNone queueID = iota // the slot is free
	queueSmall
	queueMain
	queueHigh
	queueRemoved // in no queue: only its pins keep it
	queueCount   = queueRemoved
)

// holds reports whether an object with this mark is in the cache.
func (q queueID) holds() bool { return q != queueNone && q != queueRemoved }

// queue is a FIFO of objects.
type queue struct {
	head, tail Obj // newest, oldest
	objects    int64
	bytes      int64 // of their slots
}

const (
	// smallShare is one over the part of the memory of low priority that the
	// small queue may fill before it gives objects up: a tenth, as in the paper.
	smallShare = 10

	// promoteUses is how many hits in the small queue take an object to the main
	// queue.
	promoteUses = 2

	// evictTries is how many evictions may bring slots of other classes before a
	// chunk is emptied.
	evictTries = 8

	// pinnedMax is how many pinned objects may go round before evictions give
	// up.
	pinnedMax = 128

	// roundsMax is how many used objects may go round, or up to the main queue,
	// before one is evicted all the same: it bounds the time under the lock, to
	// some 100 us.
	roundsMax = 512

	// nearClasses is how many larger classes an object may take a slot of. Zipf
	// 0.99 over 64 B to 8 KiB, with 0 / 1 / 3 / 8: 1 MiB hits 0.41 / 0.54 / 0.60 /
	// 0.61, an LRU of the same bytes 0.64; 8 MiB hits 0.71 / 0.72 / 0.72 / 0.72, the
	// LRU 0.71.
	nearClasses = 3

	// highShare: all chunks but one in so many are open to priority High.
	highShare = 16
)

func (s *Shard) slotBytes(o Obj) int64 {
	return int64(s.class(s.chunks[s.chunkOf(o)].class).slotBytes)
}

// enqueue makes o the newest of a queue.
func (s *Shard) enqueue(id queueID, o Obj) {
	q := &s.queues[id]
	h := s.at(o)
	h.queue = id
	h.prev, h.next = 0, q.head
	if q.head != 0 {
		s.at(q.head).prev = o
	} else {
		q.tail = o
	}
	q.head = o
	q.objects++
	q.bytes += s.slotBytes(o)
}

// dequeue takes o out of its queue.
func (s *Shard) dequeue(o Obj) {
	h := s.at(o)
	q := &s.queues[h.queue]
	if h.prev == 0 {
		q.head = h.next
	} else {
		s.at(h.prev).next = h.next
	}
	if h.next == 0 {
		q.tail = h.prev
	} else {
		s.at(h.next).prev = h.prev
	}
	q.objects--
	q.bytes -= s.slotBytes(o)
}

// evict removes an object for want of room. What leaves the small queue leaves
// a ghost.
func (s *Shard) evict(o Obj) {
	if h := s.at(o); h.queue == queueSmall {
		s.ghostPut(hashOf(h.tag))
	}
	s.count(o)
	s.Remove(o)
}

// count counts an object as evicted.
func (s *Shard) count(o Obj) {
	if s.at(o).queue == queueHigh {
		s.stats.Evicted[High]++
	} else {
		s.stats.Evicted[Low]++
	}
}

// evictLow evicts one object of low priority. It reports false when there is
// none, or the oldest are pinned.
func (s *Shard) evictLow() bool {
	small, main := &s.queues[queueSmall], &s.queues[queueMain]
	for pinned, rounds := 0, 0; pinned < pinnedMax; rounds++ {
		id := queueMain
		if small.objects > 0 && (main.objects == 0 || small.bytes*smallShare >= small.bytes+main.bytes) {
			id = queueSmall
		}
		o := s.queues[id].tail
		if o == 0 {
			return false
		}
		h := s.at(o)
		switch {
		case h.pins.Load() != 0:
			pinned++
			s.dequeue(o)
			s.enqueue(id, o)
		case rounds >= roundsMax:
			s.evict(o)
			return true
		case id == queueSmall && h.uses >= promoteUses:
			s.stats.Promotions++
			h.uses = 0
			s.dequeue(o)
			s.enqueue(queueMain, o)
		case id == queueMain && h.uses > 0:
			h.uses--
			s.dequeue(o)
			s.enqueue(queueMain, o)
		default:
			s.evict(o)
			return true
		}
	}
	return false
}

// evictHigh does the same with one of high priority.
func (s *Shard) evictHigh() bool {
	for pinned, rounds := 0, 0; pinned < pinnedMax; rounds++ {
		o := s.queues[queueHigh].tail
		if o == 0 {
			return false
		}
		h := s.at(o)
		switch {
		case h.pins.Load() != 0:
			pinned++
		case h.uses > 0 && rounds < roundsMax:
			h.uses--
		default:
			s.evict(o)
			return true
		}
		s.dequeue(o)
		s.enqueue(queueHigh, o)
	}
	return false
}

// highChunksMax is how many chunks may be of priority High under the limit of
// the shard.
func (s *Shard) highChunksMax() uint32 {
	// Data has huge pages up to seven eighths of the limit, so the rest of one is
	// not lost here unless the table is very large.
	all := min(max((s.limit-s.fixedBytes-s.tableBytes())>>s.chunkShift, 1), int64(len(s.chunks)))
	return uint32(max(all-(all+highShare-1)/highShare, 1))
}

// takeSlotNear returns a slot of class k or of one of the next larger ones: to
// leave a part of a slot unused costs less than to evict more when sizes are
// mixed.
func (s *Shard) takeSlotNear(k uint8) Obj {
	slotBytesMax := s.class(k).slotBytes / 2 * 3
	for i := range uint8(nearClasses + 1) {
		if int(k&(classesMax-1)+i) == len(s.classes.all) || s.class(k+i).slotBytes > slotBytesMax {
			break
		}
		if o := s.takeSlot(k + i); o != 0 {
			return o
		}
	}
	return 0
}

// slotFor returns a slot of class k, whatever must leave for it, or 0.
func (s *Shard) slotFor(k uint8) Obj {
	if o := s.takeSlot(k); o != 0 {
		return o
	}
	if highClass(k) {
		return s.slotForHigh(k)
	}
	return s.slotForLow(k)
}

func (s *Shard) slotForLow(k uint8) Obj {
	for range evictTries {
		if s.takeChunk(k) {
			return s.takeSlot(k)
		}
		if o := s.takeSlotNear(k); o != 0 {
			return o
		}
		if !s.evictLow() {
			break
		}
	}
	if o := s.takeSlotNear(k); o != 0 {
		return o
	}
	switch {
	case s.takeChunk(k), s.reclaim(false, uint16(k)) && s.takeChunk(k):
	case s.lowChunks == 0 || s.highChunks > s.highChunksMax():
		if s.reclaim(true, noClass) {
			s.takeChunk(k)
		}
	}
	return s.takeSlot(k)
}

func (s *Shard) slotForHigh(k uint8) Obj {
	if s.highChunks < s.highChunksMax() || s.lowChunks+s.highChunks == 0 {
		if s.takeChunk(k) || s.reclaim(false, noClass) && s.takeChunk(k) {
			return s.takeSlot(k)
		}
	}
	for range evictTries {
		if o := s.takeSlotNear(k); o != 0 {
			return o
		}
		if !s.evictHigh() {
			break
		}
	}
	if o := s.takeSlotNear(k); o != 0 {
		return o
	}
	// A chunk that became free may be had, but not one more.
	if s.highChunks < s.highChunksMax() && s.takeChunk(k) {
		return s.takeSlot(k)
	}
	if s.reclaim(true, uint16(k)) || s.highChunks == 0 && s.reclaim(false, noClass) {
		s.takeChunk(k)
	}
	return s.takeSlot(k)
}
