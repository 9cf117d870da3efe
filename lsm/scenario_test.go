package lsm

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// scenario is a tiny life of a store, played again and again: each time the
// disk fails at another call.
type scenario struct {
	name    string
	clients []string // one named "a" when nil
	options func(o *Options)
	// base makes the disk on which it begins, and the history so far; nil is
	// an empty disk.
	base func(t *testing.T, o Options) (*memfs.FS, *history)
	// overtake lets groups overtake each other on the way to the device.
	overtake bool
	play     func(p *player)
	// crossed are calls that the scenario must make, so that it cannot
	// quietly stop testing what its name says.
	crossed []crossing
	// discards says that some crash must leave a torn group with a later one
	// intact.
	discards bool
	// stride leaves calls out of the crash and kill loops: one of so many that
	// change the disk is taken. It is for scenarios that make many like ones.
	stride int
	// sparse scenarios are left out of the fault loops: others cross the same
	// calls.
	sparse bool
}

type crossing struct {
	kind    vfs.OpKind
	pattern string // of the name
	min     int
	max     int // 0: any number
}

func (sc *scenario) tiny() Options {
	o := tinyOptions()
	if sc.options != nil {
		sc.options(&o)
	}
	return o
}

func (sc *scenario) start(t *testing.T) (*memfs.FS, *history) {
	if sc.base != nil {
		return sc.base(t, sc.tiny())
	}
	clients := sc.clients
	if clients == nil {
		clients = []string{"a"}
	}
	return memfs.New(), newHistory(clients...)
}

// disk is what the store of a scenario is given.
func (sc *scenario) disk(inner vfs.FS) vfs.FS {
	if sc.overtake {
		return overtaking(inner)
	}
	return inner
}

// closed makes a base: play, then an orderly close.
func closed(play func(p *player), clients ...string) func(*testing.T, Options) (*memfs.FS, *history) {
	return func(t *testing.T, o Options) (*memfs.FS, *history) {
		disk := memfs.New()
		p := newPlayer(disk, o, newHistory(clients...))
		p.open()
		play(p)
		p.close()
		if p.dead != nil || p.report(t, "base") {
			t.Fatal("base: ", p.dead)
		}
		return disk.CrashCopy(0, memfs.DropAll), p.h
	}
}

// cut makes a base: play, then a crash between two calls.
func cut(play func(p *player), clients ...string) func(*testing.T, Options) (*memfs.FS, *history) {
	return func(t *testing.T, o Options) (*memfs.FS, *history) {
		disk := memfs.New()
		p := newPlayer(disk, o, newHistory(clients...))
		p.open()
		play(p)
		p.background(0)
		disk.Crash()
		p.close()
		if p.report(t, "base") {
			t.FailNow()
		}
		return disk.CrashCopy(0, memfs.DropAll), p.h
	}
}

// torn makes a base: three clients write at once with three groups in flight,
// and the crash tears a group while a later one is intact.
func torn(t *testing.T, o Options) (*memfs.FS, *history) {
	o.LogInflight = 3
	for n := int64(1); n < 400; n++ {
		disk := memfs.New()
		p := newPlayer(overtaking(disk), o, newHistory("a", "b", "c"))
		p.open()
		p.write(0, "a1", "a2:100")
		p.background(0)
		disk.CrashAt(disk.Calls()+n, memfs.Within)
		p.halted = func() bool { _, off := disk.Crashed(); return off }
		p.together(func(i int) { p.write(i, fmt.Sprintf("%c3", 'a'+i)); p.write(i, fmt.Sprintf("%c4:200", 'a'+i)) })
		p.close()
		image := disk.CrashCopy(n, memfs.Torn)
		check := newPlayer(image.CrashCopy(0, memfs.DropAll), o, p.h.clone())
		check.open()
		if check.dead != nil {
			t.Fatalf("crash at call %d of the base: %v", n, check.dead)
		}
		discarded := check.db.Stats().Recovery.Discarded
		check.close()
		if discarded > 0 {
			return image, p.h
		}
	}
	t.Fatal("no crash tore a group with a later one intact")
	return nil, nil
}

// together runs fn for every client at once.
func (p *player) together(fn func(i int)) {
	var wg sync.WaitGroup
	for i := range p.h.clients {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}

func few(p *player) { p.write(0, "k1", "k2:100", "k3:300") }

// fill writes batches that take three blocks each; a segment has room for two.
func fill(p *player, n int) {
	for i := range n {
		p.write(0, fmt.Sprintf("f%d:11000", i%3))
	}
}

// logScenarios are about the log and the manifest; flushScenarios about tables.
var logScenarios = []*scenario{
	{
		name: "creation",
		play: func(p *player) { p.open(); p.background(0); p.write(0, "k1"); p.close() },
		crossed: []crossing{
			{vfs.OpMkdirAll, "log", 1, 0}, {vfs.OpLock, "LOCK", 1, 0}, {vfs.OpRename, "FORMAT.tmp", 1, 0}, {vfs.OpRename, "CURRENT.tmp", 1, 0},
			{vfs.OpSyncDir, "data", 3, 0}, {vfs.OpSyncDir, "log", 1, 0}, {vfs.OpCreate, "*.seg", 2, 0}, {vfs.OpAllocate, "*.seg", 1, 0},
		},
	},
	{
		name:    "single write",
		base:    closed(few, "a"),
		play:    func(p *player) { p.open(); p.write(0, "k1"); p.write(0, "k4:80") },
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 2, 0}},
	},
	{
		name: "batch over many kvstores",
		base: closed(few, "a"),
		options: func(o *Options) {
			o.VBuckets, o.KVStores = 16, 8
		},
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k2", "-k3", "k4:200", "k5", "k6", "k7", "k8", "k9:100", "k1")
			p.write(0, "-k4", "k5", "k6:2000", "k10", "k11", "k12")
			p.verify()
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 2, 0}},
	},
	{
		name: "large documents",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1:15000", "k5:9000")
			p.write(0, "k2:3000")
			p.verify()
			p.write(0, "k1:40000")
			p.close()
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 4, 0}},
	},
	{
		name:    "several writers, several groups in flight",
		clients: []string{"a", "b", "c"},
		base:    closed(few, "a", "b", "c"),
		options: func(o *Options) { o.LogInflight = 3 },
		play: func(p *player) {
			p.open()
			p.together(func(i int) {
				for j := range 4 {
					p.write(i, fmt.Sprintf("%c%d", 'p'+i, j%3), fmt.Sprintf("%c9:%d", 'p'+i, 70*j))
				}
			})
			p.verify()
			p.close()
		},
		overtake: true,
		discards: true,
		crossed:  []crossing{{vfs.OpWriteDurable, "*.seg", 4, 0}},
	},
	{
		name: "clear",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.clear()
			p.verify()
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 2, 0}, {vfs.OpSync, "MANIFEST-*", 3, 0}},
	},
	{
		name: "clear, then write",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.clear()
			p.write(0, "k1", "k4:100")
			p.reopen()
			p.verify()
			p.write(0, "k2")
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 4, 0}},
	},
	{
		name: "delayed clear",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.clearLater(time.Hour)
			p.write(0, "k1", "k4:100")
			p.reopen()
			p.verify()
			p.passes(2 * time.Hour)
			p.reopen()
			p.verify()
			p.write(0, "k2")
			p.close()
		},
		crossed: []crossing{{vfs.OpSync, "MANIFEST-*", 7, 0}},
	},
	{
		name: "segment roll",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			fill(p, 5)
			p.write(0, "k1")
		},
		crossed: []crossing{{vfs.OpCreate, "*.seg", 3, 0}, {vfs.OpWriteDurable, "*.seg", 7, 0}, {vfs.OpSyncDir, "log", 3, 0}},
	},
	{
		name: "seal with footer",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1") // so that the first segment ends early and its file is cut
			fill(p, 3)
			p.background(0)
			p.write(0, "k1")
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpTruncate, "*.seg", 3, 0}, {vfs.OpWriteAt, "*.seg", 5, 0}},
	},
	{
		name: "pool",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1") // so that the first segment ends early and its file is cut
			fill(p, 5)
			p.background(0)
			p.clear()
			p.background(1)
			fill(p, 5)
			p.background(0)
			p.verify()
		},
		crossed: []crossing{{vfs.OpRename, "*.seg", 1, 0}},
	},
	{
		name: "switch of the manifest",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1")
			p.reopen()
			p.write(0, "k2")
		},
		crossed: []crossing{{vfs.OpRename, "CURRENT.tmp", 2, 0}, {vfs.OpCreate, "MANIFEST-*", 2, 0}, {vfs.OpRemove, "MANIFEST-*", 2, 0}},
	},
	{
		name: "recovery after a kill",
		base: cut(func(p *player) { few(p); fill(p, 3); p.write(0, "k1") }, "a"),
		play: func(p *player) { p.open(); p.verify(); p.write(0, "k2:100") },
		crossed: []crossing{
			{vfs.OpSync, "*.seg", 2, 0}, {vfs.OpTruncate, "*.seg", 1, 0}, {vfs.OpRename, "CURRENT.tmp", 1, 0},
		},
	},
	{
		name:    "recovery after a torn tail",
		base:    torn,
		play:    func(p *player) { p.open(); p.settleNow(); p.write(0, "a1"); p.verify(); p.close() },
		crossed: []crossing{{vfs.OpTruncate, "*.seg", 1, 0}, {vfs.OpRename, "CURRENT.tmp", 1, 0}},
	},
	{
		name: "recovery twice",
		base: torn,
		play: func(p *player) {
			p.open()
			p.settleNow()
			p.reopen()
			p.write(0, "a1:100")
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpRename, "CURRENT.tmp", 3, 0}},
		sparse:  true,
	},
	{
		name: "close and reopen",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.reopen()
			p.write(0, "k1:70")
			p.reopen()
			p.verify()
			p.close()
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 4, 0}, {vfs.OpClose, "*.seg", 8, 0}},
		sparse:  true,
	},
	{
		name: "promise of an idle log",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.write(0, "k1")
			p.idle()
			p.write(0, "k2")
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 3, 0}},
		sparse:  true,
	},
	{
		name: "update and delete",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			p.update(0, "k1", 40)
			p.update(0, "k9", 40)
			p.write(0, "-k2", "k3")
			p.update(0, "k1", 10)
			p.update(0, "k1", 10)
			p.verify()
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 5, 0}},
	},
	{
		name: "readers see only what is durable",
		base: closed(few, "a"),
		play: func(p *player) {
			p.open()
			for i := range 3 {
				p.send(0, WriteOptions{NoWait: true}, fmt.Sprintf("k1:%d", 10+i), fmt.Sprintf("k%d", 4+i))
				p.look(0, "k1")
			}
			p.sync(0)
			p.look(0, "k1")
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 1, 0}},
		sparse:  true,
	},
	{
		name:    "page cache",
		base:    closed(few, "a"),
		options: func(o *Options) { o.BufferedIO = true },
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k4:100")
			p.write(0, "k2:3000")
			p.reopen()
			p.write(0, "k1:200")
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 4, 0}},
	},
	{
		name:    "store that is not durable",
		base:    closed(few, "a"),
		options: func(o *Options) { o.NonDurable = true },
		play: func(p *player) {
			p.open()
			p.write(0, "k1", "k2")
			p.sync(0)
			p.write(0, "k1", "k4:300")
			p.write(0, "-k2")
			p.sync(0)
			p.write(0, "k5")
			p.close()
		},
		crossed: []crossing{{vfs.OpWriteDurable, "*.seg", 3, 0}},
	},
}

// settleNow takes what an opened store shows as settled, for bases in which
// some answers are open.
func (p *player) settleNow() {
	if !p.over() {
		p.settle()
	}
}
