// Package manifest says, durably, which files make up a store.
//
//	FORMAT            fixed at creation: counts, store id, secret
//	CURRENT           -> MANIFEST-000007, synced up to byte 1432
//	MANIFEST-000007   [header][whole state][edit][edit][edit] ->
//
// An Edit is one atomic change: segments added, sealed and dropped, the place
// where replay starts, the clear seqno; tables added and dropped, how far a
// kvstore is flushed, documents that died, and where those of a collected
// segment went (a Forward). A State is what all edits of a manifest
// add up to; it is immutable. The Log appends edits, each synced before Apply
// returns, and replaces its file when it has grown, in the background, and at
// the first edit after every start.
//
// The byte layout is in docs/format-manifest.md.
package manifest
