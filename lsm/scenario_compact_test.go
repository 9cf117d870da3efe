package lsm

import (
	"fmt"
	"time"

	"fluxkv/internal/vfs"
)

// compact has the store flush, merge and collect until nothing is worth it.
func (p *player) compact(i int) {
	if p.over() {
		return
	}
	err := p.db.Compact()
	p.calledOff()
	switch {
	case err == nil:
	case !p.faulty:
		p.die(fmt.Errorf("compact: %w", err))
	default:
		p.judge("compact", err)
	}
}

// generations writes keys over and over and flushes each time, so that tables
// and segments hold mostly what is dead.
func generations(p *player, n int) {
	for g := range n {
		p.write(0, "k1:70", fmt.Sprintf("k%d:9000", 2+g%2), fmt.Sprintf("k%d", 4+g%3))
		p.write(0, fmt.Sprintf("-k%d", 4+(g+1)%3), fmt.Sprintf("g%d:100", g), "k7+20")
		p.flush(0)
	}
}

// compactScenarios are about merges of tables and the collection of segments.
var compactScenarios = []*scenario{
	{
		name:   "merge of tables and collection of segments",
		base:   closed(func(p *player) { mixed(p); p.flush(0) }, "a"),
		stride: 2,
		play: func(p *player) {
			p.open()
			generations(p, 4)
			p.compact(0)
			p.sees("merge and collection", func(s Stats) bool { return s.Compactions > 0 && s.Collections > 0 })
			p.verify()
			p.store()
			p.write(0, "k1", "-k2", "g1:300")
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpRemove, "*.sst", 3, 0}, {vfs.OpCreate, "*.gc.seg", 1, 0}},
	},
	{
		name:   "merge and collection under a snapshot",
		base:   closed(few, "a"),
		stride: 3,
		play: func(p *player) {
			p.open()
			generations(p, 2)
			p.snapshot()
			generations(p, 2)
			p.compact(0)
			p.again()
			p.verify()
			p.closeSnapshots()
			p.passes(time.Minute)
			p.compact(0)
			p.verify()
			p.store()
			p.reopen()
			p.verify()
		},
		crossed: []crossing{{vfs.OpRemove, "*.sst", 2, 0}},
		sparse:  true,
	},
	{
		name:   "writes, a flush and a clear during a merge",
		base:   closed(few, "a"),
		stride: 3,
		play: func(p *player) {
			p.open()
			generations(p, 3)
			p.write(0, "k1:71")
			p.flush(0)
			p.during(vfs.OpSync, "*.sst", func() error {
				p.write(0, "k2:72", "-k5")
				p.clear()
				p.write(0, "k4", "k6:4000")
				return nil
			})
			p.compact(0)
			p.verify()
			p.store()
			p.flush(0)
			p.verify()
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpRemove, "*.sst", 2, 0}},
		sparse:  true,
	},
	{
		// What was compressed stays so when it is moved and when the option is
		// gone, and plain documents come beside it.
		name:    "collection of compressed documents",
		options: func(o *Options) { o.CompressDocuments = true },
		base:    closed(func(p *player) { hot(p, 0, 3); hot(p, 1, 3) }, "a"),
		stride:  9,
		play: func(p *player) {
			p.open()
			hot(p, 2, 6)
			p.write(0, "h0:300", "c00:900", "-c10", "k1:70")
			p.sees("compressed document", func(s Stats) bool {
				c := s.Compression
				return c.Kept > 0 && c.Kept == c.Tried && c.Stored < c.Raw/2
			})
			p.collect()
			p.sees("collection", func(s Stats) bool { return s.Collections > 0 && s.GCKept > 0 })
			p.verify()
			p.o.CompressDocuments = !p.o.CompressDocuments
			p.reopen()
			p.verify()
			p.write(0, "h1:3000", "c11:900", "-c01", "c20:5000")
			p.sees("plain document", func(s Stats) bool { return s.Compression.Tried == 0 })
			p.update(0, "c21", 9000)
			p.flush(0)
			p.reopen()
			p.verify()
			p.store()
		},
		crossed: []crossing{{vfs.OpCreate, "*.gc.seg", 1, 0}, {vfs.OpRemove, "*.sst", 1, 0}},
	},
}
