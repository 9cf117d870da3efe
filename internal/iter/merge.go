package iter

import "fluxkv/internal/entry"

// Merge walks the versions of several iterators in the order of
// entry.Compare. A version that is in two of them comes twice, from the source
// that was named first, first. Moving allocates nothing.
//
// It owns its sources and closes them. The first error of a source ends it for
// good: versions of the others could hide that one is missing.
type Merge struct {
	sources []entry.Iterator
	heap    []head // the smallest version first
	err     error
}

// head is a source and the version it stands at.
type head struct {
	v     *entry.Version
	it    entry.Iterator
	order int // place among the sources
}

var _ entry.Iterator = (*Merge)(nil)

// NewMerge merges sources, which are named newest first. The slice is kept. It
// stands nowhere until First or SeekGE.
func NewMerge(sources ...entry.Iterator) *Merge {
	return &Merge{sources: sources, heap: make([]head, 0, len(sources))}
}

// First moves to the first version of all.
func (m *Merge) First() bool {
	m.heap = m.heap[:0]
	for i, it := range m.sources {
		if !m.take(i, it, it.First()) {
			return false
		}
	}
	return m.build()
}

// SeekGE moves to the first version at or after (key, seqno).
func (m *Merge) SeekGE(key []byte, seqno entry.Seqno) bool {
	m.heap = m.heap[:0]
	for i, it := range m.sources {
		if !m.take(i, it, it.SeekGE(key, seqno)) {
			return false
		}
	}
	return m.build()
}

// take notes where source i stands and reports false when it failed.
func (m *Merge) take(i int, it entry.Iterator, ok bool) bool {
	if ok {
		m.heap = append(m.heap, head{v: it.Version(), it: it, order: i})
		return true
	}
	return m.check(it)
}

// check stops everything if it failed.
func (m *Merge) check(it entry.Iterator) bool {
	if m.err == nil {
		m.err = it.Error()
	}
	if m.err != nil {
		m.heap = m.heap[:0]
		return false
	}
	return true
}

func (m *Merge) build() bool {
	if m.err != nil {
		m.heap = m.heap[:0]
		return false
	}
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	return len(m.heap) > 0
}

// Next moves to the following version.
func (m *Merge) Next() bool {
	if len(m.heap) == 0 {
		return false
	}
	top := &m.heap[0]
	if top.it.Next() {
		top.v = top.it.Version()
	} else {
		if !m.check(top.it) {
			return false
		}
		last := len(m.heap) - 1
		m.heap[0] = m.heap[last]
		m.heap[last] = head{}
		m.heap = m.heap[:last]
	}
	m.down(0)
	return len(m.heap) > 0
}

// down restores the heap below i. A source that goes on being the smallest,
// which long runs are, costs two compares.
func (m *Merge) down(i int) {
	h := m.heap
	for {
		least := 2*i + 1
		if least >= len(h) {
			return
		}
		if right := least + 1; right < len(h) && h[right].less(&h[least]) {
			least = right
		}
		if !h[least].less(&h[i]) {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func (a *head) less(b *head) bool {
	if c := entry.Compare(a.v.Key, a.v.Seqno, b.v.Key, b.v.Seqno); c != 0 {
		return c < 0
	}
	return a.order < b.order
}

// Version returns the current version, owned by its source and valid until the
// next move.
func (m *Merge) Version() *entry.Version { return m.heap[0].v }

// Error returns the first error of a source.
func (m *Merge) Error() error { return m.err }

// Close closes every source and returns the first error of that.
func (m *Merge) Close() error {
	var err error
	for _, it := range m.sources {
		if e := it.Close(); err == nil {
			err = e
		}
	}
	m.sources, m.heap = nil, nil
	return err
}
