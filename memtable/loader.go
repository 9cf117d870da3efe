package memtable

import (
	"errors"
	"fmt"
	"sync"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fluxkv/internal/offheap"
)

// ErrDuplicate says that a Loader was given one (key, seqno) twice.
var ErrDuplicate = errors.New("memtable: duplicate version")

const (
	// A worker takes this much of the arena at a time, so that workers do not
	// meet; the rest of its last piece is lost. Larger nodes get their own.
	loadPieceBytes    = 64 << 10
	loadNodeBytesOwn  = loadPieceBytes / 8
	loadRefsPerBlock  = 8192 // 128 KiB
	loadHeightSeedMix = 0x9E3779B97F4A7C15
)

// ref stands for a node while a load is sorted: 16 bytes, no pointer.
type ref struct {
	word uint64 // the bytes of the internal key that are being sorted by
	node uint32
	tag  uint32 // high half of the key's hash
}

// Loader fills an empty table with versions in any order, several times faster
// than inserting them: nodes are made as they arrive, and Finish sorts
// references to them and links the nodes one behind the other.
type Loader struct {
	t       *Table
	mu      sync.Mutex // guards workers
	workers []*LoadWorker
}

// NewLoader returns a loader for t, which is empty and which nobody reads or
// writes until Finish returned.
func (t *Table) NewLoader() *Loader { return &Loader{t: t} }

// Worker returns a new worker, for one goroutine. Safe for concurrent use.
func (l *Loader) Worker() *LoadWorker {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &LoadWorker{t: l.t, rnd: loadHeightSeedMix * uint64(len(l.workers)+1)}
	l.workers = append(l.workers, w)
	return w
}

// Len returns the number of versions added. No worker may be adding.
func (l *Loader) Len() int {
	n := 0
	for _, w := range l.workers {
		n += w.len()
	}
	return n
}

// LoadWorker makes nodes; it serves one goroutine, beside other workers.
type LoadWorker struct {
	t          *Table
	place, end uint32 // what is left of the piece
	rnd        uint64
	blocks     [][]ref // full
	refs       []ref
}

func (w *LoadWorker) len() int { return len(w.blocks)*loadRefsPerBlock + len(w.refs) }

// Add copies op into the table. A Height of 0 is drawn here. It returns
// ErrFull, and adds nothing, when the arena has no room.
func (w *LoadWorker) Add(op *Op) error {
	height := op.Height
	if height == 0 {
		height = RandomHeight(&w.rnd)
	}
	op.check(height)
	size := op.nodeBytes(height)
	place := w.place
	switch {
	case size <= int(w.end-w.place):
		w.place += uint32(size)
	case size < loadNodeBytesOwn:
		if p, ok := w.t.Reserve(loadPieceBytes); ok {
			place = p
			w.place, w.end = p+uint32(size), p+loadPieceBytes
			break
		}
		fallthrough
	default:
		p, ok := w.t.Reserve(size)
		if !ok {
			return fmt.Errorf("load %d bytes at %d of %d: %w", size, w.t.Bytes(), len(w.t.bytes), ErrFull)
		}
		place = p
	}
	n, _ := putNode(w.t.bytes, place, op, height)
	if len(w.refs) == cap(w.refs) {
		if w.refs != nil {
			w.blocks = append(w.blocks, w.refs)
		}
		w.refs = make([]ref, 0, loadRefsPerBlock)
	}
	w.refs = append(w.refs, ref{word: w.t.word(n), node: n, tag: uint32(op.Hash >> 32)})
	return nil
}

// Finish sorts and links everything added and fills the hash index. All
// workers are done. Beside the table a version costs 16 bytes until then, and
// 32 more, outside the Go heap, while it runs. Afterwards the table takes
// inserts, and the loader is used up. It returns ErrDuplicate for a
// (key, seqno) that came twice, or an error when memory cannot be mapped; the
// table is then only good for Reset or Free.
func (l *Loader) Finish() error {
	t := l.t
	if t.Len() != 0 {
		return fmt.Errorf("memtable: load into a table of %d versions", t.Len())
	}
	n := l.Len()
	if n == 0 {
		return nil
	}
	refs, freeRefs, err := mapRefs(n)
	if err != nil {
		return err
	}
	defer freeRefs()
	spare, freeSpare, err := mapRefs(n)
	if err != nil {
		return err
	}
	defer freeSpare()
	k := 0
	for _, w := range l.workers {
		for _, b := range w.blocks {
			k += copy(refs[k:], b)
		}
		k += copy(refs[k:], w.refs)
	}
	l.workers = nil
	refSorter{t.nodes}.sort(refs, spare)

	t.growMu.Lock()
	err = t.growTo(n)
	t.growMu.Unlock()
	if err != nil {
		return err
	}
	return t.linkSorted(refs)
}

// linkSorted appends each node at the tail of its levels.
func (t *Table) linkSorted(refs []ref) error {
	var tails [HeightMax]uint32
	for level := range tails {
		tails[level] = t.head
	}
	x := t.slots.Load()
	keys, top := 0, 1
	for i := range refs {
		r := &refs[i]
		h := int(t.height(r.node))
		if invariants.Enabled && i > 0 && t.compare(refs[i-1].node, r.node) > 0 {
			panic(fmt.Sprintf("memtable: %q sorted behind %q", t.key(r.node), t.key(refs[i-1].node)))
		}
		for level := range h {
			*t.link(tails[level], level) = r.node
			tails[level] = r.node
		}
		top = max(top, h)
		// Versions of one key always end with equal words: they were compared
		// by the same bytes.
		if i > 0 && r.word == refs[i-1].word && r.tag == refs[i-1].tag {
			if same, err := t.checkNeighbours(refs[i-1].node, r.node); err != nil {
				return err
			} else if same {
				continue
			}
		}
		if keys >= x.full() {
			t.lacking.Store(true)
			continue
		}
		x.add(r.tag, r.node)
		keys++
	}
	for level, n := range tails {
		*t.link(n, level) = 0
	}
	t.levels.Store(uint32(top))
	t.keys.Store(int64(keys))
	t.count.Store(int64(len(refs)))
	return nil
}

// checkNeighbours reports whether y, which follows x, is a version of its key.
func (t *Table) checkNeighbours(x, y uint32) (bool, error) {
	kx, ky := t.key(x), t.key(y)
	if string(kx) != string(ky) {
		return false, nil
	}
	if t.seqno(x) == t.seqno(y) {
		vb, key := entry.SplitKey(ky)
		return true, fmt.Errorf("%w: vbucket %d, key %q, seqno %d", ErrDuplicate, vb, key, t.seqno(y))
	}
	return true, nil
}

func mapRefs(n int) (refs []ref, free func(), err error) {
	mem, err := offheap.Map(n * refBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("map references of %d versions: %w", n, err)
	}
	return refsOf(mem, n), func() { offheap.Unmap(mem) }, nil
}
