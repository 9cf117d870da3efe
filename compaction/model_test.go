package compaction

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/iter"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/memtable"
	"fluxkv/sstable"

	"pgregory.net/rapid"
)

// drawOps draws n versions with the seqnos from first on.
func drawOps(t *rapid.T, what string, first, n int) []memtable.Op {
	var ops []memtable.Op
	for i := range n {
		seqno := first + i
		key := fmt.Sprintf("k%d", rapid.IntRange(0, 7).Draw(t, what+" key"))
		var op memtable.Op
		switch rapid.IntRange(0, 3).Draw(t, what+" kind") {
		case 0:
			op = del(key, seqno)
		case 1:
			op = doc(key, seqno, entry.SegmentID(rapid.IntRange(1, 3).Draw(t, "segment")))
			if rapid.Bool().Draw(t, "address only") {
				op.Value, op.HasValue = nil, false
			}
		default:
			op = set(key, seqno, fmt.Sprint("v", seqno))
		}
		if op.Kind == entry.KindSet {
			op.Meta.Expiry = uint32(rapid.SampledFrom([]int{0, 0, 50, 100, 150}).Draw(t, "expiry"))
			op.Meta.Flags = uint32(seqno % 3)
		}
		op.VBucket = uint16(rapid.IntRange(1, 2).Draw(t, "vbucket"))
		ops = append(ops, op)
	}
	return ops
}

// TestModel_Flush: what readers at or above the horizon see through the tables
// is what they see through the memtable, alone or over older versions; and
// what is missing from the tables is what the result calls dead.
func TestModel_Flush(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		below := 0
		if !rapid.Bool().Draw(t, "bottom") {
			below = rapid.IntRange(1, 20).Draw(t, "below")
		}
		n := rapid.IntRange(1, 60).Draw(t, "versions")
		last := below + n
		p := Policy{
			Horizon: entry.Seqno(rapid.IntRange(0, last+2).Draw(t, "horizon")),
			Clear:   entry.Seqno(rapid.SampledFrom([]int{0, rapid.IntRange(0, last).Draw(t, "clear at")}).Draw(t, "clear")),
			Now:     uint32(rapid.SampledFrom([]int{0, 100}).Draw(t, "now")),
			Bottom:  below == 0,
		}
		old := fill(t, drawOps(t, "old", 1, below))
		defer old.Free()
		ops := drawOps(t, "new", below+1, n)
		m := fill(t, ops)
		defer m.Free()

		fs := memfs.New()
		mkdir(t, fs)
		o := options(fs)
		o.Policy = p
		o.Versions = uint64(m.Len())
		o.Direct = rapid.Bool().Draw(t, "direct")
		o.BlockBytes = rapid.SampledFrom([]int{512, 4096}).Draw(t, "block bytes")
		o.Compression = sstable.Compression(rapid.IntRange(0, 1).Draw(t, "compression"))
		o.TableBytes = int64(rapid.SampledFrom([]int{1, 64 << 20}).Draw(t, "table bytes"))
		r, err := Flush(t.Context(), m.NewIter(nil, nil), o)
		if err != nil {
			t.Fatal(err)
		}
		rs := openTables(t, fs, r.Tables)
		defer closeAll(t, rs)
		for at := p.Horizon; at <= entry.Seqno(last+2); at++ {
			// A reader sees the clears up to its seqno, and its clock is not
			// behind that of the flush.
			see := iter.VisibleOptions{At: at, Expired: func(expiry uint32) bool { return expiry <= p.Now }}
			if p.Clear <= at {
				see.Clear = p.Clear
			}
			view := func(top ...entry.Iterator) []string {
				return walk(t, iter.NewVisible(iter.NewMerge(append(top, old.NewIter(nil, nil))...), see))
			}
			if got, want := view(iters(rs)...), view(m.NewIter(nil, nil)); !slices.Equal(got, want) {
				t.Fatalf("%+v, read at %d: %q\nwant %q", p, at, got, want)
			}
		}
		checkDead(t, r, rs, ops)
	})
}

func checkDead(t *rapid.T, r Result, rs []*sstable.Reader, ops []memtable.Op) {
	live := map[entry.Seqno]bool{} // separated documents in the tables
	all := iter.NewMerge(iters(rs)...)
	for ok := all.First(); ok; ok = all.Next() {
		if v := all.Version(); v.Kind == entry.KindSet && !v.Value.Address.IsZero() {
			live[v.Seqno] = true
		}
	}
	if err := all.Close(); err != nil {
		t.Fatal(err)
	}
	var want []Dead
	for _, op := range ops {
		if op.Kind == entry.KindSet && !op.Address.IsZero() && !live[op.Seqno] {
			want = append(want, Dead{op.Address.Segment, op.Seqno, op.Address.Length})
		}
	}
	slices.SortFunc(want, func(a, b Dead) int {
		return cmp.Or(cmp.Compare(a.Segment, b.Segment), cmp.Compare(a.Seqno, b.Seqno))
	})
	if !slices.Equal(r.Dead, want) {
		t.Fatalf("dead %v, want %v", r.Dead, want)
	}
}
