package s3fifo

import (
	"sync/atomic"
	"unsafe"

	"fluxkv/internal/offheap"
)

// The table of a shard, by open addressing with linear probing. An entry is
// the fingerprint in its upper half and the slot in its lower; 0 is empty. The
// home of an entry is the upper bits of its fingerprint, so doubling the table
// reads entries only. A table of b bits lies in area b&1, which is what makes
// doubling and halving possible without a third place.
//
// Behind the entries, in the same area, lie the ghosts: half as many as
// entries, so about as many as objects.

const (
	tableBitsMin = 9  // 4 KiB of entries
	tableBitsMax = 28 // the fingerprint has 32, and four shall remain to tell neighbours apart

	ghostWays = 16 // ghosts in a bucket: 64 bytes
)

// loadMax is how many objects a table of b bits takes: three quarters of its
// entries; looking for what is not there reads about one cache line then.
func loadMax(b int) int { return 3 << b >> 2 }

// tableAreaBytes is the size of a table with its ghosts in whole pages.
func tableAreaBytes(b int) int {
	n := 8<<b + 4<<b>>1
	return (n + offheap.AlignBytes - 1) &^ (offheap.AlignBytes - 1)
}

func (s *Shard) tableBytes() int64 {
	if s.bits == 0 {
		return 0
	}
	return int64(tableAreaBytes(s.bits))
}

// openTable makes an empty table of b bits the one in use. Its area must be
// released.
func (s *Shard) openTable(b int) {
	base := unsafe.Pointer(unsafe.SliceData(s.areas[b&1]))
	s.table = unsafe.Slice((*uint64)(base), 1<<b)
	s.ghosts = unsafe.Slice((*uint32)(unsafe.Add(base, 8<<b)), 1<<b>>1)
	if offheap.OnGoHeap {
		// Release left the old bytes. Touch may read them.
		for i := range s.table {
			atomic.StoreUint64(&s.table[i], 0)
		}
		clear(s.ghosts)
	}
	s.bits = b
	s.tableBits.Store(uint32(b))
}

// closeTable gives the memory of the table back; objects are not found any
// more.
func (s *Shard) closeTable() {
	if s.bits == 0 {
		return
	}
	s.tableBits.Store(0)
	offheap.Release(s.areas[s.bits&1][:tableAreaBytes(s.bits)])
	s.table, s.ghosts, s.bits = nil, nil, 0
}

// rehash moves all entries to a table of b bits, one more or one less than now.
// Ghosts are forgotten: a table grows while the cache fills, or because sizes
// changed.
func (s *Shard) rehash(b int) {
	old, oldBits := s.table, s.bits
	s.openTable(b)
	for _, e := range old {
		if e != 0 {
			s.tablePut(e)
		}
	}
	offheap.Release(s.areas[oldBits&1][:tableAreaBytes(oldBits)])
}

func (s *Shard) home(e uint64) int { return int(e >> (64 - uint(s.bits))) }

func (s *Shard) tablePut(e uint64) {
	mask := len(s.table) - 1
	i := s.home(e)
	for s.table[i] != 0 {
		i = (i + 1) & mask
	}
	atomic.StoreUint64(&s.table[i], e)
}

// tableAt returns where e is. It must be there.
func (s *Shard) tableAt(e uint64) int {
	mask := len(s.table) - 1
	i := s.home(e)
	for s.table[i] != e {
		if s.table[i] == 0 {
			panic("s3fifo: an object is not in its table")
		}
		i = (i + 1) & mask
	}
	return i
}

func (s *Shard) tableReplace(e, with uint64) { atomic.StoreUint64(&s.table[s.tableAt(e)], with) }

// tableDelete removes e and moves entries behind it up, so that no mark of the
// removal remains (Knuth, volume 3, algorithm 6.4R).
func (s *Shard) tableDelete(e uint64) {
	mask := len(s.table) - 1
	hole := s.tableAt(e)
	for i := (hole + 1) & mask; s.table[i] != 0; i = (i + 1) & mask {
		// An entry may move to the hole if its home is not between the two.
		if (i-s.home(s.table[i]))&mask >= (i-hole)&mask {
			atomic.StoreUint64(&s.table[hole], s.table[i])
			hole = i
		}
	}
	atomic.StoreUint64(&s.table[hole], 0)
}

// touch reads the home of h, from the table or from one that was just left.
func (s *Shard) touch(h uint64) {
	b := s.tableBits.Load()
	if b == 0 {
		return
	}
	base := unsafe.Pointer(unsafe.SliceData(s.areas[b&1]))
	atomic.LoadUint64((*uint64)(unsafe.Add(base, uintptr(uint32(h)>>(32-b))*8)))
}

// ghostBucket returns the ghosts among which h would be, newest first, and what
// stands for h there, never 0.
func (s *Shard) ghostBucket(h uint64) ([]uint32, uint32) {
	bucket := int(uint32(h)>>(32-uint(s.bits))) * len(s.ghosts) >> uint(s.bits) &^ (ghostWays - 1)
	return s.ghosts[bucket : bucket+ghostWays], uint32(h>>32) | 1
}

func (s *Shard) ghostPut(h uint64) {
	bucket, g := s.ghostBucket(h)
	copy(bucket[1:], bucket)
	bucket[0] = g
}

// ghostTake reports whether h is among the ghosts, and takes it out.
func (s *Shard) ghostTake(h uint64) bool {
	bucket, g := s.ghostBucket(h)
	for i, have := range bucket {
		if have == g {
			copy(bucket[i:], bucket[i+1:])
			bucket[ghostWays-1] = 0
			return true
		}
	}
	return false
}
