package s3fifo

import (
	"encoding/binary"
	"fmt"
	"testing"

	"fluxkv/internal/offheap"
)

// check compares everything a shard knows with everything else it knows.
func (s *Shard) check() error {
	if s.data == nil {
		return nil
	}
	chunkBytes := int64(1) << s.chunkShift
	if got := s.used() - int64(s.draining)*chunkBytes; got > s.limit && s.bits != 0 {
		return fmt.Errorf("%d bytes of %d", got, s.limit)
	}
	// Queues.
	inQueue := map[Obj]queueID{}
	for id := queueSmall; id < queueCount; id++ {
		q := &s.queues[id]
		n, bytes, prev := int64(0), int64(0), Obj(0)
		for o := q.head; o != 0; o = s.at(o).next {
			h := s.at(o)
			if h.queue != id || h.prev != prev {
				return fmt.Errorf("object %d in queue %d: marked %d, %d before it, want %d", o, id, h.queue, h.prev, prev)
			}
			if high := highClass(s.chunks[s.chunkOf(o)].class); high != (id == queueHigh) {
				return fmt.Errorf("object %d of queue %d lies in a chunk with high %v", o, id, high)
			}
			if _, ok := inQueue[o]; ok {
				return fmt.Errorf("object %d is in two queues", o)
			}
			inQueue[o] = id
			n++
			bytes += s.slotBytes(o)
			prev = o
		}
		if q.tail != prev || q.objects != n || q.bytes != bytes {
			return fmt.Errorf("queue %d: tail %d want %d, %d objects want %d, %d bytes want %d", id, q.tail, prev, q.objects, n, q.bytes, bytes)
		}
	}
	// Table.
	n := 0
	for _, e := range s.table {
		if e == 0 {
			continue
		}
		n++
		o := Obj(e)
		if _, ok := inQueue[o]; !ok {
			return fmt.Errorf("the table has object %d, no queue has", o)
		}
		if found, ok := s.Find(s.at(o).tag); !ok || found != o {
			return fmt.Errorf("object %d: found %d %v by its tag", o, found, ok)
		}
	}
	if n != len(inQueue) || s.bits != 0 && n > loadMax(s.bits) {
		return fmt.Errorf("the table of %d bits has %d objects, the queues %d", s.bits, n, len(inQueue))
	}
	// Owners.
	if s.ownersOn {
		n = 0
		for i, o := range s.owners {
			for prev := Obj(0); o != 0; prev, o = o, s.at(o).ownerNext {
				if h := s.at(o); h.ownerPrev != prev || ownerOf(h.tag) != i {
					return fmt.Errorf("object %d in chain %d: %d before it, want %d", o, i, h.ownerPrev, prev)
				}
				if _, ok := inQueue[o]; !ok {
					return fmt.Errorf("object %d is in chain %d, in no queue", o, i)
				}
				n++
			}
		}
		if n != len(inQueue) {
			return fmt.Errorf("the chains have %d objects, the queues %d", n, len(inQueue))
		}
	}
	// Chunks.
	lists := map[uint32]string{}
	walk := func(ci uint32, name string) error {
		for prev := none; ci != none; prev, ci = ci, s.chunks[ci].next {
			if s.chunks[ci].prev != prev {
				return fmt.Errorf("chunk %d: %d before it, want %d", ci, s.chunks[ci].prev, prev)
			}
			if lists[ci] != "" {
				return fmt.Errorf("chunk %d is %s and %s", ci, lists[ci], name)
			}
			lists[ci] = name
		}
		return nil
	}
	if err := walk(s.freeChunk, "free"); err != nil {
		return err
	}
	if err := walk(s.releasedChunk, "released"); err != nil {
		return err
	}
	for k := range s.partial {
		if err := walk(s.partial[k], fmt.Sprintf("partial %d", k)); err != nil {
			return err
		}
	}
	var released, draining, high, low uint32
	objects := 0
	for ci := range s.freshChunks {
		c := &s.chunks[ci]
		list := lists[ci]
		delete(lists, ci)
		if c.state == chunkFree {
			if list == "released" {
				released++
			} else if list != "free" {
				return fmt.Errorf("chunk %d is in list %q", ci, list)
			}
			continue
		}
		if highClass(c.class) {
			high++
		} else {
			low++
		}
		k := s.class(c.class)
		want := ""
		if c.state == chunkUsed && c.live < k.slots {
			want = fmt.Sprintf("partial %d", c.class)
		}
		if list != want || c.state == chunkEmptying {
			return fmt.Errorf("chunk %d in state %d with %d of %d objects is in list %q", ci, c.state, c.live, k.slots, list)
		}
		if c.state == chunkDraining {
			draining++
		}
		live := uint32(0)
		for i := range c.carved {
			o := s.slotOf(ci, i)
			h := s.at(o)
			switch id, ok := inQueue[o]; {
			case ok && id == h.queue:
				objects++
				live++
				if c.state != chunkUsed {
					return fmt.Errorf("object %d in chunk %d of state %d", o, ci, c.state)
				}
			case !ok && h.queue == queueRemoved:
				live++
				if n := h.pins.Load(); n&removed == 0 || n == removed {
					return fmt.Errorf("object %d is removed, its pins are %x", o, n)
				}
			case ok || h.queue != queueNone:
				return fmt.Errorf("slot %d of chunk %d has mark %d, in a queue %v", i, ci, h.queue, ok)
			}
		}
		if live != c.live || live == 0 {
			return fmt.Errorf("chunk %d has %d objects, want %d", ci, c.live, live)
		}
		free := uint32(0)
		for o := c.free; o != 0; o = s.at(o).next {
			if s.at(o).queue != queueNone || s.chunkOf(o) != ci {
				return fmt.Errorf("slot %d among the free ones of chunk %d", o, ci)
			}
			free++
		}
		if free+live != c.carved || c.carved > k.slots {
			return fmt.Errorf("chunk %d: %d free and %d used slots, %d were carved", ci, free, live, c.carved)
		}
	}
	if objects != len(inQueue) || len(lists) != 0 {
		return fmt.Errorf("%d objects in chunks, %d in queues; lists %v", objects, len(inQueue), lists)
	}
	if released != s.released || draining != s.draining || high != s.highChunks || low != s.lowChunks {
		return fmt.Errorf("released %d want %d, draining %d want %d, high %d want %d, low %d want %d",
			s.released, released, s.draining, draining, s.highChunks, high, s.lowChunks, low)
	}
	return nil
}

func checkCache(t interface {
	Helper()
	Fatalf(string, ...any)
}, c *Cache) {
	t.Helper()
	for i := range c.shards {
		if err := c.shards[i].check(); err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
	}
}

func newCache(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	before := offheap.Mapped()
	t.Cleanup(func() {
		mapped := int64(cap(c.data) + cap(c.tables))
		c.Close()
		if got := before - offheap.Mapped(); got < mapped {
			t.Errorf("Close gave %d bytes back, want %d", got, mapped)
		}
	})
	return c
}

// pattern is what an object consists of, over and over.
func pattern(t Tag, n int) uint64 { return t[0]*31 + t[1]*17 + uint64(n) + 1<<63 }

// fill writes what filled checks.
func fill(b []byte, t Tag) {
	x := pattern(t, len(b))
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, x)
	}
	for i := range b {
		b[i] = byte(x)
	}
}

func filled(b []byte, t Tag) bool {
	x := pattern(t, len(b))
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != x {
			return false
		}
	}
	for i := range b {
		if b[i] != byte(x) {
			return false
		}
	}
	return true
}

// get looks t up as a reader does, and checks its bytes.
func get(tb testing.TB, c *Cache, t Tag) bool {
	tb.Helper()
	s := c.Shard(t)
	s.Lock()
	defer s.Unlock()
	o, ok := s.Find(t)
	if !ok {
		s.Miss()
		return false
	}
	s.Hit(o)
	if !filled(s.Bytes(o), t) {
		tb.Fatalf("object %x has other bytes", t)
	}
	return true
}

func put(c *Cache, t Tag, n int, p Priority) bool {
	s := c.Shard(t)
	s.Lock()
	defer s.Unlock()
	if _, ok := s.Find(t); ok {
		return true
	}
	_, b, ok := s.Insert(t, n, p)
	fill(b, t)
	return ok
}
