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
// kvstore sorts and links its own.
func (r *recoverer) replay() error {
	db := r.db
	segments, bytes, floor := r.logSegments()
	// A node takes at most eight times its record; this is address space.
	capacity := min(db.o.WriteCache+db.o.WriteCache/4+mib+int64(db.batchBytesMax)+8*bytes, offheap.ArenaBytesMax)
	db.tableCapacity = int(capacity)
	db.tableBytesMax = int(capacity) - 64*kib
	for range db.kvstores {
		t, err := db.newTable()
		if err != nil {
			return err
		}
		r.tables = append(r.tables, t)
		r.loaders = append(r.loaders, t.NewLoader())
	}
	if r.state.ReplayFrom.Segment == 0 {
		r.scan.End.Seqno = r.state.NextSeqno
		r.scan.Last = r.state.NextSeqno - 1
		r.scan.Clean = true
		return r.finishLoaders()
	}

	workers := min(runtime.GOMAXPROCS(0), 4)
	chunks := make(chan *wal.Chunk)
	errs := make(chan error, workers)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			if err := r.load(chunks); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	scan := r.scanOptions()
	scan.From, scan.Segments, scan.DurableFloor = r.state.ReplayFrom, segments, floor
	res, err := wal.Scan(ctx, scan, func(c *wal.Chunk) error {
		select {
		case chunks <- c:
			return nil
		case <-ctx.Done():
			c.Release()
			return ctx.Err()
		}
	})
	close(chunks)
	wg.Wait()
	select {
	case werr := <-errs:
		return werr
	default:
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
			op = memtable.Op{VBucket: vb, Hash: xxhash.Sum64(rec.Key), Key: rec.Key, Seqno: rec.Seqno, Meta: rec.Meta}
			switch {
			case rec.Kind == wal.RecordDelete:
				op.Kind = entry.KindDelete
			case rec.Separated:
				op.Address = rec.Address
			case rec.Compressed:
				v, err := rec.AppendValue(nil)
				if err != nil {
					return err
				}
				op.Value, op.HasValue = v, true
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
