package compaction

import (
	"cmp"
	"slices"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/sstable"
)

// Table is one table that a job made. Its file is complete, synced, verified,
// and its name is durable.
type Table struct {
	Number    uint64
	Name      string // path of the file
	FileBytes int64
	// Properties are those that were read back from the file. They must not be
	// changed.
	Properties *sstable.Properties
}

// Dead is a separated document that was dropped: its seqno is dead in the
// segment of the address it had. Segment may have been collected since the
// address was written; whoever installs the result resolves it.
type Dead struct {
	Segment entry.SegmentID
	Seqno   entry.Seqno
	// Bytes is the length of the record.
	Bytes uint32
}

// Result is what a job did. It belongs to the caller.
type Result struct {
	// Tables in key order, without overlap; no key is in two of them. Empty
	// when every version was dropped.
	Tables []Table
	// Dead in the order of (Segment, Seqno), each once.
	Dead []Dead
	// In = Out + Dropped, in versions. Buried ones were written, as
	// tombstones, and count in Out.
	In, Out, Dropped, Buried uint64
	// Readdressed counts documents that were written with another address than
	// the one they were read with.
	Readdressed uint64
	// By counts versions by verdict.
	By [verdicts]uint64
	// Bytes of all files.
	Bytes int64
	// DecidedAt is the clock of the job when a version went because it had
	// expired, else 0. From then on the store's clock for expiry must not be
	// below it, not even after a restart.
	DecidedAt uint32
}

// count notes the verdict on v, which is still as it was read.
func (r *Result) count(v *entry.Version, verdict Verdict) {
	r.In++
	r.By[verdict]++
	if verdict == Keep {
		return
	}
	if verdict == Bury {
		r.Buried++
	} else {
		r.Dropped++
	}
	if a := v.Value.Address; v.Kind == entry.KindSet && !a.IsZero() {
		r.Dead = append(r.Dead, Dead{Segment: a.Segment, Seqno: v.Seqno, Bytes: a.Length})
	}
}

func (r *Result) sortDead() {
	slices.SortFunc(r.Dead, func(a, b Dead) int {
		return cmp.Or(cmp.Compare(a.Segment, b.Segment), cmp.Compare(a.Seqno, b.Seqno))
	})
}

// ManifestTables returns the tables as one run of a level, for an edit. tier
// counts in level 0 only.
func (r *Result) ManifestTables(kvstore uint16, level, tier uint8) []*manifest.Table {
	all := make([]*manifest.Table, 0, len(r.Tables))
	for _, t := range r.Tables {
		p := t.Properties
		m := &manifest.Table{
			Number: t.Number, KVStore: kvstore, Level: level,
			LowestSeqno: p.LowestSeqno, HighestSeqno: p.HighestSeqno,
			FileBytes: t.FileBytes, Entries: p.Entries, Tombstones: p.Tombstones,
			KeyBytes: p.KeyBytes, ValueBytes: p.ValueBytes,
			Smallest: p.Smallest, Largest: p.Largest,
		}
		if level == 0 {
			m.Tier, m.Run = tier, r.Tables[0].Number
		}
		for _, s := range p.Segments {
			m.Segments = append(m.Segments, manifest.SegmentUse{Segment: s.Segment, Documents: s.Documents, Bytes: s.Bytes})
		}
		all = append(all, m)
	}
	return all
}
