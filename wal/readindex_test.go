package wal

import (
	"context"
	"errors"
	"maps"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// indexOptions are those of the builder, with buffers as small as they may be.
func (b *logBuilder) indexOptions() ScanOptions {
	return ScanOptions{FS: b.fs, Dir: "db", Secret: testSecret, StoreID: testStoreID, BufferBytes: AlignMax, Buffers: 3}
}

// truncate cuts a segment, of its footer or more.
func (b *logBuilder) truncate(id entry.SegmentID, to int64) {
	b.t.Helper()
	f, err := b.fs.Open(b.name(id), vfs.OpenOptions{Write: true})
	b.ok(err)
	b.ok(f.Truncate(to))
	b.ok(f.Close())
}

// documents are the separated documents of the groups of a segment.
func (b *logBuilder) documents(id entry.SegmentID) map[entry.Seqno]uint32 {
	b.t.Helper()
	want := map[entry.Seqno]uint32{}
	for i := range b.groups {
		g := &b.groups[i]
		if g.Segment != id {
			continue
		}
		var rr RecordReader
		var r Record
		for rr.Reset(b.peek(id, int64(g.Offset)+GroupHeaderBytes, int(g.Bytes)-GroupHeaderBytes), &g.GroupHeader); rr.Next(&r); {
			if r.Separated {
				want[r.Seqno] = r.Address.Offset
			}
		}
		b.ok(rr.Err())
	}
	return want
}

func wantIndex(t testing.TB, x *SeqnoIndex, err error, want map[entry.Seqno]uint32) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got := maps.Collect(x.All()); !maps.Equal(got, want) {
		t.Fatalf("index %v, want %v", got, want)
	}
}

// TestR06_IndexFromFooterOrGroups: the index is exact, whatever is left of the
// segment to make it from.
func TestR06_IndexFromFooterOrGroups(t *testing.T) {
	tests := []struct {
		name   string
		seal   bool
		footer bool
		end    bool // the manifest has the end
		spoil  func(b *logBuilder)
		error  bool
		at     int64 // of the error; -1 is the end of the groups
	}{
		{name: "footer", seal: true, footer: true, end: true},
		{name: "footer, end not recorded", seal: true, footer: true},
		{name: "sealed, no footer", seal: true, end: true},
		{name: "sealed, neither footer nor end", seal: true},
		{name: "torn, end recorded", end: true},
		{name: "torn, end not recorded"},
		{name: "torn, cut at the end", end: true, spoil: func(b *logBuilder) { b.truncate(9, int64(b.off)) }},
		{name: "torn, behind the end something else", end: true, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.off), []byte("no group"))
		}},
		{name: "damaged index", seal: true, footer: true, end: true, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.off)+40, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged index, end not recorded", seal: true, footer: true, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.off)+40, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged tail", seal: true, footer: true, end: true, spoil: func(b *logBuilder) {
			size, err := b.fs.Size(b.name(9))
			b.ok(err)
			b.overwrite(9, size-50, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged group, footer whole", seal: true, footer: true, end: true, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[1].Offset)+90, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged group, no footer", seal: true, end: true, error: true, at: 2, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[2].Offset)+20, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged group, neither footer nor end", seal: true, error: true, at: 1, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[1].Offset), []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged group, torn, end not recorded", error: true, at: 0, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[0].Offset)+100, []byte{0xff, 0xff, 0xff})
		}},
		{name: "file cut before its end", end: true, error: true, at: -2, spoil: func(b *logBuilder) {
			b.truncate(9, int64(b.off)-512)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newMemBuilder(t, 512, 1<<17)
			b.roll(8)
			b.sets(2, 400)
			b.seal(true, true)
			b.groups = b.groups[:0]
			b.roll(9)
			b.sets(3, 1000)
			b.sets(2, 10)
			b.group(GroupPromise)
			b.sets(40, 2000) // larger than a buffer
			b.sets(4, 300)
			if test.seal {
				b.seal(true, test.footer)
			}
			want := b.documents(9)
			if len(want) != 47 {
				t.Fatalf("%d documents", len(want))
			}
			if test.spoil != nil {
				test.spoil(b)
			}
			end := uint32(0)
			if test.end {
				end = b.off
			}
			x, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), 9, SegmentLog, end)
			if !test.error {
				wantIndex(t, x, err, want)
				return
			}
			var corrupt *CorruptError
			at := int64(b.off) - 512
			if test.at >= 0 {
				at = int64(b.groups[test.at].Offset)
			}
			if !errors.As(err, &corrupt) || corrupt.File != b.name(9) || corrupt.Offset != at {
				t.Fatalf("%v, want file %s, offset %d", err, b.name(9), at)
			}
		})
	}
}

func TestR06_IndexOfAnOutputOfGC(t *testing.T) {
	b := goldenGC(t)
	b.next, b.last = 80_000, 79_999
	b.group(GroupDelta, builtRecord{key: []byte("d"), value: []byte("moved"), separated: true})
	want := b.documents(43)
	for _, end := range []uint32{0, b.off} {
		x, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), 43, SegmentGC, end)
		wantIndex(t, x, err, want)
	}
	b.next, b.docs = 70_000, NewIndexBuilder(0) // below what is there
	b.group(GroupDelta, builtRecord{key: []byte("e"), value: []byte("moved"), separated: true})
	if _, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), 43, SegmentGC, b.off); !errors.Is(err, ErrCorrupt) {
		t.Errorf("seqnos that fall: %v", err)
	}
	if _, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), 43, SegmentLog, 0); !errors.Is(err, ErrCorrupt) {
		t.Errorf("of another kind: %v", err)
	}
}

func TestReadSeqnoIndexPassesErrorsOn(t *testing.T) {
	b := sealedBuilder(t)
	end := b.off
	for _, footer := range []bool{true, false} {
		if !footer {
			b.truncate(9, int64(end))
		}
		for from := 1; ; from++ {
			fs := faultfs.Wrap(b.fs)
			fs.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpOpen, vfs.OpSize, vfs.OpReadAt}, From: from, Once: true, Fault: faultfs.EIO})
			o := b.indexOptions()
			o.FS = fs
			_, err := ReadSeqnoIndex(t.Context(), o, 9, SegmentLog, end)
			if fs.Injected() == 0 {
				b.ok(err)
				break
			}
			if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
				t.Errorf("footer %v, call %d: %v", footer, from, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadSeqnoIndex(ctx, b.indexOptions(), 9, SegmentLog, end); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestR06_IndexOfARunningLog: what the sealer wrote, and what the groups say, of
// a real log.
func TestR06_IndexOfARunningLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := memfs.New()
		o := runningOptions(fs)
		o.Logf = func(string, ...any) {}
		r := startRunning(t, o, nil)
		want := map[entry.Seqno]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "batches") {
			n, size := rapid.IntRange(1, 6).Draw(rt, "documents"), rapid.SampledFrom([]int{0, 100, 256, 700, 3000}).Draw(rt, "bytes")
			last := r.put(n, size)
			for i := range n {
				if size > 255 {
					want[last-entry.Seqno(i)] = true
				}
			}
			if rapid.IntRange(0, 9).Draw(rt, "roll") == 0 {
				r.roll()
			}
		}
		r.waitAll()
		r.footers()
		r.close()
		read := ScanOptions{FS: fs, Dir: "db", Secret: testSecret, StoreID: testStoreID, BufferBytes: AlignMax}
		got := map[entry.Seqno]bool{}
		for _, s := range r.segments() {
			if s.ID > r.active.ID {
				continue // prepared
			}
			x, err := ReadSeqnoIndex(t.Context(), read, s.ID, SegmentLog, s.End)
			if err != nil {
				rt.Fatal(err)
			}
			byFooter := maps.Collect(x.All())
			for seqno := range byFooter {
				got[seqno] = true
			}
			if s.End != 0 { // without its footer
				f, err := fs.Open(segmentPath(s.ID), vfs.OpenOptions{Write: true})
				if err != nil {
					rt.Fatal(err)
				}
				if err := errors.Join(f.Truncate(int64(s.End)), f.Close()); err != nil {
					rt.Fatal(err)
				}
			}
			x, err = ReadSeqnoIndex(t.Context(), read, s.ID, SegmentLog, 0)
			if err != nil {
				rt.Fatal(err)
			}
			if byGroups := maps.Collect(x.All()); !maps.Equal(byGroups, byFooter) {
				rt.Fatalf("segment %d: %v by the footer, %v by the groups", s.ID, byFooter, byGroups)
			}
		}
		if !maps.Equal(got, want) {
			rt.Fatalf("indexes name %d documents, want %d", len(got), len(want))
		}
	})
}

// TestR06_IndexOfASegmentWithoutDocuments: nothing was placed in it before it
// was ended, sealed or stepped over.
func TestR06_IndexOfASegmentWithoutDocuments(t *testing.T) {
	b := newMemBuilder(t, 512, 8192)
	b.roll(3)
	empty := b.off
	b.roll(4)
	b.seal(true, true)
	sealed := b.off
	b.roll(5)
	b.sets(3, 100)
	inline := b.off
	for id, ends := range map[entry.SegmentID][]uint32{3: {0, empty}, 4: {0, sealed}, 5: {0, inline}} {
		for _, end := range ends {
			x, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), id, SegmentLog, end)
			wantIndex(t, x, err, map[entry.Seqno]uint32{})
		}
	}
	if _, err := ReadSeqnoIndex(t.Context(), b.indexOptions(), 4, SegmentLog, sealed-512); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another end than the footer's: %v", err)
	}
}

// FuzzReadSeqnoIndex damages a segment whose end is known. Without resum the
// index is exact or there is an error; with resum, where the sums of the group
// there are made right again, nothing may panic or leave its bounds.
func FuzzReadSeqnoIndex(f *testing.F) {
	fs := memfs.New()
	b := newLogBuilder(f, fs, 512, 16384)
	b.roll(1)
	b.sets(3, 300)
	b.sets(2, 700)
	b.group(GroupPromise)
	b.sets(1, 10)
	b.seal(true, true)
	footed, want := b.off, b.documents(1)
	b.roll(2)
	b.sets(2, 400)
	b.sets(1, 900)
	torn, wantTorn := b.off, b.documents(2)
	b.closeFile()
	f.Add(false, uint16(b.groups[0].Offset), b.peek(1, int64(b.groups[0].Offset), 80), true)
	f.Add(true, uint16(b.groups[5].Offset+16), []byte{0xff, 0xff, 0xff, 0xff}, true)
	f.Add(false, uint16(footed+32), []byte{1}, false)
	f.Add(false, uint16(footed+430), []byte{1}, false)
	f.Add(true, uint16(torn), []byte("no group"), false)
	f.Fuzz(func(t *testing.T, second bool, off uint16, p []byte, resum bool) {
		id, end, exact := entry.SegmentID(1), footed, want
		if second {
			id, end, exact = 2, torn, wantTorn
		}
		bad := *b
		bad.t, bad.fs = t, fs.CrashCopy(1, memfs.KeepAll)
		file, err := bad.fs.Open(bad.name(id), vfs.OpenOptions{Write: true})
		bad.ok(err)
		defer file.Close()
		size, err := file.Size()
		bad.ok(err)
		if int64(off)+int64(len(p)) > size {
			return
		}
		_, err = file.WriteAt(p, int64(off))
		bad.ok(err)
		if resum {
			resumGroup(t, file, id, uint32(off)&^511, size)
		}
		x, err := ReadSeqnoIndex(t.Context(), bad.indexOptions(), id, SegmentLog, end)
		switch {
		case err != nil && !errors.Is(err, ErrCorrupt):
			t.Fatal(err)
		case err == nil && !resum:
			wantIndex(t, x, err, exact)
		}
		if _, err := ReadSeqnoIndex(t.Context(), bad.indexOptions(), id, SegmentLog, 0); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}
