package wal

import (
	"fmt"
	"path"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

var (
	testSecret  = Secret{0: 0x5e, 1: 0xc4, 7: 0x77, 8: 0x01, 15: 0xff}
	testStoreID = [16]byte{0xab, 0xcd, 15: 0xef}
)

// builtRecord is a record as a test wants it.
type builtRecord struct {
	kind       RecordKind
	key, value []byte
	meta       entry.Meta
	separated  bool
	compressed bool
	delta      uint64 // GroupDelta only
}

// builtGroup remembers where a group was put.
type builtGroup struct {
	GroupHeader
	records []builtRecord
	padded  int
}

// logBuilder writes segments as the writer would, one group after another,
// to any file system, and remembers them.
type logBuilder struct {
	t        testing.TB
	fs       vfs.FS
	align    int
	size     int64
	kind     SegmentKind
	file     vfs.File
	segment  entry.SegmentID
	off      uint32
	next     entry.Seqno
	last     entry.Seqno
	durable  entry.Seqno // what the next group promises
	lag      int         // how many groups the promise is behind the last group
	lasts    []entry.Seqno
	prev     struct{ segment, end uint32 }
	groups   []builtGroup
	segments []ScanSegment
	docs     *IndexBuilder
	first    entry.Seqno // of the segment
	records  uint32
}

func newLogBuilder(t testing.TB, fs vfs.FS, align int, size int64) *logBuilder {
	t.Helper()
	b := &logBuilder{t: t, fs: fs, align: align, size: size, kind: SegmentLog, next: 1}
	b.ok(fs.MkdirAll("db/" + SegmentsDir))
	t.Cleanup(b.closeFile)
	return b
}

func newMemBuilder(t testing.TB, align int, size int64) *logBuilder {
	return newLogBuilder(t, memfs.New(), align, size)
}

func (b *logBuilder) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *logBuilder) closeFile() {
	if b.file != nil {
		b.file.Close()
		b.file = nil
	}
}

func (b *logBuilder) name(id entry.SegmentID) string {
	return path.Join("db", SegmentsDir, SegmentName(id, b.kind))
}

// roll starts a segment.
func (b *logBuilder) roll(id entry.SegmentID) {
	b.t.Helper()
	b.closeFile()
	f, err := b.fs.Create(b.name(id), vfs.OpenOptions{Write: true})
	b.ok(err)
	b.ok(f.Allocate(b.size))
	head := make([]byte, b.align)
	h := SegmentHeader{Kind: b.kind, Align: b.align, ID: id, Size: b.size, StoreID: testStoreID}
	h.Encode(head)
	_, err = f.WriteDurable(head, 0)
	b.ok(err)
	b.ok(f.Sync())
	b.ok(b.fs.SyncDir("db/" + SegmentsDir))
	b.file, b.segment, b.off = f, id, uint32(b.align)
	b.segments = append(b.segments, ScanSegment{ID: id})
	b.docs, b.first, b.records = NewIndexBuilder(16), b.next, 0
}

// encode makes the bytes of the next group, padded.
func (b *logBuilder) encode(flags uint16, records []builtRecord) (builtGroup, []byte) {
	buf := make([]byte, GroupHeaderBytes)
	g := builtGroup{records: records}
	seqno := b.next
	for i, r := range records {
		if flags&GroupDelta != 0 {
			buf = AppendDelta(buf, r.delta)
			seqno += entry.Seqno(r.delta)
		} else if i > 0 {
			seqno++
		}
		start := len(buf)
		switch {
		case r.kind == RecordDelete:
			buf = AppendDelete(buf, r.key)
		case r.kind == RecordClear:
			buf = AppendClear(buf)
		case r.compressed:
			buf = AppendCompressedSet(buf, r.key, r.meta, r.value, r.separated)
		default:
			buf = AppendSet(buf, r.key, r.meta, r.value, r.separated)
		}
		if r.separated {
			off := b.off + uint32(start)
			FinishDocument(buf[start:], &testSecret, b.segment, off, seqno)
			b.docs.Add(seqno, off)
		}
	}
	g.GroupHeader = GroupHeader{
		Flags: flags, Bytes: uint32(len(buf)), Count: uint32(len(records)),
		Segment: b.segment, Offset: b.off, First: b.next, Durable: b.durable,
		PrevSegment: entry.SegmentID(b.prev.segment), PrevEnd: b.prev.end, PrevLast: b.last,
	}
	g.padded = g.PaddedBytes(b.align)
	buf = append(buf, make([]byte, g.padded-len(buf))...)
	g.Encode(buf, &testSecret)
	return g, buf
}

// group writes a group.
func (b *logBuilder) group(flags uint16, records ...builtRecord) builtGroup {
	b.t.Helper()
	g, buf := b.encode(flags, records)
	_, err := b.file.WriteDurable(buf, int64(b.off))
	b.ok(err)
	b.groups = append(b.groups, g)
	b.off += uint32(g.padded)
	b.prev.segment, b.prev.end = uint32(b.segment), b.off
	if g.Count > 0 {
		b.last = g.Last()
		b.next = b.last + 1
	}
	b.records += g.Count
	b.lasts = append(b.lasts, b.last)
	if n := len(b.lasts) - b.lag; n > 0 {
		b.durable = b.lasts[n-1]
	}
	return g
}

// sets writes a group of n documents with values of valueBytes.
func (b *logBuilder) sets(n, valueBytes int) builtGroup {
	b.t.Helper()
	records := make([]builtRecord, n)
	for i := range records {
		records[i] = builtRecord{
			key:       fmt.Appendf(nil, "key-%d", int(b.next)+i),
			value:     make([]byte, valueBytes),
			separated: valueBytes > 255,
		}
		for j := range records[i].value {
			records[i].value[j] = byte(int(b.next) + i + j)
		}
	}
	return b.group(0, records...)
}

// seal ends the segment with a seal group, records its end if told to, and
// writes the footer.
func (b *logBuilder) seal(record, footer bool) {
	b.t.Helper()
	b.durable = b.last
	b.group(GroupSeal)
	b.durable = b.last
	s := &b.segments[len(b.segments)-1]
	if record {
		s.End, s.Last = b.off, b.last
	}
	if footer {
		f := Footer{Segment: b.segment, End: b.off, Records: b.records, First: b.first, Last: b.last, Durable: b.last}
		foot := EncodeFooter(nil, f, b.docs, b.align, &testSecret)
		b.ok(b.file.Truncate(int64(b.off)))
		_, err := b.file.WriteDurable(foot, int64(b.off))
		b.ok(err)
		b.ok(b.file.Sync())
	}
}

// overwrite damages a file.
func (b *logBuilder) overwrite(id entry.SegmentID, off int64, p []byte) {
	b.t.Helper()
	f, err := b.fs.Open(b.name(id), vfs.OpenOptions{Write: true})
	b.ok(err)
	_, err = f.WriteAt(p, off)
	b.ok(err)
	b.ok(f.Close())
}

// peek reads n bytes of a file.
func (b *logBuilder) peek(id entry.SegmentID, off int64, n int) []byte {
	b.t.Helper()
	f, err := b.fs.Open(b.name(id), vfs.OpenOptions{})
	b.ok(err)
	p := make([]byte, n)
	_, err = f.ReadAt(p, off)
	b.ok(err)
	b.ok(f.Close())
	return p
}

// start is the position where the built log begins.
func (b *logBuilder) start() entry.Position {
	return entry.Position{Segment: b.segments[0].ID, Offset: uint32(b.align), Seqno: 1}
}

// options are those for a scan of everything.
func (b *logBuilder) options() ScanOptions {
	return ScanOptions{
		FS: b.fs, Dir: "db", Secret: testSecret, StoreID: testStoreID,
		From: b.start(), Segments: b.segments, BufferBytes: AlignMax,
	}
}
