package wal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// scanScript runs the scripts of testdata/scan:
//
//	new [align=512] [size=65536]        an empty log
//	segment <id>                        the writer goes on in a new segment
//	group [n=1] [value=10]              a group of n documents
//	promise | seal [record] [footer] | close
//	lag <n>                             promises stay n groups behind the last
//	jump to=<seqno>                     torn segment: end recorded here, seqnos jump
//	end seg= end= [last=] [next=]       record an end by hand
//	damage group=<n> [part=all|header|body] [how=zero|flip]
//	damage seg= at= len= [how=]
//	swap group=<n> with=<m>             the bytes of group m in the place of n
//	truncate seg= to=
//	remove seg=
//	layout                              prints the groups
//	scan [from=<group n>] [floor=<seqno>]
type scanScript struct {
	t *testing.T
	b *logBuilder
}

func TestScanScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scan", func(t *testing.T, path string) {
		s := &scanScript{t: t}
		datadriven.RunTest(t, path, s.run)
	})
}

func (s *scanScript) run(t *testing.T, d *datadriven.TestData) string {
	b := s.b
	num := func(key string, def int) int {
		d.MaybeScanArgs(t, key, &def)
		return def
	}
	word := func(key, def string) string {
		d.MaybeScanArgs(t, key, &def)
		return def
	}
	switch d.Cmd {
	case "new":
		s.b = newMemBuilder(t, num("align", 512), int64(num("size", 65536)))
	case "segment":
		id := 0
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &id); err != nil {
			t.Fatal(err)
		}
		b.roll(entry.SegmentID(id))
	case "group":
		g := b.sets(num("n", 1), num("value", 10))
		return fmt.Sprintf("at %d: %d..%d, durable %d\n", g.Offset, g.First, g.Last(), g.Durable)
	case "promise":
		g := b.group(GroupPromise)
		return fmt.Sprintf("at %d: durable %d\n", g.Offset, g.Durable)
	case "seal":
		b.seal(d.HasArg("record"), d.HasArg("footer"))
	case "close":
		b.durable = b.last
		b.group(GroupSeal | GroupClose)
	case "lag":
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &b.lag); err != nil {
			t.Fatal(err)
		}
	case "jump":
		seg := &b.segments[len(b.segments)-1]
		seg.End, seg.Last, seg.Next = b.off, b.last, entry.Seqno(num("to", 0))
		b.next = seg.Next
		b.durable = seg.Next - 1
		b.prev.segment, b.prev.end = uint32(seg.ID), seg.End
	case "end":
		for i := range b.segments {
			if seg := &b.segments[i]; seg.ID == entry.SegmentID(num("seg", 0)) {
				seg.End = uint32(num("end", 0))
				seg.Last, seg.Next = entry.Seqno(num("last", 0)), entry.Seqno(num("next", 0))
			}
		}
	case "damage":
		id, at, n := entry.SegmentID(num("seg", 0)), int64(num("at", 0)), num("len", 1)
		if d.HasArg("group") {
			g := b.groups[num("group", 0)-1]
			id, at, n = g.Segment, int64(g.Offset), g.padded
			switch word("part", "all") {
			case "header":
				at, n = at+16, 4
			case "body":
				at, n = at+GroupHeaderBytes, 3
			}
		}
		p := make([]byte, n)
		if word("how", "zero") == "flip" {
			p = b.peek(id, at, n)
			for i := range p {
				p[i] ^= 0x20
			}
		}
		b.overwrite(id, at, p)
	case "swap":
		g, m := b.groups[num("group", 0)-1], b.groups[num("with", 0)-1]
		b.overwrite(g.Segment, int64(g.Offset), b.peek(m.Segment, int64(m.Offset), m.padded))
	case "truncate":
		f, err := b.fs.Open(b.name(entry.SegmentID(num("seg", 0))), vfs.OpenOptions{Write: true})
		b.ok(err)
		b.ok(f.Truncate(int64(num("to", 0))))
		b.ok(f.Close())
	case "remove":
		b.ok(b.fs.Remove(b.name(entry.SegmentID(num("seg", 0)))))
	case "layout":
		var out strings.Builder
		for i, g := range b.groups {
			fmt.Fprintf(&out, "%d: %06d %d..%d: seqnos %d..%d durable %d flags %d\n",
				i+1, g.Segment, g.Offset, g.End(b.align), g.First, g.Last(), g.Durable, g.Flags)
		}
		return out.String()
	case "scan":
		return s.scan(num("from", 0), entry.Seqno(num("floor", 0)))
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return ""
}

func (s *scanScript) scan(from int, floor entry.Seqno) string {
	o := s.b.options()
	o.DurableFloor = floor
	if from > 0 {
		g := s.b.groups[from-1]
		o.From = entry.Position{Segment: g.Segment, Offset: g.Offset, Seqno: g.First}
	}
	var out strings.Builder
	got := collect(s.t, o)
	if len(got.seqnos) > 0 {
		fmt.Fprintf(&out, "seqnos %s\n", runs(got.seqnos))
	}
	if got.err != nil {
		if !errors.Is(got.err, ErrCorrupt) {
			s.t.Fatal(got.err)
		}
		fmt.Fprintf(&out, "CORRUPT %v\n", got.err)
		return out.String()
	}
	r := got.res
	fmt.Fprintf(&out, "end %v last %d seen %d groups %d records %d", r.End, r.Last, r.MaxSeen, r.Groups, r.Records)
	if r.Clean {
		out.WriteString(" clean")
	}
	out.WriteString("\n")
	for _, g := range r.Discarded {
		fmt.Fprintf(&out, "discarded %06d:%d %d..%d\n", g.Segment, g.Offset, g.First, g.Last)
	}
	return out.String()
}

// runs prints seqnos as "1-4 9-11".
func runs(seqnos []entry.Seqno) string {
	var out []string
	for i := 0; i < len(seqnos); {
		j := i
		for j+1 < len(seqnos) && seqnos[j+1] == seqnos[j]+1 {
			j++
		}
		out = append(out, fmt.Sprintf("%d-%d", seqnos[i], seqnos[j]))
		i = j + 1
	}
	return strings.Join(out, " ")
}

// scanned is everything a scan delivered.
type scanned struct {
	seqnos []entry.Seqno
	keys   []string
	res    ScanResult
	err    error
}

// collect scans and reads every record. It checks that groups and addresses
// are where the chunk says.
func collect(t testing.TB, o ScanOptions) scanned {
	t.Helper()
	var got scanned
	got.res, got.err = Scan(context.Background(), o, func(c *Chunk) error {
		defer c.Release()
		var rr RecordReader
		var r Record
		off := c.Offset
		for h, payload := range c.Groups() {
			if h.Segment != c.Segment || h.Offset != off {
				t.Fatalf("group says %06d:%d, chunk %06d:%d", h.Segment, h.Offset, c.Segment, off)
			}
			off += uint32(h.PaddedBytes(c.align))
			rr.Reset(payload, h)
			for rr.Next(&r) {
				got.seqnos = append(got.seqnos, r.Seqno)
				got.keys = append(got.keys, string(r.Key))
				if r.Separated {
					a := r.Address
					at := a.Offset - h.Offset - GroupHeaderBytes
					if !verifyDocument(payload[at:at+a.Length], &o.Secret, a.Segment, a.Offset, r.Seqno) {
						t.Fatalf("document %v of seqno %d does not verify", a, r.Seqno)
					}
				}
			}
			if rr.Err() != nil {
				return rr.Err()
			}
		}
		return nil
	})
	return got
}

// TestScanShapes scans logs whose groups cross, fill and exceed the buffers.
func TestScanShapes(t *testing.T) {
	for _, c := range []struct {
		name   string
		align  int
		groups []int // value bytes of one document each
		direct bool
	}{
		{name: "small groups", align: 512, groups: []int{1, 2, 3, 400, 5, 6}},
		{name: "groups that straddle reads", align: 512, groups: []int{40_000, 40_000, 40_000, 40_000, 100, 60_000}},
		{name: "a group as large as a read", align: 4096, groups: []int{65536 - 100, 65536 - 100, 10}},
		{name: "a group larger than a read", align: 4096, groups: []int{65536, 10, 200_000, 200_000, 10}},
		{name: "large groups after an unaligned start", align: 512, groups: []int{10, 300_000, 10, 70_000, 10}},
		{name: "large blocks", align: 65536, groups: []int{10, 70_000, 200_000, 10}},
		{name: "direct", align: 4096, groups: []int{10, 70_000, 5000, 200_000, 10}, direct: true},
		{name: "direct with small blocks", align: 512, groups: []int{10, 70_000, 500, 200_000, 10}, direct: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newMemBuilder(t, c.align, 4<<20)
			b.roll(1)
			for i, n := range c.groups {
				if i == len(c.groups)/2 {
					b.seal(false, true)
					b.roll(2)
				}
				b.sets(1, n)
			}
			o := b.options()
			o.Direct = c.direct
			o.Buffers = 3
			for from := range b.groups {
				g := b.groups[from]
				if g.Count == 0 {
					continue
				}
				o.From = entry.Position{Segment: g.Segment, Offset: g.Offset, Seqno: g.First}
				got := collect(t, o)
				if got.err != nil {
					t.Fatalf("from group %d: %v", from, got.err)
				}
				if want := int(b.last - g.First + 1); len(got.seqnos) != want || got.seqnos[0] != g.First || got.res.Last != b.last {
					t.Fatalf("from group %d: seqnos %s, want %d to %d", from, runs(got.seqnos), g.First, b.last)
				}
				if got.res.End != (entry.Position{Segment: 2, Offset: b.off, Seqno: b.next}) {
					t.Fatalf("end %v", got.res.End)
				}
			}
		})
	}
}

// TestScanWithWorkers hands chunks to goroutines that release them late.
func TestScanWithWorkers(t *testing.T) {
	b := newMemBuilder(t, 512, 4<<20)
	b.roll(1)
	for i := range 200 {
		b.sets(3, 100+i*50)
	}
	chunks := make(chan *Chunk)
	counts := make(chan int64)
	for range 2 {
		go func() {
			n := int64(0)
			for c := range chunks {
				for h := range c.Groups() {
					n += int64(h.Count)
				}
				c.Release()
			}
			counts <- n
		}()
	}
	res, err := Scan(context.Background(), b.options(), func(c *Chunk) error { chunks <- c; return nil })
	close(chunks)
	if err != nil {
		t.Fatal(err)
	}
	if n := <-counts + <-counts; n != 600 || res.Records != 600 {
		t.Fatalf("%d records of 600", n)
	}
}

// TestScanWaitsForItsUsers holds every chunk until the scan has no buffer left.
func TestScanWaitsForItsUsers(t *testing.T) {
	b := newMemBuilder(t, 512, 4<<20)
	b.roll(1)
	for range 100 {
		b.sets(1, 20_000)
	}
	o := b.options()
	o.Buffers = 3
	var users sync.WaitGroup
	total := 0
	res, err := Scan(context.Background(), o, func(c *Chunk) error {
		total += c.Bytes()
		users.Go(func() {
			for len(c.buf.pool.free) > 0 {
				runtime.Gosched()
			}
			c.Release()
		})
		return nil
	})
	users.Wait()
	if err != nil || res.Records != 100 || total != int(b.off)-512 {
		t.Fatalf("%d records in %d bytes: %v", res.Records, total, err)
	}
}

// TestScanWaitsForMemoryOfLargeGroups reads groups of which two exceed what
// buffers of large groups may take together.
func TestScanWaitsForMemoryOfLargeGroups(t *testing.T) {
	b := newMemBuilder(t, 4096, 64<<20)
	b.roll(1)
	for range 3 {
		b.sets(1, scanOwnBytesMax/2+1)
	}
	b.sets(1, 1)
	chunks := make(chan *Chunk, 8)
	released := make(chan struct{})
	go func() {
		for c := range chunks {
			c.Release()
		}
		close(released)
	}()
	delivered := 0
	res, err := Scan(context.Background(), b.options(), func(c *Chunk) error {
		p := c.buf.pool
		p.mu.Lock()
		if p.ownBytes > scanOwnBytesMax {
			t.Errorf("%d bytes in buffers of large groups", p.ownBytes)
		}
		p.mu.Unlock()
		delivered++
		chunks <- c
		return nil
	})
	close(chunks)
	<-released
	if err != nil || res.Records != 4 || delivered < 4 {
		t.Fatalf("%d records in %d chunks: %v", res.Records, delivered, err)
	}
}

func TestScanStopsWithTheErrorOfItsUser(t *testing.T) {
	b := newMemBuilder(t, 512, 4<<20)
	b.roll(1)
	for range 50 {
		b.sets(1, 10_000)
	}
	boom := errors.New("boom")
	calls := 0
	_, err := Scan(context.Background(), b.options(), func(c *Chunk) error {
		c.Release()
		calls++
		return boom
	})
	if !errors.Is(err, boom) || calls != 1 {
		t.Fatalf("%v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Scan(ctx, b.options(), func(c *Chunk) error { c.Release(); return nil }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestF6_ReadErrorIsNotTheEndOfTheLog makes each place that a scan reads
// unreadable in turn.
func TestF6_ReadErrorIsNotTheEndOfTheLog(t *testing.T) {
	fs := memfs.New()
	b := newLogBuilder(t, fs, 512, 1<<18)
	b.roll(1)
	for range 20 {
		b.sets(1, 10_000)
	}
	b.seal(true, true)
	b.roll(2)
	b.sets(2, 10)
	eio := errors.New("input/output error")
	for n := 1; ; n++ {
		var mu sync.Mutex // reads run in parallel
		places := map[string]int{}
		fs.SetHook(func(op memfs.Op) error {
			if op.Kind != vfs.OpReadAt {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			place := fmt.Sprint(op.Name, op.Off)
			if places[place] == 0 {
				places[place] = len(places) + 1
			}
			if places[place] == n {
				return eio
			}
			return nil
		})
		got := collect(t, b.options())
		fs.SetHook(nil)
		if len(places) < n {
			if got.err != nil || n < 10 {
				t.Fatalf("place %d of %d: %v", n, len(places), got.err)
			}
			return
		}
		if !errors.Is(got.err, eio) || errors.Is(got.err, ErrCorrupt) {
			t.Fatalf("place %d: %v", n, got.err)
		}
	}
}

func TestScanRefusesForeignSegments(t *testing.T) {
	b := newMemBuilder(t, 512, 65536)
	b.roll(1)
	b.sets(1, 10)
	o := b.options()
	o.StoreID[3]++
	if got := collect(t, o); !errors.Is(got.err, ErrCorrupt) || !strings.Contains(got.err.Error(), "belongs to store") {
		t.Fatal(got.err)
	}
	// The file of one segment under the name of another.
	b.roll(2)
	b.ok(b.fs.Rename(b.name(1), b.name(2)))
	o = b.options()
	o.Segments = []ScanSegment{{ID: 2}}
	o.From.Segment = 2
	if got := collect(t, o); !errors.Is(got.err, ErrCorrupt) || !strings.Contains(got.err.Error(), "says segment 1") {
		t.Fatal(got.err)
	}
}

func TestScanOptionsAreChecked(t *testing.T) {
	for _, o := range []ScanOptions{
		{From: entry.Position{Segment: 1}},
		{From: entry.Position{Segment: 1, Seqno: 1}, BufferBytes: 1000},
		{From: entry.Position{Segment: 1, Seqno: 1}, Buffers: 2},
		{From: entry.Position{Segment: 1, Seqno: 1}, Segments: []ScanSegment{{ID: 2}, {ID: 1}}},
	} {
		if _, err := Scan(context.Background(), o, nil); err == nil || errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestScanRealFiles scans, and reads documents, through the operating system,
// with direct I/O where the file system has it.
func TestScanRealFiles(t *testing.T) {
	dir := t.TempDir()
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			if err := vfs.ProbeDirect(vfs.OS, dir); direct && errors.Is(err, vfs.ErrDirectUnsupported) {
				t.Skip(err)
			}
			fs := subFS{vfs.OS, path.Join(dir, fmt.Sprint(direct))}
			b := newLogBuilder(t, fs, 512, 4<<20)
			b.roll(1)
			for i := range 300 {
				b.sets(1+i%5, 100+i*30)
			}
			b.seal(true, true)
			b.roll(2)
			b.sets(2, 1<<20)
			b.sets(3, 5)
			o := b.options()
			o.Direct = direct
			got := collect(t, o)
			if got.err != nil || int(b.last) != len(got.seqnos) || got.res.Last != b.last {
				t.Fatalf("seqnos %s of %d: %v", runs(got.seqnos), b.last, got.err)
			}
			f, err := fs.Open(b.name(1), vfs.OpenOptions{Direct: direct})
			b.ok(err)
			defer f.Close()
			_, index, err := ReadFooter(f, &testSecret, 1)
			b.ok(err)
			var reads []DocRead
			for _, g := range b.groups {
				for i, r := range g.records {
					seqno := g.First + entry.Seqno(i)
					if off, ok := index.Lookup(seqno); ok {
						n := uint32(RecordBytes(len(r.key), r.meta, len(r.value), true))
						reads = append(reads, DocRead{File: f, Seqno: seqno, Key: r.key, Address: entry.Address{Segment: 1, Offset: off, Length: n}})
					} else if r.separated && g.Segment == 1 {
						t.Fatalf("document %d is not in the index", seqno)
					}
				}
			}
			ReadDocuments(reads, testIO, &testSecret, direct, nil, math.MaxInt)
			for _, r := range reads {
				if r.Err != nil || len(r.Value) < 256 {
					t.Fatalf("document %v: %d bytes, %v", r.Address, len(r.Value), r.Err)
				}
			}
			if len(reads) < 800 {
				t.Fatalf("%d documents", len(reads))
			}
		})
	}
}

// subFS puts relative names below a directory.
type subFS struct {
	vfs.FS
	dir string
}

func (f subFS) Create(name string, o vfs.OpenOptions) (vfs.File, error) {
	return f.FS.Create(path.Join(f.dir, name), o)
}

func (f subFS) Open(name string, o vfs.OpenOptions) (vfs.File, error) {
	return f.FS.Open(path.Join(f.dir, name), o)
}

func (f subFS) MkdirAll(dir string) error { return f.FS.MkdirAll(path.Join(f.dir, dir)) }

func (f subFS) SyncDir(dir string) error { return f.FS.SyncDir(path.Join(f.dir, dir)) }
