package memtable

import (
	"fmt"
	"hash/maphash"
	"slices"
	"testing"

	"fluxkv/internal/entry"
)

var hashSeed = maphash.MakeSeed()

func hashOf(key []byte) uint64 { return maphash.Bytes(hashSeed, key) }

func newTable(tb testing.TB, capacity int) *Table {
	tb.Helper()
	t, err := New(Options{Capacity: capacity})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(t.Free)
	return t
}

// insert reserves and inserts ops as one batch; heights that are 0 are drawn.
func insert(tb testing.TB, t *Table, s *Scratch, rnd *uint64, ops []Op) {
	tb.Helper()
	n := 0
	for i := range ops {
		if ops[i].Height == 0 {
			ops[i].Height = RandomHeight(rnd)
		}
		n += ops[i].NodeBytes()
	}
	t.Prepare(len(ops))
	place, ok := t.Reserve(n)
	if !ok {
		tb.Fatalf("no room for %d bytes at %d", n, t.Bytes())
	}
	t.InsertBatch(place, ops, s)
}

// version is an Op as the model keeps it.
func version(op *Op) entry.Version {
	v := entry.Version{
		Key:   entry.AppendKey(nil, op.VBucket, op.Key),
		Seqno: op.Seqno, Kind: op.Kind, Meta: op.Meta,
	}
	v.Value.Address = op.Address
	if v.Value.HasBytes = op.HasValue; op.HasValue {
		v.Value.Bytes = slices.Clone(op.Value)
	}
	return v
}

func show(v *entry.Version) string {
	vb, key := entry.SplitKey(v.Key)
	return fmt.Sprintf("%d/%x#%d %s %+v %t %x %s", vb, key, v.Seqno, v.Kind, v.Meta,
		v.Value.HasBytes, v.Value.Bytes, v.Value.Address)
}

func compareVersions(a, b entry.Version) int { return entry.Compare(a.Key, a.Seqno, b.Key, b.Seqno) }

// model is every version, in the order of entry.Compare.
type model []entry.Version

func (m model) seek(key []byte, seqno entry.Seqno) int {
	i, _ := slices.BinarySearchFunc(m, entry.Version{Key: key, Seqno: seqno}, compareVersions)
	return i
}

func (m model) get(vbucket uint16, key []byte, at entry.Seqno) *entry.Version {
	k := entry.AppendKey(nil, vbucket, key)
	if i := m.seek(k, at); i < len(m) && string(m[i].Key) == string(k) {
		return &m[i]
	}
	return nil
}

// checkView compares what Get found with the model.
func checkView(tb interface {
	Helper()
	Fatalf(string, ...any)
}, m model, vbucket uint16, key []byte, at entry.Seqno, found bool, v *View) {
	tb.Helper()
	want := m.get(vbucket, key, at)
	if found != (want != nil) {
		tb.Fatalf("get %d/%x at %d: found %t, want %t", vbucket, key, at, found, want != nil)
	}
	if !found {
		return
	}
	got := entry.Version{Key: want.Key, Seqno: v.Seqno, Kind: v.Kind, Meta: v.Meta, Value: v.Value}
	if show(&got) != show(want) {
		tb.Fatalf("get at %d: %s\nwant %s", at, show(&got), show(want))
	}
}

// checkAll compares a whole walk with the model.
func checkAll(tb interface {
	Helper()
	Fatalf(string, ...any)
}, t *Table, m model) {
	tb.Helper()
	it := t.NewIter(nil, nil)
	i := 0
	for ok := it.First(); ok; ok = it.Next() {
		if i == len(m) {
			tb.Fatalf("walk goes on with %s", show(it.Version()))
		}
		if got, want := show(it.Version()), show(&m[i]); got != want {
			tb.Fatalf("version %d of the walk: %s\nwant %s", i, got, want)
		}
		i++
	}
	if i != len(m) || t.Len() != int64(len(m)) {
		tb.Fatalf("walked %d of %d versions, Len %d", i, len(m), t.Len())
	}
	checkLevels(tb, t)
}

// checkLevels checks that each level is a sorted part of the one below.
func checkLevels(tb interface {
	Helper()
	Fatalf(string, ...any)
}, t *Table) {
	tb.Helper()
	for level := 1; level < HeightMax; level++ {
		below := t.next(t.head, level-1)
		for n := t.next(t.head, level); n != 0; n = t.next(n, level) {
			if int(t.height(n)) <= level || level >= int(t.levels.Load()) {
				tb.Fatalf("node of height %d on level %d of %d", t.height(n), level, t.levels.Load())
			}
			for below != n {
				if below == 0 {
					tb.Fatalf("node of level %d is not on level %d", level, level-1)
				}
				if int(t.height(below)) > level {
					tb.Fatalf("node of height %d is missing on level %d", t.height(below), level)
				}
				below = t.next(below, level-1)
			}
			below = t.next(below, level-1)
		}
	}
}
