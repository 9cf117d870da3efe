package lsm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"fluxkv/compaction"
	"fluxkv/internal/vfs"
	"fluxkv/sstable"
)

// Sizes in bytes.
const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// Options configures Open. The zero value means every default. VBuckets and
// KVStores are fixed when a store is created; everything else may change
// between opens.
type Options struct {
	// FS is the file system; nil means the operating system's.
	FS vfs.FS
	// VBuckets is the number of partitions the protocol sees, 1..32768.
	// Default 16; an existing store keeps its own when this is 0.
	VBuckets int
	// KVStores is the number of memtable and key-index partitions, 1..16 and
	// at most VBuckets. Default 16 (or VBuckets when fewer).
	KVStores int
	// MemQuota bounds what the store keeps in memory outside the Go heap, in
	// bytes. Default 1 GiB, at least 16 MiB.
	MemQuota int64
	// WriteCache bounds unflushed memtables, in bytes. Default a quarter of
	// MemQuota. Writers slow down above 3/4 of it and stop at it.
	WriteCache int64
	// DocumentCacheBytes is the part of MemQuota that keeps documents which were
	// read from the device, in bytes; what it takes is missing for filters and
	// indexes of tables. Default 0: none. Otherwise at least 1 MiB and at most
	// what WriteCache, a sixteenth for tables and 8 MiB leave of MemQuota.
	DocumentCacheBytes int64
	// NonDurable answers a write when it is in the log buffer and the
	// memtable; the log is written and synced within AsyncWindow. A kill or a
	// power cut loses at most that window. Default false: durable.
	NonDurable bool
	// AsyncWindow bounds how long a written record may wait for its sync when
	// nobody waits for it. Default 10 ms.
	AsyncWindow time.Duration
	// Reject answers writes with ErrOverloaded when the write cache is full.
	// Default false: they wait.
	Reject bool
	// InlineLimit is the largest value, in bytes and inclusive, that is kept
	// beside its key; larger ones live in the log. Raising it saves reads and
	// adds compaction writes. Default 255; -1 means 0.
	InlineLimit int
	// SegmentBytes caps the size of a log segment. Default 128 MiB, at least
	// 4 MiB.
	SegmentBytes int64
	// LogAlign is the granularity of log writes, a power of two from 512 to
	// 65536. Default 4096. Smaller than the device's physical block, a torn
	// write may damage what was acknowledged.
	LogAlign int
	// LogInflight is the number of log writes in flight, 1..8. Default 1.
	LogInflight int
	// BufferedIO goes through the page cache. Default false: direct I/O, and
	// Open fails where the file system rejects it.
	BufferedIO bool
	// Flushers is how many memtables are written to tables at once, 1..16.
	// Default 1.
	Flushers int
	// Compactors is how many merges of tables run at once, 1..16. Default 2.
	Compactors int
	// SpaceAmp is the space on disk that garbage may make of live data, from
	// 1.1 to 4. Default 1.5. Less space is paid for with more writing.
	SpaceAmp float64
	// MergeShare is how much of the last level's entries may lie above it
	// before they are merged into it, from 0.01 to 2. Default by SpaceAmp: 0.15
	// where values are separated, 0.25 where inline values are much of the bytes.
	MergeShare float64
	// Leveled keeps the key index in levels that grow by LevelMultiplier
	// (default 10), from BaseLevelBytes (default 64 MiB) on, and merges
	// L0Tables flushes (default 4) into them: better space, about three times
	// the writing. Default false: lazy leveling.
	Leveled         bool
	LevelMultiplier int
	BaseLevelBytes  int64
	L0Tables        int
	// TableBytes is the size at which a table of the key index is cut.
	// Default 32 MiB, from 1 MiB to 2 GiB.
	TableBytes int64
	// TableWriteBuffer is the size of one write of a table. Default 1 MiB,
	// from 4 KiB to 64 MiB.
	TableWriteBuffer int
	// BlockBytes is the stored size of a data block of a table, the unit of
	// reading. Default 4 KiB, from 512 bytes to 1 MiB.
	BlockBytes int
	// BloomBits sizes the filters of tables, in bits a key in the last level
	// and 6 more above it. Default 10, at most 58; -1 makes no filters.
	BloomBits int
	// CompressDocuments compresses the values of separated documents by snappy,
	// each alone, as they are written: those of 128 bytes or more, where it saves
	// 12 %. It saves space and writing, and costs CPU for each write, and for each
	// read that memory does not answer. What is stored is read either way, and
	// stays as it is until it is written again. Default false.
	CompressDocuments bool
	// CompressIndex compresses the data blocks of tables by snappy. It saves
	// space where keys or inline values compress, and costs CPU.
	CompressIndex bool
	// BlockCacheBytes bounds what filters, indexes and blocks of tables take in
	// memory, in bytes. Default: what WriteCache and buffers leave of MemQuota. Filters
	// and index blocks come first, then what the liveness probe needs; blocks
	// that were read have the rest, at least a sixteenth.
	BlockCacheBytes int64
	// WarmNewTables puts the data blocks of tables into the block cache as flushes
	// and merges write them. Default false: only reads fill it.
	WarmNewTables bool
	// IOEngine does the reads of documents and blocks that memory does not
	// have: "uring", "aio" or "pread". Default: the best one that works here.
	IOEngine string
	// IOQueueDepth bounds these reads in flight, of all callers together, from 1
	// to 1024. Default 128.
	IOQueueDepth int
	// OpenTables bounds the table files that are open at once, at least 16.
	// Default 4096.
	OpenTables int
	// IdleFlush is how long a store that nobody writes to waits before it
	// flushes its memtables and gives back what only they kept. Default 30 s.
	IdleFlush time.Duration
	// MaxItemBytes bounds key + value. Default 20 MiB, at most 64 MiB.
	MaxItemBytes int
	// Logf receives one line an event worth an operator's eye. Default: none.
	Logf func(format string, args ...any)
	// Now is the clock that expiry uses. Default time.Now.
	Now func() time.Time

	// segmentBytesMin is lowered by tests so that rolls happen in a few
	// writes.
	segmentBytesMin int64
	// groupBytesMax is lowered by tests; default 4 MiB.
	groupBytesMax int
	// tableBytesMin is lowered by tests so that a flush makes several tables.
	tableBytesMin int64
	// noGC keeps garbage where it is.
	noGC bool
	// rangeBytesMin is lowered by tests so that a kvstore has several ranges.
	rangeBytesMin int64
	// mergeFloor is lowered by tests so that a few documents are worth a merge.
	mergeFloor int64
	// replayBufferBytes is lowered by tests; 0 is the scanner's default.
	replayBufferBytes int
	// writeCacheMin is lowered by tests so that a few writes fill the cache;
	// default 1 MiB.
	writeCacheMin int64
	// documentCacheMin is lowered by tests so that a few documents fill the cache;
	// default 1 MiB.
	documentCacheMin int64
	// manifestBytesMin is lowered by tests so that a few edits make a new
	// manifest; 0 is its default.
	manifestBytesMin int64
	// flushOnDemand keeps the scheduler from starting flushes by itself: only
	// Flush, an idle store and a stalled writer make it. For tests that must do
	// the same in each run.
	flushOnDemand bool
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.MemQuota == 0 {
		o.MemQuota = gib
	}
	if o.WriteCache == 0 {
		o.WriteCache = o.MemQuota / 4
	}
	if o.AsyncWindow == 0 {
		o.AsyncWindow = 10 * time.Millisecond
	}
	switch o.InlineLimit {
	case 0:
		o.InlineLimit = 255
	case -1:
		o.InlineLimit = 0
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 128 * mib
	}
	if o.LogAlign == 0 {
		o.LogAlign = vfs.BlockBytes
	}
	if o.LogInflight == 0 {
		o.LogInflight = 1
	}
	if o.Flushers == 0 {
		o.Flushers = 1
	}
	if o.Compactors == 0 {
		o.Compactors = 2
	}
	if o.SpaceAmp == 0 {
		o.SpaceAmp = 1.5
	}
	if o.LevelMultiplier == 0 {
		o.LevelMultiplier = 10
	}
	if o.BaseLevelBytes == 0 {
		o.BaseLevelBytes = 64 * mib
	}
	if o.L0Tables == 0 {
		o.L0Tables = 4
	}
	if o.TableBytes == 0 {
		o.TableBytes = 32 * mib
	}
	if o.TableWriteBuffer == 0 {
		o.TableWriteBuffer = mib
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 4 * kib
	}
	if o.BloomBits == 0 {
		o.BloomBits = 10
	}
	if o.OpenTables == 0 {
		o.OpenTables = 4096
	}
	if o.BlockCacheBytes == 0 {
		o.BlockCacheBytes = o.tableMemoryMax()
	}
	if o.IOQueueDepth == 0 {
		o.IOQueueDepth = 128
	}
	if o.IdleFlush == 0 {
		o.IdleFlush = 30 * time.Second
	}
	if o.MaxItemBytes == 0 {
		o.MaxItemBytes = 20 * mib
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.segmentBytesMin == 0 {
		o.segmentBytesMin = 4 * mib
	}
	if o.tableBytesMin == 0 {
		o.tableBytesMin = mib
	}
	if o.groupBytesMax == 0 {
		o.groupBytesMax = 4 * mib
	}
	if o.documentCacheMin == 0 {
		o.documentCacheMin = mib
	}
	if o.writeCacheMin == 0 {
		o.writeCacheMin = mib
	}
	return o
}

// Validate reports every option that is out of bounds, in one error.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.VBuckets < 0 || o.VBuckets > 32768 {
		bad("VBuckets %d: want 1 to 32768", o.VBuckets)
	}
	if o.KVStores < 0 || o.KVStores > 16 {
		bad("KVStores %d: want 1 to 16", o.KVStores)
	}
	if o.VBuckets > 0 && o.KVStores > o.VBuckets {
		bad("KVStores %d: more than VBuckets %d", o.KVStores, o.VBuckets)
	}
	if o.MemQuota < 16*mib {
		bad("MemQuota %d: want at least 16 MiB", o.MemQuota)
	}
	if o.MemQuota >= 16*mib && (o.WriteCache < o.writeCacheMin || o.WriteCache > o.MemQuota) {
		bad("WriteCache %d: want 1 MiB up to MemQuota %d", o.WriteCache, o.MemQuota)
	}
	if left := o.MemQuota - o.MemQuota/16 - o.WriteCache - 8*mib; o.DocumentCacheBytes != 0 && (o.DocumentCacheBytes < o.documentCacheMin || o.DocumentCacheBytes > left) {
		bad("DocumentCacheBytes %d: want 0, or 1 MiB up to the %d that 8 MiB, a sixteenth for tables and WriteCache leave of MemQuota", o.DocumentCacheBytes, max(left, 0))
	}
	if o.AsyncWindow < 0 || o.AsyncWindow > time.Minute {
		bad("AsyncWindow %v: want up to 1m", o.AsyncWindow)
	}
	if o.InlineLimit < 0 || o.InlineLimit > inlineBytesMax {
		bad("InlineLimit %d: want at most 65536", o.InlineLimit)
	}
	if o.SegmentBytes < o.segmentBytesMin || o.SegmentBytes > 2*gib {
		bad("SegmentBytes %d: want 4 MiB to 2 GiB", o.SegmentBytes)
	}
	if o.LogAlign < 512 || o.LogAlign > 65536 || o.LogAlign&(o.LogAlign-1) != 0 {
		bad("LogAlign %d: want a power of two from 512 to 65536", o.LogAlign)
	}
	if o.LogInflight < 1 || o.LogInflight > 8 {
		bad("LogInflight %d: want 1 to 8", o.LogInflight)
	}
	if o.Flushers < 1 || o.Flushers > kvstoresMax {
		bad("Flushers %d: want 1 to %d", o.Flushers, kvstoresMax)
	}
	if o.Compactors < 1 || o.Compactors > 16 {
		bad("Compactors %d: want 1 to 16", o.Compactors)
	}
	if !(o.SpaceAmp >= 1.1 && o.SpaceAmp <= 4) {
		bad("SpaceAmp %g: want 1.1 to 4", o.SpaceAmp)
	}
	if o.MergeShare != 0 && !(o.MergeShare >= 0.01 && o.MergeShare <= 2) {
		bad("MergeShare %g: want 0.01 to 2", o.MergeShare)
	}
	if o.LevelMultiplier < 2 || o.LevelMultiplier > 100 {
		bad("LevelMultiplier %d: want 2 to 100", o.LevelMultiplier)
	}
	if o.BaseLevelBytes < o.tableBytesMin {
		bad("BaseLevelBytes %d: want at least 1 MiB", o.BaseLevelBytes)
	}
	if o.L0Tables < 1 || o.L0Tables > 64 {
		bad("L0Tables %d: want 1 to 64", o.L0Tables)
	}
	if o.TableBytes < o.tableBytesMin || o.TableBytes > 2*gib {
		bad("TableBytes %d: want 1 MiB to 2 GiB", o.TableBytes)
	}
	if o.TableWriteBuffer < 4*kib || o.TableWriteBuffer > 64*mib {
		bad("TableWriteBuffer %d: want 4 KiB to 64 MiB", o.TableWriteBuffer)
	}
	if o.BlockBytes < sstable.BlockBytesMin || o.BlockBytes > sstable.BlockBytesMax {
		bad("BlockBytes %d: want %d to %d", o.BlockBytes, sstable.BlockBytesMin, sstable.BlockBytesMax)
	}
	if o.BloomBits < -1 || o.BloomBits > sstable.BloomBitsMax-upperBloomBits {
		bad("BloomBits %d: want -1 to %d", o.BloomBits, sstable.BloomBitsMax-upperBloomBits)
	}
	if o.BlockCacheBytes < mib || o.BlockCacheBytes > o.tableMemoryMax() && o.MemQuota >= 16*mib {
		bad("BlockCacheBytes %d: want 1 MiB up to the %d that MemQuota leaves", o.BlockCacheBytes, o.tableMemoryMax())
	}
	if !slices.Contains([]string{"", "uring", "aio", "pread"}, o.IOEngine) {
		bad("IOEngine %q: want uring, aio or pread", o.IOEngine)
	}
	if o.IOQueueDepth < 1 || o.IOQueueDepth > vfs.IODepthMax {
		bad("IOQueueDepth %d: want 1 to 1024", o.IOQueueDepth)
	}
	if o.OpenTables < 16 {
		bad("OpenTables %d: want at least 16", o.OpenTables)
	}
	if o.IdleFlush < 0 {
		bad("IdleFlush %v: want more than 0", o.IdleFlush)
	}
	if o.MaxItemBytes < 1 || o.MaxItemBytes > 64*mib {
		bad("MaxItemBytes %d: want at most 64 MiB", o.MaxItemBytes)
	}
	return errors.Join(errs...)
}

// picker decides what to merge.
func (o Options) picker() compaction.Picker {
	if o.Leveled {
		return compaction.Leveled{L0Tables: o.L0Tables, BaseLevelBytes: o.BaseLevelBytes, LevelMultiplier: o.LevelMultiplier}
	}
	return compaction.Lazy{
		MergeShare: o.MergeShare, SpaceAmp: o.SpaceAmp, TableBytes: o.TableBytes,
		RangeBytesMin: o.rangeBytesMin, FloorBytes: o.mergeFloor,
	}
}

// tableMemoryMax is what filters, indexes and blocks of tables may take at most:
// what the write cache, the document cache and the buffers of reads leave of the
// quota.
func (o Options) tableMemoryMax() int64 {
	return max(o.MemQuota-o.WriteCache-o.DocumentCacheBytes-8*mib, o.MemQuota/16)
}

// blockBytesPlain is what a data block of a table may have in memory: a
// compressed one is filled until its stored size is BlockBytes, or it has 64 KiB.
// Single entries that are larger make blocks of their own.
func (o Options) blockBytesPlain() int {
	if o.CompressIndex {
		return max(o.BlockBytes, 64*kib)
	}
	return o.BlockBytes
}

// BatchBytesMax is the most that one Batch may take in the log: a quarter of
// the write cache, or one item where that is larger.
func (o Options) BatchBytesMax() int {
	o = o.withDefaults()
	return int(max(o.WriteCache/4, int64(o.MaxItemBytes)+recordOverheadMax))
}

// inlineBytesMax is the most that InlineLimit may be.
const inlineBytesMax = 64 * kib

// upperBloomBits is how many bits a key filters above the last level have
// beyond BloomBits: every read passes them, and few reads are answered there.
const upperBloomBits = 6

// recordOverheadMax bounds what a log record adds to key and value: presence
// and sub-kind, lengths, flags, expiry, datatype, CAS, checksum.
const recordOverheadMax = 2 + 3 + 4 + 4 + 4 + 1 + 8 + 8
