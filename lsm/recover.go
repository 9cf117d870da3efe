package lsm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"sync/atomic"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/sstable"
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
	db.sched.init()
	db.picker = o.picker()
	db.victims, db.forwardBorn = map[entry.SegmentID]bool{}, map[entry.SegmentID]uint64{}
	db.freshBits.Store(math.Float64bits(1))
	db.obsolete.wake = db.sched.wake
	db.quota.init(o.WriteCache, o.Reject, db.sched.wake)
	db.commit.stripes = make([]Seqno, stripeCount)
	db.commit.rnd.Store(uint64(time.Now().UnixNano()))
	for _, d := range []string{wal.SegmentsDir, TablesDir} {
		if err := db.fs.MkdirAll(path.Join(dir, d)); err != nil {
			return nil, fmt.Errorf("data directory %s: %w", dir, err)
		}
	}
	lock, err := db.fs.Lock(path.Join(dir, lockName))
	if err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			err = fmt.Errorf("%w: %w", ErrLocked, err)
		}
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	db.lock = lock
	if err := db.startReading(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), lock.Close())
	}
	r := &recoverer{db: db, ctx: ctx, start: time.Now()}
	if err := r.run(); err != nil {
		r.abandon()
		db.memory.close()
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, corruptError(err)), db.io.Close(), lock.Close())
	}
	return db, nil
}

const lockName = "LOCK"

// startReading makes what reads share: the memory of tables and the engine that
// reads from the device.
func (db *DB) startReading() error {
	if err := db.memory.init(db.o.BlockCacheBytes, db.o.blockBytesPlain()); err != nil {
		return err
	}
	db.blocks = db.memory.blocks
	io, err := vfs.NewIO(vfs.IOOptions{
		Engine: db.o.IOEngine, Depth: db.o.IOQueueDepth, Buffered: db.o.BufferedIO, Dir: db.dir, FS: db.fs, Logf: db.o.Logf,
	})
	if err != nil {
		db.memory.close()
		return err
	}
	db.io, db.scratches.io = io, io
	return nil
}

// corruptError gives damage found below the name that callers know.
func corruptError(err error) error {
	if errors.Is(err, wal.ErrCorrupt) || errors.Is(err, manifest.ErrCorrupt) || errors.Is(err, sstable.ErrCorrupt) {
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
	// ends are the ends of segments that the manifest has none of, beside that of
	// the last segment.
	ends map[entry.SegmentID]wal.SegmentEnd

	tables  []*table
	loaders []*memtable.Loader
	cleared atomic.Uint64 // highest clear seqno
	spilled spilled       // what replay had to flush
	flushed [kvstoresMax]Seqno
	open    []*wal.Segment
}

// run goes from CURRENT to ready. Until the log is read and synced it writes
// nothing but a new store's files.
func (r *recoverer) run() error {
	for _, step := range []func() error{
		r.format, r.probe, r.manifest, r.checkFiles, r.checkOrphans, r.replay, r.findEnds, r.syncReplayed, r.record, r.openSegments, r.startLog,
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
	r.removeSpilled()
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
		if err := r.refuseFiles("no FORMAT file"); err != nil {
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
		if err := r.refuseFiles("no CURRENT file"); err != nil {
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

// refuseFiles: a store that has files of documents has more than that.
func (r *recoverer) refuseFiles(missing string) error {
	names, err := r.db.fs.List(path.Join(r.db.dir, wal.SegmentsDir))
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, _, ok := wal.ParseSegmentName(n); ok {
			return fmt.Errorf("%w: %s has log segments, but %s", ErrCorrupt, r.db.dir, missing)
		}
	}
	if names, err = r.db.fs.List(path.Join(r.db.dir, TablesDir)); err != nil {
		return err
	}
	for _, n := range names {
		if _, ok := sstable.ParseName(n); ok {
			return fmt.Errorf("%w: %s has tables, but %s", ErrCorrupt, r.db.dir, missing)
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
	l.RotateFrom(db.o.manifestBytesMin)
	db.edits.log = l
	r.state = st
	r.cleared.Store(uint64(st.ClearSeqno))
	db.expiryClock.Store(st.ExpiryClock)
	return nil
}

// checkFiles: whatever is registered must be there with its size (design R12).
func (r *recoverer) checkFiles() error {
	name := func(s manifest.Segment) string {
		return path.Join(r.db.dir, wal.SegmentsDir, wal.SegmentName(s.ID, wal.SegmentKind(s.Kind)))
	}
	size := func(s manifest.Segment) (int64, error) { return r.db.fs.Size(name(s)) }
	err := manifest.CheckFiles(r.state, name, size, func(s manifest.Segment) (bool, error) {
		return wal.HasFooter(r.db.fs, r.db.dir, s.ID, &r.db.secret, !r.db.o.BufferedIO)
	})
	if err != nil {
		return err
	}
	table := func(t *manifest.Table) string { return r.db.tableName(t.Number) }
	return manifest.CheckTables(r.state, table, func(t *manifest.Table) (int64, error) { return r.db.fs.Size(table(t)) })
}

// checkOrphans looks into segment files that the manifest does not name. Groups
// are written to registered segments only. One that was dropped later has
// seqnos at or below the clear seqno, or below replay-from, or below the floor
// that recovery sets when it drops what lies behind a torn tail; with any other,
// the manifest has lost edits, and to go on would delete the documents.
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
		if highest > r.state.ClearSeqno && highest >= r.state.NextSeqno && highest >= r.state.ReplayFrom.Seqno {
			return fmt.Errorf("%w: %s holds seqno %d, but %s does not name it: the manifest has lost its end",
				ErrCorrupt, path.Join(db.dir, wal.SegmentsDir, n), highest, path.Join(db.dir, manifest.Name(r.state.Manifest)))
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

	db.readers = sstable.NewReaders(sstable.ReadersOptions{
		FS: db.fs, Dir: path.Join(db.dir, TablesDir), StoreID: db.format.StoreID, Direct: !db.o.BufferedIO,
		MaxOpen: db.o.OpenTables, Memory: db.memory.pinned, MemoryChanged: db.memory.fit,
	})
	db.files = tableFiles{}
	for _, t := range r.state.Tables {
		db.addFile(t)
	}
	db.edits.mu.Lock()
	st := db.edits.log.State() // StartLog has registered a segment
	ver := db.newVersion(&st, nil, nil)
	db.edits.mu.Unlock()
	v := &view{db: db, version: ver}
	for i, t := range r.tables {
		if t.Len() > 0 {
			bytes := int64(t.Bytes()) + int64(t.Len())*indexBytes
			t.bytes.Store(bytes)
			db.quota.charge(bytes)
			t.first = r.state.ReplayFrom
		}
		v.tables[i] = []*table{t}
		db.commit.active[i] = t
	}
	if c := r.cleared.Load(); c != 0 && !mutant.ClearIgnoredInTables {
		v.clears = []Seqno{Seqno(c)}
	}
	if err := db.openDocs(); err != nil {
		return err
	}
	db.commit.mu.Lock()
	db.installLocked(v)
	db.commit.mu.Unlock()
	ver.release() // the view has its own
	db.recovery.Duration = time.Since(r.start)
	// What a clear ended and a crash left goes now.
	db.sched.tablesToRetire.Store(r.state.ClearSeqno != 0)
	db.startScheduler()
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
		db.sched.stop()
		return errors.Join(fmt.Errorf("delayed clear: %w", err), db.log.Close(), db.readers.Close())
	}
	return nil
}

// segmentBytes is the size of the next segment: small enough that the segments
// kept open and prepared are a small share of the store, and that a replay
// spans many of them.
func (db *DB) segmentBytes() int64 {
	live := db.quota.used.Load() + db.filesBytes.Load()
	return min(max(live/400, db.o.WriteCache/64, db.o.segmentBytesMin), db.o.SegmentBytes)
}
