package lsm

import (
	"errors"
	"fmt"
	"hash/crc32"

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
	it, m, err := db.findAt(v, at, dst, key)
	if err != nil || m.Value.HasBytes {
		return it, err
	}
	// Close must not take the file away meanwhile. What is in memory is pinned
	// and needs no word that all readers change.
	if err := db.enter(); err != nil {
		return Item{}, err
	}
	defer db.leave()
	return db.readItem(v, it, &m, dst)
}

// getAt reads from a pinned view at a seqno. The caller has entered.
func (db *DB) getAt(v *view, at Seqno, dst, key []byte) (Item, error) {
	it, m, err := db.findAt(v, at, dst, key)
	if err != nil || m.Value.HasBytes {
		return it, err
	}
	return db.readItem(v, it, &m, dst)
}

// findAt is getAt without the device: an item whose version has no bytes lacks
// its value.
func (db *DB) findAt(v *view, at Seqno, dst, key []byte) (it Item, m memtable.View, err error) {
	hash := xxhash.Sum64(key)
	vb := db.vbucket(key)
	for _, t := range v.tables[int(vb)%db.kvstores] {
		if !t.Get(hash, vb, key, at, &m) {
			continue
		}
		it, ok := db.item(&m, key, v.clearFor(at))
		if !ok {
			return Item{}, m, ErrNotFound
		}
		if m.Value.HasBytes {
			n := len(dst)
			dst = append(dst, m.Value.Bytes...)
			it.Value = dst[n:]
		}
		return it, m, nil
	}
	return Item{}, m, ErrNotFound
}

// readItem completes an item by its document, appended to dst.
func (db *DB) readItem(v *view, it Item, m *memtable.View, dst []byte) (Item, error) {
	n := len(dst)
	dst, err := db.readDocument(v, m, it.Key, dst)
	if err != nil {
		return Item{}, err
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
	return expiry != 0 && int64(expiry) <= db.o.Now().Unix()
}

// readDocument appends the value of a separated document to dst.
func (db *DB) readDocument(v *view, m *memtable.View, key, dst []byte) ([]byte, error) {
	s := v.segments[m.Value.Address.Segment]
	if s == nil {
		return dst, db.lostAddress(m.Value.Address)
	}
	db.counts.documentReads.Add(1)
	out, _, err := wal.ReadDocument(s.File, m.Value.Address, m.Seqno, key, &db.secret, !db.o.BufferedIO, dst)
	if err != nil {
		return dst, db.readError(err)
	}
	return out, nil
}

// lostAddress: an address that leads nowhere is damage, never a miss.
func (db *DB) lostAddress(a entry.Address) error {
	return fmt.Errorf("%w: document address %v names no segment of the store", ErrCorrupt, a)
}

func (db *DB) readError(err error) error {
	if errors.Is(err, wal.ErrCorrupt) {
		db.counts.corruptReads.Add(1)
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
