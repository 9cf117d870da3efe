package model

import (
	"fmt"
	"strings"
	"testing"

	"fluxkv/internal/entry"
)

// example is the picture of the package comment, with an expiry.
func example() *Store {
	s := &Store{}
	s.Set("a", Version{Seqno: 3, Value: "x"})
	s.Set("b", Version{Seqno: 4, Value: "y"})
	s.End(4)
	s.Clear(5)
	s.Set("a", Version{Seqno: 7, Delete: true})
	s.End(7)
	s.Set("c", Version{Seqno: 8, Value: "e", Meta: entry.Meta{Expiry: 100}})
	s.Set("b", Version{Seqno: 9, Value: "z"})
	s.End(9)
	return s
}

func show(s *Store, lower string, at entry.Seqno, now int64) string {
	var out []string
	for key, v := range s.Range(lower, at, now) {
		out = append(out, fmt.Sprintf("%s=%s", key, v.Value))
	}
	return strings.Join(out, " ")
}

func TestRange(t *testing.T) {
	for _, c := range []struct {
		name  string
		cut   entry.Seqno
		lower string
		at    entry.Seqno
		now   int64
		want  string
	}{
		{"before all", 99, "", 2, 0, ""},
		{"a part of a batch", 99, "", 3, 0, "a=x"},
		{"before the clear", 99, "", 4, 0, "a=x b=y"},
		{"after the clear", 99, "", 6, 0, ""},
		{"all", 99, "", 9, 99, "b=z c=e"},
		{"from a key on", 99, "bb", 9, 99, "c=e"},
		{"expired", 99, "", 9, 100, "b=z"},
		{"cut", 7, "", 9, 0, ""},
		{"cut before the clear", 4, "", 9, 0, "a=x b=y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := example()
			s.Cut(c.cut)
			if got := show(s, c.lower, c.at, c.now); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if want := min(c.cut, 9); s.Last() != want || s.EndAt(99) != want || s.EndAt(4) != 4 || s.EndAt(3) != 0 {
				t.Errorf("ends at %d, want %d", s.Last(), want)
			}
		})
	}
}

func TestVisible(t *testing.T) {
	for _, c := range []struct {
		name     string
		key      string
		seqno    entry.Seqno
		from, to entry.Seqno
		now      int64
		want     bool
	}{
		{"to a reader of its time", "a", 3, 1, 9, 0, true},
		{"to the last reader before the clear", "a", 3, 4, 9, 0, true},
		{"hidden by the clear", "a", 3, 5, 9, 0, false},
		{"hidden by a newer one", "b", 4, 9, 9, 0, false},
		{"above all readers", "b", 9, 1, 8, 0, false},
		{"the newest", "b", 9, 9, 20, 0, true},
		{"a tombstone", "a", 7, 7, 9, 0, false},
		{"not expired", "c", 8, 1, 9, 99, true},
		{"expired", "c", 8, 1, 9, 100, false},
		{"nothing", "d", 8, 1, 9, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := example().Visible(c.key, c.seqno, c.from, c.to, c.now); got != c.want {
				t.Error(got)
			}
		})
	}
}

func TestAll(t *testing.T) {
	n, last := 0, entry.Seqno(0)
	for _, v := range example().All() {
		n++
		last = max(last, v.Seqno)
	}
	if n != 5 || last != 9 {
		t.Errorf("%d versions up to %d", n, last)
	}
}
