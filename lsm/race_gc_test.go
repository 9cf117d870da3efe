package lsm

import (
	"os"
	"strconv"
	"testing"
)

// stressRounds is how many rounds a stress test has: some by default, as many as
// FLUXKV_STRESS_ROUNDS says in a soak.
func stressRounds(t *testing.T) int {
	if n := os.Getenv("FLUXKV_STRESS_ROUNDS"); n != "" {
		rounds, err := strconv.Atoi(n)
		if err != nil || rounds < 8 {
			t.Fatalf("FLUXKV_STRESS_ROUNDS=%s: want 8 or more", n)
		}
		return rounds
	}
	if testing.Short() {
		return 8
	}
	return 16
}

// TestReadersAndWritersUnderGC is TestReadersAndWritersUnderFlush with tables
// merged and segments collected all the time, while everybody goes on: no reader
// may miss what was acknowledged, or see what is older, or half of one version
// and half of another, and no address may lead nowhere.
func TestReadersAndWritersUnderGC(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"durable, compressed, a document cache", Options{KVStores: 4, InlineLimit: 64, rangeBytesMin: 16 * kib, CompressDocuments: true, DocumentCacheBytes: 16 * mib}},
		{"async, merges side by side", Options{KVStores: 8, InlineLimit: 100, NonDurable: true, Compactors: 4, rangeBytesMin: 16 * kib, CompressIndex: true}},
		{"levels", Options{KVStores: 4, InlineLimit: 64, NonDurable: true, Leveled: true, L0Tables: 2, LevelMultiplier: 2, BaseLevelBytes: 16 * kib}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.TableBytes = 28 * kib
			s := newStress(t, c.o)
			s.hold = true
			wg := s.start()
			tables := 0
			rounds := stressRounds(t)
			for i := range rounds {
				<-s.written
				s.clock.Add(1)
				worked := make(chan error)
				go func() {
					if i%4 == 3 {
						worked <- s.db.Compact()
					} else {
						worked <- s.db.Flush()
					}
				}()
				s.goOn()
				if err := <-worked; err != nil {
					t.Error(err)
				}
				tables = max(tables, s.db.Stats().Tables)
				if i%6 == 5 {
					s.clear()
				}
			}
			st := s.db.Stats()
			s.end(wg)
			t.Logf("%d merges, %d moves, %d collections kept %d and dropped %d documents, %d of %d probes, %d reads of moved documents, up to %d tables, %d counts found",
				st.Compactions, st.CompactionMoves, st.Collections, st.GCKept, st.GCDropped, st.ProbesReplaced, st.Probes, st.MovedReads, tables, s.found.Load())
			if st.Compactions < int64(rounds/4) || st.Collections < int64(rounds/8) || st.GCKept == 0 || st.MovedReads == 0 || tables <= s.o.OpenTables || s.found.Load() == 0 {
				t.Error("too little was merged, collected, or read where it was moved to")
			}
			if st.FlushesFailed+st.CompactionsFailed+st.CollectionsFailed > 0 {
				t.Errorf("%d flushes failed (%s), %d merges (%s), %d collections (%s)",
					st.FlushesFailed, st.FlushError, st.CompactionsFailed, st.CompactionError, st.CollectionsFailed, st.CollectionError)
			}
			s.reopen()
			defer s.db.Close()
			if err := checkStore(s.db); err != nil {
				t.Error(err)
			}
			mustCompact(t, s.db)
			if err := checkStore(s.db); err != nil {
				t.Error(err)
			}
			verified(t, s.db)
		})
	}
}
