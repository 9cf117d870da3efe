package manifest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// testSecret is the secret of every store in these tests.
var testSecret = [16]byte{0xf1, 0x0c, 0x5e, 0xc7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}

// parseEdit reads an edit from text, one change a line:
//
//	add 2 log 4194304
//	seal 2 end=8192 last=17 file=8704 footer
//	end 2 end=8192 last=17 next=16777300
//	drop 2
//	replay 2 4096 1
//	next 5
//	clear 7
//	pending 1700000000000000000
//	file 9
//	expiry 1700000000
//	table 7 kv=3 level=0 tier=1 run=7 keys=a..m seqnos=5..9 bytes=8192 entries=4 gone=1 keybytes=20 values=30 seg=2:3:300
//	untable 7
//	flushed 3 9
//	dead 2 5,6,9
//	forward 2 3:5..9 4:6..8
//	unforward 2
//
// Of table everything behind the keys may be left out.
func parseEdit(t testing.TB, text string) Edit {
	t.Helper()
	var e Edit
	number := func(s string) uint64 {
		if _, value, found := strings.Cut(s, "="); found {
			s = value
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("edit %q: %v", text, err)
		}
		return n
	}
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ';' }) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		id := func() entry.SegmentID { return entry.SegmentID(number(f[1])) }
		switch f[0] {
		case "add":
			kind := map[string]SegmentKind{"log": SegmentLog, "gc": SegmentGC}[f[2]]
			e.AddSegments = append(e.AddSegments, AddSegment{ID: id(), Kind: kind, Size: int64(number(f[3]))})
		case "seal":
			e.SealSegments = append(e.SealSegments, SealSegment{ID: id(), End: uint32(number(f[2])), Last: entry.Seqno(number(f[3])),
				FileBytes: int64(number(f[4])), Footer: len(f) > 5})
		case "end":
			e.EndSegments = append(e.EndSegments, EndSegment{ID: id(), End: uint32(number(f[2])), Last: entry.Seqno(number(f[3])), Next: entry.Seqno(number(f[4]))})
		case "drop":
			e.DropSegments = append(e.DropSegments, id())
		case "replay":
			e.ReplayFrom = entry.Position{Segment: id(), Offset: uint32(number(f[2])), Seqno: entry.Seqno(number(f[3]))}
		case "next":
			e.NextSeqno = entry.Seqno(number(f[1]))
		case "clear":
			e.ClearSeqno = entry.Seqno(number(f[1]))
		case "pending":
			e.SetPendingClear, e.PendingClear = true, int64(number(f[1]))
		case "expiry":
			e.ExpiryClock = uint32(number(f[1]))
		case "file":
			e.NextFile = number(f[1])
		case "table":
			e.AddTables = append(e.AddTables, parseTable(t, f[1:]))
		case "untable":
			e.DropTables = append(e.DropTables, number(f[1]))
		case "flushed":
			e.Flushed = append(e.Flushed, Flushed{KVStore: uint16(number(f[1])), Seqno: entry.Seqno(number(f[2]))})
		case "dead":
			var seqnos []entry.Seqno
			for _, s := range strings.Split(f[2], ",") {
				seqnos = append(seqnos, entry.Seqno(number(s)))
			}
			e.AddDead = append(e.AddDead, NewDeadSet(id(), seqnos))
		case "forward":
			to := Forward{From: id()}
			for _, s := range f[2:] {
				segment, seqnos, _ := strings.Cut(s, ":")
				first, last, _ := strings.Cut(seqnos, "..")
				to.To = append(to.To, ForwardRange{Segment: entry.SegmentID(number(segment)), First: entry.Seqno(number(first)), Last: entry.Seqno(number(last))})
			}
			e.AddForwards = append(e.AddForwards, to)
		case "unforward":
			e.DropForwards = append(e.DropForwards, id())
		default:
			t.Fatalf("edit line %q", line)
		}
	}
	return e
}

// parseTable reads the words behind "table".
func parseTable(t testing.TB, words []string) *Table {
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("table %q: %v", words, err)
		}
		return n
	}
	table := &Table{Number: number(words[0]), LowestSeqno: 1, HighestSeqno: 1, FileBytes: 4096, Entries: 1}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		low, high, _ := strings.Cut(value, "..")
		switch name {
		case "kv":
			table.KVStore = uint16(number(value))
		case "level":
			table.Level = uint8(number(value))
		case "tier":
			table.Tier = uint8(number(value))
		case "run":
			table.Run = number(value)
		case "keys":
			table.Smallest, table.Largest = entry.AppendKey(nil, 0, []byte(low)), entry.AppendKey(nil, 0, []byte(high))
		case "seqnos":
			table.LowestSeqno, table.HighestSeqno = entry.Seqno(number(low)), entry.Seqno(number(high))
		case "bytes":
			table.FileBytes = int64(number(value))
		case "entries":
			table.Entries = number(value)
		case "gone":
			table.Tombstones = number(value)
		case "keybytes":
			table.KeyBytes = number(value)
		case "values":
			table.ValueBytes = number(value)
		case "seg":
			p := strings.Split(value+":1:100", ":")
			table.Segments = append(table.Segments, SegmentUse{Segment: entry.SegmentID(number(p[0])), Documents: uint32(number(p[1])), Bytes: number(p[2])})
		default:
			t.Fatalf("table %q", words)
		}
	}
	return table
}

// dump shows a state as text.
func dump(st State) string {
	var b strings.Builder
	for _, s := range st.Segments {
		fmt.Fprintf(&b, "segment %06d %s size=%d", s.ID, s.Kind, s.Size)
		switch {
		case s.Sealed:
			fmt.Fprintf(&b, " sealed end=%d last=%d file=%d footer=%v", s.End, s.Last, s.FileBytes, s.Footer)
		case s.Ended:
			fmt.Fprintf(&b, " torn end=%d last=%d next=%d", s.End, s.Last, s.Next)
		}
		b.WriteByte('\n')
	}
	for _, t := range st.Tables {
		fmt.Fprintf(&b, "table %06d kvstore=%d level=%d tier=%d run=%d keys %q..%q seqnos %d..%d bytes=%d entries=%d tombstones=%d key-bytes=%d value-bytes=%d",
			t.Number, t.KVStore, t.Level, t.Tier, t.Run, t.Smallest, t.Largest, t.LowestSeqno, t.HighestSeqno, t.FileBytes, t.Entries, t.Tombstones, t.KeyBytes, t.ValueBytes)
		for _, s := range t.Segments {
			fmt.Fprintf(&b, " %06d:%d:%d", s.Segment, s.Documents, s.Bytes)
		}
		b.WriteByte('\n')
	}
	for _, f := range st.Flushed {
		fmt.Fprintf(&b, "flushed %d up to %d\n", f.KVStore, f.Seqno)
	}
	for _, d := range st.Dead {
		fmt.Fprintf(&b, "dead %06d %d\n", d.Segment(), d.AppendSeqnos(nil))
	}
	for _, f := range st.Forwards {
		fmt.Fprintf(&b, "forward %06d", f.From)
		for _, r := range f.To {
			fmt.Fprintf(&b, " %06d:%d..%d", r.Segment, r.First, r.Last)
		}
		b.WriteByte('\n')
	}
	if st.ReplayFrom != (entry.Position{}) {
		fmt.Fprintf(&b, "replay-from %v\n", st.ReplayFrom)
	}
	fmt.Fprintf(&b, "next-seqno %d next-file %d", st.NextSeqno, st.NextFileNumber)
	if st.ClearSeqno != 0 {
		fmt.Fprintf(&b, " clear-seqno %d", st.ClearSeqno)
	}
	if st.PendingClear != 0 {
		fmt.Fprintf(&b, " pending-clear %d", st.PendingClear)
	}
	if st.ExpiryClock != 0 {
		fmt.Fprintf(&b, " expiry-clock %d", st.ExpiryClock)
	}
	b.WriteByte('\n')
	return b.String()
}

// segmentName stands in for the log's own naming.
func segmentName(s Segment) string { return fmt.Sprintf("log/%06d.seg", s.ID) }

// sumOf returns the checksum FORMAT ends in.
func sumOf(b []byte) []byte { return le.AppendUint64(nil, xxhash.Sum64(b)) }

var (
	epoch  = time.Unix(1700000000, 0)
	errEIO = &os.PathError{Op: "test", Path: "disk", Err: syscall.EIO}
)

// failNext makes the next call of this kind and name fail without effect, and
// the disk work again afterwards.
func failNext(disk *memfs.FS, kind vfs.OpKind, pattern string, err error) {
	disk.SetHook(func(op vfs.Op) error {
		if op.Kind == kind && vfs.MatchName(pattern, op.Name) {
			disk.SetHook(nil)
			return err
		}
		return nil
	})
}
