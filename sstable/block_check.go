package sstable

import (
	"errors"
	"fmt"
	"math"

	"fluxkv/internal/entry"
)

// check looks at everything in a parsed block that a search or a cursor
// relies on. Afterwards no access to it can leave the payload. The order of
// keys is not checked: wrong order gives wrong answers only if the writer
// erred, and Verify looks for that. Addresses of data blocks must fit what
// entry.Address holds; the offsets of index blocks are wider.
func (b *block) check(index bool) error {
	if err := b.checkKeys(); err != nil {
		return err
	}
	if err := b.checkMetas(); err != nil {
		return err
	}
	if b.seqnoBase+(1<<b.seqnoBits-1) > uint64(entry.MaxSeqno) {
		for i := range b.count {
			if b.seqno(i) > entry.MaxSeqno {
				return fmt.Errorf("seqno %d is out of range", b.seqno(i))
			}
		}
	}
	var c columns
	if err := b.columns(&c); err != nil {
		return err
	}
	if c.inline > 0 && b.shape&shapeValues == 0 {
		last := 0
		for i := range c.inline {
			end := b.offset(c.ends, i)
			if end < last {
				return errors.New("ends of values are not ascending")
			}
			last = end
		}
	}
	for i := range c.address {
		if col := &c.address[i]; c.addresses > 0 && !(index && i == 1) && col.base+(1<<col.bits-1) > math.MaxUint32 {
			for j := range c.addresses {
				if v := b.packedAt(col, j); v > math.MaxUint32 {
					return fmt.Errorf("address with %d", v)
				}
			}
		}
	}
	extras := 0
	if b.shape&shapeMeta != 0 {
		extras = b.count * int(extraBytes[b.meta])
	} else {
		for i := range b.runs {
			meta, first := b.run(i)
			extras += (b.runEnd(i) - first) * int(extraBytes[meta])
		}
	}
	if c.extras+extras != b.metas {
		return errors.New("columns do not fill the block")
	}
	return nil
}

func (b *block) checkMetas() error {
	if b.shape&shapeMeta != 0 {
		return checkMeta(b.meta)
	}
	last := -1
	for i := range b.runs {
		meta, first := b.run(i)
		if first <= last || i == 0 && first != 0 || first >= b.count {
			return errors.New("runs are not ascending")
		}
		if err := checkMeta(meta); err != nil {
			return err
		}
		last = first
	}
	return nil
}

func checkMeta(m byte) error {
	if m&metaKind == metaKind || m&metaZero != 0 {
		return fmt.Errorf("bad meta byte %#x", m)
	}
	return nil
}

func (b *block) checkKeys() error {
	at := b.suffixes
	for g := range b.groups {
		if b.offset(b.groupOffset, g) != at-b.suffixes {
			return fmt.Errorf("group %d is not where its offset says", g)
		}
		share, n := int(b.data[b.groupPrefix+g]), b.groupSize(g)
		if b.shape&shapeKeys != 0 {
			if share > b.headWidth {
				return fmt.Errorf("group %d shares more than its head", g)
			}
			at += (n - 1) * (b.headWidth - share)
		} else {
			lb := b.lengthBytes()
			if at+lb > b.seqnos {
				return fmt.Errorf("group %d passes its area", g)
			}
			head := b.length(at, 0)
			if share > head || head > keyBytesMax-b.prefixBytes || b.prefixBytes+head == 0 {
				return fmt.Errorf("group %d has a head of %d bytes and shares %d", g, head, share)
			}
			at += lb + head
			if at+(n-1)*lb > b.seqnos {
				return fmt.Errorf("group %d passes its area", g)
			}
			sum := 0
			for i := range n - 1 {
				w := b.length(at, i)
				if w > keyBytesMax-b.prefixBytes-share {
					return fmt.Errorf("group %d has a suffix of %d bytes", g, w)
				}
				sum += w
			}
			at += (n-1)*lb + sum
		}
		if at > b.seqnos {
			return fmt.Errorf("group %d passes its area", g)
		}
	}
	if at != b.seqnos {
		return errors.New("groups do not fill their area")
	}
	return nil
}
