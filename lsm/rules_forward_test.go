package lsm

import (
	"fmt"
	"strings"
	"testing"

	"fluxkv/compaction"
	"fluxkv/internal/vfs/memfs"
)

// pickHook calls before ahead of each choice of a merge.
type pickHook struct {
	compaction.Picker
	before func()
}

func (p pickHook) Pick(in compaction.Picture) (compaction.Job, bool) {
	p.before()
	return p.Picker.Pick(in)
}

// TestR08_AMergeKeepsTheForwardsOfItsVersion: a merge may write addresses in any
// segment of the version it has. What leads on from there stays until it ends,
// also when a collection installs just as the merge starts.
func TestR08_AMergeKeepsTheForwardsOfItsVersion(t *testing.T) {
	// large overwrites documents, so that there is something to collect.
	large := func(t *testing.T, db *DB) {
		for round := range 3 {
			for i := range 200 {
				set(t, db, fmt.Sprintf("key%d", i), strings.Repeat(fmt.Sprint(round), 3000))
			}
			mustFlush(t, db)
		}
	}
	t.Run("while the merge is picked", func(t *testing.T) {
		db := mustOpen(t, "data", gcOptions(memfs.New()))
		defer db.Close()
		looked := 0
		db.picker = pickHook{db.picker, func() {
			looked++
			// A collection that installed now would call its forwards this old.
			if born := db.mergeSeq.Load(); born == 0 {
				t.Error("a merge has a version and no number yet")
			}
		}}
		large(t, db)
		mustCompact(t, db)
		if looked == 0 {
			t.Fatal("nothing was picked")
		}
	})
	t.Run("while the collection is written", func(t *testing.T) {
		fs := memfs.New()
		db := mustOpen(t, "data", gcOptions(fs))
		defer db.Close()
		large(t, db)
		type merge struct {
			seq  uint64
			from *view
		}
		merges := make(chan merge, 1000)
		fs.SetHook(func(op memfs.Op) error {
			if strings.Contains(op.Name, "MANIFEST") && len(merges) < cap(merges) {
				merges <- merge{db.mergeSeq.Add(1), db.pin()}
			}
			return nil
		})
		mustCompact(t, db)
		fs.SetHook(nil)
		st := db.edits.log.State()
		if len(st.Forwards) == 0 {
			t.Fatal("nothing was collected, or no forward is left")
		}
		for len(merges) > 0 {
			m := <-merges
			for _, f := range st.Forwards {
				if m.from.version.segments[f.From] != nil && db.forwardBorn[f.From] < m.seq {
					t.Errorf("merge %d has segment %06d, whose forward may go after merge %d", m.seq, f.From, db.forwardBorn[f.From])
				}
			}
			m.from.release()
		}
	})
}
