package sstable

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fluxkv/internal/entry"
)

// writeGolden makes golden files that are missing. Files that exist are never
// changed: every later version must read them.
var writeGolden = flag.Bool("write-golden", false, "write golden files that do not exist yet")

// goldenTable is one table of testdata/format/v1.
type goldenTable struct {
	name     string
	o        WriterOptions
	versions []entry.Version
}

func goldenTables() []goldenTable {
	meta := set("all meta", 21, "v")
	meta.Meta = entry.Meta{Flags: 0xdeadbeef, Expiry: 1800000000, Datatype: 1, CAS: 1<<63 + 5}
	gone := del("gone with flags", 22)
	gone.Meta.Flags = 9
	kinds := []entry.Version{
		meta, gone, set("empty", 1, ""), set("k", 90, "newest"), set("k", 80, "older"), del("k", 70), set("k", 60, "oldest"),
		at("separated", 1<<56-1, 41, 4096, 1043), at("separated too", 5, 4000000000, 1<<32-1, 1<<32-1),
		{Key: key(2, "other vbucket"), Seqno: 3, Value: entry.Value{HasBytes: true, Bytes: []byte("x")}},
	}
	var dense, mixed []entry.Version
	for i := range 600 {
		dense = append(dense, set(fmt.Sprintf("%08d", i*3), entry.Seqno(1<<24+i*977%5000), fmt.Sprintf("%08x", i*0x9E3779B1)))
		v := set(fmt.Sprintf("user:%x", i*7919%6007), entry.Seqno(1+i), strings.Repeat("ab", i%23))
		switch {
		case i%5 == 0:
			v = at(fmt.Sprintf("user:%x", i*7919%6007), entry.Seqno(1+i), entry.SegmentID(1+i%3), uint32(i*4096), uint32(300+i))
		case i%11 == 0:
			v = del(fmt.Sprintf("user:%x", i*7919%6007), entry.Seqno(1+i))
		case i%7 == 0:
			v.Meta.Expiry = uint32(1_700_000_000 + i*86400)
		}
		mixed = append(mixed, v)
	}
	many := []entry.Version{set("a", 1, "first")}
	for i := range 200 {
		many = append(many, set("many versions", entry.Seqno(5000-7*i), strings.Repeat("x", 20)))
	}
	large := []entry.Version{
		set("a", 1, "x"), set(strings.Repeat("b", 300), 2, "long key"), set(strings.Repeat("b", 400), 3, ""),
		set("c", 4, strings.Repeat("large ", 12000)), set("d", 5, "y"),
	}
	options := func(block, bloom int, c Compression) WriterOptions {
		o := testOptions()
		o.BlockBytes, o.BloomBits, o.Compression, o.KVStore = block, bloom, c, 3
		return o
	}
	return []goldenTable{
		{"kinds", options(4096, 10, NoCompression), sortVersions(kinds)},
		{"levels", options(512, 10, NoCompression), sortVersions(mixed)},
		{"snappy", options(4096, 16, Snappy), sortVersions(dense)},
		{"versions", options(512, 0, NoCompression), sortVersions(many)},
		{"large", options(1024, 10, NoCompression), sortVersions(large)},
	}
}

// goldenDirs have the tables of each form of the format, oldest first. What a later
// form writes otherwise is there, too.
//
//	v1    the first one
//	v1.1  superseded entries are counted
var goldenDirs = []string{"v1", "v1.1"}

// TestGoldenFiles: tables written by every released version are read, and this
// one still writes the same bytes as the last.
func TestGoldenFiles(t *testing.T) {
	for _, g := range goldenTables() {
		t.Run(g.name, func(t *testing.T) {
			fs := newFS(t)
			writeTable(t, fs, "idx/"+Name(testNumber), false, g.o, g.versions)
			now := image(t, fs, "idx/"+Name(testNumber))
			var last []byte
			for _, dir := range goldenDirs {
				path := filepath.Join("testdata", "format", dir, g.name+".sst")
				b, err := os.ReadFile(path)
				if os.IsNotExist(err) && *writeGolden && (last == nil || dir == goldenDirs[len(goldenDirs)-1] && g.o.Compression == NoCompression && !bytes.Equal(now, last)) {
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, now, 0o644); err != nil {
						t.Fatal(err)
					}
					b, err = now, nil
				}
				if os.IsNotExist(err) && last != nil {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				last = b
				checkGolden(t, g, path, b)
			}
			// What snappy makes of a block is its own business.
			if g.o.Compression == NoCompression && !bytes.Equal(now, last) {
				t.Errorf("this version writes other bytes (%d, the file has %d)", len(now), len(last))
			}
		})
	}
}

// checkGolden reads the golden file b in every way.
func checkGolden(t *testing.T, g goldenTable, path string, b []byte) {
	t.Helper()
	r, err := Open(&imageFile{name: path, data: b}, readerOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Verify(); err != nil {
		t.Fatal(err)
	}
	it := r.NewIter(IterOptions{})
	defer it.Close()
	checkScan(t, it, g.versions)
	var buf Buffer
	defer buf.Free()
	for i := range g.versions {
		checkGet(t, r, &buf, g.versions, g.versions[i].Key, g.versions[i].Seqno)
	}
	text, err := describe(r)
	if err != nil {
		t.Fatal(err)
	}
	path = strings.TrimSuffix(path, ".sst") + ".txt"
	want, err := os.ReadFile(path)
	if os.IsNotExist(err) && *writeGolden {
		want, err = []byte(text), os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the table reads as\n%s\nwant\n%s", text, want)
	}
}
