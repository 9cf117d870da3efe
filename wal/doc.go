// Package wal stores every document once, in sequence order.
//
//	segment 41 (sealed)                            segment 42 (active)
//	[header][group][group]...[seal][index|tail]    [header][group][group] ->
//	 seqnos 900 .. 1399                             seqnos 1400 ..
//
//	group  = [header: sums, place, seqnos, promise][record][record]...[zeros up to align]
//	record = [presence][lengths][meta][key][value][sum, if it is read alone]
//
//	segment 43.gc (output of garbage collection)
//	[header][group][group]...[index|tail]
//	 seqnos 17, 80, 81, 903 .. of documents that outlived their segments
//
// The log is the write-ahead log and the home of every document above the
// inline limit. docs/format-log.md describes the bytes and says which damage
// cannot be told from a torn tail.
package wal
