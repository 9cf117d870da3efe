package lsm

import (
	"fmt"
	"testing"

	"fluxkv/compaction"
	"fluxkv/internal/vfs/memfs"

	"pgregory.net/rapid"
)

// TestR14_ASliceMayBeOlderThanTheLastLevelBelowIt: ranges grow together when a
// table lies over both. What is merged above the last level then may have older
// versions of some keys than the last level has of others, and only per key the
// newer ones are above.
func TestR14_ASliceMayBeOlderThanTheLastLevelBelowIt(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	h := byHand(db, mib)
	write := func(value string, keys ...string) {
		t.Helper()
		for _, k := range keys {
			set(t, db, k, value)
		}
		mustFlush(t, db)
	}
	step := func(want compaction.Reason, out uint8) {
		t.Helper()
		j, ok, err := h.merge(false)
		if !ok || err != nil || j.Reason != want || j.OutLevel != out {
			t.Fatalf("merged %+v, %v; want one by %s into level %d", j, err, want, out)
		}
		if err := checkAges(db); err != nil {
			t.Fatal(err)
		}
	}
	write("1", "n", "z")
	write("2", "n", "z")
	write("3", "a", "b", "c", "d", "m")
	step(compaction.ReasonShare, 1) // [a..m] goes to the last level
	write("4", "a", "z")
	step(compaction.ReasonRuns, 0) // all above it becomes one slice, over [a..m] too
	st := db.edits.log.State()
	above, below := st.LevelTables(0, 0), st.LevelTables(0, 1)
	if len(above) != 1 || len(below) != 1 || above[0].LowestSeqno >= below[0].HighestSeqno {
		t.Fatalf("the test wants one slice that reaches below the last level in age: %+v over %+v", above, below)
	}
	for key, value := range map[string]string{"a": "4", "b": "3", "m": "3", "n": "2", "z": "4"} {
		want(t, db, key, value)
	}
	verified(t, db)
}

// TestR14_AgesHoldInEveryShape: whatever was flushed and merged over ranges that
// part and join, runs are read from the newest down, nobody sees another thing,
// and no tombstone goes before what it hides.
func TestR14_AgesHoldInEveryShape(t *testing.T) {
	const keys = 40
	rapid.Check(t, func(rt *rapid.T) {
		db := mustOpen(t, "data", gcOptions(memfs.New()))
		defer db.Close()
		h := byHand(db, rapid.SampledFrom([]int64{8 * kib, 40 * kib, mib}).Draw(rt, "range"))
		truth := map[string]string{}
		var snap *Snapshot
		var then map[string]string
		for step := range rapid.IntRange(5, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "step") {
			default:
				// A few neighbours, or the two ends of a stretch.
				first := rapid.IntRange(0, keys-1).Draw(rt, "first")
				n := rapid.IntRange(1, 8).Draw(rt, "keys")
				stride := rapid.SampledFrom([]int{1, 1, 5, 20}).Draw(rt, "stride")
				for i := range n {
					key := fmt.Sprintf("%02d", (first+i*stride)%keys)
					if rapid.IntRange(0, 4).Draw(rt, "delete") == 0 {
						del(t, db, key)
						delete(truth, key)
						continue
					}
					truth[key] = fmt.Sprint(step)
					set(t, db, key, truth[key])
				}
				mustFlush(t, db)
			case 2, 3:
				if _, _, err := h.merge(rapid.Bool().Draw(rt, "idle")); err != nil {
					rt.Fatal(err)
				}
			case 4:
				if snap != nil {
					snap.Close()
				}
				var err error
				if snap, err = db.NewSnapshot(); err != nil {
					rt.Fatal(err)
				}
				defer snap.Close()
				then = map[string]string{}
				for k, v := range truth {
					then[k] = v
				}
			}
			if err := checkAges(db); err != nil {
				rt.Fatal(err)
			}
			for i := range keys {
				key := fmt.Sprintf("%02d", i)
				it, err := db.Get(nil, []byte(key))
				if v, ok := truth[key]; ok != (err == nil) || string(it.Value) != v {
					rt.Fatalf("%s is %q, %v, want %q", key, it.Value, err, v)
				}
				if snap == nil {
					continue
				}
				it, err = snap.Get(nil, []byte(key))
				if v, ok := then[key]; ok != (err == nil) || string(it.Value) != v {
					rt.Fatalf("%s is %q, %v, in a snapshot, want %q", key, it.Value, err, v)
				}
			}
		}
	})
}
