package iter

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
)

// list is an iterator over a slice in order. It fails after failAfter moves, if
// that is not 0, and returns its versions in memory that the next move
// overwrites.
type list struct {
	versions  []entry.Version
	i         int
	v         entry.Version
	moves     int
	failAfter int
	err       error
	closed    int
}

var errSource = errors.New("source failed")

func compare(a, b entry.Version) int { return entry.Compare(a.Key, a.Seqno, b.Key, b.Seqno) }

func (l *list) First() bool { return l.move(0) }
func (l *list) Next() bool  { return l.move(l.i + 1) }
func (l *list) SeekGE(key []byte, seqno entry.Seqno) bool {
	i, _ := slices.BinarySearchFunc(l.versions, entry.Version{Key: key, Seqno: seqno}, compare)
	return l.move(i)
}

func (l *list) move(i int) bool {
	if l.moves++; l.failAfter != 0 && l.moves > l.failAfter {
		l.err = errSource
	}
	for j := range l.v.Key {
		l.v.Key[j] = 0xee
	}
	if l.err != nil || i >= len(l.versions) {
		l.i = len(l.versions)
		return false
	}
	l.i = i
	key := append(l.v.Key[:0], l.versions[i].Key...)
	l.v = l.versions[i]
	l.v.Key = key
	return true
}

func (l *list) Version() *entry.Version { return &l.v }
func (l *list) Error() error            { return l.err }
func (l *list) Close() error {
	l.closed++
	return l.err
}

// parse reads "a#9 b#7:DEL c#5:exp=3": versions in order.
func parse(text string) []entry.Version {
	var versions []entry.Version
	for _, f := range strings.Fields(text) {
		f, option, _ := strings.Cut(f, ":")
		key, seqno, _ := strings.Cut(f, "#")
		n, err := strconv.ParseUint(seqno, 10, 64)
		if err != nil {
			panic(err)
		}
		v := entry.Version{Key: []byte(key), Seqno: entry.Seqno(n)}
		if option == "DEL" {
			v.Kind = entry.KindDelete
		} else if e, ok := strings.CutPrefix(option, "exp="); ok {
			n, err := strconv.ParseUint(e, 10, 32)
			if err != nil {
				panic(err)
			}
			v.Meta.Expiry = uint32(n)
		}
		versions = append(versions, v)
	}
	return versions
}

func walk(it entry.Iterator, ok bool) string {
	var out []string
	for ; ok; ok = it.Next() {
		v := it.Version()
		out = append(out, fmt.Sprintf("%s#%d", v.Key, v.Seqno))
	}
	if it.Next() {
		out = append(out, "next after the end is true")
	}
	if err := it.Error(); err != nil {
		out = append(out, "error: "+err.Error())
	}
	return strings.Join(out, " ")
}

func TestVisible(t *testing.T) {
	many := func(from, to int) string { // versions of k, newest first
		var s []string
		for i := from; i >= to; i-- {
			s = append(s, fmt.Sprintf("k#%d", i))
		}
		return strings.Join(s, " ")
	}
	cases := []struct {
		name, in, seek, want string
		at, clear            entry.Seqno
		now                  uint32
	}{
		{name: "newest version of each key", in: "a#9 a#4 b#5", at: 10, want: "a#9 b#5"},
		{name: "newer than the read seqno is absent", in: "a#9 a#4 b#5 c#8", at: 5, want: "a#4 b#5"},
		{name: "the read seqno itself is seen", in: "a#9", at: 9, want: "a#9"},
		{name: "nothing at 0", in: "a#9 b#1", at: 0, want: ""},
		{name: "tombstone hides older versions", in: "a#9:DEL a#4 b#5", at: 10, want: "b#5"},
		{name: "tombstone above the read seqno does not", in: "a#9:DEL a#4 b#5", at: 8, want: "a#4 b#5"},
		{name: "deleted and written again", in: "a#9 a#7:DEL a#4", at: 10, want: "a#9"},
		{name: "clear hides what is at or below it", in: "a#9 b#6 c#5 d#7:DEL", at: 10, clear: 6, want: "a#9"},
		{name: "clear hides the newest, not the ones above it", in: "a#9 a#4 b#4", at: 10, clear: 5, want: "a#9"},
		{name: "expired hides older versions", in: "a#9:exp=3 a#4 b#5:exp=8", at: 10, now: 3, want: "b#5"},
		{name: "no clock, no expiry", in: "a#9:exp=3", at: 10, want: "a#9"},
		{name: "one version in two sources comes once", in: "a#9 a#9 b#5 b#5", at: 10, want: "a#9 b#5"},
		{name: "many older versions", in: "a#1 " + many(200, 100) + " l#5", at: 300, want: "a#1 k#200 l#5"},
		{name: "many newer versions", in: "a#1 " + many(200, 100) + " l#5", at: 110, want: "a#1 k#110 l#5"},
		{name: "only newer versions", in: "a#1 " + many(200, 100) + " l#5", at: 99, want: "a#1 l#5"},
		{name: "many versions and nothing seen", in: many(200, 100), at: 0, want: ""},
		{name: "many cleared versions", in: many(200, 100) + " l#300", at: 300, clear: 250, want: "l#300"},
		{name: "seek to the newest", in: "a#9 a#4 b#5", at: 10, seek: "a#99", want: "a#9 b#5"},
		{name: "seek below the visible version finds the next key", in: "a#9 a#4 b#5", at: 10, seek: "a#8", want: "b#5"},
		{name: "seek between newer and visible", in: "a#9 a#4 b#5", at: 6, seek: "a#5", want: "a#4 b#5"},
		{name: "seek between keys", in: "a#9 c#5", at: 10, seek: "b#99", want: "c#5"},
		{name: "seek behind all", in: "a#9", at: 10, seek: "b#99", want: ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := VisibleOptions{At: c.at, Clear: c.clear}
			if c.now != 0 {
				o.Expired = func(expiry uint32) bool { return expiry <= c.now }
			}
			src := &list{versions: parse(c.in)}
			x := NewVisible(src, o)
			for range 2 { // the second time from wherever the first ended
				ok := false
				if c.seek == "" {
					ok = x.First()
				} else {
					to := parse(c.seek)[0]
					ok = x.SeekGE(to.Key, to.Seqno)
				}
				if got := walk(x, ok); got != c.want {
					t.Fatalf("got  %s\nwant %s", got, c.want)
				}
			}
			if err := x.Close(); err != nil || src.closed != 1 {
				t.Fatalf("close: %v, source closed %d times", err, src.closed)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	cases := []struct {
		name string
		in   []string
		seek string
		want string
	}{
		{name: "no source", want: ""},
		{name: "one source", in: []string{"a#1 b#2"}, want: "a#1 b#2"},
		{name: "empty sources", in: []string{"", "a#1", ""}, want: "a#1"},
		{name: "versions of a key, newest first", in: []string{"a#4 c#2", "a#9 c#7", "b#5"}, want: "a#9 a#4 b#5 c#7 c#2"},
		{name: "a version in two sources comes twice", in: []string{"a#4", "a#4 b#1"}, want: "a#4 a#4 b#1"},
		{name: "seek in all", in: []string{"a#4 c#2", "a#9 c#7", "b#5"}, seek: "a#5", want: "a#4 b#5 c#7 c#2"},
		{name: "seek behind some", in: []string{"a#4", "c#7", "b#5"}, seek: "b#99", want: "b#5 c#7"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var sources []entry.Iterator
			for _, in := range c.in {
				sources = append(sources, &list{versions: parse(in)})
			}
			m := NewMerge(sources...)
			for range 2 {
				ok := false
				if c.seek == "" {
					ok = m.First()
				} else {
					to := parse(c.seek)[0]
					ok = m.SeekGE(to.Key, to.Seqno)
				}
				if got := walk(m, ok); got != c.want {
					t.Fatalf("got  %s\nwant %s", got, c.want)
				}
			}
		})
	}
}

func TestMergeTieTakesTheFirstSource(t *testing.T) {
	newer, older := parse("a#4"), parse("a#4")
	newer[0].Meta.Flags = 1
	m := NewMerge(&list{versions: newer}, &list{versions: older})
	if !m.First() || m.Version().Meta.Flags != 1 || !m.Next() || m.Version().Meta.Flags != 0 {
		t.Fatal("the older source came first")
	}
}

// TestErrorsStop fails a source at each of its moves: what came before the
// error is right, nothing comes after, and the error stays.
func TestErrorsStop(t *testing.T) {
	a, b := parse("a#9 b#8 d#7 f#1"), parse("a#4 c#3 e#2")
	for failAfter := 1; failAfter <= 5; failAfter++ {
		for _, which := range []int{0, 1} {
			lists := []*list{{versions: a}, {versions: b}}
			lists[which].failAfter = failAfter
			m := NewMerge(lists[0], lists[1])
			x := NewVisible(m, VisibleOptions{At: 100})
			got := walk(x, x.First())
			const full = "a#9 b#8 c#3 d#7 e#2 f#1"
			before, failed := strings.CutSuffix(got, "error: "+errSource.Error())
			if failAfter > len(lists[which].versions) {
				// First and a Next for each version: it was never asked again.
				if got != full {
					t.Fatalf("source %d failing after %d: %s", which, failAfter, got)
				}
				continue
			}
			if !failed || !strings.HasPrefix(full, strings.TrimSpace(before)) {
				t.Fatalf("source %d failing after %d: %s", which, failAfter, got)
			}
			if x.First() || x.SeekGE([]byte("a"), 9) || x.Next() || !errors.Is(x.Error(), errSource) {
				t.Fatalf("source %d failing after %d: goes on after the error", which, failAfter)
			}
			if !errors.Is(x.Close(), errSource) || lists[0].closed != 1 || lists[1].closed != 1 {
				t.Fatal("close: no error, or a source is open")
			}
		}
	}
}

// TestAgainstModel compares Visible over Merge with a map of versions.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []entry.Version
		lists := make([]*list, rapid.IntRange(1, 5).Draw(t, "sources"))
		for i := range lists {
			lists[i] = &list{}
		}
		for seqno := range rapid.IntRange(0, 120).Draw(t, "versions") {
			v := entry.Version{
				Key:   rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 1, 3).Draw(t, "key"),
				Seqno: entry.Seqno(seqno + 1),
			}
			if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
				v.Kind = entry.KindDelete
			} else if rapid.IntRange(0, 4).Draw(t, "expires") == 0 {
				v.Meta.Expiry = uint32(rapid.IntRange(1, 10).Draw(t, "expiry"))
			}
			all = append(all, v)
			l := rapid.SampledFrom(lists).Draw(t, "source")
			l.versions = append(l.versions, v)
		}
		slices.SortFunc(all, compare)
		o := VisibleOptions{
			At:      entry.Seqno(rapid.IntRange(0, 130).Draw(t, "at")),
			Clear:   entry.Seqno(rapid.SampledFrom([]int{0, 0, 30, 100}).Draw(t, "clear")),
			Expired: func(expiry uint32) bool { return expiry <= 5 },
		}
		var want []entry.Version
		var decided []byte
		for _, v := range all {
			if v.Seqno > o.At || bytes.Equal(v.Key, decided) {
				continue
			}
			decided = v.Key
			if v.Kind == entry.KindSet && v.Seqno > o.Clear && (v.Meta.Expiry == 0 || v.Meta.Expiry > 5) {
				want = append(want, v)
			}
		}
		var sources []entry.Iterator
		for _, l := range lists {
			slices.SortFunc(l.versions, compare)
			sources = append(sources, l)
		}
		x := NewVisible(NewMerge(sources...), o)
		names := func(versions []entry.Version) string {
			var out []string
			for _, v := range versions {
				out = append(out, fmt.Sprintf("%s#%d", v.Key, v.Seqno))
			}
			return strings.Join(out, " ")
		}
		if got, want := walk(x, x.First()), names(want); got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		for range 5 {
			to := entry.Version{
				Key:   rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 1, 3).Draw(t, "seek"),
				Seqno: entry.Seqno(rapid.IntRange(0, 130).Draw(t, "seek seqno")),
			}
			i, _ := slices.BinarySearchFunc(want, to, compare)
			if got, want := walk(x, x.SeekGE(to.Key, to.Seqno)), names(want[i:]); got != want {
				t.Fatalf("seek %s#%d: got %s\nwant %s", to.Key, to.Seqno, got, want)
			}
		}
	})
}

func TestMovingAllocatesNothing(t *testing.T) {
	var versions []entry.Version
	for i := range 1000 {
		versions = append(versions, entry.Version{Key: fmt.Appendf(nil, "%06d", i/3), Seqno: entry.Seqno(2000 - i)})
	}
	var a, b list
	for i, v := range versions {
		if i%2 == 0 {
			a.versions = append(a.versions, v)
		} else {
			b.versions = append(b.versions, v)
		}
	}
	x := NewVisible(NewMerge(&a, &b), VisibleOptions{At: 3000})
	x.First()
	if n := testing.AllocsPerRun(10, func() {
		for ok := x.First(); ok; ok = x.Next() {
			_ = x.Version()
		}
	}); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func BenchmarkVisibleMerge(b *testing.B) {
	for _, sources := range []int{2, 8} {
		b.Run(fmt.Sprintf("sources=%d", sources), func(b *testing.B) {
			lists := make([]list, sources)
			var its []entry.Iterator
			for i := range 100_000 {
				l := &lists[i*7919%sources]
				l.versions = append(l.versions, entry.Version{Key: fmt.Appendf(nil, "%014d", i), Seqno: 1})
			}
			for i := range lists {
				its = append(its, &lists[i])
			}
			x := NewVisible(NewMerge(its...), VisibleOptions{At: 3000})
			b.ReportAllocs()
			x.First()
			for b.Loop() {
				if !x.Next() {
					x.First()
				}
			}
		})
	}
}
