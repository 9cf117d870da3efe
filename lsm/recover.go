package lsm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// seqnoJump is how far seqnos jump after a log that did not end in order:
// past everything that may have been handed out without a trace (design R4).
const seqnoJump = 1 << 24

// Open opens the store in dir, creating it when dir is empty or missing. It
// returns when everything that was acknowledged is there again. When it fails
// it leaves the files as they were. Errors: ErrLocked, ErrCorrupt with file,
// offset and reason, one that names bad options, or what the file system said.
func Open(dir string, o Options) (*DB, error) {
	return OpenContext(context.Background(), dir, o)
}

// OpenContext is Open that can be called off: recovery of a large log takes
// seconds.
func OpenContext(ctx context.Context, dir string, o Options) (*DB, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	db := &DB{o: o, dir: dir, fs: o.FS, batchBytesMax: o.BatchBytesMax(), drained: make(chan struct{}, 1)}
	db.snapshots.open = map[Seqno]int{}
	db.quota.init(o.WriteCache, o.Reject)
	db.commit.stripes = make([]Seqno, stripeCount)
	db.commit.rnd.Store(uint64(time.Now().UnixNano()))
	if err := db.fs.MkdirAll(path.Join(dir, wal.SegmentsDir)); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	lock, err := db.fs.Lock(path.Join(dir, lockName))
	if err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			err = fmt.Errorf("%w: %w", ErrLocked, err)
		}
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	db.lock = lock
	r := &recoverer{db: db, ctx: ctx, start: time.Now()}
	if err := r.run(); err != nil {
		r.abandon()
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, corruptError(err)), lock.Close())
	}
	return db, nil
}

const lockName = "LOCK"

// corruptError gives damage found below the name that callers know.
func corruptError(err error) error {
	if errors.Is(err, wal.ErrCorrupt) || errors.Is(err, manifest.ErrCorrupt) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// recoverer is one run of recovery. It ends before any goroutine of the store
// starts.
type recoverer struct {
	db    *DB
	ctx   context.Context
	start time.Time
	state manifest.State
	scan  wal.ScanResult

	tables  []*table
	loaders []*memtable.Loader
	cleared atomic.Uint64 // highest clear seqno
	open    []*wal.Segment
}

// run goes from CURRENT to ready. Until the log is read and synced it writes
// nothing but a new store's files.
func (r *recoverer) run() error {
	for _, step := range []func() error{
		r.format, r.probe, r.manifest, r.checkFiles, r.checkOrphans, r.replay, r.syncReplayed, r.record, r.openSegments, r.startLog,
	} {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *recoverer) abandon() {
	db := r.db
	if db.log == nil {
		for _, s := range r.open {
			s.CloseFile()
		}
	}
	if db.edits.log != nil {
		db.edits.log.Close()
	}
	if v := db.current.Swap(nil); v != nil {
		v.release()
		return
	}
	for _, t := range r.tables {
		t.Free()
	}
}

// format reads FORMAT, or writes it for a new store.
func (r *recoverer) format() error {
	db := r.db
	stage, err := manifest.FindStage(db.fs, db.dir)
	if err != nil {
		return err
	}
	if stage == manifest.StageNone {
		if err := r.refuseSegments("has log segments, but no FORMAT file"); err != nil {
			return err
		}
		vb := db.o.VBuckets
		if vb == 0 {
			vb = 16
		}
		ks := db.o.KVStores
		if ks == 0 {
			ks = min(kvstoresMax, vb)
		}
		f, err := manifest.NewFormat(vb, ks, db.o.Now())
		if err != nil {
			return err
		}
		if err := manifest.CreateFormat(db.fs, db.dir, f); err != nil {
			return err
		}
		db.recovery.Created = true
	}
	f, err := manifest.ReadFormat(db.fs, db.dir)
	if err != nil {
		return err
	}
	if v := db.o.VBuckets; v != 0 && v != int(f.VBuckets) {
		return fmt.Errorf("vbuckets: %d asked for, the store was created with %d", v, f.VBuckets)
	}
	if k := db.o.KVStores; k != 0 && k != int(f.KVStores) {
		return fmt.Errorf("kvstores: %d asked for, the store was created with %d", k, f.KVStores)
	}
	db.format = f
	db.secret = f.Secret
	db.vbuckets, db.kvstores = int(f.VBuckets), int(f.KVStores)
	if stage != manifest.StageCreated {
		if err := r.refuseSegments("has log segments, but no CURRENT file"); err != nil {
			return err
		}
		l, err := manifest.Create(db.fs, db.dir, f.Secret, manifest.Edit{})
		if err != nil {
			return err
		}
		return l.Close()
	}
	return nil
}

func (r *recoverer) refuseSegments(why string) error {
	names, err := r.db.fs.List(path.Join(r.db.dir, wal.SegmentsDir))
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, _, ok := wal.ParseSegmentName(n); ok {
			return fmt.Errorf("%w: %s %s", ErrCorrupt, r.db.dir, why)
		}
	}
	return nil
}

// probe finds out whether direct I/O works here. It falls back in plain words.
func (r *recoverer) probe() error {
	db := r.db
	if db.o.BufferedIO {
		return nil
	}
	err := vfs.ProbeDirect(db.fs, db.dir)
	if errors.Is(err, vfs.ErrDirectUnsupported) {
		db.o.Logf("the file system of %s does not support direct I/O: using the page cache", db.dir)
		db.o.BufferedIO = true
		return nil
	}
	if errors.Is(err, vfs.ErrNoSpace) {
		// Nothing to write the probe to. The segments will tell.
		db.o.Logf("cannot probe direct I/O in %s, assuming it works: %v", db.dir, err)
		return nil
	}
	return err
}

func (r *recoverer) manifest() error {
	db := r.db
	l, st, err := manifest.Open(db.fs, db.dir, db.format.Secret)
	if err != nil {
		return err
	}
	db.edits.log = l
	r.state = st
	r.cleared.Store(uint64(st.ClearSeqno))
	return nil
}

// checkFiles: whatever is registered must be there with its size (design R12).
func (r *recoverer) checkFiles() error {
	name := func(s manifest.Segment) string {
		return path.Join(r.db.dir, wal.SegmentsDir, wal.SegmentName(s.ID, wal.SegmentKind(s.Kind)))
	}
	size := func(s manifest.Segment) (int64, error) { return r.db.fs.Size(name(s)) }
	return manifest.CheckFiles(r.state, name, size, func(s manifest.Segment) (bool, error) {
		return wal.HasFooter(r.db.fs, r.db.dir, s.ID, &r.db.secret, !r.db.o.BufferedIO)
	})
}

// checkOrphans looks into segment files that the manifest does not name. Groups
// are written to registered segments only. One that was dropped later has
// seqnos at or below the clear seqno, or below the floor that recovery sets
// when it drops what lies behind a torn tail; with any other, the manifest has
// lost edits, and to go on would delete the documents.
func (r *recoverer) checkOrphans() error {
	db := r.db
	names, err := db.fs.List(path.Join(db.dir, wal.SegmentsDir))
	if err != nil {
		return err
	}
	for _, n := range names {
		id, kind, ok := wal.ParseSegmentName(n)
		if !ok || kind != wal.SegmentLog {
			continue
		}
		if _, known := r.state.Segment(id); known {
			continue
		}
		highest, err := wal.HighestSeqno(r.ctx, r.scanOptions(), id)
		if err != nil {
			return err
		}
		if highest > r.state.ClearSeqno && highest >= r.state.NextSeqno {
			return fmt.Errorf("%w: %s holds seqno %d, but %s does not name it: the manifest has lost its end",
				ErrCorrupt, path.Join(db.dir, wal.SegmentsDir, n), highest, path.Join(db.dir, manifest.Name(r.state.Manifest)))
		}
	}
	return nil
}

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

// syncReplayed makes what was read durable: a group may have reached the file
// but not the device when the process was killed.
func (r *recoverer) syncReplayed() error {
	if r.state.ReplayFrom.Segment == 0 || mutant.SkipReplaySync {
		return nil
	}
	db := r.db
	for _, s := range r.state.Segments {
		if s.Kind != manifest.SegmentLog || s.Sealed || s.Ended || s.ID < r.state.ReplayFrom.Segment || s.ID > r.scan.End.Segment {
			continue
		}
		f, err := wal.OpenSegment(db.fs, db.dir, s.ID, wal.SegmentLog, !db.o.BufferedIO)
		if err != nil {
			return err
		}
		if db.o.BufferedIO && !mutant.TrustPageCache {
			err = r.writeAgain(f)
		}
		err = errors.Join(err, f.File.Sync(), f.CloseFile())
		if err != nil {
			return fmt.Errorf("sync replayed segment %06d: %w", s.ID, err)
		}
	}
	return nil
}

// writeAgain writes the groups of a segment again for which no promise vouches.
// When their sync failed before, the page cache may show them although the
// device does not have them, and take them for clean: syncing them says yes and
// does nothing (W9). The same bytes in the same place cannot hurt what is
// there.
func (r *recoverer) writeAgain(s *wal.Segment) error {
	for _, g := range r.scan.Unproven {
		if g.Segment != s.ID {
			continue
		}
		b := make([]byte, g.Bytes)
		if _, err := s.File.ReadAt(b, int64(g.Offset)); err != nil {
			return err
		}
		if _, err := s.File.WriteAt(b, int64(g.Offset)); err != nil {
			return err
		}
	}
	return nil
}

// record writes the one edit of recovery: where the log ends, what follows it,
// and that later segments are no part of it (design R4). Then orphans go.
func (r *recoverer) record() error {
	db := r.db
	names, err := db.fs.List(path.Join(db.dir, wal.SegmentsDir))
	if err != nil {
		return err
	}
	for _, n := range names {
		if id, _, ok := wal.ParseSegmentName(n); ok {
			db.edits.log.SeenFile(uint64(id))
		}
	}
	next := max(r.scan.End.Seqno, r.state.NextSeqno)
	if !r.scan.Clean && !mutant.NoSeqnoJump {
		next = max(next, r.scan.MaxSeen+1) + seqnoJump
	}
	if next > entry.MaxSeqno {
		return fmt.Errorf("seqno %d: the store has no seqnos left", next)
	}
	r.scan.End.Seqno = next
	e := &manifest.Edit{NextSeqno: next, ClearSeqno: entry.Seqno(r.cleared.Load())}
	if r.state.ReplayFrom.Segment != 0 && !mutant.KeepTornTail {
		if err := r.endLog(e, next); err != nil {
			return err
		}
	}
	if r.state, err = db.edit(func(manifest.State) *manifest.Edit { return e }); err != nil {
		return err
	}
	for _, s := range e.EndSegments {
		r.cut(s)
	}
	return r.removeOrphans(names)
}

// endLog fills in the end of the log. It is recorded with the segment that holds
// the last group; but one that was sealed cannot be ended again, and then the
// log ends at the very beginning of the segment that follows it.
func (r *recoverer) endLog(e *manifest.Edit, next entry.Seqno) error {
	var logs []manifest.Segment
	before := entry.Seqno(0) // highest seqno recorded with an earlier segment
	for _, s := range r.state.Segments {
		switch {
		case s.Kind != manifest.SegmentLog:
		case s.ID >= r.scan.End.Segment:
			logs = append(logs, s)
		default:
			before = max(before, s.Last)
		}
	}
	s := logs[0]
	end := manifest.EndSegment{ID: s.ID, End: r.scan.End.Offset, Last: r.scan.Last, Next: next}
	if s.Sealed {
		if len(logs) == 1 {
			return fmt.Errorf("%w: log segment %06d is sealed and none follows it", ErrCorrupt, s.ID)
		}
		before = max(before, s.Last)
		logs = logs[1:]
		s = logs[0]
		end.ID, end.End = s.ID, 0
	}
	if end.End == 0 { // no group in it
		f, err := wal.OpenSegment(r.db.fs, r.db.dir, s.ID, wal.SegmentLog, !r.db.o.BufferedIO)
		if err != nil {
			return err
		}
		end.End = uint32(f.Align)
		if err := f.CloseFile(); err != nil {
			return err
		}
	}
	switch {
	case s.Ended:
		end.End, end.Last, end.Next = s.End, s.Last, max(next, s.Next)
	case end.Last <= before:
		end.Last = 0 // none of its own
	}
	e.EndSegments = []manifest.EndSegment{end}
	for _, s := range logs[1:] {
		e.DropSegments = append(e.DropSegments, s.ID)
	}
	r.scan.End.Segment, r.scan.End.Offset = end.ID, end.End
	return nil
}

// cut gives the unused rest of a segment that has just been ended back to the
// disk. It is no harm if that fails.
func (r *recoverer) cut(s manifest.EndSegment) {
	name := path.Join(r.db.dir, wal.SegmentsDir, wal.SegmentName(s.ID, wal.SegmentLog))
	f, err := r.db.fs.Open(name, vfs.OpenOptions{Write: true})
	if err == nil {
		err = errors.Join(f.Truncate(int64(s.End)), f.Close())
	}
	if err != nil {
		r.db.o.Logf("cut %s at %d: %v", name, s.End, err)
	}
}

// removeOrphans deletes files of the store's own kinds that the manifest does
// not name: segments that were never registered, or dropped, and old
// manifests. What it cannot classify stays. A failure costs space, not data.
func (r *recoverer) removeOrphans(segments []string) error {
	db := r.db
	removed := 0
	dir := path.Join(db.dir, wal.SegmentsDir)
	for _, n := range segments {
		id, kind, ok := wal.ParseSegmentName(n)
		if !ok {
			continue
		}
		if s, known := r.state.Segment(id); known && wal.SegmentKind(s.Kind) == kind {
			continue
		}
		if err := db.fs.Remove(path.Join(dir, n)); err != nil {
			db.o.Logf("remove %s: %v", path.Join(dir, n), err)
			continue
		}
		removed++
	}
	if removed > 0 {
		if err := db.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	names, err := db.fs.List(db.dir)
	if err != nil {
		return err
	}
	for _, n := range manifest.Obsolete(names, r.state) {
		if err := db.fs.Remove(path.Join(db.dir, n)); err != nil {
			db.o.Logf("remove %s: %v", path.Join(db.dir, n), err)
		}
	}
	return nil
}

// openSegments opens what readers may address.
func (r *recoverer) openSegments() error {
	for _, s := range r.state.Segments {
		seg, err := wal.OpenSegment(r.db.fs, r.db.dir, s.ID, wal.SegmentKind(s.Kind), !r.db.o.BufferedIO)
		if err != nil {
			return err
		}
		r.open = append(r.open, seg)
	}
	return nil
}

// startLog opens the store for business: the commit state, the log, the first
// view, and what was pending.
func (r *recoverer) startLog() error {
	db := r.db
	next := r.scan.End.Seqno
	db.commit.next = next
	for i := range db.commit.stripes {
		db.commit.stripes[i] = next - 1 // where an Update of what was found reads
	}
	db.publish.init(next - 1)
	log, err := wal.StartLog(wal.LogOptions{
		FS: db.fs, Dir: db.dir, Secret: db.secret, StoreID: db.format.StoreID,
		Align: db.o.LogAlign, Direct: !db.o.BufferedIO, Mu: &db.commit.mu,
		Inflight: db.o.LogInflight, GroupBytesMax: db.o.groupBytesMax,
		DocsMax: db.o.groupBytesMax / 256, Window: db.o.AsyncWindow,
		Prewrite:     !db.o.NonDurable,
		SegmentBytes: db.segmentBytes,
		ReserveBytes: db.reserveBytes,
		NextID:       func() entry.SegmentID { return entry.SegmentID(db.edits.log.NextFileNumber()) },
		Register:     db.register, Sealed: db.sealed, Idle: db.promiseEdits, Failed: db.failed, Logf: db.o.Logf,
		After: wal.Chain{Segment: r.scan.End.Segment, End: r.scan.End.Offset, Last: r.scan.Last},
		Next:  next,
	}, r.open)
	r.open = nil
	if err != nil {
		return db.writeError(err)
	}
	db.log = log

	v := &view{db: db, segments: map[entry.SegmentID]*wal.Segment{}}
	for _, s := range r.state.Segments {
		if seg := log.Acquire(s.ID); seg != nil {
			v.segments[s.ID] = seg
		}
	}
	for i, t := range r.tables {
		bytes := int64(t.Bytes()) + int64(t.Len())*indexBytes
		t.bytes.Store(bytes)
		db.quota.charge(bytes)
		v.tables[i] = []*table{t}
		db.commit.active[i] = t
	}
	if c := r.cleared.Load(); c != 0 {
		v.clears = []Seqno{Seqno(c)}
	}
	db.commit.mu.Lock()
	db.installLocked(v)
	db.commit.mu.Unlock()
	for _, s := range v.segments {
		s.Release() // installLocked took its own
	}
	db.recovery.Duration = time.Since(r.start)
	if at := r.state.PendingClear; at != 0 {
		return r.pendingClear(time.Unix(0, at))
	}
	return nil
}

// pendingClear does a clear whose time has come, and arms a later one.
func (r *recoverer) pendingClear(at time.Time) error {
	db := r.db
	db.clears.mu.Lock()
	defer db.clears.mu.Unlock()
	if db.o.Now().Before(at) {
		db.armClear(at)
		return nil
	}
	if _, err := db.clearNow(); err != nil {
		return errors.Join(fmt.Errorf("delayed clear: %w", err), db.log.Close())
	}
	return nil
}

// segmentBytes is the size of the next segment: small enough that the segments
// kept open and prepared are a small share of the store, and that a replay
// spans many of them.
func (db *DB) segmentBytes() int64 {
	live := db.quota.used.Load()
	return min(max(live/400, db.o.WriteCache/64, db.o.segmentBytesMin), db.o.SegmentBytes)
}

// reserveBytes is the free space that log segments leave to the manifest and to
// whatever frees space (design R22): three segments and a manifest.
func (db *DB) reserveBytes(segment int64) int64 { return 3*segment + 4*mib }
