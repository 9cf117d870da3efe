// Package lsm is the storage engine of fluxkv, to embed or to serve.
//
//	Apply(batch)                                   Get, GetMany, iterators
//	    |  one short lock: seqnos, places               |  pin the view, take the read seqno
//	    v                                               v
//	[ log group ] --copy, in parallel--   --insert--> [ memtable, one a kvstore ]
//	    |  one waiter writes for all                    |  flush
//	    v                                               v
//	log/000041.seg  log/000042.seg ...   <---address--- idx/000187.sst ...
//	documents in seqno order                            keys, and small values
//
// Every write has a place in one order, its Seqno. V, the visible seqno, and D,
// the durable one, move along it. A durable store answers a write when D has
// reached it, and reads at min(D, V); a store that is not answers at V, and
// syncs within a window.
//
// A DB is safe for concurrent use. Batch, ReadBatch and Iterator are not; each
// belongs to one goroutine.
//
// # Locks
//
// In the order in which they are taken:
//
//	clearer.mu     one clear at a time; held across I/O, only clears wait for it
//	edits.mu       a change of the manifest, from looking to recording; held
//	               across I/O, no reader or writer of documents waits for it
//	scheduler.mu   which kvstores are being flushed, and who waits for it
//	committer.mu   seqnos, stripe words, active memtables, views, places in the
//	               log; never held across I/O, copying or allocation
//	snapshots.mu   registered seqnos and the horizon
//	publisher.mu   finished batches, and V; a leaf
//	quota.mu       stalled writers; a leaf
//	pacer.mu       what writers may write to hold the space target; a leaf
//	obsolete.mu    dropped tables whose files are to be removed; a leaf
//	scratches.mu   buffers of reads; a leaf
//	tableMemory.mu the size of the block cache; above the locks of its shards
//	damages.mu     which damaged places were logged; a leaf
//
// Reading takes none of them but the last: views are pinned by a counter,
// memtables are read without locks, tables are held open by a counter.
package lsm
