package compaction

import (
	"context"

	"fluxkv/internal/entry"
)

// FlushOptions say what a flush writes and where.
type FlushOptions struct {
	Output
	// Policy decides which versions go.
	Policy Policy
	// Versions is how many versions the source must have, 0 when unknown: a
	// source that ends early is an error.
	Versions uint64
}

// Flush writes the versions of src, all of a sealed memtable from First on,
// to tables. A document that has an address is written by it, even when its
// bytes are at hand.
//
// Each table is synced, opened again and verified before the next begins; the
// directory is synced once, at the end, unless LeaveDirSync. On any error,
// cancelling included, every file that was made is removed and the Result is
// zero; a file that could not be removed is named in the error. The caller keeps
// src, and must not move it meanwhile.
func Flush(ctx context.Context, src entry.Iterator, o FlushOptions) (Result, error) {
	o.withDefaults()
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	b := builder{o: o.Output, policy: o.Policy, versions: o.Versions}
	return b.build(ctx, src, "flush")
}
