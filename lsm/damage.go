package lsm

import (
	"errors"
	"sync"

	"fluxkv/sstable"
	"fluxkv/wal"
)

// damagedPlaces remembers which places of the store are known to be damaged, so that
// one that is read again and again is logged once.
type damagedPlaces struct {
	mu    sync.Mutex // a leaf
	known map[damagedPlace]struct{}
}

type damagedPlace struct {
	file   string
	offset int64
}

// damagedPlacesMax bounds what is remembered. A store with more of it has lost
// its disk, and the log has said so a thousand times.
const damagedPlacesMax = 1024

// add reports whether the place is new.
func (d *damagedPlaces) add(file string, offset int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := damagedPlace{file, offset}
	if _, ok := d.known[p]; ok || len(d.known) >= damagedPlacesMax {
		return false
	}
	if d.known == nil {
		d.known = map[damagedPlace]struct{}{}
	}
	d.known[p] = struct{}{}
	return true
}

// damaged counts a read that met damage, and logs each place once. The key that
// was asked for gets the error; everything else goes on.
func (db *DB) damaged(err error) {
	db.counts.corruptReads.Add(1)
	var t *sstable.CorruptError
	var l *wal.CorruptError
	isNew := true
	switch {
	case errors.As(err, &t):
		isNew = db.damages.add(t.File, t.Offset)
	case errors.As(err, &l):
		isNew = db.damages.add(l.File, l.Offset)
	}
	if isNew {
		db.o.Logf("damage met by a read: %v", err)
	}
}
