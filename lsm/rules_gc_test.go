package lsm

import (
	"fmt"
	"strings"
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// gcOptions are for tests that say themselves what is flushed, merged and
// collected, and when.
func gcOptions(fs *memfs.FS) Options {
	o := testOptions(fs)
	o.VBuckets, o.KVStores, o.flushOnDemand = 1, 1, true
	return o
}

func mustCompact(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
}

func del(t testing.TB, db *DB, key string) {
	t.Helper()
	if _, err := db.Delete([]byte(key)); err != nil {
		t.Fatal(err)
	}
}

// TestR14_ReplayKeepsTombstonesAboveTheLastLevel: a kvstore may have a last
// level and nothing above it. What a replay flushes is not the bottom then.
func TestR14_ReplayKeepsTombstonesAboveTheLastLevel(t *testing.T) {
	fs := memfs.New()
	o := gcOptions(fs)
	db := mustOpen(t, "data", o)
	set(t, db, "deleted", "1")
	set(t, db, "kept", "1")
	mustCompact(t, db)
	st := db.edits.log.State()
	if n := len(st.LevelTables(0, 0)); len(st.Tables) != 1 || n != 0 {
		t.Fatalf("%d tables, %d of them in level 0: the test wants one in the last level", len(st.Tables), n)
	}
	del(t, db, "deleted")
	value := strings.Repeat("v", 200)
	for i := range 400 {
		set(t, db, fmt.Sprintf("key%d", i), value)
	}
	o.FS = fs.CrashCopy(1, memfs.DropAll)
	db.Close()
	o.WriteCache, o.writeCacheMin = 48*kib, 16*kib
	db = mustOpen(t, "data", o)
	defer db.Close()
	if db.recovery.Spills == 0 {
		t.Fatal("replay flushed nothing")
	}
	want(t, db, "deleted", "")
	want(t, db, "kept", "1")
}
