package memfs

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"fluxkv/internal/vfs"
)

// script runs one testdata file. The command do is a list of calls, one a line;
// crash shows the disk after power cuts of the damages named.
type script struct {
	fs    *FS
	files map[string]vfs.File
}

func TestCrashScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/crash", func(t *testing.T, file string) {
		s := &script{}
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				s.fs, s.files = New(), make(map[string]vfs.File)
				if d.HasArg("free") {
					var free int64
					d.ScanArgs(t, "free", &free)
					s.fs.SetFree(free)
				}
				if d.HasArg("crash-at") {
					var n int64
					d.ScanArgs(t, "crash-at", &n)
					when := Within
					if d.HasArg("before") {
						when = Before
					}
					s.fs.CrashAt(n, when)
				}
				return ""
			case "do":
				var out strings.Builder
				for _, line := range strings.Split(d.Input, "\n") {
					if err := s.do(strings.Fields(line)); err != nil {
						fmt.Fprintf(&out, "%s: %v\n", line, err)
					}
				}
				return out.String()
			case "dump":
				return dump(t, s.fs)
			case "crash":
				seed := int64(1)
				if d.HasArg("seed") {
					d.ScanArgs(t, "seed", &seed)
				}
				var out strings.Builder
				for _, damage := range Damages() {
					if d.HasArg(damage.String()) {
						fmt.Fprintf(&out, "%s:\n%s", damage, dump(t, s.fs.CrashCopy(seed, damage)))
					}
				}
				return out.String()
			case "count":
				var out strings.Builder
				for k := range vfs.OpKinds {
					if n := s.fs.Count("", k); n > 0 {
						fmt.Fprintf(&out, "%s %d\n", k, n)
					}
				}
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func (s *script) do(f []string) error {
	number := func(i int) int64 {
		n, err := strconv.ParseInt(f[i], 0, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	name := f[1]
	var err error
	switch f[0] {
	case "mkdir":
		return s.fs.MkdirAll(name)
	case "syncdir":
		return s.fs.SyncDir(name)
	case "remove":
		return s.fs.Remove(name)
	case "rename":
		return s.fs.Rename(name, f[2])
	case "link":
		return s.fs.Link(name, f[2])
	case "create":
		s.files[name], err = s.fs.Create(name, vfs.OpenOptions{Write: true})
		return err
	case "lock":
		_, err = s.fs.Lock(name)
		return err
	case "open":
		s.files[name], err = s.fs.Open(name, vfs.OpenOptions{Write: true})
		return err
	}
	file := s.files[name]
	if file == nil {
		return errors.New("not open")
	}
	switch f[0] {
	case "close":
		err = file.Close()
	case "write": // write file offset length letter
		_, err = file.WriteAt(bytes.Repeat([]byte(f[4]), int(number(3))), number(2))
	case "durable":
		_, err = file.WriteDurable(bytes.Repeat([]byte(f[4]), int(number(3))), number(2))
	case "sync":
		err = file.Sync()
	case "failsync":
		file.(interface{ DropUnsynced() }).DropUnsynced()
	case "truncate":
		err = file.Truncate(number(2))
	case "allocate":
		err = file.Allocate(number(2))
	default:
		err = errors.New("unknown call")
	}
	return err
}

// dump shows names and contents as runs of equal bytes, 0 for zero bytes.
func dump(t *testing.T, f *FS) string {
	t.Helper()
	var out strings.Builder
	var walk func(dir string)
	walk = func(dir string) {
		names, err := f.List(dir)
		if err != nil {
			fmt.Fprintf(&out, "  %s: %v\n", dir, err)
		}
		for _, name := range names {
			full := path.Join(dir, name)
			if _, err := f.List(full); err == nil {
				fmt.Fprintf(&out, "  %s/\n", full)
				walk(full)
				continue
			}
			fmt.Fprintf(&out, "  %s:%s\n", full, runs(readAll(t, f, full)))
		}
	}
	walk("")
	if out.Len() == 0 {
		return "  empty\n"
	}
	return out.String()
}

func readAll(t *testing.T, f *FS, name string) []byte {
	t.Helper()
	file, err := f.Open(name, vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func runs(b []byte) string {
	if len(b) == 0 {
		return " empty"
	}
	var out strings.Builder
	for i := 0; i < len(b); {
		j := i
		for j < len(b) && b[j] == b[i] {
			j++
		}
		c := b[i]
		if c == 0 {
			c = '0'
		}
		fmt.Fprintf(&out, " %c*%d", c, j-i)
		i = j
	}
	return out.String()
}
