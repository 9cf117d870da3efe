package wal

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// runningLog is a Log with what the engine around it does: numbering, and a
// registry of segments in the place of the manifest.
type runningLog struct {
	*Log
	t    testing.TB
	fs   vfs.FS
	mu   sync.Mutex  // LogOptions.Mu
	next entry.Seqno // guarded by mu
	// onPlaced, if set, is told of every separated document.
	onPlaced func(a entry.Address, s entry.Seqno)

	regMu   sync.Mutex
	reg     []ScanSegment
	sealed  []SealedSegment
	dropped map[entry.SegmentID]bool
	nextID  entry.SegmentID
}

// runningOptions are a log of tiny segments on which no group is written by
// time.
func runningOptions(fs vfs.FS) LogOptions {
	return LogOptions{
		FS: fs, Dir: "db", Secret: testSecret, StoreID: testStoreID, Align: 512,
		Inflight: 2, GroupBytesMax: 4096, DocsMax: 64, Window: time.Hour,
		SegmentBytes: func() int64 { return 16 << 10 },
		ReserveBytes: func(int64) int64 { return 0 },
		Next:         1,
	}
}

// startRunning starts a log; change may alter the options. The registry goes
// on from reg.
func startRunning(t testing.TB, o LogOptions, reg []ScanSegment) *runningLog {
	t.Helper()
	r := &runningLog{t: t, fs: o.FS, next: o.Next, reg: slices.Clone(reg), dropped: map[entry.SegmentID]bool{}}
	var existing []*Segment
	for _, s := range reg {
		seg, err := OpenSegment(o.FS, o.Dir, s.ID, SegmentLog, o.Direct)
		if err != nil {
			t.Fatal(err)
		}
		existing = append(existing, seg)
	}
	o.Mu = &r.mu
	if o.Logf == nil {
		o.Logf = t.Logf
	}
	o.NextID = func() entry.SegmentID {
		r.regMu.Lock()
		defer r.regMu.Unlock()
		r.nextID++
		return r.nextID
	}
	register := o.Register
	o.Register = func(id entry.SegmentID, kind SegmentKind, bytes int64) error {
		if register != nil {
			if err := register(id, kind, bytes); err != nil {
				return err
			}
		}
		r.regMu.Lock()
		defer r.regMu.Unlock()
		r.reg = append(r.reg, ScanSegment{ID: id})
		return nil
	}
	o.Sealed = func(s SealedSegment) error {
		r.regMu.Lock()
		defer r.regMu.Unlock()
		if r.dropped[s.ID] {
			return nil
		}
		r.sealed = append(r.sealed, s)
		for i := range r.reg {
			if r.reg[i].ID == s.ID {
				r.reg[i].End, r.reg[i].Last = s.End, s.Last
			}
		}
		return nil
	}
	if err := o.FS.MkdirAll("db/" + SegmentsDir); err != nil {
		t.Fatal(err)
	}
	names, err := o.FS.List("db/" + SegmentsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		id, _, _ := ParseSegmentName(n)
		r.nextID = max(r.nextID, id)
	}
	l, err := StartLog(o, existing)
	if err != nil {
		t.Fatal(err)
	}
	r.Log = l
	return r
}

// tryPut places n documents with values of valueBytes in one batch and returns
// the seqno of the last.
func (r *runningLog) tryPut(n, valueBytes int) (entry.Seqno, error) {
	key := func(s entry.Seqno) []byte { return fmt.Appendf(nil, "key-%012d", s) }
	value := make([]byte, valueBytes)
	separated := valueBytes > 255
	size := BatchSize{Count: n, Largest: RecordBytes(len(key(0)), entry.Meta{}, valueBytes, separated)}
	size.Bytes = n * size.Largest
	if separated {
		size.Docs = n
	}
	for {
		r.mu.Lock()
		first := r.next
		p, err := r.PlaceLocked(size, first)
		if err == nil {
			r.next += entry.Seqno(n)
			r.mu.Unlock()
			dst := p.Buf[:0]
			for i := range n {
				s := first + entry.Seqno(i)
				for j := range value {
					value[j] = byte(int(s) + j)
				}
				start := len(dst)
				dst = AppendSet(dst, key(s), entry.Meta{}, value, separated)
				if separated {
					off := p.Offset + uint32(start)
					FinishDocument(dst[start:], &testSecret, p.Segment, off, s)
					p.SetDoc(i, s, off)
					if r.onPlaced != nil {
						r.onPlaced(entry.Address{Segment: p.Segment, Offset: off, Length: uint32(len(dst) - start)}, s)
					}
				}
			}
			p.Done()
			return first + entry.Seqno(n) - 1, nil
		}
		r.mu.Unlock()
		if !errors.Is(err, ErrNoRoom) {
			return 0, err
		}
		if err := r.MakeRoom(size); err != nil {
			return 0, err
		}
	}
}

func (r *runningLog) put(n, valueBytes int) entry.Seqno {
	r.t.Helper()
	last, err := r.tryPut(n, valueBytes)
	if err != nil {
		r.t.Fatal(err)
	}
	return last
}

func (r *runningLog) wait(s entry.Seqno) {
	r.t.Helper()
	if err := r.Wait(s); err != nil {
		r.t.Fatal(err)
	}
}

// waitAll makes everything placed durable.
func (r *runningLog) waitAll() {
	r.t.Helper()
	r.mu.Lock()
	last := r.next - 1
	r.mu.Unlock()
	r.wait(last)
}

// promise writes a group without records, as an idle log does.
func (r *runningLog) promise() {
	r.t.Helper()
	r.waitAll()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fitsSegment(r.active, r.activeOff, GroupHeaderBytes) {
		r.emptyGroupLocked(GroupPromise)
		r.leadLocked()
	}
}

// roll goes on in the next segment.
func (r *runningLog) roll() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.prep.ready == nil {
		r.prep.ask(0)
		r.space.Wait()
	}
	if r.open != nil {
		r.closeOpenLocked()
	}
	r.rollLocked()
	for r.unstartedLocked() && r.inflight < r.o.Inflight {
		r.leadLocked()
	}
}

func (r *runningLog) position() entry.Position {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.NextPositionLocked()
	if !ok {
		r.t.Fatal("the log has no position")
	}
	return p
}

// segments is the registry.
func (r *runningLog) segments() []ScanSegment {
	r.regMu.Lock()
	defer r.regMu.Unlock()
	return slices.Clone(r.reg)
}

// drop does what an edit with DropSegments does, and then Drop.
func (r *runningLog) drop(ids ...entry.SegmentID) {
	r.regMu.Lock()
	r.reg = slices.DeleteFunc(r.reg, func(s ScanSegment) bool { return slices.Contains(ids, s.ID) })
	for _, id := range ids {
		r.dropped[id] = true
	}
	r.regMu.Unlock()
	r.Drop(ids)
}

// until waits for a condition that the log's goroutines bring about.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); time.Sleep(50 * time.Microsecond) {
		if time.Since(start) > 2*time.Minute {
			t.Fatalf("%s: not after two minutes", what)
		}
	}
}

func (r *runningLog) close() {
	r.t.Helper()
	if err := r.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// scanFrom scans the registered segments of fs from p.
func scanFrom(t testing.TB, fs vfs.FS, reg []ScanSegment, p entry.Position) scanned {
	t.Helper()
	return collect(t, ScanOptions{
		FS: fs, Dir: "db", Secret: testSecret, StoreID: testStoreID,
		From: p, Segments: reg, BufferBytes: AlignMax,
	})
}

// wantSeqnos checks that a scan found first to last and nothing else.
func wantSeqnos(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, got scanned, first, last entry.Seqno) {
	t.Helper()
	if got.err != nil {
		t.Fatal(got.err)
	}
	for i, s := range got.seqnos {
		if s != first+entry.Seqno(i) {
			t.Fatalf("record %d has seqno %d, want %d", i, s, first+entry.Seqno(i))
		}
	}
	if n := int(last + 1 - first); len(got.seqnos) != n {
		t.Fatalf("%d records of %d to %d", len(got.seqnos), first, last)
	}
}

// crashed is what a power cut leaves of a memfs disk.
func crashed(fs *memfs.FS) *memfs.FS { return fs.CrashCopy(1, memfs.DropAll) }
