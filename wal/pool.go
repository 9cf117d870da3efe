package wal

import (
	"errors"
	"fmt"
	"path"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
)

const (
	// poolMax is how many freed segments are kept for reuse.
	poolMax = 4
	// backgroundBytes is the most that one write beside the log's own takes, so
	// that no group waits long behind it (design R25).
	backgroundBytes = 256 << 10
	// retryMin and retryMax bound the pause between attempts to make a segment
	// while somebody waits for one.
	retryMin = 20 * time.Millisecond
	retryMax = time.Second
	// logEvery bounds the lines about a disk that stays full.
	logEvery = 10 * time.Second
	// smallsMin is how many buffers for groups without records there are: a
	// seal for every roll in flight, one promise, the final seal. The log does
	// not roll when only smallsSpare are left.
	smallsMin   = 8
	smallsSpare = 2
)

// urgency is how much of the reserve a new segment may use (design R22).
type urgency int

const (
	usual   urgency = iota // none
	deletes                // the space of one segment: once that is used, none
	urgent                 // all of it
)

func (s *BatchSize) urgency() urgency {
	switch {
	case s.Urgent:
		return urgent
	case s.Deletes:
		return deletes
	}
	return usual
}

// preparer makes the next segment before it is needed, writes the footers of
// sealed ones, and frees what was dropped. All fields are guarded by o.Mu.
type preparer struct {
	ready    *Segment // registered and empty
	asked    bool     // a segment is wanted
	want     int64    // at least this large
	urgency  urgency  // of who wants it
	logged   time.Time
	attempts uint64 // begun
	err      error  // of the last attempt
	errOf    uint64 // which attempt that was
	sealing  []*Segment
	// unended are full segments without a footer, whose end is not recorded yet. It
	// belongs to whoever calls sealNext.
	unended  []SealedSegment
	recycled []*Segment // dropped, nobody reads them
	free     []*Segment // pool
	empty    bool       // the pool is to be emptied
	idle     bool       // nothing is pooled until the log needs a segment again
	trash    [][]byte   // buffers to unmap
	smalls   [][]byte   // buffers of one align
	wakeup   chan struct{}
	freed    chan struct{} // a file can be freed
	ended    bool          // the log is closed
}

func (p *preparer) init() {
	p.wakeup = make(chan struct{}, 1)
	p.freed = make(chan struct{}, 1)
}

func (p *preparer) wake() { notify(p.wakeup) }

// notify leaves a token in c, which has room for one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ask wants a segment of at least bytes. o.Mu is held.
func (p *preparer) ask(bytes int64) {
	p.asked = true
	p.idle = false
	p.want = max(p.want, bytes)
	p.wake()
}

// seal queues a segment whose seal group is durable. o.Mu is held.
func (p *preparer) seal(s *Segment) {
	p.sealing = append(p.sealing, s)
	p.wake()
}

func (p *preparer) addSmalls(align int) error {
	for len(p.smalls) < smallsMin {
		b, err := alignedBuffer(align, "seal buffer")
		if err != nil {
			return err
		}
		p.smalls = append(p.smalls, b)
	}
	return nil
}

// takeSmall returns a buffer of one align. o.Mu is held. There is one: rolls
// stop while spares are left, and promises and the final seal are written when
// nothing else is in flight.
func (p *preparer) takeSmall() []byte {
	n := len(p.smalls)
	b := p.smalls[n-1]
	p.smalls = p.smalls[:n-1]
	return b
}

// recycle takes a dropped segment that nobody reads any more.
func (l *Log) recycle(s *Segment) {
	l.o.Mu.Lock()
	ended := l.prep.ended
	if !ended {
		l.prep.recycled = append(l.prep.recycled, s)
	}
	l.o.Mu.Unlock()
	if ended {
		// The directory may belong to another process by now. The next open
		// removes the file.
		if err := s.File.Close(); err != nil {
			l.o.Logf("close log segment %s: %v", s.name(), err)
		}
		return
	}
	notify(l.prep.freed)
	l.prep.wake()
}

func (l *Log) runPreparer() {
	defer l.workers.Done()
	retry := retryMin
	for {
		select {
		case <-l.stop:
			return
		case <-l.prep.wakeup:
		}
		for !l.closing.Load() {
			again, failed := l.prepareOnce()
			if failed {
				select {
				case <-l.stop:
					return
				case <-l.prep.freed:
					retry = retryMin // there may be space now
				case <-time.After(retry):
					retry = min(2*retry, retryMax)
				}
				continue
			}
			retry = retryMin
			if !again {
				break
			}
		}
	}
}

// prepareOnce does one piece of work: a segment first, because writers may
// wait for it. It reports whether there may be more, and whether making a
// segment failed while one is wanted.
func (l *Log) prepareOnce() (again, failed bool) {
	l.tidy()
	if tried, err := l.prepareNext(); err != nil {
		// Not to be put off by writers that ask again and again: a dropped
		// segment is not free before its turn here.
		for l.sealNext() {
		}
		return true, true
	} else if tried {
		return true, false
	}
	return l.sealNext(), false
}

// tidy frees what was let go.
func (l *Log) tidy() {
	p := &l.prep
	l.o.Mu.Lock()
	trash := p.trash
	p.trash = nil
	recycled := p.recycled
	p.recycled = nil
	var unwanted []*Segment
	if p.empty {
		unwanted, p.free, p.empty = p.free, nil, false
	}
	l.o.Mu.Unlock()
	for _, b := range trash {
		offheap.FreeAligned(b)
	}
	for _, s := range recycled {
		l.pool(s)
	}
	l.remove(unwanted)
}

// prepareNext makes a segment if one is wanted. It reports whether it tried.
func (l *Log) prepareNext() (tried bool, err error) {
	p := &l.prep
	l.o.Mu.Lock()
	needed := p.asked && p.ready == nil && l.failed == nil
	if needed {
		p.attempts++
	}
	attempt := p.attempts
	want, urgency := p.want, p.urgency
	l.o.Mu.Unlock()
	if !needed {
		return false, nil
	}
	s, err := l.prepare(want, urgency)
	if s != nil {
		l.add(s)
	}
	l.o.Mu.Lock()
	p.err, p.errOf = err, attempt
	if err == nil {
		p.ready = s
	}
	// A request ends with its answer; who still waits asks again.
	p.asked, p.want, p.urgency = false, 0, usual
	l.space.Broadcast()
	l.o.Mu.Unlock()
	if err == nil {
		return true, nil
	}
	if errors.Is(err, ErrFailed) {
		l.Fail(err)
	}
	if errors.Is(err, vfs.ErrNoSpace) {
		l.stats.noSpace.Add(1)
	}
	if now := time.Now(); now.Sub(p.logged) >= logEvery {
		p.logged = now
		l.o.Logf("cannot make a log segment: %v", err)
	}
	return true, err
}

// sealNext writes the footer of one sealed segment, and lets go of it. It
// reports whether there was one.
func (l *Log) sealNext() bool {
	p := &l.prep
	l.o.Mu.Lock()
	if len(p.sealing) == 0 {
		l.o.Mu.Unlock()
		return false
	}
	s := p.sealing[0]
	p.sealing = p.sealing[1:]
	l.o.Mu.Unlock()
	if !s.dropped.Load() { // nobody wants the index of one that is
		if err := l.writeFooter(s); err != nil {
			// The segment is whole without its footer; the index can be made
			// again from its groups. Its end is needed: without one it is never
			// collected. How long the file is on the device is not known now.
			l.o.Logf("footer of log segment %06d: %v", s.ID, err)
			if errors.Is(err, ErrFailed) {
				l.Fail(err)
			} else {
				p.unended = append(p.unended, s.sealed())
			}
		}
	}
	s.Release()
	l.endWithoutFooter()
	return true
}

// endWithoutFooter records the ends of segments whose footers failed. What a full
// manifest does not take is tried again with the next segment, and at close.
func (l *Log) endWithoutFooter() {
	p := &l.prep
	for len(p.unended) > 0 {
		if err := l.o.Sealed(p.unended[0]); err != nil {
			l.o.Logf("end of log segment %06d: %v", p.unended[0].ID, err)
			if errors.Is(err, ErrFailed) {
				l.Fail(err)
			}
			return
		}
		p.unended = p.unended[1:]
	}
}

// sealed says where s ends, without a footer.
func (s *Segment) sealed() SealedSegment {
	if s.records == 0 {
		// It was stepped over for a large batch. What came before it is not its
		// own, and a seqno jump may lie between.
		return SealedSegment{ID: s.ID, End: s.end, Next: s.first}
	}
	return SealedSegment{ID: s.ID, End: s.end, Last: s.last, Next: s.last + 1}
}

// prepare makes a segment: reused or created, header written, file and
// directory synced, then registered (design R9). It leaves no file behind when
// it fails before registering.
func (l *Log) prepare(want int64, u urgency) (*Segment, error) {
	bytes := roundUp(min(max(l.o.SegmentBytes(), want+int64(l.o.Align)), MaxSegmentBytes), l.o.Align)
	id := l.o.NextID()
	s, err := l.takeFile(id, bytes, u)
	if err != nil {
		return nil, err
	}
	name := s.name()
	s.refs.Store(2) // the set's and the writer's
	if err := l.writeHeader(s, name); err != nil {
		return nil, errors.Join(err, l.discardFile(s, name))
	}
	syncDir := func() error { return l.o.FS.SyncDir(path.Join(l.o.Dir, SegmentsDir)) }
	if err := mutant.Skip(mutant.SkipSegmentDirSync, syncDir); err != nil {
		return nil, errors.Join(fmt.Errorf("sync directory of log segment %s: %w", name, err), l.discardFile(s, name))
	}
	register := func() error { return l.o.Register(id, SegmentLog, s.bytes) }
	if err := mutant.Skip(mutant.LateRegister, register); err != nil {
		err = fmt.Errorf("register log segment %s: %w", name, err)
		if errors.Is(err, vfs.ErrNoSpace) && !errors.Is(err, ErrFailed) {
			return nil, errors.Join(err, l.discardFile(s, name))
		}
		// The edit may be durable all the same: the file stays, and the next
		// open decides.
		return nil, errors.Join(err, s.File.Close())
	}
	return s, nil
}

// fromPool takes the best freed segment for a wish of bytes: at least as large,
// at most twice.
func (l *Log) fromPool(bytes int64) *Segment {
	l.o.Mu.Lock()
	defer l.o.Mu.Unlock()
	p := &l.prep
	for i, s := range p.free {
		if s.bytes >= bytes && s.bytes <= 2*bytes {
			p.free = append(p.free[:i], p.free[i+1:]...)
			return s
		}
	}
	return nil
}

// pool keeps a dropped segment for reuse, or removes its file.
func (l *Log) pool(s *Segment) {
	l.o.Mu.Lock()
	keep := len(l.prep.free) < poolMax && !l.prep.idle && s.Kind == SegmentLog && l.failed == nil
	l.o.Mu.Unlock()
	if !keep || l.spaceIsShort(s.bytes) || !l.hasOneName(s) {
		l.remove([]*Segment{s})
		return
	}
	s.docs = nil
	l.o.Mu.Lock()
	l.prep.free = append(l.prep.free, s)
	l.o.Mu.Unlock()
}

// spaceIsShort reports whether the space kept in reserve next to segments of
// bytes is used already, by what may use it: then it takes every file that is
// freed.
func (l *Log) spaceIsShort(bytes int64) bool {
	free, err := l.o.FS.FreeBytes(path.Join(l.o.Dir, SegmentsDir))
	return err == nil && free < l.o.ReserveBytes(bytes)
}

// drainPool removes the files of the pool. It reports whether there were any.
func (l *Log) drainPool() bool {
	l.o.Mu.Lock()
	all := l.prep.free
	l.prep.free = nil
	l.o.Mu.Unlock()
	l.remove(all)
	return len(all) > 0
}

// remove gives the files of dropped segments back to the disk.
func (l *Log) remove(segments []*Segment) {
	for _, s := range segments {
		if err := l.discardFile(s, s.name()); err != nil {
			l.o.Logf("remove log segment %s: %v", s.name(), err)
			continue
		}
		l.stats.removed.Add(1)
	}
}

// EmptyPool has the files of freed segments that wait to be used again removed,
// and keeps no others until the log goes on to its next segment: an idle store
// gives its space back (design R23), and one that lacks space for a table can
// have that of the pool. It returns at once; the preparer removes them.
// LogStats.Pooled tells when. It must not be called with o.Mu held.
func (l *Log) EmptyPool() {
	l.o.Mu.Lock()
	l.prep.empty, l.prep.idle = true, true
	l.o.Mu.Unlock()
	notify(l.prep.freed)
	l.prep.wake()
}

// writeFooter writes the exact seqno index behind the seal group, cuts the file
// there, and records the segment as sealed.
func (l *Log) writeFooter(s *Segment) error {
	index := NewIndexBuilder(len(s.docs))
	for _, d := range s.docs {
		index.Add(s.base+entry.Seqno(d.delta), d.offset)
	}
	s.docs = nil
	sealed := s.sealed()
	footer := EncodeFooter(nil, Footer{
		Segment: s.ID, End: s.end, Records: uint32(s.records),
		First: s.first, Last: sealed.Next - 1, Durable: l.DurableSeqno(),
	}, index, l.o.Align, &l.o.Secret)
	b, err := alignedBuffer(alignUp(len(footer), l.o.Align), "segment footer")
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(b)
	n := copy(b, footer)
	for at := 0; at < n; at += backgroundBytes {
		if _, err := s.File.WriteAt(b[at:min(at+backgroundBytes, n)], int64(s.end)+int64(at)); err != nil {
			return err
		}
	}
	sealed.Bytes = int64(s.end) + int64(n)
	// Synced before it is cut: a file shorter than it was registered must end
	// in a footer, or it is damage.
	if err := s.File.Sync(); err != nil {
		return err
	}
	if err := s.File.Truncate(sealed.Bytes); err != nil {
		return err
	}
	if err := mutant.Skip(mutant.SkipSealSync, s.File.Sync); err != nil {
		return err
	}
	if mutant.LateRegister {
		if err := l.o.Register(s.ID, SegmentLog, s.bytes); err != nil {
			return err
		}
	}
	l.stats.footers.Add(int64(n))
	return l.o.Sealed(sealed)
}

// close frees what the preparer holds. The goroutines have ended.
func (p *preparer) close(l *Log) {
	l.o.Mu.Lock()
	p.ended = true
	segments := append(p.free, p.recycled...)
	buffers := append(p.trash, p.smalls...)
	p.free, p.recycled, p.trash, p.smalls = nil, nil, nil, nil
	l.o.Mu.Unlock()
	l.remove(segments)
	for _, b := range buffers {
		offheap.FreeAligned(b)
	}
}
