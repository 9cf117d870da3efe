package lsm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

func init() { scenarios = append(scenarios, gcScenarios...) }

// collect has the store merge and collect what it can, once the log has sealed
// what it wrote: which segments there are to collect is then the same in each
// run.
func (p *player) collect() {
	p.rolled()
	p.compact(0)
	p.checked()
	if p.over() || p.faulty || p.halted() || len(p.snapshots) > 0 {
		return
	}
	if err := checkNeeded(p.db); err != nil && !p.halted() {
		p.problem("compacted store: %w", err)
	}
}

// rolled waits until the log has sealed all it can.
func (p *player) rolled() {
	limit := time.Minute
	if p.faulty {
		limit = 30 * time.Millisecond
	}
	p.wait(limit, func(s Stats) bool {
		unsealed := 0
		for _, seg := range p.db.edits.log.State().Segments {
			if seg.Kind == manifest.SegmentLog && !seg.Sealed && !seg.Ended {
				unsealed++
			}
		}
		// The one that is written to, and the one prepared.
		return unsealed <= 2 && s.Log.Segments+s.Log.Reused >= 2+s.Log.Seals
	})
}

// checked checks addresses, dead sets and forwards of a store that rests.
func (p *player) checked() {
	if p.over() || p.halted() {
		return
	}
	p.store()
	if p.faulty { // files that could not be removed may stay
		err := checkAddresses(p.db)
		if err != nil && !p.halted() && !errors.Is(err, faultfs.ErrInjected) && p.fault != faultfs.BitFlip {
			p.problem("running store: %w", err)
		}
		return
	}
	err := checkCollected(p.db)
	if err == nil && len(p.snapshots) == 0 {
		_, err = p.db.Verify(context.Background())
	}
	if err != nil && !p.halted() {
		p.problem("running store: %w", err)
	}
}

// hot writes a round of documents that the next round replaces, each with a cold
// one beside it in the log, and flushes.
func hot(p *player, round, n int) {
	for i := range n {
		p.write(0, fmt.Sprintf("h%d:6000", i), fmt.Sprintf("c%d%d:2500", round, i))
	}
	p.flush(0)
}

// moved makes a base in which tables name segments that were collected: the
// cold documents are read under their old addresses.
func moved(p *player) {
	hot(p, 0, 3)
	hot(p, 1, 3)
	p.collect()
}

// inside flushes within an interlude.
func (p *player) inside() {
	if p.over() {
		return
	}
	if err := p.db.Flush(); err != nil && !p.faulty {
		p.die(fmt.Errorf("flush: %w", err))
	} else if err != nil {
		p.judge("flush", err)
	}
}

// leftOver makes a base in which a crash left an output of a merge and one of a
// collection that no edit names.
func leftOver(t *testing.T, o Options) (*memfs.FS, *history) {
	disk := memfs.New()
	p := newPlayer(disk, o, newHistory("a"))
	p.open()
	hot(p, 0, 3)
	hot(p, 1, 3)
	p.rolled()
	p.during(vfs.OpSyncDir, "log", func() error { disk.Crash(); return nil })
	_ = p.db.Compact()
	p.calledOff()
	p.close()
	disk = disk.CrashCopy(0, memfs.KeepAll)
	for dir, name := range map[string]string{
		TablesDir: sstable.Name(900), wal.SegmentsDir: wal.SegmentName(901, wal.SegmentGC),
	} {
		f, err := disk.Create(path.Join("data", dir, name), vfs.OpenOptions{Write: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(8192), f.Sync(), f.Close(), disk.SyncDir(path.Join("data", dir))); err != nil {
			t.Fatal(err)
		}
	}
	return disk.CrashCopy(0, memfs.DropAll), p.h
}

// cannotCompact compacts while the disk refuses a call with an error, which
// comes out as want, and heals. Of reads it refuses all: what is read for advice
// only may fail quietly.
func cannotCompact(p *player, kind vfs.OpKind, pattern string, refusal, want error) {
	if p.over() {
		return
	}
	pass := stopFenceClock(p.db)
	var healed atomic.Bool
	var refuse func() error
	refuse = func() error {
		if kind == vfs.OpReadAt && !healed.Load() {
			p.during(kind, pattern, refuse)
		}
		return refusal
	}
	p.during(kind, pattern, refuse)
	err := p.db.Compact()
	healed.Store(true)
	p.calledOff()
	p.calledOff() // what ran meanwhile may have called for more
	// A job that was refused, too, may not have said so yet.
	p.wait(time.Minute, func(s Stats) bool { return s.CompactionsNow == 0 && !s.CollectingNow })
	pass(fenceMax)
	switch {
	case errors.Is(err, want) || err == nil && p.faulty:
	case err == nil:
		p.problem("%v at %v %s keeps nothing from being merged and collected", refusal, kind, pattern)
	case !p.faulty:
		p.die(fmt.Errorf("compact: %w", err))
	default:
		p.judge("compact", err)
	}
	p.verify()
	p.collect()
	p.verify()
}

// gcScenarios are about merges and collections that meet: with each other, with
// flushes and clears, and after a restart.
var gcScenarios = []*scenario{
	{
		name:   "trivial move, then a merge that drops tombstones",
		base:   closed(few, "a"),
		stride: 6,
		play: func(p *player) {
			p.open()
			p.write(0, "k4:100", "k5", "k6:90")
			p.collect()
			p.sees("move", func(s Stats) bool { return s.CompactionMoves == 1 && s.Compactions == 0 })
			p.write(0, "-k4", "-k1", "k5:70")
			p.collect()
			p.sees("merge", func(s Stats) bool { return s.Compactions == 1 && s.TableEntries == 4 })
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 3, 3}, {vfs.OpRemove, "*.sst", 2, 2}},
	},
	{
		name:   "merges with deletes under two snapshots",
		base:   closed(few, "a"),
		stride: 12,
		play: func(p *player) {
			p.open()
			hot(p, 0, 2)
			p.collect()
			p.snapshot()
			p.write(0, "-h0", "-c00", "h1:200", "-k1")
			p.flush(0)
			p.collect()
			p.again()
			p.snapshot()
			p.write(0, "h0:70", "-h1", "k1")
			p.flush(0)
			p.collect()
			p.again()
			p.verify()
			p.closeSnapshots()
			p.write(0, "k9")
			p.collect()
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 5, 0}, {vfs.OpCreate, "*.gc.seg", 1, 0}},
		sparse:  true,
	},
	{
		name:   "collection of log segments",
		base:   closed(func(p *player) { hot(p, 0, 3); hot(p, 1, 3); p.rolled() }, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.collect()
			p.verify()
			p.sees("read under an old address", func(s Stats) bool { return s.Collections > 0 && s.Forwards > 0 && s.MovedReads > 0 })
			p.write(0, "h0:100", "-c00")
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 1, 0}, {vfs.OpSync, "*.gc.seg", 1, 0}},
	},
	{
		name:   "eight slices over a last level",
		base:   closed(func(p *player) { few(p); p.write(0, "k4:100", "k5"); p.collect() }, "a"),
		stride: 12,
		play: func(p *player) {
			p.open()
			for i := range 8 {
				p.write(0, "k9", fmt.Sprintf("s%d:70", i), "-k"+fmt.Sprint(1+i%2))
				p.flush(0)
			}
			p.collect()
			p.sees("merge above the last level", func(s Stats) bool { return s.Compactions == 2 && s.Written.Compaction[0] > 0 })
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 10, 10}, {vfs.OpRemove, "*.sst", 10, 10}},
		sparse:  true,
	},
	{
		name:   "the log rolls on during a merge",
		base:   closed(func(p *player) { hot(p, 0, 3); p.rolled() }, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.write(0, "h0:6000", "-c00")
			p.flush(0)
			p.during(vfs.OpSync, "*.sst", func() error {
				for i := range 6 {
					p.write(0, fmt.Sprintf("h%d:6000", i%3), fmt.Sprintf("c3%d:2500", i))
				}
				p.rolled()
				return nil
			})
			p.compact(0)
			p.verify()
			p.checked()
			p.rolled()
			p.reopen()
			p.verify()
			p.collect()
			p.verify()
		},
		sparse: true,
	},
	{
		name:   "collection of outputs again",
		base:   closed(moved, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.verify()
			p.write(0, "-c00", "c01:80", "-c10", "c11:90", "-c12")
			p.flush(0)
			p.collect()
			p.verify()
			p.write(0, "-c01", "-c02")
			p.flush(0)
			p.collect()
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 1, 0}, {vfs.OpRemove, "*.gc.seg", 1, 0}},
	},
	{
		name:   "forwards over restarts, and their end",
		base:   closed(moved, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.verify()
			p.sees("forward", func(s Stats) bool { return s.Forwards > 0 && s.MovedReads > 0 })
			p.write(0, "c00:60", "c01:60", "-c02", "c10:60", "h0:60", "h1:60")
			p.rolled()
			p.reopen()
			p.collect()
			p.verify()
			p.write(0, "k9")
			p.flush(0)
			p.verify()
			p.rolled()
			p.reopen()
			p.collect()
			p.verify()
		},
		crossed: []crossing{{vfs.OpRemove, "*.sst", 1, 0}},
	},
	{
		name:   "flushes and collections by turns",
		stride: 18,
		base:   closed(few, "a"),
		play: func(p *player) {
			p.open()
			for r := range 3 {
				hot(p, r, 2)
				p.collect()
				p.write(0, "h1:6000", fmt.Sprintf("-c%d0", r))
				p.verify()
			}
			p.rolled()
			p.reopen()
			p.verify()
			p.collect()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 2, 0}, {vfs.OpCreate, "*.sst", 5, 0}},
		sparse:  true,
	},
	{
		name:   "documents die while their segment is collected",
		base:   closed(func(p *player) { hot(p, 0, 3); hot(p, 1, 3); p.rolled() }, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.during(vfs.OpSync, "*.gc.seg", func() error {
				p.write(0, "-c00", "c01:100", "h1:200", "c12")
				p.inside()
				p.write(0, "c10:90")
				return nil
			})
			p.collect()
			p.verify()
			p.flush(0)
			p.collect()
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 1, 0}, {vfs.OpCreate, "*.sst", 3, 0}},
	},
	{
		name:   "clear during a collection",
		base:   closed(func(p *player) { hot(p, 0, 3); hot(p, 1, 3); p.rolled() }, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.during(vfs.OpSync, "*.gc.seg", func() error {
				p.write(0, "k1:100")
				p.clear()
				p.write(0, "h0:6000", "c20:2500")
				p.inside()
				return nil
			})
			p.collect()
			p.verify()
			p.write(0, "h0:6000", "c21:2500")
			p.flush(0)
			p.collect()
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 1, 0}, {vfs.OpRemove, "*.gc.seg", 1, 0}},
	},
	{
		name:   "clear of moved documents, under a snapshot",
		base:   closed(moved, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.snapshot()
			p.clear()
			p.write(0, "c00:2500", "h0:6000")
			p.collect()
			p.again()
			p.verify()
			p.closeSnapshots()
			p.write(0, "c01:2500")
			p.collect()
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		sparse: true,
	},
	{
		name:   "outputs that a crash left",
		base:   leftOver,
		stride: 6,
		play: func(p *player) {
			p.open()
			p.checked()
			p.verify()
			p.collect()
			p.sees("number above those that were left", func(Stats) bool { return p.db.edits.log.State().NextFileNumber > 902 })
			p.verify()
		},
		crossed: []crossing{{vfs.OpRemove, "*.gc.seg", 1, 0}, {vfs.OpRemove, "*.sst", 1, 0}},
	},
	{
		name:   "kvstores merged side by side, with new manifests",
		base:   closed(few, "a"),
		stride: 18,
		options: func(o *Options) {
			o.VBuckets, o.KVStores, o.manifestBytesMin = 8, 2, 1
		},
		play: func(p *player) {
			p.open()
			hot(p, 0, 3)
			p.write(0, "-k1", "k2:90", "k5", "k6", "-k7")
			hot(p, 1, 3)
			p.collect()
			p.verify()
			p.write(0, "-c00", "-c01", "k1")
			p.collect()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "MANIFEST-*", 3, 0}, {vfs.OpCreate, "*.gc.seg", 1, 0}},
		sparse:  true,
	},
	{
		name:   "flush during replay over a last level",
		stride: 12,
		base: func(t *testing.T, o Options) (*memfs.FS, *history) {
			o.WriteCache = mib
			return cut(func(p *player) {
				mixed(p)
				several(p, 0, 4)
				p.collect()
				p.write(0, "-k1", "-m00", "k2:70")
				several(p, 4, 24)
				p.write(0, "-m05", "-m02", "k3")
			}, "a")(t, o)
		},
		options: loadable,
		play: func(p *player) {
			p.open()
			p.sees("flush during replay", func(s Stats) bool { return s.Recovery.Spills >= 1 })
			p.verify()
			p.checked()
			p.collect()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 0}},
		sparse:  true,
	},
	{
		name:   "disk full while merging and collecting",
		base:   closed(func(p *player) { hot(p, 0, 3); p.collect() }, "a"),
		stride: 12,
		play: func(p *player) {
			p.open()
			p.write(0, "-h0", "-c00")
			hot(p, 1, 2)
			p.rolled()
			cannotCompact(p, vfs.OpCreate, "*.sst", vfs.ErrNoSpace, ErrDiskFull)
			p.write(0, "-h1", "-c01")
			hot(p, 2, 3)
			p.rolled()
			cannotCompact(p, vfs.OpCreate, "*.gc.seg", vfs.ErrNoSpace, ErrDiskFull)
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 2, 0}, {vfs.OpCreate, "*.sst", 4, 0}},
		sparse:  true,
	},
	{
		name:   "a victim and a table that cannot be read",
		base:   closed(func(p *player) { hot(p, 0, 3); hot(p, 1, 3); p.rolled() }, "a"),
		stride: 9,
		play: func(p *player) {
			p.open()
			cannotCompact(p, vfs.OpReadAt, "*.seg", syscall.EIO, syscall.EIO)
			p.sees("collection", func(s Stats) bool { return s.Collections > 0 && s.CollectionsFailed > 0 && s.GCFenced == 0 })
			p.write(0, "-c00", "c01:90", "-h0", "k1")
			p.flush(0)
			p.rolled()
			cannotCompact(p, vfs.OpReadAt, "*.sst", syscall.EIO, syscall.EIO)
			p.sees("merge", func(s Stats) bool { return s.Compactions > 0 && s.CompactionsFailed > 0 && s.CompactionFenced == 0 })
			p.write(0, "h1:100")
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 1, 0}},
	},
	{
		name:    "page cache and no promise to be durable, collected",
		base:    closed(moved, "a"),
		stride:  9,
		options: func(o *Options) { o.BufferedIO, o.NonDurable = true, true },
		play: func(p *player) {
			p.open()
			p.write(0, "-c00", "c01:80", "h0:6000")
			p.write(0, "-c10", "c11:90", "-c12")
			p.flush(0)
			p.collect()
			p.write(0, "k1")
			p.close()
		},
		sparse: true,
	},
}
