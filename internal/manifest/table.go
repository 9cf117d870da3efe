package manifest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"

	"fluxkv/internal/entry"
)

// SegmentUse says how much of a segment a table addresses, under the id its
// addresses name.
type SegmentUse struct {
	Segment   entry.SegmentID
	Documents uint32
	Bytes     uint64 // of their records
}

// Table is one table file of the key index. Tables are immutable and shared
// between states.
//
// Level 0 holds runs in the order of their age; a flush makes one, and merges
// of neighbours make fewer, with Tier counting how often that was done.
// Levels from 1 on are sorted: each is one run, 0, and lower numbers are newer.
type Table struct {
	Number  uint64
	KVStore uint16
	Level   uint8
	Tier    uint8  // 0 above level 0
	Run     uint64 // tables of one run share no key; 0 above level 0

	LowestSeqno, HighestSeqno entry.Seqno
	FileBytes                 int64  // exact length of the file
	Entries                   uint64 // versions, tombstones included
	Tombstones                uint64
	KeyBytes                  uint64 // of internal keys
	ValueBytes                uint64 // of inline values

	Smallest, Largest []byte       // internal keys, both included
	Segments          []SegmentUse // ascending by segment
}

const (
	tableFixedBytes = 8 + 2 + 1 + 1 + 8 + 8 + 8 + 8 + 8 + 8 + 8 + 8
	segmentUseBytes = 4 + 4 + 8
	keyBytesMax     = entry.VBucketBytes + 1<<16 - 1
)

func (t *Table) append(dst []byte) []byte {
	dst = le.AppendUint64(dst, t.Number)
	dst = le.AppendUint16(dst, t.KVStore)
	dst = append(dst, t.Level, t.Tier)
	for _, v := range []uint64{t.Run, uint64(t.LowestSeqno), uint64(t.HighestSeqno), uint64(t.FileBytes),
		t.Entries, t.Tombstones, t.KeyBytes, t.ValueBytes} {
		dst = le.AppendUint64(dst, v)
	}
	for _, key := range [][]byte{t.Smallest, t.Largest} {
		dst = binary.AppendUvarint(dst, uint64(len(key)))
		dst = append(dst, key...)
	}
	for _, s := range t.Segments {
		dst = le.AppendUint32(dst, uint32(s.Segment))
		dst = le.AppendUint32(dst, s.Documents)
		dst = le.AppendUint64(dst, s.Bytes)
	}
	return dst
}

// decodeTable reads a payload; the result shares nothing with b.
func decodeTable(b []byte) (*Table, error) {
	if len(b) < tableFixedBytes {
		return nil, fmt.Errorf("%d bytes, at least %d are needed", len(b), tableFixedBytes)
	}
	t := &Table{Number: le.Uint64(b), KVStore: le.Uint16(b[8:]), Level: b[10], Tier: b[11], Run: le.Uint64(b[12:]),
		LowestSeqno: entry.Seqno(le.Uint64(b[20:])), HighestSeqno: entry.Seqno(le.Uint64(b[28:])),
		FileBytes: int64(le.Uint64(b[36:])), Entries: le.Uint64(b[44:]), Tombstones: le.Uint64(b[52:]),
		KeyBytes: le.Uint64(b[60:]), ValueBytes: le.Uint64(b[68:])}
	b = b[tableFixedBytes:]
	for _, key := range []*[]byte{&t.Smallest, &t.Largest} {
		length, n := binary.Uvarint(b)
		if n <= 0 || length > keyBytesMax || length > uint64(len(b)-n) {
			return nil, fmt.Errorf("table %06d: key runs past the field", t.Number)
		}
		*key = bytes.Clone(b[n:][:length])
		b = b[n+int(length):]
	}
	if len(b)%segmentUseBytes != 0 {
		return nil, fmt.Errorf("table %06d: %d bytes of segments", t.Number, len(b))
	}
	if len(b) > 0 {
		t.Segments = make([]SegmentUse, 0, len(b)/segmentUseBytes)
	}
	for ; len(b) > 0; b = b[segmentUseBytes:] {
		t.Segments = append(t.Segments, SegmentUse{
			Segment: entry.SegmentID(le.Uint32(b)), Documents: le.Uint32(b[4:]), Bytes: le.Uint64(b[8:]),
		})
	}
	return t, nil
}

// check refuses a table that is impossible in itself.
func (t *Table) check() error {
	switch {
	case t.Number == 0:
		return errors.New("table with number 0")
	case t.Level > 0 && (t.Run != 0 || t.Tier != 0):
		return fmt.Errorf("table %06d: run %d, tier %d in sorted level %d", t.Number, t.Run, t.Tier, t.Level)
	case t.LowestSeqno == 0 || t.LowestSeqno > t.HighestSeqno || t.HighestSeqno > entry.MaxSeqno:
		return fmt.Errorf("table %06d: seqnos %d to %d", t.Number, t.LowestSeqno, t.HighestSeqno)
	case t.FileBytes <= 0:
		return fmt.Errorf("table %06d: %d bytes", t.Number, t.FileBytes)
	case t.Entries == 0 || t.Tombstones > t.Entries:
		return fmt.Errorf("table %06d: %d tombstones of %d entries", t.Number, t.Tombstones, t.Entries)
	case len(t.Smallest) <= entry.VBucketBytes || len(t.Largest) <= entry.VBucketBytes ||
		len(t.Smallest) > keyBytesMax || len(t.Largest) > keyBytesMax || bytes.Compare(t.Smallest, t.Largest) > 0:
		return fmt.Errorf("table %06d: key range %q to %q", t.Number, t.Smallest, t.Largest)
	}
	for i, s := range t.Segments {
		if s.Segment == 0 || s.Documents == 0 || i > 0 && t.Segments[i-1].Segment >= s.Segment {
			return fmt.Errorf("table %06d: segments are not ascending, or hold no document", t.Number)
		}
	}
	return nil
}

// compareTables is the order of State.Tables.
func compareTables(a, b *Table) int {
	return cmp.Or(cmp.Compare(a.KVStore, b.KVStore), cmp.Compare(a.Level, b.Level),
		bytes.Compare(a.Smallest, b.Smallest), cmp.Compare(a.Number, b.Number))
}

// LevelTables returns the tables of a level of a kvstore by ascending smallest
// key: a part of st.Tables, not to be written.
func (st *State) LevelTables(kvstore uint16, level uint8) []*Table {
	at := func(kvstore uint16, level int) int {
		return sort.Search(len(st.Tables), func(i int) bool {
			t := st.Tables[i]
			return t.KVStore > kvstore || t.KVStore == kvstore && int(t.Level) >= level
		})
	}
	return st.Tables[at(kvstore, int(level)):at(kvstore, int(level)+1)]
}

// Flushed says that every version of a kvstore up to Seqno is in tables, or was
// dropped: replay skips it (R3).
type Flushed struct {
	KVStore uint16
	Seqno   entry.Seqno
}

// FlushedSeqno returns the seqno up to which the kvstore is flushed, 0 when it
// never was.
func (st *State) FlushedSeqno(kvstore uint16) entry.Seqno {
	i, ok := slices.BinarySearchFunc(st.Flushed, kvstore, compareFlushed)
	if !ok {
		return 0
	}
	return st.Flushed[i].Seqno
}

// SeqnoFloor is the lowest seqno that the next write may get by what the
// manifest knows: the log that held flushed seqnos may be gone.
func (st *State) SeqnoFloor() entry.Seqno {
	floor := max(st.NextSeqno, st.ReplayFrom.Seqno)
	for _, f := range st.Flushed {
		floor = max(floor, f.Seqno+1)
	}
	return floor
}

func compareFlushed(f Flushed, kvstore uint16) int { return cmp.Compare(f.KVStore, kvstore) }

// applyTables takes over what e says about tables. Drops come first, so that one
// edit can move a table to another level.
func (st *State) applyTables(e *Edit) error {
	if len(e.DropTables)+len(e.AddTables) == 0 {
		return nil
	}
	dropped := make([]*Table, 0, len(e.DropTables))
	for _, n := range slices.Sorted(slices.Values(e.DropTables)) {
		if len(dropped) > 0 && dropped[len(dropped)-1].Number == n {
			return fmt.Errorf("table %06d dropped twice", n)
		}
		t := st.table(n)
		if t == nil {
			return fmt.Errorf("table %06d dropped, but it is not there", n)
		}
		dropped = append(dropped, t)
	}
	added := slices.Clone(e.AddTables)
	slices.SortFunc(added, compareNumbers)
	for i, t := range added {
		_, again := slices.BinarySearchFunc(dropped, t, compareNumbers)
		if i > 0 && added[i-1].Number == t.Number || !again && st.table(t.Number) != nil {
			return fmt.Errorf("table %06d added twice", t.Number)
		}
		st.NextFileNumber = max(st.NextFileNumber, t.Number+1)
	}
	st.byNumber = exchange(st.byNumber, dropped, added, compareNumbers)
	slices.SortFunc(dropped, compareTables)
	slices.SortFunc(added, compareTables)
	st.Tables = exchange(st.Tables, dropped, added, compareTables)
	st.countAddressed(dropped, added)
	return nil
}

// exchange returns tables without dropped, all of which are there, and with
// added. All three are in the order of compare; tables is not written.
func exchange(tables, dropped, added []*Table, compare func(a, b *Table) int) []*Table {
	out := make([]*Table, 0, len(tables)-len(dropped)+len(added))
	for len(dropped)+len(added) > 0 {
		var next *Table
		drop := len(added) == 0 || len(dropped) > 0 && compare(dropped[0], added[0]) <= 0
		if drop {
			next, dropped = dropped[0], dropped[1:]
		} else {
			next, added = added[0], added[1:]
		}
		i, _ := slices.BinarySearchFunc(tables, next, compare)
		out = append(out, tables[:i]...)
		tables = tables[i:]
		if drop {
			tables = tables[1:]
		} else {
			out = append(out, next)
		}
	}
	return append(out, tables...)
}

// table returns the table of this number, nil when there is none.
func (st *State) table(number uint64) *Table {
	i, ok := slices.BinarySearchFunc(st.byNumber, number, func(t *Table, n uint64) int { return cmp.Compare(t.Number, n) })
	if !ok {
		return nil
	}
	return st.byNumber[i]
}

func compareNumbers(a, b *Table) int { return cmp.Compare(a.Number, b.Number) }

// applyFlushed takes over flushed positions.
func (st *State) applyFlushed(e *Edit) error {
	if len(e.Flushed) > 0 {
		st.Flushed = slices.Clone(st.Flushed)
	}
	for _, f := range e.Flushed {
		i, ok := slices.BinarySearchFunc(st.Flushed, f.KVStore, compareFlushed)
		if !ok {
			st.Flushed = slices.Insert(st.Flushed, i, f)
		} else if f.Seqno < st.Flushed[i].Seqno {
			return fmt.Errorf("kvstore %d: flushed position falls from %d to %d", f.KVStore, st.Flushed[i].Seqno, f.Seqno)
		}
		st.Flushed[i] = f
	}
	return nil
}

func (st *State) checkFlushed() error {
	for i, f := range st.Flushed {
		if f.Seqno == 0 || f.Seqno > entry.MaxSeqno || i > 0 && st.Flushed[i-1].KVStore >= f.KVStore {
			return fmt.Errorf("kvstore %d: flushed position %d out of range or order", f.KVStore, f.Seqno)
		}
	}
	return nil
}

// checkTables checks all tables, and what is derived from them.
func (st *State) checkTables() error {
	for i, t := range st.Tables {
		if i > 0 && compareTables(st.Tables[i-1], t) >= 0 {
			return fmt.Errorf("table %06d out of order", t.Number)
		}
		if err := st.checkTable(t); err != nil {
			return err
		}
	}
	if err := st.checkOverlap(); err != nil {
		return err
	}
	return st.checkDerived()
}

// checkAdded is checkTables for tables that were added to a valid state.
func (st *State) checkAdded(tables []*Table) error {
	for _, t := range tables {
		if err := st.checkTable(t); err != nil {
			return err
		}
		if err := st.checkNeighbours(t); err != nil {
			return err
		}
	}
	return nil
}

// checkTable checks a table in itself, against the flushed position of its
// kvstore, and that every segment it addresses is registered or forwarded (R8).
func (st *State) checkTable(t *Table) error {
	if err := t.check(); err != nil {
		return err
	}
	switch {
	case t.Number >= st.NextFileNumber:
		return fmt.Errorf("table %06d: next file number is only %d", t.Number, st.NextFileNumber)
	case t.HighestSeqno > st.FlushedSeqno(t.KVStore):
		// Replay would add its newest versions a second time.
		return fmt.Errorf("table %06d: seqnos up to %d, but kvstore %d is flushed only up to %d",
			t.Number, t.HighestSeqno, t.KVStore, st.FlushedSeqno(t.KVStore))
	}
	for _, s := range t.Segments {
		if !st.resolves(s.Segment) {
			return lostError(t, s.Segment)
		}
	}
	return nil
}

// checkOverlap checks M8 and R14: tables of a run share no key, and runs of
// level 0 that share keys have disjoint seqno intervals. One sweep in the order
// of keys: open holds the tables that reach the current one.
func (st *State) checkOverlap() error {
	var open []*Table
	for i, t := range st.Tables {
		if i > 0 && (st.Tables[i-1].KVStore != t.KVStore || st.Tables[i-1].Level != t.Level) {
			open = open[:0]
		}
		open = slices.DeleteFunc(open, func(o *Table) bool { return bytes.Compare(o.Largest, t.Smallest) < 0 })
		for _, o := range open {
			if err := checkPair(o, t); err != nil {
				return err
			}
		}
		open = append(open, t)
	}
	return nil
}

// checkNeighbours is checkOverlap for one table of a state whose others are
// valid, or are given to it too. In a sorted level, what touches no neighbour
// touches nothing; in level 0 it is compared with all that begin before it ends.
func (st *State) checkNeighbours(t *Table) error {
	tables := st.LevelTables(t.KVStore, t.Level)
	at, _ := slices.BinarySearchFunc(tables, t, compareTables)
	from := 0
	if t.Level > 0 {
		from = max(at-1, 0)
	}
	for _, o := range tables[from:at] {
		if bytes.Compare(o.Largest, t.Smallest) >= 0 {
			if err := checkPair(o, t); err != nil {
				return err
			}
		}
	}
	for _, o := range tables[at+1:] {
		if bytes.Compare(o.Smallest, t.Largest) > 0 {
			return nil
		}
		if err := checkPair(t, o); err != nil {
			return err
		}
	}
	return nil
}

// checkPair checks two tables of a level of a kvstore that share keys, o before t.
func checkPair(o, t *Table) error {
	switch {
	case o.Run == t.Run:
		return fmt.Errorf("tables %06d and %06d of kvstore %d, level %d, run %d overlap from %q on",
			o.Number, t.Number, t.KVStore, t.Level, t.Run, t.Smallest)
	case o.LowestSeqno <= t.HighestSeqno && t.LowestSeqno <= o.HighestSeqno:
		return fmt.Errorf("tables %06d and %06d of kvstore %d share keys from %q on and seqnos: %d to %d and %d to %d",
			o.Number, t.Number, t.KVStore, t.Smallest, o.LowestSeqno, o.HighestSeqno, t.LowestSeqno, t.HighestSeqno)
	}
	return nil
}

// checkLost checks that no table addresses one of these segments, unless it is
// registered or forwarded.
func (st *State) checkLost(ids []entry.SegmentID) error {
	for _, id := range ids {
		if st.TablesOf(id) == 0 || st.resolves(id) {
			continue
		}
		for _, t := range st.Tables {
			if _, ok := slices.BinarySearchFunc(t.Segments, id, func(s SegmentUse, id entry.SegmentID) int { return cmp.Compare(s.Segment, id) }); ok {
				return lostError(t, id)
			}
		}
	}
	return nil
}

func (st *State) resolves(id entry.SegmentID) bool {
	if _, ok := st.find(id); ok {
		return true
	}
	_, ok := st.findForward(id)
	return ok
}

func lostError(t *Table, id entry.SegmentID) error {
	return fmt.Errorf("table %06d addresses segment %06d, which is neither registered nor forwarded", t.Number, id)
}

// CheckTables asks size for the length of every table's file (M8): it must be
// exactly what was recorded. name gives the name that errors show. A file that
// is missing or has another length is a *CorruptError; other errors of size are
// returned wrapped.
func CheckTables(st State, name func(*Table) string, size func(*Table) (int64, error)) error {
	for _, t := range st.Tables {
		n, err := size(t)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return corruptf(name(t), 0, "named by %s, but missing", Name(st.Manifest))
		case err != nil:
			return fmt.Errorf("size of %s: %w", name(t), err)
		case n != t.FileBytes:
			return corruptf(name(t), min(n, t.FileBytes), "%d bytes long, %s recorded %d", n, Name(st.Manifest), t.FileBytes)
		}
	}
	return nil
}
