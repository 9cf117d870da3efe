package memtable

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fluxkv/internal/offheap"
)

// ErrFull says that the arena has no room for a node. Only a Loader returns
// it; Reserve reports it as false.
var ErrFull = errors.New("memtable: full")

// KeyBytesMax is the longest user key.
const KeyBytesMax = 1<<16 - 1

// Options of a Table.
type Options struct {
	// Capacity is the most bytes of nodes, offheap.ArenaBytesMax at most. It
	// costs address space only: memory is used as nodes are written, and
	// Bytes tells how much. Default 256 MiB.
	Capacity int
}

const capacityDefault = 256 << 20

func (o Options) withDefaults() Options {
	if o.Capacity == 0 {
		o.Capacity = capacityDefault
	}
	return o
}

// Table is one memtable. Reading needs no lock and may go on beside writing;
// each method says who may call it.
type Table struct {
	nodes
	bytes []byte // the arena's
	arena *offheap.Arena
	head  uint32 // the node before all others, HeightMax high

	// Changed by writers rarely, read by every search: on a line without mu.
	_       [64]byte
	levels  atomic.Uint32 // of the highest node
	slots   atomic.Pointer[slots]
	lacking atomic.Bool // the index was full once: a miss proves nothing
	_       [64]byte

	// growMu serialises growing of the index. Order: growMu, mu.
	growMu  sync.Mutex
	retired []*slots // replaced, but readers may still hold them

	// mu guards the links and the index. Held for the links of at most 32
	// nodes, or to copy the index; no I/O and no system call while held.
	_     [64]byte
	mu    sync.Mutex
	keys  atomic.Int64 // in the index; written under mu
	count atomic.Int64 // versions; written under mu
	_     [64]byte
}

// New returns an empty table. The caller frees it with Free.
func New(o Options) (*Table, error) {
	o = o.withDefaults()
	arena, err := offheap.NewArena(o.Capacity)
	if err != nil {
		return nil, fmt.Errorf("make memtable: %w", err)
	}
	t := &Table{arena: arena, bytes: arena.Bytes()}
	t.nodes = nodes{base: unsafe.Pointer(unsafe.SliceData(t.bytes))}
	x, err := newSlots(slotsMin)
	if err != nil {
		arena.Free()
		return nil, fmt.Errorf("make memtable: %w", err)
	}
	t.slots.Store(x)
	if err := t.placeHead(); err != nil {
		t.Free()
		return nil, err
	}
	return t, nil
}

// placeHead writes the node before all others: links and no key.
func (t *Table) placeHead() error {
	const size = HeightMax*linkBytes + nodeKey + wordBytes
	place, ok := t.arena.Alloc(size, nodeAlign)
	if !ok {
		return fmt.Errorf("make memtable of %d bytes: %w", len(t.bytes), ErrFull)
	}
	clear(t.bytes[place:][:size])
	t.head = place + HeightMax*linkBytes
	t.levels.Store(1)
	return nil
}

// Reset empties the table and keeps its memory for the next entries, which
// saves the page faults that are the largest cost of filling fresh memory. The
// caller knows that nobody reads or writes the table, and that no View, Iter
// or Loader of it is in use.
func (t *Table) Reset() error {
	for _, x := range t.retired {
		x.free()
	}
	t.retired = nil
	t.slots.Load().clear()
	t.lacking.Store(false)
	t.keys.Store(0)
	t.count.Store(0)
	t.arena.Reset()
	return t.placeHead()
}

// Free gives the table's memory back. The caller knows that nobody reads or
// writes the table; Views and iterators must not be used afterwards.
func (t *Table) Free() {
	for _, x := range t.retired {
		x.free()
	}
	t.retired = nil
	t.slots.Load().free()
	t.arena.Free()
}

// Reserve takes n bytes, the sum of NodeBytes over a batch, and returns their
// place for InsertBatch. It reports false, and takes nothing, when they do not
// fit. It makes no system call and may run beside everything else.
func (t *Table) Reserve(n int) (place uint32, ok bool) {
	return t.arena.Alloc(n, nodeAlign)
}

// Bytes returns how many bytes of the arena are reserved.
func (t *Table) Bytes() int { return t.arena.Used() }

// IndexBytes returns the memory of the hash index, replaced ones included. It
// is apart from Bytes and grows only in Prepare and Loader.Finish.
func (t *Table) IndexBytes() int64 {
	t.growMu.Lock()
	defer t.growMu.Unlock()
	n := int64(len(t.slots.Load().mem))
	for _, x := range t.retired {
		n += int64(len(x.mem))
	}
	return n
}

// Len returns the number of versions linked.
func (t *Table) Len() int64 { return t.count.Load() }

// Op is one version to insert. The slices stay the caller's: they are copied.
type Op struct {
	VBucket uint16
	Hash    uint64 // 64-bit hash of Key, the same for every version and Get of it
	Key     []byte // user key, 1..KeyBytesMax bytes
	Seqno   entry.Seqno
	Kind    entry.Kind
	Meta    entry.Meta
	// Value is kept if HasValue is set, which tells an empty value from one
	// that is only at Address.
	Value    []byte
	HasValue bool
	Address  entry.Address // kept unless zero
	Height   uint8         // of RandomHeight, 1..HeightMax
}

// NodeBytes returns how many bytes of the arena op takes.
func (op *Op) NodeBytes() int { return op.nodeBytes(op.Height) }

func (op *Op) nodeBytes(height uint8) int {
	n := 0
	if op.HasValue {
		n = len(op.Value)
	}
	return NodeBytes(height, len(op.Key), op.Meta, n, !op.Address.IsZero())
}

func (op *Op) check(height uint8) {
	if invariants.Enabled {
		if height < 1 || height > HeightMax {
			panic(fmt.Sprintf("memtable: node of %d levels", height))
		}
		if len(op.Key) == 0 || len(op.Key) > KeyBytesMax {
			panic(fmt.Sprintf("memtable: key of %d bytes", len(op.Key)))
		}
		if op.Seqno == 0 || op.Seqno > entry.MaxSeqno {
			panic(fmt.Sprintf("memtable: seqno %d", op.Seqno))
		}
	}
}
