package lsm

import (
	"errors"
	"fmt"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// findEnds finds the ends of the segments that a process left full when it was
// killed, before their footers were written or recorded. Without an end none of
// them would ever be collected. Replay has read those from replay-from on; there
// are few before it, and reading one is rare. What is damaged there is no reason
// not to open the store: it stays without an end, and so for ever what it is,
// until no table names it (design R21).
func (r *recoverer) findEnds() error {
	from := r.state.ReplayFrom
	r.ends = map[entry.SegmentID]wal.SegmentEnd{}
	for _, e := range r.scan.Sealed {
		r.ends[e.ID] = e
	}
	for _, s := range r.state.Segments {
		if s.Kind != manifest.SegmentLog || s.Sealed || s.Ended || s.ID >= from.Segment {
			continue
		}
		e, err := wal.FindEnd(r.ctx, r.scanOptions(), s.ID, from.Seqno)
		switch {
		case err == nil:
			r.ends[s.ID] = e
		case r.ctx.Err() != nil:
			return err
		default:
			r.db.o.Logf("where log segment %06d ends is not known, it will not be collected: %v", s.ID, err)
			r.db.recovery.Endless++
		}
	}
	return nil
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

// record writes the one edit of recovery: where the log ends and where each
// segment before does, what follows, and that later segments are no part of it
// (design R4). Then orphans go.
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
	next := max(r.scan.End.Seqno, r.state.SeqnoFloor())
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
	if err := r.addSpilled(e); err != nil {
		return err
	}
	if r.state, err = db.edit(func(manifest.State) *manifest.Edit { return e }); err != nil {
		if errors.Is(err, wal.ErrFailed) {
			r.spilled = spilled{} // the edit may be durable: the files stay
		}
		return err
	}
	db.raiseExpiryClock(r.state.ExpiryClock)
	r.countSpilled()
	r.cutEnded()
	return r.removeOrphans(names)
}

// endLog fills in the end of the log. It is recorded with the segment that holds
// the last group; but one that was sealed cannot be ended again, and then the
// log ends at the very beginning of the segment that follows it.
func (r *recoverer) endLog(e *manifest.Edit, next entry.Seqno) error {
	var logs []manifest.Segment
	before := entry.Seqno(0) // highest seqno recorded with an earlier segment
	for i, s := range r.state.Segments {
		switch {
		case s.Kind != manifest.SegmentLog:
		case s.ID >= r.scan.End.Segment:
			logs = append(logs, s)
		default:
			if found, ok := r.ends[s.ID]; ok && !mutant.LeaveFullSegments {
				before = max(before, r.endFull(e, i, found, before))
			}
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
	e.EndSegments = append(e.EndSegments, end)
	for _, s := range logs[1:] {
		e.DropSegments = append(e.DropSegments, s.ID)
	}
	r.scan.End.Segment, r.scan.End.Offset = end.ID, end.End
	return nil
}

// endFull puts the end of a segment that was left full into e. It is not sealed,
// even if there is a footer: how long the file is on the device is not known, when
// the sync of it failed in the run before (W9). before is the highest seqno
// recorded with an earlier segment. It returns the one recorded with this one, 0
// for none.
func (r *recoverer) endFull(e *manifest.Edit, at int, found wal.SegmentEnd, before entry.Seqno) entry.Seqno {
	last := found.Last
	if last <= before {
		last = 0 // none of its own
	}
	for _, s := range r.state.Segments[at+1:] {
		if s.Kind == manifest.SegmentLog && s.Last != 0 && s.Last <= last {
			return 0 // a later one took its seqnos for its own, when this one could not be read
		}
	}
	e.EndSegments = append(e.EndSegments, manifest.EndSegment{ID: found.ID, End: found.End, Last: last, Next: found.Next})
	r.db.recovery.Ended++
	return last
}

// cutEnded gives the unused rest of segments that were ended back to the disk. It
// is no harm if that fails: the next start tries again.
func (r *recoverer) cutEnded() {
	db := r.db
	for _, s := range r.state.Segments {
		if !s.Ended {
			continue
		}
		name := path.Join(db.dir, wal.SegmentsDir, wal.SegmentName(s.ID, wal.SegmentKind(s.Kind)))
		n, err := db.fs.Size(name)
		if err == nil && n > int64(s.End) {
			var f vfs.File
			if f, err = db.fs.Open(name, vfs.OpenOptions{Write: true}); err == nil {
				err = errors.Join(f.Truncate(int64(s.End)), f.Close())
			}
		}
		if err != nil {
			db.o.Logf("cut %s at %d: %v", name, s.End, err)
		}
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
	if err := r.removeOrphanTables(); err != nil {
		return err
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

// removeOrphanTables deletes table files that the manifest does not name: of a
// flush that did not come to its end, or dropped.
func (r *recoverer) removeOrphanTables() error {
	db := r.db
	named := make(map[uint64]bool, len(r.state.Tables))
	for _, t := range r.state.Tables {
		named[t.Number] = true
	}
	names, err := db.fs.List(path.Join(db.dir, TablesDir))
	if err != nil {
		return err
	}
	for _, n := range names {
		number, ok := sstable.ParseName(n)
		if !ok || named[number] && !mutant.OrphansIncludeNamed {
			continue
		}
		if err := db.fs.Remove(db.tableName(number)); err != nil {
			db.o.Logf("remove %s: %v", db.tableName(number), err)
		}
	}
	return nil
}
