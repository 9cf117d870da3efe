package lsm

import (
	"fmt"
	"path"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// spilled is what replay wrote to tables because the log held more than the
// write cache may take. Nothing names the files before the one edit of
// recovery does: an open that fails removes them, and after a crash they are
// orphans.
type spilled struct {
	parts []spilledPart
	// upTo and from: every version up to it is in tables, and replay goes on
	// there.
	upTo Seqno
	from entry.Position
}

type spilledPart struct {
	kvstore int
	result  compaction.Result
}

// seeTables makes file numbers go on above those of all tables in the
// directory (M6).
func (r *recoverer) seeTables() error {
	names, err := r.db.fs.List(path.Join(r.db.dir, TablesDir))
	if err != nil {
		return err
	}
	for _, n := range names {
		if number, ok := sstable.ParseName(n); ok && !mutant.ReuseTableNumbers {
			r.db.edits.log.SeenFile(number)
		}
	}
	return nil
}

// full reports whether the memtables hold what the write cache may take.
func (r *recoverer) full() bool {
	used := int64(0)
	for _, t := range r.tables {
		used += int64(t.Bytes())
	}
	return used >= r.db.o.WriteCache
}

// spill writes everything loaded so far to tables and empties the memtables;
// the next group is at from. The loaders are finished, and nobody adds to them.
func (r *recoverer) spill(from entry.Position) error {
	db := r.db
	policy := compaction.Policy{Horizon: from.Seqno - 1, Clear: Seqno(r.cleared.Load()), Now: db.expiryNow()}
	older := map[int]bool{}
	for _, t := range r.state.Tables {
		older[int(t.KVStore)] = true // of any level
	}
	for _, p := range r.spilled.parts {
		older[p.kvstore] = true
	}
	for k, t := range r.tables {
		if t.Len() > 0 {
			policy.Bottom = !older[k] || mutant.SpillAlwaysBottom
			res, err := db.flushTables(r.ctx, k, []*table{t}, policy)
			if err != nil {
				return fmt.Errorf("flush during replay: %w", err)
			}
			r.spilled.parts = append(r.spilled.parts, spilledPart{kvstore: k, result: res})
		}
		if err := t.Reset(); err != nil {
			return err
		}
		r.loaders[k] = t.NewLoader()
	}
	r.spilled.upTo, r.spilled.from = from.Seqno-1, from
	db.recovery.Spills++
	return nil
}

// addSpilled puts the tables of replay into the edit that ends recovery.
func (r *recoverer) addSpilled(e *manifest.Edit) error {
	s := &r.spilled
	if s.upTo == 0 {
		return nil
	}
	var dead []compaction.Dead
	for i := range s.parts {
		addResult(e, s.parts[i].kvstore, &s.parts[i].result)
		dead = append(dead, s.parts[i].result.Dead...)
	}
	for k := range r.db.kvstores {
		if s.upTo > r.state.FlushedSeqno(uint16(k)) {
			e.Flushed = append(e.Flushed, manifest.Flushed{KVStore: uint16(k), Seqno: s.upTo})
		}
	}
	e.AddDead = r.db.deadSets(&r.state, dead)
	e.ReplayFrom = s.from
	if mutant.SpillReplayFromEnd {
		e.ReplayFrom = r.scan.End
	}
	r.db.unneeded(&r.state, e)
	dir := path.Join(r.db.dir, TablesDir)
	if err := mutant.Skip(mutant.SkipSpillDirSync, func() error { return r.db.fs.SyncDir(dir) }); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// countSpilled counts what replay wrote as what it is, a flush. The tables are
// the store's from now on.
func (r *recoverer) countSpilled() {
	for i := range r.spilled.parts {
		r.db.counts.flushed(&r.spilled.parts[i].result)
	}
	r.spilled = spilled{}
}

// removeSpilled removes the tables of an open that failed.
func (r *recoverer) removeSpilled() {
	for i := range r.spilled.parts {
		if err := r.db.removeUnnamed(r.spilled.parts[i].result.Tables); err != nil {
			r.db.o.Logf("%v", err)
		}
	}
	r.spilled = spilled{}
}

// firstGroup returns where a chunk begins.
func firstGroup(c *wal.Chunk) entry.Position {
	for g := range c.Groups() {
		return entry.Position{Segment: g.Segment, Offset: g.Offset, Seqno: g.First}
	}
	return entry.Position{}
}
