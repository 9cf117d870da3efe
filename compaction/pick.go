package compaction

import (
	"bytes"
	"slices"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
)

// Picker decides what to merge next. It is implemented by Lazy and Leveled; both
// are pure: no I/O, no clock, nothing remembered from one call to the next.
type Picker interface {
	// Pick returns the next job, false when there is nothing to do. The caller
	// has it among Running until its edit is applied or it failed; one that
	// failed is picked again, unless its bad table is fenced or it stays there
	// for a while.
	Pick(in Picture) (Job, bool)
	// Boundaries are where tables that are flushed now are cut.
	Boundaries(st *manifest.State, kvstore uint16) [][]byte
}

// Picture is what a Picker looks at.
type Picture struct {
	State    *manifest.State
	KVStores int
	// Running are the jobs whose edits are not applied yet: nothing else takes
	// their inputs, or the keys between them.
	Running []*Job
	// Fenced, if set, says that a table must be left alone because it cannot be
	// read (design R21).
	Fenced func(table uint64) bool
	// Idle says that nobody writes: the time to merge for space alone.
	Idle bool
	// Cramped says that the disk is nearly full (design R22): space is worth almost
	// any merge.
	Cramped bool
	// Hidden says that files take more than they should, but no segment has garbage
	// enough that is known of (GCHidden): merges find more.
	Hidden bool
	// Horizon is H. Garbage above it would be kept, so it is not looked for.
	Horizon entry.Seqno
	// Expired, if set, returns how many versions of a table have expired; the
	// manifest does not know. The job's clock must not be behind the one used
	// here.
	Expired func(table uint64) uint64
	// Superseded, if set, returns how many versions of a table follow a newer one of
	// their key, because a snapshot needed them once.
	Superseded func(table uint64) uint64
}

// busyTables are the inputs of running jobs and what is fenced.
func (in *Picture) busyTables() func(*manifest.Table) bool {
	taken := map[uint64]bool{}
	for _, j := range in.Running {
		for _, run := range j.Inputs {
			for _, t := range run {
				taken[t.Number] = true
			}
		}
	}
	return func(t *manifest.Table) bool { return taken[t.Number] || in.Fenced != nil && in.Fenced(t.Number) }
}

// taken are the spans of the running jobs of a kvstore.
func (in *Picture) taken(kvstore uint16) (all []span) {
	for _, j := range in.Running {
		switch {
		case j.KVStore != kvstore:
		case j.Move: // each table stays what it is
			for _, run := range j.Inputs {
				for _, t := range run {
					all = append(all, span{t.Smallest, t.Largest})
				}
			}
		default:
			all = append(all, j.span())
		}
	}
	return all
}

// resting returns the share of garbage that is worth a merge for space alone; false
// when it is not the time for that.
func (in *Picture) resting() (share float64, ok bool) {
	switch {
	case in.Cramped:
		return crampedShare, true
	case in.Idle:
		return idleShare, true
	}
	return 0, false
}

func (in *Picture) expired(t *manifest.Table) uint64 {
	if in.Expired == nil || t.HighestSeqno > in.Horizon {
		return 0
	}
	return min(in.Expired(t.Number), t.Entries)
}

// droppable is how many tombstones a merge that reaches the bottom surely drops.
func (in *Picture) droppable(t *manifest.Table) uint64 {
	if t.HighestSeqno > in.Horizon {
		return 0
	}
	return t.Tombstones
}

// superseded is how many versions any merge of t surely drops.
func (in *Picture) superseded(t *manifest.Table) uint64 {
	if in.Superseded == nil || t.HighestSeqno > in.Horizon {
		return 0
	}
	return min(in.Superseded(t.Number), t.Entries)
}

// Reason says why a job was picked.
type Reason string

// The reasons, in the words of stats and logs.
const (
	ReasonRuns    Reason = "runs"    // more runs than a read should look at
	ReasonShare   Reason = "share"   // too much above the last levels
	ReasonHidden  Reason = "hidden"  // the same, because segments have garbage that nobody knows of
	ReasonCut     Reason = "cut"     // a range has become too large for one merge
	ReasonSlices  Reason = "slices"  // a tier is full
	ReasonGarbage Reason = "garbage" // known to be worth it
	ReasonIdle    Reason = "idle"    // worth it while nobody writes, or on a full disk
	ReasonLevel   Reason = "level"   // a sorted level is over its size
)

// Job is a merge to do.
type Job struct {
	KVStore uint16
	Reason  Reason
	// Inputs are runs, newest first, each with its tables by key. No other table
	// of the kvstore that shares a key with them has an age between theirs.
	Inputs [][]*manifest.Table
	// The outputs make one run of OutLevel; OutTier counts in level 0 only.
	OutLevel, OutTier uint8
	// Bottom says that no table has older versions of any key of the inputs, so
	// that the last version of a key may go (Policy.Bottom).
	Bottom bool
	// Move says that the tables go to OutLevel as they are: all there is to do
	// is the edit.
	Move bool
	// Boundaries for Output.
	Boundaries [][]byte
	Bytes      int64  // of the inputs' files
	Entries    uint64 // in them
}

// add puts one more run behind the inputs.
func (j *Job) add(run []*manifest.Table) {
	if len(run) == 0 {
		return
	}
	j.Inputs = append(j.Inputs, run)
	for _, t := range run {
		j.Bytes += t.FileBytes
		j.Entries += t.Entries
	}
}

// Edit returns the change of tables that installs j: r is what its merge made,
// and is not looked at for a Move. The dead documents of r and its DecidedAt are
// the caller's to add.
func (j *Job) Edit(r *Result) *manifest.Edit {
	e := &manifest.Edit{}
	for _, run := range j.Inputs {
		for _, t := range run {
			e.DropTables = append(e.DropTables, t.Number)
			if j.Move {
				moved := *t
				moved.Level, moved.Tier, moved.Run = j.OutLevel, 0, 0
				e.AddTables = append(e.AddTables, &moved)
			}
		}
	}
	if !j.Move {
		e.AddTables = r.ManifestTables(j.KVStore, j.OutLevel, j.OutTier)
	}
	return e
}

// span reaches from the lowest to the highest key of the inputs.
func (j *Job) span() (s span) {
	for _, run := range j.Inputs {
		for _, t := range run {
			if s.smallest == nil || bytes.Compare(t.Smallest, s.smallest) < 0 {
				s.smallest = t.Smallest
			}
			if bytes.Compare(t.Largest, s.largest) > 0 {
				s.largest = t.Largest
			}
		}
	}
	return s
}

// cutAt takes those of borders, ascending, that can part the outputs.
func (j *Job) cutAt(borders [][]byte) {
	s := j.span()
	from, at := slices.BinarySearchFunc(borders, s.smallest, bytes.Compare)
	if at {
		from++
	}
	to, at := slices.BinarySearchFunc(borders, s.largest, bytes.Compare)
	if at {
		to++
	}
	if from < to {
		j.Boundaries = borders[from:to:to]
	}
}
