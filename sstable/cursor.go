package sstable

import "fluxkv/internal/entry"

// cursor walks the entries of one block and spells their keys out.
type cursor struct {
	b   block
	c   columns
	i   int // of the current entry; b.count behind the last
	key []byte
	at  place

	left    int // entries of the group behind the current one
	share   int // prefix and what the group shares
	suffix  int // offset of the next suffix
	lengths int // offset of the next length, when lengths differ
	run     int
	runEnd  int
}

// load takes a block that was checked. The slice is kept until the next load;
// the cursor stands nowhere until set.
func (c *cursor) load(data []byte) error {
	if err := c.b.parse(data); err != nil {
		return err
	}
	return c.b.columns(&c.c)
}

// set moves to entry i, 0 <= i <= count.
func (c *cursor) set(i int) {
	c.i = i
	b := &c.b
	if i >= b.count {
		return
	}
	c.key = append(c.key[:0], b.data[b.prefix:b.prefix+b.prefixBytes]...)
	c.group(i >> b.shift)
	for range i & (1<<b.shift - 1) {
		c.nextKey()
	}
	c.at = b.place(&c.c, i)
	c.run, c.runEnd = 0, b.count
	if b.shape&shapeMeta == 0 {
		for c.runEnd = b.runEnd(0); c.runEnd <= i; c.runEnd = b.runEnd(c.run) {
			c.run++
		}
	}
}

// group spells the head of group g.
func (c *cursor) group(g int) {
	b := &c.b
	share := int(b.data[b.groupPrefix+g])
	c.left = b.groupSize(g) - 1
	c.share = b.prefixBytes + share
	if b.shape&shapeKeys != 0 {
		head := b.heads + g*b.headWidth
		c.key = append(c.key[:b.prefixBytes], b.data[head:head+b.headWidth]...)
		c.suffix = b.suffixes + b.offset(b.groupOffset, g)
		return
	}
	head, end := b.head(g)
	c.key = append(c.key[:b.prefixBytes], head...)
	c.lengths = end
	c.suffix = end + c.left*b.lengthBytes()
}

// nextKey spells the next key of the group.
func (c *cursor) nextKey() {
	b := &c.b
	c.left--
	if b.shape&shapeKeys != 0 {
		c.suffix += copy(c.key[c.share:], b.data[c.suffix:c.suffix+b.keyBytes-c.share])
		return
	}
	n := b.length(c.lengths, 0)
	c.lengths += b.lengthBytes()
	c.key = append(c.key[:c.share], b.data[c.suffix:c.suffix+n]...)
	c.suffix += n
}

// next moves to the following entry and reports whether there is one.
func (c *cursor) next() bool {
	b := &c.b
	c.i++
	if c.i >= b.count {
		return false
	}
	if c.left > 0 {
		c.nextKey()
	} else {
		c.group(c.i >> b.shift)
	}
	switch c.at.meta & metaKind {
	case metaInline:
		c.at.inline++
	case metaAddress:
		c.at.addressed++
	}
	c.at.extra += int(extraBytes[c.at.meta])
	if c.i == c.runEnd {
		c.run++
		c.at.meta, _ = b.run(c.run)
		c.runEnd = b.runEnd(c.run)
	}
	return true
}

// version fills v with the current entry. Its slices are valid until the next
// move.
func (c *cursor) version(v *entry.Version) {
	v.Key = c.key
	c.b.version(&c.c, c.at, c.i, v)
}
