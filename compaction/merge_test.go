package compaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/iter"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/memtable"

	"pgregory.net/rapid"
)

func mergeOptions(o FlushOptions) MergeOptions {
	return MergeOptions{Output: o.Output, Policy: o.Policy, Versions: o.Versions}
}

// inputs writes one run a memtable and returns what they hold together.
func inputs(tb failer, o FlushOptions, ms ...*memtable.Table) (ts []Table, versions uint64, fileBytes int64) {
	tb.Helper()
	for _, m := range ms {
		r, err := Flush(context.Background(), m.NewIter(nil, nil), o)
		if err != nil {
			tb.Fatalf("%v", err)
		}
		ts = append(ts, r.Tables...)
		versions += r.Out
		fileBytes += r.Bytes
	}
	return ts, versions, fileBytes
}

func TestMerge(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	o := options(fs)
	newer := fill(t, []memtable.Op{doc("a", 9, 41), del("b", 8), doc("c", 7, 41)})
	defer newer.Free()
	older := fill(t, []memtable.Op{doc("a", 5, 40), set("b", 4, "x"), doc("d", 3, 40), doc("e", 2, 39), del("f", 1)})
	defer older.Free()
	ts, versions, fileBytes := inputs(t, o, newer, older)
	rs := openTables(t, fs, ts)
	defer closeAll(t, rs)

	m := mergeOptions(o)
	m.Policy = Policy{Horizon: 9, Bottom: true}
	m.Versions, m.Bytes = versions, fileBytes
	m.Boundaries = [][]byte{entry.AppendKey(nil, 1, []byte("A")), entry.AppendKey(nil, 1, []byte("c")), entry.AppendKey(nil, 1, []byte("cc")), entry.AppendKey(nil, 1, []byte("z"))}
	asked := map[entry.Seqno]entry.Address{}
	m.Resolve = func(a entry.Address, s entry.Seqno) (entry.Address, bool, error) {
		asked[s] = a
		if a.Segment == 40 {
			return entry.Address{Segment: 77, Offset: 8192, Length: a.Length}, true, nil
		}
		return entry.Address{Segment: 1}, false, nil
	}
	r, err := Merge(t.Context(), iter.NewMerge(iters(rs)...), m)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range r.Tables {
		got = append(got, contents(t, fs, []Table{x})...)
		got = append(got, "--")
	}
	const meta = " {CAS:0 Flags:0 Expiry:0 Datatype:0}"
	equal(t, "tables", got, []string{
		"1/a#9 SET 000041:36864+300" + meta, "--",
		"1/c#7 SET 000041:28672+300" + meta, "--",
		"1/d#3 SET 000077:8192+300" + meta, "1/e#2 SET 000039:8192+300" + meta, "--",
	})
	if want := []Dead{{40, 5, 300}}; !slices.Equal(r.Dead, want) {
		t.Errorf("dead %v, want %v", r.Dead, want)
	}
	if r.In != 8 || r.Out != 4 || r.Dropped != 4 || r.Readdressed != 1 || len(asked) != 4 {
		t.Errorf("counts of %+v, asked %v", r, asked)
	}
	j := Job{KVStore: 3, OutTier: 1, Inputs: [][]*manifest.Table{{{Number: ts[0].Number}}, {{Number: ts[1].Number}}}}
	e := j.Edit(&r)
	if !slices.Equal(e.DropTables, []uint64{1, 2}) || len(e.AddTables) != 3 {
		t.Errorf("edit %+v", e)
	}
	if x := e.AddTables[2]; x.Number != 5 || x.Run != 3 || x.Tier != 1 || x.KVStore != 3 || x.Entries != 2 || x.LowestSeqno != 2 || x.HighestSeqno != 3 ||
		x.FileBytes != r.Tables[2].FileBytes || len(x.Segments) != 2 || x.Segments[1] != (manifest.SegmentUse{Segment: 77, Documents: 1, Bytes: 300}) {
		t.Errorf("table %+v", x)
	}
	j.OutLevel = 2
	if x := j.Edit(&r).AddTables[0]; x.Run != 0 || x.Tier != 0 || x.Level != 2 {
		t.Errorf("table of a sorted level %+v", x)
	}
	if s := r.Tables[2].Properties.Segments; len(s) != 2 || s[0].Segment != 39 || s[1].Segment != 77 {
		t.Errorf("segments %v", s)
	}
}

func TestMergeResolveFails(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	o := options(fs)
	m := fill(t, []memtable.Op{doc("a", 9, 41)})
	defer m.Free()
	boom := errors.New("boom")
	mo := mergeOptions(o)
	mo.Resolve = func(entry.Address, entry.Seqno) (entry.Address, bool, error) { return entry.Address{}, false, boom }
	r, err := Merge(t.Context(), m.NewIter(nil, nil), mo)
	if !errors.Is(err, boom) || len(r.Tables) != 0 || len(list(t, fs)) != 0 {
		t.Errorf("%v, %+v, files %v", err, r, list(t, fs))
	}
	mo.TableBytes = -1
	if _, err := Merge(t.Context(), m.NewIter(nil, nil), mo); err == nil {
		t.Error("a bad option is taken")
	}
}

// TestTablesOfEqualSize: where the number of versions is known, no table is
// much smaller than the others, and none too large.
func TestTablesOfEqualSize(t *testing.T) {
	const full = 64 << 10
	for n := 2000; n < 12_000; n += 499 {
		m := fill(t, manyOps(n))
		fs := memfs.New()
		mkdir(t, fs)
		o := mergeOptions(options(fs))
		o.TableBytes, o.Versions, o.Bytes = full, uint64(m.Len()), int64(n)*60
		r, err := Merge(t.Context(), m.NewIter(nil, nil), o)
		m.Free()
		if err != nil {
			t.Fatal(err)
		}
		var sizes []int64
		for _, x := range r.Tables {
			sizes = append(sizes, x.FileBytes)
		}
		if len(sizes) > 1 && (slices.Min(sizes) < full/4 || slices.Max(sizes) > full || slices.Min(sizes) < slices.Max(sizes)/2) {
			t.Errorf("%d versions: sizes %v", n, sizes)
		}
	}
}

// TestBoundaries: no table holds keys of two sides of a boundary, whatever was
// dropped around it, and no boundary without keys makes a table.
func TestBoundaries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := func(i int) string { return fmt.Sprintf("k%02d", i) }
		var ops []memtable.Op
		for i := range 30 {
			if rapid.Bool().Draw(t, "there") {
				ops = append(ops, set(name(i), 100+i, "v"))
				if rapid.Bool().Draw(t, "dropped") {
					ops[len(ops)-1].Seqno = 1
				}
			}
		}
		m := fill(t, ops)
		defer m.Free()
		fs := memfs.New()
		mkdir(t, fs)
		o := options(fs)
		o.Policy = Policy{Horizon: 300, Clear: 50}
		for i := range 31 {
			if rapid.Bool().Draw(t, "boundary") {
				o.Boundaries = append(o.Boundaries, entry.AppendKey(nil, 1, []byte(name(i))))
			}
		}
		r, err := Flush(t.Context(), m.NewIter(nil, nil), o)
		if err != nil {
			t.Fatal(err)
		}
		side := func(key []byte) int {
			n, at := slices.BinarySearchFunc(o.Boundaries, key, bytes.Compare)
			if at {
				n++
			}
			return n
		}
		last := -1
		for _, x := range r.Tables {
			p := x.Properties
			if side(p.Smallest) != side(p.Largest) || side(p.Smallest) == last {
				t.Fatalf("table %q to %q, boundaries %q", p.Smallest, p.Largest, o.Boundaries)
			}
			last = side(p.Smallest)
		}
	})
}

// TestModel_Merge: some neighbouring runs are merged; what readers at or above
// the horizon see through all runs stays the same, and the documents that went
// are those of Dead.
func TestModel_Merge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := memfs.New()
		mkdir(t, fs)
		o := options(fs)
		o.TableBytes = int64(rapid.SampledFrom([]int{1, 64 << 20}).Draw(t, "table bytes"))
		var runs [][]entry.Iterator // oldest first
		var before []entry.Iterator
		var kept []memtable.Op
		last := 0
		n := rapid.IntRange(1, 5).Draw(t, "runs")
		from := rapid.IntRange(0, n-1).Draw(t, "from")
		to := rapid.IntRange(from, n-1).Draw(t, "to")
		var versions uint64
		for i := range n {
			count := rapid.IntRange(1, 20).Draw(t, "versions")
			ops := drawOps(t, "op", last+1, count)
			last += count
			m := fill(t, ops)
			defer m.Free()
			ts, v, _ := inputs(t, o, m)
			rs, again := openTables(t, fs, ts), openTables(t, fs, ts)
			defer closeAll(t, rs)
			defer closeAll(t, again)
			runs = append(runs, iters(rs))
			before = append(before, iters(again)...)
			if from <= i && i <= to {
				versions += v
				kept = append(kept, ops...)
			}
		}
		mo := mergeOptions(o)
		mo.Versions = versions
		mo.Policy = Policy{
			Horizon: entry.Seqno(rapid.IntRange(0, last+2).Draw(t, "horizon")),
			Clear:   entry.Seqno(rapid.SampledFrom([]int{0, rapid.IntRange(0, last).Draw(t, "clear at")}).Draw(t, "clear")),
			Now:     uint32(rapid.SampledFrom([]int{0, 100}).Draw(t, "now")),
			Bottom:  from == 0,
		}
		r, err := Merge(t.Context(), iter.NewMerge(slices.Concat(runs[from:to+1]...)...), mo)
		if err != nil {
			t.Fatal(err)
		}
		merged := openTables(t, fs, r.Tables)
		defer closeAll(t, merged)
		after := slices.Concat(slices.Concat(runs[:from]...), iters(merged), slices.Concat(runs[to+1:]...))
		for at := mo.Policy.Horizon; at <= entry.Seqno(last+2); at++ {
			see := iter.VisibleOptions{At: at, Expired: func(expiry uint32) bool { return expiry <= mo.Policy.Now }}
			if mo.Policy.Clear <= at {
				see.Clear = mo.Policy.Clear
			}
			view := func(all []entry.Iterator) (out []string) {
				it := iter.NewVisible(iter.NewMerge(all...), see)
				for ok := it.First(); ok; ok = it.Next() {
					out = append(out, show(it.Version()))
				}
				if it.Error() != nil {
					t.Fatal(it.Error())
				}
				return out
			}
			if got, want := view(after), view(before); !slices.Equal(got, want) {
				t.Fatalf("%+v, runs %d to %d of %d, read at %d: %q\nwant %q", mo.Policy, from, to, n, at, got, want)
			}
		}
		checkDead(t, r, merged, kept)
	})
}

// TestS06_MergeCounts: inputs that hold less than their properties say end the
// merge, and stay.
func TestS06_MergeCounts(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	o := options(fs)
	m := fill(t, manyOps(500))
	defer m.Free()
	ts, versions, _ := inputs(t, o, m)
	rs := openTables(t, fs, ts)
	defer closeAll(t, rs)
	mo := mergeOptions(o)
	mo.Versions = versions + 1
	_, err := Merge(t.Context(), iter.NewMerge(iters(rs)...), mo)
	if !errors.Is(err, ErrCounts) || len(list(t, fs)) != len(ts) {
		t.Errorf("%v, files %v", err, list(t, fs))
	}
}
