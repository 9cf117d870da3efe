package s3fifo

import (
	"testing"

	"pgregory.net/rapid"
)

// TestModel plays random operations and knows of each object that was ever put
// which bytes it must have, and of each pinned one that it must stay.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type pin struct {
			s     *Shard
			o     Obj
			t     Tag
			n     int
			there bool // not removed meanwhile
		}
		const bytesMax = 3 << 20
		c, err := New(Options{
			Bytes:       rapid.Int64Range(0, bytesMax).Draw(t, "limit"),
			BytesMax:    bytesMax,
			Shards:      1 << rapid.IntRange(0, 2).Draw(t, "shards"),
			ObjectBytes: rapid.IntRange(0, 200_000).Draw(t, "largest"),
			Owners:      rapid.Bool().Draw(t, "owners"),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		sizes := map[Tag]int{} // of what may be there
		var pins []pin
		drawTag := func(t *rapid.T) Tag {
			return Tag{rapid.Uint64Range(0, 5).Draw(t, "owner"), rapid.Uint64Range(0, 400).Draw(t, "number")}
		}
		resized := false
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				first := drawTag(t)
				n := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(3000, 5000), rapid.IntRange(0, 40_000)).Draw(t, "bytes")
				p := Priority(rapid.IntRange(0, 1).Draw(t, "priority"))
				for i := range uint64(rapid.IntRange(1, 120).Draw(t, "count")) {
					tag := Tag{first[0], first[1] + i}
					s := c.Shard(tag)
					s.Lock()
					if o, ok := s.Find(tag); ok {
						if len(s.Bytes(o)) != sizes[tag] || !filled(s.Bytes(o), tag) {
							t.Fatalf("object %x: %d bytes, want %d", tag, len(s.Bytes(o)), sizes[tag])
						}
					} else if _, b, ok := s.Insert(tag, n, p); ok {
						if len(b) != n {
							t.Fatalf("object %x: %d bytes to fill, want %d", tag, len(b), n)
						}
						fill(b, tag)
						sizes[tag] = n
					} else if s.limit > 1<<20 && len(pins) == 0 && n <= c.ObjectBytesMax() {
						t.Fatalf("object %x of %d bytes was refused", tag, n)
					}
					s.Unlock()
				}
			},
			"get": func(t *rapid.T) {
				tag := drawTag(t)
				s := c.Shard(tag)
				c.Touch(tag)
				s.Lock()
				o, ok := s.Find(tag)
				n, known := sizes[tag]
				if ok {
					if !known || len(s.Bytes(o)) != n || !filled(s.Bytes(o), tag) {
						t.Fatalf("object %x: %d bytes, want %d, known %v", tag, len(s.Bytes(o)), n, known)
					}
					for range rapid.IntRange(1, 3).Draw(t, "hits") {
						s.Hit(o)
					}
					if len(pins) < 50 && rapid.Bool().Draw(t, "pin") {
						s.Pin(o)
						pins = append(pins, pin{s, o, tag, n, true})
					}
				}
				s.Unlock()
			},
			"unpin": func(t *rapid.T) {
				if len(pins) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(pins)-1).Draw(t, "which")
				pins[i].s.Unpin(pins[i].o)
				pins = append(pins[:i], pins[i+1:]...)
			},
			"remove": func(t *rapid.T) {
				tag := drawTag(t)
				s := c.Shard(tag)
				s.Lock()
				if o, ok := s.Find(tag); ok {
					s.Remove(o)
				}
				s.Unlock()
				delete(sizes, tag)
				for i := range pins {
					if pins[i].t == tag {
						pins[i].there = false
					}
				}
			},
			"remove owner": func(t *rapid.T) {
				if !c.shards[0].ownersOn {
					t.Skip()
				}
				owner := rapid.Uint64Range(0, 5).Draw(t, "owner")
				for i := range c.Shards() {
					c.Shards()[i].Lock()
					c.Shards()[i].RemoveOwner(owner)
					c.Shards()[i].Unlock()
				}
				for tag := range sizes {
					if tag[0] == owner {
						delete(sizes, tag)
					}
				}
				for i := range pins {
					if pins[i].t[0] == owner {
						pins[i].there = false
					}
				}
			},
			"resize": func(t *rapid.T) {
				limit := rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(bytesMax)), rapid.Int64Range(0, bytesMax)).Draw(t, "limit")
				c.Resize(limit)
				resized = true
				for i := range pins {
					pins[i].there = false
				}
				if s := c.Stats(); s.Limit > limit {
					t.Fatalf("limit %d, want %d", s.Limit, limit)
				}
			},
			"": func(t *rapid.T) {
				checkCache(t, c)
				if s := c.Stats(); s.Bytes > s.Limit && len(pins) == 0 {
					t.Fatalf("%d bytes of %d, nothing is pinned, resized %v", s.Bytes, s.Limit, resized)
				}
				for _, p := range pins {
					if b := p.s.Bytes(p.o); len(b) != p.n || !filled(b, p.t) {
						t.Fatalf("pinned object %x changed", p.t)
					}
					if o, ok := p.s.Find(p.t); p.there && (!ok || o != p.o) {
						t.Fatalf("pinned object %x: found %d %v, want %d", p.t, o, ok, p.o)
					}
				}
			},
		})
	})
}
