package lsm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/mutant"
	"fluxkv/internal/offheap"
	"fluxkv/internal/vfs"
	"fluxkv/memtable"
	"fluxkv/wal"
)

// committer gives every batch its seqnos, its place in the log and its
// memtables, all in one order.
//
// A batch goes through it like this:
//
//	size     (no lock)  hashes, kvstores, node and record sizes; admission by the quota
//	compress (no lock)  values that are stored compressed, if asked for
//	number   (mu)       seqnos, memtable places, log place, stripe words, ticket
//	copy     (no lock)  records into the group, in parallel with other batches
//	insert   (no lock)  nodes into the memtables, in parallel
//	publish             V moves over batches in numbering order
//	wait                D reaches the batch: some waiter wrote the group (wal.Log.Wait)
//
// Everything that can fail or block comes before numbering (design R19); after
// it a batch always completes.
type committer struct {
	// mu guards next, stripes, the active memtables of every kvstore and the
	// installation of views. It is also the lock under which wal.Log places
	// groups. No I/O, no copying, no allocation under it. Order: mu first,
	// then publisher.mu, quota.mu.
	mu   sync.Mutex
	next Seqno
	// stripes holds for each stripe of keys the seqno of the last write to it, or
	// of the last one before Open
	// (design R17).
	stripes []Seqno
	active  [kvstoresMax]*table
	// clearPin is the place of a clear that is not in the manifest yet: replay
	// must find it (design R3). Zero: none.
	clearPin entry.Position

	rnd atomic.Uint64 // seeds for node heights
}

const stripeCount = 1 << 16

func stripeOf(hash uint64) uint16 { return uint16(hash >> 48) }

// condition is what an Update demands when it is numbered.
type condition struct {
	stripe uint16
	word   Seqno
}

var errStripeMoved = errors.New("stripe moved")

// separates reports whether the document of a set is kept in the log alone. Its
// plain size decides: whether it compresses must not change where it lies, and
// in a table it would lie as it is.
func (db *DB) separates(o *operation) bool { return len(o.value) > db.o.InlineLimit }

// size fills the batch's scratch: everything that numbering needs to know. Sizes
// are those of plain values, so that what is refused does not depend on how well
// it compresses.
func (db *DB) size(b *Batch) (wal.BatchSize, int64, error) {
	n := len(b.ops)
	b.sorted = resize(b.sorted, n)
	b.at = resize(b.at, n)
	b.stripes = resize(b.stripes, n)
	b.vbuckets = resize(b.vbuckets, n)
	var count, bytes [kvstoresMax]int
	s := wal.BatchSize{Count: n, Deletes: n > 0}

	rnd := db.commit.rnd.Add(0x9e3779b97f4a7c15) | 1
	stores := db.kvstores
	var home [kvstoresMax]int
	// First pass: where each operation belongs.
	for i := range b.ops {
		vb := db.vbucket(b.ops[i].key)
		b.vbuckets[i] = vb
		count[int(vb)%stores]++
	}
	sum := 0
	b.touched = b.touched[:0]
	for k := range stores {
		if count[k] > 0 {
			home[k] = sum
			b.touched = append(b.touched, touched{kvstore: k, from: sum, to: sum + count[k]})
			sum += count[k]
		}
	}
	for i := range b.ops {
		o := &b.ops[i]
		k := int(b.vbuckets[i]) % stores
		at := home[k]
		home[k]++
		b.at[i] = int32(at)
		m := &b.sorted[at]
		hash := xxhash.Sum64(o.key)
		b.stripes[i] = stripeOf(hash)
		*m = memtable.Op{
			VBucket: b.vbuckets[i], Hash: hash, Key: o.key, Meta: o.meta,
			Value: o.value, HasValue: o.kind == opSet,
			Height: memtable.RandomHeight(&rnd),
		}
		var rec int
		separated := false
		if o.kind == opDelete {
			m.Kind = entry.KindDelete
			rec = wal.DeleteBytes(len(o.key))
		} else {
			s.Deletes = false
			if len(o.key)+len(o.value) > db.o.MaxItemBytes {
				return s, 0, fmt.Errorf("%w: %d bytes, at most %d", ErrValueSize, len(o.key)+len(o.value), db.o.MaxItemBytes)
			}
			separated = db.separates(o)
			rec = wal.RecordBytes(len(o.key), o.meta, len(o.value), separated)
			if separated {
				s.Docs++
			}
		}
		s.Bytes += rec
		s.Largest = max(s.Largest, rec)
		bytes[k] += memtable.NodeBytes(m.Height, len(o.key), o.meta, len(o.value), separated)
	}
	var memory int64
	for i := range b.touched {
		t := &b.touched[i]
		t.bytes = bytes[t.kvstore]
		memory += int64(t.bytes)
	}
	if s.Bytes > db.batchBytesMax {
		return s, 0, fmt.Errorf("%w: %d bytes in the log, at most %d", ErrBatchTooLarge, s.Bytes, db.batchBytesMax)
	}
	return s, memory + int64(n)*indexBytes, nil
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

// apply commits a batch and returns its last seqno when it is in the memtables
// and the log buffer. It is visible once V, and durable once D, reach it. cond,
// if given, is checked when the batch is numbered: errStripeMoved.
func (db *DB) apply(b *Batch, cond *condition) (Seqno, error) {
	if err := db.writable(); err != nil {
		return 0, err
	}
	size, memory, err := db.size(b)
	if err != nil {
		return 0, err
	}
	if err := db.quota.admit(memory); err != nil {
		return 0, err
	}
	plain := size.Bytes
	packed := db.compress(b, &size)
	db.quota.pace.giveBack(int64(plain - size.Bytes))
	place, ticket, err := db.number(b, size, cond)
	if err != nil {
		packed.release()
		db.quota.release(memory)
		return 0, err
	}
	last := b.first + Seqno(size.Count) - 1
	db.encode(b, &place, packed)
	place.Done()
	if mutant.FlushInFlight {
		time.Sleep(time.Millisecond)
	}
	db.insert(b)
	db.refresh(b)
	db.publish.finish(ticket)
	db.counts.compression.add(packed)
	packed.release()
	b.valid = true
	db.counts.writes.Add(int64(size.Count))
	db.counts.userBytes.Add(int64(b.Bytes()))
	return last, nil
}

// number is the short step under the lock. It leaves no trace when it fails.
func (db *DB) number(b *Batch, size wal.BatchSize, cond *condition) (wal.Place, uint64, error) {
	c := &db.commit
	for {
		db.prepareIndexes(b)
		c.mu.Lock()
		err := db.checkLocked(b, cond)
		var place wal.Place
		if err == nil {
			place, err = db.log.PlaceLocked(size, c.next)
		}
		if err == nil {
			ticket := db.numberLocked(b, size, &place)
			_, padded := db.log.PlacedLocked()
			c.mu.Unlock()
			if db.quota.used.Load() > db.sched.usedAt.Load() || padded > db.sched.paddedAt.Load() {
				db.sched.wake()
			}
			return place, ticket, nil
		}
		c.mu.Unlock()
		if errors.Is(err, errTableFull) {
			err = db.rotateFull(b)
		} else {
			err = db.makeWay(err, size)
		}
		if err != nil {
			return wal.Place{}, 0, db.writeError(err)
		}
	}
}

// makeWay waits for what kept a batch from being numbered; nil means to try
// again. Other errors come back as they are.
func (db *DB) makeWay(err error, size wal.BatchSize) error {
	switch {
	case errors.Is(err, wal.ErrNoRoom):
		return db.makeRoom(size)
	case errors.Is(err, errPublishFull):
		db.publish.waitSlot()
		return nil
	}
	return err
}

var (
	errTableFull   = errors.New("memtable arena full")
	errPublishFull = errors.New("too many batches in flight")
)

// checkLocked says whether everything but the log place can be had.
func (db *DB) checkLocked(b *Batch, cond *condition) error {
	c := &db.commit
	switch {
	case db.closing.Load():
		return ErrClosed
	case cond != nil && c.stripes[cond.stripe] != cond.word:
		return errStripeMoved
	case db.publish.full():
		return errPublishFull
	}
	for i := range b.touched {
		t := &b.touched[i]
		if c.active[t.kvstore].Bytes()+t.bytes > db.tableBytesMax {
			return errTableFull
		}
	}
	return nil
}

// numberLocked cannot fail: checkLocked and PlaceLocked have seen to it.
func (db *DB) numberLocked(b *Batch, size wal.BatchSize, place *wal.Place) (ticket uint64) {
	c := &db.commit
	b.first = c.next
	c.next += Seqno(size.Count)
	for i := range b.touched {
		t := &b.touched[i]
		t.table = c.active[t.kvstore]
		if t.table.first.Segment == 0 {
			t.table.first = place.Position()
			t.table.record, t.table.padded = db.log.PlacedLocked()
		}
		var ok bool
		if t.place, ok = t.table.Reserve(t.bytes); !ok {
			panic("lsm: memtable refused a place that was checked for")
		}
		t.table.bytes.Add(int64(t.bytes) + int64(t.to-t.from)*indexBytes)
	}
	for i, s := range b.stripes {
		c.stripes[s] = b.first + Seqno(i)
	}
	ticket, ok := db.publish.enter(c.next - 1)
	if !ok {
		panic("lsm: publisher refused a slot that was checked for")
	}
	return ticket
}

// encode writes the batch's records to its place in the group.
func (db *DB) encode(b *Batch, place *wal.Place, packed *packed) {
	dst := place.Buf[:0]
	doc := 0
	for i := range b.ops {
		o := &b.ops[i]
		m := &b.sorted[b.at[i]]
		m.Seqno = b.first + Seqno(i)
		start := len(dst)
		if o.kind == opDelete {
			dst = wal.AppendDelete(dst, o.key)
			continue
		}
		separated := db.separates(o)
		if block := packed.block(i); block != nil {
			dst = wal.AppendCompressedSet(dst, o.key, o.meta, block, separated)
		} else {
			dst = wal.AppendSet(dst, o.key, o.meta, o.value, separated)
		}
		if separated {
			off := place.Offset + uint32(start)
			wal.FinishDocument(dst[start:], &db.secret, place.Segment, off, m.Seqno)
			place.SetDoc(doc, m.Seqno, off)
			doc++
			m.Address = entry.Address{Segment: place.Segment, Offset: off, Length: uint32(len(dst) - start)}
		}
	}
	if len(dst) != len(place.Buf) {
		panic(fmt.Sprintf("lsm: batch encoded to %d bytes, sized %d", len(dst), len(place.Buf)))
	}
}

// insert makes the nodes and links them.
func (db *DB) insert(b *Batch) {
	var parts [kvstoresMax]memtable.Part
	for i := range b.touched {
		t := &b.touched[i]
		parts[i] = memtable.Part{Table: t.table.Table, Place: t.place, Ops: b.sorted[t.from:t.to]}
	}
	memtable.InsertParts(parts[:len(b.touched)], &b.scratch)
}

// prepareIndexes lets the hash indexes grow before numbering: growth allocates.
func (db *DB) prepareIndexes(b *Batch) {
	v := db.pin()
	for i := range b.touched {
		t := &b.touched[i]
		v.tables[t.kvstore][0].Prepare(t.to - t.from)
	}
	v.release()
}

// rotateFull gives every kvstore of the batch whose memtable is full a fresh
// one; the full one stays readable behind it.
func (db *DB) rotateFull(b *Batch) error {
	for i := range b.touched {
		t := &b.touched[i]
		if t.bytes > db.tableBytesMax {
			return fmt.Errorf("%w: %d bytes for one memtable", ErrBatchTooLarge, t.bytes)
		}
		fresh, err := db.newTable()
		if err != nil {
			return err
		}
		c := &db.commit
		c.mu.Lock()
		if c.active[t.kvstore].Bytes()+t.bytes <= db.tableBytesMax {
			c.mu.Unlock()
			fresh.Free()
			continue
		}
		v := db.current.Load().derive()
		c.active[t.kvstore].sealed = c.next - 1
		v.tables[t.kvstore] = append([]*table{fresh}, v.tables[t.kvstore]...)
		c.active[t.kvstore] = fresh
		old := db.installLocked(v)
		c.mu.Unlock()
		old.release()
	}
	db.sched.wake() // to flush the full one
	return nil
}

func (db *DB) newTable() (*table, error) {
	if t := db.spares.take(db.tableCapacity); t != nil {
		return t, nil
	}
	t, err := memtable.New(memtable.Options{Capacity: db.tableCapacity})
	if err != nil {
		return nil, fmt.Errorf("memtable of up to %d bytes: %w", db.tableCapacity, err)
	}
	return &table{Table: t, capacity: db.tableCapacity}, nil
}

// spares are memtables that serve again in builds where making one is
// expensive. Elsewhere they would only keep pages that nobody counts.
type spares struct {
	mu   sync.Mutex // a leaf
	kept []*memtable.Table
	size int
}

func (s *spares) take(capacity int) *table {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.kept)
	if n == 0 || s.size != capacity {
		return nil
	}
	t := s.kept[n-1]
	s.kept = s.kept[:n-1]
	return &table{Table: t, capacity: capacity}
}

// free ends a memtable that nobody reads or writes.
func (s *spares) free(t *table) {
	if offheap.OnGoHeap && t.capacity != 0 && t.Reset() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.size != t.capacity {
			s.kept, s.size = nil, t.capacity
		}
		if len(s.kept) < 2*kvstoresMax {
			s.kept = append(s.kept, t.Table)
			return
		}
	}
	t.Free()
}

// writeError gives errors of the layers below the names that callers know.
func (db *DB) writeError(err error) error {
	switch {
	case errors.Is(err, wal.ErrFailed):
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	case errors.Is(err, vfs.ErrNoSpace):
		db.counts.diskFull.Add(1)
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return err
}

// writable reports why no write can be taken: closed or read-only.
func (db *DB) writable() error {
	if db.closing.Load() {
		return ErrClosed
	}
	if err := db.readOnly.Load(); err != nil {
		return *err
	}
	return nil
}

// waitDurable returns when s is visible and, in a durable store, durable.
func (db *DB) waitDurable(s Seqno, force bool) error {
	if db.o.NonDurable && !force {
		db.publish.wait(s)
		if err := db.readOnly.Load(); err != nil && s > db.log.DurableSeqno() {
			return *err
		}
		return nil
	}
	if err := db.log.Wait(s); err != nil {
		return db.writeError(err)
	}
	db.publish.wait(s)
	return nil
}
