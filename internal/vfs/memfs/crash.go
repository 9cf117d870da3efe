package memfs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Damage says what a power cut leaves of what was not made durable. Durable
// bytes and names survive every damage.
type Damage int

const (
	// DropAll loses everything that is pending.
	DropAll Damage = iota
	// KeepAll loses nothing: the crash of a process, not of a machine.
	KeepAll
	// Random keeps or loses each 4 KiB block, some sectors of some blocks,
	// each size and each name, independently. A block written several times
	// may show any of its states.
	Random
	// Prefix keeps what happened before a random moment, over all files and
	// names.
	Prefix
	// Zeros keeps names and sizes; unsynced bytes in blocks that were never durable
	// are zero, elsewhere they are the older ones: a block that has its place on the
	// device is overwritten there, from the page cache too, and shows its old
	// sectors or the new ones. Only one that has none yet, or was allocated and never
	// written, reads as zeros when its data is lost.
	Zeros
	// OldContent is Zeros where blocks that were never durable show what a removed
	// file had at that offset.
	OldContent
	// Torn keeps or loses each 512-byte sector of each write; names as in
	// Random.
	Torn
	damages
)

var damageNames = [damages]string{"drop-all", "keep-all", "random", "prefix", "zeros", "old-content", "torn"}

func (d Damage) String() string {
	if d >= 0 && d < damages {
		return damageNames[d]
	}
	return fmt.Sprintf("Damage(%d)", int(d))
}

// Damages returns every damage.
func Damages() []Damage {
	all := make([]Damage, damages)
	for i := range all {
		all[i] = Damage(i)
	}
	return all
}

// CrashCopy returns the disk as it is found after a power cut at this moment,
// or at the moment of the crash when there was one. It has no pending changes,
// no hook, no locks held, no open files, and its calls count from 1. The
// original is not disturbed. The same seed, damage and calls before give the
// same disk, as long as those calls came from one goroutine.
func (f *FS) CrashCopy(seed int64, d Damage) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := New()
	out.noDirect = f.noDirect
	out.clock, out.nextID = f.clock, f.nextID
	out.graves = slices.Clone(f.graves) // never written to
	c := &crasher{fs: f, seed: uint64(seed), damage: d, copies: make(map[*inode]*inode)}
	if d == Prefix {
		c.last = c.moment()
	}
	out.root = c.copy(f.root)
	c.names()
	for _, n := range c.copies {
		if n.isDir {
			n.entries = maps.Clone(n.durable)
		}
	}
	// What lost its last name took its blocks with it.
	for _, n := range c.copies {
		for _, to := range n.entries {
			if to.isDir {
				continue
			}
			if to.links++; to.links == 1 {
				out.used += to.cur.blocks * pageBytes
			}
		}
	}
	out.capacity = f.capacity
	return out
}

// crasher makes one copy. It runs under the original's mu.
type crasher struct {
	fs     *FS
	seed   uint64
	damage Damage
	last   int64 // Prefix: the time of the last change that survives
	copies map[*inode]*inode
}

// random returns the source for one file, or for the names.
func (c *crasher) random(id uint64) *rand.Rand {
	return rand.New(rand.NewPCG(c.seed, id*uint64(damages)+uint64(c.damage)))
}

// moment picks the time at which Prefix cuts, among all pending changes.
func (c *crasher) moment() int64 {
	times := []int64{0}
	seen := make(map[*inode]bool)
	var visit func(n *inode)
	visit = func(n *inode) {
		if seen[n] {
			return
		}
		seen[n] = true
		for i := range n.pending {
			times = append(times, n.pending[i].time)
		}
		for _, to := range n.durable {
			visit(to)
		}
	}
	visit(c.fs.root)
	for i := range c.fs.pending {
		times = append(times, c.fs.pending[i].time)
		visit(c.fs.pending[i].node)
	}
	slices.Sort(times)
	return times[c.random(0).IntN(len(times))]
}

// copy returns the copy of n, made of what is durable and what survives of its
// content. Names that are pending are not in it yet.
func (c *crasher) copy(n *inode) *inode {
	if out := c.copies[n]; out != nil {
		return out
	}
	out := &inode{id: n.id, isDir: n.isDir}
	c.copies[n] = out
	if n.isDir {
		out.durable = make(map[string]*inode, len(n.durable))
		for name, to := range n.durable {
			out.durable[name] = c.copy(to)
		}
		return out
	}
	out.dur = c.survivor(n)
	out.cur = out.dur.clone()
	return out
}

// names applies the pending changes of names that survive. A change of a file
// whose earlier change was lost is lost too: it could not have happened first.
func (c *crasher) names() {
	rnd := c.random(0)
	lost := make(map[*inode]bool)
	for i := range c.fs.pending {
		p := &c.fs.pending[i]
		if lost[p.node] || !c.nameSurvives(p, rnd) {
			lost[p.node] = true
			continue
		}
		for _, e := range p.entries {
			dir := c.copies[e.dir]
			if dir == nil {
				continue // a directory that did not survive
			}
			if e.to != nil {
				e.to = c.copy(e.to)
			}
			e.apply(dir.durable)
		}
	}
}

func (c *crasher) nameSurvives(p *dirChange, rnd *rand.Rand) bool {
	switch c.damage {
	case DropAll:
		return false
	case Prefix:
		return p.time <= c.last
	case Random, Torn:
		return rnd.IntN(2) == 0
	}
	return true
}

// survivor returns the content of a file after the power cut.
func (c *crasher) survivor(n *inode) content {
	if len(n.pending) == 0 {
		return n.dur.clone()
	}
	if c.damage == KeepAll && !n.lost {
		return n.cur.clone()
	}
	out := n.dur.clone()
	switch c.damage {
	case KeepAll:
		for i := range n.pending {
			n.pending[i].apply(&out)
		}
	case Prefix:
		for i := range n.pending {
			if n.pending[i].time <= c.last {
				n.pending[i].apply(&out)
			}
		}
	case Random:
		randomBlocks(&out, n.pending, c.random(n.id))
	case Torn:
		tornWrites(&out, n.pending, c.random(n.id))
	case Zeros, OldContent:
		c.otherBytes(&out, n)
	}
	out.cut(out.size)
	return out
}

// blockFate is what Random does to one block: it shows its state after the
// first upTo changes, in the sectors of mask; the others keep the durable one.
type blockFate struct {
	upTo int
	mask uint8
}

func drawUpTo(changes int, rnd *rand.Rand) int {
	switch rnd.IntN(3) {
	case 0:
		return 0
	case 1:
		return changes
	}
	return rnd.IntN(changes + 1)
}

func randomBlocks(out *content, changes []change, rnd *rand.Rand) {
	sizeUpTo := drawUpTo(len(changes), rnd)
	fates := make(map[int64]blockFate)
	for i := range changes {
		c := &changes[i]
		if c.kind != changeWrite {
			if i < sizeUpTo {
				c.apply(out)
			}
			continue
		}
		eachSector(c, func(off int64, p []byte) {
			fate, drawn := fates[off/pageBytes]
			if !drawn {
				fate = blockFate{upTo: drawUpTo(len(changes), rnd), mask: 0xff}
				if rnd.IntN(4) == 0 {
					fate.mask = uint8(rnd.IntN(256))
				}
				fates[off/pageBytes] = fate
			}
			if i < fate.upTo && fate.mask&(1<<(off%pageBytes/sectorBytes)) != 0 {
				out.write(p, off)
			}
		})
		if i < sizeUpTo {
			out.grow(c.end())
		}
	}
}

func tornWrites(out *content, changes []change, rnd *rand.Rand) {
	sizeUpTo := len(changes)
	if rnd.IntN(2) == 0 {
		sizeUpTo = rnd.IntN(len(changes) + 1)
	}
	for i := range changes {
		c := &changes[i]
		if c.kind != changeWrite {
			if i < sizeUpTo {
				c.apply(out)
			}
			continue
		}
		eachSector(c, func(off int64, p []byte) {
			if rnd.IntN(2) == 0 {
				out.write(p, off)
			}
		})
		if i < sizeUpTo {
			out.grow(c.end())
		}
	}
}

// eachSector calls fn for each piece of a write that lies in one sector.
func eachSector(c *change, fn func(off int64, p []byte)) {
	off, p := c.off, c.data
	for len(p) > 0 {
		n := min(int64(len(p)), sectorBytes-off%sectorBytes)
		fn(off, p[:n])
		p, off = p[n:], off+n
	}
}

// otherBytes keeps all sizes and loses all data: blocks that were durable keep
// theirs, those that were not are zero, or old ones.
func (c *crasher) otherBytes(out *content, n *inode) {
	rnd := c.random(n.id)
	cut := int64(fileBytesMax) // blocks from here on were given back, and are others now
	for i := range n.pending {
		p := &n.pending[i]
		if p.kind != changeWrite {
			p.apply(out)
			if p.kind == changeCut {
				cut = min(cut, p.off)
			}
			continue
		}
		out.grow(p.end())
		for off := p.off; off < p.end(); {
			end := min(p.end(), off-off%pageBytes+pageBytes)
			was := n.dur.page(off / pageBytes)
			never := was == nil || was == zeroPage || off-off%pageBytes >= cut
			if never && c.damage == OldContent {
				if old := c.oldPage(off/pageBytes, rnd); old != nil {
					out.write(old[off%pageBytes:off%pageBytes+end-off], off)
				}
			}
			off = end
		}
	}
}

// oldPage returns a page that a removed file had at that place, nil for none.
func (c *crasher) oldPage(i int64, rnd *rand.Rand) *page {
	graves := c.fs.graves
	if len(graves) == 0 {
		return nil
	}
	start := rnd.IntN(len(graves))
	for j := range graves {
		if p := graves[(start+j)%len(graves)].page(i); p != nil && p != zeroPage {
			return p
		}
	}
	return nil
}
