package manifest

import (
	"maps"
	"slices"
	"testing"

	"fluxkv/internal/entry"

	"pgregory.net/rapid"
)

// smallEdits draws edits of so few segments, tables, keys and seqnos that they
// often fit the state, and often just miss.
type smallEdits struct {
	t  *rapid.T
	st State
}

func (g smallEdits) seqno(label string) entry.Seqno {
	return entry.Seqno(rapid.Uint64Range(1, 20).Draw(g.t, label))
}

func (g smallEdits) often(label string) bool { return rapid.IntRange(0, 5).Draw(g.t, label) > 0 }

func (g smallEdits) fresh(label string) entry.SegmentID {
	return entry.SegmentID(rapid.Uint64Range(1, 14).Draw(g.t, label))
}

// segment is often a registered one.
func (g smallEdits) segment(label string) entry.SegmentID {
	if len(g.st.Segments) > 0 && g.often("registered") {
		return rapid.SampledFrom(g.st.Segments).Draw(g.t, label).ID
	}
	return g.fresh(label)
}

func (g smallEdits) table() *Table {
	low := g.seqno("low")
	t := &Table{Number: rapid.Uint64Range(1, 30).Draw(g.t, "number"), KVStore: rapid.Uint16Range(0, 1).Draw(g.t, "kv"), Level: rapid.Uint8Range(0, 1).Draw(g.t, "level"),
		LowestSeqno: low, HighestSeqno: low + entry.Seqno(rapid.IntRange(0, 3).Draw(g.t, "more")), FileBytes: 4096, Entries: 1}
	if t.Level == 0 {
		t.Run = rapid.Uint64Range(1, 3).Draw(g.t, "run")
	}
	from := rapid.ByteRange('a', 'p').Draw(g.t, "from")
	t.Smallest = entry.AppendKey(nil, 0, []byte{from})
	t.Largest = entry.AppendKey(nil, 0, []byte{from + rapid.ByteRange(0, 9).Draw(g.t, "to")})
	used := map[entry.SegmentID]bool{}
	for range rapid.IntRange(0, 2).Draw(g.t, "uses") {
		used[g.segment("use")] = true
	}
	for _, id := range slices.Sorted(maps.Keys(used)) {
		t.Segments = append(t.Segments, SegmentUse{Segment: id, Documents: 1, Bytes: 1})
	}
	return t
}

// add makes one more change part of e.
func (g smallEdits) add(e *Edit) {
	switch rapid.SampledFrom([]string{"add", "log", "seal", "end", "drop", "table", "table", "table", "move", "untable", "flushed", "dead", "forward", "unforward", "replay"}).Draw(g.t, "change") {
	case "add":
		e.AddSegments = append(e.AddSegments, AddSegment{ID: g.fresh("id"), Kind: SegmentGC, Size: 4096})
	case "log":
		e.AddSegments = append(e.AddSegments, AddSegment{ID: entry.SegmentID(g.st.NextFileNumber), Kind: SegmentLog, Size: 4096})
	case "seal":
		e.SealSegments = append(e.SealSegments, SealSegment{ID: g.segment("id"), End: 512, Last: g.seqno("last"), FileBytes: 4096})
	case "end":
		e.EndSegments = append(e.EndSegments, EndSegment{ID: g.segment("id"), End: 512, Last: g.seqno("last"), Next: 21})
	case "drop":
		e.DropSegments = append(e.DropSegments, g.segment("id"))
	case "table":
		e.AddTables = append(e.AddTables, g.table())
	case "move":
		if len(g.st.Tables) > 0 {
			out := *rapid.SampledFrom(g.st.Tables).Draw(g.t, "table")
			e.DropTables = append(e.DropTables, out.Number)
			out.Level, out.Run = 1, 0
			e.AddTables = append(e.AddTables, &out)
		}
	case "untable":
		n := rapid.Uint64Range(1, 30).Draw(g.t, "number")
		if len(g.st.Tables) > 0 && g.often("there") {
			n = rapid.SampledFrom(g.st.Tables).Draw(g.t, "table").Number
		}
		e.DropTables = append(e.DropTables, n)
	case "flushed":
		kv := rapid.Uint16Range(0, 1).Draw(g.t, "kv")
		e.Flushed = append(e.Flushed, Flushed{KVStore: kv, Seqno: g.st.FlushedSeqno(kv) + entry.Seqno(rapid.IntRange(0, 20).Draw(g.t, "more"))})
	case "dead":
		e.AddDead = append(e.AddDead, NewDeadSet(g.segment("id"), []entry.Seqno{g.seqno("s"), g.seqno("s")}))
	case "forward":
		f := Forward{From: g.segment("from")}
		e.DropSegments = append(e.DropSegments, f.From)
		for range rapid.IntRange(0, 2).Draw(g.t, "ranges") {
			low := g.seqno("first")
			f.To = append(f.To, ForwardRange{Segment: g.segment("to"), First: low, Last: low + 5})
		}
		e.AddForwards = append(e.AddForwards, f)
	case "unforward":
		if len(g.st.Forwards) > 0 {
			e.DropForwards = append(e.DropForwards, rapid.SampledFrom(g.st.Forwards).Draw(g.t, "forward").From)
		}
	case "replay":
		e.ReplayFrom = entry.Position{Segment: g.segment("replay"), Offset: 512, Seqno: g.seqno("replay seqno")}
	}
}

// TestM8_ApplyRefusesWhatValidateDoes: an edit is checked only for what it can
// have broken, and that must be as good as checking everything.
func TestM8_ApplyRefusesWhatValidateDoes(t *testing.T) {
	applied, refused, invalid := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		st := emptyState()
		st.Flushed = []Flushed{{KVStore: 0, Seqno: 12}, {KVStore: 1, Seqno: 20}}
		for range rapid.IntRange(1, 60).Draw(t, "edits") {
			var e Edit
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				smallEdits{t, st}.add(&e)
			}
			before := dump(st)
			next := st
			if err := next.apply(&e); err != nil {
				refused++
			} else if changed, all := next.checkChanged(&e), Validate(next); (changed == nil) != (all == nil) {
				t.Fatalf("Apply says %v, Validate %v, of\n%safter %+v", changed, all, dump(next), e)
			} else if all != nil {
				invalid++
			} else {
				for id := range entry.SegmentID(16) {
					want := 0
					for _, table := range next.Tables {
						if slices.ContainsFunc(table.Segments, func(u SegmentUse) bool { return u.Segment == id }) {
							want++
						}
					}
					if got := next.TablesOf(id); got != want {
						t.Fatalf("%d tables address segment %d, want %d", got, id, want)
					}
				}
				applied++
				if after := dump(st); after != before {
					t.Fatalf("the old state became\n%s", after)
				}
				st = next
				continue
			}
			if after := dump(st); after != before {
				t.Fatalf("the old state became\n%s", after)
			}
		}
	})
	t.Logf("%d edits applied, %d contradicted the state, %d broke it", applied, refused, invalid)
}
