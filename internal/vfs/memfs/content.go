package memfs

const (
	pageBytes   = 4096
	leafPages   = 64
	leafBytes   = leafPages * pageBytes
	sectorBytes = 512

	// fileBytesMax bounds a file, and with it the table of leaves: 256 Ki
	// entries, 2 MiB.
	fileBytesMax = 64 << 30
)

type page [pageBytes]byte

// token is the identity of the one content that may change a leaf in place. It
// is not empty, because empty values may share an address.
type token struct{ _ byte }

// leaf holds the pages of 256 KiB; nil is a hole, which reads as zero and
// takes no space. It may be changed only by the content whose token is own,
// and page i of it only when bit i of mine is set: the rest is shared with
// other contents.
type leaf struct {
	own  *token
	mine uint64
	p    [leafPages]*page
}

// zeroPage is a block that was allocated and never written, zeroLeaf 64 such.
var (
	zeroPage = new(page)
	zeroLeaf = func() *leaf {
		l := new(leaf)
		for i := range l.p {
			l.p[i] = zeroPage
		}
		return l
	}()
)

// content is the bytes of a file at one moment. Pages beyond size are holes.
// It is guarded by FS.mu; what is shared with contents of other disks is
// never changed.
type content struct {
	size   int64
	blocks int64 // pages that are not holes
	own    *token
	leaves []*leaf
}

// clone returns a content with the same bytes, in time of the leaf table only.
// Both sides lose the right to change what they now share.
func (c *content) clone() content {
	c.own = nil
	out := *c
	out.leaves = append([]*leaf(nil), c.leaves...)
	return out
}

func (c *content) page(i int64) *page {
	at := i / leafPages
	if at >= int64(len(c.leaves)) || c.leaves[at] == nil {
		return nil
	}
	return c.leaves[at].p[i%leafPages]
}

// leafFor returns the leaf of page i, made or copied so that it can change.
func (c *content) leafFor(i int64) *leaf {
	at := i / leafPages
	for int64(len(c.leaves)) <= at {
		c.leaves = append(c.leaves, nil)
	}
	if c.own == nil {
		c.own = new(token)
	}
	old := c.leaves[at]
	if old != nil && old.own == c.own {
		return old
	}
	l := new(leaf)
	if old != nil {
		*l = *old
	}
	l.own, l.mine = c.own, 0
	c.leaves[at] = l
	return l
}

// setPage installs a page that other contents may hold too; nil makes a hole.
func (c *content) setPage(i int64, p *page) {
	if c.page(i) == p {
		return
	}
	l := c.leafFor(i)
	slot := i % leafPages
	if l.p[slot] != nil {
		c.blocks--
	}
	if p != nil {
		c.blocks++
	}
	l.p[slot] = p
	l.mine &^= 1 << slot
}

// ownPage returns page i, made or copied so that it can change.
func (c *content) ownPage(i int64) *page {
	l := c.leafFor(i)
	slot := i % leafPages
	if l.mine&(1<<slot) != 0 {
		return l.p[slot]
	}
	p := new(page)
	if l.p[slot] != nil {
		*p = *l.p[slot]
	} else {
		c.blocks++
	}
	l.p[slot] = p
	l.mine |= 1 << slot
	return p
}

// read copies bytes from off on; the caller has bounded them by size.
func (c *content) read(p []byte, off int64) {
	for len(p) > 0 {
		at := off % pageBytes
		n := min(int64(len(p)), pageBytes-at)
		if src := c.page(off / pageBytes); src != nil {
			copy(p[:n], src[at:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}

// write puts bytes in place and leaves the size alone.
func (c *content) write(p []byte, off int64) {
	for len(p) > 0 {
		at := off % pageBytes
		n := copy(c.ownPage(off / pageBytes)[at:], p)
		p, off = p[n:], off+int64(n)
	}
}

// zero clears bytes [off, end), leaving holes holes.
func (c *content) zero(off, end int64) {
	for off < end {
		i, at := off/pageBytes, off%pageBytes
		n := min(end-off, pageBytes-at)
		if c.page(i) != nil {
			clear(c.ownPage(i)[at : at+n])
		}
		off += n
	}
}

// missing returns how many blocks [off, end) needs that are not there.
func (c *content) missing(off, end int64) int64 {
	n := int64(0)
	for i := off / pageBytes; i < (end+pageBytes-1)/pageBytes; i++ {
		if i%leafPages == 0 && end-i*pageBytes >= leafBytes {
			if at := i / leafPages; at < int64(len(c.leaves)) && c.leaves[at] == zeroLeaf {
				i += leafPages - 1
				continue
			}
		}
		if c.page(i) == nil {
			n++
		}
	}
	return n
}

// reserve allocates the blocks of [0, end).
func (c *content) reserve(end int64) {
	pages := (end + pageBytes - 1) / pageBytes
	for i := int64(0); i < pages; i++ {
		at := i / leafPages
		if i%leafPages == 0 && pages-i >= leafPages && (at >= int64(len(c.leaves)) || c.leaves[at] == nil) {
			for int64(len(c.leaves)) <= at {
				c.leaves = append(c.leaves, nil)
			}
			c.leaves[at] = zeroLeaf
			c.blocks += leafPages
		}
		if at < int64(len(c.leaves)) && c.leaves[at] == zeroLeaf {
			i += leafPages - 1
			continue
		}
		if c.page(i) == nil {
			c.setPage(i, zeroPage)
		}
	}
}

// grow makes the file at least size bytes long.
func (c *content) grow(size int64) { c.size = max(c.size, size) }

// cut makes the file at most size bytes long and drops every page beyond,
// also those that raw writes put behind the end.
func (c *content) cut(size int64) {
	c.size = min(c.size, size)
	first := (size + pageBytes - 1) / pageBytes
	for i := first; i < int64(len(c.leaves))*leafPages; i++ {
		at := i / leafPages
		if c.leaves[at] == nil {
			i |= leafPages - 1
			continue
		}
		if i%leafPages == 0 {
			for _, p := range c.leaves[at].p {
				if p != nil {
					c.blocks--
				}
			}
			c.leaves[at] = nil
			i += leafPages - 1
			continue
		}
		c.setPage(i, nil)
	}
	c.leaves = c.leaves[:min(int64(len(c.leaves)), (first+leafPages-1)/leafPages)]
	if tail := size % pageBytes; tail != 0 {
		c.zero(size, size-tail+pageBytes)
	}
}

// writeBoth puts the same bytes into a and b; whole pages are shared.
func writeBoth(a, b *content, p []byte, off int64) {
	for len(p) > 0 {
		i, at := off/pageBytes, off%pageBytes
		n := min(int64(len(p)), pageBytes-at)
		old := a.page(i)
		if n == pageBytes || old == b.page(i) {
			both := new(page)
			if n < pageBytes && old != nil {
				*both = *old
			}
			copy(both[at:], p[:n])
			a.setPage(i, both)
			b.setPage(i, both)
		} else {
			copy(a.ownPage(i)[at:], p[:n])
			copy(b.ownPage(i)[at:], p[:n])
		}
		p, off = p[n:], off+n
	}
}
