package lsm

import (
	"sync/atomic"
	"time"

	"fluxkv/wal"
)

// counters only grow.
type counters struct {
	gets, writes, userBytes     atomic.Int64
	documentReads, corruptReads atomic.Int64
	updateRetries, diskFull     atomic.Int64
	clears                      atomic.Int64
}

// Recovery says what Open found.
type Recovery struct {
	Created  bool  `json:"created"` // a new store
	Clean    bool  `json:"clean"`   // it was closed in order
	Segments int   `json:"segments"`
	Groups   int64 `json:"groups"`
	// Discarded counts intact groups behind a torn one: written, but never
	// acknowledged, because not all before them was durable.
	Discarded int64         `json:"discarded_groups"`
	Records   int64         `json:"records"`
	Bytes     int64         `json:"bytes"` // of log read
	Duration  time.Duration `json:"nanoseconds"`
}

// Stats is a snapshot of what the store knows about itself. Counters count
// from Open.
type Stats struct {
	Durable      bool   `json:"durable"`
	ReadOnly     string `json:"read_only,omitempty"` // why, when it is
	VisibleSeqno Seqno  `json:"visible_seqno"`
	DurableSeqno Seqno  `json:"durable_seqno"`
	NextSeqno    Seqno  `json:"next_seqno"`
	ClearSeqno   Seqno  `json:"clear_seqno"`
	VBuckets     int    `json:"vbuckets"`
	KVStores     int    `json:"kvstores"`

	Gets          int64 `json:"gets"`
	Writes        int64 `json:"writes"`         // operations
	UserBytes     int64 `json:"user_bytes"`     // keys and values of them
	DocumentReads int64 `json:"document_reads"` // from the log
	CorruptReads  int64 `json:"corrupt_reads"`
	UpdateRetries int64 `json:"update_retries"`
	Clears        int64 `json:"clears"`

	WriteCacheUsed  int64 `json:"write_cache_used"`
	WriteCacheLimit int64 `json:"write_cache_limit"`
	Entries         int64 `json:"memtable_entries"` // versions, tombstones included
	Memtables       int   `json:"memtables"`
	Snapshots       int   `json:"snapshots"`
	OldestSnapshot  Seqno `json:"oldest_snapshot"`

	// Writers held up since Open, by cause.
	Slowed       int64         `json:"slowed_writes"`
	SlowedTime   time.Duration `json:"slowed_nanoseconds"`
	Stalled      int64         `json:"stalled_writes"`
	StalledTime  time.Duration `json:"stalled_nanoseconds"`
	StalledNow   int64         `json:"stalled_now"`
	StallCause   string        `json:"stall_cause,omitempty"`
	Rejected     int64         `json:"rejected_writes"`
	DiskFull     int64         `json:"disk_full_writes"`
	MemQuota     int64         `json:"mem_quota"`
	Log          wal.LogStats  `json:"log"`
	Recovery     Recovery      `json:"recovery"`
	PendingClear time.Time     `json:"pending_clear"` // zero: none
}

// Stats returns the counters. It takes short locks only.
func (db *DB) Stats() Stats {
	if db.enter() != nil {
		return Stats{}
	}
	defer db.leave()
	s := Stats{
		Durable: !db.o.NonDurable, VBuckets: db.vbuckets, KVStores: db.kvstores,
		VisibleSeqno: Seqno(db.publish.visible.Load()), DurableSeqno: db.log.DurableSeqno(),
		Gets: db.counts.gets.Load(), Writes: db.counts.writes.Load(), UserBytes: db.counts.userBytes.Load(),
		DocumentReads: db.counts.documentReads.Load(), CorruptReads: db.counts.corruptReads.Load(),
		UpdateRetries: db.counts.updateRetries.Load(), Clears: db.counts.clears.Load(),
		WriteCacheUsed: db.quota.used.Load(), WriteCacheLimit: db.quota.limit,
		Slowed: db.quota.slowed.Load(), SlowedTime: time.Duration(db.quota.slowedNanos.Load()),
		Stalled: db.quota.stalled.Load(), StalledTime: time.Duration(db.quota.stalledNanos.Load()),
		StalledNow: db.quota.stallsNow.Load(), Rejected: db.quota.rejected.Load(),
		DiskFull: db.counts.diskFull.Load(), MemQuota: db.o.MemQuota,
		Log: db.log.Stats(), Recovery: db.recovery,
	}
	if s.StalledNow > 0 {
		s.StallCause = "write cache full"
	}
	if err := db.readOnly.Load(); err != nil {
		s.ReadOnly = (*err).Error()
	}
	db.commit.mu.Lock()
	s.NextSeqno = db.commit.next
	db.commit.mu.Unlock()
	st := db.edits.log.State()
	s.ClearSeqno = st.ClearSeqno
	if st.PendingClear != 0 {
		s.PendingClear = time.Unix(0, st.PendingClear)
	}
	db.snapshots.mu.Lock()
	for q, n := range db.snapshots.open {
		s.Snapshots += n
		if s.OldestSnapshot == 0 || q < s.OldestSnapshot {
			s.OldestSnapshot = q
		}
	}
	db.snapshots.mu.Unlock()
	if v := db.pin(); v != nil {
		for i := range v.tables {
			for _, t := range v.tables[i] {
				s.Memtables++
				s.Entries += int64(t.Len())
			}
		}
		v.release()
	}
	return s
}
