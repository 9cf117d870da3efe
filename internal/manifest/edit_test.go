package manifest

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"fluxkv/internal/entry"

	"pgregory.net/rapid"
)

// genEdit draws any edit the encoder can be given; most contradict every state.
func genEdit() *rapid.Generator[Edit] {
	id := rapid.Custom(func(t *rapid.T) entry.SegmentID { return entry.SegmentID(rapid.Uint32().Draw(t, "id")) })
	seqno := rapid.Custom(func(t *rapid.T) entry.Seqno { return entry.Seqno(rapid.Uint64().Draw(t, "seqno")) })
	return rapid.Custom(func(t *rapid.T) Edit {
		e := Edit{
			AddSegments: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) AddSegment {
				return AddSegment{ID: id.Draw(t, ""), Kind: rapid.SampledFrom([]SegmentKind{SegmentLog, SegmentGC}).Draw(t, "kind"), Size: rapid.Int64().Draw(t, "size")}
			}), 0, 4).Draw(t, "add"),
			SealSegments: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) SealSegment {
				return SealSegment{ID: id.Draw(t, ""), End: rapid.Uint32().Draw(t, "end"), Last: seqno.Draw(t, ""), FileBytes: rapid.Int64().Draw(t, "file"), Footer: rapid.Bool().Draw(t, "footer")}
			}), 0, 4).Draw(t, "seal"),
			EndSegments: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) EndSegment {
				return EndSegment{ID: id.Draw(t, ""), End: rapid.Uint32().Draw(t, "end"), Last: seqno.Draw(t, ""), Next: seqno.Draw(t, "")}
			}), 0, 4).Draw(t, "end"),
			DropSegments:    rapid.SliceOfN(id, 0, 4).Draw(t, "drop"),
			NextSeqno:       seqno.Draw(t, "next"),
			ClearSeqno:      seqno.Draw(t, "clear"),
			SetPendingClear: rapid.Bool().Draw(t, "set pending"),
			NextFile:        rapid.Uint64().Draw(t, "file"),
			ExpiryClock:     rapid.Uint32().Draw(t, "expiry"),
		}
		if e.SetPendingClear {
			e.PendingClear = rapid.Int64().Draw(t, "pending")
		}
		e.AddTables = rapid.SliceOfN(genTable(), 0, 3).Draw(t, "tables")
		e.DropTables = rapid.SliceOfN(rapid.Uint64(), 0, 3).Draw(t, "untables")
		e.Flushed = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Flushed {
			return Flushed{KVStore: rapid.Uint16().Draw(t, "kv"), Seqno: seqno.Draw(t, "")}
		}), 0, 3).Draw(t, "flushed")
		e.AddDead = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *DeadSet {
			near := rapid.Uint64Range(1, 100)
			if rapid.Bool().Draw(t, "far") {
				near = rapid.Uint64Range(1, uint64(entry.MaxSeqno))
			}
			return NewDeadSet(id.Draw(t, ""), rapid.SliceOfN(rapid.Map(near, func(n uint64) entry.Seqno { return entry.Seqno(n) }), 1, 30).Draw(t, "dead"))
		}), 0, 3).Draw(t, "dead")
		e.AddForwards = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Forward {
			f := Forward{From: id.Draw(t, "")}
			for range rapid.IntRange(0, 3).Draw(t, "ranges") {
				f.To = append(f.To, ForwardRange{Segment: id.Draw(t, ""), First: seqno.Draw(t, ""), Last: seqno.Draw(t, "")})
			}
			return f
		}), 0, 3).Draw(t, "forwards")
		e.DropForwards = rapid.SliceOfN(id, 0, 3).Draw(t, "unforward")
		if rapid.Bool().Draw(t, "replay") {
			e.ReplayFrom = entry.Position{Segment: id.Draw(t, ""), Offset: rapid.Uint32().Draw(t, "offset"), Seqno: seqno.Draw(t, "")}
		}
		return e
	})
}

func genTable() *rapid.Generator[*Table] {
	key := rapid.SliceOfN(rapid.Byte(), 1, 20)
	return rapid.Custom(func(t *rapid.T) *Table {
		n := rapid.Uint64()
		table := &Table{Number: n.Draw(t, "number"), KVStore: rapid.Uint16().Draw(t, "kv"), Level: rapid.Byte().Draw(t, "level"), Tier: rapid.Byte().Draw(t, "tier"),
			Run: n.Draw(t, "run"), LowestSeqno: entry.Seqno(n.Draw(t, "low")), HighestSeqno: entry.Seqno(n.Draw(t, "high")), FileBytes: rapid.Int64().Draw(t, "bytes"),
			Entries: n.Draw(t, "entries"), Tombstones: n.Draw(t, "gone"), KeyBytes: n.Draw(t, "keys"), ValueBytes: n.Draw(t, "values"),
			Smallest: key.Draw(t, "smallest"), Largest: key.Draw(t, "largest")}
		for range rapid.IntRange(0, 3).Draw(t, "segments") {
			table.Segments = append(table.Segments, SegmentUse{Segment: entry.SegmentID(rapid.Uint32().Draw(t, "id")), Documents: rapid.Uint32().Draw(t, "documents"), Bytes: n.Draw(t, "bytes")})
		}
		return table
	})
}

// normal makes empty and missing slices the same.
func normal(e Edit) Edit {
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice && f.Len() == 0 {
			f.SetZero()
		}
	}
	return e
}

func TestEditRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genEdit().Draw(t, "edit")
		got, err := DecodeEdit(e.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if want := normal(e); !reflect.DeepEqual(normal(got), want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// TestM1_EveryFieldOfAnEditReachesTheState fails when a field is added to Edit
// or State and forgotten in the encoder, in apply or in the snapshot.
func TestM1_EveryFieldOfAnEditReachesTheState(t *testing.T) {
	e := parseEdit(t, `add 2 log 4096; add 3 log 8192; add 4 gc 4096; add 5 log 4096; add 6 log 4096
		seal 2 end=4096 last=9 file=4608 footer
		end 3 end=8192 last=12 next=20
		drop 5; dead 2 7,9
		forward 5 4:1..9
		table 7 kv=3 tier=1 run=7 keys=a..m seqnos=5..9 bytes=8192 entries=4 gone=1 keybytes=20 values=30 seg=2:3:300 seg=5:1:90
		table 8 kv=3 level=1 keys=a..m seqnos=1..3; flushed 3 9
		untable 6; unforward 1
		replay 3 4096 10; next 40; clear 8; pending 77; file 50; expiry 1700000000`)
	v := reflect.ValueOf(e)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the test edit leaves %s empty", v.Type().Field(i).Name)
		}
	}
	decoded, err := DecodeEdit(e.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(decoded, e) {
		t.Fatalf("decoded %+v, want %+v", decoded, e)
	}
	v = reflect.ValueOf(*e.AddTables[0])
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "Level" {
			t.Errorf("the test edit leaves Table.%s empty", name)
		}
	}
	// Nothing is there yet that could be dropped.
	decoded.DropSegments, decoded.DropTables, decoded.DropForwards = []entry.SegmentID{5}, nil, nil
	st, err := emptyState().Apply(&decoded)
	if err != nil {
		t.Fatal(err)
	}
	st.Manifest = 1 // not part of any edit
	v = reflect.ValueOf(st)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the edit left State.%s empty", v.Type().Field(i).Name)
		}
	}
	snapshot := st.edit()
	again, err := emptyState().Apply(&snapshot)
	if err != nil {
		t.Fatal(err)
	}
	again.Manifest = 1
	if !reflect.DeepEqual(again, st) {
		t.Fatalf("the snapshot makes\n%sof\n%s", dump(again), dump(st))
	}
}

func TestDecodeEditRefuses(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		version        bool
	}{
		{name: "a tag from the future", in: "\x11\x01x", want: "unknown tag 17", version: true},
		{name: "tag zero", in: "\x00\x00", want: "unknown tag 0", version: true},
		{name: "a tag without a length", in: "\x06", want: "length runs past"},
		{name: "a length that is no number", in: "\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", want: "length runs past"},
		{name: "a length beyond the record", in: "\x06\x09........", want: "length runs past"},
		{name: "a length that would wrap", in: "\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x", want: "length runs past"},
		{name: "a known tag of another length", in: "\x06\x04....", want: "4 bytes, want 8"},
		{name: "a single value given twice", in: "\x06\x08........\x06\x08........", want: "given twice"},
		{name: "a segment of no kind", in: "\x01\x0d\x01\x00\x00\x00\x00........", want: "kind 0"},
		{name: "a footer mark that is no boolean", in: "\x02\x19........................\x02", want: "footer mark 2"},
		{name: "seqno zero", in: "\x06\x08\x00\x00\x00\x00\x00\x00\x00\x00", want: "seqno 0"},
		{name: "file number zero", in: "\x09\x08\x00\x00\x00\x00\x00\x00\x00\x00", want: "number 0"},
		{name: "a table cut short", in: "\x0a\x01x", want: "at least 76"},
		{name: "a table whose key runs past it", in: "\x0a\x4d" + strings.Repeat("\x00", 76) + "\x01", want: "key runs past"},
		{name: "a table whose key length would wrap", in: "\x0a\x56" + strings.Repeat("\x00", 76) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", want: "key runs past"},
		{name: "a table with half a segment", in: "\x0a\x51" + strings.Repeat("\x00", 76) + "\x00\x00\x00\x00\x00", want: "3 bytes of segments"},
		{name: "a dead set cut short", in: "\x0d\x01x", want: "at least 13"},
		{name: "a dead set from seqno 0", in: "\x0d\x0d\x02\x00\x00\x00\x01" + strings.Repeat("\x00", 8), want: "seqno 0 out of range"},
		{name: "a dead set of no form", in: "\x0d\x0d\x02\x00\x00\x00\x03\x01\x00\x00\x00\x00\x00\x00\x00", want: "form 3"},
		{name: "a dead seqno twice", in: "\x0d\x0e\x02\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00", want: "broken distance"},
		{name: "a distance past the last seqno", in: "\x0d\x0e\x02\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\x00\x01", want: "broken distance"},
		{name: "half a distance", in: "\x0d\x0e\x02\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x80", want: "broken distance"},
		{name: "a bitmap without a bit", in: "\x0d\x0d\x02\x00\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00\x00", want: "bitmap of 0 bytes"},
		{name: "a bitmap that begins later", in: "\x0d\x0e\x02\x00\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00\x00\x02", want: "without its first"},
		{name: "a bitmap past the last seqno", in: "\x0d\x0e\x02\x00\x00\x00\x02\xff\xff\xff\xff\xff\xff\xff\x00\x03", want: "out of range"},
		{name: "a forward with half a range", in: "\x0e\x05\x02\x00\x00\x00x", want: "forward of 5 bytes"},
		{name: "an expiry clock of another length", in: "\x10\x08........", want: "8 bytes, want 4"},
		{name: "an expiry clock given twice", in: "\x10\x04....\x10\x04....", want: "given twice"},
		{name: "an expiry clock that says nothing", in: "\x10\x04\x00\x00\x00\x00", want: "time 0"},
		{name: "an empty position", in: "\x05\x10" + strings.Repeat("\x00", 16), want: "empty position"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeEdit([]byte(c.in))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if errors.Is(err, ErrVersion) != c.version {
				t.Fatalf("ErrVersion: %v", err)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	start := parseEdit(t, `add 2 log 65536; add 3 log 65536; add 9 log 65536; add 10 gc 65536
		seal 2 end=8192 last=17 file=9000; end 3 end=8192 last=30 next=100
		table 11 kv=1 run=11 keys=c..f seqnos=5..10 seg=2 seg=7; table 12 kv=1 run=12 keys=a..m seqnos=11..15; table 13 kv=1 level=1 keys=a..d seqnos=1..4
		flushed 1 15; flushed 2 15; dead 2 7,9; forward 7 10:1..9
		replay 3 4096 18; next 200; clear 5; file 20`)
	st, err := emptyState().Apply(&start)
	if err != nil {
		t.Fatal(err)
	}
	before := dump(st)
	for _, c := range []struct{ name, edit, want string }{
		{"a segment added twice", "add 9 log 4096", "added twice"},
		{"segment 0", "add 0 gc 4096", "id 0"},
		{"a log segment behind the newest", "add 5 log 4096", "added after 000009"},
		{"a segment without bytes", "add 21 log 0", "size 0"},
		{"a segment larger than an offset can say", "add 21 log 4294967296", "size 4294967296"},
		{"a seal of an unknown segment", "seal 21 end=1 last=1 file=1", "not registered"},
		{"a seal of a sealed segment", "seal 2 end=1 last=1 file=1", "recorded already"},
		{"a seal of a torn segment", "seal 3 end=1 last=1 file=1", "recorded already"},
		{"a seal beyond its file", "seal 9 end=4097 last=100 file=4096", "sealed at 4097"},
		{"a seal at nothing", "seal 9 end=0 last=100 file=4096", "sealed at 0"},
		{"a seal with seqnos of an earlier segment", "seal 9 end=4096 last=30 file=4096", "not above 30"},
		{"an end beyond the file", "end 9 end=65537 last=100 next=200", "ends at 65537"},
		{"a torn segment ended elsewhere", "end 3 end=4096 last=30 next=200", "recorded already"},
		{"a torn segment ended with another last seqno", "end 3 end=8192 last=29 next=200", "recorded already"},
		{"a torn segment whose jump falls", "end 3 end=8192 last=30 next=99", "recorded already"},
		{"an end of a sealed segment", "end 2 end=1 last=1 next=2", "recorded already"},
		{"an end without a jump", "end 9 end=4096 last=210 next=210", "210 follows"},
		{"a drop of an unknown segment", "drop 21", "not registered"},
		{"a drop of what replay needs", "drop 3", "no such log segment"},
		{"replay-from to an earlier segment", "replay 2 4096 18", "moves back"},
		{"replay-from to an earlier offset", "replay 3 512 18", "moves back"},
		{"replay-from with a lower seqno", "replay 9 4096 17", "moves back"},
		{"replay-from to a GC output", "replay 10 4096 18", "no such log segment"},
		{"replay-from behind a torn end", "replay 3 8193 18", "ends at 8192"},
		{"replay-from behind the file", "replay 9 65537 18", "65536 bytes"},
		{"next seqno falls", "next 199", "falls from 200"},
		{"next seqno out of range", "next 72057594037927936", "out of range"},
		{"clear seqno falls", "clear 4", "falls from 5"},
		{"clear seqno out of range", "clear 72057594037927936", "out of range"},
		{"file number falls", "file 19", "falls from 20"},
		{"a table without a number", "table 0 kv=1 run=1 keys=x..z", "number 0"},
		{"a table added twice", "table 11 kv=1 run=3 keys=x..z", "added twice"},
		{"a table twice in one edit", "table 21 kv=1 run=3 keys=x..y; table 21 kv=1 run=3 keys=z..z", "added twice"},
		{"a table with a key range turned round", "table 21 kv=1 run=3 keys=z..x", "key range"},
		{"a table without a key", "table 21 kv=1 run=3 keys=..x", "key range"},
		{"a table without seqnos", "table 21 kv=1 run=3 keys=x..z seqnos=0..1", "seqnos 0 to 1"},
		{"a table with seqnos turned round", "table 21 kv=1 run=3 keys=x..z seqnos=3..2", "seqnos 3 to 2"},
		{"a table without bytes", "table 21 kv=1 run=3 keys=x..z bytes=0", "0 bytes"},
		{"a table without entries", "table 21 kv=1 run=3 keys=x..z entries=0", "of 0 entries"},
		{"a table with more tombstones than entries", "table 21 kv=1 run=3 keys=x..z gone=2", "2 tombstones of 1"},
		{"a run in a sorted level", "table 21 kv=1 level=1 run=1 keys=x..z", "sorted level 1"},
		{"segments of a table out of order", "table 21 kv=1 run=3 keys=x..z seg=9 seg=2", "not ascending"},
		{"no document in a segment of a table", "table 21 kv=1 run=3 keys=x..z seg=9:0:0", "not ascending"},
		{"an address of an unknown segment", "table 21 kv=1 run=3 keys=x..z seg=8", "neither registered nor forwarded"},
		{"a table above the flushed position", "table 21 kv=1 run=3 keys=x..z seqnos=15..16", "flushed only up to 15"},
		{"a table of a kvstore that never flushed", "table 21 kv=3 run=3 keys=x..z", "flushed only up to 0"},
		{"keys shared in a run", "table 21 kv=1 run=11 keys=f..g seqnos=1..2", "000011 and 000021 of kvstore 1, level 0, run 11 overlap"},
		{"keys shared in a sorted level", "table 21 kv=1 level=1 keys=b..c seqnos=1..4", "overlap"},
		{"keys and seqnos shared by runs", "table 21 kv=1 run=3 keys=k..z seqnos=15..15", "15 to 15"},
		{"a drop of an unknown table", "untable 14", "not there"},
		{"a drop of a table twice", "untable 11; untable 11", "dropped twice"},
		{"a flushed position falls", "flushed 1 14", "falls from 15 to 14"},
		{"a flushed position out of range", "flushed 4 72057594037927936", "out of range"},
		{"a flushed position of nothing", "flushed 4 0", "out of range"},
		{"dead seqnos of an unknown segment", "dead 5 1", "not registered"},
		{"a dead seqno behind the last", "dead 2 18", "its last is 17"},
		{"a dead seqno out of range", "dead 9 72057594037927936", "dead seqnos"},
		{"a drop of a segment that is addressed", "replay 9 4096 200; drop 2", "neither registered nor forwarded"},
		{"a drop of a segment that is forwarded to", "drop 10", "to 000010, which is not registered"},
		{"a drop of a forward that is needed", "unforward 7", "neither registered nor forwarded"},
		{"a drop of an unknown forward", "unforward 6", "not there"},
		{"a forward of a registered segment", "forward 2 10:1..9", "still registered"},
		{"a forward given twice", "forward 7 10:1..9", "forwarded twice"},
		{"a forward of segment 0", "forward 0", "forward of segment 000000"},
		{"a forward of a segment that never was", "forward 20", "next file number is 20"},
		{"a forward to an unknown segment", "forward 6 5:1..9", "not registered"},
		{"a forward with seqnos turned round", "forward 6 10:9..1", "seqnos 9 to 1"},
		{"file number out of range", "file 9223372036854775807", "out of range"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := parseEdit(t, c.edit)
			_, err := st.Apply(&e)
			if !errors.Is(err, ErrInvalidEdit) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if after := dump(st); after != before {
				t.Fatalf("a refused edit changed the state to\n%s", after)
			}
		})
	}
}

func TestApplyLeavesTheOldStateAlone(t *testing.T) {
	first := parseEdit(t, "add 2 log 4096; add 3 log 4096; add 4 gc 4096; dead 4 3; forward 1 4:1..9; flushed 1 9; table 5 kv=1 run=1 keys=a..c seqnos=1..9")
	a, err := emptyState().Apply(&first)
	if err != nil {
		t.Fatal(err)
	}
	before := dump(a)
	for _, text := range []string{"seal 2 end=4096 last=3 file=4096", "drop 2", "add 5 log 4096; drop 3", "dead 4 1,2", "dead 3 1", "flushed 1 10", "flushed 0 3", "untable 5", "untable 5; table 5 kv=1 level=1 keys=a..c",
		"add 5 gc 4096; drop 4; forward 4 5:2..7", "unforward 1", "expiry 9", "end 3 end=10 last=1 next=9"} {
		e := parseEdit(t, text)
		if _, err := a.Apply(&e); err != nil {
			t.Fatal(err)
		}
		if after := dump(a); after != before {
			t.Fatalf("%s changed the old state to\n%s", text, after)
		}
	}
}

func TestM8_CheckTables(t *testing.T) {
	e := parseEdit(t, "flushed 1 9; table 5 kv=1 run=1 keys=a..c seqnos=1..9 bytes=8192; table 6 kv=1 run=2 keys=d..e seqnos=1..9 bytes=4096")
	st, err := emptyState().Apply(&e)
	if err != nil {
		t.Fatal(err)
	}
	st.Manifest = 7
	eio := errors.New("input/output error")
	for _, c := range []struct {
		name    string
		sizes   map[uint64]int64
		err     error
		want    string
		corrupt bool
	}{
		{name: "all as recorded", sizes: map[uint64]int64{5: 8192, 6: 4096}},
		{name: "too short", sizes: map[uint64]int64{5: 8191, 6: 4096}, want: "5.tbl at offset 8191: 8191 bytes long, MANIFEST-000007 recorded 8192", corrupt: true},
		{name: "too long", sizes: map[uint64]int64{5: 8192, 6: 8192}, want: "6.tbl at offset 4096: 8192 bytes long, MANIFEST-000007 recorded 4096", corrupt: true},
		{name: "empty", sizes: map[uint64]int64{5: 0, 6: 4096}, want: "5.tbl at offset 0: 0 bytes long, MANIFEST-000007 recorded 8192", corrupt: true},
		{name: "missing", sizes: map[uint64]int64{5: 8192}, want: "6.tbl at offset 0: named by MANIFEST-000007, but missing", corrupt: true},
		{name: "a device that does not answer", sizes: map[uint64]int64{5: 8192}, err: eio, want: "size of 6.tbl: input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckTables(st, func(t *Table) string { return fmt.Sprintf("%d.tbl", t.Number) }, func(t *Table) (int64, error) {
				if n, ok := c.sizes[t.Number]; ok {
					return n, nil
				}
				if c.err != nil {
					return 0, c.err
				}
				return 0, os.ErrNotExist
			})
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrCorrupt) != c.corrupt {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestM8_CheckFiles(t *testing.T) {
	e := parseEdit(t, "add 2 log 65536; add 3 log 65536; add 4 log 65536; seal 2 end=8192 last=17 file=9000; end 3 end=8192 last=30 next=100")
	st, err := emptyState().Apply(&e)
	if err != nil {
		t.Fatal(err)
	}
	st.Manifest = 7
	eio := errors.New("input/output error")
	for _, c := range []struct {
		name    string
		sizes   map[entry.SegmentID]int64
		err     error
		want    string
		corrupt bool
	}{
		{name: "all as recorded", sizes: map[entry.SegmentID]int64{2: 9000, 3: 65536, 4: 65536}},
		{name: "a torn one was cut at its end", sizes: map[entry.SegmentID]int64{2: 9000, 3: 8192, 4: 65536}},
		{name: "the active one was cut for its seal", sizes: map[entry.SegmentID]int64{2: 9000, 3: 65536, 4: 9000}},
		{name: "the active one was cut short", sizes: map[entry.SegmentID]int64{2: 9000, 3: 65536, 4: 9001}, want: "log/000004.seg at offset 9001: 9001 bytes long, registered in MANIFEST-000007 with 65536", corrupt: true},
		{name: "a missing file", sizes: map[entry.SegmentID]int64{2: 9000, 3: 65536}, want: "log/000004.seg at offset 0: registered in MANIFEST-000007, but missing", corrupt: true},
		{name: "a sealed file too short", sizes: map[entry.SegmentID]int64{2: 8999, 3: 65536, 4: 1}, want: "log/000002.seg at offset 8999", corrupt: true},
		{name: "a sealed file too long", sizes: map[entry.SegmentID]int64{2: 9001, 3: 65536, 4: 1}, want: "log/000002.seg at offset 9000", corrupt: true},
		{name: "a torn file shorter than its end", sizes: map[entry.SegmentID]int64{2: 9000, 3: 8191, 4: 1}, want: "recorded its end at 8192", corrupt: true},
		{name: "an empty file", sizes: map[entry.SegmentID]int64{2: 9000, 3: 65536, 4: 0}, want: "log/000004.seg at offset 0: empty", corrupt: true},
		{name: "a device that does not answer", sizes: map[entry.SegmentID]int64{2: 9000, 3: 65536}, err: eio, want: "input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckFiles(st, segmentName, func(s Segment) (int64, error) {
				if n, ok := c.sizes[s.ID]; ok {
					return n, nil
				}
				if c.err != nil {
					return 0, c.err
				}
				return 0, os.ErrNotExist
			}, func(s Segment) (bool, error) { return c.sizes[s.ID] == 9000, nil })
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrCorrupt) != c.corrupt {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}
