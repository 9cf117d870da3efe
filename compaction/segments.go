package compaction

import (
	"cmp"
	"math"
	"slices"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
)

// GCPicture is what PickSegments looks at.
type GCPicture struct {
	Segments []GCSegment
	// Allocated is every byte on disk: segments, the active, prepared and pooled
	// ones too, tables, manifest. Live is what the newest versions take by key
	// and value (LiveBytes).
	Allocated, Live int64
	// SpaceAmp is how many bytes may be allocated for each live one. 0: 1.5.
	SpaceAmp float64
	// SegmentBytes is the size of an output: victims are taken until what they
	// keep fills one.
	SegmentBytes int64
	// Next is the seqno of the next write: a segment's age is counted from it.
	Next entry.Seqno
	// Cramped says that the disk is nearly full (design R22): whatever the target is,
	// garbage is collected, and one victim is taken, so that one output needs room.
	Cramped bool
}

// GCSegment is a segment as garbage collection sees it.
type GCSegment struct {
	ID   entry.SegmentID
	Kind manifest.SegmentKind
	Last entry.Seqno // highest seqno in it
	// Bytes of the file; Live of them are records not known to be dead.
	Bytes, Live int64
	// Flushed: its end is recorded, and no memtable and no replay needs it.
	Flushed bool
	// Busy: it is the input of a job, which will free what is not live in it.
	Busy bool
	// Fenced: it could not be read, and is left alone for now or for good (design
	// R21).
	Fenced bool
}

// GCReason says why segments were picked, or why none were.
type GCReason string

// The reasons, in the words of stats and logs.
const (
	GCNearlyDead GCReason = "nearly dead" // under a tenth of a segment is live
	GCSpace      GCReason = "space"       // over the target
	GCFree       GCReason = "free"        // nothing to collect, but something to drop
	GCCramped    GCReason = "disk full"   // or nearly
	GCWithin     GCReason = "within"      // nothing to do
	// GCSmall: many segments are far smaller than an output, and become one.
	GCSmall GCReason = "small"
	// GCHidden: over the target, or on a full disk, but no segment has garbage enough that is known
	// of. Merging the key index finds more.
	GCHidden GCReason = "hidden"
)

// GCJob is what to collect.
type GCJob struct {
	Reason GCReason
	// Free are log segments that no table addresses: they may go unread, with the
	// next edit.
	Free []entry.SegmentID
	// Once are victims that the log wrote, Again those that were collected
	// before, each ascending. Their documents go to outputs of their own: what
	// was live twice tends to stay.
	Once, Again []entry.SegmentID
	// Bytes of the victims, Live of them not known to be dead.
	Bytes, Live int64
	// Pressure is the garbage that could be collected over what of it the target
	// leaves room for, or over what is left alone for being too thin: above 1
	// collecting is due, and far above it is being outrun.
	Pressure float64
}

const (
	spaceAmpDefault = 1.5
	// nearlyDead is the live share under which a segment goes at once: it costs
	// next to nothing, and no segment is kept by a few documents.
	nearlyDead = 0.1
	// ageless is added to the root of the age of a segment, in mean ages.
	ageless = 0.5
	// garbageMin is the garbage share that a victim needs. Collecting one with
	// less would write 15 bytes to win one: space rises first.
	garbageMin = 1.0 / 16
	// beyondMin is that share when not even all known garbage is enough, in a small
	// store whose fixed files weigh more than its data, or with a target below the
	// floor of its values: then space rises, and a byte won costs three.
	beyondMin = 1.0 / 4
	// victimsMax bounds the files that a job has open, and what is held twice.
	victimsMax = 16
	// A segment of at most this share of an output is small, and so many small ones
	// of a kind are put together, whatever lives in them: every start of a store ends
	// a segment, and a collection may keep a single document. A document is moved
	// for that once for each time its segment grows by so much.
	smallShare = 1.0 / victimsMax
)

// PickSegments returns the segments to collect next; false when there is
// nothing to do, with the reason in the job. It is pure.
//
// A victim is good when it wins much for what is read and written, garbage over
// bytes and live bytes, and when it is old: what lived long goes on to live, so
// that its space stays won, while a young segment still loses documents for
// nothing. Simulated at a target of 1.5, bytes moved for each written:
//
//	                        uniform   zipf   9 of 10 writes to a tenth
//	no age                   0.67     0.83    0.79
//	0.5 + root of the age    0.69     0.58    0.40
//	age                      0.81     0.88    0.39
func PickSegments(in GCPicture) (GCJob, bool) {
	j := GCJob{Reason: GCWithin}
	target := cmp.Or(in.SpaceAmp, spaceAmpDefault)
	allocated := in.Allocated
	for _, s := range in.Segments {
		if s.Busy { // on its way out
			allocated -= max(0, s.Bytes-max(0, s.Live))
		}
	}
	above := float64(allocated) > target*float64(in.Live)
	over := above || in.Cramped
	var victims, small []GCSegment
	dying := false
	ages, flushed, known := 0.0, 0, int64(0)
	garbage, of := int64(0), int64(0) // in segments that may be picked, and their bytes
	for _, s := range in.Segments {
		if !s.Flushed || s.Bytes <= 0 {
			continue
		}
		ages, flushed = ages+in.age(s), flushed+1
		s.Live = max(0, min(s.Live, s.Bytes))
		if !s.Busy {
			known += s.Bytes - s.Live
		}
		switch {
		case s.Busy:
		case s.Live == 0 && s.Kind == manifest.SegmentLog:
			j.Free = append(j.Free, s.ID) // even if it cannot be read
		case s.Fenced:
		default:
			garbage, of = garbage+s.Bytes-s.Live, of+s.Bytes
			victims = append(victims, s)
			if float64(s.Bytes) <= smallShare*float64(in.SegmentBytes) {
				small = append(small, s)
			}
		}
	}
	least := garbageMin
	if float64(allocated-known) > target*float64(in.Live) && !in.Cramped {
		least = beyondMin
	}
	if garbage > 0 {
		room := max(target*float64(in.Live)-float64(allocated-garbage), least*float64(of))
		j.Pressure = float64(garbage) / room
	}
	victims = slices.DeleteFunc(victims, func(s GCSegment) bool {
		if float64(s.Live) < nearlyDead*float64(s.Bytes) {
			dying = true
			return false
		}
		return !over || float64(s.Bytes-s.Live) < least*float64(s.Bytes)
	})
	slices.Sort(j.Free)
	switch {
	case dying:
		j.Reason = GCNearlyDead
	case above && len(victims) > 0:
		j.Reason = GCSpace
	case over && len(victims) > 0:
		j.Reason = GCCramped
	case over:
		j.Reason = GCHidden
	case len(j.Free) > 0:
		j.Reason = GCFree
	}
	meanAge := max(1, ages/float64(max(1, flushed)))
	slices.SortFunc(victims, func(a, b GCSegment) int {
		return cmp.Or(cmp.Compare(in.benefit(b, meanAge), in.benefit(a, meanAge)), cmp.Compare(a.ID, b.ID))
	})
	j.fill(victims, in)
	if len(j.Once)+len(j.Again) == 0 && !in.Cramped {
		j.together(small, in)
	}
	return j, len(j.Free)+len(j.Once)+len(j.Again) > 0
}

// fill takes victims, best first, until they fill an output. Those nearly dead
// are the best ones, and little of them is kept.
func (j *GCJob) fill(victims []GCSegment, in GCPicture) {
	most := victimsMax
	if in.Cramped {
		most = 1
	}
	var kept [2]int64 // by stream
	for _, s := range victims {
		stream, ids := 0, &j.Once
		if s.Kind == manifest.SegmentGC {
			stream, ids = 1, &j.Again
		}
		taken := len(j.Once) + len(j.Again)
		if taken == most {
			break
		}
		if taken > 0 && kept[stream]+s.Live > in.SegmentBytes {
			if kept[stream] > in.SegmentBytes/2 || max(kept[0], kept[1]) > in.SegmentBytes/2 {
				break
			}
			continue // a smaller one may fit
		}
		kept[stream] += s.Live
		*ids = append(*ids, s.ID)
		j.Bytes += s.Bytes
		j.Live += s.Live
	}
	slices.Sort(j.Once)
	slices.Sort(j.Again)
}

// together takes the smallest of many small segments of one kind.
func (j *GCJob) together(small []GCSegment, in GCPicture) {
	slices.SortFunc(small, func(a, b GCSegment) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.ID, b.ID))
	})
	for _, kind := range []manifest.SegmentKind{manifest.SegmentLog, manifest.SegmentGC} {
		of := slices.DeleteFunc(slices.Clone(small), func(s GCSegment) bool { return s.Kind != kind })
		if len(of) < victimsMax {
			continue
		}
		if j.Reason == GCWithin || j.Reason == GCFree {
			j.Reason = GCSmall
		}
		j.fill(of[:victimsMax], in)
		return
	}
}

// benefit of collecting s, with age in units of meanAge.
func (in *GCPicture) benefit(s GCSegment, meanAge float64) float64 {
	return float64(s.Bytes-s.Live) / float64(s.Bytes+s.Live) * (ageless + math.Sqrt(in.age(s)/meanAge))
}

// age is how many writes came since the newest document of s was written.
func (in *GCPicture) age(s GCSegment) float64 {
	if s.Last >= in.Next {
		return 0
	}
	return float64(in.Next - s.Last)
}

// SegmentsOf returns the segments of a state as garbage collection sees them;
// Busy and Fenced are up to the caller. documents returns how many documents an
// output of garbage collection had when it was made, which its index knows; 0
// for unknown counts all of it as live.
//
// What a table addresses in a log segment is counted exactly: every version is
// in one table. An output is addressed under other ids too, so there the dead
// are taken from the whole, as records of mean size.
func SegmentsOf(st *manifest.State, documents func(entry.SegmentID) uint64) []GCSegment {
	addressed := map[entry.SegmentID]int64{}
	for _, t := range st.Tables {
		for _, use := range t.Segments {
			addressed[use.Segment] += int64(use.Bytes)
		}
	}
	all := make([]GCSegment, 0, len(st.Segments))
	for _, s := range st.Segments {
		g := GCSegment{ID: s.ID, Kind: s.Kind, Last: s.Last, Bytes: s.FileBytes}
		switch {
		case s.Ended:
			g.Bytes = int64(s.End) // it was cut there
		case !s.Sealed:
			g.Bytes = s.Size
		}
		switch s.Kind {
		case manifest.SegmentLog:
			g.Flushed = (s.Sealed || s.Ended) && s.ID < st.ReplayFrom.Segment
			g.Live = min(addressed[s.ID], g.Bytes)
		case manifest.SegmentGC:
			g.Flushed = s.Sealed
			// Header, padding and footer count as live: collected again they would
			// be there again.
			g.Live = g.Bytes
			if n, dead := documents(s.ID), uint64(st.DeadSet(s.ID).Len()); n > 0 {
				g.Live = int64(float64(g.Bytes) * (1 - min(1, float64(dead)/float64(n))))
			}
		}
		all = append(all, g)
	}
	return all
}

// recordBytesOver is the least that the record of a separated document has beside
// key and value: checksum, presence and lengths.
const recordBytesOver = 11

// LiveBytes estimates what the newest versions take by key and value: those of
// the last levels, and as many of the entries above them as fresh says, the
// share that lately turned out to be of new keys. A store without a last level
// counts all entries. The error is at most the share above the last levels.
func LiveBytes(st *manifest.State, fresh float64) int64 {
	sum := 0.0
	for i := 0; i < len(st.Tables); {
		tables := kvstoreTables(st, st.Tables[i].KVStore)
		i += len(tables)
		last := lastLevel(tables)
		settled := tables[len(tables)-1].Level > 0
		for _, t := range tables {
			share := 1.0
			if settled && t.Level != last {
				share = fresh
			}
			sum += share * userBytes(t)
		}
	}
	return int64(sum)
}

// userBytes is about what key and value of the documents of t take, compressed
// ones as they are stored: a target of space is a multiple of that.
func userBytes(t *manifest.Table) float64 {
	if t.Entries == 0 {
		return 0
	}
	key := max(0, float64(t.KeyBytes)/float64(t.Entries)-entry.VBucketBytes)
	sum := key*float64(t.Entries-t.Tombstones) + float64(t.ValueBytes)
	for _, use := range t.Segments {
		sum += max(0, float64(use.Bytes)-float64(use.Documents)*(key+recordBytesOver))
	}
	return sum
}
