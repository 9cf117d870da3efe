package sstable

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fluxkv/internal/invariants"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// ReadersOptions say where the tables of a store lie and how many of them are
// open at once. FS, Dir and StoreID must be set.
type ReadersOptions struct {
	FS      vfs.FS
	Dir     string   // of all tables
	StoreID [16]byte // that they were written with
	Direct  bool     // open them for direct I/O

	// MaxOpen bounds the tables that are open, and so the file descriptors
	// they hold, as long as one of them is idle. At least openTablesMin.
	MaxOpen int
	// Memory is what roots, pinned indexes and pinned filters are charged to.
	// What does not fit is not pinned. Nil: no bound.
	Memory *offheap.Budget
	// MemoryChanged, if set, is called when a table that was opened or closed has
	// changed what Memory is charged. No lock is held that other tables need.
	MemoryChanged func()
	// Retry is how long a damaged table is not opened again. Default: 1 s.
	Retry time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// openTablesMin keeps the tables that one read touches open together.
const openTablesMin = 16

const retryDefault = time.Second

// openTries is how often a table is tried when the process has no descriptor
// left: others may take the one that an idle table gave back.
const openTries = 4

// Readers keeps the tables of a store open while they are used, and at most
// ReadersOptions.MaxOpen of them:
//
//	Add -> Handle: closed --Acquire--> open --idle, and another is needed--> closed
//	                      --damaged--> fenced: the error, until Retry passed
//
// All methods are safe for concurrent use.
type Readers struct {
	o     ReadersOptions
	opens atomic.Int64
	// failures counts tries to open that failed, fenced the tables that are
	// fenced now.
	failures, fenced, evictions atomic.Int64
	memory                      atomic.Int64
	rereads                     atomic.Int64 // of readers that are closed

	// open counts the tables that are open or being opened, limit is how many
	// there should be: MaxOpen, or 0 after Close. Both change under mu.
	open, limit atomic.Int64

	// mu guards ring and hand, and is held when a handle stops being open. No
	// file is touched under it.
	mu   sync.Mutex
	ring []*Handle // those that are open
	hand int       // of the clock: where the next idle one is looked for
}

// ReadersStats describe the open tables of a store.
type ReadersStats struct {
	Open        int   // tables that are open or being opened
	MaxOpen     int   // how many should be at most
	MemoryBytes int64 // what the open ones hold: roots, pinned indexes and filters
	Opens       int64 // tables opened so far
	Evictions   int64 // open tables closed for want of room
	Failures    int64 // tries to open that failed
	Fenced      int   // tables that are damaged or missing
	Rereads     int64 // blocks that failed their sum and were read once more
}

// NewReaders returns a set without tables.
func NewReaders(o ReadersOptions) *Readers {
	o.MaxOpen = max(o.MaxOpen, openTablesMin)
	if o.Retry <= 0 {
		o.Retry = retryDefault
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	rs := &Readers{o: o}
	rs.limit.Store(int64(o.MaxOpen))
	return rs
}

// Handle is one table of the store, open or not. Acquire and Release are safe
// for concurrent use.
type Handle struct {
	rs     *Readers
	number uint64
	state  atomic.Uint64 // flags, and handleRef for each Acquire
	// r is the open Reader. It is set under mu before handleOpen is, and
	// forgotten under rs.mu after that was taken back; who holds a reference
	// reads it.
	r    *Reader
	slot int // in rs.ring, under rs.mu

	// mu is held over opening, so that it is done once, and guards the fields
	// below.
	mu    sync.Mutex
	fence *CorruptError // why the table cannot be opened, or nil
	until time.Time     // when that is looked at again
}

const (
	handleOpen = 1 << iota // r is set
	handleUsed             // since the hand of the clock passed
	handleGone             // by Close: never open again
	handleRef
)

// Add returns the handle of a live table; nothing is opened. The caller has
// one for each table, and closes it when the table leaves the store.
func (rs *Readers) Add(number uint64) *Handle { return &Handle{rs: rs, number: number} }

// Number is the number of the table.
func (h *Handle) Number() uint64 { return h.number }

// Acquire returns the table's Reader, which stays open until Release. It opens
// the table when it is closed; nothing is held on an error:
//
//   - a *CorruptError when the table is damaged or missing, from then on for
//     ReadersOptions.Retry without a look at the file,
//   - what the file system said, which is not remembered, as a *vfs.ReadError;
//     a process without descriptors (EMFILE) says nothing about a table, and its
//     error is none,
//   - ErrHandleClosed after Close of the handle or of Readers.
//
// On an open table it takes one compare-and-swap and allocates nothing.
func (h *Handle) Acquire() (*Reader, error) {
	if h.ref() {
		return h.r, nil
	}
	return h.acquireClosed()
}

// ref takes a reference if the table is open.
func (h *Handle) ref() bool {
	for {
		s := h.state.Load()
		if s&handleOpen == 0 {
			return false
		}
		if h.state.CompareAndSwap(s, (s+handleRef)|handleUsed) {
			return true
		}
	}
}

// Release ends one Acquire. The Reader, its iterators and all they returned
// must not be used afterwards.
func (h *Handle) Release() {
	s := h.state.Add(^uint64(handleRef - 1))
	if invariants.Enabled && int64(s) < 0 {
		panic(fmt.Sprintf("sstable: table %d is released more often than acquired", h.number))
	}
	// Whoever counted one table too many found this one held, or is seen here:
	// both sides write first and look then.
	if s < handleRef && h.rs.open.Load() > h.rs.limit.Load() {
		h.rs.giveUp(h)
	}
}

func (h *Handle) acquireClosed() (*Reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ref() {
		return h.r, nil // another caller opened it
	}
	if h.state.Load()&handleGone != 0 {
		return nil, fmt.Errorf("table %d: %w", h.number, ErrHandleClosed)
	}
	rs := h.rs
	if h.fence != nil && rs.o.Now().Before(h.until) {
		return nil, h.fence
	}
	if err := rs.room(); err != nil {
		return nil, fmt.Errorf("table %d: %w", h.number, err)
	}
	r, err := rs.openTable(h.number)
	if err != nil {
		rs.open.Add(-1)
		rs.failures.Add(1)
		var damage *CorruptError
		if errors.As(err, &damage) {
			h.setFence(damage)
			h.until = rs.o.Now().Add(rs.o.Retry)
			return nil, damage
		}
		return nil, err
	}
	h.setFence(nil)
	rs.opens.Add(1)
	rs.memory.Add(int64(r.MemoryBytes()))
	h.r = r
	h.state.Store(handleOpen | handleUsed | handleRef)
	rs.mu.Lock()
	h.slot = len(rs.ring)
	rs.ring = append(rs.ring, h)
	rs.mu.Unlock()
	rs.memoryChanged()
	return r, nil
}

func (h *Handle) setFence(damage *CorruptError) {
	if (h.fence != nil) != (damage != nil) {
		if damage != nil {
			h.rs.fenced.Add(1)
		} else {
			h.rs.fenced.Add(-1)
		}
	}
	h.fence = damage
}

// Close ends the handle: the table is no longer part of the store, and nobody
// holds its Reader, which is closed. Later calls of Acquire fail. Closing
// again does nothing. When somebody holds the Reader, Close changes nothing
// and returns ErrHandleInUse.
func (h *Handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	rs := h.rs
	rs.mu.Lock()
	r, ok := rs.take(h, handleGone)
	rs.mu.Unlock()
	if !ok {
		return fmt.Errorf("close table %d: %w", h.number, ErrHandleInUse)
	}
	h.setFence(nil)
	return rs.closeReader(r)
}

// take closes h for new references, with the flags it has from now on, unless
// somebody holds it, and returns its Reader, nil if it was not open. mu is
// held.
func (rs *Readers) take(h *Handle, flags uint64) (*Reader, bool) {
	for {
		s := h.state.Load()
		if s >= handleRef {
			return nil, false
		}
		if h.state.CompareAndSwap(s, s&handleGone|flags) {
			if s&handleOpen == 0 {
				return nil, true
			}
			break
		}
	}
	r := h.r
	h.r = nil
	last := len(rs.ring) - 1
	rs.ring[h.slot] = rs.ring[last]
	rs.ring[h.slot].slot = h.slot
	rs.ring[last] = nil
	rs.ring = rs.ring[:last]
	rs.open.Add(-1)
	return r, true
}

// idle takes the least recently used table that nobody holds, as far as a
// clock with one bit tells, or returns nil. mu is held.
func (rs *Readers) idle() *Reader {
	for range 2 * len(rs.ring) {
		if rs.hand >= len(rs.ring) {
			rs.hand = 0
		}
		h := rs.ring[rs.hand]
		s := h.state.Load()
		switch {
		case s >= handleRef:
			rs.hand++
		case s&handleUsed != 0:
			h.state.CompareAndSwap(s, s&^handleUsed) // or it is used right now
			rs.hand++
		default:
			if r, ok := rs.take(h, 0); ok {
				rs.evictions.Add(1)
				return r // its slot has another table now, which is next
			}
			rs.hand++
		}
	}
	return nil
}

// room counts one more table as open and closes idle ones while there are too
// many; when all are held, there are too many until Release.
func (rs *Readers) room() error {
	rs.mu.Lock()
	if rs.limit.Load() == 0 {
		rs.mu.Unlock()
		return ErrHandleClosed
	}
	rs.open.Add(1)
	for rs.open.Load() > rs.limit.Load() {
		r := rs.idle()
		if r == nil {
			break
		}
		rs.mu.Unlock()
		// The table was only read: an error of closing it harms nobody.
		_ = rs.closeReader(r)
		rs.mu.Lock()
	}
	rs.mu.Unlock()
	return nil
}

// giveUp closes h, which was released, if too many tables are open.
func (rs *Readers) giveUp(h *Handle) {
	rs.mu.Lock()
	var r *Reader
	if rs.open.Load() > rs.limit.Load() && h.state.Load()&handleOpen != 0 {
		if r, _ = rs.take(h, 0); r != nil {
			rs.evictions.Add(1)
		}
	}
	rs.mu.Unlock()
	_ = rs.closeReader(r)
}

// openTable opens a table, pinned as far as memory allows.
func (rs *Readers) openTable(number uint64) (*Reader, error) {
	o := ReaderOptions{Number: number, StoreID: rs.o.StoreID, PinIndex: true, PinFilter: true, Memory: rs.o.Memory}
	f, err := rs.openFile(path.Join(rs.o.Dir, Name(number)))
	if err != nil {
		return nil, err
	}
	r, err := Open(f, o)
	if errors.Is(err, ErrCorrupt) {
		// One damaged block of the index or the filter must not take the whole
		// table with it: unpinned, it fails the reads that need it.
		o.PinIndex, o.PinFilter = false, false
		r, err = Open(f, o)
	}
	if err != nil {
		_ = f.Close() // err says more
		return nil, err
	}
	return r, nil
}

func (rs *Readers) openFile(name string) (vfs.File, error) {
	for try := 1; ; try++ {
		f, err := rs.o.FS.Open(name, vfs.OpenOptions{Direct: rs.o.Direct})
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, fs.ErrNotExist):
			return nil, corrupt(name, 0, "named by the manifest, but missing")
		case !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) || try == openTries:
			return nil, vfs.Unreadable(name, fmt.Errorf("open table %s: %w", name, err))
		}
		rs.mu.Lock()
		r := rs.idle()
		rs.mu.Unlock()
		if r == nil {
			return nil, vfs.Unreadable(name, fmt.Errorf("open table %s: %w", name, err))
		}
		_ = rs.closeReader(r)
	}
}

// closeReader closes a Reader that take returned.
func (rs *Readers) closeReader(r *Reader) error {
	if r == nil {
		return nil
	}
	rs.memory.Add(-int64(r.MemoryBytes()))
	rs.rereads.Add(r.Rereads())
	err := r.Close()
	rs.memoryChanged()
	return err
}

func (rs *Readers) memoryChanged() {
	if rs.o.MemoryChanged != nil {
		rs.o.MemoryChanged()
	}
}

// Close closes every table that nobody holds; those that are held close at
// their Release. Handles open nothing from then on. It returns the first error
// of closing a file, or ErrHandleInUse when a table is held.
func (rs *Readers) Close() error {
	var first error
	held := 0
	rs.mu.Lock()
	rs.limit.Store(0)
	all := append([]*Handle(nil), rs.ring...)
	rs.mu.Unlock()
	for _, h := range all {
		rs.mu.Lock()
		var r *Reader
		if h.state.Load()&handleOpen != 0 {
			r, _ = rs.take(h, 0)
			if r == nil {
				held++
			}
		}
		rs.mu.Unlock()
		if err := rs.closeReader(r); first == nil {
			first = err
		}
	}
	if first == nil && held > 0 {
		first = fmt.Errorf("%d tables: %w", held, ErrHandleInUse)
	}
	return first
}

// Stats describe the open tables. Counters are read one after another and may
// be of slightly different moments.
func (rs *Readers) Stats() ReadersStats {
	s := ReadersStats{
		Open:        int(rs.open.Load()),
		MaxOpen:     rs.o.MaxOpen,
		MemoryBytes: rs.memory.Load(),
		Opens:       rs.opens.Load(),
		Evictions:   rs.evictions.Load(),
		Failures:    rs.failures.Load(),
		Fenced:      int(rs.fenced.Load()),
		Rereads:     rs.rereads.Load(),
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, h := range rs.ring {
		// mu keeps it open, and a handle in the ring has its Reader.
		s.Rereads += h.r.Rereads()
	}
	return s
}
