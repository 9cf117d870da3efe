package wal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// drawSegments writes a few segments of a log, some sealed, some torn.
func drawSegments(rt *rapid.T, b *logBuilder, first entry.SegmentID) {
	for i := range rapid.IntRange(1, 4).Draw(rt, "segments") {
		b.roll(first + entry.SegmentID(i))
		for range rapid.IntRange(0, 6).Draw(rt, "groups") {
			if rapid.IntRange(0, 5).Draw(rt, "promise") == 0 {
				b.group(GroupPromise)
				continue
			}
			records := make([]builtRecord, rapid.IntRange(1, 8).Draw(rt, "records"))
			for j := range records {
				records[j] = drawRecord(rt, j == 0, false)
				if len(records[j].key) > 5000 {
					records[j].key = records[j].key[:300]
				}
				records[j].separated = records[j].separated && records[j].kind == RecordSet
			}
			b.group(0, records...)
		}
		if rapid.Bool().Draw(rt, "sealed") {
			b.seal(true, rapid.Bool().Draw(rt, "footer"))
		}
	}
}

// TestRewriteModel rewrites random segments, then what came of them, again and
// again: the outputs hold exactly what keep wanted.
func TestRewriteModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := memfs.New()
		r := newRewriteBench(t, fs)
		align := rapid.SampledFrom([]int{512, 4096}).Draw(rt, "align of the log")
		b := newLogBuilder(t, fs, align, 1<<18)
		for round := range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			if b.segments = nil; round < 2 {
				b.groups = nil
				drawSegments(rt, b, entry.SegmentID(1+10*round))
				r.take(b)
			}
			victims := rapid.SliceOfNDistinct(rapid.SampledFrom(r.live), 0, len(r.live), rapid.ID).Draw(rt, "victims")
			r.verify = rapid.Bool().Draw(rt, "verify")
			share := rapid.IntRange(0, 4).Draw(rt, "quarters to keep")
			o := r.options(rapid.SampledFrom([]int{512, 4096, 65536}).Draw(rt, "align"), rapid.Int64Range(65536, 1<<18).Draw(rt, "segment bytes"))
			if r.sizes = rewriteSizesSmall; o.Align > r.sizes.group || rapid.Bool().Draw(rt, "usual sizes") {
				r.sizes = rewriteSizesDefault
			}
			r.rewrite(o, victims, func(s entry.Seqno) bool { return int(mix64(uint64(s)))&3 < share })
			if len(r.live) == 0 {
				return
			}
		}
	})
}

// TestRewriteLargeDocuments: groups and documents over every buffer, with direct
// I/O.
func TestRewriteLargeDocuments(t *testing.T) {
	for _, sizes := range []rewriteSizes{rewriteSizesSmall, rewriteSizesDefault} {
		fs := memfs.New()
		r := newRewriteBench(t, fs)
		r.direct, r.sizes = true, sizes
		b := newLogBuilder(t, fs, 4096, 16<<20)
		for id := entry.SegmentID(1); id <= 2; id++ {
			b.roll(id)
			group := sizes.group
			for _, n := range []int{300, 4000, 5 * group, 300, group / 4, group, group - 90, group - 4096, 700} {
				b.sets(1, max(n, 300))
			}
			b.sets(group/1500+3, 1500)
			b.sets(5, group/3)
			b.seal(true, true)
		}
		r.take(b)
		most := func(s entry.Seqno) bool { return s%7 != 3 }
		res := r.rewrite(r.options(4096, int64(8*sizes.group)), r.live, most)
		if len(res.Outputs) < 2 {
			t.Fatalf("%d outputs", len(res.Outputs))
		}
		// Outputs of outputs, smaller than some of the documents.
		r.rewrite(r.options(4096, max(8192, int64(sizes.group))), r.live, most)
	}
}

// TestRewriteMergesBySeqno: victims whose seqnos interleave give outputs that do
// not overlap.
func TestRewriteMergesBySeqno(t *testing.T) {
	fs := memfs.New()
	r := newRewriteBench(t, fs)
	b := newLogBuilder(t, fs, 512, 1<<20)
	for id := entry.SegmentID(1); id <= 4; id++ {
		b.roll(id)
		b.sets(50, 300)
		b.sets(50, 700)
		b.seal(true, false)
	}
	r.take(b)
	for _, ids := range [][]entry.SegmentID{{1, 3}, {2, 4}} { // one output each, interleaved
		r.rewrite(r.options(512, 1<<20), r.victims(ids...), func(s entry.Seqno) bool { return s%3 > 0 })
	}
	res := r.rewrite(r.options(512, 20_000), r.live, func(s entry.Seqno) bool { return s%5 > 0 })
	if len(res.Outputs) < 5 {
		t.Fatalf("%d outputs", len(res.Outputs))
	}
	// Every group but the last has the size that it may have.
	b = &logBuilder{t: t, fs: fs, kind: SegmentGC}
	out := &res.Outputs[0]
	h, ok := DecodeGroupHeader(b.peek(out.ID, 512, 4096), &testSecret, out.ID, 512)
	if !ok || h.Bytes < 3000 || h.Bytes > 4096 {
		t.Fatalf("%+v %v", h, ok)
	}
}

func TestRewriteKeepsNothing(t *testing.T) {
	fs := memfs.New()
	r := newRewriteBench(t, fs)
	b := newLogBuilder(t, fs, 512, 1<<17)
	b.roll(1)
	b.sets(5, 300)
	b.seal(true, true)
	b.roll(2) // without a group
	r.take(b)
	fs.ResetCounts()
	res := r.rewrite(r.options(512, 1<<17), r.live, func(entry.Seqno) bool { return false })
	if n := fs.Count("", vfs.OpCreate, vfs.OpSyncDir, vfs.OpWriteAt); n != 0 || len(res.Outputs) != 0 {
		t.Errorf("%d calls, %+v", n, res)
	}
	if res, err := Rewrite(t.Context(), r.options(512, 1<<17), nil, nil); err != nil || len(res.Outputs) != 0 {
		t.Errorf("no victims: %+v, %v", res, err)
	}
}

func TestRewriteOptionsAreChecked(t *testing.T) {
	r := newRewriteBench(t, memfs.New())
	for _, change := range []func(*RewriteOptions){
		func(o *RewriteOptions) { o.Align = 0 },
		func(o *RewriteOptions) { o.Align = 1000 },
		func(o *RewriteOptions) { o.SegmentBytes = 0 },
		func(o *RewriteOptions) { o.SegmentBytes = MaxSegmentBytes + 1 },
	} {
		o := r.options(4096, 1<<20)
		change(&o)
		if _, err := Rewrite(t.Context(), o, nil, nil); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// fails rewrites victims, keeping all, and expects an error and no file left.
func (r *rewriteBench) fails(o RewriteOptions, victims []RewriteVictim) error {
	r.t.Helper()
	before, err := r.fs.List("db/" + SegmentsDir)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := rewriteSegments(r.t.Context(), o, r.sizes, victims, func(*Record) bool { return true })
	if err == nil || len(res.Outputs) != 0 {
		r.t.Fatalf("%+v, %v", res, err)
	}
	after, lerr := r.fs.List("db/" + SegmentsDir)
	if lerr != nil || !slices.Equal(before, after) {
		r.t.Errorf("left %v of %v, %v", after, before, lerr)
	}
	return err
}

// TestR21_RewriteNamesWhatIsDamaged: any byte of a group that is damaged ends the
// rewrite with file and offset, before anything depends on it.
func TestR21_RewriteNamesWhatIsDamaged(t *testing.T) {
	for _, kind := range []SegmentKind{SegmentLog, SegmentGC} {
		fs := memfs.New()
		r := newRewriteBench(t, fs)
		b := newLogBuilder(t, fs, 512, 1<<17)
		for id := entry.SegmentID(1); id <= 2; id++ {
			b.roll(id)
			for range 4 {
				b.sets(3, 400)
			}
			b.seal(true, true)
		}
		r.take(b)
		b.kind = kind
		if kind == SegmentGC {
			r.rewrite(r.options(512, 5000), r.live, func(entry.Seqno) bool { return true })
		}
		victim := r.live[1]
		for off := int64(512); off < int64(victim.End); off += 37 {
			was := b.peek(victim.ID, off, 1)
			group := r.groupAround(b, victim, off)
			if group < 0 {
				continue // padding, which no sum covers
			}
			b.overwrite(victim.ID, off, []byte{was[0] ^ 0x10})
			err := r.fails(r.options(512, 1<<17), r.live)
			var c *CorruptError
			if !errors.As(err, &c) || c.File != b.name(victim.ID) || c.Offset != group {
				t.Fatalf("%v at %d: %v, want %s at %d", kind, off, err, b.name(victim.ID), group)
			}
			b.overwrite(victim.ID, off, was)
		}
		r.rewrite(r.options(512, 1<<17), r.live, func(entry.Seqno) bool { return true })
	}
}

// groupAround returns where the group starts that has the byte at off, -1 for
// none.
func (r *rewriteBench) groupAround(b *logBuilder, v RewriteVictim, off int64) int64 {
	r.t.Helper()
	for at := int64(512); at < int64(v.End); {
		h, ok := DecodeGroupHeader(b.peek(v.ID, at, GroupHeaderBytes), &testSecret, v.ID, uint32(at))
		if !ok {
			r.t.Fatalf("no group at %d", at)
		}
		if off >= at && off < at+int64(h.Bytes) {
			return at
		}
		at = int64(h.End(512))
	}
	return -1
}

// TestRewriteRefusesVictims: what does not fit its header, its end, or the other
// victims.
func TestRewriteRefusesVictims(t *testing.T) {
	fs := memfs.New()
	r := newRewriteBench(t, fs)
	b := newLogBuilder(t, fs, 512, 1<<16)
	b.roll(1)
	b.sets(3, 400)
	b.sets(3, 400)
	b.seal(true, true)
	r.take(b)
	v := r.live[0]
	bad := func(id entry.SegmentID, records ...builtRecord) RewriteVictim {
		b := newLogBuilder(t, fs, 512, 1<<16)
		b.kind = SegmentGC
		b.roll(id)
		b.next = 2
		b.group(GroupDelta, records...)
		b.closeFile()
		return RewriteVictim{ID: id, Kind: SegmentGC, End: b.off}
	}
	twice := bad(2, builtRecord{key: []byte("k"), value: []byte("v"), separated: true})
	wrongFlags := func() RewriteVictim {
		b := newLogBuilder(t, fs, 512, 1<<16)
		b.kind = SegmentGC
		b.roll(3)
		b.sets(1, 300)
		b.closeFile()
		return RewriteVictim{ID: 3, Kind: SegmentGC, End: b.off}
	}()
	falling := func() RewriteVictim {
		b := newLogBuilder(t, fs, 512, 1<<16)
		b.kind = SegmentGC
		b.roll(4)
		b.next = 100
		b.group(GroupDelta, builtRecord{key: []byte("k"), value: []byte("v"), separated: true})
		b.next, b.docs = 90, NewIndexBuilder(0)
		b.group(GroupDelta, builtRecord{key: []byte("k"), value: []byte("v"), separated: true})
		b.closeFile()
		return RewriteVictim{ID: 4, Kind: SegmentGC, End: b.off}
	}()
	wrongSum := func() RewriteVictim { // the group is right, the document is not
		b := newLogBuilder(t, fs, 512, 1<<16)
		b.kind = SegmentGC
		b.roll(5)
		_, buf := b.encode(GroupDelta, []builtRecord{{key: []byte("k"), value: []byte("v"), separated: true}})
		h, _ := DecodeGroupHeader(buf, &testSecret, 5, 512)
		buf[h.Bytes-1] ^= 1
		h.Encode(buf, &testSecret)
		_, err := b.file.WriteDurable(buf, 512)
		b.ok(err)
		b.closeFile()
		return RewriteVictim{ID: 5, Kind: SegmentGC, End: 1024}
	}()
	tests := []struct {
		name    string
		victims []RewriteVictim
		at      int64
	}{
		{"missing", []RewriteVictim{{ID: 77, Kind: SegmentLog, End: 1024}}, 0},
		{"of another kind", []RewriteVictim{{ID: 1, Kind: SegmentGC, End: v.End}}, 0},
		{"end within a group", []RewriteVictim{{ID: 1, Kind: SegmentLog, End: v.End - 1024}}, int64(b.groups[1].Offset)},
		{"end within the header", []RewriteVictim{{ID: 1, Kind: SegmentLog, End: 511}}, -1},
		{"no end", []RewriteVictim{{ID: 1, Kind: SegmentLog}}, -1},
		{"end behind the groups", []RewriteVictim{{ID: 1, Kind: SegmentLog, End: v.End + 512}}, int64(v.End)},
		{"end behind the file", []RewriteVictim{{ID: 1, Kind: SegmentLog, End: v.End + 5120}}, -1},
		{"seqno twice", []RewriteVictim{v, twice}, -1},
		{"group of a log in an output", []RewriteVictim{wrongFlags}, 512},
		{"seqnos that fall", []RewriteVictim{falling}, 1024},
		{"wrong sum of a document", []RewriteVictim{wrongSum}, 512 + GroupHeaderBytes + 1},
	}
	for _, test := range tests {
		err := r.fails(r.options(512, 1<<16), test.victims)
		var c *CorruptError
		if !errors.As(err, &c) || c.File == "" || test.at >= 0 && c.Offset != test.at {
			t.Errorf("%s: %v, want offset %d", test.name, err, test.at)
		}
	}
}

// TestF5_RewriteReadsAgain: a bit that flips on the way to memory is no damage.
func TestF5_RewriteReadsAgain(t *testing.T) {
	mem := memfs.New()
	r := newRewriteBench(t, mem)
	b := newLogBuilder(t, mem, 512, 1<<17)
	b.roll(1)
	for range 20 {
		b.sets(3, 900)
	}
	b.seal(true, true)
	r.take(b)
	met := 0
	for n := 1; ; n++ {
		fs := faultfs.Wrap(mem)
		fs.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, From: n, Once: true, Fault: faultfs.BitFlip})
		r.fs = fs
		o := r.options(512, 1<<17)
		res, err := rewriteSegments(t.Context(), o, r.sizes, r.live, func(*Record) bool { return true })
		if fs.Injected() == 0 {
			break
		}
		if err != nil && n > 1 { // the first read is that of the segment's header
			t.Fatalf("read %d: %v", n, err)
		}
		if err == nil {
			met++
			if n := res.Victims[0].Kept.Documents; n != 60 {
				t.Fatalf("%d documents", n)
			}
			if err := res.Discard(fs); err != nil {
				t.Fatal(err)
			}
		}
	}
	if met < 10 {
		t.Errorf("%d reads were flipped", met)
	}
}

// TestS6_RewriteVerifiesItsOutputs: a write that did not reach the device as it was
// meant is found before the victims can go, and is not blamed on them.
func TestS6_RewriteVerifiesItsOutputs(t *testing.T) {
	mem := memfs.New()
	r := newRewriteBench(t, mem)
	b := newLogBuilder(t, mem, 512, 1<<17)
	b.roll(1)
	b.sets(20, 900)
	b.seal(true, true)
	r.take(b)
	r.verify = true
	for _, off := range []int64{100 + 512, 5000, 9000} {
		r.fs = &lossyFS{FS: mem, off: off}
		err := r.fails(r.options(512, 1<<17), r.live)
		if !errors.Is(err, ErrOutput) || errors.Is(err, ErrCorrupt) {
			t.Errorf("flip at %d: %v", off, err)
		}
	}
	// The whole of it, read errors included.
	for n := 1; ; n++ {
		fs := faultfs.Wrap(mem)
		fs.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt, vfs.OpOpen, vfs.OpSize, vfs.OpClose}, Name: "*.gc.seg", From: n, Once: true, Fault: faultfs.EIO})
		r.fs = fs
		res, err := rewriteSegments(t.Context(), r.options(512, 1<<17), r.sizes, r.live, keepAll)
		if fs.Injected() == 0 {
			if err != nil || n < 5 {
				t.Errorf("%d calls, %v", n, err)
			}
			fs.Clear()
			if err := res.Discard(fs); err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, faultfs.ErrInjected) || errors.Is(err, ErrOutput) {
			t.Errorf("call %d: %v", n, err)
		}
	}
	r.fs = mem
	r.rewrite(r.options(512, 9000), r.live, func(s entry.Seqno) bool { return s%3 > 0 })
}

// lossyFS flips a bit of what is written to a created file at off.
type lossyFS struct {
	vfs.FS
	off int64
}

func (f *lossyFS) Create(name string, o vfs.OpenOptions) (vfs.File, error) {
	file, err := f.FS.Create(name, o)
	return &lossyFile{file, f.off}, err
}

type lossyFile struct {
	vfs.File
	off int64
}

func (f *lossyFile) WriteAt(p []byte, off int64) (int, error) {
	if at := f.off - off; at >= 0 && at < int64(len(p)) {
		p = slices.Clone(p)
		p[at] ^= 4
	}
	return f.File.WriteAt(p, off)
}

// TestRewriteCancelled: at every group.
func TestRewriteCancelled(t *testing.T) {
	fs := &openFiles{FS: memfs.New()}
	r := newRewriteBench(t, fs)
	b := newLogBuilder(t, fs, 512, 1<<17)
	b.roll(1)
	for range 10 {
		b.sets(3, 900)
	}
	b.seal(true, true)
	r.take(b)
	for stop := 0; ; stop++ {
		ctx, cancel := context.WithCancel(t.Context())
		paced := 0
		o := r.options(512, 9000)
		o.Pace = func(bytes int) {
			if bytes <= 0 || bytes > 1<<20 {
				t.Fatalf("paced for %d bytes", bytes)
			}
			if paced++; paced == stop {
				cancel()
			}
		}
		res, err := rewriteSegments(ctx, o, r.sizes, r.live, func(*Record) bool { return true })
		done := ctx.Err() == nil
		cancel()
		if err == nil {
			if err := res.Discard(fs); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, context.Canceled) || len(res.Outputs) != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		names, err := fs.List("db/" + SegmentsDir)
		if err != nil || len(names) != 1 || fs.open.Load() != 0 {
			t.Fatalf("left %v and %d open files: %v", names, fs.open.Load(), err)
		}
		if done && stop > 0 {
			if paced < 10 {
				t.Errorf("paced %d times", paced)
			}
			break
		}
	}
}

// TestGoldenRewrite: a rewrite of the golden segments makes the same bytes as ever.
func TestGoldenRewrite(t *testing.T) {
	b := newMemBuilder(t, 512, 16384)
	var victims []RewriteVictim
	for _, v := range []RewriteVictim{{ID: 43, Kind: SegmentGC, End: 1024}, {ID: 41, Kind: SegmentLog, End: 3584}} {
		image, err := os.ReadFile(filepath.Join("testdata/format/v1", SegmentName(v.ID, v.Kind)))
		b.ok(err)
		b.kind = v.Kind
		f, err := b.fs.Create(b.name(v.ID), vfs.OpenOptions{Write: true})
		b.ok(err)
		_, err = f.WriteAt(image, 0)
		b.ok(err)
		b.ok(f.Close())
		victims = append(victims, v)
	}
	r := newRewriteBench(t, b.fs)
	r.sizes.group = 1024
	o := r.options(512, 16384)
	o.NextID = func() entry.SegmentID { return 44 }
	res, err := rewriteSegments(t.Context(), o, r.sizes, victims, func(rec *Record) bool { return rec.Seqno != 1001 })
	b.ok(err)
	if len(res.Outputs) != 1 || res.Victims[1].PassedOver != 6 {
		t.Fatalf("%+v", res)
	}
	b.kind = SegmentGC
	image := b.peek(44, 0, int(res.Outputs[0].FileBytes))
	golden(t, SegmentName(44, SegmentGC), image, image)
	b.ok(res.Discard(b.fs))
}

func ExampleRewrite() {
	fs := memfs.New()
	b := &logBuilder{fs: fs, align: 512, size: 1 << 16, kind: SegmentLog, next: 1, t: new(testing.T)}
	_ = fs.MkdirAll("db/" + SegmentsDir)
	b.roll(1)
	b.sets(10, 300)
	b.seal(true, true)
	b.closeFile()
	o := RewriteOptions{
		FS: fs, Dir: "db", Secret: testSecret, StoreID: testStoreID, Align: 512, SegmentBytes: 1 << 16,
		NextID: func() entry.SegmentID { return 2 },
	}
	victims := []RewriteVictim{{ID: 1, Kind: SegmentLog, End: b.off}}
	res, err := Rewrite(context.Background(), o, victims, func(r *Record) bool { return r.Seqno > 7 })
	if err != nil {
		fmt.Println(err)
		return
	}
	out := res.Outputs[0]
	fmt.Printf("segment %d: %d documents, seqnos %d to %d; dropped %d\n",
		out.ID, out.Documents.Documents, out.First, out.Last, res.Victims[0].Dropped.Documents)
	fmt.Println(res.Discard(fs))
	// Output:
	// segment 2: 3 documents, seqnos 8 to 10; dropped 7
	// <nil>
}
