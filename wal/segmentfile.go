package wal

import (
	"errors"
	"fmt"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

// takeFile returns the file of a new segment, of the pool or created. What is in
// the pool counts as free space: it is used while the reserve is free, and given
// back to the disk before there is said to be none (design R22).
func (l *Log) takeFile(id entry.SegmentID, bytes int64, u urgency) (*Segment, error) {
	dir := path.Join(l.o.Dir, SegmentsDir)
	reserve := int64(0)
	switch u {
	case usual:
		reserve = l.o.ReserveBytes(bytes)
	case deletes:
		reserve = max(0, l.o.ReserveBytes(bytes)-bytes)
	}
	free, err := l.o.FS.FreeBytes(dir)
	if err != nil {
		return nil, fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free >= reserve {
		for s := l.fromPool(bytes); s != nil; s = l.fromPool(bytes) {
			if again, err := l.reuse(s, id); again != nil || err != nil {
				return again, err
			}
		}
	}
	s, err := l.create(id, bytes, free, reserve)
	if !errors.Is(err, vfs.ErrNoSpace) || !l.drainPool() {
		return s, err
	}
	if free, err = l.o.FS.FreeBytes(dir); err != nil {
		return nil, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return l.create(id, bytes, free, reserve)
}

// create makes a new file, or none.
func (l *Log) create(id entry.SegmentID, bytes, free, reserve int64) (*Segment, error) {
	if free < bytes+reserve {
		return nil, fmt.Errorf("log segment of %d bytes: %d free, %d kept in reserve: %w", bytes, free, reserve, vfs.ErrNoSpace)
	}
	name := path.Join(l.o.Dir, SegmentsDir, SegmentName(id, SegmentLog))
	f, err := l.o.FS.Create(name, vfs.OpenOptions{Write: true, Direct: l.o.Direct})
	if err != nil {
		return nil, fmt.Errorf("create log segment: %w", err)
	}
	s := &Segment{ID: id, Kind: SegmentLog, File: f, bytes: bytes, log: l}
	if err := f.Allocate(bytes); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate log segment %s: %w", name, err), l.discardFile(s, name))
	}
	if err := l.prewrite(s); err != nil {
		return nil, errors.Join(fmt.Errorf("prewrite log segment %s: %w", name, err), l.discardFile(s, name))
	}
	l.stats.segments.Add(1)
	return s, nil
}

// reuse makes a file of the pool that of segment id. It returns nil when the
// file cannot be used and was removed.
func (l *Log) reuse(old *Segment, id entry.SegmentID) (*Segment, error) {
	if !l.hasOneName(old) {
		l.remove([]*Segment{old})
		return nil, nil
	}
	s := &Segment{ID: id, Kind: SegmentLog, bytes: roundUp(old.bytes, l.o.Align), log: l}
	name := s.name()
	if err := l.o.FS.Rename(old.name(), name); err != nil {
		return nil, errors.Join(fmt.Errorf("reuse log segment %s as %s: %w", old.name(), name, err), l.discardFile(old, old.name()))
	}
	// Opened again, so that errors name the segment that it is.
	f, err := l.o.FS.Open(name, vfs.OpenOptions{Write: true, Direct: l.o.Direct})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reuse log segment %s as %s: %w", old.name(), name, err), l.discardFile(old, name))
	}
	s.File = f
	if err := old.File.Close(); err != nil {
		return nil, errors.Join(fmt.Errorf("close log segment %s: %w", old.name(), err), l.discardFile(s, name))
	}
	// It was cut at its seal: nearly all of its blocks were written before.
	if err := f.Allocate(s.bytes); err != nil {
		err = errors.Join(fmt.Errorf("extend log segment %s: %w", name, err), l.discardFile(s, name))
		if errors.Is(err, vfs.ErrNoSpace) {
			l.o.Logf("%v", err)
			return nil, nil
		}
		return nil, err
	}
	l.stats.reused.Add(1)
	return s, nil
}

// hasOneName reports whether the file of a freed segment is known under no
// other name: what is linked elsewhere, in a checkpoint, must not change
// (design R20).
func (l *Log) hasOneName(s *Segment) bool {
	n, err := l.o.FS.Links(s.name())
	if err != nil {
		l.o.Logf("links of log segment %s: %v", s.name(), err)
	}
	return err == nil && n == 1
}

func (l *Log) discardFile(s *Segment, name string) error {
	return errors.Join(s.File.Close(), l.o.FS.Remove(name))
}

func (s *Segment) name() string {
	return path.Join(s.log.o.Dir, SegmentsDir, SegmentName(s.ID, s.Kind))
}

func (l *Log) writeHeader(s *Segment, name string) error {
	b, err := alignedBuffer(l.o.Align, "segment header")
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(b)
	h := SegmentHeader{Kind: s.Kind, Align: l.o.Align, ID: s.ID, Size: s.bytes, StoreID: l.o.StoreID}
	h.Encode(b)
	if _, err := s.File.WriteAt(b, 0); err != nil {
		return fmt.Errorf("write header of log segment %s: %w", name, err)
	}
	if err := mutant.Skip(mutant.SkipSegmentSync, s.File.Sync); err != nil {
		return fmt.Errorf("sync log segment %s: %w", name, err)
	}
	return nil
}

// prewrite writes zeros over a fresh segment, and stops early when a writer
// waits for it or the store closes.
func (l *Log) prewrite(s *Segment) error {
	if !l.o.Prewrite {
		return nil
	}
	b, err := alignedBuffer(backgroundBytes, "prewrite buffer")
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(b)
	for off := int64(0); off < s.bytes; off += int64(len(b)) {
		if l.closing.Load() || l.segmentNeeded() {
			return nil
		}
		n := min(int64(len(b)), s.bytes-off)
		if _, err := s.File.WriteAt(b[:n], off); err != nil {
			return err
		}
		l.stats.prewritten.Add(n)
	}
	return nil
}

// segmentNeeded reports whether the active segment is nearly full: then an
// unwritten segment now is better than a written one later.
func (l *Log) segmentNeeded() bool {
	l.o.Mu.Lock()
	defer l.o.Mu.Unlock()
	return l.active != nil && int64(l.activeOff) > l.active.bytes-l.active.bytes/8
}
