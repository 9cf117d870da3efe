package memfs

// inode is a file or a directory. All fields are guarded by FS.mu.
type inode struct {
	// id seeds what a crash does to this file, so that a seed means the same
	// whatever order maps are walked in.
	id    uint64
	isDir bool

	// Of a directory: its entries as calls see them and as a crash that
	// loses everything would leave them.
	entries, durable map[string]*inode

	// Of a file: content as reads see it, as surely survives, and in between
	// the changes since, oldest first.
	cur, dur content
	pending  []change
	// lost says that pending changes were dropped by a failed sync: cur then
	// holds bytes that no later Sync makes durable.
	lost  bool
	links int // names
	opens int
}

type changeKind uint8

const (
	changeWrite   changeKind = iota // data at off
	changeGrow                      // size becomes at least off
	changeCut                       // size becomes at most off
	changeReserve                   // blocks of [0, off), and grow
)

// change is one unsynced change of a file. data is never written to.
type change struct {
	time int64
	kind changeKind
	off  int64
	data []byte
}

func (c *change) end() int64 { return c.off + int64(len(c.data)) }

func (c *change) apply(to *content) {
	switch c.kind {
	case changeWrite:
		to.write(c.data, c.off)
		to.grow(c.end())
	case changeGrow:
		to.grow(c.off)
	case changeCut:
		to.cut(c.off)
	case changeReserve:
		to.reserve(c.off)
		to.grow(c.off)
	}
}

// sync makes all pending changes durable.
func (n *inode) sync() {
	if n.lost {
		for i := range n.pending {
			n.pending[i].apply(&n.dur)
		}
	} else {
		n.dur = n.cur.clone()
	}
	n.pending = nil
}

// writeDurable makes exactly these bytes durable.
func (n *inode) writeDurable(p []byte, off int64) {
	n.commitCuts()
	end := off + int64(len(p))
	n.forget(off, end)
	writeBoth(&n.cur, &n.dur, p, off)
	n.cur.grow(end)
	n.dur.grow(end)
}

// commitCuts makes pending cuts durable, with the sizes before them: a file
// system does not commit a size while it forgets that the file was shorter in
// between. Kept as pending, a cut would take durable bytes back.
func (n *inode) commitCuts() {
	last := -1
	for i := range n.pending {
		if n.pending[i].kind == changeCut {
			last = i
		}
	}
	if last < 0 {
		return
	}
	var kept []change
	for i := range n.pending[:last+1] {
		c := n.pending[i]
		if c.kind == changeWrite {
			kept = append(kept, c)
			continue
		}
		c.apply(&n.dur)
		if c.kind == changeCut {
			kept = without(kept, c.off, fileBytesMax)
		}
	}
	n.pending = append(kept, n.pending[last+1:]...)
}

// forget drops what is pending for bytes [off, end): they were overwritten by
// durable ones, and replaying them would bring older bytes back.
func (n *inode) forget(off, end int64) {
	for i := range n.pending {
		c := &n.pending[i]
		if c.kind == changeWrite && c.off < end && off < c.end() {
			n.pending = without(n.pending, off, end)
			return
		}
	}
}

// without returns the changes with the bytes [off, end) cut out of the writes.
func without(changes []change, off, end int64) []change {
	out := make([]change, 0, len(changes)+1)
	for _, c := range changes {
		if c.kind != changeWrite || c.end() <= off || end <= c.off {
			out = append(out, c)
			continue
		}
		if c.off < off {
			head := c
			head.data = c.data[:off-c.off]
			out = append(out, head)
		}
		if end < c.end() {
			tail := c
			tail.off, tail.data = end, c.data[end-c.off:]
			out = append(out, tail)
		}
	}
	return out
}

// entry is one name that changes: to is what it names afterwards, nil nothing.
type entry struct {
	dir  *inode
	name string
	to   *inode
}

// dirChange is one unsynced change of names that happens as one step.
type dirChange struct {
	time    int64
	node    *inode // the file created, renamed or removed
	entries []entry
}

func (c *dirChange) touches(dirs map[*inode]bool) bool {
	for _, e := range c.entries {
		if dirs[e.dir] {
			return true
		}
	}
	return false
}

func (e *entry) apply(names map[string]*inode) {
	if e.to == nil {
		delete(names, e.name)
	} else {
		names[e.name] = e.to
	}
}
