package bench

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestKeysNames(t *testing.T) {
	for _, c := range []struct {
		name   string
		format KeyFormat
		bytes  int
		index  uint64
		want   string
	}{
		{"decimal is dense and padded", KeyDecimal, 8, 42, "00000042"},
		{"decimal of one digit", KeyDecimal, 1, 7, "7"},
		{"hex of the first index", KeyHex, 8, 0, "00000000"},
		{"hex scatters neighbours", KeyHex, 8, 1, "5c8d49d2"},
		{"hex of an odd length", KeyHex, 3, 5, "3ab"},
		{"hex beyond one word is no padding", KeyHex, 20, 0, "0000000000000000e220"},
	} {
		k, err := NewKeys(c.format, c.bytes, 8)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := make([]byte, c.bytes)
		k.Put(got, c.index)
		if string(got) != c.want {
			t.Errorf("%s: key %d = %q, want %q", c.name, c.index, got, c.want)
		}
	}
}

func TestKeysAreDistinct(t *testing.T) {
	for _, format := range []KeyFormat{KeyHex, KeyDecimal} {
		for _, n := range []int{1, 2, 3, 4, 5, 16, 17, 40} {
			count := uint64(100_000)
			if limit, ok := pow10(n); ok && limit < count {
				count = limit
			}
			k, err := NewKeys(format, n, count)
			if err != nil {
				t.Fatal(err)
			}
			seen := make(map[string]uint64, count)
			key := make([]byte, n)
			for i := range count {
				k.Put(key, i)
				if was, ok := seen[string(key)]; ok {
					t.Fatalf("%s, %d bytes: indexes %d and %d are both %q", format, n, was, i, key)
				}
				seen[string(key)] = i
				if strings.Trim(string(key), "0123456789abcdef") != "" {
					t.Fatalf("%s: key %q has other digits", format, key)
				}
			}
		}
	}
}

func TestMixIsAPermutationOfAllItsBits(t *testing.T) {
	for n := uint(1); n <= 16; n++ {
		seen := make([]bool, 1<<n)
		for x := range uint64(1) << n {
			y := mixBits(x, n)
			if seen[y] {
				t.Fatalf("%d bits: two numbers become %d", n, y)
			}
			seen[y] = true
		}
	}
}

func TestKeysRefuseWhatTheirDigitsCannotName(t *testing.T) {
	for _, c := range []struct {
		format KeyFormat
		bytes  int
		count  uint64
		want   string
	}{
		{KeyHex, 2, 257, "name only 256"},
		{KeyDecimal, 2, 101, "name only 100"},
		{KeyHex, 0, 1, "key size 0"},
		{KeyHex, 251, 1, "key size 251"},
		{KeyHex, 8, 0, "keys 0"},
		{"octal", 8, 1, `key format "octal"`},
	} {
		_, err := NewKeys(c.format, c.bytes, c.count)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %d bytes, %d keys: error %v, want %q in it", c.format, c.bytes, c.count, err, c.want)
		}
	}
	if _, err := NewKeys(KeyDecimal, 30, 1<<63); err != nil {
		t.Errorf("30 decimal digits: %v", err)
	}
}

func TestValuesAreCheckedPieceByPiece(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3000).Draw(t, "bytes")
		v := NewValues(n)
		index := rapid.Uint64().Draw(t, "index")
		value := make([]byte, n)
		v.Put(value, index)
		for at := 0; at < n; {
			size := rapid.IntRange(1, n-at).Draw(t, "piece")
			piece := value[at : at+size]
			if !v.Matches(index, at, piece) {
				t.Fatalf("bytes %d..%d do not match", at, at+size)
			}
			bad := bytes.Clone(piece)
			bad[rapid.IntRange(0, size-1).Draw(t, "flip")] ^= 1
			if v.Matches(index, at, bad) {
				t.Fatalf("bytes %d..%d match with a bit flipped", at, at+size)
			}
			at += size
		}
		if v.Matches(index, n, []byte{0}) || v.Matches(index, -1, []byte{0}) {
			t.Fatal("bytes outside of the value match")
		}
		other := make([]byte, n)
		v.Put(other, index+1)
		if n >= 8 && bytes.Equal(value, other) {
			t.Fatal("two keys share a value")
		}
	})
}

func TestZipfFollowsItsLaw(t *testing.T) {
	const ranks, draws = 100, 400_000
	for _, theta := range []float64{0.5, 0.99, 1, 1.3} {
		t.Run(fmt.Sprint(theta), func(t *testing.T) {
			z := newZipf(theta, ranks)
			r := random{state: 1}
			var seen [ranks]float64
			for range draws {
				seen[z.draw(&r)]++
			}
			var sum float64
			for k := range ranks {
				sum += z.weight(float64(k + 1))
			}
			for _, k := range []int{0, 1, 2, 9, 50, ranks - 1} {
				want := draws * z.weight(float64(k+1)) / sum
				if seen[k] < 0.9*want || seen[k] > 1.1*want {
					t.Errorf("rank %d drawn %.0f times, want about %.0f", k, seen[k], want)
				}
			}
		})
	}
}

func TestZipfOfOneKey(t *testing.T) {
	z, r := newZipf(0.99, 1), random{}
	for range 100 {
		if k := z.draw(&r); k != 0 {
			t.Fatalf("rank %d of one key", k)
		}
	}
}

func TestBelowCoversItsRange(t *testing.T) {
	r := random{state: 7}
	var seen [10]int
	for range 10_000 {
		seen[r.below(10)]++
	}
	for i, n := range seen {
		if n < 800 || n > 1200 {
			t.Errorf("%d drawn %d times of 10000", i, n)
		}
	}
}
