package vfs

import "testing"

func TestMatchName(t *testing.T) {
	tests := []struct {
		name, pattern, file string
		want                bool
	}{
		{"empty matches all", "", "log/000041.seg", true},
		{"the base name", "*.seg", "db/log/000041.seg", true},
		{"the whole name", "log/*", "log/000041.seg", true},
		{"not a part of the path", "log/*", "db/log/000041.seg", false},
		{"another file", "MANIFEST-*", "CURRENT", false},
	}
	for _, test := range tests {
		if got := MatchName(test.pattern, test.file); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func TestOpCounts(t *testing.T) {
	var c OpCounts
	c.Add(OpSync, "a/1.seg")
	c.Add(OpSync, "a/2.seg")
	c.Add(OpWriteAt, "a/2.seg")
	for want, got := range map[int]int{3: c.Count(""), 2: c.Count("*.seg", OpSync), 1: c.Count("", OpWriteAt, OpClose), 0: c.Count("", OpClose)} {
		if got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	c.Reset()
	if c.Count("") != 0 {
		t.Error("counts after Reset")
	}
	for k := range OpKinds {
		if k.String() == "" {
			t.Errorf("kind %d has no name", uint8(k))
		}
	}
	if got := (Op{Kind: OpReadAt, Name: "a", Off: 4, Len: 2, N: 9}).String(); got != "9 ReadAt a [4,6)" {
		t.Error(got)
	}
}
