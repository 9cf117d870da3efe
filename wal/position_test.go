package wal

import (
	"fmt"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"

	"pgregory.net/rapid"
)

// fill places groups until the next one of a document would not fit, so that
// the next place of a group is that of the seal.
func (r *runningLog) fill() {
	r.t.Helper()
	for {
		r.mu.Lock()
		full := !r.fitsSegment(r.active, r.activeOff, r.o.Align)
		r.mu.Unlock()
		if full {
			return
		}
		r.put(1, 10)
		r.waitAll()
	}
}

// positionStates bring a log into the states in which a position is taken.
var positionStates = []struct {
	name string
	to   func(r *runningLog)
}{
	{"nothing placed", func(*runningLog) {}},
	{"no open group", func(r *runningLog) { r.put(3, 300); r.waitAll() }},
	{"open group", func(r *runningLog) { r.put(2, 10); r.waitAll(); r.put(3, 300) }},
	{"open group that several batches share", func(r *runningLog) { r.put(1, 10); r.put(2, 300); r.put(1, 0) }},
	{"before a roll", func(r *runningLog) { r.fill() }},
	{"start of a fresh segment", func(r *runningLog) { r.put(3, 300); r.roll(); r.waitAll() }},
	{"two segments without a record", func(r *runningLog) { r.put(3, 300); r.roll(); r.roll(); r.waitAll() }},
	{"large own group", func(r *runningLog) { r.put(1, 9000) }},
	{"promise", func(r *runningLog) { r.put(3, 300); r.promise() }},
	{"groups waiting", func(r *runningLog) {
		for range 6 {
			r.put(4, 700)
		}
	}},
}

// positionSequels are what comes afterwards.
var positionSequels = []struct {
	name string
	do   func(r *runningLog)
}{
	{"nothing", func(*runningLog) {}},
	{"a batch", func(r *runningLog) { r.put(2, 10) }},
	{"a batch in the same group and others", func(r *runningLog) { r.put(1, 10); r.put(9, 400); r.put(1, 3000) }},
	{"a large own group", func(r *runningLog) { r.put(1, 10); r.put(1, 9000); r.put(1, 10) }},
	{"promises", func(r *runningLog) { r.promise(); r.put(1, 10); r.promise() }},
	{"the seal", func(r *runningLog) { r.waitAll(); r.roll() }},
	{"many segments", func(r *runningLog) {
		for range 40 {
			r.put(3, 900)
		}
	}},
}

// footers waits until every segment before the active one is sealed with its
// footer.
func (r *runningLog) footers() {
	r.t.Helper()
	until(r.t, "footers", func() bool {
		r.mu.Lock()
		active := r.active.ID
		r.mu.Unlock()
		for _, s := range r.segments() {
			if s.ID < active && s.End == 0 {
				return false
			}
		}
		return true
	})
}

// TestR03_ScanFromNextPosition: replay from a position finds what was placed
// later and nothing else, however the log went on, and however it ended.
func TestR03_ScanFromNextPosition(t *testing.T) {
	for _, state := range positionStates {
		for _, sequel := range positionSequels {
			t.Run(state.name+", then "+sequel.name, func(t *testing.T) {
				fs := memfs.New()
				r := startRunning(t, runningOptions(fs), nil)
				state.to(r)
				p := r.position()
				placed := r.next - 1
				if open := r.open != nil; open != (p.Seqno <= placed) || p.Seqno > placed+1 {
					t.Fatalf("position %v, %d placed, open group: %v", p, placed, open)
				}
				sequel.do(r)
				r.waitAll()
				last := r.next - 1
				check := func(fs vfs.FS, reg []ScanSegment) ScanResult {
					t.Helper()
					got := scanFrom(t, fs, reg, p)
					wantSeqnos(t, got, p.Seqno, last)
					if got.res.Last != last || got.res.End.Seqno != last+1 {
						t.Fatalf("from %v: last %d, end %v, want %d", p, got.res.Last, got.res.End, last)
					}
					return got.res
				}
				// A segment may be registered meanwhile: the registry comes first.
				reg := r.segments()
				check(crashed(fs), reg)
				r.footers()
				reg = r.segments()
				cut := crashed(fs)
				check(cut, reg)
				torn := check(cut, bareSegments(reg))
				r.close()
				if res := check(fs, r.segments()); !res.Clean {
					t.Fatal("not clean")
				}
				goOn(t, cut, reg, p, torn)
			})
		}
	}
}

// bareSegments are the segments without what was recorded of them.
func bareSegments(reg []ScanSegment) []ScanSegment {
	var out []ScanSegment
	for _, s := range reg {
		out = append(out, ScanSegment{ID: s.ID})
	}
	return out
}

// goOn records the end of a torn log as recovery does, starts the next log
// behind it, and checks that the old position still finds everything.
func goOn(t *testing.T, fs *memfs.FS, reg []ScanSegment, p entry.Position, res ScanResult) {
	t.Helper()
	const jump = 1 << 24
	next := res.MaxSeen + 1 + jump
	var kept []ScanSegment
	for _, s := range reg {
		if s.ID == res.End.Segment {
			if s.End != 0 {
				// Sealed: the log ends at the beginning of the one behind it.
				kept = append(kept, s)
				continue
			}
			s.End, s.Last, s.Next = res.End.Offset, res.Last, next
			if s.End == 0 {
				t.Fatalf("end %v", res.End)
			}
		}
		if s.ID <= res.End.Segment {
			kept = append(kept, s)
		} else if n := len(kept); n > 0 && kept[n-1].Next == 0 {
			s.End, s.Last, s.Next = 512, 0, next
			kept = append(kept, s)
			res.End.Segment, res.End.Offset = s.ID, 512
		}
	}
	o := runningOptions(fs)
	o.Next, o.After = next, Chain{res.End.Segment, res.End.Offset, res.Last}
	r := startRunning(t, o, kept)
	r.put(2, 300)
	r.waitAll()
	q := r.position()
	r.put(1, 9000)
	r.roll()
	r.waitAll()
	r.close()
	got := scanFrom(t, fs, r.segments(), p)
	if got.err != nil {
		t.Fatalf("over the recorded end: %v", got.err)
	}
	old := int(res.Last + 1 - p.Seqno)
	if len(got.seqnos) != old+3 || got.seqnos[old] != next || got.res.Last != next+2 {
		t.Fatalf("over the recorded end: %d records, %v", len(got.seqnos), got.res)
	}
	wantSeqnos(t, scanFrom(t, fs, r.segments(), q), next+2, next+2)
}

// TestR03_NextPositionWithGroupsInFlight takes positions while writes are held
// up, at any place between them.
func TestR03_NextPositionWithGroupsInFlight(t *testing.T) {
	fs := memfs.New()
	o := runningOptions(fs)
	r := startRunning(t, o, nil)
	held := make(chan struct{})
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteDurable {
			<-held
		}
		return nil
	})
	var positions []entry.Position
	waited := make(chan error, 8)
	for i := range 4 {
		last := r.put(3, 900) // a group each: two do not fit in one
		positions = append(positions, r.position())
		if i%2 == 0 {
			go func() { waited <- r.Wait(last) }()
			until(t, "a leader", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.inflight == i/2+1
			})
			positions = append(positions, r.position())
		}
	}
	close(held)
	fs.SetHook(nil)
	r.waitAll()
	for range 2 {
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
	}
	r.put(1, 10)
	r.waitAll()
	last := r.next - 1
	for _, p := range positions {
		reg := r.segments()
		wantSeqnos(t, scanFrom(t, crashed(fs), reg, p), p.Seqno, last)
	}
	r.close()
}

// TestR03_RandomPositions takes positions anywhere in random logs.
func TestR03_RandomPositions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := memfs.New()
		o := runningOptions(fs)
		o.Logf = func(string, ...any) {}
		o.Inflight = rapid.IntRange(1, 3).Draw(rt, "in flight")
		r := startRunning(t, o, nil)
		var positions []entry.Position
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				r.waitAll()
			case 1:
				r.promise()
			case 2:
				r.roll()
			case 3:
				r.put(1, rapid.IntRange(4000, 12000).Draw(rt, "large"))
			default:
				r.put(rapid.IntRange(1, 5).Draw(rt, "documents"), rapid.IntRange(0, 700).Draw(rt, "bytes"))
			}
			positions = append(positions, r.position())
		}
		r.waitAll()
		last := r.next - 1
		r.close()
		for i, p := range positions {
			if i > 0 && (p.Segment < positions[i-1].Segment || p.Seqno < positions[i-1].Seqno) {
				rt.Fatalf("position %v after %v", p, positions[i-1])
			}
			wantSeqnos(rt, scanFrom(t, fs, r.segments(), p), p.Seqno, last)
		}
	})
}

// TestNextPositionOfANewStoreOnAFullDisk: there is nothing to start from.
func TestNextPositionOfANewStoreOnAFullDisk(t *testing.T) {
	fs := memfs.New()
	o := runningOptions(fs)
	if err := fs.MkdirAll("db/" + SegmentsDir); err != nil {
		t.Fatal(err)
	}
	fs.SetFree(0)
	r := startRunning(t, o, nil)
	r.mu.Lock()
	p, ok := r.NextPositionLocked()
	r.mu.Unlock()
	if ok {
		t.Errorf("position %v", p)
	}
	r.close()
}

// restart opens the log of fs again as recovery does after a crash: the end is
// recorded, seqnos jump.
func restart(t *testing.T, fs *memfs.FS, reg []ScanSegment, from entry.Position) *runningLog {
	t.Helper()
	got := scanFrom(t, fs, reg, from)
	if got.err != nil {
		t.Fatal(got.err)
	}
	end, next := got.res.End, got.res.MaxSeen+1<<24
	for i, s := range reg {
		if s.ID == end.Segment && s.End != 0 && s.Next == 0 {
			// Sealed: the log ends at the beginning of the one behind it.
			end.Segment, end.Offset, got.res.Groups = reg[i+1].ID, 512, 0
			break
		}
	}
	var kept []ScanSegment
	for _, s := range reg {
		if s.ID == end.Segment && s.End == 0 {
			s.End, s.Next = max(end.Offset, 512), next
			if got.res.Groups > 0 {
				s.Last = got.res.Last
			}
		}
		if s.ID <= end.Segment {
			kept = append(kept, s)
		}
	}
	o := runningOptions(fs)
	o.Next, o.After = next, Chain{end.Segment, max(end.Offset, 512), got.res.Last}
	return startRunning(t, o, kept)
}

// TestR22_PositionOfAFullDisk: a store that opens on a full disk can flush and
// free what it replayed before there is a segment to write to.
func TestR22_PositionOfAFullDisk(t *testing.T) {
	for _, before := range []int{0, 3} { // documents in the segment where the log ended
		fs := memfs.New()
		r := startRunning(t, runningOptions(fs), nil)
		from := r.position()
		for range 3 {
			r.put(3, 300)
			r.waitAll()
			r.roll()
		}
		for range before {
			r.put(1, 300)
		}
		r.waitAll()
		r.footers()
		reg := r.segments()
		disk := crashed(fs)
		r.close()

		disk.SetFree(0)
		r = restart(t, disk, reg, from)
		p := r.position()
		if p.Segment != 4 {
			t.Fatalf("position %v", p)
		}
		r.drop(1, 2, 3)
		disk.SetFree(1 << 20)
		first := r.next
		r.put(2, 300)
		r.waitAll()
		wantSeqnos(t, scanFrom(t, crashed(disk), r.segments(), p), first, first+1)

		// Once more, from there.
		reg = r.segments()
		disk = crashed(disk)
		r.close()
		r = restart(t, disk, reg, p)
		second := r.next
		r.put(1, 300)
		r.waitAll()
		got := scanFrom(t, crashed(disk), r.segments(), p)
		if got.err != nil || len(got.seqnos) != 3 || got.seqnos[0] != first || got.seqnos[2] != second {
			t.Fatalf("%v, %v", got.seqnos, got.err)
		}
		r.close()
	}
}

// TestR03_PositionBehindAJump is taken where nothing was placed since seqnos
// jumped, and is that of several crashes that leave nothing either.
func TestR03_PositionBehindAJump(t *testing.T) {
	fs := memfs.New()
	r := startRunning(t, runningOptions(fs), nil)
	p := r.position()
	r.put(3, 300)
	r.waitAll()
	for range 3 {
		reg, disk := r.segments(), crashed(fs)
		r.close()
		fs = disk
		r = restart(t, fs, reg, p)
		p = r.position()
		if p.Seqno != r.next {
			t.Fatalf("position %v, next is %d", p, r.next)
		}
		first := p.Segment
		for _, s := range r.segments() {
			if s.ID < first {
				r.drop(s.ID)
			}
		}
	}
	for range 3 {
		reg, disk := r.segments(), crashed(fs)
		r.close()
		fs = disk
		r = restart(t, fs, reg, p)
	}
	first := r.next
	r.put(2, 300)
	r.waitAll()
	wantSeqnos(t, scanFrom(t, crashed(fs), r.segments(), p), first, first+1)
	r.close()
}

// TestPlacedBytes compares the counters with what Scan finds.
func TestPlacedBytes(t *testing.T) {
	for _, state := range positionStates {
		t.Run(state.name, func(t *testing.T) {
			fs := memfs.New()
			r := startRunning(t, runningOptions(fs), nil)
			state.to(r)
			r.mu.Lock()
			records, padded := r.PlacedLocked()
			r.mu.Unlock()
			r.waitAll()
			r.mu.Lock()
			for r.unstartedLocked() {
				r.leadLocked()
			}
			if rec, pad := r.PlacedLocked(); rec != records || pad != padded {
				t.Errorf("%d and %d bytes with the open group, %d and %d when it is closed", records, padded, rec, pad)
			}
			r.mu.Unlock()
			until(t, "all groups", func() bool { return r.Stats().GroupBytes == padded })
			r.footers()
			var wantRecords, wantPadded int64
			_, err := Scan(t.Context(), ScanOptions{
				FS: fs, Dir: "db", Secret: testSecret, StoreID: testStoreID,
				From: entry.Position{Segment: 1, Seqno: 1}, Segments: r.segments(), BufferBytes: AlignMax,
			}, func(c *Chunk) error {
				defer c.Release()
				for h := range c.Groups() {
					wantRecords += int64(h.Bytes) - GroupHeaderBytes
					wantPadded += int64(h.PaddedBytes(512))
				}
				return nil
			})
			if err != nil || records != wantRecords || padded != wantPadded {
				t.Errorf("%d bytes of records, %d of groups, want %d and %d: %v", records, padded, wantRecords, wantPadded, err)
			}
			r.close()
		})
	}
}

func TestPositionAndPlacedAllocateNothing(t *testing.T) {
	r := startRunning(t, runningOptions(memfs.New()), nil)
	defer r.close()
	r.put(1, 10)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() {
		r.NextPositionLocked()
		r.PlacedLocked()
	}); n != 0 {
		t.Error(fmt.Sprint(n, " allocations"))
	}
}
