package sstable

import "slices"

// expiryBucketsMax bounds the histogram in the properties.
const expiryBucketsMax = 64

// ExpiryBucket counts documents that expire at or before NotAfter (Unix
// seconds) and after the bucket before. Bytes are those of their keys, inline
// values and addressed records.
type ExpiryBucket struct {
	NotAfter uint32
	Entries  uint32
	Bytes    uint64
}

// expiryHistogram counts in buckets of 2^shift seconds. When there are too
// many, their width doubles: exact for few different times, coarse for many.
type expiryHistogram struct {
	shift   uint
	buckets []ExpiryBucket // ascending
}

func (h *expiryHistogram) notAfter(expiry uint32) uint32 { return expiry | (1<<h.shift - 1) }

func (h *expiryHistogram) add(expiry uint32, bytes uint64) {
	at := h.notAfter(expiry)
	i, found := slices.BinarySearchFunc(h.buckets, at, func(b ExpiryBucket, at uint32) int {
		switch {
		case b.NotAfter < at:
			return -1
		case b.NotAfter > at:
			return 1
		}
		return 0
	})
	if !found {
		h.buckets = slices.Insert(h.buckets, i, ExpiryBucket{NotAfter: at})
	}
	h.buckets[i].Entries++
	h.buckets[i].Bytes += bytes
	for len(h.buckets) > expiryBucketsMax {
		h.widen()
	}
}

func (h *expiryHistogram) widen() {
	h.shift++
	kept := h.buckets[:0]
	for _, b := range h.buckets {
		b.NotAfter = h.notAfter(b.NotAfter)
		if n := len(kept); n > 0 && kept[n-1].NotAfter == b.NotAfter {
			kept[n-1].Entries += b.Entries
			kept[n-1].Bytes += b.Bytes
		} else {
			kept = append(kept, b)
		}
	}
	h.buckets = kept
}
