package memtable

import "fluxkv/internal/entry"

// seek returns the first node at or behind g, 0 if there is none. Safe for
// concurrent use.
func (t *Table) seek(g *target) uint32 {
	cur, level, greater := t.head, int(t.levels.Load())-1, uint32(0)
	for {
		n := t.next(cur, level)
		// The node that ended the level above need not be compared again.
		if n != 0 && n != greater {
			if g.after(t.nodes, n, t.word(n)) {
				cur = n
				continue
			}
			greater = n
		}
		if level == 0 {
			return n
		}
		level--
	}
}

// search is one of a group of searches that take their steps in turn.
type search struct {
	target
	t        *Table
	cur      uint32 // before the target
	next     uint32 // cur's successor on level, to be compared
	nextNext uint32 // next's successor
	level    int32
	height   int32
	node     uint32 // to be linked
	nextWord uint64 // first word of next
	hash     uint64
	prev     [HeightMax]uint32
}

// searchTogether finds the predecessors of every search on the levels below
// its height. In each round every search compares the node that it loaded a
// round before and loads the next: the loads of a round do not depend on each
// other, so their cache misses overlap. It takes no lock: nodes may be inserted
// meanwhile, and the predecessors stay predecessors, though perhaps not the
// nearest.
func searchTogether(searches []search) {
	var order [groupMax]uint8
	active := order[:len(searches)]
	for i := range searches {
		s := &searches[i]
		// Above the highest level, as if that one had ended.
		s.cur, s.next = s.t.head, 0
		s.level = max(int32(s.t.levels.Load()), s.height)
		active[i] = uint8(i)
	}
	for len(active) > 0 {
		k := 0
		for _, i := range active {
			s := &searches[i]
			a, cur, next, level := s.t.nodes, s.cur, s.next, s.level
			greater := next // if it is behind the target
			if next != 0 && s.after(a, next, s.nextWord) {
				cur, next, greater = next, s.nextNext, 0
			}
			// Down to a node to compare.
			for next == greater || next == 0 {
				if level < s.height {
					s.prev[level] = cur
				}
				if level--; level < 0 {
					break
				}
				next = a.next(cur, int(level))
			}
			if level < 0 {
				continue
			}
			s.cur, s.next, s.level = cur, next, level
			s.nextWord = a.word(next)
			// The link may lie on another cache line than the key. It may be
			// stale when it is used, which costs a step of nearest.
			s.nextNext = a.next(next, int(level))
			active[k] = i
			k++
		}
		active = active[:k]
	}
}

// walkMax bounds the steps from a predecessor that is no longer the nearest,
// after which searching again is cheaper. More than a group inserted there
// meanwhile, or the group itself arrived in an unlucky order.
const walkMax = groupMax

// nearest moves from p, a predecessor of s on a level, to the last one, and
// returns it and its successor. before, if not nil, is the search linked just
// before: ascending keys are linked right behind it. The caller holds mu.
func (s *search) nearest(p uint32, level int, before *search) (prev, next uint32) {
	a := s.t.nodes
	next = a.next(p, level)
	if next == 0 || !s.after(a, next, a.word(next)) {
		return p, next
	}
	p = next
	if before != nil && before.height > int32(level) && before.after(a, p, a.word(p)) &&
		s.after(a, before.node, before.word) {
		p = before.node
	}
	for range walkMax {
		next = a.next(p, level)
		if next == 0 || !s.after(a, next, a.word(next)) {
			return p, next
		}
		p = next
	}
	return s.fromHead(level)
}

func (s *search) fromHead(down int) (prev, next uint32) {
	a := s.t.nodes
	cur, greater := s.t.head, uint32(0)
	for level := max(int(s.t.levels.Load())-1, down); ; {
		n := a.next(cur, level)
		if n != 0 && n != greater {
			if s.after(a, n, a.word(n)) {
				cur = n
				continue
			}
			greater = n
		}
		if level == down {
			return cur, n
		}
		level--
	}
}

// newest walks from node n, a version of g's key, to its newest version at or
// below g.seqno, 0 if there is none.
func (t *Table) newest(n uint32, g *target) uint32 {
	for range walkMax {
		if t.seqno(n) <= g.seqno {
			return n
		}
		if n = t.next(n, 0); n == 0 || !g.sameKey(t.nodes, n) {
			return 0
		}
	}
	// A key written many times since: the list skips its versions.
	return t.find(g)
}

// find looks g's version up in the list alone.
func (t *Table) find(g *target) uint32 {
	if n := t.seek(g); n != 0 && g.sameKey(t.nodes, n) {
		return n
	}
	return 0
}

// View is one version as Get returns it. Value.Bytes aliases the table and is
// valid until its Free or Reset; it must not be written to.
type View struct {
	Seqno entry.Seqno
	Kind  entry.Kind
	Meta  entry.Meta
	Value entry.Value
}

func (t *Table) view(n uint32, v *View) {
	trailer := t.trailer(n)
	v.Seqno, v.Kind = entry.Seqno(trailer>>8), entry.Kind(trailer)
	t.details(n, &v.Meta, &v.Value)
}
