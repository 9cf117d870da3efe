package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"fluxkv/bench"
)

// Connections of TestLarge, the bytes of its keys and of its two kinds of
// values.
const (
	largeConns      = 8
	largeKeyBytes   = 12
	largeValueBytes = 1024
	smallValueBytes = 8
	largeRoundsMax  = 8 // of SIGKILL: every loaded key is written again by one of them
)

// largeData says what every key of TestLarge must hold, from the key's number
// alone: 7,000,000 keys need no table of what was written.
//
//	numbers [0, loaded)                      the load, both kinds of values mixed
//	        [loaded, loaded+rounds*fresh)    written for the first time by a round of kills
//	        [.., all)                        never written
//
// Number n is place n/largeConns of connection n%largeConns, which alone writes
// it: the order of its writes is the order of their requests.
type largeData struct {
	keys    *bench.Keys
	loaded  uint64
	large   uint64 // of loaded: how many have 1 KB
	rounds  uint64
	fresh   uint64 // new keys of each round
	all     uint64
	soon    uint64 // lags of later writes behind the first one, in places
	later   uint64
	latest  uint64
	placesN uint64 // places of each connection in the load
}

// newLargeData takes the numbers of documents of both kinds.
func newLargeData(large, small, rounds uint64) (*largeData, error) {
	if large+small < 64*largeConns || rounds > largeRoundsMax {
		return nil, fmt.Errorf("%d + %d documents, %d rounds: want at least %d documents and at most %d rounds",
			large, small, rounds, 64*largeConns, largeRoundsMax)
	}
	d := &largeData{large: large, rounds: rounds}
	// Whole places: every connection has as many.
	d.placesN = (large + small + largeConns - 1) / largeConns
	d.loaded = d.placesN * largeConns
	d.fresh = (d.placesN/128 + 1) * largeConns
	d.all = d.loaded + rounds*d.fresh + d.loaded/32
	d.soon = 16
	d.later = max(d.placesN/8, d.soon+1)
	d.latest = max(d.placesN/4, d.later+1)
	var err error
	d.keys, err = bench.NewKeys(bench.KeyHex, largeKeyBytes, d.all)
	return d, err
}

// version is one state of a key; absent is the state of a key without a
// document.
type version uint8

const absent version = 0

// second is what the load writes to number n once more, lag places after its
// first version, and whether it does.
//
//	1 in 16   version 2; of these 1 in 4 of the other size
//	1 in 64   deleted
//	1 in 64   deleted, and set again as version 3
//	1 in 64   version 2 at once, later deleted
func (d *largeData) second(n, lag uint64) (version, bool) {
	switch r := n / largeConns % 64; {
	case r%16 == 3:
		return 2, lag == d.later
	case r == 7:
		return absent, lag == d.later
	case r == 23 && lag == d.later:
		return absent, true
	case r == 23:
		return 3, lag == d.latest
	case r == 39 && lag == d.soon:
		return 2, true
	case r == 39:
		return absent, lag == d.latest
	}
	return 0, false
}

// once reports whether the load writes number n a single time.
func (d *largeData) once(n uint64) bool {
	r := n / largeConns % 64
	return n < d.loaded && r%16 != 3 && r != 7 && r != 23 && r != 39
}

// afterLoad is the state of number n when the load is done.
func (d *largeData) afterLoad(n uint64) version {
	if n >= d.loaded {
		return absent
	}
	v := version(1)
	for _, lag := range []uint64{d.soon, d.later, d.latest} {
		if w, ok := d.second(n, lag); ok {
			v = w
		}
	}
	return v
}

// roundWrite is request q of connection c in round: the number it writes, and
// the version. Every sixteenth is a key that was never written before. It
// reports false behind the last one.
func (d *largeData) roundWrite(round, c, q uint64) (n uint64, v version, ok bool) {
	if q%16 == 15 {
		n = q/16*largeConns + c
		return d.loaded + round*d.fresh + n, d.roundVersion(round, q), n < d.fresh
	}
	place := (q-q/16)*largeRoundsMax + round
	return place*largeConns + c, d.roundVersion(round, q), place < d.placesN
}

// roundVersion deletes one in ten of the old keys.
func (d *largeData) roundVersion(round, q uint64) version {
	if q%16 != 15 && q%10 == 5 {
		return absent
	}
	return version(16 + round)
}

// roundOf is the inverse of roundWrite. It reports false for numbers that no
// round writes.
func (d *largeData) roundOf(n uint64) (round, c, q uint64, ok bool) {
	c = n % largeConns
	if n < d.loaded {
		place := n / largeConns
		x := place / largeRoundsMax
		return place % largeRoundsMax, c, x + x/15, place%largeRoundsMax < d.rounds
	}
	n -= d.loaded
	return n / d.fresh, c, n%d.fresh/largeConns*16 + 15, n < d.rounds*d.fresh
}

// valueBytes is the length of version v of number n. Both kinds are spread
// evenly over the load.
func (d *largeData) valueBytes(n uint64, v version) int {
	large := (n+1)*d.large/d.loaded > n*d.large/d.loaded
	if v == 2 && n/largeConns%64 == 19 {
		large = !large
	}
	if large {
		return largeValueBytes
	}
	return smallValueBytes
}

// appendValue appends the value of version v of number n: it names both, and
// no two are equal. Nothing in it compresses.
func (d *largeData) appendValue(dst []byte, n uint64, v version) []byte {
	size := d.valueBytes(n, v)
	word := n<<8 | uint64(v)
	for at := 0; at < size; at += 8 {
		// A bijection of the word, so that 8 bytes tell all values apart.
		x := word * 0x9e3779b97f4a7c15
		x = (x ^ x>>32) * 0xd6e8feb86659fd93
		dst = binary.LittleEndian.AppendUint64(dst, x^x>>32)
		word += 0xbf58476d1ce4e5b9
	}
	return dst
}

// appendKey appends the key of number n.
func (d *largeData) appendKey(dst []byte, n uint64) []byte {
	var key [largeKeyBytes]byte
	d.keys.Put(key[:], n)
	return append(dst, key[:]...)
}

// hits reports whether value is version v of number n.
func (d *largeData) hits(value []byte, n uint64, v version) bool {
	if v == absent || len(value) != d.valueBytes(n, v) {
		return false
	}
	var room [largeValueBytes]byte
	return bytes.Equal(value, d.appendValue(room[:0], n, v))
}

// TestLargeData checks the rules that TestLarge believes in against a map that
// is written in the order of the requests.
func TestLargeData(t *testing.T) {
	d, err := newLargeData(700, 1300, 3)
	if err != nil {
		t.Fatal(err)
	}
	wrote := map[uint64]version{} // the last state of each number
	count := map[uint64]int{}
	times := map[string]int{}
	for c := range uint64(largeConns) {
		w := d.loader(c)
		for n, v, ok := w.next(); ok; n, v, ok = w.next() {
			old, again := wrote[n]
			if n%largeConns != c || n >= d.loaded || again != (v != 1) {
				t.Fatalf("connection %d writes version %d of %d, had %d (%v)", c, v, n, old, again)
			}
			wrote[n] = v
			count[n]++
			times[fmt.Sprintf("%d-%d", old, v)]++
		}
	}
	if len(wrote) != int(d.loaded) {
		t.Fatalf("%d of %d keys were written", len(wrote), d.loaded)
	}
	for _, change := range []string{"0-1", "1-2", "1-0", "0-3", "2-0"} {
		if times[change] == 0 {
			t.Errorf("no key goes %s: %v", change, times)
		}
	}
	for n, v := range wrote {
		if got := d.afterLoad(n); got != v {
			t.Fatalf("number %d: afterLoad says %d, the last write was %d", n, got, v)
		}
	}
	for n, times := range count {
		if d.once(n) != (times == 1) {
			t.Fatalf("number %d is written %d times, once says %v", n, times, d.once(n))
		}
	}
	fresh := 0
	for round := range d.rounds {
		for c := range uint64(largeConns) {
			for q := uint64(0); ; q++ {
				n, v, ok := d.roundWrite(round, c, q)
				if !ok {
					break
				}
				if n >= d.loaded {
					fresh++
				}
				gr, gc, gq, ok := d.roundOf(n)
				if !ok || gr != round || gc != c || gq != q || v != d.roundVersion(round, q) {
					t.Fatalf("round %d, connection %d, request %d writes %d, which belongs to %d %d %d %v", round, c, q, n, gr, gc, gq, ok)
				}
			}
		}
	}
	if fresh == 0 {
		t.Error("no round writes a new key")
	}
	seen := map[string]bool{}
	large := 0
	for n := range d.all {
		for v := range version(4) {
			value := d.appendValue(nil, n, v+1)
			if seen[string(value)] {
				t.Fatalf("version %d of %d has the value of another", v+1, n)
			}
			seen[string(value)] = true
			if !d.hits(value, n, v+1) || d.hits(value, n, v+2) || d.hits(value, n+1, v+1) {
				t.Fatalf("version %d of %d does not know itself", v+1, n)
			}
		}
		if n < d.loaded && d.valueBytes(n, 1) == largeValueBytes {
			large++
		}
	}
	if large != int(d.large) {
		t.Errorf("%d large documents, want %d", large, d.large)
	}
}

// loader makes the writes of one connection in the load, in order.
type loader struct {
	d     *largeData
	c     uint64
	place uint64
	step  int // 0: the first version of place; then the three lags
}

func (d *largeData) loader(c uint64) *loader { return &loader{d: d, c: c} }

// next returns the next write, and false behind the last one.
func (w *loader) next() (n uint64, v version, ok bool) {
	d := w.d
	for w.place < d.placesN+d.latest {
		place, step := w.place, w.step
		if w.step++; w.step == 4 {
			w.place, w.step = w.place+1, 0
		}
		if step == 0 {
			if place < d.placesN {
				return place*largeConns + w.c, 1, true
			}
			continue
		}
		lag := [...]uint64{d.soon, d.later, d.latest}[step-1]
		if place < lag || place-lag >= d.placesN {
			continue
		}
		n := (place-lag)*largeConns + w.c
		if v, ok := d.second(n, lag); ok {
			return n, v, true
		}
	}
	return 0, 0, false
}
