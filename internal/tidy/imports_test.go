package tidy

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// floors is the house, lowest floor first. A package may import only from
// floors below its own, never from its own floor. Test files are exempt.
var floors = [][]string{
	{"internal/invariants", "internal/mutant"},
	{"internal/offheap"},
	{"internal/entry", "internal/aio", "internal/s3fifo"},
	{"internal/vfs", "internal/iter", "internal/blockcache", "internal/doccache"},
	{
		"wal", "memtable", "sstable", "internal/manifest",
		"internal/vfs/memfs", "internal/vfs/faultfs", "internal/vfs/vfstest",
	},
	{"compaction"},
	{"lsm"},
	{"mcbp"},
	{"bench", "internal/admin"},
	{"cmd/fluxkv", "cmd/fluxbench", "cmd/fluxctl"},
}

// testOnly packages exist for tests: nobody may import them outside of tests,
// and they may import what they like.
var testOnly = []string{"internal/tidy", "internal/model", "internal/vfs/vfstest"}

// libraries says which package may use which module outside the standard
// library. A library enters here and nowhere else. Test files are exempt.
var libraries = map[string][]string{
	"internal/offheap":  {"golang.org/x/sys"},
	"internal/aio":      {"golang.org/x/sys"},
	"internal/vfs":      {"golang.org/x/sys", "github.com/ncw/directio"},
	"wal":               {"github.com/cespare/xxhash/v2", "github.com/RoaringBitmap/roaring/v2", "github.com/golang/snappy"},
	"sstable":           {"github.com/cespare/xxhash/v2", "github.com/bits-and-blooms/bloom/v3", "github.com/golang/snappy"},
	"internal/manifest": {"github.com/cespare/xxhash/v2", "github.com/RoaringBitmap/roaring/v2"},
	"lsm":               {"github.com/cespare/xxhash/v2"},
	"mcbp":              {"golang.org/x/sys", "github.com/golang/snappy"},
	"internal/admin":    {"github.com/prometheus/client_golang"},
	"bench":             {"github.com/HdrHistogram/hdrhistogram-go", "golang.org/x/sys"},
	"cmd/fluxkv":        {"github.com/spf13/pflag"},
	"cmd/fluxbench":     {"github.com/spf13/pflag"},
	"cmd/fluxctl":       {"github.com/spf13/pflag"},
}

func floorOf(dir string) int {
	return slices.IndexFunc(floors, func(row []string) bool { return slices.Contains(row, dir) })
}

// TestImportFloors holds the picture of the house: imports go strictly down.
func TestImportFloors(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.dir == ".ci" || slices.Contains(testOnly, s.dir) {
			continue
		}
		floor := floorOf(s.dir)
		if floor < 0 {
			t.Errorf("%s: package %s has no floor; add it to floors in internal/tidy", s.name, s.dir)
			continue
		}
		imports := s.imports()
		for _, imported := range slices.Sorted(maps.Keys(imports)) {
			dir, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			switch other := floorOf(dir); {
			case slices.Contains(testOnly, dir):
				t.Errorf("%s:%d: imports %s, which is for tests only", s.name, imports[imported], dir)
			case other < 0:
				t.Errorf("%s:%d: imports %s, which has no floor", s.name, imports[imported], dir)
			case other >= floor:
				t.Errorf("%s:%d: %s (floor %d) imports %s (floor %d); imports go strictly down", s.name, imports[imported], s.dir, floor, dir, other)
			}
		}
	}
}

// TestLibraries holds where libraries enter.
func TestLibraries(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || slices.Contains(testOnly, s.dir) {
			continue
		}
		for imported, line := range s.imports() {
			first, _, _ := strings.Cut(imported, "/")
			if !strings.Contains(first, ".") {
				continue // the standard library, or our own
			}
			if !slices.ContainsFunc(libraries[s.dir], func(lib string) bool {
				return imported == lib || strings.HasPrefix(imported, lib+"/")
			}) {
				t.Errorf("%s:%d: package %s may not use %s", s.name, line, s.dir, imported)
			}
		}
	}
}

// TestPackageNames bans names that say nothing: such a package becomes a drawer.
func TestPackageNames(t *testing.T) {
	banned := []string{"util", "utils", "common", "base", "helper", "helpers", "misc", "shared", "lib", "tools"}
	for _, s := range sources(t) {
		for _, part := range append(strings.Split(s.dir, "/"), strings.TrimSuffix(s.ast.Name.Name, "_test")) {
			if slices.Contains(banned, part) {
				t.Errorf("%s: %q names no idea; name the idea, or leave the code where it is used", s.name, part)
			}
		}
	}
}
