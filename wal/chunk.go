package wal

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/internal/invariants"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// Chunk is a run of whole groups, one behind the other in one segment, in a
// buffer that Scan uses again after Release. Its groups have been verified.
type Chunk struct {
	Segment entry.SegmentID
	Offset  uint32 // of the first group in its file
	align   int
	bytes   []byte
	buf     *scanBuffer
}

// Groups walks the groups in order: the header, and the records' bytes for
// RecordReader.Reset. The header is overwritten by the next step; the bytes
// are valid until Release and must not be written to.
func (c *Chunk) Groups() iter.Seq2[*GroupHeader, []byte] {
	return func(yield func(*GroupHeader, []byte) bool) {
		var h GroupHeader
		for b := c.bytes; len(b) >= GroupHeaderBytes; {
			h.decode(b)
			if !yield(&h, b[GroupHeaderBytes:h.Bytes:h.Bytes]) {
				return
			}
			b = b[min(h.PaddedBytes(c.align), len(b)):]
		}
	}
}

// Bytes returns the length of the run, headers and padding included.
func (c *Chunk) Bytes() int { return len(c.bytes) }

// Release gives the buffer back. It may be called from any goroutine, once.
func (c *Chunk) Release() {
	if invariants.Enabled && c.bytes == nil {
		panic("wal: chunk released twice")
	}
	c.bytes = nil
	c.buf.release()
}

// scanBuffer is one piece of a segment:
//
//	mem = [ headroom | one read                 ]
//	             ^start                  ^end
//
// The end of the piece before, when a group straddles both, is copied into
// the headroom, so that every group is contiguous and nothing else is copied.
type scanBuffer struct {
	mem        []byte
	headroom   int
	start, end int   // valid bytes of mem
	base       int64 // file offset of mem[start]
	refs       atomic.Int32
	chunk      Chunk
	pool       *scanPool
	own        bool // made for one large group

	// A read in flight.
	done chan struct{}
	n    int
	err  error
}

func (b *scanBuffer) release() {
	if b.refs.Add(-1) == 0 {
		b.pool.put(b)
	}
}

// scanOwnBytesMax bounds what buffers of large groups take together, unless a
// single group is larger: 8 full groups of 4 MiB.
const scanOwnBytesMax = 32 << 20

// scanPool holds a fixed number of buffers for reading, and makes buffers for
// groups that are too large for them. Buffers are off the heap: 300 MB pass
// through a few MiB that were touched before.
type scanPool struct {
	all  []*scanBuffer
	free chan *scanBuffer

	mu       sync.Mutex
	ownFreed sync.Cond // on mu
	ownBytes int
}

func newScanPool(buffers, bytes int) (*scanPool, error) {
	p := &scanPool{free: make(chan *scanBuffer, buffers)}
	p.ownFreed.L = &p.mu
	for range buffers {
		mem, err := offheap.AlignedBuffer(2 * bytes)
		if err != nil {
			p.close()
			return nil, err
		}
		b := &scanBuffer{mem: mem, headroom: bytes, pool: p, done: make(chan struct{}, 1)}
		p.all = append(p.all, b)
		p.free <- b
	}
	return p, nil
}

// tryGet returns a free buffer or nil.
func (p *scanPool) tryGet() *scanBuffer {
	select {
	case b := <-p.free:
		b.refs.Store(1)
		return b
	default:
		return nil
	}
}

// get waits for a free buffer.
func (p *scanPool) get(ctx context.Context) (*scanBuffer, error) {
	select {
	case b := <-p.free:
		b.refs.Store(1)
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// getOwn makes a buffer of n bytes for one group, once there is room for it.
func (p *scanPool) getOwn(n int) (*scanBuffer, error) {
	n = int(roundUp(int64(n), vfs.BlockBytes))
	p.mu.Lock()
	for p.ownBytes > 0 && p.ownBytes+n > scanOwnBytesMax {
		p.ownFreed.Wait()
	}
	p.ownBytes += n
	p.mu.Unlock()
	mem, err := offheap.AlignedBuffer(n)
	if err != nil {
		p.returnOwn(n)
		return nil, err
	}
	b := &scanBuffer{mem: mem, pool: p, own: true}
	b.refs.Store(1)
	return b, nil
}

func (p *scanPool) returnOwn(n int) {
	p.mu.Lock()
	p.ownBytes -= n
	p.mu.Unlock()
	p.ownFreed.Signal()
}

func (p *scanPool) put(b *scanBuffer) {
	if b.own {
		n := len(b.mem)
		offheap.FreeAligned(b.mem)
		b.mem = nil
		p.returnOwn(n)
		return
	}
	p.free <- b // never blocks: it has room for all
}

// close waits until every chunk is released and frees the memory.
func (p *scanPool) close() {
	for range p.all {
		offheap.FreeAligned((<-p.free).mem)
	}
	p.mu.Lock()
	for p.ownBytes > 0 {
		p.ownFreed.Wait()
	}
	p.mu.Unlock()
}
