package lsm

import (
	"bytes"
	"cmp"
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
}

// run is a list of tables that share no key, in the order of keys.
type run struct {
	files []*tableFile
}

// tableFile is one table of the key index.
type tableFile struct {
	meta    *manifest.Table
	handle  *sstable.Handle
	refs    atomic.Int32 // versions that name it
	dropped atomic.Bool  // by an edit of the manifest
}

// find returns the table of the run that may hold an internal key, or nil.
func (r *run) find(key []byte) *tableFile {
	fs := r.files
	if len(fs) > 1 {
		i := sort.Search(len(fs), func(i int) bool { return bytes.Compare(fs[i].meta.Largest, key) >= 0 })
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
	fs := r.files
	i := sort.Search(len(fs), func(i int) bool { return bytes.Compare(fs[i].meta.Largest, lower) >= 0 })
	fs = fs[i:]
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
	v := &version{db: db, segments: make(map[entry.SegmentID]*wal.Segment, len(st.Segments))}
	v.refs.Store(1)
	for k := range db.kvstores {
		if prev != nil && !changed(k) {
			v.runs[k] = prev.runs[k]
		} else {
			v.runs[k] = db.runsOf(st.LevelTables(uint16(k), 0))
		}
		for _, r := range v.runs[k] {
			v.files = append(v.files, r.files...)
		}
	}
	for _, f := range v.files {
		f.refs.Add(1)
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
	return v
}

// runsOf sorts the tables of level 0 of a kvstore into runs.
func (db *DB) runsOf(tables []*manifest.Table) []*run {
	byRun := map[uint64]*run{}
	var runs []*run
	for _, t := range tables { // in the order of keys
		r := byRun[t.Run]
		if r == nil {
			r = &run{}
			byRun[t.Run] = r
			runs = append(runs, r)
		}
		r.files = append(r.files, db.files[t.Number])
	}
	// Runs that share keys have disjoint seqnos (R14).
	slices.SortFunc(runs, func(a, b *run) int {
		if mutant.OldestRunFirst {
			a, b = b, a
		}
		return cmp.Compare(b.files[0].meta.HighestSeqno, a.files[0].meta.HighestSeqno)
	})
	return runs
}

// addFile makes a table known. edits.mu is held, or Open runs.
func (db *DB) addFile(t *manifest.Table) {
	db.files[t.Number] = &tableFile{meta: t, handle: db.readers.Add(t.Number)}
}

// dropFiles forgets tables that an edit dropped; they go when the last version
// with them does. edits.mu is held.
func (db *DB) dropFiles(numbers []uint64) {
	for _, n := range numbers {
		if f := db.files[n]; f != nil {
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
			v.db.obsolete.add(f)
		}
	}
	for _, s := range v.segments {
		s.Release()
	}
}

// obsolete are dropped tables that no version names. Their files are removed by
// the scheduler, because the last reference may be any reader's.
type obsolete struct {
	mu    sync.Mutex // a leaf
	files []*tableFile
	wake  func()
}

func (o *obsolete) add(f *tableFile) {
	o.mu.Lock()
	o.files = append(o.files, f)
	o.mu.Unlock()
	o.wake()
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
		if err := f.handle.Close(); err != nil {
			db.o.Logf("close table %s: %v", db.tableName(f.meta.Number), err)
		}
		if err := db.fs.Remove(db.tableName(f.meta.Number)); err != nil {
			db.o.Logf("remove table: %v", err)
		}
	}
}
