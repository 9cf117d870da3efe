package wal

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestR25_RewriteReadsAndWritesInPieces: no call is larger than 256 KiB, and
// victims whose seqnos do not overlap are read one after another, so that there is
// one buffer for all.
func TestR25_RewriteReadsAndWritesInPieces(t *testing.T) {
	fs := memfs.New()
	r := newRewriteBench(t, fs)
	r.sizes = rewriteSizesDefault
	b := newLogBuilder(t, fs, 4096, 4<<20)
	for id := entry.SegmentID(1); id <= 4; id++ {
		b.roll(id)
		for range 6 {
			b.sets(100, 1000)
		}
		b.sets(1, 1_000_000)
		b.seal(true, true)
	}
	r.take(b)
	var mu sync.Mutex
	calls := map[vfs.OpKind]int{}
	largest := map[vfs.OpKind]int64{}
	var order []string
	fs.SetHook(func(op memfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		calls[op.Kind]++
		if op.Kind == vfs.OpReadAt || op.Kind == vfs.OpWriteAt {
			largest[op.Kind] = max(largest[op.Kind], op.Len)
		}
		if op.Kind == vfs.OpReadAt && op.Off+op.Len > 8192 { // not header and first group
			order = append(order, path.Base(op.Name))
		}
		return nil
	})
	o := r.options(4096, 8<<20)
	res, err := Rewrite(t.Context(), o, []RewriteVictim{r.live[2], r.live[0], r.live[3], r.live[1]}, keepAll)
	fs.SetHook(nil)
	if err != nil {
		t.Fatal(err)
	}
	if largest[vfs.OpReadAt] != 256<<10 || largest[vfs.OpWriteAt] != 256<<10 {
		t.Errorf("largest calls %v", largest)
	}
	if !slices.IsSorted(order) || len(slices.Compact(order)) != 4 {
		t.Errorf("read in the order %v", order)
	}
	if calls[vfs.OpSyncDir] != 1 || calls[vfs.OpSync] != len(res.Outputs) {
		t.Errorf("calls %v for %d outputs", calls, len(res.Outputs))
	}
	if err := res.Discard(fs); err != nil {
		t.Fatal(err)
	}
}

// TestRewriteRealFiles: on the system's file system, direct where it can.
func TestRewriteRealFiles(t *testing.T) {
	fs := subFS{vfs.OS, t.TempDir()}
	for _, direct := range []bool{false, true} {
		r := newRewriteBench(t, rewriteSubFS{fs})
		r.sizes, r.direct = rewriteSizesDefault, direct
		b := newLogBuilder(t, fs, 4096, 4<<20)
		if direct {
			f, err := fs.Open(b.name(1), vfs.OpenOptions{Direct: true})
			if err != nil {
				t.Skip(err)
			}
			b.ok(f.Close())
		}
		first := entry.SegmentID(1)
		if direct {
			first = 11
		}
		for id := first; id < first+3; id++ {
			b.roll(id)
			for range 10 {
				b.sets(128, 1000)
			}
			b.sets(1, 2_000_000)
			b.seal(true, true)
		}
		r.take(b)
		if direct {
			r.nextID += 100
		}
		r.rewrite(r.options(4096, 2<<20), r.live, func(s entry.Seqno) bool { return s%3 > 0 })
		r.rewrite(r.options(4096, 2<<20), r.live, func(s entry.Seqno) bool { return s%4 > 0 })
	}
}

// rewriteSubFS is subFS with the calls that only Rewrite and its tests make.
type rewriteSubFS struct{ subFS }

func (f rewriteSubFS) Remove(name string) error { return f.FS.Remove(path.Join(f.dir, name)) }

func (f rewriteSubFS) List(dir string) ([]string, error) { return f.FS.List(path.Join(f.dir, dir)) }

func (f rewriteSubFS) Size(name string) (int64, error) { return f.FS.Size(path.Join(f.dir, name)) }

// TestG5_ReadersWhileSegmentsAreRewritten: documents are read by the addresses
// that they had first while garbage collection moves them again and again, and
// drops what it has moved. No reader ever misses one.
func TestG5_ReadersWhileSegmentsAreRewritten(t *testing.T) {
	fs := memfs.New()
	l := startRunning(t, runningOptions(fs), nil)
	type place struct {
		a     entry.Address
		seqno entry.Seqno
	}
	var placed []place
	l.onPlaced = func(a entry.Address, s entry.Seqno) { placed = append(placed, place{a, s}) }
	for range 60 {
		l.put(4, 500)
	}
	l.waitAll()
	l.roll()
	l.footers()

	// forwards maps a segment that is gone to those that have its documents, as
	// the manifest does; a view holds references to what it names.
	type view struct {
		forwards map[entry.SegmentID][]entry.SegmentID
	}
	var current atomic.Pointer[view]
	current.Store(&view{map[entry.SegmentID][]entry.SegmentID{}})
	read := func(p place) (bool, error) {
		v := current.Load()
		ids := []entry.SegmentID{p.a.Segment}
		if to, ok := v.forwards[p.a.Segment]; ok {
			ids = to
		}
		var among []*Segment
		for _, id := range ids {
			if s := l.Acquire(id); s != nil {
				defer s.Release()
				among = append(among, s)
			}
		}
		if len(among) < len(ids) {
			return false, nil // moved on in between: look again
		}
		s, a := among[0], p.a
		if ids[0] != p.a.Segment {
			var err error
			if s, a, err = FindMoved(t.Context(), among, p.a, p.seqno); err != nil || s == nil {
				return false, fmt.Errorf("%v of seqno %d is not in %v: %v", p.a, p.seqno, ids, err)
			}
		}
		key := fmt.Appendf(nil, "key-%012d", p.seqno)
		value, _, err := ReadDocument(s.File, a, p.seqno, key, &testSecret, false, nil)
		if err == nil && (len(value) != 500 || value[0] != byte(p.seqno)) {
			err = fmt.Errorf("seqno %d: another value", p.seqno)
		}
		return true, err
	}
	var stop atomic.Bool
	var reads atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := i; !stop.Load(); n += 7 {
				ok, err := read(placed[n%len(placed)])
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					reads.Add(1)
				}
			}
		})
	}
	r := newRewriteBench(t, fs)
	var live []RewriteVictim
	for _, s := range l.segments() {
		if s.End != 0 {
			live = append(live, RewriteVictim{ID: s.ID, Kind: SegmentLog, End: s.End})
		}
	}
	for round := range 12 {
		o := r.options(512, 20_000)
		o.Pace = func(int) { // the readers get their turn
			for seen := reads.Load(); reads.Load() == seen && !t.Failed(); runtime.Gosched() {
			}
		}
		n := 1 + round%3
		victims := slices.Clone(live[:n])
		live = live[n:]
		res, err := rewriteSegments(t.Context(), o, r.sizes, victims, keepAll)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.AddSegments(res.Segments()); err != nil {
			t.Fatal(err)
		}
		next := &view{map[entry.SegmentID][]entry.SegmentID{}}
		for from, to := range current.Load().forwards {
			var flat []entry.SegmentID
			for _, id := range to {
				if i := slices.IndexFunc(res.Victims, func(v VictimResult) bool { return v.ID == id }); i >= 0 {
					for _, m := range res.Victims[i].Moved {
						flat = append(flat, m.Segment)
					}
				} else {
					flat = append(flat, id)
				}
			}
			slices.Sort(flat)
			next.forwards[from] = slices.Compact(flat)
		}
		var gone []entry.SegmentID
		for _, v := range res.Victims {
			for _, m := range v.Moved {
				next.forwards[v.ID] = append(next.forwards[v.ID], m.Segment)
			}
			gone = append(gone, v.ID)
		}
		current.Store(next)
		l.drop(gone...)
		for _, out := range res.Outputs {
			live = append(live, RewriteVictim{ID: out.ID, Kind: SegmentGC, End: out.End})
		}
	}
	stop.Store(true)
	wg.Wait()
	l.close()
}

func BenchmarkRewrite(b *testing.B) {
	for _, valueBytes := range []int{300, 1000, 8000} {
		b.Run(fmt.Sprint(valueBytes), func(b *testing.B) {
			fs := memfs.New()
			r := newRewriteBench(b, fs)
			lb := newLogBuilder(b, fs, 4096, 40<<20)
			lb.roll(1)
			for range 16 << 20 / 128 / valueBytes {
				lb.sets(128, valueBytes)
			}
			lb.seal(true, true)
			r.live = []RewriteVictim{{ID: 1, Kind: SegmentLog, End: lb.off}}
			o := r.options(4096, 128<<20)
			b.SetBytes(int64(lb.off))
			b.ReportAllocs()
			for b.Loop() {
				res, err := Rewrite(b.Context(), o, r.live, func(rec *Record) bool { return bytes.HasPrefix(rec.Key, []byte("key")) })
				if err != nil {
					b.Fatal(err)
				}
				if err := res.Discard(fs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestR09_OutputsAreNotReplayed: a scan of the log looks at no output, and an
// output is not taken for a segment of the log, under its own name or another.
func TestR09_OutputsAreNotReplayed(t *testing.T) {
	fs := memfs.New()
	r := newRewriteBench(t, fs)
	b := newLogBuilder(t, fs, 512, 1<<16)
	for id := entry.SegmentID(1); id <= 3; id++ {
		b.roll(id)
		b.sets(5, 500)
		b.seal(true, true)
	}
	r.take(b)
	r.rewrite(r.options(512, 1<<16), r.victims(1, 2), func(entry.Seqno) bool { return true })
	fs.ResetCounts()
	got := collect(t, b.options())
	wantSeqnos(t, got, 1, 15)
	if n := fs.Count("*.gc.seg"); n != 0 {
		t.Errorf("%d calls for outputs", n)
	}
	gc := path.Join("db", SegmentsDir, SegmentName(1001, SegmentGC))
	for _, as := range []entry.SegmentID{1001, 4} {
		o := b.options()
		o.Segments = append(slices.Clone(o.Segments), ScanSegment{ID: as})
		if got := collect(t, o); !errors.Is(got.err, ErrCorrupt) {
			t.Errorf("output as segment %d: %v", as, got.err)
		}
		if n, err := HighestSeqno(t.Context(), o, as); err == nil && n != 0 {
			t.Errorf("output as segment %d has seqno %d", as, n)
		}
		name := path.Join("db", SegmentsDir, SegmentName(4, SegmentLog))
		if as == 1001 {
			b.ok(fs.Rename(gc, name))
		}
	}
}

// TestRewriteLeavesRoomForTheIndex: no index is larger than what a segment below
// 4 GiB keeps free for it, however far seqnos and offsets lie apart.
func TestRewriteLeavesRoomForTheIndex(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 2000).Draw(rt, "documents")
		seqnoGap := rapid.Uint64Range(1, uint64(entry.MaxSeqno)/uint64(n)).Draw(rt, "seqno gap")
		offsetGap := rapid.Uint32Range(1, math.MaxUint32/uint32(n+1)).Draw(rt, "offset gap")
		index := NewIndexBuilder(n)
		for i := range n {
			index.Add(entry.Seqno(1+uint64(i)*seqnoGap), uint32(i+1)*offsetGap)
		}
		const end = 1 << 30
		foot := EncodeFooter(nil, Footer{Segment: 1, End: end, First: 1, Last: entry.MaxSeqno}, index, 512, &testSecret)
		o := rewriteWriter{w: &rewrite{o: &RewriteOptions{Align: 512, SegmentBytes: MaxSegmentBytes}}}
		o.docs.Documents = n - 1
		if last := int64(MaxSegmentBytes - len(foot)); o.indexFits(last + 512) {
			rt.Fatalf("an index of %d documents in %d bytes is said to fit behind %d", n, len(foot), last+512)
		}
		if o.fits(MaxSegmentBytes, 1) || !o.fits(end, 1<<20) {
			rt.Fatal("wrong bounds")
		}
	})
}
