package lsm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/compaction"
	"fluxkv/internal/blockcache"
	"fluxkv/internal/entry"
	"fluxkv/internal/iter"
	"fluxkv/internal/mutant"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// compactJob is one merge of tables under way:
//
//	pick      (scheduler.mu)  a job over the current version's state; its tables are busy
//	write                     what Elision leaves of the inputs, in new tables, synced and verified
//	install   (edits.mu)      one edit: inputs out, outputs in, dead seqnos, segments that nothing names
type compactJob struct {
	db     *DB
	from   *version // pins the inputs; a view would pin memtables, too
	job    compaction.Job
	result compaction.Result

	ids     []entry.SegmentID
	indexes map[entry.SegmentID]*wal.SeqnoIndex // nil for those that cannot be read
}

// scanMergeBytes is what a merge reads at once of each input.
const scanMergeBytes = 256 * kib

// startCompaction starts one merge if there is need and leave for it. None says
// that no merge runs and none is wanted.
func (db *DB) startCompaction() (started, none bool) {
	s := &db.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	if db.o.flushOnDemand && s.compact == 0 {
		return false, false
	}
	if s.ended || db.readOnly.Load() != nil || len(s.mergesNow) >= db.o.Compactors || s.merges.pause.holds() {
		return false, false
	}
	// Its number comes before its version: what is collected out of that version
	// is then forwarded for this merge, too.
	seq := db.mergeSeq.Add(1)
	v := db.pin()
	if v == nil {
		return false, false
	}
	rest, cramped := s.idle || s.compact > 0, db.cramped.Load()
	now, look := db.expiryNow(), rest || cramped
	job, ok := db.picker.Pick(compaction.Picture{
		Expired: func(n uint64) uint64 { return v.version.expiredIn(n, now, look) },

		Superseded: func(n uint64) uint64 { return v.version.supersededIn(n, look) },
		State:      v.version.state, KVStores: db.kvstores, Idle: rest, Cramped: cramped,
		Hidden:  db.hidden(),
		Running: s.mergesNow, Fenced: func(n uint64) bool { return s.merges.fenced.has(n, s.now()) },
		Horizon: db.horizon(),
	})
	if !ok {
		v.release()
		return false, len(s.mergesNow) == 0
	}
	c := &compactJob{db: db, from: v.version.retain(), job: job, indexes: map[entry.SegmentID]*wal.SeqnoIndex{}}
	v.release()
	s.mergesNow = append(s.mergesNow, &c.job)
	s.mergeSeqs = append(s.mergeSeqs, seq)
	s.done.Add(1)
	go func() {
		defer s.done.Done()
		start := time.Now()
		err := c.run(s.ctx)
		c.from.release()
		db.compactionEnded(c, err, time.Since(start))
	}()
	return true, false
}

// compactionEnded notes the outcome of a merge. An input that could not be read
// is left alone for a while, and its range with it (design R21); others are merged
// at once. After any other failure there is a pause.
func (db *DB) compactionEnded(c *compactJob, err error, took time.Duration) {
	s := &db.sched
	bad := c.unreadable(err)
	s.mu.Lock()
	i := slices.Index(s.mergesNow, &c.job)
	s.mergesNow = slices.Delete(s.mergesNow, i, i+1)
	s.mergeSeqs = slices.Delete(s.mergeSeqs, i, i+1)
	known := s.jobEnded(&s.merges, bad, err)
	s.cond.Broadcast()
	s.mu.Unlock()
	if err != nil && !known && !errors.Is(err, context.Canceled) && !errors.Is(err, errGone) {
		db.o.Logf("compaction of kvstore %d: %v", c.job.KVStore, err)
	}
	s.wake()
}

// errGone: a clear dropped inputs while a job worked on them. Nothing is lost.
var errGone = errors.New("inputs were dropped")

func (c *compactJob) run(ctx context.Context) error {
	if !c.job.Move {
		if err := c.write(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(err, c.remove())
		}
	}
	return c.install()
}

func (c *compactJob) remove() error {
	err := c.db.removeUnnamed(c.result.Tables)
	c.result = compaction.Result{}
	return err
}

// write merges the inputs.
func (c *compactJob) write(ctx context.Context) error {
	db := c.db
	var sources []entry.Iterator
	for _, in := range c.job.Inputs {
		r := &run{}
		for _, t := range in {
			r.files = append(r.files, c.from.byNumber[t.Number])
		}
		sources = append(sources, r.newIter(sstable.IterOptions{ReadAheadBytes: scanMergeBytes}))
	}
	src := iter.NewMerge(sources...)
	defer src.Close()
	policy := db.flushPolicy(0)
	policy.Bottom = c.job.Bottom || mutant.MergeAlwaysBottom
	if mutant.MergeAtVisible {
		policy.Horizon = Seqno(db.publish.visible.Load())
	}
	o := compaction.MergeOptions{
		Output: db.tableOutput(int(c.job.KVStore)), Policy: policy,
		Versions: c.job.Entries, Bytes: c.job.Bytes,
	}
	o.Boundaries, o.LeaveDirSync = c.job.Boundaries, mutant.SkipMergeDirSync
	if c.job.OutLevel > 0 && db.o.BloomBits > 0 && c.job.Bottom {
		o.BloomBits = db.o.BloomBits
	}
	o.Resolve = c.resolve
	var err error
	if c.result, err = compaction.Merge(ctx, src, o); err != nil {
		return err
	}
	// install looks up where the dead are, and should not read the device.
	for _, d := range c.result.Dead {
		if c.from.segments[d.Segment] == nil {
			if _, _, err := c.resolve(entry.Address{Segment: d.Segment}, d.Seqno); err != nil {
				return errors.Join(err, c.remove())
			}
		}
	}
	return nil
}

// resolve returns the address that the document of seqno has now; false when it
// stays what it is, because the document was given up or because an index that
// could tell cannot be read for long: then nothing of it is freed, and the old
// address leads to it when it can be read again (design R8).
func (c *compactJob) resolve(a entry.Address, seqno entry.Seqno) (entry.Address, bool, error) {
	if c.from.segments[a.Segment] != nil {
		return a, true, nil
	}
	c.ids = c.from.state.Resolve(c.ids[:0], a.Segment, seqno)
	for _, id := range c.ids {
		s := c.from.segments[id]
		if s == nil {
			continue
		}
		x, ok := c.indexes[id]
		if !ok {
			var err error
			if x, err = c.db.documentsOf(s); err != nil {
				return a, false, err
			}
			c.indexes[id] = x
		}
		if x == nil {
			continue
		}
		if off, ok := x.Lookup(seqno); ok {
			return entry.Address{Segment: id, Offset: off, Length: a.Length}, true, nil
		}
	}
	return a, false, nil
}

// tableOutput says how tables of a kvstore are written.
func (db *DB) tableOutput(kvstore int) compaction.Output {
	o := compaction.Output{
		FS: db.fs, Dir: path.Join(db.dir, TablesDir), Direct: !db.o.BufferedIO, LeaveDirSync: true,
		NextNumber: db.edits.log.NextFileNumber, Hash: xxhash.Sum64, TableBytes: db.o.TableBytes,
		StoreID: db.format.StoreID, KVStore: uint16(kvstore),
		BlockBytes: db.o.BlockBytes, WriteBufferBytes: db.o.TableWriteBuffer,
	}
	if db.o.BloomBits > 0 {
		o.BloomBits = db.o.BloomBits + upperBloomBits
	}
	if db.o.CompressIndex {
		o.Compression = sstable.Snappy
	}
	if db.o.WarmNewTables {
		o.Warm = func(table, offset uint64, data []byte) { db.blocks.Put(table, offset, data, blockcache.Low) }
	}
	return o
}

// install swaps inputs for outputs.
func (c *compactJob) install() error {
	db := c.db
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	e := c.job.Edit(&c.result)
	e.ExpiryClock = c.result.DecidedAt
	for _, n := range e.DropTables {
		if db.files[n] == nil {
			return errors.Join(errGone, c.remove())
		}
	}
	e.AddDead = db.deadSets(&st, c.result.Dead)
	db.dropForwards(&st, e)
	db.unneeded(&st, e)
	if mutant.DropInputsEarly && !c.job.Move {
		for _, n := range e.DropTables {
			_ = db.fs.Remove(db.tableName(n))
		}
		_ = db.fs.SyncDir(path.Join(db.dir, TablesDir))
	}
	if err := db.installEdit(e, func(*view) {}); err != nil {
		if !errors.Is(err, wal.ErrFailed) {
			err = errors.Join(err, c.remove())
		}
		return db.edited(err)
	}
	db.counts.compacted(&c.job, &c.result)
	c.learn()
	return nil
}

// learn notes how many of the versions that came to the last level were of new
// keys.
func (c *compactJob) learn() {
	if !c.job.Bottom || c.job.OutLevel == 0 || len(c.job.Inputs) == 0 {
		return
	}
	above, before := 0.0, 0.0
	for _, run := range c.job.Inputs {
		for _, t := range run {
			if t.Level == c.job.OutLevel {
				before += float64(t.Entries)
			} else {
				above += float64(t.Entries)
			}
		}
	}
	c.db.noteFresh(above, float64(c.result.Out)-before)
}

// compacted counts a merge by the level it wrote to.
func (n *counters) compacted(j *compaction.Job, r *compaction.Result) {
	level := min(int(j.OutLevel), len(n.mergedTo)-1)
	n.mergedTo[level].Add(r.Bytes)
	n.mergeDropped.Add(int64(r.Dropped))
	if j.Move {
		n.moves.Add(1)
	} else {
		n.merges.Add(1)
		n.mergeRead.Add(j.Bytes)
	}
}

func (c *compactJob) String() string {
	return fmt.Sprintf("%s: kvstore %d, %d runs, %d bytes", c.job.Reason, c.job.KVStore, len(c.job.Inputs), c.job.Bytes)
}
