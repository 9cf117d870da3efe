package lsm

import (
	"sync"
	"sync/atomic"

	"fluxkv/wal"
)

// packed are the values of one batch that go into the log compressed. It exists
// from before the batch is numbered until it is published, and holds no more
// than the batch's values take, plus a fifth of one.
type packed struct {
	bytes  []byte
	blocks []block // by operation, ascending
	at     int     // the next one that encode may ask for
	tried  int     // values that were compressed, kept or not
	raw    int64   // bytes of those that were kept, before
}

// block is the compressed value of one operation.
type block struct {
	op       int
	from, to int // in packed.bytes
}

var packedPool = sync.Pool{New: func() any { return new(packed) }}

// packedKeptMax bounds the buffer that is kept for other batches: a connection
// writes at most 1 MiB at once, unless one document is larger.
const packedKeptMax = 2 * mib

// compress makes the blocks of the documents that are stored compressed, and
// corrects s by what they save. Those are separated documents: an inline value
// leaves the log with the next flush, and in tables whole blocks are compressed.
// It returns nil, with which everything can be done, when there are none to try.
//
// It runs after the batch was admitted, so that writers that wait for room in
// memory hold no buffers, and before it is numbered (design R19).
func (db *DB) compress(b *Batch, s *wal.BatchSize) *packed {
	if !db.o.CompressDocuments || s.Docs == 0 {
		return nil
	}
	p := packedPool.Get().(*packed)
	s.Bytes, s.Largest = 0, 0
	for i := range b.ops {
		o := &b.ops[i]
		rec := 0
		if o.kind == opDelete {
			rec = wal.DeleteBytes(len(o.key))
		} else {
			separated, bytes := db.separates(o), len(o.value)
			if separated && wal.Compressible(bytes) {
				p.tried++
				from, ok := len(p.bytes), false
				if p.bytes, ok = wal.AppendBlock(p.bytes, o.value); ok {
					p.raw += int64(bytes)
					bytes = len(p.bytes) - from
					p.blocks = append(p.blocks, block{op: i, from: from, to: len(p.bytes)})
				}
			}
			rec = wal.RecordBytes(len(o.key), o.meta, bytes, separated)
		}
		s.Bytes += rec
		s.Largest = max(s.Largest, rec)
	}
	return p
}

// block returns the compressed value of operation i, nil when it is stored as it
// is. Operations must be asked for in their order.
func (p *packed) block(i int) []byte {
	if p == nil || p.at == len(p.blocks) || p.blocks[p.at].op != i {
		return nil
	}
	x := p.blocks[p.at]
	p.at++
	return p.bytes[x.from:x.to]
}

// release gives the memory back. Nothing of p may be used any more.
func (p *packed) release() {
	if p == nil {
		return
	}
	if cap(p.bytes) > packedKeptMax {
		p.bytes = nil
	}
	*p = packed{bytes: p.bytes[:0], blocks: p.blocks[:0]}
	packedPool.Put(p)
}

// Compression says what the compression of documents did, since Open. Bytes are
// those of values.
type Compression struct {
	// Tried documents were compressed, Kept of them are stored so. The others did
	// not save enough: what their compression cost was for nothing.
	Tried int64 `json:"tried_documents"`
	Kept  int64 `json:"kept_documents"`
	// Raw is what the kept ones were, Stored what they take in the log.
	Raw    int64 `json:"raw_bytes"`
	Stored int64 `json:"stored_bytes"`
}

// compressionCounts is Compression as it grows.
type compressionCounts struct{ tried, kept, raw, stored atomic.Int64 }

func (c *compressionCounts) add(p *packed) {
	if p == nil || p.tried == 0 {
		return
	}
	c.tried.Add(int64(p.tried))
	c.kept.Add(int64(len(p.blocks)))
	c.raw.Add(p.raw)
	c.stored.Add(int64(len(p.bytes)))
}

func (c *compressionCounts) load() Compression {
	return Compression{Tried: c.tried.Load(), Kept: c.kept.Load(), Raw: c.raw.Load(), Stored: c.stored.Load()}
}
