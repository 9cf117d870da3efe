package memtable

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"fluxkv/internal/offheap"
)

// The index is a table of open addressing with linear probing:
//
//	slot   u64 = high half of the key's hash << 32 | newest node of the key; 0 = empty
//	home   the top bits of the hash half, so slots lie in the order of hashes
//
// Half a hash in the slot costs 4 bytes and saves reading nodes: a miss reads
// none, and growing copies slots from one end to the other. Eight slots share
// a cache line, so probing is cheap up to the loads allowed here.
const (
	slotBytes = 8
	slotsMin  = 1 << 13 // 64 KiB
	slotsMax  = 1 << 30 // 8 GiB; 4 GiB hold 150 million nodes
)

// slots is one state of the index; growing makes another.
type slots struct {
	words []uint64 // atomic; a power of two of them
	shift uint     // 32 - log2(len(words))
	mem   []byte
}

func newSlots(n int) (*slots, error) {
	mem, err := offheap.Map(n * slotBytes)
	if err != nil {
		return nil, fmt.Errorf("map index of %d slots: %w", n, err)
	}
	return &slots{
		words: unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), n),
		shift: uint(32 - bits.TrailingZeros64(uint64(n))),
		mem:   mem,
	}, nil
}

func (x *slots) free()  { offheap.Unmap(x.mem); x.words, x.mem = nil, nil }
func (x *slots) clear() { clear(x.words) }

// limit is the load at which Prepare grows: three quarters. full, seven
// eighths, is the room for writers that outran it, and what bounds probing.
func (x *slots) limit() int { return len(x.words) / 4 * 3 }
func (x *slots) full() int  { return len(x.words) / 8 * 7 }

func (x *slots) home(hash uint64) int { return int(uint32(hash>>32) >> x.shift) }

// load reads the home slot of hash.
func (x *slots) load(hash uint64) uint64 { return atomic.LoadUint64(&x.words[x.home(hash)]) }

// candidate returns the slot, from i on, that has hash's half in it, and its
// node; node 0 means there is none.
func (x *slots) candidate(i int, hash uint64) (slot int, node uint32) {
	tag := uint32(hash >> 32)
	for {
		w := atomic.LoadUint64(&x.words[i])
		if w == 0 || uint32(w>>32) == tag {
			return i, uint32(w)
		}
		i = (i + 1) & (len(x.words) - 1)
	}
}

// lookup returns the newest node of g's key and its slot, or node 0 and the
// slot where the key belongs.
func (x *slots) lookup(a nodes, hash uint64, g *target) (slot int, node uint32) {
	i := x.home(hash)
	for {
		slot, node = x.candidate(i, hash)
		if node == 0 || g.sameKey(a, node) {
			return slot, node
		}
		i = (slot + 1) & (len(x.words) - 1)
	}
}

// add puts a key that is not in the index into it; nobody else writes.
func (x *slots) add(tag, node uint32) {
	i := int(tag >> x.shift)
	for x.words[i] != 0 {
		i = (i + 1) & (len(x.words) - 1)
	}
	x.words[i] = uint64(tag)<<32 | uint64(node)
}

// indexLocked makes the index lead to node if it is the newest of its key.
func (t *Table) indexLocked(hash uint64, g *target, node uint32) {
	x := t.slots.Load()
	slot, old := x.lookup(t.nodes, hash, g)
	if old == 0 {
		keys := t.keys.Load()
		if int(keys) >= x.full() {
			t.lacking.Store(true)
			return
		}
		t.keys.Store(keys + 1)
	} else if t.seqno(old) > g.seqno {
		// A later batch was faster.
		return
	}
	atomic.StoreUint64(&x.words[slot], hash>>32<<32|uint64(node))
}

// Prepare makes room in the hash index for extra more keys. Writers call it
// before they number a batch, outside of the lock they number under: it may
// map memory and copies the index under the table's mutex when it grows, about
// a millisecond a million keys. When writers outrun it, or memory cannot be
// mapped, keys stay out of the index and are found in the list: slower, never
// wrong. Safe for concurrent use.
func (t *Table) Prepare(extra int) {
	if int(t.keys.Load())+extra <= t.slots.Load().limit() {
		return
	}
	t.growMu.Lock()
	defer t.growMu.Unlock()
	_ = t.growTo(int(t.keys.Load()) + extra)
}

// growTo makes the index hold keys; growMu is held.
func (t *Table) growTo(keys int) error {
	old := t.slots.Load()
	n := len(old.words)
	for n/4*3 < keys && n < slotsMax {
		n *= 2
	}
	if n == len(old.words) {
		return nil
	}
	x, err := newSlots(n)
	if err != nil {
		return err
	}
	// The pages are faulted in before writers have to wait.
	for i := 0; i < len(x.mem); i += os.Getpagesize() {
		x.mem[i] = 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range old.words {
		// Writers are locked out, and readers only read.
		if w := atomic.LoadUint64(&old.words[i]); w != 0 {
			x.add(uint32(w>>32), uint32(w))
		}
	}
	t.retired = append(t.retired, old)
	t.slots.Store(x)
	return nil
}
