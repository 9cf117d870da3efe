// Package offheap is memory that the collector does not scan, and the account
// of how much of it is in use.
//
//	Map      [ zero pages, backed when first touched ......................... ]
//	Arena    [unused 64][alloc][alloc][pad][alloc]-> Used           -> capacity]
//	Budget   used .......................| limit
//
// Nothing here may hold Go pointers: the collector does not see them. Mapped
// memory does not count against GOMEMLIMIT, hence Budget.
//
// In race builds the memory comes from the Go heap, because the race detector
// does not watch memory that it did not hand out. Freeing is then a no-op.
package offheap
