package lsm

import (
	"context"
	"errors"
	"fmt"

	"fluxkv/internal/entry"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// VerifyReport is what Verify found.
type VerifyReport struct {
	Tables    int   `json:"tables"`
	Entries   int64 `json:"entries"` // versions in tables
	Addresses int64 `json:"addresses"`
	Documents int64 `json:"documents"` // read back from the log
	// GivenUp are older versions whose documents garbage collection has left
	// behind, because a newer version replaces them.
	GivenUp  int64 `json:"given_up"`
	Segments int   `json:"segments"`
	Dead     int64 `json:"dead"` // documents in dead sets
}

// verifyErrorsMax is how many findings Verify collects before it gives up.
const verifyErrorsMax = 100

// Verify reads every table and every document that a table addresses, and
// compares the dead sets with a count of their own: a document of a segment
// that everything was flushed from is either addressed by a table, or dead,
// or ended by a clear, and never two of these. It looks at the store as it was
// when the call began, and may run beside everything else. The error joins what
// is wrong, with file or segment; it wraps ErrCorrupt.
func (db *DB) Verify(ctx context.Context) (VerifyReport, error) {
	if err := db.enter(); err != nil {
		return VerifyReport{}, err
	}
	defer db.leave()
	v := db.pin()
	if v == nil {
		return VerifyReport{}, ErrClosed
	}
	ver := v.version.retain()
	v.release()
	defer ver.release()
	x := verification{db: db, ver: ver, addressed: map[entry.SegmentID]map[Seqno]bool{}}
	err := x.run(ctx)
	return x.report, err
}

type verification struct {
	db        *DB
	ver       *version
	report    VerifyReport
	addressed map[entry.SegmentID]map[Seqno]bool // by where documents are now
	errs      []error
}

func (x *verification) bad(format string, args ...any) {
	if len(x.errs) < verifyErrorsMax {
		x.errs = append(x.errs, fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...)))
	}
}

func (x *verification) run(ctx context.Context) error {
	for k := range x.db.kvstores {
		for _, r := range x.ver.runs[k] {
			for _, f := range r.files {
				if err := x.table(ctx, f); err != nil {
					return errors.Join(append(x.errs, err)...)
				}
			}
		}
	}
	for i := range x.ver.state.Segments {
		if err := x.segment(ctx, i); err != nil {
			return errors.Join(append(x.errs, err)...)
		}
	}
	return errors.Join(x.errs...)
}

// table walks one table.
func (x *verification) table(ctx context.Context, f *tableFile) error {
	x.report.Tables++
	it := (&run{files: []*tableFile{f}}).newIter(sstable.IterOptions{ReadAheadBytes: scanMergeBytes})
	defer it.Close()
	var buf []byte
	for ok := it.First(); ok; ok = it.Next() {
		if x.report.Entries++; x.report.Entries%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		e := it.Version()
		if e.Value.Address.IsZero() {
			continue
		}
		x.report.Addresses++
		s, a := x.ver.segments[e.Value.Address.Segment], e.Value.Address
		if s == nil {
			var err error
			if s, a, err = x.ver.find(e.Value.Address, e.Seqno); err != nil {
				return err
			}
		}
		if s == nil {
			if newer, err := x.newer(e); err != nil {
				return err
			} else if !newer {
				x.bad("%v: seqno %d at %v leads nowhere, and nothing newer replaces it", f, e.Seqno, e.Value.Address)
			}
			x.report.GivenUp++
			continue
		}
		m := x.addressed[s.ID]
		if m == nil {
			m = map[Seqno]bool{}
			x.addressed[s.ID] = m
		}
		if m[e.Seqno] {
			x.bad("%v: seqno %d of segment %06d is addressed twice", f, e.Seqno, s.ID)
		}
		m[e.Seqno] = true
		if x.ver.state.DeadSet(s.ID).Contains(e.Seqno) {
			x.bad("%v: seqno %d is dead in segment %06d", f, e.Seqno, s.ID)
		}
		_, key := entry.SplitKey(e.Key)
		out, meta, err := wal.ReadDocument(s.File, a, e.Seqno, key, &x.db.secret, !x.db.o.BufferedIO, buf[:0])
		if err != nil && !errors.Is(err, wal.ErrCorrupt) {
			return fmt.Errorf("%v: seqno %d: %w", f, e.Seqno, err)
		}
		if err != nil {
			x.bad("%v: seqno %d: %v", f, e.Seqno, err)
			continue
		}
		if meta != e.Meta {
			x.bad("%v: seqno %d: the log has %+v, the table %+v", f, e.Seqno, meta, e.Meta)
		}
		buf = out
		x.report.Documents++
	}
	if err := it.Error(); err != nil && !errors.Is(err, sstable.ErrCorrupt) {
		return fmt.Errorf("%v: %w", f, err)
	} else if err != nil {
		x.bad("%v: %v", f, err)
	}
	return nil
}

// newer reports whether something newer than e has its key.
func (x *verification) newer(e *entry.Version) (bool, error) {
	_, key := entry.SplitKey(e.Key)
	it, err := x.db.Get(nil, key)
	if err == nil && it.Seqno > e.Seqno || errors.Is(err, ErrNotFound) {
		return true, nil // or deleted, which is newer, too
	}
	return false, err
}

// segment compares the dead set of a segment with its index.
func (x *verification) segment(ctx context.Context, i int) error {
	st := x.ver.state
	s := st.Segments[i]
	x.report.Segments++
	dead := st.DeadSet(s.ID)
	x.report.Dead += int64(dead.Len())
	if !s.Sealed && !s.Ended {
		return nil // it has no end that is known yet
	}
	o := wal.ScanOptions{FS: x.db.fs, Dir: x.db.dir, Secret: x.db.secret, StoreID: x.db.format.StoreID, Direct: !x.db.o.BufferedIO}
	index, err := wal.ReadSeqnoIndex(ctx, o, s.ID, wal.SegmentKind(s.Kind), s.End)
	if err != nil && !errors.Is(err, wal.ErrCorrupt) {
		return fmt.Errorf("index of segment %06d: %w", s.ID, err) // it says nothing about the store
	}
	if err != nil {
		x.bad("index of segment %06d: %v", s.ID, err)
		return nil
	}
	for _, q := range dead.AppendSeqnos(nil) {
		if _, ok := index.Lookup(q); !ok {
			x.bad("segment %06d does not have seqno %d, which is dead in it", s.ID, q)
		}
	}
	flushed := wal.SegmentKind(s.Kind) == wal.SegmentGC || s.ID < st.ReplayFrom.Segment
	for q := range index.All() {
		known := x.addressed[s.ID][q] || dead.Contains(q) || q <= st.ClearSeqno
		if flushed && !known {
			x.bad("segment %06d: seqno %d is neither addressed nor dead", s.ID, q)
		}
	}
	return nil
}
