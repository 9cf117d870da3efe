package compaction

import (
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
)

// BenchmarkPick looks at 16 kvstores of 640 tables, as 300 GB of last levels in
// tables of 32 MiB have them, with 8 slices above each range.
func BenchmarkPick(b *testing.B) {
	e := &manifest.Edit{}
	number := uint64(0)
	for k := range uint16(16) {
		add := func(level uint8, run uint64, i, seqno int) {
			number++
			x := &manifest.Table{
				Number: number, KVStore: k, Level: level, Run: run, LowestSeqno: entry.Seqno(seqno), HighestSeqno: entry.Seqno(seqno + 99),
				Smallest: playKey(i * 10), Largest: playKey(i*10 + 9), Entries: 1000, KeyBytes: 14_000, FileBytes: 32 << 20,
			}
			if level == 0 {
				x.Entries, x.FileBytes = 10, 1<<20
			}
			e.AddTables = append(e.AddTables, x)
		}
		for i := range 600 {
			add(1, 0, i, 1)
		}
		for run := range 7 {
			for i := range 5 {
				add(0, 10_000+uint64(run), i*100, 1000+run*100)
			}
		}
		e.Flushed = append(e.Flushed, manifest.Flushed{KVStore: k, Seqno: 1 << 40})
	}
	st, err := (manifest.State{NextSeqno: 1, NextFileNumber: 1}).Apply(e)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		picker Picker
	}{{"lazy", Lazy{}}, {"leveled", Leveled{L0Tables: 99, BaseLevelBytes: 1 << 50}}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if j, ok := c.picker.Pick(Picture{State: &st, KVStores: 16, Horizon: 1 << 40, Idle: true}); ok {
					b.Fatal(j.describe())
				}
			}
		})
	}
}
