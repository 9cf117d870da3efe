package lsm

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
)

var scenarios = slices.Concat(logScenarios, flushScenarios, compactScenarios)

// flushes reports whether the scenario is about tables.
func (sc *scenario) flushes() bool { return !slices.Contains(logScenarios, sc) }

// inline keeps what fill writes in memtables and tables, not in the log alone.
func inline(o *Options) { o.InlineLimit = 16 * kib }

// several writes n documents of a kind that goes into tables, four a batch.
func several(p *player, from, n int) {
	for i := from; i < from+n; i += 4 {
		p.write(0, fmt.Sprintf("m%02d:3500", i), fmt.Sprintf("m%02d:3000", i+1), fmt.Sprintf("m%02d:2500", i+2), fmt.Sprintf("m%02d:3500", i+3))
	}
}

// mixed has everything in one memtable: small and large values, overwritten and
// deleted ones, a document deleted and written again.
func mixed(p *player) {
	p.write(0, "k1", "k2:100", "k3:300", "k5:90", "k6")
	p.write(0, "k2:120", "k1:70", "-k3", "k4:3000", "-k6", "k7:500")
	p.write(0, "k2:110", "k3:80", "-k7", "-nothing")
}

// small is a write cache that a few documents fill.
const small = 48 * kib

// longLog makes a base whose log is several times what a small write cache
// holds.
func longLog(t *testing.T, o Options) (*memfs.FS, *history) {
	o.WriteCache = mib
	return cut(func(p *player) { mixed(p); several(p, 0, 36); p.write(0, "-m03", "m04", "k2:200") }, "a")(t, o)
}

// loadable is for replay that spills.
func loadable(o *Options) {
	o.InlineLimit, o.WriteCache, o.TableBytes = 4*kib, small, 64*kib
}

// orphans makes a base in which a crash left tables that the manifest does not
// name: one of a flush that was all but done, and ones with higher numbers.
func orphans(t *testing.T, o Options) (*memfs.FS, *history) {
	disk := memfs.New()
	p := newPlayer(disk, o, newHistory("a"))
	p.open()
	mixed(p)
	p.background(0) // which registers segments
	p.during(vfs.OpSync, "MANIFEST-*", func() error { disk.Crash(); return nil })
	_ = p.db.Flush()
	p.close()
	disk = disk.CrashCopy(0, memfs.DropAll)
	for _, n := range []uint64{900, 901} {
		f, err := disk.Create(path.Join("data", TablesDir, sstable.Name(n)), vfs.OpenOptions{Write: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteDurable(make([]byte, 5000), 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.SyncDir(path.Join("data", TablesDir)); err != nil {
		t.Fatal(err)
	}
	if names, err := disk.List(path.Join("data", TablesDir)); err != nil || len(names) != 3 {
		t.Fatalf("the base has tables %v, %v; want 3", names, err)
	}
	return disk.CrashCopy(0, memfs.DropAll), p.h
}

// numbered demands that no table has a number at or below n.
func (p *player) numbered(n uint64) {
	if p.over() {
		return
	}
	for _, t := range p.db.edits.log.State().Tables {
		if t.Number <= n {
			p.problem("table %06d was made although %06d was there", t.Number, n)
		}
	}
}

// fullDisk refuses a flush at one call, and heals.
func fullDisk(p *player, kind vfs.OpKind, pattern string) {
	refuse := func() error { return vfs.ErrNoSpace }
	caller := ""
	if pattern == "MANIFEST-*" {
		caller = "(*flushJob).install" // the log has edits of its own
	}
	p.duringBy(caller, kind, pattern, refuse)
	p.cannotFlush(ErrDiskFull)
	p.write(0, "k8", "k9:200")
	p.verify()
	p.flush(0)
	p.verify()
	p.store()
}

var flushScenarios = []*scenario{
	{
		name: "flush",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.flush(0)
			p.sees("table", func(s Stats) bool { return s.Tables == 1 && s.Entries == 0 })
			p.write(0, "k2", "k5:90")
			p.verify()
			p.store()
		},
		crossed: []crossing{
			{vfs.OpCreate, "*.sst", 1, 1}, {vfs.OpSync, "*.sst", 1, 0}, {vfs.OpSyncDir, "idx", 1, 1}, {vfs.OpWriteDurable, "*.seg", 2, 0},
		},
	},
	{
		name:   "flush of several kvstores",
		stride: 2,
		base:   closed(few, "a"),
		options: func(o *Options) {
			o.VBuckets, o.KVStores = 16, 4
		},
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k2", "-k3", "k4:200", "k5", "k6", "k7", "k8", "k9:100", "k1")
			p.flush(0)
			p.sees("table of each kvstore", func(s Stats) bool { return s.Tables == 4 })
			p.verify()
			p.write(0, "-k4", "k5", "k6:2000", "k10", "k11", "k12")
			p.reopen()
			p.verify()
			p.flush(0)
			p.store()
		},
		// Kvstores flushed together share one sync of the directory (R26).
		crossed: []crossing{{vfs.OpCreate, "*.sst", 6, 8}, {vfs.OpSyncDir, "idx", 2, 2}},
	},
	{
		name: "flush of small and large values, overwritten and deleted",
		play: func(p *player) {
			p.open()
			mixed(p)
			p.flush(0)
			p.sees("dead document", func(s Stats) bool { return s.GarbageKnown >= 3 && s.Tables == 1 })
			p.verify()
			p.store()
			p.write(0, "-k2", "k4:90", "-k1")
			p.flush(0)
			p.verify()
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}},
	},
	{
		name: "two flushes of one kvstore",
		base: closed(func(p *player) { mixed(p); p.flush(0) }, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "-k1", "k2:90", "k3", "k9:400")
			p.flush(0)
			p.write(0, "k1", "-k2", "k4:64", "-k9")
			p.flush(0)
			p.sees("third run", func(s Stats) bool { return s.RunsMax == 3 })
			p.verify()
			p.write(0, "k3:65")
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}, {vfs.OpSyncDir, "idx", 2, 2}},
		sparse:  true,
	},
	{
		name: "flush of expired documents and tombstones",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1:10+5", "k4:200+5", "k5:10+50", "k6:200+50", "k7")
			p.flush(0)
			p.passes(10 * time.Second)
			p.verify()
			p.write(0, "k7:200+5", "-k5", "k2:10+5")
			p.passes(10 * time.Second)
			p.flush(0)
			p.sees("clock of expiry", func(Stats) bool { return p.db.edits.log.State().ExpiryClock == p.now() })
			p.verify()
			p.store()
			p.passes(time.Minute)
			p.write(0, "k8")
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}},
	},
	{
		name: "writers go on while a flush is under way, and the log rolls",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100", "f0:300")
			p.during(vfs.OpSync, "*.sst", func() error {
				p.write(0, "k1:80", "-k2")
				fill(p, 3)
				p.verify()
				p.write(0, "k3")
				return nil
			})
			p.flush(0)
			p.verify()
			p.store()
			p.flush(0)
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}, {vfs.OpCreate, "*.seg", 3, 0}},
	},
	{
		name:    "writers and flushes at once",
		stride:  3,
		clients: []string{"a", "b", "c"},
		base:    closed(few, "a", "b", "c"),
		options: func(o *Options) { o.VBuckets, o.KVStores, o.Flushers, o.LogInflight = 8, 4, 2, 2 },
		play: func(p *player) {
			p.open()
			p.together(func(i int) {
				for j := range 4 {
					p.write(i, fmt.Sprintf("%c%d", 'p'+i, j%3), fmt.Sprintf("%c9:%d", 'p'+i, 70*j))
					if j == i+1 {
						p.flush(i)
					}
				}
			})
			p.verify()
			p.flush(0)
			p.verify()
			p.store()
		},
		overtake: true,
		crossed:  []crossing{{vfs.OpCreate, "*.sst", 4, 0}},
		sparse:   true,
	},
	{
		name:    "flush that frees segments",
		stride:  2,
		base:    closed(few, "a"),
		options: inline,
		play: func(p *player) {
			p.open()
			p.write(0, "k1") // so that the first segment ends early and its file is cut
			fill(p, 5)
			p.background(0)
			p.flush(0)
			p.background(1)
			p.sees("free segment", func(s Stats) bool { return s.Log.Pooled+int(s.Log.Reused+s.Log.Removed) > 0 })
			fill(p, 5)
			p.background(0)
			p.verify()
			p.flush(0)
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpRename, "*.seg", 1, 0}},
	},
	{
		name:   "flush under a snapshot",
		stride: 2,
		base:   closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.snapshot()
			p.write(0, "k1:20", "-k2", "k4:110")
			p.write(0, "k1:30", "k2", "k4:120")
			p.flush(0)
			p.sees("version that a snapshot needs", func(s Stats) bool { return s.TableEntries == 10 })
			p.again()
			p.verify()
			p.closeSnapshots()
			p.write(0, "k1:40", "-k4")
			p.snapshot()
			p.flush(0)
			p.again()
			p.verify()
			p.store()
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}},
	},
	{
		name: "clear before a flush",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.clear()
			p.write(0, "k2:80", "k5")
			p.flush(0)
			p.verify()
			p.store()
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 1, 1}},
		sparse:  true,
	},
	{
		name: "clear after a flush",
		base: closed(func(p *player) { mixed(p); p.flush(0) }, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.flush(0)
			p.write(0, "k5", "k6:100")
			p.clear()
			p.verify()
			p.sees("table without documents", func(s Stats) bool { return s.Tables == 0 })
			p.store()
			p.write(0, "k2:90")
			p.reopen()
			p.verify()
			p.flush(0)
			p.store()
		},
		crossed: []crossing{{vfs.OpRemove, "*.sst", 2, 2}},
	},
	{
		name:   "clear during a flush",
		stride: 2,
		base:   closed(func(p *player) { few(p); p.flush(0) }, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.during(vfs.OpSyncDir, "idx", func() error {
				p.write(0, "k5:100")
				fill(p, 3) // the segment of what is being flushed goes with the clear
				p.clear()
				p.write(0, "k2:70")
				return nil
			})
			p.flush(0)
			p.sees("flush that goes on after a clear", func(s Stats) bool { return s.FlushesFailed == 0 })
			p.verify()
			p.store()
			p.write(0, "k1")
			p.reopen()
			p.verify()
			p.flush(0)
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 0}, {vfs.OpRemove, "*.sst", 2, 0}},
	},
	{
		name: "clear and flush under a snapshot",
		base: closed(func(p *player) { few(p); p.flush(0) }, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.snapshot()
			p.clear()
			p.again()
			p.write(0, "k2:70", "k3:100")
			p.flush(0)
			p.again()
			p.verify()
			p.closeSnapshots()
			p.write(0, "k3")
			p.flush(0)
			p.verify()
			p.store()
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 0}, {vfs.OpRemove, "*.sst", 1, 0}},
	},
	{
		name:    "flush during replay",
		stride:  3,
		base:    longLog,
		options: loadable,
		play: func(p *player) {
			p.open()
			p.sees("flush during replay", func(s Stats) bool { return s.Recovery.Spills >= 1 && s.Tables >= 2 })
			p.verify()
			p.store()
			p.write(0, "k1:70")
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 0}, {vfs.OpSyncDir, "idx", 1, 2}},
	},
	{
		name:    "flush during replay, twice",
		stride:  8,
		base:    longLog,
		options: loadable,
		play: func(p *player) {
			p.open()
			p.o.WriteCache = mib
			p.reopen()
			p.write(0, "m01", "-m02", "k4:100", "m04:100")
			several(p, 8, 24)
			p.write(0, "-m09", "m10", "k1:80")
			p.o.WriteCache = small
			p.reopen()
			p.sees("flush during replay", func(s Stats) bool { return s.Recovery.Spills >= 1 })
			p.verify()
			p.store()
			p.flush(0)
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 4, 0}, {vfs.OpSyncDir, "idx", 2, 0}},
		sparse:  true,
	},
	{
		name:   "flush that makes several tables",
		stride: 3,
		base:   closed(few, "a"),
		options: func(o *Options) {
			o.InlineLimit, o.TableBytes = 4*kib, 32*kib
		},
		play: func(p *player) {
			p.open()
			several(p, 0, 24)
			p.flush(0)
			p.sees("several tables in one run", func(s Stats) bool { return s.Tables >= 3 && s.RunsMax == 1 })
			p.verify()
			p.write(0, "m01", "-m02")
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 3, 0}, {vfs.OpSyncDir, "idx", 1, 1}},
	},
	{
		name:    "flush of an idle store",
		base:    closed(few, "a"),
		options: func(o *Options) { o.IdleFlush = 4 * time.Millisecond },
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.flushed(1)
			p.verify()
			p.write(0, "k2")
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 1, 0}},
		sparse:  true,
	},
	{
		name:   "new manifests while flushing",
		stride: 2,
		base:   closed(few, "a"),
		options: func(o *Options) {
			o.VBuckets, o.KVStores, o.manifestBytesMin = 8, 2, 1
		},
		play: func(p *player) {
			p.open()
			for i := range 5 {
				p.write(0, fmt.Sprintf("k%d:90", i), "k5", fmt.Sprintf("-k%d", i+2))
				p.flush(0)
			}
			p.verify()
			p.store()
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "MANIFEST-*", 3, 0}, {vfs.OpRemove, "MANIFEST-*", 3, 0}},
	},
	{
		name: "disk full while flushing",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			fullDisk(p, vfs.OpCreate, "*.sst")
			p.write(0, "-k1", "k5:100")
			fullDisk(p, vfs.OpWriteAt, "*.sst")
			p.write(0, "k1:90")
			fullDisk(p, vfs.OpSyncDir, "idx")
			p.write(0, "k2:90")
			fullDisk(p, vfs.OpWriteAt, "MANIFEST-*")
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 7, 7}, {vfs.OpRemove, "*.sst", 3, 3}},
		sparse:  true,
	},
	{
		name:   "tables that a crash left",
		stride: 2,
		base:   orphans,
		play: func(p *player) {
			p.open()
			p.store()
			p.verify()
			p.flush(0)
			p.numbered(901)
			p.verify()
			p.write(0, "k1:80")
			p.reopen()
			p.store()
		},
		crossed: []crossing{{vfs.OpRemove, "*.sst", 3, 3}, {vfs.OpCreate, "*.sst", 1, 1}},
	},
	{
		name: "recovery after a kill, with tables",
		base: cut(func(p *player) {
			mixed(p)
			p.flush(0)
			fill(p, 3)
			p.write(0, "k1", "-k2")
			p.flush(0)
			p.write(0, "k3:90")
		}, "a"),
		play: func(p *player) {
			p.open()
			p.sees("table", func(s Stats) bool { return s.Tables == 2 && s.Entries == 1 })
			p.verify()
			p.flush(0)
			p.write(0, "-k3")
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 1, 1}},
		sparse:  true,
	},
	{
		name: "flush after a torn tail",
		base: torn,
		play: func(p *player) {
			p.open()
			p.settleNow()
			p.flush(0)
			p.write(0, "a1")
			p.reopen()
			p.flush(0)
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}},
		sparse:  true,
	},
	{
		name:   "writers that fill the write cache",
		stride: 3,
		base:   closed(few, "a"),
		options: func(o *Options) {
			o.InlineLimit, o.WriteCache, o.KVStores = 4*kib, small, 4
		},
		play: func(p *player) {
			p.open()
			several(p, 0, 40)
			p.sees("stalled writer", func(s Stats) bool { return s.Stalled > 0 && s.Tables > 0 })
			p.verify()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 0}},
	},
	{
		name:    "store that is not durable, flushed",
		base:    closed(few, "a"),
		options: func(o *Options) { o.NonDurable = true },
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k2")
			p.write(0, "k4:300")
			p.flush(0)
			p.write(0, "k1", "k4:310")
			p.write(0, "-k2")
			p.flush(0)
			p.write(0, "k5")
			p.close()
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}},
	},
	{
		name:    "page cache, flushed",
		base:    closed(few, "a"),
		options: func(o *Options) { o.BufferedIO = true },
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.flush(0)
			p.write(0, "k2:3000", "-k1")
			p.reopen()
			p.flush(0)
			p.verify()
			p.store()
			p.write(0, "k1:200")
		},
		crossed: []crossing{{vfs.OpCreate, "*.sst", 2, 2}},
	},
}
