package lsm

import (
	"sync/atomic"
	"time"

	"fluxkv/compaction"
	"fluxkv/internal/blockcache"
	"fluxkv/internal/doccache"
	"fluxkv/internal/vfs"
	"fluxkv/wal"
)

// counters only grow.
type counters struct {
	gets, writes, userBytes     atomic.Int64
	documentReads, corruptReads atomic.Int64
	updateRetries, diskFull     atomic.Int64
	clears                      atomic.Int64
	compression                 compressionCounts

	blockReads, indexReads               atomic.Int64
	flushes, flushedTables, flushedBytes atomic.Int64
	flushedEntries, flushDropped         atomic.Int64

	collections, gcRead, gcWritten, gcKept, gcDropped atomic.Int64
	probes, probesHit, movedReads                     atomic.Int64
	merges, moves, mergeRead, mergeDropped            atomic.Int64
	mergedTo                                          [levelsMax + 1]atomic.Int64 // bytes, by level
}

// flushed counts what a flush of one kvstore made.
func (c *counters) flushed(r *compaction.Result) {
	c.flushedTables.Add(int64(len(r.Tables)))
	c.flushedBytes.Add(r.Bytes)
	c.flushedEntries.Add(int64(r.Out))
	c.flushDropped.Add(int64(r.Dropped))
}

// Recovery says what Open found.
type Recovery struct {
	Created  bool  `json:"created"` // a new store
	Clean    bool  `json:"clean"`   // it was closed in order
	Segments int   `json:"segments"`
	Groups   int64 `json:"groups"`
	// Discarded counts intact groups behind a torn one: written, but never
	// acknowledged, because not all before them was durable.
	Discarded int64 `json:"discarded_groups"`
	Records   int64 `json:"records"`
	Bytes     int64 `json:"bytes"`  // of log read
	Spills    int   `json:"spills"` // times that replay filled the write cache and flushed it
	// Ended counts full segments of which the run before had not recorded where
	// they end, Endless those that are damaged: they are never collected.
	Ended    int           `json:"segments_ended"`
	Endless  int           `json:"segments_endless"`
	Duration time.Duration `json:"nanoseconds"`
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
	BlockReads    int64 `json:"block_reads"` // data blocks of tables
	IndexReads    int64 `json:"index_reads"` // index and filter blocks of tables
	Rereads       int64 `json:"rereads"`     // of blocks and documents that failed their sum the first time
	// BlockCache holds blocks of tables that were read; its pairs of counters are those
	// of data blocks, and of index blocks and filter pieces. Reads is what the I/O engine did: it
	// reads blocks and documents from the device.
	BlockCache    blockcache.Stats `json:"block_cache"`
	Reads         vfs.IOStats      `json:"device_reads"`
	IOEngine      string           `json:"io_engine"`
	UpdateRetries int64            `json:"update_retries"`
	Clears        int64            `json:"clears"`
	// Compression of documents, as Options.CompressDocuments asked for.
	Compression Compression `json:"compression"`
	// DocumentCache is the cache of Options.DocumentCacheBytes; zero when it is off.
	DocumentCache doccache.Stats `json:"document_cache"`

	WriteCacheUsed  int64 `json:"write_cache_used"`
	WriteCacheLimit int64 `json:"write_cache_limit"`
	Entries         int64 `json:"memtable_entries"` // versions, tombstones included
	Memtables       int   `json:"memtables"`
	Tables          int   `json:"tables"` // of the key index
	TableBytes      int64 `json:"table_bytes"`
	TableEntries    int64 `json:"table_entries"` // versions, tombstones included
	TablesOpen      int   `json:"tables_open"`
	TableMemory     int64 `json:"table_memory"` // of filters and indexes, in bytes
	TablesFenced    int   `json:"tables_fenced"`
	RunsMax         int   `json:"runs_max"`  // that a read may have to look into
	LogBytes        int64 `json:"log_bytes"` // of sealed segments
	GarbageKnown    int64 `json:"garbage_documents"`
	Snapshots       int   `json:"snapshots"`
	OldestSnapshot  Seqno `json:"oldest_snapshot"`

	Flushes       int64  `json:"flushes"`
	FlushesFailed int64  `json:"flushes_failed"`
	FlushesNow    int    `json:"flushes_now"`
	FlushError    string `json:"flush_error,omitempty"` // of the last one, if it failed
	FlushedTables int64  `json:"flushed_tables"`
	// FlushedEntries were written to tables, FlushDropped versions were not,
	// because nobody could see them any more.
	FlushedEntries int64   `json:"flushed_entries"`
	FlushDropped   int64   `json:"flush_dropped_entries"`
	Written        Written `json:"written_bytes"`

	Compactions       int64  `json:"compactions"`
	CompactionMoves   int64  `json:"compaction_moves"` // without writing
	CompactionsFailed int64  `json:"compactions_failed"`
	CompactionsNow    int    `json:"compactions_now"`
	CompactionError   string `json:"compaction_error,omitempty"` // of the last one, if it failed, or why one is fenced
	CompactionFenced  int    `json:"compaction_fenced_tables"`   // left alone: they could not be read
	CompactionDropped int64  `json:"compaction_dropped_entries"`
	CompactionRead    int64  `json:"compaction_read_bytes"`

	// Garbage collection of segments.
	Collections       int64  `json:"collections"`
	CollectionsFailed int64  `json:"collections_failed"`
	CollectingNow     bool   `json:"collecting_now"`
	CollectionError   string `json:"collection_error,omitempty"`
	// GCFenced segments are left alone, because they, or their indexes, could not be
	// read.
	GCFenced int `json:"gc_fenced_segments"`
	// CollectionReason is why the last look for segments picked some, or none.
	CollectionReason string `json:"collection_reason,omitempty"`
	GCRead           int64  `json:"gc_read_bytes"`
	GCKept           int64  `json:"gc_kept_documents"`
	GCDropped        int64  `json:"gc_dropped_documents"`
	Probes           int64  `json:"gc_probes"`
	ProbesReplaced   int64  `json:"gc_probes_replaced"` // found a newer version
	MovedReads       int64  `json:"moved_reads"`        // of documents under an old address
	ProbeMemory      int64  `json:"probe_memory"`
	IndexMemory      int64  `json:"index_memory"` // of segments, to find what was moved
	// Allocated is what the files take, Live an estimate of what the newest
	// versions take by key and value, compressed documents as they are stored.
	Allocated int64 `json:"allocated_bytes"`
	Live      int64 `json:"live_bytes"`
	Forwards  int   `json:"forwards"`

	// Writers held up since Open, by cause.
	Slowed      int64         `json:"slowed_writes"`
	SlowedTime  time.Duration `json:"slowed_nanoseconds"`
	Stalled     int64         `json:"stalled_writes"`
	StalledTime time.Duration `json:"stalled_nanoseconds"`
	StalledNow  int64         `json:"stalled_now"`
	// Paced are writers slowed to the space target, to SpaceRate bytes a second
	// at present; 0 is without bound. Slowed and Stalled are those that flushes
	// and merges held up.
	Paced        int64         `json:"paced_writes"`
	PacedTime    time.Duration `json:"paced_nanoseconds"`
	SpaceRate    int64         `json:"space_rate"`
	StallCause   string        `json:"stall_cause,omitempty"`
	Rejected     int64         `json:"rejected_writes"`
	DiskFull     int64         `json:"disk_full_writes"`
	MemQuota     int64         `json:"mem_quota"`
	Log          wal.LogStats  `json:"log"`
	Recovery     Recovery      `json:"recovery"`
	PendingClear time.Time     `json:"pending_clear"` // zero: none
}

// Written says for what bytes went to the device since Open. The sum over the
// bytes of users is write amplification; file system metadata is not in it.
type Written struct {
	Log         int64 `json:"log"`          // headers and records of groups
	LogPadding  int64 `json:"log_padding"`  // up to whole blocks
	LogPrewrite int64 `json:"log_prewrite"` // zeros over fresh segments of a durable store
	LogFooters  int64 `json:"log_footers"`  // seqno indexes of sealed segments
	Flush       int64 `json:"flush"`        // tables made of memtables
	GC          int64 `json:"gc"`           // documents that were alive in collected segments
	// Compaction, by the level that was written to.
	Compaction [levelsMax + 1]int64 `json:"compaction"`
	Manifest   int64                `json:"manifest"`
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
		UpdateRetries: db.counts.updateRetries.Load(), Clears: db.counts.clears.Load(), Compression: db.counts.compression.load(),
		WriteCacheUsed: db.quota.used.Load(), WriteCacheLimit: db.quota.limit,
		Slowed: db.quota.slowed.Load(), SlowedTime: time.Duration(db.quota.slowedNanos.Load()),
		Stalled: db.quota.stalled.Load(), StalledTime: time.Duration(db.quota.stalledNanos.Load()),
		Paced: db.quota.pace.slowed.Load(), PacedTime: time.Duration(db.quota.pace.nanos.Load()), SpaceRate: db.quota.pace.rate.Load(),
		StalledNow: db.quota.stallsNow.Load(), Rejected: db.quota.rejected.Load(),
		DiskFull: db.counts.diskFull.Load(), MemQuota: db.o.MemQuota,
		Log: db.log.Stats(), Recovery: db.recovery,
	}
	db.sched.mu.Lock()
	s.FlushesFailed, s.FlushesNow = db.sched.flushes.failed, db.sched.running
	if err := db.sched.flushes.err; err != nil {
		s.FlushError = err.Error()
	}
	s.CompactionsFailed, s.CompactionsNow = db.sched.merges.failed, len(db.sched.mergesNow)
	s.CompactionFenced, s.GCFenced = len(db.sched.merges.fenced), len(db.sched.collections.fenced)
	for id := range db.sched.fencedIndexes {
		if db.sched.collections.fenced[id] == nil {
			s.GCFenced++
		}
	}
	if err := db.sched.merges.err; err != nil {
		s.CompactionError = err.Error()
	}
	s.CollectionsFailed, s.CollectingNow = db.sched.collections.failed, db.sched.collecting
	if err := db.sched.collections.err; err != nil {
		s.CollectionError = err.Error()
	}
	db.sched.mu.Unlock()
	s.Flushes, s.FlushedTables = db.counts.flushes.Load(), db.counts.flushedTables.Load()
	s.FlushedEntries, s.FlushDropped = db.counts.flushedEntries.Load(), db.counts.flushDropped.Load()
	s.Collections, s.GCRead = db.counts.collections.Load(), db.counts.gcRead.Load()
	s.GCKept, s.GCDropped = db.counts.gcKept.Load(), db.counts.gcDropped.Load()
	s.Probes, s.ProbesReplaced, s.MovedReads = db.counts.probes.Load(), db.counts.probesHit.Load(), db.counts.movedReads.Load()
	s.ProbeMemory, s.IndexMemory = db.memory.probe.Used(), db.log.IndexBytes()
	s.Allocated, s.Live = db.gcAllocated.Load(), db.gcLive.Load()
	if r := db.gcReason.Load(); r != nil {
		s.CollectionReason = string(*r)
	}
	s.Compactions, s.CompactionMoves = db.counts.merges.Load(), db.counts.moves.Load()
	s.CompactionDropped, s.CompactionRead = db.counts.mergeDropped.Load(), db.counts.mergeRead.Load()
	s.BlockReads, s.IndexReads = db.counts.blockReads.Load(), db.counts.indexReads.Load()
	s.Written = Written{
		Log: s.Log.RecordBytes, LogPadding: s.Log.GroupBytes - s.Log.RecordBytes, LogPrewrite: s.Log.Prewritten,
		LogFooters: s.Log.FooterBytes, Flush: db.counts.flushedBytes.Load(), Manifest: db.edits.log.WrittenBytes(),
	}
	s.Written.GC = db.counts.gcWritten.Load()
	for i := range s.Written.Compaction {
		s.Written.Compaction[i] = db.counts.mergedTo[i].Load()
	}
	if db.docs != nil {
		s.DocumentCache = db.docs.Stats()
	}
	rs := db.readers.Stats()
	s.TablesOpen, s.TableMemory, s.TablesFenced = rs.Open, rs.MemoryBytes, rs.Fenced
	s.Rereads = rs.Rereads + wal.DocumentRereads()
	s.BlockCache, s.Reads, s.IOEngine = db.blocks.Stats(), db.io.Stats(), db.io.Engine()
	waits := db.spaceWaits.Load()
	s.StalledNow += waits
	switch {
	case waits > 0:
		s.StallCause = "disk full, space is being reclaimed"
	case s.StalledNow == 0:
	case s.FlushesNow > 0:
		s.StallCause = "write cache full, being flushed"
	case s.FlushError != "":
		s.StallCause = "write cache full, flush fails"
	default:
		s.StallCause = "write cache full, held by readers"
	}
	if err := db.readOnly.Load(); err != nil {
		s.ReadOnly = (*err).Error()
	}
	db.commit.mu.Lock()
	s.NextSeqno = db.commit.next
	db.commit.mu.Unlock()
	st := db.edits.log.State()
	s.ClearSeqno = st.ClearSeqno
	s.Forwards = len(st.Forwards)
	for _, x := range st.Segments {
		s.LogBytes += max(x.FileBytes, int64(x.End))
	}
	for _, d := range st.Dead {
		s.GarbageKnown += int64(d.Len())
	}
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
		for _, f := range v.version.files {
			s.Tables++
			s.TableBytes += f.meta.FileBytes
			s.TableEntries += int64(f.meta.Entries)
		}
		for _, runs := range v.version.runs {
			s.RunsMax = max(s.RunsMax, len(runs))
		}
		v.release()
	}
	return s
}
