package lsm

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"fluxkv/compaction"
	"fluxkv/internal/blockcache"
	"fluxkv/internal/doccache"
	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/sstable"
	"fluxkv/wal"
)

// DB is an open store. Its methods are safe for concurrent use.
type DB struct {
	o             Options
	dir           string
	fs            vfs.FS
	lock          io.Closer
	format        manifest.Format
	secret        wal.Secret
	vbuckets      int
	kvstores      int
	batchBytesMax int
	tableCapacity int // address space of one memtable
	tableBytesMax int // most of it that is used

	log       *wal.Log
	commit    committer
	publish   publisher
	quota     quota
	current   atomic.Pointer[view]
	snapshots snapshots
	clears    clearer
	edits     edits
	sched     scheduler
	picker    compaction.Picker
	readers   *sstable.Readers
	files     tableFiles // guarded by edits.mu
	// victims are the segments that a collection is at work on; forwardBorn says
	// which merges had begun when a forward was made. Guarded by edits.mu.
	victims     map[entry.SegmentID]bool
	forwardBorn map[entry.SegmentID]uint64
	mergeSeq    atomic.Uint64
	freshBits   atomic.Uint64
	memory      tableMemory // of tables, and blocks for short
	blocks      *blockcache.Cache
	io          *vfs.IO
	reading     atomic.Int64 // reads of all batches under way
	cramped     atomic.Bool  // the disk is nearly full, as of the last look for segments
	spaceWaits  atomic.Int64 // writers for which space is being freed
	gcReason    atomic.Pointer[compaction.GCReason]
	gcAllocated atomic.Int64
	gcLive      atomic.Int64
	obsolete    obsolete
	// filesBytes is what tables and sealed segments take.
	filesBytes atomic.Int64
	scratches  scratches
	damages    damagedPlaces
	docs       *doccache.Cache // nil: off
	docViews   atomic.Int64    // views whose readers may look into docs
	spares     spares
	// expiryClock is the highest time, in Unix seconds, at which a version was
	// given up because it had expired (design R24).
	expiryClock atomic.Uint32

	readOnly atomic.Pointer[error]
	closing  atomic.Bool
	inflight atomic.Int64
	drained  chan struct{}
	once     sync.Once
	closeErr error

	counts   counters
	recovery Recovery
}

// enter counts a call that Close must wait for; leave ends it.
func (db *DB) enter() error {
	db.inflight.Add(1)
	if db.closing.Load() {
		db.leave()
		return ErrClosed
	}
	return nil
}

func (db *DB) leave() {
	if db.inflight.Add(-1) == 0 && db.closing.Load() {
		select {
		case db.drained <- struct{}{}:
		default:
		}
	}
}

// WriteOptions says how a batch is applied.
type WriteOptions struct {
	// NoWait returns as soon as the batch has its seqnos and its place in the
	// log and the memtables. The caller must call WaitDurable before it tells
	// anyone that the write succeeded.
	NoWait bool
}

// Apply commits a batch: all of it or nothing, in one group of the log, visible
// to readers as one step. It returns the last operation's seqno when the batch
// is durable (in a store that is not: visible). An empty batch returns 0.
//
// Errors: ErrClosed, ErrReadOnly, ErrOverloaded, ErrDiskFull, ErrBatchTooLarge,
// ErrValueSize, or what the file system said when it would not make another
// log segment, which may pass. After ErrReadOnly alone the batch may or may not
// be there after a restart; after every other error it is not.
func (db *DB) Apply(b *Batch, w WriteOptions) (Seqno, error) {
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.leave()
	if len(b.ops) == 0 {
		return 0, nil
	}
	last, err := db.apply(b, nil)
	if err != nil || w.NoWait {
		return last, err
	}
	return last, db.waitDurable(last, false)
}

// Set writes one document. See Apply.
func (db *DB) Set(key, value []byte, m Meta) (Seqno, error) {
	var b Batch
	if err := b.Set(key, value, m); err != nil {
		return 0, err
	}
	return db.Apply(&b, WriteOptions{})
}

// Delete writes a tombstone, whether the key exists or not. See Apply; Update
// deletes only what is there.
func (db *DB) Delete(key []byte) (Seqno, error) {
	var b Batch
	if err := b.Delete(key); err != nil {
		return 0, err
	}
	return db.Apply(&b, WriteOptions{})
}

// WaitDurable returns when everything up to s is durable and visible; in a
// store that is not durable, when it is visible. The error wraps ErrReadOnly
// when that can no longer happen.
func (db *DB) WaitDurable(s Seqno) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	return db.waitDurable(s, false)
}

// Sync returns when everything up to s is durable, in any store.
func (db *DB) Sync(s Seqno) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	return db.waitDurable(s, true)
}

// Durable reports whether writes are answered when they survive a power cut.
func (db *DB) Durable() bool { return !db.o.NonDurable }

// MaxItemBytes is the most that key and value of one document may have.
func (db *DB) MaxItemBytes() int { return db.o.MaxItemBytes }

// VBuckets is the number of partitions of the protocol.
func (db *DB) VBuckets() int { return db.vbuckets }

// VBucket returns the partition of a key.
func (db *DB) VBucket(key []byte) uint16 { return db.vbucket(key) }

// Close refuses new calls, waits for the running ones, writes what is in the
// log buffer, and releases the directory. Closing again returns the same
// error. Snapshots and iterators fail with ErrClosed afterwards; items of
// unreleased ReadBatches stay valid until their Release.
func (db *DB) Close() error {
	db.once.Do(func() { db.closeErr = db.close() })
	return db.closeErr
}

func (db *DB) close() error {
	db.closing.Store(true)
	db.quota.stop(ErrClosed)
	db.clears.stop()
	db.sched.closing()
	for db.inflight.Load() != 0 {
		<-db.drained
	}
	db.sched.stop()
	// The view goes first: what it held last is freed while the log still can.
	if v := db.current.Swap(nil); v != nil {
		v.release()
	}
	db.obsolete.end()
	db.removeObsolete()
	for _, f := range db.files {
		f.freeProbe(db)
	}
	err := db.log.Close()
	// An iterator that stands in a table closes its file when it ends.
	if e := db.readers.Close(); !errors.Is(e, sstable.ErrHandleInUse) {
		err = errors.Join(err, e)
	}
	err = errors.Join(err, db.edits.log.Close(), db.lock.Close(), db.io.Close())
	db.scratches.free()
	db.memory.close()
	return err
}

// failed is told by the log that it failed. committer.mu is held.
func (db *DB) failed(err error) {
	err = db.writeError(err)
	if db.readOnly.CompareAndSwap(nil, &err) {
		db.quota.stop(err)
		db.sched.wake()
	}
}
