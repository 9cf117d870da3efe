package compaction

import (
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
)

// crowd is a state with n tables of level 0, one run each, of one kvstore. Table i
// has the keys [i*10, i*10+width].
func crowd(n, width int) *manifest.State {
	st := &manifest.State{NextSeqno: 1, NextFileNumber: uint64(n) + 1}
	for i := range n {
		st.Tables = append(st.Tables, &manifest.Table{
			Number: uint64(i + 1), Run: uint64(i + 1), LowestSeqno: entry.Seqno(i*10 + 1), HighestSeqno: entry.Seqno(i*10 + 9),
			Smallest: longKey(i * 10), Largest: longKey(i*10 + width), Entries: 100, KeyBytes: 1400, FileBytes: 20_000,
		})
	}
	return st
}

func longKey(i int) []byte {
	return entry.AppendKey(nil, 1, []byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
}

// TestC10_PickingAmongAQuarterMillionTables: so many tables of level 0 were seen
// elsewhere when merges had been behind for days. A picker that compared every
// table with every other one would not end here in the time that a test has, and
// each table is looked at a few times at most.
func TestC10_PickingAmongAQuarterMillionTables(t *testing.T) {
	n := 268_518
	if testing.Short() {
		n = 60_000
	}
	for _, c := range []struct {
		name  string
		width int // of a table's keys
		takes int // tables that the first job takes, at least
	}{
		{"apart", 5, 1000}, // neighbours go to the last level together
		{"each over the next", 15, n},
		{"all over all", 10 * n, n},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := crowd(n, c.width)
			for _, p := range []struct {
				name   string
				picker Picker
			}{
				{"lazy", Lazy{FloorBytes: -1}},
				{"leveled", Leveled{}},
			} {
				looks := 0
				in := Picture{State: st, KVStores: 1, Horizon: 1 << 40, Expired: func(uint64) uint64 { looks++; return 0 }}
				j, ok := p.picker.Pick(in)
				if !ok {
					if c.takes == n || p.name == "lazy" { // runs that share no key may stay in level 0 of the other shape
						t.Errorf("%s: nothing is picked", p.name)
					}
					continue
				}
				if looks > 4*n {
					t.Errorf("%s: %d looks at %d tables", p.name, looks, n)
				}
				taken := 0
				for _, run := range j.Inputs {
					taken += len(run)
				}
				if taken < c.takes && (p.name == "lazy" || taken < 2) {
					t.Errorf("%s: the job takes %d of %d tables: %s", p.name, taken, n, j.Reason)
				}
				in.Running = []*Job{&j}
				looks = 0
				if next, ok := p.picker.Pick(in); ok {
					in.Running = append(in.Running, &next)
				}
				if looks > 4*n {
					t.Errorf("%s: %d looks at %d tables beside a job", p.name, looks, n)
				}
			}
			if keys := Ranges(st, 0, 16<<20); c.takes == n && len(keys) > 0 {
				t.Errorf("%d borders in what hangs together", len(keys))
			}
		})
	}
}
