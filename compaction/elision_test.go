package compaction

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"fluxkv/internal/entry"

	"github.com/cockroachdb/datadriven"
)

// TestR15_Elision runs testdata/elision. A case is
//
//	elide horizon=6 clear=0 now=0 [bottom]
//	a#9 set | del | set expiry=100
//
// and prints each version with its verdict.
func TestR15_Elision(t *testing.T) {
	datadriven.RunTest(t, "testdata/elision", func(t *testing.T, d *datadriven.TestData) string {
		var p Policy
		for _, a := range d.CmdArgs {
			if a.Key == "bottom" {
				p.Bottom = true
				continue
			}
			n, err := strconv.ParseUint(a.Vals[0], 10, 56)
			if err != nil {
				d.Fatalf(t, "%s: %v", a.Key, err)
			}
			switch a.Key {
			case "horizon":
				p.Horizon = entry.Seqno(n)
			case "clear":
				p.Clear = entry.Seqno(n)
			case "now":
				p.Now = uint32(n)
			default:
				d.Fatalf(t, "unknown argument %s", a.Key)
			}
		}
		e := NewElision(p)
		var out strings.Builder
		last := ""
		for line := range strings.Lines(d.Input) {
			v := parseVersion(t, line)
			fmt.Fprintf(&out, "%-22s %v\n", strings.TrimSpace(line), e.Decide(&v, string(v.Key) != last))
			last = string(v.Key)
		}
		return out.String()
	})
}

func parseVersion(t *testing.T, line string) entry.Version {
	t.Helper()
	words := strings.Fields(line)
	key, seqno, _ := strings.Cut(words[0], "#")
	n, err := strconv.ParseUint(seqno, 10, 56)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	v := entry.Version{Key: entry.AppendKey(nil, 1, []byte(key)), Seqno: entry.Seqno(n)}
	if words[1] == "del" {
		v.Kind = entry.KindDelete
	}
	for _, w := range words[2:] {
		e, err := strconv.ParseUint(strings.TrimPrefix(w, "expiry="), 10, 32)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		v.Meta.Expiry = uint32(e)
	}
	return v
}
