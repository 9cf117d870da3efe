package compaction

import (
	"context"

	"fluxkv/internal/entry"
)

// MergeOptions say how tables are merged and where to.
type MergeOptions struct {
	Output
	// Policy decides which versions go. Bottom only for a merge into the last
	// level that takes every older version of its keys.
	Policy Policy
	// Versions is how many versions the inputs have by their properties: a
	// source that ends early is an error. 0 when unknown.
	Versions uint64
	// Bytes of the inputs' files, to make outputs of about equal size from the
	// first one on. 0 when unknown.
	Bytes int64
	// Resolve, if set, is asked for every separated document that is kept:
	// where is it now? A false one leaves the address as it is; an error ends
	// the merge. It is called from the goroutine of Merge only.
	Resolve func(entry.Address, entry.Seqno) (entry.Address, bool, error)
}

// Merge writes the versions of src, all of the inputs from First on, to tables.
// In every other way it is Flush.
//
// The outputs stand for the inputs only under the segments that exist at
// install: a segment collected since then is looked up again in Result.Dead and
// in the tables' properties (design R7).
func Merge(ctx context.Context, src entry.Iterator, o MergeOptions) (Result, error) {
	o.withDefaults()
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	b := builder{o: o.Output, policy: o.Policy, versions: o.Versions, inBytes: o.Bytes, resolve: o.Resolve}
	return b.build(ctx, src, "merge")
}
