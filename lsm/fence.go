package lsm

import (
	"errors"
	"path"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// fences are files that background jobs leave alone for a while, because they
// could not be read (design R21). Everything in them stays, and readers go on
// trying; jobs go on with all other files. It is guarded by scheduler.mu.
//
//	read fails    fenced for 1 s, then one job tries again
//	fails again   2 s, 4 s .. up to 10 min
//	succeeds      forgotten, once the file has left the store
type fences map[uint64]*fence // by file number

type fence struct {
	pause time.Duration // of this time; the next one is twice as long
	until time.Time
	timer *time.Timer // wakes the scheduler then
	err   error       // of the last try
}

const (
	fenceMin = time.Second
	fenceMax = 10 * time.Minute
	// fenceLasting is the pause from which a fault is taken to stay: what can do
	// without the file no longer waits for it.
	fenceLasting = 8 * fenceMin
)

// put fences a file, and has wake called when that ends. It reports whether the
// file was known to be unreadable before.
func (f fences) put(number uint64, now time.Time, wake func()) (known bool) {
	x := f[number]
	known = x != nil
	if !known {
		x = &fence{}
		f[number] = x
	} else {
		x.timer.Stop()
	}
	x.pause = min(max(2*x.pause, fenceMin), fenceMax)
	x.until = now.Add(x.pause)
	x.timer = time.AfterFunc(x.pause+time.Millisecond, wake)
	return known
}

// has reports whether a file is to be left alone now.
func (f fences) has(number uint64, now time.Time) bool {
	x := f[number]
	return x != nil && now.Before(x.until)
}

// lasts reports whether a file could not be read again and again.
func (f fences) lasts(number uint64) bool {
	x := f[number]
	return x != nil && x.pause >= fenceLasting
}

// lift forgets a file.
func (f fences) lift(number uint64) {
	if x := f[number]; x != nil {
		x.timer.Stop()
		delete(f, number)
	}
}

// end stops the timers.
func (f fences) end() {
	for _, x := range f {
		x.timer.Stop()
	}
}

// unfence forgets what e took out of the store: it was read, or is not needed
// any more.
func (s *scheduler) unfence(e *manifest.Edit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range e.DropTables {
		s.merges.fenced.lift(n)
	}
	for _, id := range e.DropSegments {
		s.collections.fenced.lift(uint64(id))
		s.fencedIndexes.lift(uint64(id))
	}
}

// fence leaves files alone for a while, and reports whether all of them were known
// to be unreadable. scheduler.mu is held.
func (s *scheduler) fence(f fences, numbers []uint64, err error) (known bool) {
	known = true
	for _, n := range numbers {
		known = f.put(n, s.now(), s.wake) && known
		f[n].err = err
	}
	return known
}

// jobs is what the scheduler knows of the failures of one kind of job.
type jobs struct {
	failed int64
	err    error  // of the last one, if it failed, or of something that is fenced
	fenced fences // inputs that could not be read
	pause  backoff
}

// jobEnded notes the outcome of a job. Inputs that could not be read, bad, are left
// alone for a while, and other jobs go on at once; after any other failure there is
// a pause for all of this kind. It reports whether the failure was known before.
// scheduler.mu is held.
func (s *scheduler) jobEnded(j *jobs, bad []uint64, err error) (known bool) {
	switch {
	case err == nil:
		s.jobsDone++
		j.pause = backoff{}
		if len(j.fenced) == 0 {
			j.err = nil
		}
	case s.ended || errors.Is(err, errGone):
	default:
		j.failed++
		j.err = err
		if j != &s.flushes {
			s.jobErr = err
		}
		if len(bad) > 0 && !mutant.NoFence {
			return s.fence(j.fenced, bad, err)
		}
		j.pause.failed(s.wake)
	}
	return false
}

// backoff is the pause after a failure: 20 ms, then twice as long each time, up to
// 1 s. Zero is none.
type backoff struct {
	pause time.Duration
	until time.Time
}

const (
	backoffMin = 20 * time.Millisecond
	backoffMax = time.Second
)

// failed begins the next pause, and has wake called when it ends.
func (b *backoff) failed(wake func()) {
	b.pause = min(max(2*b.pause, backoffMin), backoffMax)
	b.until = time.Now().Add(b.pause)
	time.AfterFunc(b.pause+time.Millisecond, wake)
}

// holds reports whether the pause lasts.
func (b *backoff) holds() bool { return time.Now().Before(b.until) }

// blamed returns the file that err says could not be read, or whose bytes are
// wrong; "" when it names none. damaged says that something is, all the same.
func blamed(err error) (file string, damaged bool) {
	var table *sstable.CorruptError
	var segment *wal.CorruptError
	var read *vfs.ReadError
	switch {
	case errors.As(err, &table):
		return table.File, true
	case errors.As(err, &segment):
		return segment.File, true
	case errors.As(err, &read):
		return read.Name, true
	}
	return "", false
}

// segmentName is the path of a segment's file.
func (db *DB) segmentName(id entry.SegmentID, kind manifest.SegmentKind) string {
	return path.Join(db.dir, wal.SegmentsDir, wal.SegmentName(id, wal.SegmentKind(kind)))
}

// unreadable returns the victims to leave alone after err: the one that it names,
// all of them when something is damaged and nobody knows what, none when the
// fault is elsewhere.
func (c *gcJob) unreadable(err error) (victims []uint64) {
	file, damaged := blamed(err)
	if !damaged {
		return nil
	}
	for _, ids := range [][]entry.SegmentID{c.job.Once, c.job.Again} {
		for _, id := range ids {
			s, _ := c.from.state.Segment(id)
			if file == c.db.segmentName(id, s.Kind) && !mutant.FenceNeighbours {
				return []uint64{uint64(id)}
			}
			victims = append(victims, uint64(id))
		}
	}
	if file != "" && !mutant.FenceNeighbours {
		return nil // an output
	}
	return victims
}

// unreadable returns the inputs to leave alone after err: the one that it names;
// all of them when their versions do not add up, or when the fault is where their
// addresses lead; none when it is elsewhere, as in an output.
func (c *compactJob) unreadable(err error) (inputs []uint64) {
	file, damaged := blamed(err)
	if !damaged && !errors.Is(err, sstable.ErrOrder) {
		return nil
	}
	for _, run := range c.job.Inputs {
		for _, t := range run {
			if file == c.db.tableName(t.Number) && !mutant.FenceNeighbours {
				return []uint64{t.Number}
			}
			inputs = append(inputs, t.Number)
		}
	}
	if file != "" && path.Dir(file) == path.Join(c.db.dir, TablesDir) && !mutant.FenceNeighbours {
		return nil
	}
	return inputs
}

// documentsOf returns the index of an output of garbage collection, which is read
// when it is not in memory. One that could not be read is left alone for a while,
// and err is nil, with no index, once that goes on: whoever asks must do without.
func (db *DB) documentsOf(s *wal.Segment) (x *wal.SeqnoIndex, err error) {
	n := uint64(s.ID)
	k := &db.sched
	k.mu.Lock()
	fenced, lasts := k.fencedIndexes.has(n, k.now()), k.fencedIndexes.lasts(n)
	if fenced {
		err = k.fencedIndexes[n].err
	}
	k.mu.Unlock()
	if !fenced {
		if x, err = s.Index(k.ctx); err == nil {
			k.mu.Lock()
			k.fencedIndexes.lift(n)
			k.mu.Unlock()
			return x, nil
		}
		if _, damaged := blamed(err); !damaged {
			return nil, err
		}
		k.mu.Lock()
		known := k.fence(k.fencedIndexes, []uint64{n}, err)
		lasts = k.fencedIndexes.lasts(n)
		k.mu.Unlock()
		if !known {
			db.o.Logf("index of segment %06d: %v; merges and collections leave it alone and try again", s.ID, err)
		}
	}
	if lasts {
		return nil, nil
	}
	return nil, err
}
