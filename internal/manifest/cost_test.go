package manifest

import (
	"fmt"
	"testing"

	"fluxkv/internal/entry"
)

const (
	costSegments = 500
	costTables   = 5000
	costSeqnos   = 1 << 30 // every kvstore is flushed up to here
)

// costState is a large store: 5,000 tables of 16 kvstores, each addressing 1 to
// 4 of 500 segments, with 1,000 dead documents in each of those. A kvstore has
// 8 runs of 4 tables that share all keys, and one sorted level.
func costState(tb testing.TB) State {
	e := Edit{ReplayFrom: entry.Position{Segment: costSegments, Offset: 4096, Seqno: costSeqnos}, NextSeqno: costSeqnos + 1}
	for id := entry.SegmentID(1); id <= costSegments; id++ {
		e.AddSegments = append(e.AddSegments, AddSegment{ID: id, Kind: SegmentLog, Size: 1 << 27})
		if id < costSegments {
			e.SealSegments = append(e.SealSegments, SealSegment{ID: id, End: 1 << 26, Last: entry.Seqno(id) * 100_000, FileBytes: 1 << 27})
		}
		var dead []entry.Seqno
		for s := range entry.Seqno(1000) {
			dead = append(dead, entry.Seqno(id-1)*100_000+1+s*90)
		}
		e.AddDead = append(e.AddDead, NewDeadSet(id, dead))
	}
	e.DropSegments = nil
	number := uint64(costSegments)
	add := func(t *Table) {
		number++
		t.Number, t.FileBytes, t.Entries = number, 1<<23, 1000
		for i := range 1 + number%4 {
			// The first segment is addressed by nothing, so it can go.
			t.Segments = append(t.Segments, SegmentUse{Segment: entry.SegmentID(2 + number%490 + i), Documents: 9, Bytes: 900})
		}
		e.AddTables = append(e.AddTables, t)
	}
	key := func(kv uint16, i int) []byte { return entry.AppendKey(nil, kv, fmt.Appendf(nil, "user:%012d", i)) }
	for kv := range uint16(16) {
		e.Flushed = append(e.Flushed, Flushed{KVStore: kv, Seqno: costSeqnos})
		for run := range 8 {
			for i := range 4 {
				add(&Table{KVStore: kv, Run: uint64(1 + run), Smallest: key(kv, i*1000), Largest: key(kv, i*1000+999),
					LowestSeqno: costSeqnos - entry.Seqno(run+1)*1000, HighestSeqno: costSeqnos - entry.Seqno(run)*1000 - 1})
			}
		}
		for i := 0; len(e.AddTables) < costTables*int(kv+1)/16; i++ {
			add(&Table{KVStore: kv, Level: 1, Smallest: key(kv, i*10), Largest: key(kv, i*10+9), LowestSeqno: 1, HighestSeqno: costSeqnos / 2})
		}
	}
	e.NextFile = number + 100
	st, err := emptyState().Apply(&e)
	if err != nil {
		tb.Fatal(err)
	}
	return st
}

// costEdits are changes of that state.
func costEdits() map[string]*Edit {
	flush := &Edit{DropSegments: []entry.SegmentID{1}, ReplayFrom: entry.Position{Segment: costSegments, Offset: 8192, Seqno: costSeqnos + 5}}
	for kv := range uint16(4) {
		flush.AddTables = append(flush.AddTables, &Table{Number: 9000 + uint64(kv), KVStore: kv, Run: 9000, FileBytes: 1 << 23, Entries: 9, LowestSeqno: costSeqnos + 1, HighestSeqno: costSeqnos + 9,
			Smallest: entry.AppendKey(nil, kv, []byte("user:000000000000")), Largest: entry.AppendKey(nil, kv, []byte("user:000000009999")),
			Segments: []SegmentUse{{Segment: 499, Documents: 9, Bytes: 900}, {Segment: 500, Documents: 9, Bytes: 900}}})
		flush.Flushed = append(flush.Flushed, Flushed{KVStore: kv, Seqno: costSeqnos + 9})
	}
	for _, id := range []entry.SegmentID{400, 450} {
		var dead []entry.Seqno
		for s := range entry.Seqno(1000) {
			dead = append(dead, entry.Seqno(id-1)*100_000+2+s*90)
		}
		flush.AddDead = append(flush.AddDead, NewDeadSet(id, dead))
	}
	return map[string]*Edit{
		"flush":    flush,
		"register": {AddSegments: []AddSegment{{ID: 9999, Kind: SegmentLog, Size: 1 << 27}}},
		"seal":     {SealSegments: []SealSegment{{ID: costSegments, End: 1 << 26, Last: costSeqnos * 2, FileBytes: 1 << 27, Footer: true}}},
	}
}

// BenchmarkApply derives a state and encodes the record of the edit, as
// Log.Apply does under its lock.
func BenchmarkApply(b *testing.B) {
	st := costState(b)
	for name, e := range costEdits() {
		b.Run(name, func(b *testing.B) {
			var rec []byte
			b.ReportAllocs()
			for b.Loop() {
				if _, err := st.Apply(e); err != nil {
					b.Fatal(err)
				}
				rec = appendRecord(rec[:0], testSecret, 1, headerBytes, headerBytes, e)
			}
			b.ReportMetric(float64(len(rec)), "record-bytes")
		})
	}
	compact := &Edit{}
	for _, t := range st.LevelTables(3, 0)[:16] {
		compact.DropTables = append(compact.DropTables, t.Number)
	}
	for i, t := range st.LevelTables(3, 1)[:10] {
		compact.DropTables = append(compact.DropTables, t.Number)
		out := *t
		out.Number, out.HighestSeqno = 9000+uint64(i), costSeqnos
		compact.AddTables = append(compact.AddTables, &out)
	}
	b.Run("compact", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := st.Apply(compact); err != nil {
				b.Fatal(err)
			}
		}
	})
}
