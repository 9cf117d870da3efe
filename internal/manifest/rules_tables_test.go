package manifest

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fluxkv/internal/entry"
)

// TestR03_FlushedPositionsSurvive: replay skips per kvstore what it flushed,
// and the next seqno stays above it though the log that held it is gone.
func TestR03_FlushedPositionsSurvive(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 65536; replay 2 4096 1")
	mustApply(t, l, `seal 2 end=8192 last=90 file=8192; add 3 log 65536; replay 3 4096 91; drop 2
		table 4 kv=1 run=4 keys=a..c seqnos=3..80; flushed 1 80; flushed 7 100`)
	_, st := mustOpen(t, disk)
	if a, b, c := st.FlushedSeqno(1), st.FlushedSeqno(7), st.FlushedSeqno(2); a != 80 || b != 100 || c != 0 {
		t.Fatalf("flushed up to %d, %d and %d", a, b, c)
	}
	if st.SeqnoFloor() != 101 || st.NextSeqno != 1 {
		t.Fatalf("floor %d, next %d", st.SeqnoFloor(), st.NextSeqno)
	}
}

// TestR06_G3_ADeadDocumentCountsOnce: however often it is reported, and only as
// long as its segment is there.
func TestR06_G3_ADeadDocumentCountsOnce(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 65536; seal 2 end=8192 last=90 file=8192; add 3 gc 65536")
	mustApply(t, l, "dead 2 5,7; dead 3 4; dead 2 7,8")
	first := l.State()
	mustApply(t, l, "dead 2 5,7,9")
	if second := l.State(); second.DeadSet(2).Len() != 4 {
		t.Fatalf("after a second report:\n%s", dump(second))
	}
	if got := first.DeadSet(2).AppendSeqnos(nil); !slices.Equal(got, []entry.Seqno{5, 7, 8}) {
		t.Fatalf("the older state has %d now", got)
	}
	st := mustApply(t, l, "dead 2 10; drop 2")
	if len(st.Dead) != 1 || st.DeadSet(2).Len() != 0 || st.DeadSet(2).Contains(5) || st.DeadSet(2).AppendSeqnos(nil) != nil {
		t.Fatalf("left over:\n%s", dump(st))
	}
	if _, again := mustOpen(t, disk); dump(again) != dump(st) {
		t.Fatalf("replay makes\n%sof\n%s", dump(again), dump(st))
	}
}

// TestR08_ForwardsStayFlat collects a segment, then collects its outputs.
func TestR08_ForwardsStayFlat(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 65536; flushed 1 90; table 3 kv=1 run=3 keys=a..c seqnos=1..90 seg=2")
	mustApply(t, l, "add 4 gc 65536; add 5 gc 65536; drop 2; forward 2 4:1..50 5:20..90")
	mustApply(t, l, "add 6 gc 65536; add 7 gc 65536; drop 4; drop 5; forward 5 6:10..40 7:60..99; forward 4 6:1..9")
	st := mustApply(t, l, "add 8 gc 65536; drop 7; forward 7")
	want := "forward 000002 000006:1..40\nforward 000004 000006:1..9\nforward 000005 000006:10..40\nforward 000007\n"
	if got := dump(st); !strings.Contains(got, want) {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
	for _, c := range []struct {
		id    entry.SegmentID
		seqno entry.Seqno
		want  []entry.SegmentID
	}{{6, 1, []entry.SegmentID{6}}, {2, 40, []entry.SegmentID{6}}, {2, 70, nil}, {4, 10, nil}, {7, 60, nil}, {9, 1, nil}} {
		if got := st.Resolve(nil, c.id, c.seqno); !slices.Equal(got, c.want) {
			t.Errorf("%d in segment %d resolves to %v, want %v", c.seqno, c.id, got, c.want)
		}
	}
	if _, again := mustOpen(t, disk); dump(again) != dump(st) {
		t.Fatalf("replay makes\n%sof\n%s", dump(again), dump(st))
	}
}

// TestM1_ATableMovesInOneEdit: a level that gets it and the one that loses it
// change together, and nobody sees it twice.
func TestM1_ATableMovesInOneEdit(t *testing.T) {
	l := mustCreate(t, newDisk(t), "flushed 1 9; table 3 kv=1 run=3 keys=a..c seqnos=1..9; table 4 kv=1 run=4 keys=x..z seqnos=1..9")
	st := mustApply(t, l, "untable 3; table 3 kv=1 level=1 keys=a..c seqnos=1..9")
	if a, b := st.LevelTables(1, 0), st.LevelTables(1, 1); len(a) != 1 || len(b) != 1 || a[0].Number != 4 || b[0].Number != 3 {
		t.Fatalf("got\n%s", dump(st))
	}
}

// TestM8_OpenRefusesContradictions: what no store may be is corruption, however
// intact the record that says so.
func TestM8_OpenRefusesContradictions(t *testing.T) {
	const start = "add 2 log 65536; add 3 gc 65536; flushed 1 9; table 5 kv=1 level=1 keys=a..c seqnos=1..9 seg=2; file 6"
	for _, c := range []struct{ name, edit, want string }{
		{"tables of a sorted level overlap", "table 6 kv=1 level=1 keys=c..d seqnos=1..2", "overlap"},
		{"sequence ranges of runs overlap", "table 6 kv=1 run=6 keys=a..b seqnos=3..4; table 7 kv=1 run=7 keys=b..c seqnos=4..5", "share keys"},
		{"a sequence range turned round", "table 6 kv=1 run=6 keys=a..b seqnos=4..3", "seqnos 4 to 3"},
		{"a table above the flushed position", "table 6 kv=1 run=6 keys=x..z seqnos=9..10", "flushed only up to 9"},
		{"a table twice", "table 5 kv=1 level=2 keys=a..c seqnos=1..9", "added twice"},
		{"a table of no bytes", "table 6 kv=1 run=6 keys=x..z bytes=0", "0 bytes"},
		{"an address of no segment", "drop 2", "neither registered nor forwarded"},
		{"a forward to no segment", "drop 2; forward 2 4:1..9", "not registered"},
		{"a dead document of no segment", "dead 4 1", "not registered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := newDisk(t)
			l := mustCreate(t, disk, start)
			name := Name(l.State().Manifest)
			e := parseEdit(t, c.edit)
			b := appendRecord(readDisk(t, disk, name), testSecret, l.State().Manifest, l.end, l.end, &e)
			writeDisk(t, disk, name, b)
			_, _, err := Open(disk, testDir, testSecret)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestR14_RunsThatShareKeysAreOrderedByAge: everything else about runs is free.
func TestR14_RunsThatShareKeysAreOrderedByAge(t *testing.T) {
	l := mustCreate(t, newDisk(t), "flushed 1 99; flushed 2 99; table 3 kv=1 run=3 keys=a..k seqnos=10..20")
	for _, ok := range []string{
		"table 4 kv=1 run=4 keys=a..k seqnos=21..30", // same keys, newer
		"table 5 kv=1 run=5 keys=l..m seqnos=12..13", // same seqnos, other keys
		"table 6 kv=1 run=3 keys=n..z seqnos=11..22", // the same run goes on
		"table 7 kv=2 run=3 keys=a..k seqnos=10..20", // another kvstore
		"table 8 kv=1 level=1 keys=a..z seqnos=1..15",
	} {
		mustApply(t, l, ok)
	}
	e := parseEdit(t, "table 9 kv=1 run=9 keys=k..l seqnos=5..10")
	if _, err := l.Apply(&e); err == nil || !strings.Contains(err.Error(), "share keys") {
		t.Fatal(err)
	}
}

// TestS4b_DeadSetsAreNoLongerThanTheyNeedBe: a bit a seqno when they are dense,
// a distance each when they are not.
func TestS4b_DeadSetsAreNoLongerThanTheyNeedBe(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ one, bytes int }{{2, 12_600}, {1, 12_600}, {1000, 220}} {
		var seqnos []entry.Seqno
		for s := entry.Seqno(1 << 40); len(seqnos) == 0 || s < seqnos[0]+100_000; s++ {
			if rnd.IntN(c.one) == 0 {
				seqnos = append(seqnos, s)
			}
		}
		b := NewDeadSet(2, seqnos).append(nil)
		if len(b) > c.bytes {
			t.Errorf("one of %d dead: %d bytes", c.one, len(b))
		}
		d, err := decodeDeadSet(b)
		if err != nil || !slices.Equal(d.AppendSeqnos(nil), seqnos) {
			t.Errorf("one of %d dead: came back as %d of %d: %v", c.one, d.Len(), len(seqnos), err)
		}
	}
}
