package sstable

import "github.com/golang/snappy"

// packer fills compressed blocks: it guesses from the last ratio when a block
// may be full, compresses it then, and cuts it back when it guessed too high.
type packer struct {
	target int     // stored payload bytes
	ratio  float64 // compressed over plain, of the last trial
	next   int     // plain length at which to look again
	buf    []byte
	plain  []byte
	part   blockBuilder
}

func (p *packer) start(target int) {
	p.target, p.ratio = target, 0.5
	p.guess()
}

// guess aims a little below the target: cutting back costs more than another
// trial.
func (p *packer) guess() { p.next = int(float64(p.target) / p.ratio * 0.97) }

func (p *packer) due(payload int) bool { return payload >= p.next }

func (p *packer) estimate(plain int) int64 { return int64(float64(plain) * p.ratio) }

func (p *packer) compress(plain []byte) []byte {
	if n := snappy.MaxEncodedLen(len(plain)); cap(p.buf) < n {
		p.buf = make([]byte, n)
	}
	return snappy.Encode(p.buf[:cap(p.buf)], plain)
}

// size is what the entries of b would take.
func (p *packer) size(b *blockBuilder) (stored, plain int) {
	p.plain = b.encode(p.plain[:0])
	return min(len(p.compress(p.plain)), len(p.plain)), len(p.plain)
}

// cut says how many entries of b make a full block: all, a part from the
// front, or 0 when there is room for more. With full there is none.
func (p *packer) cut(b *blockBuilder, full bool) int {
	stored, plain := p.size(b)
	p.ratio = max(float64(stored)/float64(plain), 1.0/64)
	count := b.size.count
	if stored <= p.target {
		p.guess()
		// Within two entries of the target, looking again is not worth it.
		if full || (p.target-stored)*count < 2*stored {
			return count
		}
		p.next = max(p.next, plain+(p.target-stored)/2)
		return 0
	}
	if count == 1 {
		p.guess()
		return 1
	}
	// The largest front that fits, by bisection: this happens when the next
	// entries compress worse than the last block did.
	lo, hi := 1, count-1
	for lo < hi {
		mid := (lo + hi + 1) / 2
		p.part.reset()
		p.part.take(b, 0, mid)
		if n, _ := p.size(&p.part); n <= p.target {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	p.guess()
	return lo
}
