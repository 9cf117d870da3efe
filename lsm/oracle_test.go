package lsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// What must hold in any store that nobody writes to at the moment, whatever
// happened to it before.

// sameScan compares an iterator with what point reads found.
func sameScan(db *DB, want map[string]Item) (err error) {
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		got, err := it.Item()
		if err != nil {
			return fmt.Errorf("iterator at %s: %w", it.Key(), err)
		}
		w, known := want[string(it.Key())]
		switch {
		case !known:
			return fmt.Errorf("an iterator finds %s, Get does not", it.Key())
		case !bytes.Equal(got.Value, w.Value) || got.Seqno != w.Seqno || got.Flags != w.Flags:
			return fmt.Errorf("key %s: an iterator finds %s at seqno %d, Get finds %s at %d",
				it.Key(), short(got.Value), got.Seqno, short(w.Value), w.Seqno)
		}
		n++
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("iterator: %w", err)
	}
	if n != len(want) {
		return fmt.Errorf("an iterator finds %d documents, Get finds %d", n, len(want))
	}
	return nil
}

// eachVersion calls fn with every version that a view holds, in memory and in
// tables. The version is valid during the call.
func eachVersion(db *DB, v *view, fn func(v *entry.Version) error) error {
	walk := func(it entry.Iterator) error {
		for ok := it.First(); ok; ok = it.Next() {
			if err := fn(it.Version()); err != nil {
				return errors.Join(err, it.Close())
			}
		}
		return errors.Join(it.Error(), it.Close())
	}
	for k := range db.kvstores {
		for _, t := range v.tables[k] {
			if err := walk(t.NewIter(nil, nil)); err != nil {
				return err
			}
		}
		for _, r := range v.version.runs[k] {
			if err := walk(r.newIter(sstable.IterOptions{})); err != nil {
				return db.tableError(err)
			}
		}
	}
	return nil
}

// checkVersions walks every version that the store holds: each must be one that
// a client asked for and that is settled, tombstones included.
func (h *history) checkVersions(db *DB) error {
	type version struct {
		value string
		kind  entry.Kind
	}
	known := map[string]map[version]Seqno{}
	expiring := map[string]bool{}
	for _, c := range h.clients {
		for _, o := range c.ops {
			for i, d := range o.docs {
				if known[d.key] == nil {
					known[d.key] = map[version]Seqno{}
				}
				v := version{string(d.value), entry.KindSet}
				if d.value == nil {
					v = version{"", entry.KindDelete}
				}
				seqno := o.first
				if seqno != 0 {
					seqno += Seqno(i)
				}
				if _, twice := known[d.key][v]; twice {
					seqno = 0 // tombstones look alike
				}
				known[d.key][v] = seqno
				expiring[d.key] = expiring[d.key] || d.expiry != 0
			}
		}
	}
	pinned := db.pin()
	defer pinned.release()
	at := db.readSeqno(0) // a running store also holds what is not durable
	cleared := pinned.clearFor(at)
	return eachVersion(db, pinned, func(v *entry.Version) error {
		if v.Seqno <= cleared || v.Seqno > at {
			return nil
		}
		_, key := entry.SplitKey(v.Key)
		is := version{kind: v.Kind}
		if v.Kind != entry.KindDelete {
			is.value = string(v.Value.Bytes)
			if !v.Value.HasBytes {
				return nil // its value was compared by Get, unless it is an older version
			}
		} else if expiring[string(key)] {
			return nil // a flush may have buried it
		}
		seqno, ok := known[string(key)][is]
		if !ok || seqno != 0 && seqno != v.Seqno {
			return fmt.Errorf("the store holds key %s, seqno %d, kind %d, value %s, which nobody sent", key, v.Seqno, v.Kind, short([]byte(is.value)))
		}
		return nil
	})
}

// checkStore is everything else that must hold in an open store.
func checkStore(db *DB) error {
	if err := checkTableFiles(db); err != nil {
		return err
	}
	return errors.Join(checkAges(db), checkDead(db), checkCollected(db))
}

// checkAges: what memtables hold of a kvstore is newer than what was flushed, and
// of each key a run that is read earlier has newer versions than all later ones
// (design R3, R14). The seqnos of whole tables say that within level 0 alone,
// where the manifest checks it: a merge above the last level takes neighbours in
// age, some of which may be older than what the last level has of other keys.
//
//	level 0   [a  9..10          z]    made of   [a  9..10  z]
//	                                             [n 1..4 z]
//	level 1   [a 5..8 m]
func checkAges(db *DB) error {
	db.edits.mu.Lock() // the view is that of the state
	st := db.edits.log.State()
	pinned := db.pin()
	db.edits.mu.Unlock()
	defer pinned.release()
	for k := range db.kvstores {
		flushed := st.FlushedSeqno(uint16(k))
		for _, t := range pinned.tables[k] {
			it := t.NewIter(nil, nil)
			for ok := it.First(); ok; ok = it.Next() {
				if q := it.Version().Seqno; q <= flushed {
					return fmt.Errorf("kvstore %d was flushed up to seqno %d, and has %d in memory", k, flushed, q)
				}
			}
			if err := errors.Join(it.Error(), it.Close()); err != nil {
				return err
			}
		}
		oldest := map[string]Seqno{} // of each key in the runs so far
		for i, r := range pinned.version.runs[k] {
			for j, f := range r.files {
				if j > 0 && bytes.Compare(r.files[j-1].meta.Largest, f.meta.Smallest) >= 0 {
					return fmt.Errorf("kvstore %d: tables %06d and %06d of run %d share keys", k, r.files[j-1].meta.Number, f.meta.Number, i)
				}
				if f.meta.HighestSeqno > flushed {
					return fmt.Errorf("kvstore %d was flushed up to seqno %d, and table %06d has %d", k, flushed, f.meta.Number, f.meta.HighestSeqno)
				}
			}
			here := map[string]Seqno{}
			it := r.newIter(sstable.IterOptions{})
			var err error
			for ok := it.First(); ok && err == nil; ok = it.Next() {
				v := it.Version()
				if above, met := oldest[string(v.Key)]; met && v.Seqno >= above {
					err = fmt.Errorf("kvstore %d: key %q has seqno %d in run %d, and %d in one that is read before", k, v.Key, v.Seqno, i, above)
				}
				here[string(v.Key)] = v.Seqno // the last one is the oldest
			}
			if err = errors.Join(err, it.Error(), it.Close()); err != nil {
				return err
			}
			maps.Copy(oldest, here)
		}
	}
	return nil
}

// checkTableFiles: the directory of tables has what the manifest names, and
// nothing else once dropped tables are gone.
func checkTableFiles(db *DB) error {
	for start := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		db.edits.mu.Lock() // no edit is between its files and its record
		st := db.edits.log.State()
		names, err := db.fs.List(db.dir + "/" + TablesDir)
		db.edits.mu.Unlock()
		if err != nil {
			return err
		}
		var extra []string
		for _, n := range names {
			number, ok := sstable.ParseName(n)
			if !ok || !slices.ContainsFunc(st.Tables, func(t *manifest.Table) bool { return t.Number == number }) {
				extra = append(extra, n)
			}
		}
		if missing := len(st.Tables) - (len(names) - len(extra)); missing > 0 {
			return fmt.Errorf("%d of %d tables have no file", missing, len(st.Tables))
		}
		if len(extra) == 0 {
			return nil
		}
		if time.Since(start) > 10*time.Second {
			return fmt.Errorf("files %v are named by nothing", extra)
		}
	}
}

// checkDead: a seqno that counts as dead is one of its segment's documents, and
// not the newest version of any key (design R6).
func checkDead(db *DB) error {
	st := db.edits.log.State()
	if len(st.Dead) == 0 {
		return nil
	}
	pinned := db.pin()
	defer pinned.release()
	at := db.readSeqno(0)
	type place struct {
		seqno   Seqno
		segment entry.SegmentID // 0: no document in the log
	}
	newest := map[string]place{}
	if err := eachVersion(db, pinned, func(v *entry.Version) error {
		if v.Seqno > at || v.Seqno <= newest[string(v.Key)].seqno {
			return nil
		}
		p := place{seqno: v.Seqno}
		if v.Kind == entry.KindSet && (v.Meta.Expiry == 0 || !db.expired(v.Meta.Expiry)) {
			p.segment = v.Value.Address.Segment
		}
		newest[string(v.Key)] = p
		return nil
	}); err != nil {
		return err
	}
	cleared := pinned.clearFor(at)
	for key, p := range newest {
		if p.segment != 0 && p.seqno > cleared && st.DeadSet(p.segment).Contains(p.seqno) {
			return fmt.Errorf("seqno %d counts as dead in segment %06d, but it is what key %q holds", p.seqno, p.segment, key)
		}
	}
	for _, d := range st.Dead {
		index, err := seqnoIndex(db, d.Segment())
		if err != nil {
			return fmt.Errorf("dead seqnos of segment %06d: %w", d.Segment(), err)
		}
		if index == nil {
			continue
		}
		for _, q := range d.AppendSeqnos(nil) {
			if _, ok := index.Lookup(q); !ok {
				return fmt.Errorf("seqno %d counts as dead in segment %06d, which has no such document", q, d.Segment())
			}
		}
	}
	return nil
}

// seqnoIndex returns what a segment holds, nil when it was dropped meanwhile. A
// promise may be written to it while it is read: that is read again.
func seqnoIndex(db *DB, id entry.SegmentID) (index *wal.SeqnoIndex, err error) {
	for range 5 {
		st := db.edits.log.State()
		s, ok := st.Segment(id)
		if !ok {
			return nil, nil
		}
		if index, err = wal.ReadSeqnoIndex(context.Background(), wal.ScanOptions{
			FS: db.fs, Dir: db.dir, Secret: db.secret, StoreID: db.format.StoreID, Direct: !db.o.BufferedIO,
		}, id, wal.SegmentKind(s.Kind), s.End); err == nil {
			return index, nil
		}
	}
	return nil, err
}

// interlude is something that happens inside a call of the store, once.
type interlude struct {
	kind    vfs.OpKind
	pattern string
	caller  string // a function that must lead to it, "" for any
	do      func() error
}
