package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"fluxkv/lsm"
)

// fluxkvStore is fluxkv's engine: not durable, defaults otherwise.
type fluxkvStore struct {
	db      *lsm.DB
	batches sync.Pool // of *lsm.Batch
}

func openFluxkvStore(w *writing) (*fluxkvStore, error) {
	db, err := lsm.Open(w.dir, lsm.Options{NonDurable: true, WriteCache: w.memory})
	if err != nil {
		return nil, err
	}
	return &fluxkvStore{db: db, batches: sync.Pool{New: func() any { return new(lsm.Batch) }}}, nil
}

func (s *fluxkvStore) write(b []byte, keyBytes, valueBytes int) error {
	batch := s.batches.Get().(*lsm.Batch)
	defer s.batches.Put(batch)
	batch.Reset()
	for ; len(b) > 0; b = b[keyBytes+valueBytes:] {
		if err := batch.Set(b[:keyBytes], b[keyBytes:keyBytes+valueBytes], lsm.Meta{}); err != nil {
			return err
		}
	}
	_, err := s.db.Apply(batch, lsm.WriteOptions{})
	return err
}

func (s *fluxkvStore) flush() error { return s.db.Flush() }

func (s *fluxkvStore) busy() (bool, error) {
	x := s.db.Stats()
	if x.FlushesFailed+x.CompactionsFailed+x.CollectionsFailed > 0 || x.ReadOnly != "" {
		return false, fmt.Errorf("%d flushes failed (%s), %d merges (%s), %d collections (%s), read-only: %q", x.FlushesFailed, x.FlushError,
			x.CompactionsFailed, x.CompactionError, x.CollectionsFailed, x.CollectionError, x.ReadOnly)
	}
	return x.FlushesNow > 0 || x.CompactionsNow > 0 || x.CollectingNow, nil
}

func (s *fluxkvStore) get(dst, key []byte) ([]byte, bool, error) {
	item, err := s.db.Get(dst, key)
	if errors.Is(err, lsm.ErrNotFound) {
		return dst, false, nil
	}
	return item.Value, err == nil, err
}

// written takes the causes as the engine's own counters name them; merges of
// all levels together.
func (s *fluxkvStore) written() (map[string]int64, error) {
	b, err := json.Marshal(s.db.Stats().Written)
	if err != nil {
		return nil, err
	}
	var causes map[string]json.RawMessage
	if err := json.Unmarshal(b, &causes); err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for cause, raw := range causes {
		var levels []int64
		if err := json.Unmarshal(raw, &levels); err == nil {
			for _, n := range levels {
				all[cause] += n
			}
			continue
		}
		var n int64
		if err := json.Unmarshal(raw, &n); err != nil {
			return nil, err
		}
		all[cause] = n
	}
	return all, nil
}

func (s *fluxkvStore) close() error { return s.db.Close() }
