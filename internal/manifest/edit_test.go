package manifest

import (
	"errors"
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
		}
		if e.SetPendingClear {
			e.PendingClear = rapid.Int64().Draw(t, "pending")
		}
		if rapid.Bool().Draw(t, "replay") {
			e.ReplayFrom = entry.Position{Segment: id.Draw(t, ""), Offset: rapid.Uint32().Draw(t, "offset"), Seqno: seqno.Draw(t, "")}
		}
		return e
	})
}

// normal makes empty and missing slices the same.
func normal(e Edit) Edit {
	if len(e.AddSegments) == 0 {
		e.AddSegments = nil
	}
	if len(e.SealSegments) == 0 {
		e.SealSegments = nil
	}
	if len(e.EndSegments) == 0 {
		e.EndSegments = nil
	}
	if len(e.DropSegments) == 0 {
		e.DropSegments = nil
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
		drop 5
		replay 3 4096 10; next 40; clear 8; pending 77; file 50`)
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
		{name: "a tag from the future", in: "\x0a\x01x", want: "unknown tag 10", version: true},
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
	first := parseEdit(t, "add 2 log 4096; add 3 log 4096; add 4 gc 4096")
	a, err := emptyState().Apply(&first)
	if err != nil {
		t.Fatal(err)
	}
	before := dump(a)
	for _, text := range []string{"seal 2 end=4096 last=3 file=4096", "drop 2", "add 5 log 4096; drop 3", "end 3 end=10 last=1 next=9"} {
		e := parseEdit(t, text)
		if _, err := a.Apply(&e); err != nil {
			t.Fatal(err)
		}
		if after := dump(a); after != before {
			t.Fatalf("%s changed the old state to\n%s", text, after)
		}
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
