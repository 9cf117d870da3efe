package lsm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/iter"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/wal"
)

// flush writes the memtables of some kvstores to tables:
//
//	seal       (committer.mu)  fresh active memtables; no batch gets into the old ones any more
//	wait                       V and D reach the last seqno that may be in them (design R1, R2)
//	write                      tables of level 0, each synced and verified, then their directory
//	edit       (edits.mu)      one edit for all: tables, flushed positions, dead seqnos, replay-from
//	install    (committer.mu)  a view with the tables instead of the memtables
//
// What fails before the edit leaves the memtables where they are. The caller
// has marked the kvstores busy: flushes of one kvstore follow each other, so
// their edits commit in the order of sealing.
func (db *DB) flush(ctx context.Context, kvstores []int) error {
	j := &flushJob{db: db}
	defer j.end()
	if err := j.seal(kvstores); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	for {
		if err := j.write(ctx); err != nil {
			return errors.Join(err, j.removeTables())
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(err, j.removeTables())
		}
		if err := j.install(); err != errOvertaken {
			return err
		}
		if err := j.removeTables(); err != nil {
			db.o.Logf("flush: %v", err)
		}
	}
}

// errOvertaken: a clear came to count while a job wrote. What the clear ended is
// in the job's tables, and may name segments that went; it must be left out.
var errOvertaken = errors.New("overtaken by a clear")

// flushJob is one flush under way.
type flushJob struct {
	db     *DB
	view   *view // pins the memtables
	parts  []flushPart
	policy compaction.Policy
}

// flushPart is one kvstore of a job.
type flushPart struct {
	kvstore int
	tables  []*table // memtables, newest first
	upTo    Seqno    // all versions up to it are in tables, or dropped
	result  compaction.Result
}

func (j *flushJob) end() { j.view.release() }

// seal gives every kvstore a fresh memtable and collects the ones behind it.
func (j *flushJob) seal(kvstores []int) error {
	db := j.db
	fresh := make([]*table, len(kvstores))
	for i := range fresh {
		var err error
		if fresh[i], err = db.newTable(); err != nil {
			db.freeTables(fresh[:i])
			return err
		}
	}
	var spare []*table
	c := &db.commit
	c.mu.Lock()
	v := db.current.Load().derive()
	for i, k := range kvstores {
		t := c.active[k]
		if t.first.Segment == 0 {
			spare = append(spare, fresh[i])
		} else {
			t.sealed = c.next - 1
			v.tables[k] = append([]*table{fresh[i]}, v.tables[k]...)
			c.active[k] = fresh[i]
		}
		p := flushPart{kvstore: k}
		for _, t := range v.tables[k][1:] {
			if mutant.FlushNewestFirst && len(p.tables) == 1 {
				break
			}
			if t.first.Segment != 0 {
				if mutant.FlushInFlight {
					t.refs.Add(1) // never to be freed under a batch
				}
				p.tables = append(p.tables, t)
				p.upTo = max(p.upTo, t.sealed)
			}
		}
		if len(p.tables) > 0 {
			j.parts = append(j.parts, p)
		}
	}
	old := db.installLocked(v)
	v.refs.Add(1)
	j.view = v
	c.mu.Unlock()
	old.release()
	db.freeTables(spare)
	return nil
}

// write makes the tables of all parts.
func (j *flushJob) write(ctx context.Context) error {
	db := j.db
	upTo := Seqno(0)
	for i := range j.parts {
		upTo = max(upTo, j.parts[i].upTo)
	}
	if !mutant.FlushInFlight {
		db.publish.wait(upTo)
	}
	durable := func() error { return db.log.Wait(upTo) }
	if err := mutant.Skip(mutant.FlushBeforeDurable, durable); err != nil {
		return db.writeError(err)
	}
	j.policy = db.flushPolicy(upTo)
	made := false
	for i := range j.parts {
		p := &j.parts[i]
		policy := j.policy
		// All older versions of this kvstore's keys are in this part.
		policy.Bottom = len(j.view.version.runs[p.kvstore]) == 0 || mutant.AlwaysBottom
		var err error
		if p.result, err = db.flushTables(ctx, p.kvstore, p.tables, policy); err != nil {
			return err
		}
		made = made || len(p.result.Tables) > 0
	}
	if made {
		dir := path.Join(db.dir, TablesDir)
		if err := mutant.Skip(mutant.SkipTableDirSync, func() error { return db.fs.SyncDir(dir) }); err != nil {
			return fmt.Errorf("flush: sync directory %s: %w", dir, err)
		}
	}
	return nil
}

// flushPolicy takes the horizon, once for a job. upTo is durable and visible.
func (db *DB) flushPolicy(upTo Seqno) compaction.Policy {
	p := compaction.Policy{Horizon: db.horizon(), Now: db.expiryNow()}
	if mutant.HorizonAtVisible {
		p.Horizon = upTo
	}
	if v := db.pin(); v != nil {
		p.Clear = v.clearFor(p.Horizon)
		v.release()
	}
	return p
}

// flushTables writes the versions of memtables, newest first, to tables.
func (db *DB) flushTables(ctx context.Context, kvstore int, tables []*table, policy compaction.Policy) (compaction.Result, error) {
	sources := make([]entry.Iterator, len(tables))
	versions := uint64(0)
	for i, t := range tables {
		sources[i] = t.NewIter(nil, nil)
		versions += uint64(t.Len())
	}
	var src entry.Iterator = sources[0]
	if len(sources) > 1 {
		src = iter.NewMerge(sources...)
	}
	o := compaction.FlushOptions{Policy: policy, Versions: versions, Output: db.tableOutput(kvstore)}
	if v := db.pin(); v != nil { // there is none during replay
		o.Boundaries = db.picker.Boundaries(v.version.state, uint16(kvstore))
		v.release()
	}
	return compaction.Flush(ctx, src, o)
}

// removeTables removes the files of a job that will not be installed.
func (j *flushJob) removeTables() error {
	var all []error
	for i := range j.parts {
		if mutant.KeepFailedTables {
			break
		}
		all = append(all, j.db.removeUnnamed(j.parts[i].result.Tables))
		j.parts[i].result = compaction.Result{}
	}
	return errors.Join(all...)
}

// removeUnnamed removes table files that no edit names.
func (db *DB) removeUnnamed(tables []compaction.Table) error {
	var all []error
	for _, t := range tables {
		if err := db.fs.Remove(t.Name); err != nil {
			all = append(all, fmt.Errorf("remove %s: %w", t.Name, err))
		}
	}
	return errors.Join(all...)
}

// install makes the tables part of the store, or returns errOvertaken. When the
// edit may be durable all the same, the files stay and the next open decides.
func (j *flushJob) install() error {
	db := j.db
	db.edits.mu.Lock()
	defer db.edits.mu.Unlock()
	st := db.edits.log.State()
	// Not the manifest's clear: one that is not recorded yet has let go of its
	// memtables already, and the edit of another flush of their segments.
	if c := db.current.Load().clearFor(db.horizon()); c != 0 && j.holdsVersionAt(c) && !mutant.IgnoreOvertaking {
		return errOvertaken
	}
	e := &manifest.Edit{}
	if mutant.FlushedAhead {
		for i := range j.parts {
			j.parts[i].upTo = Seqno(db.publish.visible.Load())
		}
	}
	for i := range j.parts {
		e.Flushed = append(e.Flushed, manifest.Flushed{KVStore: uint16(j.parts[i].kvstore), Seqno: j.parts[i].upTo})
		addResult(e, j.parts[i].kvstore, &j.parts[i].result)
	}
	e.AddDead = db.deadSets(&st, j.dead())
	gone := func(t *table) bool { return j.holds(t) }
	e.ReplayFrom = db.replayFrom(&st, gone, false)
	db.dropForwards(&st, e)
	db.unneeded(&st, e)
	if mutant.DropBeforeFlushEdit {
		for _, id := range e.DropSegments {
			_ = db.fs.Remove(path.Join(db.dir, wal.SegmentsDir, wal.SegmentName(id, wal.SegmentLog)))
		}
	}
	giveUp := func(v *view) {
		for i := range j.parts {
			p := &j.parts[i]
			kept := v.tables[p.kvstore][:0]
			for _, t := range v.tables[p.kvstore] {
				if !j.holds(t) {
					kept = append(kept, t)
				}
			}
			v.tables[p.kvstore] = kept
		}
	}
	if mutant.InstallBeforeEdit {
		db.commit.mu.Lock()
		v := db.current.Load().derive()
		giveUp(v)
		old := db.installLocked(v)
		db.commit.mu.Unlock()
		old.release()
	}
	if err := db.installEdit(e, giveUp); err != nil {
		if !errors.Is(err, wal.ErrFailed) {
			err = errors.Join(err, j.removeTables())
		}
		return fmt.Errorf("flush: %w", db.edited(err))
	}
	for i := range j.parts {
		db.counts.flushed(&j.parts[i].result)
	}
	db.counts.flushes.Add(1)
	return nil
}

// holds reports whether the job flushed t.
func (j *flushJob) holds(t *table) bool {
	for i := range j.parts {
		for _, u := range j.parts[i].tables {
			if t == u {
				return true
			}
		}
	}
	return false
}

// holdsVersionAt reports whether a table of the job has a version at or below s.
func (j *flushJob) holdsVersionAt(s Seqno) bool {
	for i := range j.parts {
		for _, t := range j.parts[i].result.Tables {
			if t.Properties.LowestSeqno <= s {
				return true
			}
		}
	}
	return false
}

// dead returns the dead documents of all parts.
func (j *flushJob) dead() (all []compaction.Dead) {
	for i := range j.parts {
		all = append(all, j.parts[i].result.Dead...)
		if mutant.LiveCountsAsDead {
			it := j.parts[i].tables[0].NewIter(nil, nil)
			for ok := it.First(); ok; ok = it.Next() {
				if a := it.Version().Value.Address; !a.IsZero() {
					all = append(all, compaction.Dead{Segment: a.Segment, Seqno: it.Version().Seqno})
					break
				}
			}
		}
	}
	return all
}

// addResult adds the tables of one flush to an edit: one run of level 0.
func addResult(e *manifest.Edit, kvstore int, r *compaction.Result) {
	e.AddTables = append(e.AddTables, r.ManifestTables(uint16(kvstore), 0, 0)...)
	e.ExpiryClock = max(e.ExpiryClock, r.DecidedAt)
}

// deadSets groups dead documents by the segment that has them now. Original
// segments of the log have what the log put there, and addresses that name an
// output of garbage collection were made of its index. What a collected segment
// had is looked for in the outputs: those that do not have it in their index
// have given it up already, and it does not count again (design R6). Segments
// that are gone have no dead.
func (db *DB) deadSets(st *manifest.State, dead []compaction.Dead) []*manifest.DeadSet {
	bySegment := map[entry.SegmentID][]entry.Seqno{}
	var order []entry.SegmentID
	add := func(id entry.SegmentID, q entry.Seqno) {
		if bySegment[id] == nil {
			order = append(order, id)
		}
		bySegment[id] = append(bySegment[id], q)
	}
	var ids []entry.SegmentID
	for _, d := range dead {
		if _, ok := st.Segment(d.Segment); ok {
			if mutant.DeadInWrongSegment {
				d.Segment = st.Segments[len(st.Segments)-1].ID
			}
			add(d.Segment, d.Seqno)
			continue
		}
		ids = st.Resolve(ids[:0], d.Segment, d.Seqno)
		for _, id := range ids {
			if db.indexHas(id, d.Seqno) || mutant.CountPhantoms {
				add(id, d.Seqno)
				break
			}
		}
	}
	var sets []*manifest.DeadSet
	for _, s := range order {
		sets = append(sets, manifest.NewDeadSet(s, bySegment[s]))
	}
	return sets
}

// indexHas reports whether an output of garbage collection holds a document. One
// whose index cannot be read has nothing dead: it is kept.
func (db *DB) indexHas(id entry.SegmentID, seqno Seqno) bool {
	if db.log == nil {
		return false // in recovery, which finds no dead but in the log
	}
	s := db.log.Acquire(id)
	if s == nil {
		return false
	}
	defer s.Release()
	x, err := db.documentsOf(s)
	if err != nil || x == nil {
		return false
	}
	_, ok := x.Lookup(seqno)
	return ok
}

// replayFrom returns where replay may start once what gone names is flushed:
// at the first version of any other memtable that a reader may need, or at a
// clear that is not in the manifest, nor in this edit (design R3). Zero when
// it does not move. edits.mu is held.
func (db *DB) replayFrom(st *manifest.State, gone func(*table) bool, clears bool) entry.Position {
	c := &db.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	pos, ok := db.log.NextPositionLocked()
	if !ok {
		return entry.Position{} // no segment to write to
	}
	if mutant.ReplayFromEnd {
		return pos
	}
	lower := func(p entry.Position) {
		if p.Segment != 0 && (p.Segment < pos.Segment || p.Segment == pos.Segment && p.Offset < pos.Offset) {
			pos = p
		}
	}
	if !clears {
		lower(c.clearPin)
	}
	for k, ts := range &db.current.Load().tables {
		if mutant.ReplayFromSkipsOne && k == db.kvstores-1 {
			continue
		}
		for _, t := range ts {
			if !gone(t) {
				lower(t.first)
			}
		}
	}
	if pos == st.ReplayFrom {
		return entry.Position{}
	}
	return pos
}

// unneeded adds to e the segments that neither replay nor a table needs after
// it, by their own id or by one that is forwarded to them, and that no
// collection is at work on.
func (db *DB) unneeded(st *manifest.State, e *manifest.Edit) {
	from := st.ReplayFrom
	if e.ReplayFrom.Segment != 0 {
		from = e.ReplayFrom
	}
	uses := usesAfter(st, e)
	ending := map[entry.SegmentID]bool{}
	for _, id := range e.DropForwards {
		ending[id] = true
	}
	target := map[entry.SegmentID]bool{}
	for _, f := range st.Forwards {
		if !ending[f.From] {
			for _, r := range f.To {
				target[r.Segment] = true
			}
		}
	}
	for _, s := range st.Segments {
		if s.Kind == manifest.SegmentLog && s.ID >= from.Segment || target[s.ID] || db.victims[s.ID] {
			continue
		}
		if st.TablesOf(s.ID)+uses[s.ID] == 0 && !slices.Contains(e.DropSegments, s.ID) {
			e.DropSegments = append(e.DropSegments, s.ID)
		}
	}
}

// installEdit makes e durable and then, in one step for readers, a view that
// holds the tables it leaves and what change did to it. Segments and tables
// that e drops go when nobody reads them any more. edits.mu is held.
func (db *DB) installEdit(e *manifest.Edit, change func(*view)) error {
	prev := db.current.Load().version
	touched := map[int]bool{}
	for _, t := range e.AddTables {
		touched[int(t.KVStore)] = true
	}
	for _, n := range e.DropTables {
		if f := db.files[n]; f != nil {
			touched[int(f.meta.KVStore)] = true
		}
	}
	st, err := db.applyLocked(e)
	if err != nil {
		return err
	}
	for _, t := range e.AddTables {
		db.addFile(t)
	}
	db.dropFiles(e)
	db.raiseExpiryClock(st.ExpiryClock)
	for _, t := range e.AddTables {
		db.files[t.Number].garbage() // it will be read: now is a good time to open it
	}
	next := db.newVersion(&st, prev, func(k int) bool { return touched[k] })
	c := &db.commit
	c.mu.Lock()
	v := db.current.Load().derive()
	v.version = next
	change(v)
	old := db.installLocked(v)
	c.mu.Unlock()
	next.release() // the view has its own
	old.release()
	db.log.Drop(e.DropSegments)
	db.sched.unfence(e)
	return nil
}
