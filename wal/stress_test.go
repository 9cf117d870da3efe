package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// stress is a log in full use: writers, a flush that drops every segment below
// where replay may start as soon as it may, readers that hold segments, a
// checkpoint that links some, an idle store that empties the pool now and then,
// and power cuts.
type stress struct {
	*runningLog
	mem  *memfs.FS
	stop chan struct{}
	docs chan placedDoc

	editMu sync.Mutex // a power cut finds the registry and the disk in step
	from   entry.Position

	batches, drops, reads, cuts, links atomic.Int64
}

type placedDoc struct {
	address entry.Address
	seqno   entry.Seqno
}

func stressKey(s entry.Seqno) []byte { return fmt.Appendf(nil, "key-%012d", s) }

func (s *stress) running() bool {
	select {
	case <-s.stop:
		return false
	default:
		return true
	}
}

func (s *stress) write(seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for s.running() {
		size := []int{0, 20, 300, 300, 900, 2000, 6000}[rnd.IntN(7)]
		n := 1 + rnd.IntN(3)
		last, err := s.tryPut(n, size)
		if err == nil && rnd.IntN(3) > 0 {
			err = s.Wait(last)
		}
		if err != nil {
			s.t.Error(err)
			return
		}
		s.batches.Add(1)
	}
}

// flush takes a position, waits until all before it is durable, and drops what
// lies in segments before it, be it sealed or not.
func (s *stress) flush() {
	for s.running() {
		s.mu.Lock()
		p, ok := s.NextPositionLocked()
		s.mu.Unlock()
		if !ok || p.Seqno == 1 {
			continue
		}
		if err := s.Wait(p.Seqno - 1); err != nil {
			s.t.Error(err)
			return
		}
		s.editMu.Lock()
		var ids []entry.SegmentID
		for _, seg := range s.segments() {
			if seg.ID < p.Segment {
				ids = append(ids, seg.ID)
			}
		}
		s.from = p
		s.regMu.Lock()
		s.reg = slices.DeleteFunc(s.reg, func(seg ScanSegment) bool { return slices.Contains(ids, seg.ID) })
		for _, id := range ids {
			s.dropped[id] = true
		}
		s.regMu.Unlock()
		s.editMu.Unlock()
		s.Drop(ids)
		s.drops.Add(int64(len(ids)))
	}
}

// read holds a segment for a while: its file is that segment all the time.
func (s *stress) read(seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	for s.running() {
		reg := s.segments()
		seg := s.Acquire(reg[rnd.IntN(len(reg))].ID)
		if seg == nil {
			continue
		}
		for range 1 + rnd.IntN(20) {
			err := readAligned(seg.File, 0, segmentHeaderBytes, func(b []byte) error {
				h, err := DecodeSegmentHeader(b)
				if err == nil && h.ID != seg.ID {
					err = fmt.Errorf("segment %d has become %d", seg.ID, h.ID)
				}
				return err
			})
			if err != nil {
				s.t.Error(err)
				break
			}
			s.reads.Add(1)
		}
		seg.Release()
		time.Sleep(100 * time.Microsecond)
	}
}

// readDocs reads documents that are durable.
func (s *stress) readDocs() {
	for s.running() {
		var d placedDoc
		select {
		case d = <-s.docs:
		case <-s.stop:
			return
		}
		seg := s.Acquire(d.address.Segment)
		if seg == nil {
			continue
		}
		if err := s.Wait(d.seqno); err != nil {
			s.t.Error(err)
		} else if _, _, err := ReadDocument(seg.File, d.address, d.seqno, stressKey(d.seqno), &testSecret, false, nil); err != nil {
			s.t.Error(err)
		}
		seg.Release()
	}
}

// checkpoint links a sealed segment, which must stay as it is.
func (s *stress) checkpoint() {
	for i := 0; s.running(); i++ {
		reg := s.segments()
		seg := s.Acquire(reg[0].ID)
		if seg == nil || reg[0].End == 0 {
			if seg != nil {
				seg.Release()
			}
			continue
		}
		name := fmt.Sprintf("checkpoint/%d", i)
		if err := s.mem.Link(segmentPath(seg.ID), name); err != nil {
			s.t.Error(err)
		}
		seg.Release()
		for range 50 {
			f, err := s.mem.Open(name, vfs.OpenOptions{})
			if err != nil {
				s.t.Error(err)
				return
			}
			foot, _, err := ReadFooter(f, &testSecret, reg[0].ID)
			if err != nil || foot.End != reg[0].End {
				s.t.Errorf("linked segment %d: %v", reg[0].ID, err)
			}
			f.Close()
		}
		s.links.Add(1)
		if err := s.mem.Remove(name); err != nil {
			s.t.Error(err)
		}
	}
}

// cut looks at what a power cut would leave: everything durable from the last
// position on.
func (s *stress) cut(seed int64) {
	for ; s.running(); seed++ {
		damage := memfs.Damages()[seed%int64(len(memfs.Damages()))]
		s.editMu.Lock()
		d := s.DurableSeqno()
		reg, from := s.segments(), s.from
		disk := s.mem.CrashCopy(seed, damage)
		s.editMu.Unlock()
		if from.Segment == 0 {
			continue
		}
		got := scanFrom(s.t, disk, reg, from)
		if got.err != nil || got.res.Last < d {
			s.t.Errorf("%v: from %v, durable %d, last %d: %v", damage, from, d, got.res.Last, got.err)
			return
		}
		for i, seqno := range got.seqnos {
			if seqno != from.Seqno+entry.Seqno(i) {
				s.t.Errorf("%v: record %d from %v has seqno %d", damage, i, from, seqno)
				return
			}
		}
		s.cuts.Add(1)
		for next := s.batches.Load() + 40; s.batches.Load() < next && s.running(); {
			time.Sleep(time.Millisecond)
		}
	}
}

// TestDropsWhileTheLogRuns runs all of it together.
func TestDropsWhileTheLogRuns(t *testing.T) {
	for _, inflight := range []int{1, 3} {
		t.Run(fmt.Sprint(inflight, " in flight"), func(t *testing.T) {
			mem := memfs.New()
			if err := mem.MkdirAll("checkpoint"); err != nil {
				t.Fatal(err)
			}
			// A device that takes its time, now and then.
			mem.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpWriteDurable && rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				}
				return nil
			})
			files := &openFiles{FS: mem}
			o := runningOptions(files)
			o.Inflight, o.Window = inflight, 200*time.Microsecond
			s := &stress{mem: mem, stop: make(chan struct{}), docs: make(chan placedDoc, 16)}
			s.runningLog = startRunning(t, o, nil)
			s.onPlaced = func(a entry.Address, seqno entry.Seqno) {
				select {
				case s.docs <- placedDoc{a, seqno}:
				default:
				}
			}
			var users, holders sync.WaitGroup
			for i := range 4 {
				users.Go(func() { s.write(uint64(i)) })
			}
			users.Go(s.flush)
			users.Go(s.checkpoint)
			users.Go(func() { s.cut(1) })
			users.Go(func() {
				for s.running() {
					s.EmptyPool()
					s.Stats()
					s.mu.Lock()
					s.PlacedLocked()
					s.mu.Unlock()
					for next := s.drops.Load() + 10; s.drops.Load() < next && s.running(); {
						time.Sleep(time.Millisecond)
					}
				}
			})
			for i := range 2 {
				holders.Go(func() { s.read(uint64(i)) })
				holders.Go(s.readDocs)
			}
			until(t, "enough of everything", func() bool {
				st := s.Stats()
				return t.Failed() || s.batches.Load() > 600 && s.drops.Load() > 50 && s.reads.Load() > 500 &&
					s.cuts.Load() > 10 && s.links.Load() > 3 && st.Reused > 5 && st.Removed > 5
			})
			close(s.stop)
			users.Wait()
			holders.Wait()

			// The last references go while the log is closed.
			s.put(1, 300)
			held := s.Acquire(s.segments()[0].ID)
			s.roll()
			s.waitAll()
			s.drop(held.ID)
			var last sync.WaitGroup
			last.Go(held.Release)
			err := s.Close()
			last.Wait()
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if n := files.open.Load(); n != 0 {
				t.Errorf("%d files are open", n)
			}
		})
	}
}
