package manifest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"

	"fluxkv/internal/entry"
)

// Segment is one registered segment of the log.
type Segment struct {
	ID   entry.SegmentID
	Kind SegmentKind
	Size int64 // bytes allocated when it was registered

	// Sealed: complete; End, Last, FileBytes and Footer are set.
	// Ended: torn, with a recorded end (R4); End, Last and Next are set.
	// Never both. Neither: it may still be written.
	Sealed, Ended bool
	End           uint32
	Last          entry.Seqno
	Next          entry.Seqno
	FileBytes     int64
	Footer        bool
}

// State is what the edits of a manifest add up to. It is immutable: its slices
// are shared between states and must not be written.
type State struct {
	Segments     []Segment  // by ascending id
	Tables       []*Table   // by kvstore, level, smallest key, number
	Flushed      []Flushed  // by kvstore; those that never flushed are left out
	Dead         []*DeadSet // by segment
	Forwards     []Forward  // by the id they resolve
	ReplayFrom   entry.Position
	NextSeqno    entry.Seqno // at least 1
	ClearSeqno   entry.Seqno // 0: nothing was cleared
	PendingClear int64       // Unix nanoseconds, 0: none
	// ExpiryClock is the highest time, in Unix seconds, at which any version
	// was given up because it had expired (R24); 0: none was. What had expired
	// then is absent, whatever the clock of this machine says now.
	ExpiryClock    uint32
	NextFileNumber uint64 // at least 1

	// Derived from Tables, so that an edit need not look at all of them.
	byNumber  []*Table
	addressed []segmentCount // by segment; none is 0

	// Manifest is the number of the file that holds this state; it is not
	// part of an edit.
	Manifest uint64
}

// emptyState is what the first record of a manifest is applied to.
func emptyState() State { return State{NextSeqno: 1, NextFileNumber: 1} }

// Segment returns the registered segment of this id.
func (st *State) Segment(id entry.SegmentID) (Segment, bool) {
	if i, ok := st.find(id); ok {
		return st.Segments[i], true
	}
	return Segment{}, false
}

func (st *State) find(id entry.SegmentID) (int, bool) {
	return sort.Find(len(st.Segments), func(i int) int {
		switch s := st.Segments[i].ID; {
		case id < s:
			return -1
		case id > s:
			return 1
		}
		return 0
	})
}

// Apply returns the state after e; st is unchanged and shares with it what e
// does not touch. An edit that contradicts st gives an error that names the
// contradiction and matches ErrInvalidEdit.
//
// The cost is that of copying the slices that e changes, at some nanoseconds an
// element; what e does not name is neither looked at nor checked again.
func (st State) Apply(e *Edit) (State, error) {
	next := st
	if err := next.apply(e); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidEdit, err)
	}
	if err := next.checkChanged(e); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidEdit, err)
	}
	return next, nil
}

// checkChanged is Validate without what e cannot have broken in a valid state:
// with many tables that is nearly all of it.
func (st *State) checkChanged(e *Edit) error {
	if e.touchesSegments() {
		if err := st.checkSegments(); err != nil {
			return err
		}
	}
	for _, check := range []func() error{
		st.checkValues,
		func() error { return st.checkChangedDead(e) },
		func() error { return st.checkChangedForwards(e) },
		st.checkFlushed,
		func() error { return st.checkAdded(e.AddTables) },
		func() error { return st.checkLost(e.DropSegments) },
		func() error { return st.checkLost(e.DropForwards) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (e *Edit) touchesSegments() bool {
	return len(e.AddSegments)+len(e.SealSegments)+len(e.EndSegments)+len(e.DropSegments) > 0
}

// apply changes st; each slice it copies before it writes to it.
func (st *State) apply(e *Edit) error {
	if e.touchesSegments() {
		st.Segments = append(make([]Segment, 0, len(st.Segments)+len(e.AddSegments)), st.Segments...)
	}
	if err := st.addSegments(e.AddSegments); err != nil {
		return err
	}
	if err := st.closeSegments(e); err != nil {
		return err
	}
	if err := st.applyDead(e); err != nil {
		return err
	}
	if err := st.dropSegments(e.DropSegments); err != nil {
		return err
	}
	if err := st.applyForwards(e); err != nil {
		return err
	}
	if err := st.applyTables(e); err != nil {
		return err
	}
	if err := st.applyFlushed(e); err != nil {
		return err
	}
	return st.applyValues(e)
}

func (st *State) addSegments(added []AddSegment) error {
	for _, a := range added {
		i, taken := st.find(a.ID)
		if taken {
			return fmt.Errorf("segment %06d added twice", a.ID)
		}
		if a.Kind == SegmentLog {
			// Replay reads log segments in the order of their ids; one that
			// slips in front of a written one would change history.
			for _, s := range st.Segments[i:] {
				if s.Kind == SegmentLog {
					return fmt.Errorf("log segment %06d added after %06d", a.ID, s.ID)
				}
			}
		}
		st.Segments = slices.Insert(st.Segments, i, Segment{ID: a.ID, Kind: a.Kind, Size: a.Size})
		st.NextFileNumber = max(st.NextFileNumber, uint64(a.ID)+1)
	}
	return nil
}

// closeSegments seals and ends segments.
func (st *State) closeSegments(e *Edit) error {
	for _, s := range e.SealSegments {
		seg, err := st.open(s.ID, "sealed")
		if err != nil {
			return err
		}
		seg.Sealed, seg.End, seg.Last, seg.FileBytes, seg.Footer = true, s.End, s.Last, s.FileBytes, s.Footer
	}
	for _, s := range e.EndSegments {
		// A torn segment may be ended again with a higher Next: another run
		// came to nothing behind it.
		if i, ok := st.find(s.ID); ok {
			if old := &st.Segments[i]; old.Ended && old.End == s.End && old.Last == s.Last && old.Next <= s.Next {
				old.Next = s.Next
				st.NextSeqno = max(st.NextSeqno, s.Next)
				continue
			}
		}
		seg, err := st.open(s.ID, "ended")
		if err != nil {
			return err
		}
		seg.Ended, seg.End, seg.Last, seg.Next = true, s.End, s.Last, s.Next
		st.NextSeqno = max(st.NextSeqno, s.Next)
	}
	return nil
}

// dropSegments forgets segments and what is dead in them.
func (st *State) dropSegments(ids []entry.SegmentID) error {
	if len(ids) == 0 {
		return nil
	}
	ids = slices.Sorted(slices.Values(ids))
	for i, id := range ids {
		if _, ok := st.find(id); !ok || i > 0 && ids[i-1] == id {
			return fmt.Errorf("segment %06d dropped, but it is not registered", id)
		}
	}
	gone := func(id entry.SegmentID) bool { _, ok := slices.BinarySearch(ids, id); return ok }
	st.Segments = slices.DeleteFunc(st.Segments, func(s Segment) bool { return gone(s.ID) })
	if dead := func(d *DeadSet) bool { return gone(d.segment) }; slices.ContainsFunc(st.Dead, dead) {
		st.Dead = slices.DeleteFunc(slices.Clone(st.Dead), dead)
	}
	return nil
}

// applyValues takes over the single values.
func (st *State) applyValues(e *Edit) error {
	if p := e.ReplayFrom; p != (entry.Position{}) {
		old := st.ReplayFrom
		if p.Segment < old.Segment || p.Segment == old.Segment && p.Offset < old.Offset || p.Seqno < old.Seqno {
			return fmt.Errorf("replay-from moves back from %v to %v", old, p)
		}
		st.ReplayFrom = p
	}
	if s := e.NextSeqno; s != 0 {
		if s < st.NextSeqno {
			return fmt.Errorf("next seqno falls from %d to %d", st.NextSeqno, s)
		}
		st.NextSeqno = s
	}
	if s := e.ClearSeqno; s != 0 {
		if s < st.ClearSeqno {
			return fmt.Errorf("clear seqno falls from %d to %d", st.ClearSeqno, s)
		}
		st.ClearSeqno = s
	}
	if e.SetPendingClear {
		st.PendingClear = e.PendingClear
	}
	st.ExpiryClock = max(st.ExpiryClock, e.ExpiryClock)
	if n := e.NextFile; n != 0 {
		if n < st.NextFileNumber {
			return fmt.Errorf("next file number falls from %d to %d", st.NextFileNumber, n)
		}
		st.NextFileNumber = n
	}
	return nil
}

// open returns a segment that is registered and neither sealed nor ended.
func (st *State) open(id entry.SegmentID, verb string) (*Segment, error) {
	i, ok := st.find(id)
	if !ok {
		return nil, fmt.Errorf("segment %06d %s, but it is not registered", id, verb)
	}
	if s := &st.Segments[i]; !s.Sealed && !s.Ended {
		return s, nil
	}
	return nil, fmt.Errorf("segment %06d %s, but its end is recorded already", id, verb)
}

// edit returns the edit that makes st out of the empty state.
func (st *State) edit() Edit {
	e := Edit{
		ReplayFrom:      st.ReplayFrom,
		NextSeqno:       st.NextSeqno,
		ClearSeqno:      st.ClearSeqno,
		SetPendingClear: st.PendingClear != 0,
		PendingClear:    st.PendingClear,
		ExpiryClock:     st.ExpiryClock,
		NextFile:        st.NextFileNumber,
		AddTables:       st.Tables,
		Flushed:         st.Flushed,
		AddDead:         st.Dead,
		AddForwards:     st.Forwards,
	}
	for _, s := range st.Segments {
		e.AddSegments = append(e.AddSegments, AddSegment{ID: s.ID, Kind: s.Kind, Size: s.Size})
		switch {
		case s.Sealed:
			e.SealSegments = append(e.SealSegments, SealSegment{ID: s.ID, End: s.End, Last: s.Last, FileBytes: s.FileBytes, Footer: s.Footer})
		case s.Ended:
			e.EndSegments = append(e.EndSegments, EndSegment{ID: s.ID, End: s.End, Last: s.Last, Next: s.Next})
		}
	}
	return e
}

// segmentBytesMax bounds a segment file: offsets in it are u32.
const segmentBytesMax = 1<<32 - 1

// Validate checks that st is consistent in itself (M8). The error names the
// first contradiction.
func Validate(st State) error {
	for _, check := range []func() error{st.checkSegments, st.checkValues, st.checkDead, st.checkForwards, st.checkFlushed, st.checkTables} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (st *State) checkSegments() error {
	lastLog := entry.Seqno(0)
	for i, s := range st.Segments {
		switch {
		case s.ID == 0:
			return fmt.Errorf("segment with id 0")
		case i > 0 && st.Segments[i-1].ID >= s.ID:
			return fmt.Errorf("segment %06d out of order", s.ID)
		case uint64(s.ID) >= st.NextFileNumber:
			return fmt.Errorf("segment %06d: next file number is only %d", s.ID, st.NextFileNumber)
		case s.Kind != SegmentLog && s.Kind != SegmentGC:
			return fmt.Errorf("segment %06d: kind %d", s.ID, s.Kind)
		case s.Size <= 0 || s.Size > segmentBytesMax:
			return fmt.Errorf("segment %06d: size %d", s.ID, s.Size)
		case s.Sealed && s.Ended:
			return fmt.Errorf("segment %06d: both sealed and ended", s.ID)
		case s.Last > entry.MaxSeqno || s.Next > entry.MaxSeqno:
			return fmt.Errorf("segment %06d: seqno above the maximum", s.ID)
		case s.Sealed && (s.End == 0 || int64(s.End) > s.FileBytes || s.FileBytes > segmentBytesMax):
			return fmt.Errorf("segment %06d: sealed at %d in a file of %d bytes", s.ID, s.End, s.FileBytes)
		case s.Ended && (s.End == 0 || int64(s.End) > s.Size):
			return fmt.Errorf("segment %06d: ends at %d in a file of %d bytes", s.ID, s.End, s.Size)
		case s.Ended && s.Next <= s.Last:
			return fmt.Errorf("segment %06d: last seqno %d, but %d follows", s.ID, s.Last, s.Next)
		}
		if s.Kind == SegmentLog && (s.Sealed || s.Ended) && s.Last != 0 {
			if s.Last <= lastLog {
				return fmt.Errorf("log segment %06d: last seqno %d is not above %d of an earlier one", s.ID, s.Last, lastLog)
			}
			lastLog = s.Last
		}
	}
	return nil
}

// checkValues checks the single values, which are always few.
func (st *State) checkValues() error {
	if p := st.ReplayFrom; p != (entry.Position{}) {
		s, ok := st.Segment(p.Segment)
		switch {
		case !ok || s.Kind != SegmentLog:
			return fmt.Errorf("replay-from %v: no such log segment is registered", p)
		case p.Seqno == 0 || p.Seqno > entry.MaxSeqno:
			return fmt.Errorf("replay-from %v: seqno out of range", p)
		case (s.Sealed || s.Ended) && p.Offset > s.End:
			return fmt.Errorf("replay-from %v: segment ends at %d", p, s.End)
		case !s.Sealed && int64(p.Offset) > s.Size:
			return fmt.Errorf("replay-from %v: segment has %d bytes", p, s.Size)
		}
	}
	switch {
	case st.NextSeqno == 0 || st.NextSeqno > entry.MaxSeqno:
		return fmt.Errorf("next seqno %d out of range", st.NextSeqno)
	case st.ClearSeqno > entry.MaxSeqno:
		return fmt.Errorf("clear seqno %d out of range", st.ClearSeqno)
	case st.NextFileNumber == 0 || st.NextFileNumber > 1<<62:
		return fmt.Errorf("next file number %d out of range", st.NextFileNumber)
	}
	return nil
}

// CheckFiles asks size for the length of every registered segment's file and
// compares (M8): a sealed one has exactly its recorded length, an ended one
// reaches its end, any other has the length it was registered with, unless it
// was cut when it was sealed: then footed must say that it ends in a footer.
// name gives the name that errors show. A file that is missing or has another
// length is a *CorruptError; other errors of size and footed are returned as
// they are.
func CheckFiles(st State, name func(Segment) string, size func(Segment) (int64, error), footed func(Segment) (bool, error)) error {
	for _, s := range st.Segments {
		n, err := size(s)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return corruptf(name(s), 0, "registered in %s, but missing", Name(st.Manifest))
		case err != nil:
			return fmt.Errorf("size of %s: %w", name(s), err)
		case n == 0:
			return corruptf(name(s), 0, "empty, but registered in %s", Name(st.Manifest))
		case s.Sealed && n != s.FileBytes:
			return corruptf(name(s), min(n, s.FileBytes), "%d bytes long, %s recorded %d", n, Name(st.Manifest), s.FileBytes)
		case !s.Sealed && !s.Ended && n < s.Size:
			// Cut when it was sealed, with the edit lost in a crash, or damaged.
			ok, err := footed(s)
			if err != nil {
				return err
			}
			if !ok {
				return corruptf(name(s), n, "%d bytes long, registered in %s with %d", n, Name(st.Manifest), s.Size)
			}
		case s.Ended && n < int64(s.End):
			return corruptf(name(s), n, "%d bytes long, %s recorded its end at %d", n, Name(st.Manifest), s.End)
		}
	}
	return nil
}
