package manifest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var createGolden = flag.Bool("create-golden", false, "write golden files that are missing; existing ones are never touched")

const goldenDir = "testdata/format/v1"

// goldenFiles encodes what the golden files hold. They were made once; the test
// compares today's encoder with them.
func goldenFiles(t *testing.T) map[string][]byte {
	f := Format{VBuckets: 16, KVStores: 4, Secret: testSecret, Created: time.Unix(1700000000, 123456789).UTC()}
	for i := range f.StoreID {
		f.StoreID[i] = byte(0xa0 + i)
	}
	b := appendHeader(nil, testSecret, 7)
	synced := int64(0)
	for i, text := range []string{
		`add 2 log 4194304; add 3 log 4194304; add 5 gc 8388608; add 6 log 134217728
			seal 2 end=4190208 last=5000 file=4198412 footer; end 3 end=65536 last=5100 next=16782317; seal 5 end=8192 last=4000 file=12288
			replay 3 4096 5001; next 16782317; file 8`,
		"add 8 log 134217728; file 9",
		"", // a promise
		"seal 6 end=134213632 last=17000000 file=134217728 footer; drop 2; next 17000001",
		"clear 16900000; pending 1700000001000000000",
		"replay 8 4096 17000001; drop 3",
		"pending 0",
	} {
		e := parseEdit(t, text)
		b = appendRecord(b, testSecret, 7, int64(len(b)), max(int64(len(b)), headerBytes), &e)
		if i == 0 {
			synced = int64(len(b))
		}
	}
	return map[string][]byte{
		Name(12):    goldenTables(t),
		Name(20):    goldenExpiry(t),
		FormatName:  f.encode(),
		CurrentName: current{number: 7, synced: synced}.encode(testSecret),
		Name(7):     b,
	}
}

// goldenExpiry encodes a manifest with an expiry clock that rises, is told a
// lower time, and rises again.
func goldenExpiry(t *testing.T) []byte {
	b := appendHeader(nil, testSecret, 20)
	for _, text := range []string{
		"add 18 log 4194304; replay 18 4096 1; next 1; expiry 1700000000; file 21",
		"table 21 kv=1 run=21 keys=a..c seqnos=1..9 seg=18; flushed 1 9; expiry 1700000500; file 22",
		"untable 21; expiry 1700000400",
		"expiry 4294967295",
	} {
		e := parseEdit(t, text)
		b = appendRecord(b, testSecret, 20, int64(len(b)), max(int64(len(b)), headerBytes), &e)
	}
	return b
}

// TestGoldenExpiry reads the file with the expiry clock, as it stood after each
// record.
func TestGoldenExpiry(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(goldenDir, Name(20)))
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for end := int64(headerBytes); end < int64(len(b)); {
		edit, _, ok := recordAt(b, end, testSecret, 20)
		if !ok {
			t.Fatalf("record at %d", end)
		}
		end += recordHeaderBytes + int64(len(edit))
		r, err := replay(Name(20), b[:end], testSecret, 20, headerBytes)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.state.ExpiryClock)
	}
	if want := []uint32{1700000000, 1700000500, 1700000500, 4294967295}; !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

// goldenTables encodes a manifest with every field of its time.
func goldenTables(t *testing.T) []byte {
	b := appendHeader(nil, testSecret, 12)
	for _, text := range []string{
		`add 2 log 4194304; add 3 log 4194304; add 4 log 4194304; seal 2 end=4190208 last=5000 file=4198412 footer
			replay 2 4096 1; next 5001; file 13`,
		`table 13 kv=1 run=13 keys=apple..melon seqnos=1..4990 bytes=61440 entries=2500 gone=20 keybytes=30000 values=9000 seg=2:2400:2400000
			table 14 kv=2 run=14 keys=b..c seqnos=7..7 bytes=8192 entries=1; flushed 1 4995; flushed 2 5000
			dead 2 9,11,700; replay 3 4096 5001; file 15`,
		"dead 2 10,12,13,14,15,16,17,18,20; file 15",
		`add 15 gc 8388608; seal 15 end=4096000 last=4990 file=4104192 footer; drop 2; forward 2 15:1..4990; dead 15 21,22,23,24,25,26,27,28,900
			file 16`,
		`add 16 gc 8388608; add 17 gc 8388608; drop 15; forward 15 16:1..3000 17:2000..5000; file 18`,
		`untable 13; table 18 kv=1 level=1 keys=apple..melon seqnos=1..4990 bytes=57344 entries=2100 keybytes=25000 values=8000 seg=16:1000:900000 seg=17:1050:950000
			unforward 15; unforward 2; file 19`,
	} {
		e := parseEdit(t, text)
		b = appendRecord(b, testSecret, 12, int64(len(b)), max(int64(len(b)), headerBytes), &e)
	}
	return b
}

// TestGoldenTables reads the file that has every field of its time, as it stood after each
// record.
func TestGoldenTables(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(goldenDir, Name(12)))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for end := int64(headerBytes); end < int64(len(b)); {
		edit, _, ok := recordAt(b, end, testSecret, 12)
		if !ok {
			t.Fatalf("record at %d", end)
		}
		end += recordHeaderBytes + int64(len(edit))
		r, err := replay(Name(12), b[:end], testSecret, 12, headerBytes)
		if err != nil {
			t.Fatal(err)
		}
		got += fmt.Sprintf("%d bytes\n%s", end, dump(r.state))
	}
	if got != goldenTablesText {
		t.Errorf("got\n%swant\n%s", got, goldenTablesText)
	}
}

const goldenTablesText = `150 bytes
segment 000002 log size=4194304 sealed end=4190208 last=5000 file=4198412 footer=true
segment 000003 log size=4194304
segment 000004 log size=4194304
replay-from 000002:4096#1
next-seqno 5001 next-file 13
432 bytes
segment 000002 log size=4194304 sealed end=4190208 last=5000 file=4198412 footer=true
segment 000003 log size=4194304
segment 000004 log size=4194304
table 000013 kvstore=1 level=0 tier=0 run=13 keys "\x00\x00apple".."\x00\x00melon" seqnos 1..4990 bytes=61440 entries=2500 tombstones=20 key-bytes=30000 value-bytes=9000 000002:2400:2400000
table 000014 kvstore=2 level=0 tier=0 run=14 keys "\x00\x00b".."\x00\x00c" seqnos 7..7 bytes=8192 entries=1 tombstones=0 key-bytes=0 value-bytes=0
flushed 1 up to 4995
flushed 2 up to 5000
dead 000002 [9 11 700]
replay-from 000003:4096#5001
next-seqno 5001 next-file 15
475 bytes
segment 000002 log size=4194304 sealed end=4190208 last=5000 file=4198412 footer=true
segment 000003 log size=4194304
segment 000004 log size=4194304
table 000013 kvstore=1 level=0 tier=0 run=13 keys "\x00\x00apple".."\x00\x00melon" seqnos 1..4990 bytes=61440 entries=2500 tombstones=20 key-bytes=30000 value-bytes=9000 000002:2400:2400000
table 000014 kvstore=2 level=0 tier=0 run=14 keys "\x00\x00b".."\x00\x00c" seqnos 7..7 bytes=8192 entries=1 tombstones=0 key-bytes=0 value-bytes=0
flushed 1 up to 4995
flushed 2 up to 5000
dead 000002 [9 10 11 12 13 14 15 16 17 18 20 700]
replay-from 000003:4096#5001
next-seqno 5001 next-file 15
599 bytes
segment 000003 log size=4194304
segment 000004 log size=4194304
segment 000015 gc size=8388608 sealed end=4096000 last=4990 file=4104192 footer=true
table 000013 kvstore=1 level=0 tier=0 run=13 keys "\x00\x00apple".."\x00\x00melon" seqnos 1..4990 bytes=61440 entries=2500 tombstones=20 key-bytes=30000 value-bytes=9000 000002:2400:2400000
table 000014 kvstore=2 level=0 tier=0 run=14 keys "\x00\x00b".."\x00\x00c" seqnos 7..7 bytes=8192 entries=1 tombstones=0 key-bytes=0 value-bytes=0
flushed 1 up to 4995
flushed 2 up to 5000
dead 000015 [21 22 23 24 25 26 27 28 900]
forward 000002 000015:1..4990
replay-from 000003:4096#5001
next-seqno 5001 next-file 16
707 bytes
segment 000003 log size=4194304
segment 000004 log size=4194304
segment 000016 gc size=8388608
segment 000017 gc size=8388608
table 000013 kvstore=1 level=0 tier=0 run=13 keys "\x00\x00apple".."\x00\x00melon" seqnos 1..4990 bytes=61440 entries=2500 tombstones=20 key-bytes=30000 value-bytes=9000 000002:2400:2400000
table 000014 kvstore=2 level=0 tier=0 run=14 keys "\x00\x00b".."\x00\x00c" seqnos 7..7 bytes=8192 entries=1 tombstones=0 key-bytes=0 value-bytes=0
flushed 1 up to 4995
flushed 2 up to 5000
forward 000002 000016:1..3000 000017:2000..4990
forward 000015 000016:1..3000 000017:2000..5000
replay-from 000003:4096#5001
next-seqno 5001 next-file 18
881 bytes
segment 000003 log size=4194304
segment 000004 log size=4194304
segment 000016 gc size=8388608
segment 000017 gc size=8388608
table 000018 kvstore=1 level=1 tier=0 run=0 keys "\x00\x00apple".."\x00\x00melon" seqnos 1..4990 bytes=57344 entries=2100 tombstones=0 key-bytes=25000 value-bytes=8000 000016:1000:900000 000017:1050:950000
table 000014 kvstore=2 level=0 tier=0 run=14 keys "\x00\x00b".."\x00\x00c" seqnos 7..7 bytes=8192 entries=1 tombstones=0 key-bytes=0 value-bytes=0
flushed 1 up to 4995
flushed 2 up to 5000
replay-from 000003:4096#5001
next-seqno 5001 next-file 19
`

// TestGoldenV1 reads the files of version 1 and writes them again, byte for
// byte.
func TestGoldenV1(t *testing.T) {
	files := goldenFiles(t)
	read := map[string][]byte{}
	for name, want := range files {
		file := filepath.Join(goldenDir, name)
		if *createGolden {
			if f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
				if _, err := f.Write(want); err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the encoder no longer writes version 1", name)
		}
		read[name] = got
	}
	f, err := decodeFormat(FormatName, read[FormatName])
	if err != nil {
		t.Fatal(err)
	}
	c, err := decodeCurrent(CurrentName, read[CurrentName], f.Secret)
	if err != nil {
		t.Fatal(err)
	}
	r, err := replay(Name(c.number), read[Name(c.number)], f.Secret, c.number, c.synced)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("format: %d vbuckets, %d kvstores, store %x, secret %x, created %s\ncurrent: %s, %d bytes synced\nrecords: %d, %d bytes, torn %v\n%s",
		f.VBuckets, f.KVStores, f.StoreID, f.Secret, f.Created.Format(time.RFC3339Nano), Name(c.number), c.synced, r.records, r.end, r.torn, dump(r.state))
	want := `format: 16 vbuckets, 4 kvstores, store a0a1a2a3a4a5a6a7a8a9aaabacadaeaf, secret f10c5ec70102030405060708090a0b0c, created 2023-11-14T22:13:20.123456789Z
current: MANIFEST-000007, 218 bytes synced
records: 7, 436 bytes, torn false
segment 000005 gc size=8388608 sealed end=8192 last=4000 file=12288 footer=false
segment 000006 log size=134217728 sealed end=134213632 last=17000000 file=134217728 footer=true
segment 000008 log size=134217728
replay-from 000008:4096#17000001
next-seqno 17000001 next-file 9 clear-seqno 16900000
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestFormatRefuses(t *testing.T) {
	good := goldenFiles(t)[FormatName]
	resum := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		f := sumOf(b[:56])
		copy(b[56:], f)
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
		text string
	}{
		{"empty", nil, ErrCorrupt, "0 bytes long"},
		{"cut", good[:63], ErrCorrupt, "63 bytes long"},
		{"longer", append(bytes.Clone(good), 0), ErrCorrupt, "65 bytes long"},
		{"another file", bytes.Repeat([]byte("x"), 64), ErrCorrupt, "not a fluxkv FORMAT file"},
		{"of a later version", resum(good, 8, 2), ErrVersion, "format version 2"},
		{"no kvstores", resum(good, 10, 0), ErrCorrupt, "0 kvstores"},
		{"too many kvstores", resum(good, 10, 17), ErrCorrupt, "17 kvstores"},
		{"fewer vbuckets than kvstores", resum(good, 12, 3), ErrCorrupt, "4 kvstores over 3 vbuckets"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeFormat("data/FORMAT", c.b)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "data/FORMAT") {
				t.Fatalf("got %v, want %q", err, c.text)
			}
		})
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeFormat("FORMAT", b); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
}

func TestNewFormatBounds(t *testing.T) {
	now := time.Unix(5, 6)
	for _, c := range []struct {
		vbuckets, kvstores int
		ok                 bool
	}{{16, 16, true}, {1, 1, true}, {32768, 16, true}, {1024, 1, true}, {0, 1, false}, {32769, 16, false}, {16, 0, false}, {32, 17, false}, {4, 5, false}, {-1, -1, false}} {
		f, err := NewFormat(c.vbuckets, c.kvstores, now)
		if (err == nil) != c.ok {
			t.Errorf("%d vbuckets, %d kvstores: %v", c.vbuckets, c.kvstores, err)
		}
		if err != nil {
			continue
		}
		got, err := decodeFormat("FORMAT", f.encode())
		if err != nil || got != f {
			t.Errorf("%+v came back as %+v: %v", f, got, err)
		}
	}
	a, _ := NewFormat(16, 16, now)
	b, _ := NewFormat(16, 16, now)
	if a.Secret == b.Secret || a.StoreID == b.StoreID || a.Secret == a.StoreID {
		t.Error("secrets or ids repeat")
	}
}

func TestCurrentRefuses(t *testing.T) {
	good := current{number: 7, synced: 1432}.encode(testSecret)
	if c, err := decodeCurrent("CURRENT", good, testSecret); err != nil || c.number != 7 || c.synced != 1432 {
		t.Fatalf("%v %v", c, err)
	}
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "empty"},
		{"zeros", strings.Repeat("\x00", 42), "not a line"},
		{"without a newline", strings.TrimSuffix(string(good), "\n"), "checksum mismatch"},
		{"twice", string(good) + string(good), "not a line"},
		{"cut in the name", "MANIFEST-00", "not a line"},
		{"only a name", "MANIFEST-000007\n", "not a line"},
		{"another name", strings.Replace(string(good), "MANIFEST-000007", "CURRENT", 1), "names no manifest"},
		{"another spelling of the name", strings.Replace(string(good), "MANIFEST-000007", "MANIFEST-7", 1), "names no manifest"},
		{"another number", strings.Replace(string(good), "000007", "000006", 1), "checksum mismatch"},
		{"another length", strings.Replace(string(good), "1432", "1431", 1), "checksum mismatch"},
		{"a length below the header", strings.Replace(string(good), "1432", "0", 1), `length "0"`},
		{"a length without bounds", strings.Replace(string(good), "1432", "99999999999999999999", 1), "length"},
		{"another spelling of the length", strings.Replace(string(good), "1432", "+1432", 1), "checksum mismatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeCurrent("data/CURRENT", []byte(c.in), testSecret)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "data/CURRENT") {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeCurrent("CURRENT", b, testSecret); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
	if _, err := decodeCurrent("CURRENT", good, [16]byte{1}); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("CURRENT of another store: %v", err)
	}
}

func TestM7_ObsoleteNamesOnlyWhatItKnows(t *testing.T) {
	st := State{Manifest: 7, NextFileNumber: 10}
	got := Obsolete([]string{
		"MANIFEST-000005", "MANIFEST-000007", "MANIFEST-000009", "MANIFEST-000010", "MANIFEST-7", "MANIFEST-000008.bak", "MANIFEST-", "MANIFEST-000000",
		"CURRENT", "CURRENT.tmp", "FORMAT", "FORMAT.tmp", "LOCK", "log", "notes.txt", "000003.seg", "",
	}, st)
	want := "MANIFEST-000005 MANIFEST-000009 CURRENT.tmp FORMAT.tmp"
	if strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestNames(t *testing.T) {
	for _, n := range []uint64{1, 7, 999999, 1000000, 1<<64 - 1} {
		if got, ok := ParseName(Name(n)); !ok || got != n {
			t.Errorf("%s: %d %v", Name(n), got, ok)
		}
	}
	for _, name := range []string{"", "MANIFEST", "MANIFEST-", "MANIFEST-0000007", "MANIFEST-+00007", "MANIFEST-00000a", "MANIFEST-000000", "manifest-000007", "MANIFEST-18446744073709551616", "MANIFEST-000007 "} {
		if _, ok := ParseName(name); ok {
			t.Errorf("%q parsed", name)
		}
	}
}
