package lsm

import (
	"errors"
	"slices"

	"pgregory.net/rapid"

	"fluxkv/internal/model"
)

const readersMax = 4

// Snapshot takes one.
func (m *machine) Snapshot(t *rapid.T) {
	if len(m.snaps) >= readersMax {
		m.CloseSnapshot(t)
	}
	from := m.plainSeqno()
	s, err := m.db.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if to := m.plainSeqno(); s.Seqno() < from || s.Seqno() > to {
		t.Fatalf("snapshot at %d, taken between %d and %d", s.Seqno(), from, to)
	}
	m.snaps = append(m.snaps, s)
}

// SnapshotGet reads some keys as of a snapshot.
func (m *machine) SnapshotGet(t *rapid.T) {
	if len(m.snaps) == 0 {
		t.Skip()
	}
	s := rapid.SampledFrom(m.snaps).Draw(t, "snapshot")
	for range 5 {
		key := drawKey(t)
		got, err := s.Get(nil, []byte(key))
		m.check(t, key, got, err, s.Seqno(), s.Seqno())
	}
}

func (m *machine) CloseSnapshot(t *rapid.T) {
	if len(m.snaps) == 0 {
		t.Skip()
	}
	i := rapid.IntRange(0, len(m.snaps)-1).Draw(t, "which")
	s := m.snaps[i]
	m.snaps = slices.Delete(m.snaps, i, i+1)
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(nil, []byte("k")); !errors.Is(err, ErrClosed) {
		t.Fatalf("get of a closed snapshot: %v", err)
	}
}

// walk is an iterator and where it must be.
type walk struct {
	it           *Iterator
	lower, upper *string
	o            IterOptions
	at           *string // nil: nowhere
}

// walkOver makes an iterator over the store, or over a snapshot of it.
func (m *machine) walkOver(t *rapid.T, s *Snapshot, lower, upper *string, o IterOptions) *walk {
	w := &walk{lower: lower, upper: upper, o: o}
	bytesOf := func(s *string) []byte {
		if s == nil {
			return nil
		}
		return []byte(*s)
	}
	var err error
	if s == nil {
		w.it, err = m.db.NewIter(bytesOf(lower), bytesOf(upper), o)
	} else {
		w.it, err = s.NewIter(bytesOf(lower), bytesOf(upper), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	if rapid.Bool().Draw(t, "always the newest view") {
		w.it.viewAge = 0
	}
	return w
}

// Iterate makes an iterator.
func (m *machine) Iterate(t *rapid.T) {
	if len(m.walks) >= readersMax {
		m.CloseIterator(t)
	}
	bound := func(label string) *string {
		if rapid.IntRange(0, 2).Draw(t, label) > 0 {
			return nil
		}
		key := drawKey(t)
		return &key
	}
	var s *Snapshot
	if len(m.snaps) > 0 && rapid.Bool().Draw(t, "of a snapshot") {
		s = rapid.SampledFrom(m.snaps).Draw(t, "snapshot")
	}
	var o IterOptions
	if rapid.IntRange(0, 2).Draw(t, "one kvstore") == 0 {
		o = IterOptions{OneKVStore: true, KVStore: rapid.IntRange(0, m.db.kvstores-1).Draw(t, "kvstore")}
	}
	w := m.walkOver(t, s, bound("lower"), bound("upper"), o)
	if s != nil && w.it.at != s.Seqno() {
		t.Fatalf("iterator at %d, snapshot at %d", w.it.at, s.Seqno())
	}
	m.walks = append(m.walks, w)
}

// Move moves an iterator, a little or to its end.
func (m *machine) Move(t *rapid.T) {
	if len(m.walks) == 0 {
		t.Skip()
	}
	w := rapid.SampledFrom(m.walks).Draw(t, "iterator")
	ok := false
	switch rapid.IntRange(0, 3).Draw(t, "move") {
	case 0:
		w.at = nil
		ok = w.step(t, m, w.it.First())
	case 1:
		key := drawKey(t)
		w.seek(t, m, key)
		ok = w.at != nil
	default:
		ok = w.at != nil
	}
	for n := rapid.SampledFrom([]int{0, 1, 3, 1000}).Draw(t, "steps"); ok && n > 0; n-- {
		ok = w.step(t, m, w.it.Next())
	}
}

// MoveMore is one more Move.
func (m *machine) MoveMore(t *rapid.T) { m.Move(t) }

func (m *machine) CloseIterator(t *rapid.T) {
	if len(m.walks) == 0 {
		t.Skip()
	}
	i := rapid.IntRange(0, len(m.walks)-1).Draw(t, "which")
	w := m.walks[i]
	m.walks = slices.Delete(m.walks, i, i+1)
	if err := errors.Join(w.it.Close(), w.it.Close()); err != nil {
		t.Fatal(err)
	}
	if w.it.First() {
		t.Fatal("a closed iterator moved")
	}
}

// place orders documents as the iterator does.
func (w *walk) place(m *machine, key string) (vbucket uint16, _ string) {
	if w.o.OneKVStore {
		vbucket = m.db.vbucket([]byte(key))
	}
	return vbucket, key
}

// find returns the model's first document from a place on, or behind it.
func (w *walk) find(m *machine, from *string, behind bool) (key string, v model.Version, ok bool) {
	lower := ""
	if w.lower != nil {
		lower = *w.lower
	}
	if from != nil && !w.o.OneKVStore {
		lower = max(lower, *from)
	}
	var foundVB uint16
	for k, version := range m.truth.Range(lower, w.it.at, m.clock()) {
		if w.upper != nil && k >= *w.upper {
			break
		}
		if w.o.OneKVStore && int(m.db.vbucket([]byte(k)))%m.db.kvstores != w.o.KVStore {
			continue
		}
		vb, _ := w.place(m, k)
		if from != nil {
			fromVB, _ := w.place(m, *from)
			if vb < fromVB || vb == fromVB && (k < *from || behind && k == *from) {
				continue
			}
		}
		if !ok || vb < foundVB {
			key, v, ok, foundVB = k, version, true, vb
		}
	}
	return key, v, ok
}

// step checks where the iterator came to by First, or by Next.
func (w *walk) step(t *rapid.T, m *machine, moved bool) bool {
	key, v, ok := w.find(m, w.at, true)
	return w.stands(t, m, moved, key, v, ok)
}

func (w *walk) seek(t *rapid.T, m *machine, to string) {
	moved := w.it.SeekGE([]byte(to))
	key, v, ok := w.find(m, &to, false)
	w.stands(t, m, moved, key, v, ok)
}

func (w *walk) stands(t *rapid.T, m *machine, moved bool, key string, v model.Version, ok bool) bool {
	if err := w.it.Error(); err != nil {
		t.Fatal(err)
	}
	switch {
	case moved != ok:
		got := ""
		if moved {
			got = string(w.it.Key())
		}
		t.Fatalf("moved %v to %q, want %v %q", moved, got, ok, key)
	case !ok:
		w.at = nil
		return false
	case string(w.it.Key()) != key:
		t.Fatalf("at %q, want %q", w.it.Key(), key)
	}
	w.at = &key
	if rapid.Bool().Draw(t, "item") {
		item, err := w.it.Item()
		if err != nil || !sameItem(key, v, item) {
			t.Fatalf("item %q: %v, %d bytes of #%d, want %d bytes of #%d", key, err, len(item.Value), item.Seqno, len(v.Value), v.Seqno)
		}
	}
	return true
}

// readersClosed wants every reader to know that its store is closed.
func (m *machine) readersClosed(t *rapid.T) {
	for _, w := range m.walks {
		if w.it.Next() || w.it.First() || !errors.Is(w.it.Error(), ErrClosed) {
			t.Fatalf("iterator of a closed store: %v", w.it.Error())
		}
	}
	for _, s := range m.snaps {
		if _, err := s.Get(nil, []byte("k")); !errors.Is(err, ErrClosed) {
			t.Fatalf("snapshot of a closed store: %v", err)
		}
	}
}
