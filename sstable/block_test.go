package sstable

import (
	"strings"
	"testing"
)

// TestS4_BlocksThatLieAreRefused: one lie at a time, each told from the others
// by its words.
func TestS4_BlocksThatLieAreRefused(t *testing.T) {
	build := func(keys ...string) []byte {
		var b blockBuilder
		prev := ""
		for i, k := range keys {
			e := blockEntry{key: []byte(k), seqno: uint64(100 + i), meta: metaInline, value: []byte("value")}
			if i%2 == 1 {
				e.meta, e.address = metaAddress, [3]uint64{1, uint64(i), 300}
			}
			b.tryAdd(&e, lcp([]byte(prev), e.key), 1<<20, 1)
			prev = k
		}
		return append(b.encode(nil), make([]byte, tailBytes)...)
	}
	fixed := func() []byte { return build("aaa1", "aaa2", "aab3", "aab4") }
	mixed := func() []byte { return build("a", "ab", "abc", "b") }
	one := func() []byte { return build("key") }
	var b block
	at := func(data []byte, place func(*block) int) int {
		if err := b.parse(data); err != nil {
			t.Fatal(err)
		}
		return place(&b)
	}
	for _, c := range []struct {
		name string
		data []byte
		lie  func(d []byte)
		want string
	}{
		{"nothing", one(), func(d []byte) {}, ""},
		{"no entries", one(), func(d []byte) { d[0] = 0 }, "bad count"},
		{"unknown shape bit", one(), func(d []byte) { d[2] |= 64 }, "bad count, shape"},
		{"huge groups", one(), func(d []byte) { d[3] = 8 }, "group size"},
		{"byte that is zero", one(), func(d []byte) { d[27] = 1 }, "bad count, shape"},
		{"keys shorter than the prefix", one(), func(d []byte) { d[4] = 2 }, "length of keys"},
		{"length of keys that differ", mixed(), func(d []byte) { d[4] = 2 }, "length of keys"},
		{"seqnos too wide", one(), func(d []byte) { d[15] = 57 }, "57 bits"},
		{"suffixes elsewhere", fixed(), func(d []byte) { d[18]++ }, "offsets of columns"},
		{"seqnos elsewhere", fixed(), func(d []byte) { d[20]++ }, "offsets of columns"},
		{"values elsewhere", fixed(), func(d []byte) { d[22]++ }, "offsets of columns"},
		{"runs elsewhere", fixed(), func(d []byte) { d[24] = 255 }, "place of runs"},
		{"runs beside one meta byte", one(), func(d []byte) { d[24] = 1 }, "runs in a block"},
		{"value length without its shape", fixed(), func(d []byte) { d[2] &^= shapeValues }, "length of values"},
		{"shape of values without values", one(), func(d []byte) { d[2] &^= shapeInline }, "length of values"},
		{"a single key shares more than it has", one(), func(d []byte) { d[at(d, func(b *block) int { return b.groupPrefix })] = 1 }, "shares more"},
		{"group elsewhere", fixed(), func(d []byte) { d[at(d, func(b *block) int { return b.groupOffset })]++ }, "not where its offset"},
		{"group shares less", fixed(), func(d []byte) { d[at(d, func(b *block) int { return b.groupPrefix })]-- }, "group"},
		{"head too long", mixed(), func(d []byte) { d[at(d, func(b *block) int { return b.suffixes })] = 250 }, "passes its area"},
		{"suffix too long", mixed(), func(d []byte) { d[at(d, func(b *block) int { return b.suffixes })+2] = 250 }, "passes its area"},
		{"suffix too short", mixed(), func(d []byte) { d[at(d, func(b *block) int { return b.suffixes })+2]-- }, "do not fill"},
		{"runs not ascending", fixed(), func(d []byte) { d[at(d, func(b *block) int { return b.metas })+4] = 0 }, "not ascending"},
		{"run behind the last entry", fixed(), func(d []byte) { d[len(d)-tailBytes-2] = 4 }, "not ascending"},
		{"reserved kind", fixed(), func(d []byte) { d[at(d, func(b *block) int { return b.metas })] = 3 }, "meta byte"},
		{"reserved meta bit", one(), func(d []byte) { d[26] |= 64 }, "meta byte"},
		{"an entry more has a value", fixed(), func(d []byte) { d[at(d, func(b *block) int { return b.metas })+3] = metaInline }, "pass the block"},
		{"an entry more has flags", one(), func(d []byte) { d[26] |= metaFlags }, "do not fill"},
		{"seqno out of range", one(), func(d []byte) { le.PutUint64(d[8:], 1<<56-1) }, ""},
		{"longer than its columns", append(one(), 0), func(d []byte) {}, "do not fill"},
		{"shorter than its head", one()[:30], func(d []byte) {}, "shorter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.lie(c.data)
			var b block
			err := b.parse(c.data)
			if err == nil {
				err = b.check(false)
			}
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v; want %q in it", err, c.want)
			}
		})
	}
}
