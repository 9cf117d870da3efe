package main

import (
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// pebbleStore is Pebble: no batch waits for a sync, filters as fluxkv has them
// in its last level, defaults otherwise.
type pebbleStore struct{ db *pebble.DB }

func openPebbleStore(w *writing, snappy bool) (*pebbleStore, error) {
	o := &pebble.Options{
		FormatMajorVersion: pebble.FormatNewest,
		ErrorIfExists:      true,
		// Writers stop at two memtables: one is filled, one is flushed.
		MemTableSize: uint64(w.memory / 2),
		Logger:       quiet{},
	}
	o.Levels[0].FilterPolicy = bloom.FilterPolicy(10) // and all levels below
	if !snappy {
		o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	}
	db, err := pebble.Open(w.dir, o)
	return &pebbleStore{db}, err
}

func (s *pebbleStore) write(b []byte, keyBytes, valueBytes int) error {
	batch := s.db.NewBatch()
	for ; len(b) > 0; b = b[keyBytes+valueBytes:] {
		if err := batch.Set(b[:keyBytes], b[keyBytes:keyBytes+valueBytes], nil); err != nil {
			return err
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	return batch.Close()
}

// settle flushes, and waits until no compaction was running for a while: one
// that ended may make room for the next.
func (s *pebbleStore) settle() (time.Time, error) {
	if err := s.db.Flush(); err != nil {
		return time.Time{}, err
	}
	busy := time.Now()
	for time.Since(busy) < 100*time.Millisecond {
		time.Sleep(5 * time.Millisecond)
		if m := s.db.Metrics(); m.Compact.NumInProgress > 0 || m.Flush.NumInProgress > 0 {
			busy = time.Now()
		}
	}
	return busy, nil
}

func (s *pebbleStore) get(dst, key []byte) ([]byte, bool, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return dst, false, nil
	}
	if err != nil {
		return dst, false, err
	}
	dst = append(dst, value...)
	return dst, true, closer.Close()
}

func (s *pebbleStore) written() (map[string]int64, error) {
	m := s.db.Metrics()
	w := map[string]int64{"log": int64(m.WAL.BytesWritten)}
	for i := range m.Levels {
		w["flush"] += int64(m.Levels[i].TableBytesFlushed + m.Levels[i].BlobBytesFlushed)
		w["compaction"] += int64(m.Levels[i].TableBytesCompacted + m.Levels[i].BlobBytesCompacted)
	}
	return w, nil
}

func (s *pebbleStore) close() error { return s.db.Close() }
