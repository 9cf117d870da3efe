package iter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
)

// run is a Concat over lists that counts what is open.
type run struct {
	*Concat
	lists   []*list
	opened  int
	openErr error // of every Open, when set
}

// newRun makes a run of parts as parse reads them.
func newRun(parts ...[]entry.Version) *run {
	r := &run{}
	var ps []Part
	for _, versions := range parts {
		l := &list{versions: versions}
		r.lists = append(r.lists, l)
		ps = append(ps, Part{
			Smallest: versions[0].Key,
			Largest:  versions[len(versions)-1].Key,
			Open: func() (entry.Iterator, error) {
				if r.openErr != nil {
					return nil, r.openErr
				}
				r.opened++
				return l, nil
			},
		})
	}
	r.Concat = NewConcat(ps)
	return r
}

// open is how many parts are open.
func (r *run) open() int {
	n := r.opened
	for _, l := range r.lists {
		n -= l.closed
	}
	return n
}

func parseRun(parts ...string) *run {
	var vs [][]entry.Version
	for _, p := range parts {
		vs = append(vs, parse(p))
	}
	return newRun(vs...)
}

func TestConcat(t *testing.T) {
	cases := []struct {
		name   string
		parts  []string
		seek   string
		want   string
		opened int
	}{
		{name: "no part"},
		{name: "no part, seek", seek: "a#1"},
		{name: "one part", parts: []string{"a#1 b#2"}, want: "a#1 b#2", opened: 1},
		{name: "all parts", parts: []string{"a#9 a#4", "b#5", "c#7 d#1"}, want: "a#9 a#4 b#5 c#7 d#1", opened: 3},
		{name: "seek opens only what it needs", parts: []string{"a#9", "b#5", "c#7 d#1"}, seek: "c#99", want: "c#7 d#1", opened: 1},
		{name: "seek into a part", parts: []string{"a#9", "b#5 d#5", "e#7"}, seek: "c#99", want: "d#5 e#7", opened: 2},
		{name: "seek between parts", parts: []string{"a#9", "c#5", "e#7"}, seek: "b#99", want: "c#5 e#7", opened: 2},
		{name: "seek in front of all", parts: []string{"b#9", "c#5"}, seek: "a#99", want: "b#9 c#5", opened: 2},
		{name: "seek behind all", parts: []string{"b#9", "c#5"}, seek: "d#99"},
		{name: "seek to the last key", parts: []string{"b#9", "c#5"}, seek: "c#5", want: "c#5", opened: 1},
		{name: "seek behind the last version", parts: []string{"b#9", "c#5"}, seek: "c#4", opened: 1},
		{name: "seek behind the last version of a part", parts: []string{"b#9", "c#5"}, seek: "b#8", want: "c#5", opened: 2},
		{name: "a key in two parts", parts: []string{"b#9 c#5", "c#4 c#2 d#1"}, seek: "c#3", want: "c#2 d#1", opened: 2},
		{name: "a key in three parts", parts: []string{"b#9 c#5", "c#4", "c#2 d#1"}, seek: "c#3", want: "c#2 d#1", opened: 3},
		{name: "a key in three parts, behind it", parts: []string{"b#9 c#5", "c#4", "c#2"}, seek: "c#1", opened: 3},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := parseRun(c.parts...)
			ok := false
			if c.seek == "" {
				ok = r.First()
			} else {
				to := parse(c.seek)[0]
				ok = r.SeekGE(to.Key, to.Seqno)
			}
			if got := walk(r, ok); got != c.want {
				t.Fatalf("got  %s\nwant %s", got, c.want)
			}
			if r.opened != c.opened || r.open() > 1 {
				t.Fatalf("%d parts opened, want %d; %d are open", r.opened, c.opened, r.open())
			}
			for range 2 {
				if err := r.Close(); err != nil || r.open() != 0 {
					t.Fatalf("close: %v, %d parts open", err, r.open())
				}
			}
			if r.First() || r.Error() == nil || r.opened != c.opened {
				t.Fatal("a closed run moves")
			}
		})
	}
}

func TestConcatKeepsThePartOpenOverSeeks(t *testing.T) {
	r := parseRun("a#9 b#3 c#1", "d#5")
	for _, seek := range []string{"a#99", "c#1", "b#4"} {
		to := parse(seek)[0]
		if !r.SeekGE(to.Key, to.Seqno) || r.opened != 1 {
			t.Fatalf("seek %s: %v, %d parts opened", seek, r.Error(), r.opened)
		}
	}
}

// TestS7_AnErrorStopsTheRun fails a part at each of its moves, at opening and
// at closing: what came before is right, no later part is opened, and the
// error stays.
func TestS7_AnErrorStopsTheRun(t *testing.T) {
	const full = "a#9 b#8 c#3 d#7 e#2 f#1"
	parts := []string{"a#9 b#8", "c#3 d#7", "e#2 f#1"}
	check := func(t *testing.T, r *run, before string) {
		t.Helper()
		got, failed := strings.CutSuffix(walk(r, r.First()), "error: "+errSource.Error())
		if got = strings.TrimSpace(got); !failed || got != before {
			t.Fatalf("got %q, want %q and an error", got, before)
		}
		opened := r.opened
		if r.Next() || r.First() || r.SeekGE([]byte("f"), 1) || !errors.Is(r.Error(), errSource) || r.opened != opened {
			t.Fatal("goes on after the error")
		}
		_ = r.Close()
		if r.open() != 0 {
			t.Fatalf("%d parts open after Close", r.open())
		}
	}
	for part, before := range []string{"", "a#9 b#8", "a#9 b#8 c#3 d#7"} {
		for moves := range 3 {
			t.Run(fmt.Sprintf("move %d of part %d", moves, part), func(t *testing.T) {
				r := parseRun(parts...)
				if l := r.lists[part]; moves == 0 {
					l.err = errSource
				} else {
					l.failAfter = moves
				}
				check(t, r, strings.Join(strings.Fields(full)[:2*part+moves], " "))
			})
		}
		t.Run(fmt.Sprintf("open of part %d", part), func(t *testing.T) {
			r := parseRun(parts...)
			open := r.parts[part].Open
			r.parts[part].Open = func() (entry.Iterator, error) {
				r.openErr = errSource
				return open()
			}
			check(t, r, before)
		})
	}
	t.Run("close of a part", func(t *testing.T) {
		r := parseRun(parts...)
		r.parts[0].Open = func() (entry.Iterator, error) {
			r.opened++
			return closeFails{r.lists[0]}, nil
		}
		check(t, r, "a#9 b#8")
	})
}

// closeFails is an iterator whose Close reports an error that no move did.
type closeFails struct{ *list }

func (c closeFails) Close() error {
	c.list.Close()
	return errSource
}

// TestConcatAgainstModel compares moves over parts with those over one slice.
func TestConcatAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 1, 3)
		var all []entry.Version
		for range rapid.IntRange(1, 40).Draw(t, "versions") {
			all = append(all, entry.Version{Key: key.Draw(t, "key"), Seqno: entry.Seqno(rapid.IntRange(1, 20).Draw(t, "seqno"))})
		}
		slices.SortFunc(all, compare)
		all = slices.CompactFunc(all, func(a, b entry.Version) bool { return compare(a, b) == 0 })
		var parts [][]entry.Version
		for rest := all; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "part")
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		r := newRun(parts...)
		at, ok := len(all), false // the model
		for range 30 {
			switch rapid.IntRange(0, 5).Draw(t, "move") {
			case 0:
				at, ok = 0, r.First()
			case 1:
				to := entry.Version{Key: key.Draw(t, "seek"), Seqno: entry.Seqno(rapid.IntRange(0, 21).Draw(t, "seek seqno"))}
				at, _ = slices.BinarySearchFunc(all, to, compare)
				ok = r.SeekGE(to.Key, to.Seqno)
			default:
				at, ok = min(at+1, len(all)), r.Next()
			}
			if ok != (at < len(all)) || r.Error() != nil || r.open() > 1 {
				t.Fatalf("stands: %v at %d of %d: %v, %d open", ok, at, len(all), r.Error(), r.open())
			}
			if ok && compare(*r.Version(), all[at]) != 0 {
				t.Fatalf("%s#%d, want %s#%d", r.Version().Key, r.Version().Seqno, all[at].Key, all[at].Seqno)
			}
		}
		if err := r.Close(); err != nil || r.open() != 0 {
			t.Fatalf("close: %v, %d parts open", err, r.open())
		}
	})
}

func TestConcatMovingWithinAPartAllocatesNothing(t *testing.T) {
	var versions []entry.Version
	for i := range 1000 {
		versions = append(versions, entry.Version{Key: fmt.Appendf(nil, "%06d", i/3), Seqno: entry.Seqno(2000 - i)})
	}
	r := newRun(versions)
	r.First()
	if n := testing.AllocsPerRun(10, func() {
		for ok := r.First(); ok && r.Next(); {
			_ = r.Version()
		}
	}); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}
