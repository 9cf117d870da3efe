package main

import (
	"bytes"
	"testing"
)

func TestDocumentsAreDistinctAndRepeatable(t *testing.T) {
	seen := map[string]bool{}
	key, value, again := make([]byte, keyBytes), make([]byte, 100), make([]byte, 100)
	for i := range uint64(10000) {
		putKey(key, i)
		if seen[string(key)] {
			t.Fatalf("index %d has the key %s of another", i, key)
		}
		seen[string(key)] = true
		putValue(value, i)
		if seen[string(value)] {
			t.Fatalf("index %d has the value of another", i)
		}
		seen[string(value)] = true
		putValue(again, i)
		if !bytes.Equal(value, again) {
			t.Fatalf("index %d has two values", i)
		}
	}
}
