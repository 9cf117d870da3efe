// Package memtable keeps the newest versions of a kvstore in memory, in the
// order of entry.Compare, until they are flushed.
//
//	             arena (outside the Go heap, at most 4 GiB, offsets of 4 bytes)
//	level 2  head ------------------------------> k7#3 ------------> end
//	level 1  head --------> k2#9 ---------------> k7#3 ------------> end
//	level 0  head -> k1#4 > k2#9 -> k2#5 -> k4#8 > k7#3 -> k9#1 ---> end
//	                         ^                      ^
//	hash index  [....][hash of k2, node][....][hash of k7, node][....]
//
// A Table is a skiplist whose nodes lie in an arena, with a hash index beside
// it that leads from a key to its newest node; older versions of the key
// follow that node on level 0. Nodes are written once and never move or go
// away, so readers take no lock: a node is complete before an atomic store
// makes it reachable.
//
// A search is a chain of about twenty cache misses, and that is what an insert
// costs. A batch therefore searches for up to 32 places at a time, one step of
// each in turn, so that the misses overlap; only then is the table's mutex
// taken, and the links are stored over lines that are already in the cache.
// Inserting with compare-and-swap instead of a mutex measured 10 to 25 % slower
// once searches were interleaved.
//
// Callers number the versions and reserve room for them (Reserve) in one order,
// then fill their places at the same time (InsertBatch). Versions whose batch
// has not finished are in the table or not: readers pass the seqno up to which
// everything is complete.
package memtable
