package wal

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// rewriteSizesSmall make everything cross the bounds of buffers all the time.
var rewriteSizesSmall = rewriteSizes{read: 4096, kept: 16384, group: 4096, write: 4096}

// rewriteDoc is a separated document as a test put it into a victim.
type rewriteDoc struct {
	key, value []byte // as stored
	meta       entry.Meta
	compressed bool
	segment    entry.SegmentID
}

// rewriteBench is a set of segments to rewrite, and what is in them.
type rewriteBench struct {
	t      testing.TB
	fs     vfs.FS
	nextID entry.SegmentID
	docs   map[entry.Seqno]rewriteDoc
	live   []RewriteVictim // segments that exist
	sizes  rewriteSizes
	direct bool
	verify bool
}

func newRewriteBench(t testing.TB, fs vfs.FS) *rewriteBench {
	return &rewriteBench{t: t, fs: fs, nextID: 1000, docs: map[entry.Seqno]rewriteDoc{}, sizes: rewriteSizesSmall}
}

func (r *rewriteBench) options(align int, segmentBytes int64) RewriteOptions {
	return RewriteOptions{
		FS: r.fs, Dir: "db", Secret: testSecret, StoreID: testStoreID, Align: align, Direct: r.direct, SegmentBytes: segmentBytes, Verify: r.verify,
		NextID: func() entry.SegmentID { r.nextID++; return r.nextID },
	}
}

// take notes what a builder wrote, and the ends of its segments.
func (r *rewriteBench) take(b *logBuilder) {
	r.t.Helper()
	ends := map[entry.SegmentID]uint32{}
	for i := range b.groups {
		g := &b.groups[i]
		ends[g.Segment] = g.End(b.align)
		seqno := g.First
		for j, rec := range g.records {
			if g.Flags&GroupDelta != 0 {
				seqno += entry.Seqno(rec.delta)
			} else if j > 0 {
				seqno++
			}
			if rec.separated && rec.kind == RecordSet {
				r.docs[seqno] = rewriteDoc{rec.key, rec.value, rec.meta, rec.compressed, g.Segment}
			}
		}
	}
	for _, s := range b.segments {
		end := ends[s.ID]
		if end == 0 {
			end = uint32(b.align)
		}
		r.live = append(r.live, RewriteVictim{ID: s.ID, Kind: b.kind, End: end})
	}
	b.closeFile()
}

// rewrite rewrites some of the segments and checks everything that is said about
// the outputs. keep decides by seqno. Victims go, outputs come.
func (r *rewriteBench) rewrite(o RewriteOptions, victims []RewriteVictim, keep func(entry.Seqno) bool) RewriteResult {
	t := r.t
	t.Helper()
	asked := map[entry.Seqno]bool{}
	last := entry.Seqno(0)
	res, err := rewriteSegments(t.Context(), o, r.sizes, victims, func(rec *Record) bool {
		d, ok := r.docs[rec.Seqno]
		switch {
		case rec.Seqno <= last:
			t.Fatalf("asked about seqno %d after %d", rec.Seqno, last)
		case !ok || !rec.Separated || d.segment != rec.Address.Segment || !bytes.Equal(rec.Key, d.key) ||
			!bytes.Equal(rec.Value, d.value) || rec.Meta != d.meta || rec.Compressed != d.compressed:
			t.Fatalf("asked about %+v, which is not what was written", rec)
		}
		last = rec.Seqno
		asked[rec.Seqno] = true
		return keep(rec.Seqno)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[entry.Seqno]bool{}
	for seqno, d := range r.docs {
		if slices.ContainsFunc(victims, func(v RewriteVictim) bool { return v.ID == d.segment }) {
			want[seqno] = true
		}
	}
	if !maps.Equal(asked, want) {
		t.Fatalf("asked about %d documents, victims have %d", len(asked), len(want))
	}
	r.checkCounts(&res, victims, want, keep)
	last = 0
	for i := range res.Outputs {
		out := &res.Outputs[i]
		if out.First <= last || out.Last < out.First {
			t.Fatalf("output %d has seqnos %d to %d after %d", i, out.First, out.Last, last)
		}
		last = out.Last
		r.checkOutput(o, out, want, keep)
	}
	for seqno := range want { // what is left was kept and not found
		if d := r.docs[seqno]; slices.ContainsFunc(victims, func(v RewriteVictim) bool { return v.ID == d.segment }) {
			if keep(seqno) {
				t.Fatalf("document of seqno %d was kept and is in no output", seqno)
			}
			delete(r.docs, seqno)
		}
	}
	r.live = slices.DeleteFunc(r.live, func(s RewriteVictim) bool { return slices.Contains(victims, s) })
	for _, out := range res.Outputs {
		r.live = append(r.live, RewriteVictim{ID: out.ID, Kind: SegmentGC, End: out.End})
		if err := out.Segment.CloseFile(); err != nil {
			t.Fatal(err)
		}
	}
	return res
}

func (r *rewriteBench) checkCounts(res *RewriteResult, victims []RewriteVictim, of map[entry.Seqno]bool, keep func(entry.Seqno) bool) {
	t := r.t
	t.Helper()
	written, kept := int64(0), 0
	for i, v := range victims {
		got := res.Victims[i]
		want := VictimResult{ID: v.ID, PassedOver: got.PassedOver}
		var moved []entry.Seqno
		for seqno := range of {
			d := r.docs[seqno]
			if d.segment != v.ID {
				continue
			}
			n := RecordBytes(len(d.key), d.meta, len(d.value), true)
			if _, found := res.Find(seqno); found != keep(seqno) {
				t.Fatalf("seqno %d: found %v, kept %v", seqno, found, keep(seqno))
			}
			if keep(seqno) {
				want.Kept.add(n)
				moved = append(moved, seqno)
			} else {
				want.Dropped.add(n)
			}
		}
		slices.Sort(moved)
		for _, seqno := range moved {
			to, _ := res.Find(seqno)
			want.moved(to, seqno)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("victim %+v, want %+v", got, want)
		}
		kept += want.Kept.Documents
	}
	for _, out := range res.Outputs {
		written += out.FileBytes
		kept -= out.Documents.Documents
	}
	if kept != 0 || res.WrittenBytes != written || res.ReadBytes == 0 && len(of) > 0 {
		t.Fatalf("%d documents too few, %d bytes written of files of %d, %d read", kept, res.WrittenBytes, written, res.ReadBytes)
	}
}

// checkOutput reads an output in every way there is, and moves the documents that
// it has to it.
func (r *rewriteBench) checkOutput(o RewriteOptions, out *RewriteOutput, of map[entry.Seqno]bool, keep func(entry.Seqno) bool) {
	t := r.t
	t.Helper()
	name := path.Join("db", SegmentsDir, SegmentName(out.ID, SegmentGC))
	size, err := r.fs.Size(name)
	if err != nil || size != out.FileBytes || size%int64(o.Align) != 0 {
		t.Fatalf("%s has %d bytes, output says %d: %v", name, size, out.FileBytes, err)
	}
	if int64(out.End) > o.SegmentBytes && out.Documents.Documents > 1 {
		t.Fatalf("groups of %d documents end at %d, over %d", out.Documents.Documents, out.End, o.SegmentBytes)
	}
	seg, err := OpenSegment(r.fs, "db", out.ID, SegmentGC, o.Direct)
	if err != nil || seg.bytes != size || seg.Align != o.Align {
		t.Fatalf("%+v, %v", seg, err)
	}
	defer seg.CloseFile()
	foot, index, err := ReadFooter(seg.File, &testSecret, out.ID)
	if err != nil || foot.End != out.End || foot.First != out.First || foot.Last != out.Last || foot.Durable != out.Last ||
		int(foot.Records) != out.Documents.Documents || index.Len() != out.Documents.Documents {
		t.Fatalf("%+v with %d documents, want %+v: %v", foot, index.Len(), out, err)
	}
	kept, err := out.Segment.Index(t.Context())
	if err != nil || !maps.Equal(maps.Collect(kept.All()), maps.Collect(index.All())) {
		t.Fatalf("index in memory differs: %v", err)
	}
	r.checkGroups(out, index)
	var reads []DocRead
	for seqno, off := range index.All() {
		d := r.docs[seqno]
		if !of[seqno] || !keep(seqno) {
			t.Fatalf("document of seqno %d was not kept", seqno)
		}
		a := entry.Address{Segment: d.segment, Offset: 1, Length: uint32(RecordBytes(len(d.key), d.meta, len(d.value), true))}
		s, moved, err := FindMoved(t.Context(), []*Segment{out.Segment}, a, seqno)
		if err != nil || s != out.Segment || moved.Offset != off {
			t.Fatalf("found at %v: %v", moved, err)
		}
		reads = append(reads, DocRead{File: seg.File, Address: moved, Seqno: seqno, Key: d.key})
		d.segment = out.ID
		r.docs[seqno] = d
	}
	ReadDocuments(reads, testIO, &testSecret, o.Direct, nil, math.MaxInt)
	for _, read := range reads {
		d := r.docs[read.Seqno]
		want, err := (&Record{Value: d.value, Compressed: d.compressed}).AppendValue(nil)
		if err != nil {
			continue // not compressed as it should be, which reading finds as well
		}
		if read.Err != nil || !bytes.Equal(read.Value, want) || read.Meta != d.meta {
			t.Fatalf("document of seqno %d: %x %+v, %v", read.Seqno, read.Value, read.Meta, read.Err)
		}
	}
}

// checkGroups looks at the groups and makes the index from them, in a copy without
// its footer.
func (r *rewriteBench) checkGroups(out *RewriteOutput, index *SeqnoIndex) {
	t := r.t
	t.Helper()
	mem, ok := r.fs.(*memfs.FS)
	if !ok {
		return
	}
	b := &logBuilder{t: t, fs: mem.CrashCopy(1, memfs.DropAll), kind: SegmentGC}
	b.truncate(out.ID, int64(out.End))
	for at := out.Segment.Align; at < int(out.End); {
		h, ok := DecodeGroupHeader(b.peek(out.ID, int64(at), GroupHeaderBytes), &testSecret, out.ID, uint32(at))
		last := int(h.End(out.Segment.Align)) == int(out.End)
		if !ok || h.Count == 0 || last != (h.Flags == GroupDelta|GroupSeal) || !last && h.Flags != GroupDelta ||
			h.Durable != 0 || h.PrevSegment != 0 || h.PrevEnd != 0 || h.PrevLast != 0 {
			t.Fatalf("group at %d of %d: %+v", at, out.End, h)
		}
		if end := at + int(h.Bytes); !isZero(b.peek(out.ID, int64(end), h.PaddedBytes(out.Segment.Align)-int(h.Bytes))) {
			t.Fatalf("padding at %d is not zero", end)
		}
		at = int(h.End(out.Segment.Align))
	}
	for _, end := range []uint32{0, out.End} {
		x, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), out.ID, SegmentGC, end)
		wantIndex(t, x, err, maps.Collect(index.All()))
	}
}

func (r *rewriteBench) victims(ids ...entry.SegmentID) []RewriteVictim {
	var out []RewriteVictim
	for _, v := range r.live {
		if slices.Contains(ids, v.ID) {
			out = append(out, v)
		}
	}
	return out
}
