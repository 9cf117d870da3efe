// Package iter makes iterators out of iterators.
//
//	memtable, active   a#9        c#7
//	memtable, sealed   a#4  b#5   c#2   d#3      Merge: a#9 a#4 b#5 c#7 c#2 d#3
//
//	table a..c  a#4 c#7
//	table c..d  c#2 d#3                          Concat: a#4 c#7 c#2 d#3
//
//	Visible at 8:      a#4  b#5   c#7   d#3      and without b#5 if that is a tombstone
package iter
