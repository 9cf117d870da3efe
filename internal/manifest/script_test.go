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
		case "file":
			e.NextFile = number(f[1])
		default:
			t.Fatalf("edit line %q", line)
		}
	}
	return e
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
