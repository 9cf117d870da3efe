package lsm

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// Item is one document as readers see it.
type Item struct {
	// Key and Value: see the method that returned the item for how long they
	// are valid. They must not be written to.
	Key, Value []byte
	// Flags and Datatype are carried, not interpreted.
	Flags uint32
	// Expiry is absolute Unix seconds, 0 = never.
	Expiry   uint32
	Datatype uint8
	// CAS is the explicit CAS of the document, or its seqno.
	CAS   uint64
	Seqno Seqno
}

// vbucket is the protocol's partition of a key (docs/glossary.md).
func (db *DB) vbucket(key []byte) uint16 {
	return uint16(((crcOf(key) >> 16) & 0x7fff) % uint32(db.vbuckets))
}

// crcOf is the CRC-32 of key. Below 16 bytes the library takes the same loop
// over the same table, behind two calls and a check that cost as much as it.
func crcOf(key []byte) uint32 {
	if len(key) >= 16 {
		return crc32.ChecksumIEEE(key)
	}
	crc := ^uint32(0)
	for _, b := range key {
		crc = crc32.IEEETable[byte(crc)^b] ^ crc>>8
	}
	return ^crc
}

// readSeqno returns where a plain read reads: in a durable store what is
// durable and visible, otherwise what is visible; never below after, the
// reader's own last write, which it waits for to become visible.
//
// Acknowledged writes are at most min(D, V), so reads are linearizable, nobody
// waits for the disk, and nothing ever seen can vanish.
func (db *DB) readSeqno(after Seqno) Seqno {
	v := Seqno(db.publish.visible.Load())
	if after > v {
		db.publish.wait(after)
		v = Seqno(db.publish.visible.Load())
	}
	failed := db.readOnly.Load() != nil
	if (!db.o.NonDurable || failed) && !mutant.ReadAtVisible {
		v = min(v, db.log.DurableSeqno())
	}
	if !failed {
		v = max(v, after)
	}
	return v
}

// pinAt pins a view and fixes the read seqno for it: first the view, then the
// seqno, then a check that the view is still the current one (design R18).
// Otherwise a version at or below the seqno might be in a memtable that the
// view does not name.
func (db *DB) pinAt(after Seqno) (*view, Seqno, error) {
	for {
		v := db.pin()
		if v == nil {
			return nil, 0, ErrClosed
		}
		at := db.readSeqno(after)
		if db.current.Load() == v {
			return v, at, nil
		}
		v.release()
	}
}

// Get reads the newest version of key that is durable (visible, in a store
// that is not durable). It appends the value to dst; Item.Key is the caller's
// key and Item.Value is the appended part. Errors: ErrNotFound, ErrKeySize,
// ErrClosed, or one wrapping ErrCorrupt or an I/O error.
func (db *DB) Get(dst, key []byte) (Item, error) {
	if err := checkKey(key); err != nil {
		return Item{}, err
	}
	v, at, err := db.pinAt(0)
	if err != nil {
		return Item{}, err
	}
	defer v.release()
	db.counts.gets.Add(1)
	g := get{key: key, hash: xxhash.Sum64(key), vbucket: db.vbucket(key), at: at}
	dst = db.findCached(&g, dst, true)
	if !db.findInMemory(v, &g) || !g.m.Value.HasBytes && g.m.Kind == entry.KindSet {
		// Close must not take the files away meanwhile. What is in memory is
		// pinned and needs no word that all readers change.
		if err := db.enter(); err != nil {
			return Item{}, err
		}
		defer db.leave()
	}
	return db.finishGet(v, &g, dst, true)
}

// getAt reads from a pinned view at a seqno. The caller has entered. Without
// value, one that is not in memory is not read from the log.
func (db *DB) getAt(v *view, at Seqno, dst, key []byte, value bool) (Item, error) {
	g := get{key: key, hash: xxhash.Sum64(key), vbucket: db.vbucket(key), at: at}
	dst = db.findCached(&g, dst, value)
	db.findInMemory(v, &g)
	return db.finishGet(v, &g, dst, value)
}

// get is one point read under way.
type get struct {
	key     []byte
	hash    uint64
	vbucket uint16
	at      Seqno
	found   bool
	copied  int // bytes of the value that are in dst already
	m       memtable.View
}

// findInMemory looks into the memtables, newest first, unless the document cache
// has answered.
func (db *DB) findInMemory(v *view, g *get) bool {
	if g.found {
		return true
	}
	for _, t := range v.tables[int(g.vbucket)%db.kvstores] {
		if t.Get(g.hash, g.vbucket, g.key, g.at, &g.m) {
			g.found = true
			break
		}
	}
	return g.found
}

// finishGet looks into the tables when memory had nothing, and makes the item.
// Its value is appended to dst.
func (db *DB) finishGet(v *view, g *get, dst []byte, value bool) (Item, error) {
	n := len(dst) - g.copied
	if g.found {
		if g.m.Value.HasBytes && g.copied == 0 {
			dst = append(dst, g.m.Value.Bytes...)
		}
	} else {
		var err error
		dst, g.found, err = db.findInTables(v, g.at, g.hash, g.vbucket, g.key, dst, &g.m)
		if err != nil {
			return Item{}, err
		}
		if g.found && complete(&g.m) {
			db.fill(g.hash, g.vbucket, g.key, g.at, &g.m, dst[n:])
		}
	}
	if !g.found {
		return Item{}, ErrNotFound
	}
	it, ok := db.item(&g.m, g.key, v.clearFor(g.at))
	if !ok {
		return Item{}, ErrNotFound
	}
	if !g.m.Value.HasBytes && value {
		var err error
		if dst, err = db.readDocument(v, &g.m, g.key, dst); err != nil {
			return Item{}, err
		}
		db.fill(g.hash, g.vbucket, g.key, g.at, &g.m, dst[n:])
	}
	it.Value = dst[n:]
	return it, nil
}

// item makes the reader's item of a version, without its value; ok is false
// for what a reader must not see: tombstones, expired and cleared versions.
func (db *DB) item(m *memtable.View, key []byte, cleared Seqno) (Item, bool) {
	if m.Kind == entry.KindDelete || m.Seqno <= cleared || db.expired(m.Meta.Expiry) {
		return Item{}, false
	}
	it := Item{
		Key: key, Flags: m.Meta.Flags, Expiry: m.Meta.Expiry, Datatype: m.Meta.Datatype,
		CAS: m.Meta.CAS, Seqno: m.Seqno,
	}
	if it.CAS == 0 {
		it.CAS = uint64(m.Seqno)
	}
	return it, true
}

// expired reports whether a document of this expiry is gone now.
func (db *DB) expired(expiry uint32) bool {
	return expiry != 0 && expiry <= db.expiryNow()
}

// expiryNow is the clock of expiry, in Unix seconds: what was given up once
// must not come back when the system's clock is set back (design R24).
func (db *DB) expiryNow() uint32 {
	now := db.o.Now().Unix()
	return max(uint32(min(max(now, 0), math.MaxUint32)), db.expiryClock.Load())
}

// raiseExpiryClock notes that something was given up as of t.
func (db *DB) raiseExpiryClock(t uint32) {
	for {
		old := db.expiryClock.Load()
		if t <= old || db.expiryClock.CompareAndSwap(old, t) {
			return
		}
	}
}

// readDocument appends the value of a separated document to dst.
func (db *DB) readDocument(v *view, m *memtable.View, key, dst []byte) ([]byte, error) {
	s, a, err := v.version.locate(m.Value.Address, m.Seqno)
	if err != nil {
		return dst, db.readError(err)
	}
	db.counts.documentReads.Add(1)
	x := db.scratches.take()
	defer db.scratches.put(x)
	x.doc = wal.DocRead{File: s.File, Address: a, Seqno: m.Seqno, Key: key}
	r, err := x.doc.Plan(!db.o.BufferedIO)
	if err == nil {
		x.queue.Add(r)
		x.queue.Next()
		dst = x.doc.Finish(&db.secret, dst, math.MaxInt)
		err = x.doc.Err
	}
	x.doc = wal.DocRead{}
	if err != nil {
		return dst, db.readError(err)
	}
	return dst, nil
}

// lostAddress: an address that leads nowhere is damage, never a miss.
func (db *DB) lostAddress(a entry.Address) error {
	return fmt.Errorf("%w: document address %v names no segment of the store", ErrCorrupt, a)
}

// readError gives an error of reading a document the names that callers know.
func (db *DB) readError(err error) error {
	if errors.Is(err, wal.ErrCorrupt) {
		db.damaged(err)
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
