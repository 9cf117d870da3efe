package lsm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// scanOptions says how segments are read.
func (r *recoverer) scanOptions() wal.ScanOptions {
	db := r.db
	return wal.ScanOptions{
		FS: db.fs, Dir: db.dir, Secret: db.secret, StoreID: db.format.StoreID, Direct: !db.o.BufferedIO,
		BufferBytes: db.o.replayBufferBytes,
	}
}

// logSegments are the registered segments that replay reads.
func (r *recoverer) logSegments() (list []wal.ScanSegment, bytes int64, floor entry.Seqno) {
	floor = r.state.ClearSeqno
	for k := range r.db.kvstores {
		r.flushed[k] = r.state.FlushedSeqno(uint16(k))
		floor = max(floor, r.flushed[k]) // flushed was durable (R1)
	}
	for _, s := range r.state.Segments {
		if s.Kind != manifest.SegmentLog {
			continue
		}
		floor = max(floor, s.Last)
		list = append(list, wal.ScanSegment{ID: s.ID, End: s.End, Last: s.Last, Next: s.Next})
		if s.ID >= r.state.ReplayFrom.Segment {
			if s.End != 0 {
				bytes += int64(s.End)
			} else {
				bytes += s.Size
			}
		}
	}
	return list, bytes, floor
}

// replay loads the log into memtables: a scanner walks the groups in order,
// workers make nodes out of the records in any order, and at the end each
// kvstore sorts and links its own. When the log has more than the write cache
// may take, that is done in between, too, and what was loaded is spilled to
// tables.
func (r *recoverer) replay() error {
	db := r.db
	segments, bytes, floor := r.logSegments()
	if err := r.seeTables(); err != nil {
		return err
	}
	db.tableCapacity = int(min(db.o.WriteCache+db.o.WriteCache/4+mib+int64(db.batchBytesMax), offheap.ArenaBytesMax))
	db.tableBytesMax = db.tableCapacity - 64*kib
	for range db.kvstores {
		t, err := db.newReplayTable(bytes)
		if err != nil {
			return err
		}
		r.tables = append(r.tables, t)
		r.loaders = append(r.loaders, t.NewLoader())
	}
	if r.state.ReplayFrom.Segment == 0 {
		r.scan.End.Seqno = r.state.SeqnoFloor()
		r.scan.Last = r.scan.End.Seqno - 1
		r.scan.Clean = true
		return r.finishLoaders()
	}
	scan := r.scanOptions()
	scan.From, scan.Segments, scan.DurableFloor = r.state.ReplayFrom, segments, floor
	load := r.startLoad()
	res, err := wal.Scan(load.ctx, scan, func(c *wal.Chunk) error {
		// Chunks under way may still add; the room for them is there.
		if from := firstGroup(c); r.full() && from.Seqno > 1 {
			err := load.end()
			if err == nil {
				err = r.finishLoaders()
			}
			if err == nil {
				err = r.spill(from)
			}
			if err != nil {
				c.Release()
				return err
			}
			load.start()
		}
		return load.add(c)
	})
	if lerr := load.end(); lerr != nil {
		return lerr
	}
	if err != nil {
		return err
	}
	r.scan = res
	db.recovery.Clean = res.Clean
	db.recovery.Groups, db.recovery.Records, db.recovery.Bytes = res.Groups, res.Records, res.Bytes
	db.recovery.Segments, db.recovery.Discarded = len(segments), res.DiscardedGroups
	return r.finishLoaders()
}

// newReplayTable makes a memtable that takes the write cache and whatever is
// on the way when that is full. A node takes at most eight times its record;
// this is address space.
func (db *DB) newReplayTable(bytes int64) (*table, error) {
	o := wal.ScanOptions{BufferBytes: db.o.replayBufferBytes}
	underway := max(int64(db.batchBytesMax), o.MemoryBytes())
	capacity := min(int64(db.tableCapacity)+8*min(bytes, underway), offheap.ArenaBytesMax)
	t, err := memtable.New(memtable.Options{Capacity: int(capacity)})
	if err != nil {
		return nil, fmt.Errorf("memtable of up to %d bytes: %w", capacity, err)
	}
	return &table{Table: t}, nil
}

// load is a set of workers that make nodes of chunks, one generation of them
// after the other.
type load struct {
	r      *recoverer
	ctx    context.Context // ends when a worker fails
	cancel context.CancelFunc
	chunks chan *wal.Chunk
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error // the first one
}

func (r *recoverer) startLoad() *load {
	l := &load{r: r}
	l.ctx, l.cancel = context.WithCancel(r.ctx)
	l.start()
	return l
}

func (l *load) start() {
	l.chunks = make(chan *wal.Chunk)
	for range min(runtime.GOMAXPROCS(0), 4) {
		l.wg.Add(1)
		go l.work(l.chunks)
	}
}

func (l *load) work(chunks <-chan *wal.Chunk) {
	defer l.wg.Done()
	if err := l.r.load(chunks); err != nil {
		l.mu.Lock()
		if l.err == nil {
			l.err = err
		}
		l.mu.Unlock()
		l.cancel()
	}
}

// add hands a chunk on, or releases it when the load was called off.
func (l *load) add(c *wal.Chunk) error {
	select {
	case l.chunks <- c:
		return nil
	case <-l.ctx.Done():
		c.Release()
		return l.ctx.Err()
	}
}

// end waits until all chunks are loaded and returns the workers' first error.
// It may be called again.
func (l *load) end() error {
	if l.chunks != nil {
		close(l.chunks)
		l.chunks = nil
		l.wg.Wait()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// load is one worker: it makes nodes of the records of the chunks it gets.
func (r *recoverer) load(chunks <-chan *wal.Chunk) error {
	var to [kvstoresMax]*memtable.LoadWorker
	for i := range r.loaders {
		to[i] = r.loaders[i].Worker()
	}
	for c := range chunks {
		err := r.loadChunk(c, &to)
		c.Release()
		if err != nil {
			return err // the scan is called off
		}
	}
	return nil
}

func (r *recoverer) loadChunk(c *wal.Chunk, to *[kvstoresMax]*memtable.LoadWorker) error {
	db := r.db
	var rr wal.RecordReader
	var rec wal.Record
	var op memtable.Op
	var inflated []byte
	for g, payload := range c.Groups() {
		rr.Reset(payload, g)
		for rr.Next(&rec) {
			if rec.Kind == wal.RecordClear {
				for {
					old := r.cleared.Load()
					if uint64(rec.Seqno) <= old || r.cleared.CompareAndSwap(old, uint64(rec.Seqno)) {
						break
					}
				}
				continue
			}
			if uint64(rec.Seqno) <= r.cleared.Load() {
				continue
			}
			vb := db.vbucket(rec.Key)
			if rec.Seqno <= r.flushed[int(vb)%db.kvstores] && !mutant.ReplayFlushed {
				continue // in tables, or dropped on the way there (R3)
			}
			op = memtable.Op{VBucket: vb, Hash: xxhash.Sum64(rec.Key), Key: rec.Key, Seqno: rec.Seqno, Meta: rec.Meta}
			switch {
			case rec.Kind == wal.RecordDelete:
				op.Kind = entry.KindDelete
			case rec.Separated:
				op.Address = rec.Address
			case rec.Compressed:
				var err error
				if inflated, err = rec.AppendValue(inflated[:0]); err != nil {
					return fmt.Errorf("segment %06d, group at %d, seqno %d: %w", g.Segment, g.Offset, rec.Seqno, err)
				}
				op.Value, op.HasValue = inflated, true // Add copies it
			default:
				op.Value, op.HasValue = rec.Value, true
			}
			if err := to[int(vb)%db.kvstores].Add(&op); err != nil {
				return fmt.Errorf("replay of kvstore %d: %w", int(vb)%db.kvstores, err)
			}
		}
		if err := rr.Err(); err != nil {
			return fmt.Errorf("segment %06d, group at %d: %w", g.Segment, g.Offset, err)
		}
	}
	return nil
}

// finishLoaders sorts and links, several kvstores at a time.
func (r *recoverer) finishLoaders() error {
	workers := min(runtime.GOMAXPROCS(0), 4)
	var next atomic.Int32
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(r.loaders) || errs[w] != nil {
					return
				}
				errs[w] = r.loaders[i].Finish()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
