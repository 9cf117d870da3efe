package main

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func TestDocumentsAreDistinctAndRepeatable(t *testing.T) {
	seen := map[string]bool{}
	value, again := make([]byte, 100), make([]byte, 100)
	for _, keyBytes := range []int{6, 12, keyBytesMax} {
		key := make([]byte, keyBytes)
		for i := range uint64(10000) {
			putKey(key, i)
			if _, err := hex.DecodeString(string(key)); err != nil || seen[string(key)] {
				t.Fatalf("index %d has the key %q of another, or no digits: %v", i, key, err)
			}
			seen[string(key)] = true
		}
	}
	for i := range uint64(10000) {
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
