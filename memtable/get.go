package memtable

import "fluxkv/internal/entry"

// Get finds the newest version of (vbucket, key) at or below seqno at and
// reports whether there is one; a tombstone is one. hash is the key's hash as
// in Op. v is written only if it reports true. Safe for concurrent use; it
// allocates nothing.
func (t *Table) Get(hash uint64, vbucket uint16, key []byte, at entry.Seqno, v *View) bool {
	g := makeTarget(vbucket, key, at)
	_, n := t.slots.Load().lookup(t.nodes, hash, &g)
	if n == 0 {
		return t.getUnindexed(&g, v)
	}
	if n = t.newest(n, &g); n == 0 {
		return false
	}
	t.view(n, v)
	return true
}

func (t *Table) getUnindexed(g *target, v *View) bool {
	if !t.lacking.Load() {
		return false
	}
	n := t.find(g)
	if n == 0 {
		return false
	}
	t.view(n, v)
	return true
}

// Get is one lookup of GetMany.
type Get struct {
	// Table is where GetAcross looks; nil means nowhere. GetMany ignores it.
	Table   *Table
	Hash    uint64
	VBucket uint16
	Key     []byte // user key; the caller's
	At      entry.Seqno
	Found   bool // set when View is; a lookup that has it set is skipped
	View    View
}

// GetMany does Get for every lookup whose Found is not set. Slots and nodes are
// touched for 32 lookups before any is finished, so that their cache misses
// overlap. Safe for concurrent use; it allocates nothing.
func (t *Table) GetMany(gets []Get) {
	for len(gets) > 0 {
		n := min(len(gets), groupMax)
		getGroup(t, gets[:n])
		gets = gets[n:]
	}
}

// GetAcross is GetMany for lookups in several tables, each in its own.
func GetAcross(gets []Get) {
	for len(gets) > 0 {
		n := min(len(gets), groupMax)
		getGroup(nil, gets[:n])
		gets = gets[n:]
	}
}

// getGroup looks up to groupMax gets up, in t or else in their own tables.
func getGroup(t *Table, gets []Get) {
	var found [groupMax]struct {
		x    *slots
		slot int
		node uint32
		word uint64
	}
	tableOf := func(g *Get) *Table {
		switch {
		case g.Found:
			return nil
		case t != nil:
			return t
		}
		return g.Table
	}
	for i := range gets {
		f, g := &found[i], &gets[i]
		if t := tableOf(g); t != nil {
			f.x = t.slots.Load()
			f.slot = f.x.home(g.Hash)
			f.word = f.x.load(g.Hash)
		}
	}
	for i := range gets {
		f, g := &found[i], &gets[i]
		if f.x == nil {
			continue
		}
		if f.slot, f.node = f.x.candidate(f.slot, g.Hash); f.node != 0 {
			f.word = tableOf(g).word(f.node)
		}
	}
	for i := range gets {
		f, g := &found[i], &gets[i]
		if f.x == nil {
			continue
		}
		t := tableOf(g)
		to := makeTarget(g.VBucket, g.Key, g.At)
		n := f.node
		if n != 0 && !to.sameKey(t.nodes, n) {
			// Another key with the same half of the hash.
			_, n = f.x.lookup(t.nodes, g.Hash, &to)
		}
		if n == 0 {
			g.Found = t.getUnindexed(&to, &g.View)
			continue
		}
		if n = t.newest(n, &to); n != 0 {
			g.Found = true
			t.view(n, &g.View)
		}
	}
}
