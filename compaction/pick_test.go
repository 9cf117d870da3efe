package compaction

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"

	"github.com/cockroachdb/datadriven"
)

// picture is a Picture in words, one table a line:
//
//	12 L0.1/11 a..m 10-20 n=100 del=5 kB=64 inline=1000 log=9000 expired=3 old=2
//
// is table 12 in level 0, tier 1, run 11, with the keys a to m and the seqnos
// 10 to 20, which addresses 9000 bytes of the log and has 2 versions behind a newer one; "job=x" says that job x has it, "fenced" that it cannot be read.
// "kvstore 1" makes the following ones those of kvstore 1.
type picture struct {
	st      manifest.State
	fenced  map[uint64]bool
	jobs    map[string]*Job // under way
	expired map[uint64]uint64
	old     map[uint64]uint64
}

func parsePicture(t *testing.T, text string) *picture {
	t.Helper()
	p := &picture{fenced: map[uint64]bool{}, jobs: map[string]*Job{}, expired: map[uint64]uint64{}, old: map[uint64]uint64{}}
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 56)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return n
	}
	e := manifest.Edit{AddSegments: []manifest.AddSegment{{ID: 1, Kind: manifest.SegmentLog, Size: 1 << 30}}}
	kvstore := uint16(0)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] == "kvstore" {
			kvstore = uint16(number(words[1]))
			continue
		}
		x := &manifest.Table{Number: number(words[0]), KVStore: kvstore, Entries: 100, FileBytes: 10_000}
		place, run, ok := strings.Cut(strings.TrimPrefix(words[1], "L"), "/")
		if ok {
			x.Run = number(run)
		}
		level, tier, ok := strings.Cut(place, ".")
		if ok {
			x.Tier = uint8(number(tier))
		}
		if x.Level = uint8(number(level)); x.Level == 0 && x.Run == 0 {
			x.Run = x.Number
		}
		from, to, _ := strings.Cut(words[2], "..")
		x.Smallest, x.Largest = entry.AppendKey(nil, 1, []byte(from)), entry.AppendKey(nil, 1, []byte(to))
		from, to, _ = strings.Cut(words[3], "-")
		x.LowestSeqno, x.HighestSeqno = entry.Seqno(number(from)), entry.Seqno(number(to))
		for _, w := range words[4:] {
			name, value, _ := strings.Cut(w, "=")
			switch name {
			case "n":
				x.Entries = number(value)
			case "del":
				x.Tombstones = number(value)
			case "kB":
				x.FileBytes = int64(number(value)) * 1000
			case "inline":
				x.ValueBytes = number(value)
			case "log":
				x.Segments = []manifest.SegmentUse{{Segment: 1, Documents: 1, Bytes: number(value)}}
			case "expired":
				p.expired[x.Number] = number(value)
			case "old":
				p.old[x.Number] = number(value)
			case "fenced":
				p.fenced[x.Number] = true
			case "job":
				j := p.jobs[value]
				if j == nil {
					j = &Job{KVStore: kvstore}
					p.jobs[value] = j
				}
				j.add([]*manifest.Table{x})
			default:
				t.Fatalf("unknown word %q", w)
			}
		}
		x.KeyBytes = x.Entries * 14
		e.AddTables = append(e.AddTables, x)
	}
	for k := range kvstore + 1 {
		e.Flushed = append(e.Flushed, manifest.Flushed{KVStore: k, Seqno: 1 << 40})
	}
	st, err := (manifest.State{NextSeqno: 1, NextFileNumber: 1}).Apply(&e)
	if err != nil {
		t.Fatal(err)
	}
	p.st = st
	return p
}

func (p *picture) picture() Picture {
	return Picture{
		State: &p.st, KVStores: 2, Horizon: 1 << 30,
		Running: slices.Collect(maps.Values(p.jobs)),
		Fenced:  func(n uint64) bool { return p.fenced[n] },
		Expired: func(n uint64) uint64 { return p.expired[n] },

		Superseded: func(n uint64) uint64 { return p.old[n] },
	}
}

func keyName(k []byte) string {
	_, key := entry.SplitKey(k)
	return string(key)
}

func (j *Job) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kvstore %d, %s:", j.KVStore, j.Reason)
	for i, run := range j.Inputs {
		if i > 0 {
			b.WriteString(" +")
		}
		for _, t := range run {
			fmt.Fprintf(&b, " %d[%s..%s]", t.Number, keyName(t.Smallest), keyName(t.Largest))
		}
	}
	fmt.Fprintf(&b, " -> L%d", j.OutLevel)
	if j.OutLevel == 0 {
		fmt.Fprintf(&b, ".%d", j.OutTier)
	}
	if j.Bottom {
		b.WriteString(" bottom")
	}
	if j.Move {
		b.WriteString(" move")
	}
	for i, k := range j.Boundaries {
		if i == 0 {
			b.WriteString(", cut at")
		}
		b.WriteString(" " + keyName(k))
	}
	return b.String()
}

// TestPick runs testdata/pick. Commands, each on a picture:
//
//	lazy|leveled [idle] [cramped] [hidden] [all] [horizon=n] [option=n...]   the next job; all: every job that may run beside it
//	ranges bytes=n                                        borders of kvstore 0
func TestPick(t *testing.T) {
	datadriven.Walk(t, "testdata/pick", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			p := parsePicture(t, d.Input)
			in := p.picture()
			all := false
			numbers := map[string]float64{}
			for _, a := range d.CmdArgs {
				switch {
				case a.Key == "idle":
					in.Idle = true
				case a.Key == "hidden":
					in.Hidden = true
				case a.Key == "cramped":
					in.Cramped = true
				case a.Key == "all":
					all = true
				default:
					n, err := strconv.ParseFloat(a.Vals[0], 64)
					if err != nil {
						d.Fatalf(t, "%s: %v", a.Key, err)
					}
					numbers[a.Key] = n
				}
			}
			take := func(name string, otherwise float64) float64 {
				n, ok := numbers[name]
				if !ok {
					return otherwise
				}
				delete(numbers, name)
				return n
			}
			in.Horizon = entry.Seqno(take("horizon", 1<<30))
			var picker Picker
			switch d.Cmd {
			case "lazy":
				picker = Lazy{
					MergeShare: take("f", 0), SpaceAmp: take("sa", 0), Slices: int(take("slices", 0)), RunsMax: int(take("runs", 0)),
					TableBytes: int64(take("table", 20_000)), RangeBytesMin: int64(take("range", 40_000)), FloorBytes: int64(take("floor", -1)),
				}
			case "leveled":
				picker = Leveled{L0Tables: int(take("l0", 0)), BaseLevelBytes: int64(take("base", 100_000)), LevelMultiplier: int(take("x", 0))}
			case "ranges":
				var names []string
				for _, k := range Ranges(in.State, 0, int64(take("bytes", 0))) {
					names = append(names, keyName(k))
				}
				if names == nil {
					return "one range\n"
				}
				return strings.Join(names, " ") + "\n"
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if len(numbers) > 0 {
				d.Fatalf(t, "unknown arguments %v", numbers)
			}
			var out strings.Builder
			for {
				j, ok := picker.Pick(in)
				if !ok {
					if out.Len() == 0 {
						return "nothing\n"
					}
					return out.String()
				}
				out.WriteString(j.describe() + "\n")
				busy := in.busyTables()
				for _, x := range slices.Concat(j.Inputs...) {
					if busy(x) {
						d.Fatalf(t, "table %d is busy", x.Number)
					}
				}
				in.Running = append(in.Running, &j)
				if !all {
					return out.String()
				}
			}
		})
	})
}
