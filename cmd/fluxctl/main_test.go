package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fluxkv/lsm"
)

func fluxctl(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(context.Background(), args, &o, &e)
	return status, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"verify"}, {"mend", "x"}, {"verify", "a", "b"}, {"--colour", "verify", "a"}} {
		if status, _, errs := fluxctl(args...); status != 2 || !strings.Contains(errs, "usage") {
			t.Errorf("%q: status %d, %q", args, status, errs)
		}
	}
	if status, out, _ := fluxctl("--help"); status != 0 || !strings.Contains(out, "usage") {
		t.Errorf("help: status %d, %q", status, out)
	}
}

func TestVerifyAndCompact(t *testing.T) {
	dir := t.TempDir()
	if status, _, errs := fluxctl("verify", filepath.Join(dir, "none")); status != 1 || !strings.Contains(errs, "none") {
		t.Errorf("a directory that is not there: status %d, %q", status, errs)
	}
	db, err := lsm.Open(dir, lsm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if _, err := db.Apply(batch(t, i), lsm.WriteOptions{NoWait: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := fluxctl("verify", dir); status != 1 || !strings.Contains(errs, "locked") {
		t.Errorf("a store that is open: status %d, %q", status, errs)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := fluxctl("verify", dir); status != 0 || !strings.Contains(out, `"documents": 10`) {
		t.Errorf("verify: status %d, %s%s", status, out, errs)
	}
	if status, out, errs := fluxctl("compact", dir); status != 0 || !strings.Contains(out, `"table_entries": 10`) {
		t.Errorf("compact: status %d, %s%s", status, out, errs)
	}
	tables, err := filepath.Glob(filepath.Join(dir, lsm.TablesDir, "*"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	f, err := os.OpenFile(tables[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff, 0xff}, 8); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := fluxctl("verify", dir); status != 1 || !strings.Contains(errs, filepath.Base(tables[0])) {
		t.Errorf("verify of a damaged table: status %d, %q", status, errs)
	}
}

// batch overwrites ten documents again and again.
func batch(t *testing.T, i int) *lsm.Batch {
	var b lsm.Batch
	if err := b.Set(fmt.Appendf(nil, "key%d", i%10), bytes.Repeat([]byte{'v'}, 1000), lsm.Meta{}); err != nil {
		t.Fatal(err)
	}
	return &b
}
