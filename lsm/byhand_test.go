package lsm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fluxkv/compaction"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/wal"
)

// Merges and collections that a test does itself, one at a time, so that it
// knows what meets what.

// handPicker merges one job at a time, when a test says so.
type handPicker struct {
	db     *DB
	picker compaction.Lazy
}

// byHand lets nobody but the test merge and collect. Merges make slices of
// three flushes; a table takes 12 KiB at least.
func byHand(db *DB, rangeBytes int64) *handPicker {
	l := compaction.Lazy{MergeShare: 2, Slices: 3, RunsMax: 2, FloorBytes: -1, TableBytes: 8 * kib, RangeBytesMin: rangeBytes}
	db.picker = l
	return &handPicker{db: db, picker: l}
}

// merge runs the job that is picked next; false when there is none.
func (h *handPicker) merge(idle bool) (compaction.Job, bool, error) {
	db := h.db
	v := db.pin()
	job, ok := h.picker.Pick(compaction.Picture{
		State: v.version.state, KVStores: db.kvstores, Idle: idle, Horizon: db.horizon(),
		Expired: func(n uint64) uint64 { return v.version.expiredIn(n, db.expiryNow(), true) },
	})
	v.release()
	if !ok {
		return job, false, nil
	}
	return job, true, mergeByHand(db, job)
}

// mergeByHand runs a job over the current version, as the scheduler would.
func mergeByHand(db *DB, job compaction.Job) error {
	s := &db.sched
	s.mu.Lock()
	seq := db.mergeSeq.Add(1)
	v := db.pin()
	c := &compactJob{db: db, from: v.version.retain(), job: job, indexes: map[entry.SegmentID]*wal.SeqnoIndex{}}
	v.release()
	s.mergesNow, s.mergeSeqs = append(s.mergesNow, &c.job), append(s.mergeSeqs, seq)
	s.mu.Unlock()
	err := c.run(context.Background())
	c.from.release()
	s.mu.Lock()
	i := slices.Index(s.mergesNow, &c.job)
	s.mergesNow, s.mergeSeqs = slices.Delete(s.mergesNow, i, i+1), slices.Delete(s.mergeSeqs, i, i+1)
	s.mu.Unlock()
	return err
}

// mergeAll merges all tables of kvstore 0 into the last level.
func mergeAll(t testing.TB, db *DB) {
	t.Helper()
	if err := mergeByHand(db, allOf(db)); err != nil {
		t.Fatal(err)
	}
}

// allOf is the job that merges all tables of kvstore 0 into the last level.
func allOf(db *DB) compaction.Job {
	st := db.edits.log.State()
	j := compaction.Job{Reason: compaction.ReasonIdle, OutLevel: 1, Bottom: true}
	level0 := slices.Clone(st.LevelTables(0, 0))
	slices.SortFunc(level0, func(a, b *manifest.Table) int { return int(b.HighestSeqno) - int(a.HighestSeqno) })
	for _, t := range level0 {
		j.Inputs = append(j.Inputs, []*manifest.Table{t})
	}
	if last := st.LevelTables(0, 1); len(last) > 0 {
		j.Inputs = append(j.Inputs, last)
	}
	for _, t := range slices.Concat(j.Inputs...) {
		j.Bytes += t.FileBytes
		j.Entries += t.Entries
	}
	return j
}

// collectByHand collects segments of the log, and outputs of collections.
func collectByHand(db *DB, once, again []entry.SegmentID) error {
	v := db.pin()
	c := &gcJob{db: db, from: v.version.retain(), job: compaction.GCJob{Once: once, Again: again}}
	v.release()
	defer c.from.release()
	return c.run(context.Background())
}

// collectable are the segments that a collection may take now, by kind.
func collectable(db *DB) (once, again []entry.SegmentID) {
	v := db.pin()
	defer v.release()
	for _, s := range compaction.SegmentsOf(v.version.state, func(entry.SegmentID) uint64 { return 0 }) {
		switch {
		case !s.Flushed:
		case s.Kind == manifest.SegmentLog:
			once = append(once, s.ID)
		default:
			again = append(again, s.ID)
		}
	}
	return once, again
}

// separated writes documents of some keys, and as many others behind them as fill
// a segment, and flushes. It returns the value of all when that segment may be
// collected.
func separated(t testing.TB, db *DB, keys ...string) (value string) {
	t.Helper()
	value = strings.Repeat("v", 3000)
	for _, k := range keys {
		set(t, db, k, value)
	}
	first := db.log.Stats().Seals
	for i := 0; db.log.Stats().Seals == first; i++ {
		set(t, db, fmt.Sprintf("filler%03d", i), value)
	}
	once, _ := collectable(db)
	before := len(once)
	until(t, "an end of the segment in the version of the store", func() bool {
		set(t, db, "tick", "")
		mustFlush(t, db)
		once, _ := collectable(db)
		return len(once) > before
	})
	return value
}
