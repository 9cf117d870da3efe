package wal

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"fluxkv/internal/entry"
)

// segmentIndex is the exact index of an output of garbage collection, kept in
// memory: addresses that name a segment which is gone are looked up in it.
type segmentIndex struct {
	atomic.Pointer[SeqnoIndex]
	load sync.Mutex // held by who reads it
}

// AddSegments makes outputs of Rewrite, or segments that OpenSegment opened,
// known to readers: Acquire finds them from then on, and Drop frees them. The log
// takes over the one reference and the file. Call it before a view can name the
// segments, which may be before their edit is durable; if that edit fails without
// having been recorded, Drop removes the files. It fails with ErrClosed, and
// closes the files, when the log is closed. It may be called concurrently, also
// with everything else, but for Close.
func (l *Log) AddSegments(segments []*Segment) error {
	l.setMu.Lock()
	defer l.setMu.Unlock()
	if l.set == nil {
		for _, s := range segments {
			if err := s.CloseFile(); err != nil {
				l.o.Logf("close segment %s: %v", s.File.Name(), err)
			}
		}
		return ErrClosed
	}
	for _, s := range segments {
		s.log = l
		l.set[s.ID] = s
	}
	return nil
}

// Index returns which documents an output of garbage collection holds, and where.
// It is in memory from when Rewrite made it; of a segment of an earlier run it is
// read by the first call, from the footer, or from the groups when that is
// damaged, and kept as long as the segment: about 2 bytes a document. s must
// belong to a log, and the caller must hold a reference. It may be called
// concurrently; the error is as of ReadSeqnoIndex, and the next call tries again.
func (s *Segment) Index(ctx context.Context) (*SeqnoIndex, error) {
	if x := s.index.Load(); x != nil {
		return x, nil
	}
	s.index.load.Lock()
	defer s.index.load.Unlock()
	if x := s.index.Load(); x != nil {
		return x, nil
	}
	if s.Kind != SegmentGC || s.log == nil {
		return nil, fmt.Errorf("index of segment %06d of kind %v: none is kept", s.ID, s.Kind)
	}
	o := &s.log.o
	x, err := ReadSeqnoIndex(ctx, ScanOptions{FS: o.FS, Dir: o.Dir, Secret: o.Secret, StoreID: o.StoreID, Direct: o.Direct}, s.ID, s.Kind, 0)
	if err != nil {
		return nil, err
	}
	s.index.Store(x)
	return x, nil
}

// FindMoved looks for the document of seqno, which stood at a, in the segments
// that a's segment is forwarded to (design R8). It returns the one that holds it
// and its address there; the length is that of a, because a record is the same
// bytes wherever it stands. ReadDocuments does the rest. A nil segment means that
// none of them holds it: for a reader that is corruption, while compaction may
// come across a version that garbage collection gave up. It reads from the device
// only what Index has to.
func FindMoved(ctx context.Context, among []*Segment, a entry.Address, seqno entry.Seqno) (*Segment, entry.Address, error) {
	for _, s := range among {
		x, err := s.Index(ctx)
		if err != nil {
			return nil, entry.Address{}, err
		}
		if off, ok := x.Lookup(seqno); ok {
			return s, entry.Address{Segment: s.ID, Offset: off, Length: a.Length}, nil
		}
	}
	return nil, entry.Address{}, nil
}

// MemoryBytes is what the index takes in memory.
func (x *SeqnoIndex) MemoryBytes() int64 {
	words := 8*(len(x.seqnos.low)+len(x.seqnos.high)+len(x.offsets.low)+len(x.offsets.high)) +
		4*(cap(x.seqnos.ones)+cap(x.seqnos.zeros)+cap(x.offsets.ones)+cap(x.offsets.zeros))
	return int64(words)
}

// IndexBytes is what the indexes that Index keeps take in memory.
func (l *Log) IndexBytes() int64 {
	l.setMu.RLock()
	defer l.setMu.RUnlock()
	n := int64(0)
	for _, s := range l.set {
		if x := s.index.Load(); x != nil {
			n += x.MemoryBytes()
		}
	}
	return n
}
