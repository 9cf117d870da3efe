package lsm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// gcJob is one garbage collection of segments under way:
//
//	pick      over the current version's state; its victims are busy
//	rewrite                   documents that are neither known to be dead nor replaced in memory go to new segments, by seqno
//	install   (edits.mu)      one edit: victims out, outputs in, where addresses lead now, what died meanwhile
//
// Nothing is looked up on the device: what is not in memory counts as live.
type gcJob struct {
	db      *DB
	from    *version // pins the victims; a view would pin memtables, too
	job     compaction.GCJob
	horizon Seqno
	results []wal.RewriteResult
	probe   prober
}

// startGC starts a collection if there is need and leave for it. None says that
// no collection runs and none is wanted. Only the scheduler's goroutine calls it.
func (db *DB) startGC() (started, none bool) {
	s := &db.sched
	s.mu.Lock()
	ready := (!db.o.flushOnDemand || s.compact > 0) && !s.ended && !s.collecting && !db.o.noGC && db.readOnly.Load() == nil && !s.collections.pause.holds()
	s.mu.Unlock()
	if !ready {
		return false, db.o.noGC
	}
	v := db.pin()
	if v == nil {
		return false, false
	}
	known, roomy := !db.hidden(), !db.cramped.Load()
	job, ok := compaction.PickSegments(db.gcPicture(v))
	db.gcReason.Store(&job.Reason)
	db.paceWriters(&job, ok)
	// Merges find what is hidden, and what little there is on a full disk.
	more := known && db.hidden() || roomy && db.cramped.Load()
	if more {
		s.wake()
	}
	if !ok {
		v.release()
		return false, !more
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		v.release()
		return false, false
	}
	s.collecting = true
	s.done.Add(1)
	s.mu.Unlock()
	c := &gcJob{db: db, from: v.version.retain(), job: job}
	v.release()
	go func() {
		defer s.done.Done()
		start := time.Now()
		err := c.run(s.ctx)
		c.from.release()
		db.collected(c, start, err)
		db.gcEnded(c, err)
	}()
	return true, false
}

// hidden reports whether the last look for segments found too little garbage that
// is known of.
func (db *DB) hidden() bool {
	r := db.gcReason.Load()
	return r != nil && *r == compaction.GCHidden
}

// gcPicture is what the choice of victims looks at.
func (db *DB) gcPicture(v *view) compaction.GCPicture {
	st := v.version.state
	fresh := db.fresh()
	log := db.log.Stats()
	memory := float64(db.quota.used.Load())
	p := compaction.GCPicture{
		Segments: compaction.SegmentsOf(st, func(id entry.SegmentID) uint64 {
			if s := v.version.segments[id]; s != nil {
				if x, err := db.documentsOf(s); err == nil && x != nil {
					return uint64(x.Len())
				}
			}
			return 0
		}),
		Live:         compaction.LiveBytes(st, fresh) + int64(fresh*memory),
		Allocated:    log.PooledBytes + db.edits.log.FileBytes(),
		SpaceAmp:     db.o.SpaceAmp,
		SegmentBytes: db.segmentBytes(),
		Next:         Seqno(db.publish.visible.Load()) + 1,
	}
	if free, err := db.fs.FreeBytes(db.dir); err == nil {
		p.Cramped = free+log.PooledBytes < db.reserveBytes(p.SegmentBytes)+p.SegmentBytes
		db.cramped.Store(p.Cramped)
	}
	for _, t := range st.Tables {
		p.Allocated += t.FileBytes
	}
	db.sched.mu.Lock()
	for i := range p.Segments {
		g := &p.Segments[i]
		p.Allocated += g.Bytes
		g.Flushed = g.Flushed || mutant.CollectReplayed && st.Segments[i].Sealed
		g.Fenced = db.sched.collections.fenced.has(uint64(g.ID), db.sched.now())
	}
	db.sched.mu.Unlock()
	db.gcAllocated.Store(p.Allocated)
	db.gcLive.Store(p.Live)
	return p
}

// gcEnded notes the outcome of a collection. A victim that could not be read is
// left alone for a while, and never freed for that (design R21); others are
// collected at once. After any other failure there is a pause.
func (db *DB) gcEnded(c *gcJob, err error) {
	s := &db.sched
	bad := c.unreadable(err)
	s.mu.Lock()
	s.collecting = false
	known := s.jobEnded(&s.collections, bad, err)
	s.cond.Broadcast()
	s.mu.Unlock()
	if err != nil && !known && !errors.Is(err, context.Canceled) && !errors.Is(err, errGone) {
		db.o.Logf("garbage collection: %v", err)
	}
	s.wake()
}

func (c *gcJob) run(ctx context.Context) error {
	db := c.db
	c.horizon = db.horizon()
	if mutant.ProbeWithoutHorizon {
		c.horizon = entry.MaxSeqno
	}
	c.probe.init(db, c.from, c.horizon)
	defer c.probe.end()
	db.edits.mu.Lock()
	for _, id := range slices.Concat(c.job.Once, c.job.Again) {
		db.victims[id] = true
	}
	db.edits.mu.Unlock()
	defer func() {
		db.edits.mu.Lock()
		clear(db.victims)
		db.edits.mu.Unlock()
	}()
	for _, ids := range [][]entry.SegmentID{c.job.Once, c.job.Again} {
		if len(ids) == 0 {
			continue
		}
		r, err := c.rewrite(ctx, ids)
		if err != nil {
			return errors.Join(err, c.discard())
		}
		c.results = append(c.results, r)
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(err, c.discard())
	}
	return c.install()
}

func (c *gcJob) rewrite(ctx context.Context, ids []entry.SegmentID) (wal.RewriteResult, error) {
	db := c.db
	st := c.from.state
	var victims []wal.RewriteVictim
	dead := map[entry.SegmentID]*manifest.DeadSet{}
	for _, id := range ids {
		s, ok := st.Segment(id)
		if !ok {
			return wal.RewriteResult{}, errGone
		}
		victims = append(victims, wal.RewriteVictim{ID: id, Kind: wal.SegmentKind(s.Kind), End: s.End})
		dead[id] = st.DeadSet(id)
	}
	// What a clear ended is in no table and in no dead set.
	cleared := st.ClearSeqno
	if cleared > c.horizon && !mutant.CollectClearEarly {
		cleared = 0
	}
	return wal.Rewrite(ctx, wal.RewriteOptions{
		FS: db.fs, Dir: db.dir, Secret: db.secret, StoreID: db.format.StoreID,
		Align: db.o.LogAlign, Direct: !db.o.BufferedIO, SegmentBytes: db.segmentBytes(),
		NextID: func() entry.SegmentID { return entry.SegmentID(db.edits.log.NextFileNumber()) },
	}, victims, func(r *wal.Record) bool {
		return r.Seqno > cleared && !dead[r.Address.Segment].Contains(r.Seqno) && !c.probe.replaced(r)
	})
}

// discard removes what was written and not installed.
func (c *gcJob) discard() error {
	var all []error
	for i := range c.results {
		all = append(all, c.results[i].Discard(c.db.fs))
	}
	c.results = nil
	return errors.Join(all...)
}

// install swaps victims for outputs.
func (c *gcJob) install() error {
	db := c.db
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	e := &manifest.Edit{}
	for _, id := range c.job.Free {
		if _, ok := st.Segment(id); ok && st.TablesOf(id) == 0 {
			e.DropSegments = append(e.DropSegments, id)
		}
	}
	var ids []entry.SegmentID
	read, written := int64(0), int64(0)
	for i := range c.results {
		r := &c.results[i]
		read, written = read+r.ReadBytes, written+r.WrittenBytes
		for j := range r.Outputs {
			o := &r.Outputs[j]
			ids = append(ids, o.ID)
			e.AddSegments = append(e.AddSegments, manifest.AddSegment{ID: o.ID, Kind: manifest.SegmentGC, Size: o.FileBytes})
			e.SealSegments = append(e.SealSegments, manifest.SealSegment{ID: o.ID, End: o.End, Last: o.Last, FileBytes: o.FileBytes, Footer: true})
		}
		died := map[entry.SegmentID][]entry.Seqno{}
		for j := range r.Victims {
			x := &r.Victims[j]
			if _, ok := st.Segment(x.ID); !ok {
				return errors.Join(errGone, c.discard())
			}
			e.DropSegments = append(e.DropSegments, x.ID)
			f := manifest.Forward{From: x.ID}
			for _, m := range x.Moved {
				if mutant.ForwardTooNarrow {
					m.First = m.Last
				}
				f.To = append(f.To, manifest.ForwardRange{Segment: m.Segment, First: m.First, Last: m.Last})
			}
			e.AddForwards = append(e.AddForwards, f)
			// What died since the job began is dead in the output (R7).
			if !mutant.ForgetDeadMeanwhile {
				for _, q := range st.DeadSet(x.ID).AppendSeqnos(nil) {
					if out, ok := r.Find(q); ok {
						died[out] = append(died[out], q)
					}
				}
			}
			c.count(x)
		}
		for _, o := range r.Outputs {
			if q := died[o.ID]; len(q) > 0 {
				e.AddDead = append(e.AddDead, manifest.NewDeadSet(o.ID, q))
			}
		}
	}
	db.dropForwards(&st, e)
	var segments []*wal.Segment
	for i := range c.results {
		segments = append(segments, c.results[i].Segments()...)
	}
	if err := db.log.AddSegments(segments); err != nil {
		return fmt.Errorf("garbage collection: %w", err)
	}
	if mutant.DropVictimsEarly {
		for _, f := range e.AddForwards {
			v, _ := st.Segment(f.From)
			_ = db.fs.Remove(path.Join(db.dir, wal.SegmentsDir, wal.SegmentName(v.ID, wal.SegmentKind(v.Kind))))
		}
		_ = db.fs.SyncDir(path.Join(db.dir, wal.SegmentsDir))
	}
	if err := db.installEdit(e, func(*view) {}); err != nil {
		if !errors.Is(err, wal.ErrFailed) {
			db.log.Drop(ids)
		}
		return db.edited(err)
	}
	// Only now: merges that started until here may have the version from before.
	for _, f := range e.AddForwards {
		db.forwardBorn[f.From] = db.mergeSeq.Load()
	}
	db.counts.collections.Add(1)
	db.counts.gcRead.Add(read)
	db.counts.gcWritten.Add(written)
	return nil
}

func (c *gcJob) count(x *wal.VictimResult) {
	n := &c.db.counts
	n.gcKept.Add(int64(x.Kept.Documents))
	n.gcDropped.Add(int64(x.Dropped.Documents))
}

// dropForwards adds to e the end of forwards that no table names any more, and
// that no merge can name, because all that ran when they were made have ended
// (design R8). edits.mu is held.
func (db *DB) dropForwards(st *manifest.State, e *manifest.Edit) {
	uses := usesAfter(st, e)
	oldest := db.oldestMerge()
	for _, f := range st.Forwards {
		if st.TablesOf(f.From)+uses[f.From] == 0 && db.forwardBorn[f.From] < oldest || mutant.DropForwardEarly {
			e.DropForwards = append(e.DropForwards, f.From)
			delete(db.forwardBorn, f.From)
		}
	}
}

// oldestMerge returns the number of the oldest merge that runs.
func (db *DB) oldestMerge() uint64 {
	db.sched.mu.Lock()
	defer db.sched.mu.Unlock()
	oldest := uint64(math.MaxUint64)
	for _, seq := range db.sched.mergeSeqs {
		oldest = min(oldest, seq)
	}
	return oldest
}

// usesAfter counts how many tables more, or fewer, name each segment after e.
func usesAfter(st *manifest.State, e *manifest.Edit) map[entry.SegmentID]int {
	uses := map[entry.SegmentID]int{}
	for _, t := range e.AddTables {
		for _, s := range t.Segments {
			uses[s.Segment]++
		}
	}
	if len(e.DropTables) > 0 {
		drop := map[uint64]bool{}
		for _, n := range e.DropTables {
			drop[n] = true
		}
		for _, t := range st.Tables {
			if drop[t.Number] {
				for _, s := range t.Segments {
					uses[s.Segment]--
				}
			}
		}
	}
	return uses
}

// fresh is the share of what merges brought to the last level lately that was
// of new keys: the rest replaced older versions.
func (db *DB) fresh() float64 { return math.Float64frombits(db.freshBits.Load()) }

// noteFresh learns from a merge into the last level: of above versions that came
// from above, more is how many entries the level gained.
func (db *DB) noteFresh(above, more float64) {
	if above <= 0 {
		return
	}
	share := min(max(more/above, 0), 1)
	for {
		old := db.freshBits.Load()
		f := math.Float64frombits(old)
		if db.freshBits.CompareAndSwap(old, math.Float64bits(f+0.2*(share-f))) {
			return
		}
	}
}

// prober asks what is in memory whether a document has been replaced: memtables,
// and the tables above the last level as far as the budget lets them be kept.
type prober struct {
	db      *DB
	view    *view // the current one, changed every viewProbes probes
	asked   int
	horizon Seqno
	get     tableGet
	key     []byte
	m       memtable.View
}

// viewProbes is how long a prober stays on one view, in probes: it keeps memory
// from being given back.
const viewProbes = 256

func (p *prober) init(db *DB, v *version, horizon Seqno) {
	p.db, p.horizon = db, horizon
	for k := range db.kvstores {
		for _, r := range v.runs[k] {
			for _, f := range r.files {
				if f.meta.Level == 0 {
					f.loadProbe(db)
				}
			}
		}
	}
}

func (p *prober) end() {
	p.get.buf.Free()
	p.view.release()
	p.view = nil
}

// replaced reports whether a newer version of exactly this key is at or below
// the horizon (design R5).
func (p *prober) replaced(r *wal.Record) bool {
	db := p.db
	db.counts.probes.Add(1)
	if mutant.ProbeAnyKey {
		return r.Seqno < p.horizon
	}
	if p.asked%viewProbes == 0 {
		p.view.release()
		p.view = db.pin()
	}
	if p.asked++; p.view == nil {
		return false // the store is closing
	}
	hash := xxhash.Sum64(r.Key)
	vb := db.vbucket(r.Key)
	k := int(vb) % db.kvstores
	newest := func(seqno Seqno) bool {
		if seqno > r.Seqno {
			db.counts.probesHit.Add(1)
			return true
		}
		return false
	}
	for _, t := range p.view.tables[k] {
		if t.Get(hash, vb, r.Key, p.horizon, &p.m) {
			return newest(p.m.Seqno)
		}
	}
	p.key = entry.AppendKey(p.key[:0], vb, r.Key)
	for _, run := range p.view.version.runs[k] {
		f := run.find(p.key)
		if f == nil || f.meta.Level > 0 || f.meta.HighestSeqno <= r.Seqno {
			continue
		}
		if seqno, ok := f.probeFor(&p.get, hash, p.key, p.horizon); ok {
			return newest(seqno)
		}
	}
	return false
}
