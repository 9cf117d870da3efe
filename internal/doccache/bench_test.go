package doccache

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"fluxkv/internal/entry"
)

// filled is a cache of n documents with values of the given size, and their keys.
func filled(b *testing.B, n, value int) (*Cache, []Key) {
	c, err := New(Options{Bytes: 512 << 20})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	rnd := rand.New(rand.NewPCG(1, 2))
	keys := make([]Key, n)
	names := make([]byte, 16*n)
	d := Doc{Seqno: 1, Value: make([]byte, value)}
	for i := range keys {
		name := names[16*i:][:16]
		binary.LittleEndian.PutUint64(name, uint64(i))
		keys[i] = Key{Hash: rnd.Uint64(), User: name}
		c.Fill(&keys[i], 1, &d)
	}
	return c, keys
}

// BenchmarkGet is a look-up that finds, alone and in batches of 32 that touch
// ahead.
func BenchmarkGet(b *testing.B) {
	for _, of := range []struct{ n, value int }{{1000, 8}, {1_000_000, 8}, {200_000, 1000}} {
		c, keys := filled(b, of.n, of.value)
		dst := make([]byte, 0, 64<<10)
		for touch := range 2 {
			b.Run(fmt.Sprintf("documents=%d/bytes=%d/touch=%d", of.n, of.value, touch), func(b *testing.B) {
				at, found := 0, 0
				var d Doc
				var batch [32]*Key
				for range b.N/32 + 1 {
					for i := range batch {
						at = (at + 7919) % len(keys)
						batch[i] = &keys[at]
					}
					if touch > 0 {
						for _, k := range batch {
							c.Touch(k)
						}
					}
					dst = dst[:0]
					for _, k := range batch {
						var ok bool
						if dst, ok = c.Get(k, 1, dst, 1<<20, &d); ok {
							found++
						}
					}
				}
				if found < b.N*9/10 {
					b.Fatalf("%d of %d are there", found, b.N)
				}
			})
		}
	}
}

// BenchmarkWrite is a write of a key that is there, and of one that is not.
func BenchmarkWrite(b *testing.B) {
	c, keys := filled(b, 1_000_000, 8)
	value := make([]byte, 8)
	seqno := entry.Seqno(1)
	for _, held := range []bool{true, false} {
		b.Run(fmt.Sprintf("held=%v", held), func(b *testing.B) {
			at := 0
			for range b.N/32 + 1 {
				var batch [32]Key
				for i := range batch {
					at = (at + 7919) % len(keys)
					batch[i] = keys[at]
					if !held {
						batch[i].Hash ^= 1 << 40
					}
				}
				for i := range batch {
					c.Touch(&batch[i])
				}
				for i := range batch {
					seqno++
					c.Write(&batch[i], &Doc{Seqno: seqno, Value: value})
				}
			}
		})
	}
}
