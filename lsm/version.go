package lsm

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/mutant"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// TablesDir is the directory of the tables below a store's directory. All
// kvstores share it, so that tables flushed together share one sync of it.
const TablesDir = "idx"

// version is the immutable set of tables and segments that the manifest names
// at one moment. Views count on it, and it counts on its files: a table that
// was dropped is removed when the last version with it goes.
type version struct {
	refs atomic.Int64
	db   *DB
	// runs of each kvstore, newest first: what a newer run has of a key is
	// newer than what an older one has.
	runs [kvstoresMax][]*run
	// segments hold the documents that tables and memtables address.
	segments map[entry.SegmentID]*wal.Segment
	files    []*tableFile // of all runs
	byNumber map[uint64]*tableFile
	// state is the manifest's.
	state *manifest.State
}

// run is a list of tables that share no key, in the order of keys.
type run struct {
	files []*tableFile
}

// tableFile is one table of the key index, in the place that an edit gave it.
type tableFile struct {
	meta *manifest.Table
	*tableHandle
}

// tableHandle is what a table has wherever it is moved to.
type tableHandle struct {
	handle  *sstable.Handle
	probe   atomic.Pointer[probeBytes]   // in memory for the liveness probe, or nil
	known   atomic.Pointer[tableGarbage] // nil until the table was opened for it
	refs    atomic.Int32                 // versions that name it
	dropped atomic.Bool                  // by an edit of the manifest
}

// find returns the table of the run that may hold an internal key, or nil.
func (r *run) find(key []byte) *tableFile {
	fs := r.files
	if len(fs) > 1 {
		i := r.at(key)
		if i == len(fs) {
			return nil
		}
		fs = fs[i:]
	}
	if f := fs[0]; bytes.Compare(f.meta.Smallest, key) <= 0 && bytes.Compare(key, f.meta.Largest) <= 0 {
		return f
	}
	return nil
}

// between returns the tables that may have internal keys from lower on, below
// upper; nil leaves a side open.
func (r *run) between(lower, upper []byte) []*tableFile {
	fs := r.files[r.at(lower):]
	if upper != nil {
		fs = fs[:sort.Search(len(fs), func(i int) bool { return bytes.Compare(fs[i].meta.Smallest, upper) >= 0 })]
	}
	return fs
}

// files are all tables of the store by number. It is guarded by edits.mu.
type tableFiles map[uint64]*tableFile

// newVersion makes the version of a state of the manifest, with one reference.
// edits.mu is held, or Open runs. prev, if given, shares the runs of kvstores
// that are not in changed.
func (db *DB) newVersion(st *manifest.State, prev *version, changed func(kvstore int) bool) *version {
	v := &version{db: db, segments: make(map[entry.SegmentID]*wal.Segment, len(st.Segments)), state: st}
	v.refs.Store(1)
	for k := range db.kvstores {
		if prev != nil && !changed(k) {
			v.runs[k] = prev.runs[k]
		} else {
			v.runs[k] = db.runsOf(st, k)
		}
		for _, r := range v.runs[k] {
			v.files = append(v.files, r.files...)
		}
	}
	v.byNumber = make(map[uint64]*tableFile, len(v.files))
	for _, f := range v.files {
		f.refs.Add(1)
		v.byNumber[f.meta.Number] = f
	}
	bytes := int64(0)
	for _, f := range v.files {
		bytes += f.meta.FileBytes
	}
	for _, s := range st.Segments {
		if seg := db.log.Acquire(s.ID); seg != nil {
			v.segments[s.ID] = seg
			bytes += max(int64(s.End), s.FileBytes)
		}
	}
	db.filesBytes.Store(bytes)
	runs := 0
	for k := range db.kvstores {
		runs = max(runs, len(v.runs[k]))
	}
	db.quota.runs.Store(int64(runs))
	return v
}

// runsOf lays the tables of a kvstore out in as few runs as a read may have to
// look into: of any two tables that share keys the newer one is in an earlier
// run. Tables of level 0 that share keys have disjoint seqnos (R14), and are
// newer than those of the levels below, each of which is a run by itself.
func (db *DB) runsOf(st *manifest.State, kvstore int) []*run {
	tables := slices.Clone(st.LevelTables(uint16(kvstore), 0))
	slices.SortFunc(tables, func(a, b *manifest.Table) int {
		if mutant.OldestRunFirst {
			a, b = b, a
		}
		return cmp.Compare(b.HighestSeqno, a.HighestSeqno)
	})
	var runs []*run
	for _, t := range tables {
		i := len(runs)
		for i > 0 && !runs[i-1].overlaps(t) {
			i--
		}
		if i == len(runs) {
			runs = append(runs, &run{})
		}
		runs[i].insert(db.files[t.Number])
	}
	for level := 1; level <= levelsMax; level++ {
		if below := st.LevelTables(uint16(kvstore), uint8(level)); len(below) > 0 {
			r := &run{}
			for _, t := range below {
				r.files = append(r.files, db.files[t.Number])
			}
			runs = append(runs, r)
		}
	}
	return runs
}

// levelsMax is the deepest sorted level.
const levelsMax = 7

// at returns the place of the first table that ends at or behind key.
func (r *run) at(key []byte) int {
	return sort.Search(len(r.files), func(i int) bool { return bytes.Compare(r.files[i].meta.Largest, key) >= 0 })
}

func (r *run) overlaps(t *manifest.Table) bool {
	i := r.at(t.Smallest)
	return i < len(r.files) && bytes.Compare(r.files[i].meta.Smallest, t.Largest) <= 0
}

func (r *run) insert(f *tableFile) { r.files = slices.Insert(r.files, r.at(f.meta.Smallest), f) }

// tableGarbage is what the properties of a table say about garbage in it, and the
// manifest does not.
type tableGarbage struct {
	expiry     []sstable.ExpiryBucket // when entries expire
	superseded uint64                 // entries behind a newer one of their key
}

// garbage returns that of the table, which is opened the first time. Nil when it
// cannot be read.
func (f *tableFile) garbage() *tableGarbage {
	if x := f.known.Load(); x != nil {
		return x
	}
	r, err := f.handle.Acquire()
	if err != nil {
		return nil
	}
	p := r.Properties()
	x := &tableGarbage{expiry: slices.Clone(p.Expiry), superseded: p.Superseded}
	f.handle.Release()
	f.known.Store(x)
	return x
}

// garbageOf returns what is known about a table without opening it, or with look.
func (v *version) garbageOf(table uint64, look bool) *tableGarbage {
	f := v.byNumber[table]
	if f == nil || !look && f.known.Load() == nil {
		return nil
	}
	return f.garbage()
}

// expiredIn returns how many entries of a table have expired, as far as that is
// known without opening it, or with look.
func (v *version) expiredIn(table uint64, now uint32, look bool) (n uint64) {
	if g := v.garbageOf(table, look); g != nil {
		for _, x := range g.expiry {
			if x.NotAfter <= now {
				n += uint64(x.Entries)
			}
		}
	}
	return n
}

// supersededIn returns how many entries of a table follow a newer one of their key,
// in the same way.
func (v *version) supersededIn(table uint64, look bool) uint64 {
	if g := v.garbageOf(table, look); g != nil {
		return g.superseded
	}
	return 0
}

// addFile makes a table known, or gives a known one another place. edits.mu is
// held, or Open runs.
func (db *DB) addFile(t *manifest.Table) {
	f := db.files[t.Number]
	if f == nil {
		f = &tableFile{tableHandle: &tableHandle{handle: db.readers.Add(t.Number)}}
	}
	db.files[t.Number] = &tableFile{meta: t, tableHandle: f.tableHandle}
}

// dropFiles forgets tables that an edit dropped and did not add again; they go
// when the last version with them does. edits.mu is held.
func (db *DB) dropFiles(e *manifest.Edit) {
	moved := map[uint64]bool{}
	for _, t := range e.AddTables {
		moved[t.Number] = true
	}
	for _, n := range e.DropTables {
		if f := db.files[n]; f != nil && !moved[n] {
			f.dropped.Store(true)
			delete(db.files, n)
		}
	}
}

func (v *version) retain() *version {
	v.refs.Add(1)
	return v
}

func (v *version) release() {
	if v == nil || v.refs.Add(-1) != 0 {
		return
	}
	for _, f := range v.files {
		if f.refs.Add(-1) == 0 && f.dropped.Load() {
			v.db.obsolete.add(v.db, f)
		}
	}
	for _, s := range v.segments {
		s.Release()
	}
}

// locate returns the segment that holds the document of seqno, and its address
// there: that of a when nothing moved it (design R8). An address that leads
// nowhere is damage, never a miss.
func (v *version) locate(a entry.Address, seqno Seqno) (*wal.Segment, entry.Address, error) {
	if s := v.segments[a.Segment]; s != nil {
		return s, a, nil
	}
	s, b, err := v.find(a, seqno)
	if err != nil {
		return nil, a, err
	}
	if s == nil {
		return nil, a, v.db.lostAddress(a)
	}
	v.db.counts.movedReads.Add(1)
	return s, b, nil
}

// find looks for a document whose segment was collected; nil when no output has
// it.
func (v *version) find(a entry.Address, seqno Seqno) (*wal.Segment, entry.Address, error) {
	var ids [8]entry.SegmentID
	var few [8]*wal.Segment
	among := few[:0] // rarely more: outputs whose seqnos overlap
	for _, id := range v.state.Resolve(ids[:0], a.Segment, seqno) {
		if s := v.segments[id]; s != nil {
			among = append(among, s)
		}
	}
	return wal.FindMoved(v.db.sched.ctx, among, a, seqno)
}

// obsolete are dropped tables that no version names. Their files are removed by
// the scheduler, because the last reference may be any reader's.
type obsolete struct {
	mu    sync.Mutex // a leaf
	files []*tableFile
	wake  func()
	ended bool // the store is closed: readers that end now give memory back, no more
}

func (o *obsolete) add(db *DB, f *tableFile) {
	o.mu.Lock()
	ended := o.ended
	if !ended {
		o.files = append(o.files, f)
	}
	o.mu.Unlock()
	if ended {
		// The directory may belong to another process by now: the next open
		// removes the file.
		f.freeProbe(db)
		return
	}
	o.wake()
}

// end gives back what is left; see add.
func (o *obsolete) end() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
}

func (o *obsolete) take() []*tableFile {
	o.mu.Lock()
	defer o.mu.Unlock()
	files := o.files
	o.files = nil
	return files
}

// tableName is the path of a table's file.
func (db *DB) tableName(number uint64) string {
	return path.Join(db.dir, TablesDir, sstable.Name(number))
}

// removeObsolete removes the files of tables that nobody needs. A failure costs
// space until the next open, not data.
func (db *DB) removeObsolete() {
	for _, f := range db.obsolete.take() {
		f.freeProbe(db)
		db.blocks.Drop(f.meta.Number)
		if err := f.handle.Close(); err != nil {
			db.o.Logf("close table %s: %v", db.tableName(f.meta.Number), err)
		}
		if err := db.fs.Remove(db.tableName(f.meta.Number)); err != nil {
			db.o.Logf("remove table: %v", err)
		}
	}
}

func (f *tableFile) String() string {
	return fmt.Sprintf("table %06d of kvstore %d", f.meta.Number, f.meta.KVStore)
}
