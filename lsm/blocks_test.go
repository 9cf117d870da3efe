package lsm

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// blocksStore has n documents of 8 bytes in tables, in small blocks.
func blocksStore(t *testing.T, n int, change func(*Options)) (*DB, *memfs.FS) {
	t.Helper()
	fs := memfs.New()
	o := testOptions(fs)
	o.BlockBytes, o.flushOnDemand = 512, true
	if change != nil {
		change(&o)
	}
	db := mustOpen(t, "data", o)
	t.Cleanup(func() { db.Close() })
	fillBlocks(t, db, n, 8)
	return db, fs
}

func blocksKey(i int) []byte { return fmt.Appendf(nil, "key%06d", i) }

// blocksValue has bytes bytes and names its key.
func blocksValue(i, bytes int) string {
	return strings.Repeat(fmt.Sprintf("%08d", i), bytes/8)
}

// fillBlocks writes n documents and flushes them.
func fillBlocks(t *testing.T, db *DB, n, bytes int) {
	t.Helper()
	var b Batch
	for i := range n {
		if err := b.Set(blocksKey(i), []byte(blocksValue(i, bytes)), Meta{}); err != nil {
			t.Fatal(err)
		}
		if b.Len() == 50 || i == n-1 {
			if _, err := db.Apply(&b, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			b.Reset()
		}
	}
	mustFlush(t, db)
}

// readAll gets every document, alone and in batches, and returns how many blocks
// were read from the device.
func readAll(t *testing.T, db *DB, n, bytes int) int64 {
	t.Helper()
	before := db.Stats()
	var b ReadBatch
	for i := range n {
		item, err := db.Get(nil, blocksKey(i))
		if err != nil || string(item.Value) != blocksValue(i, bytes) {
			t.Fatalf("get %d: %q, %v", i, item.Value, err)
		}
		b.Add(blocksKey(i))
		if b.Len() < 100 && i < n-1 {
			continue
		}
		if err := db.GetMany(&b); err != nil {
			t.Fatal(err)
		}
		for j := range b.Len() {
			if k := i - b.Len() + 1 + j; b.Err(j) != nil || string(b.Item(j).Value) != blocksValue(k, bytes) {
				t.Fatalf("get many %d: %v", k, b.Err(j))
			}
		}
		b.Reset()
	}
	after := db.Stats()
	return after.BlockReads + after.IndexReads - before.BlockReads - before.IndexReads
}

func TestBlocksAreReadOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
	}{
		{"plain", nil},
		{"compressed", func(o *Options) { o.CompressIndex = true }},
		{"no filters", func(o *Options) { o.BloomBits = -1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 2000
			db, _ := blocksStore(t, n, c.change)
			if first := readAll(t, db, n, 8); first == 0 {
				t.Error("nothing was read from the device")
			}
			if again := readAll(t, db, n, 8); again != 0 {
				t.Errorf("%d blocks were read again", again)
			}
			s := db.Stats()
			if s.BlockCache.Bytes > s.BlockCache.Limit {
				t.Errorf("the cache takes %d bytes of %d", s.BlockCache.Bytes, s.BlockCache.Limit)
			}
			// What a merge wrote is not there yet, and what it replaced is of no use.
			set(t, db, string(blocksKey(0)), blocksValue(0, 8))
			mustFlush(t, db)
			if err := db.Compact(); err != nil {
				t.Fatal(err)
			}
			if merged := readAll(t, db, n, 8); merged == 0 {
				t.Error("blocks of merged tables came from nowhere")
			}
		})
	}
}

// TestLargeBlocksAreCached: whatever --key-block-size is, and however well its
// blocks compress, the cache has room for them.
func TestLargeBlocksAreCached(t *testing.T) {
	const n, bytes = 400, 2000
	for _, c := range []struct {
		name     string
		block    int
		compress bool
	}{{"256 KiB", 256 * kib, false}, {"1 MiB", mib, false}, {"16 KiB compressed", 16 * kib, true}} {
		t.Run(c.name, func(t *testing.T) {
			db, _ := blocksStore(t, 0, func(o *Options) {
				o.BlockBytes, o.CompressIndex, o.InlineLimit = c.block, c.compress, 4096
				o.VBuckets, o.KVStores = 1, 1
				o.BlockCacheBytes = 16 * mib
			})
			fillBlocks(t, db, n, bytes)
			if first := readAll(t, db, n, bytes); first == 0 {
				t.Error("nothing was read from the device")
			}
			if again := readAll(t, db, n, bytes); again != 0 {
				t.Errorf("%d blocks were read again", again)
			}
		})
	}
}

func TestWarmTablesAreNotRead(t *testing.T) {
	for _, compress := range []bool{false, true} {
		t.Run(fmt.Sprintf("compressed %v", compress), func(t *testing.T) {
			const n = 2000
			db, _ := blocksStore(t, n, func(o *Options) { o.WarmNewTables, o.CompressIndex = true, compress })
			if reads := readAll(t, db, n, 8); reads != 0 {
				t.Errorf("%d blocks of flushed tables were read", reads)
			}
			set(t, db, string(blocksKey(0)), blocksValue(0, 8))
			mustFlush(t, db)
			if err := db.Compact(); err != nil {
				t.Fatal(err)
			}
			if reads := readAll(t, db, n, 8); reads != 0 {
				t.Errorf("%d blocks of merged tables were read", reads)
			}
		})
	}
}

// TestBlocksGiveWayToWhatIsPinned: open tables take memory from the cache, and
// give it back.
func TestBlocksGiveWayToWhatIsPinned(t *testing.T) {
	var m tableMemory
	if err := m.init(64*mib, 4*kib); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		s := m.blocks.Stats()
		if s.Limit+m.pinned.Used() > m.total+m.total/64 || s.Bytes > s.Limit {
			t.Errorf("%s: %d bytes in a cache of %d beside %d pinned, of %d in all", when, s.Bytes, s.Limit, m.pinned.Used(), m.total)
		}
	}
	block := make([]byte, 4000)
	put := func() {
		for i := range uint64(64 * mib / 4000) {
			m.blocks.Put(1, i*4096, block, 0)
		}
	}
	put()
	check("full")
	if !m.reserveProbe(30 * mib) {
		t.Fatal("no memory for the probe")
	}
	put()
	check("with the probe")
	if m.reserveProbe(4 * mib) {
		t.Error("the probe got more than half")
	}
	if !m.pinned.TryReserve(30 * mib) {
		t.Fatal("no memory for filters")
	}
	m.fit()
	put()
	check("with filters")
	if m.pinned.TryReserve(mib) {
		t.Error("nothing is left for blocks")
	}
	m.pinned.Release(30 * mib)
	m.releaseProbe(30 * mib)
	put()
	check("empty again")
	if s := m.blocks.Stats(); s.Limit < 63*mib || s.Bytes < 60*mib {
		t.Errorf("%d bytes in a cache of %d", s.Bytes, s.Limit)
	}
	m.close()
	m.fit() // by an iterator that outlived the store
}

// TestReadsAnswerInFront: what is behind one slow read may be answered before
// it, what is in front of it is; and nothing is lost when nobody waits.
func TestReadsAnswerInFront(t *testing.T) {
	const n = 3000
	for _, bytes := range []int{8, 1000} {
		t.Run(fmt.Sprintf("%d bytes", bytes), func(t *testing.T) {
			db, fs := blocksStore(t, 0, func(o *Options) { o.VBuckets, o.KVStores = 1, 1 })
			fillBlocks(t, db, n, bytes)
			readAll(t, db, n, bytes) // tables are open
			// A document far from the front, in a block or a record of its own.
			const slow = 2500
			gate := make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			t.Cleanup(open)
			var held atomic.Int64
			db.blocks.Resize(0)
			find := func() (where vfs.Op) {
				var last atomic.Pointer[vfs.Op]
				fs.SetHook(func(op vfs.Op) error {
					if op.Kind == vfs.OpReadAt {
						last.Store(&op)
					}
					return nil
				})
				if _, err := db.Get(nil, blocksKey(slow)); err != nil {
					t.Fatal(err)
				}
				return *last.Load()
			}
			where := find()
			fs.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpReadAt && op.Name == where.Name && op.Off == where.Off {
					held.Add(1)
					<-gate
				}
				return nil
			})
			start := func(b *ReadBatch) {
				for i := range n {
					b.Add(blocksKey(i))
				}
				if err := db.StartMany(b); err != nil {
					t.Fatal(err)
				}
			}
			var b, dropped ReadBatch
			start(&b)
			got := 0
			until(t, "all in front of the slow read", func() bool {
				got = b.Ready()
				return got > slow-500 // pages of 4 KiB: neighbours share the read that is held
			})
			if got > slow {
				t.Errorf("%d keys are ready past one whose read is held", got)
			}
			for i := range got {
				if b.Err(i) != nil || string(b.Item(i).Value) != blocksValue(i, bytes) {
					t.Errorf("key %d: %v", i, b.Err(i))
				}
			}
			start(&dropped)
			until(t, "reads to be held", func() bool { return dropped.Ready() >= 0 && held.Load() >= 2 })
			done := make(chan struct{})
			go func() {
				dropped.Release() // waits for reads that are under way
				close(done)
			}()
			closed := make(chan error)
			go func() { closed <- db.Close() }() // and so does Close
			select {
			case <-done:
				t.Error("released with a read under way")
			case <-closed:
				t.Error("closed with a read under way")
			default:
			}
			open()
			if ready := b.Wait(n); ready != n {
				t.Fatalf("%d ready", ready)
			}
			for i := range n {
				if b.Err(i) != nil || string(b.Item(i).Value) != blocksValue(i, bytes) {
					t.Errorf("key %d: %v", i, b.Err(i))
				}
			}
			b.Release()
			<-done
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDamageIsLoggedOnce: each read of a damaged place fails and counts, and the
// log names the place once; its neighbours are served.
func TestDamageIsLoggedOnce(t *testing.T) {
	var lines atomic.Int64
	db, fs := blocksStore(t, 0, func(o *Options) {
		o.Logf = func(format string, args ...any) {
			if strings.Contains(fmt.Sprintf(format, args...), "damage") {
				lines.Add(1)
			}
		}
	})
	fillBlocks(t, db, 100, 8000)
	readAll(t, db, 100, 8000)
	var last atomic.Pointer[vfs.Op]
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpReadAt {
			last.Store(&op)
		}
		return nil
	})
	if _, err := db.Get(nil, blocksKey(50)); err != nil {
		t.Fatal(err)
	}
	fs.SetHook(nil)
	where := last.Load()
	damage(t, fs, where.Name, where.Off+4096)
	before := db.Stats()
	for range 5 {
		if _, err := db.Get(nil, blocksKey(50)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a damaged document: %v", err)
		}
	}
	for _, i := range []int{0, 48, 52, 99} {
		if _, err := db.Get(nil, blocksKey(i)); err != nil {
			t.Errorf("document %d beside a damaged one: %v", i, err)
		}
	}
	s := db.Stats()
	if n := s.CorruptReads - before.CorruptReads; n != 5 {
		t.Errorf("%d damaged reads counted, want 5", n)
	}
	if n := s.Rereads - before.Rereads; n < 5 {
		t.Errorf("%d reads were repeated, want one for each", n)
	}
	if lines.Load() != 1 {
		t.Errorf("logged %d times", lines.Load())
	}
}
