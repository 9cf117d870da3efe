package wal

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// Errors of the running log.
var (
	// ErrNoRoom: PlaceLocked would have to wait; call MakeRoom and try again.
	ErrNoRoom = errors.New("wal: no room for the batch")
	// ErrFailed: a group could not be written or synced. Final: what was not
	// durable then may or may not be there after a restart.
	ErrFailed = errors.New("wal: log failed")
	// ErrClosed: the log is closed.
	ErrClosed = errors.New("wal: log is closed")
)

// promiseDelay is how long the log stays idle before it writes a group that
// holds nothing but the promise that all before it is durable.
const promiseDelay = 100 * time.Millisecond

// LogOptions configures a running Log. All fields are required unless a
// default is given.
type LogOptions struct {
	FS      vfs.FS
	Dir     string // the store's directory; segments live in Dir/log
	Secret  Secret
	StoreID [16]byte
	Align   int  // granularity of group writes, bytes
	Direct  bool // open segments for direct I/O
	// Mu is the lock of the caller's commit order. It guards where batches go;
	// no I/O happens under it.
	Mu *sync.Mutex
	// Inflight is how many group writes may be under way, at least 1.
	Inflight int
	// GroupBytesMax bounds a group that several batches share.
	GroupBytesMax int
	// DocsMax bounds the separated documents of such a group.
	DocsMax int
	// Window bounds how long a group waits when nobody waits for it.
	Window time.Duration
	// Prewrite writes a new segment's blocks once before its first group:
	// syncs of blocks that were written before are two to four times faster.
	Prewrite bool
	// Segments tells how large the next segment should be, in bytes.
	SegmentBytes func() int64
	// ReserveBytes tells how much free space must be left after creating a
	// segment of the given size (design R22).
	ReserveBytes func(segmentBytes int64) int64
	// NextID returns an id never used before.
	NextID func() entry.SegmentID
	// Register makes a segment part of the store, durably, before its first
	// group (design R9). An error wrapping vfs.ErrNoSpace and not ErrFailed
	// says that nothing was recorded.
	Register func(id entry.SegmentID, kind SegmentKind, bytes int64) error
	// Sealed records a segment that will not change any more. It is asked again
	// with Bytes of 0 when the footer, or recording it, failed.
	Sealed func(s SealedSegment) error
	// Idle, if set, is called without locks when the log has fallen idle and
	// written its promise. An error that wraps ErrFailed ends the log.
	Idle func() error
	// Failed, if set, is called once, with Mu held, when the log failed. It must
	// not block.
	Failed func(error)
	Logf   func(format string, args ...any)

	// The chain goes on from here.
	After Chain
	// Next is the first seqno that will be placed.
	Next entry.Seqno
}

// Chain is the end of the log so far: what the next group names as its
// predecessor.
type Chain struct {
	Segment entry.SegmentID // 0 in a new store
	End     uint32
	Last    entry.Seqno
}

// SealedSegment is what Sealed is told.
type SealedSegment struct {
	ID    entry.SegmentID
	End   uint32      // offset behind the seal group
	Last  entry.Seqno // highest seqno in it, 0 when it has none
	Next  entry.Seqno // the first one behind it
	Bytes int64       // length of the file with its footer, 0 when that failed
}

// Log is the running log: one active segment that groups are appended to, one
// prepared, a pool of freed ones, and the set of all segments readers may
// address.
//
// Locks: o.Mu guards the writer's and the preparer's state. setMu guards the
// set. Order: o.Mu, setMu; neither is held across I/O.
type Log struct {
	o LogOptions

	writer
	prep preparer

	setMu sync.RWMutex
	set   map[entry.SegmentID]*Segment

	stop    chan struct{}
	workers sync.WaitGroup
	closing atomic.Bool

	stats logStats
}

// Segment is one open file of the log. It is closed, and its file pooled or
// removed, when it was dropped and the last reference is gone. The set has one
// reference, readers have theirs, and the writer has one until the seal group
// is durable and the footer written: a segment may be dropped before.
type Segment struct {
	ID   entry.SegmentID
	Kind SegmentKind
	File vfs.File
	// Align is the granularity of its groups, bytes. Set by OpenSegment.
	Align int

	log     *Log
	bytes   int64 // allocated
	refs    atomic.Int32
	dropped atomic.Bool
	index   segmentIndex // of an output of garbage collection

	// Written by the group leaders in order, read by the sealer afterwards.
	docs    []docRef
	base    entry.Seqno // seqno that docs count from
	records int
	first   entry.Seqno // first seqno placed in it, or the next one
	last    entry.Seqno // last seqno in it, or before it
	end     uint32
}

// logStats counts what the log did; all fields only grow.
type logStats struct {
	groups, groupBytes, recordBytes, records atomic.Int64
	promises, seals, segments, reused        atomic.Int64
	prewritten, footers, removed, noSpace    atomic.Int64
	waitNanos, segmentWaitNanos              atomic.Int64
}

// LogStats is a snapshot of the log's counters.
type LogStats struct {
	Groups      int64 `json:"groups"`
	GroupBytes  int64 `json:"group_bytes"`  // device bytes, padding included
	RecordBytes int64 `json:"record_bytes"` // of them records
	Records     int64 `json:"records"`
	Promises    int64 `json:"promises"`
	Seals       int64 `json:"seals"`
	Segments    int64 `json:"segments_created"`
	Reused      int64 `json:"segments_reused"`
	Prewritten  int64 `json:"prewritten_bytes"`
	FooterBytes int64 `json:"footer_bytes"`
	Removed     int64 `json:"segments_removed"` // files of freed segments given back to the disk
	NoSpace     int64 `json:"no_space"`         // attempts to make a segment that failed on a full disk
	Pooled      int   `json:"segments_pooled"`
	PooledBytes int64 `json:"pooled_bytes"`
	Open        int   `json:"segments_open"`
	// What the active segment and the prepared one take, whatever is in them.
	ActiveBytes   int64 `json:"active_bytes"`
	PreparedBytes int64 `json:"prepared_bytes"`
	// Time of all writers that waited for room: for a write in flight, which they
	// may have led themselves, or for a segment.
	WaitTime        time.Duration `json:"wait_nanoseconds"`
	SegmentWaitTime time.Duration `json:"segment_wait_nanoseconds"` // of that, for a segment
}

// SegmentsDir is the directory of the segments below a store's directory.
const SegmentsDir = "log"

// StartLog starts a log that goes on after o.After in a new segment, which is
// created, synced and registered before StartLog returns; on a full disk it is
// made when there is space. existing are the
// segments of earlier runs; the log owns their files from now on, also when it
// returns an error.
func StartLog(o LogOptions, existing []*Segment) (*Log, error) {
	l := &Log{o: o, set: map[entry.SegmentID]*Segment{}, stop: make(chan struct{})}
	for _, s := range existing {
		s.log = l
		l.set[s.ID] = s
	}
	if err := l.writer.init(&l.o); err != nil {
		l.closeFiles()
		return nil, err
	}
	l.prep.init()
	err := l.prep.addSmalls(o.Align)
	if err == nil {
		l.active, err = l.prepare(0, urgent)
	}
	if errors.Is(err, vfs.ErrNoSpace) && !errors.Is(err, ErrFailed) {
		// What is there can be read; writes are refused until there is space.
		o.Logf("no space for a log segment, writes must wait for it: %v", err)
		err = nil
	}
	if err != nil {
		l.prep.close(l)
		l.writer.freeBuffers()
		l.closeFiles()
		return nil, err
	}
	if l.active != nil {
		l.add(l.active)
		l.activeOff = uint32(o.Align)
	}
	l.workers.Add(2)
	go l.runFlusher()
	go l.runPreparer()
	o.Mu.Lock()
	l.prep.ask(0)
	o.Mu.Unlock()
	return l, nil
}

// OpenSegment opens a segment of an earlier run for reading.
func OpenSegment(fs vfs.FS, dir string, id entry.SegmentID, kind SegmentKind, direct bool) (*Segment, error) {
	name := path.Join(dir, SegmentsDir, SegmentName(id, kind))
	f, err := fs.Open(name, vfs.OpenOptions{Write: true, Direct: direct})
	if err != nil {
		return nil, fmt.Errorf("open log segment %s: %w", name, err)
	}
	n, err := f.Size()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("size of log segment %s: %w", name, err)
	}
	s := &Segment{ID: id, Kind: kind, File: f, bytes: n}
	s.refs.Store(1)
	var h SegmentHeader
	if err := readAligned(f, 0, segmentHeaderBytes, func(b []byte) (err error) {
		h, err = DecodeSegmentHeader(b)
		return err
	}); err != nil {
		f.Close()
		return nil, inFile(err, name)
	}
	if h.ID != id || h.Kind != kind {
		f.Close()
		return nil, corrupt(name, 0, "segment header says segment %d of kind %v", h.ID, h.Kind)
	}
	// A segment of the pool may be extended to what it was; the header knows.
	s.Align, s.bytes = h.Align, max(n, h.Size)
	return s, nil
}

// CloseFile closes the file of a segment that no log owns yet.
func (s *Segment) CloseFile() error { return s.File.Close() }

// Acquire returns the segment with one more reference, or nil when the store
// has no such segment. The caller must Release it.
func (l *Log) Acquire(id entry.SegmentID) *Segment {
	l.setMu.RLock()
	defer l.setMu.RUnlock()
	s := l.set[id]
	if s != nil {
		s.refs.Add(1)
	}
	return s
}

// Retain takes one more reference for somebody who has one already: a dropped
// segment is not in the set any more, but still there for its readers.
func (s *Segment) Retain() { s.refs.Add(1) }

// Release gives a reference back. The last one of a dropped segment frees its
// file: into the pool, or off the disk. It must not be called with o.Mu held.
func (s *Segment) Release() {
	n := s.refs.Add(-1)
	if n < 0 {
		panic("wal: segment released once too often")
	}
	if n == 0 && s.dropped.Load() {
		s.log.recycle(s)
	}
}

// Drop takes segments out of the set. It must be called after the edit that
// drops them is durable, without o.Mu. Files are freed when their last reader
// is gone, and the writer is done with them: a segment may be dropped as soon as
// the log has gone on to the next one. What is placed in the active one would be
// lost with it: dropping that one, or the one prepared, ends the log.
func (l *Log) Drop(ids []entry.SegmentID) {
	l.o.Mu.Lock()
	var used entry.SegmentID
	for _, s := range []*Segment{l.active, l.prep.ready} {
		if s != nil && slices.Contains(ids, s.ID) {
			used = s.ID
		}
	}
	l.o.Mu.Unlock()
	if used != 0 {
		l.Fail(fmt.Errorf("log segment %06d was dropped while it is in use", used))
	}
	for _, id := range ids {
		l.setMu.Lock()
		s := l.set[id]
		delete(l.set, id)
		l.setMu.Unlock()
		if s != nil {
			s.dropped.Store(true)
			s.Release()
		}
	}
}

// Close writes everything placed, ends the log with a seal group so that the
// next open knows it is whole, and stops the log's goroutines. The caller
// guarantees that no PlaceLocked or Wait runs any more. A log that failed only
// stops. It returns the error that made the log fail, if any.
func (l *Log) Close() error {
	l.closing.Store(true)
	close(l.stop)
	l.prep.wake()
	l.workers.Wait()
	err := l.finish()
	if err == nil {
		l.sealRest()
	}
	l.releaseWritten()
	l.prep.close(l)
	l.writer.freeBuffers()
	if cerr := l.closeFiles(); err == nil {
		err = cerr
	}
	return err
}

// sealRest writes the footers that the preparer did not get to: nobody does it
// later, and a segment whose end is not recorded is never collected. The last
// segment stays as it is; the next start ends it. The goroutines have ended.
func (l *Log) sealRest() {
	l.o.Mu.Lock()
	p := &l.prep
	p.sealing = slices.DeleteFunc(p.sealing, func(s *Segment) bool { return s == l.active })
	l.o.Mu.Unlock()
	for l.sealNext() {
	}
	l.endWithoutFooter()
}

// releaseWritten gives the writer's references back. The goroutines have ended.
func (l *Log) releaseWritten() {
	l.o.Mu.Lock()
	written := map[*Segment]bool{l.active: true, l.prep.ready: true}
	for _, s := range l.prep.sealing {
		written[s] = true
	}
	l.prep.sealing = nil
	for _, g := range l.pipeline { // of a log that failed
		written[g.seg] = true
	}
	delete(written, nil)
	l.o.Mu.Unlock()
	for s := range written {
		s.Release()
	}
}

func (l *Log) closeFiles() error {
	l.setMu.Lock()
	defer l.setMu.Unlock()
	var errs []error
	for _, s := range l.set {
		errs = append(errs, s.File.Close())
	}
	l.set = nil
	return errors.Join(errs...)
}

// add makes a segment known to readers.
func (l *Log) add(s *Segment) {
	l.setMu.Lock()
	l.set[s.ID] = s
	l.setMu.Unlock()
}

// Stats returns the counters. It takes o.Mu for a moment.
func (l *Log) Stats() LogStats {
	s := LogStats{
		Groups: l.stats.groups.Load(), GroupBytes: l.stats.groupBytes.Load(),
		RecordBytes: l.stats.recordBytes.Load(), Records: l.stats.records.Load(),
		Promises: l.stats.promises.Load(), Seals: l.stats.seals.Load(),
		Segments: l.stats.segments.Load(), Reused: l.stats.reused.Load(),
		Prewritten: l.stats.prewritten.Load(), FooterBytes: l.stats.footers.Load(),
		Removed: l.stats.removed.Load(), NoSpace: l.stats.noSpace.Load(),
		WaitTime: time.Duration(l.stats.waitNanos.Load()), SegmentWaitTime: time.Duration(l.stats.segmentWaitNanos.Load()),
	}
	l.setMu.RLock()
	s.Open = len(l.set)
	l.setMu.RUnlock()
	l.o.Mu.Lock()
	s.Pooled = len(l.prep.free)
	for _, p := range l.prep.free {
		s.PooledBytes += p.bytes
	}
	if l.active != nil {
		s.ActiveBytes = l.active.bytes
	}
	if l.prep.ready != nil {
		s.PreparedBytes = l.prep.ready.bytes
	}
	l.o.Mu.Unlock()
	return s
}

// alignedBuffer is offheap.AlignedBuffer that reports what it was for.
func alignedBuffer(n int, what string) ([]byte, error) {
	b, err := offheap.AlignedBuffer(n)
	if err != nil {
		return nil, fmt.Errorf("wal: %s of %d bytes: %w", what, n, err)
	}
	return b, nil
}

func alignUp(n, align int) int { return int(roundUp(int64(n), align)) }
