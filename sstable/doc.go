// Package sstable is the key index on disk: one immutable sorted file a table.
//
//	[data]..[data][filter piece]..[sums][index level 0]..[root][properties][footer]
//
//	data block  = keys | seqnos | values | addresses | extras | runs, column by column
//	index block = the same shape: separators -> level, offset, stored length
//
// A Writer takes versions in the order of entry.Compare and cuts blocks by
// exact size. A Reader is asked by Lookup, which says which block it needs
// next, so that a batch of lookups can read all missing blocks together; Get
// does one lookup, Iter walks a range, Verify reads everything.
//
//	Start -> filter piece -> root -> ... -> index block -> data block -> found, or not
//
// Readers holds the tables of a store open while they are used, a bounded
// number of them, and fences those that are damaged.
//
// docs/format-table.md describes the bytes. Every checksum is verified at each
// read from disk and every decoded length before it is used: damaged bytes
// give a *CorruptError with file and offset.
package sstable
