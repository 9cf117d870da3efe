// Package invariants switches on checks that vanish in release builds.
//
// They check what this program computed and may panic. Bytes that come from
// the disk or the wire are checked always, and give errors.
//
//	if invariants.Enabled && next < last {
//		panic(fmt.Sprintf("wal: seqno order: %d then %d", last, next))
//	}
package invariants
