package main

import (
	"errors"

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
		Logger:       silent{},
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

func (s *pebbleStore) flush() error { return s.db.Flush() }

func (s *pebbleStore) busy() (bool, error) {
	m := s.db.Metrics()
	return m.Compact.NumInProgress > 0 || m.Flush.NumInProgress > 0, nil
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
