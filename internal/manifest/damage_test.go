package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"fluxkv/internal/vfs/memfs"
)

// TestDamage runs the scripts in testdata/damage. A script builds a store on a
// disk in memory, damages its files and opens it.
//
//	create             edits of the initial state      -> files and their lengths
//	apply              one edit                        -> where its record is
//	promise / close / open
//	file name=...      [copy=other] [flip=(at,bit)] [cut=at] [zero=(from,to)] [append=hex] [text=words_joined]
//	remove name=...
//	record name=... number=... at=... prev=...   edits -> a valid record put there
//	list
func TestDamage(t *testing.T) {
	datadriven.Walk(t, "testdata/damage", func(t *testing.T, path string) {
		disk := newDisk(t)
		var l *Log
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "create":
				disk = newDisk(t)
				var err error
				if l, err = Create(disk, testDir, testSecret, parseEdit(t, d.Input)); err != nil {
					return err.Error()
				}
				return fmt.Sprintf("%s, %d bytes", Name(l.State().Manifest), l.end)
			case "apply":
				e := parseEdit(t, d.Input)
				at := l.end
				st, err := l.Apply(&e)
				if err != nil {
					return err.Error()
				}
				if l.end < at || at == 0 {
					return fmt.Sprintf("%s, %d bytes", Name(st.Manifest), l.end)
				}
				return fmt.Sprintf("record [%d, %d)", at, l.end)
			case "promise":
				at := l.end
				if err := l.Promise(); err != nil {
					return err.Error()
				}
				return fmt.Sprintf("record [%d, %d)", at, l.end)
			case "close":
				if err := l.Close(); err != nil {
					return err.Error()
				}
				return "ok"
			case "open":
				opened, st, err := Open(disk, testDir, testSecret)
				if err != nil {
					return fmt.Sprintf("%s%v", kinds(err), err)
				}
				l = opened
				return fmt.Sprintf("%s\n%s", Name(st.Manifest), dump(st))
			case "remove":
				if err := disk.Remove(testDir + "/" + arg(t, d, "name")); err != nil {
					return err.Error()
				}
				return "ok"
			case "file":
				name := arg(t, d, "name")
				var b []byte
				if !d.HasArg("copy") {
					b = readDisk(t, disk, name)
				}
				writeDisk(t, disk, name, change(t, disk, d, b))
				return fmt.Sprintf("%d bytes", len(readDisk(t, disk, name)))
			case "record":
				e := parseEdit(t, d.Input)
				at := number(t, arg(t, d, "at"))
				rec := appendRecord(nil, testSecret, uint64(number(t, arg(t, d, "number"))), at, number(t, arg(t, d, "prev")), &e)
				b := readDisk(t, disk, arg(t, d, "name"))
				if grow := at + int64(len(rec)) - int64(len(b)); grow > 0 {
					b = append(b, make([]byte, grow)...)
				}
				copy(b[at:], rec)
				writeDisk(t, disk, arg(t, d, "name"), b)
				return fmt.Sprintf("record [%d, %d) in %d bytes", at, at+int64(len(rec)), len(b))
			case "list":
				return listDisk(t, disk)
			}
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

// kinds names the sentinels that err matches.
func kinds(err error) string {
	out := ""
	for _, k := range []struct {
		err  error
		name string
	}{{ErrCorrupt, "ErrCorrupt: "}, {ErrVersion, "ErrVersion: "}, {ErrNoCurrent, "ErrNoCurrent: "}} {
		if errors.Is(err, k.err) {
			out += k.name
		}
	}
	return out
}

// change applies the damage that d describes to b.
func change(t *testing.T, disk *memfs.FS, d *datadriven.TestData, b []byte) []byte {
	b = bytes.Clone(b)
	for _, a := range d.CmdArgs {
		v := func(i int) int64 { return number(t, a.Vals[i]) }
		switch a.Key {
		case "name":
		case "copy":
			b = readDisk(t, disk, a.Vals[0])
		case "flip":
			b[v(0)] ^= 1 << v(1)
		case "cut":
			b = b[:v(0)]
		case "zero":
			clear(b[v(0):v(1)])
		case "append":
			for hex := a.Vals[0]; hex != ""; hex = hex[2:] {
				n, err := strconv.ParseUint(hex[:2], 16, 8)
				if err != nil {
					t.Fatal(err)
				}
				b = append(b, byte(n))
			}
		case "text":
			b = []byte(strings.ReplaceAll(a.Vals[0], "_", " ") + "\n")
		default:
			t.Fatalf("%s: unknown damage %s", d.Pos, a.Key)
		}
	}
	return b
}

func arg(t *testing.T, d *datadriven.TestData, key string) string {
	t.Helper()
	var s string
	d.ScanArgs(t, key, &s)
	return s
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
