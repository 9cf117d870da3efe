// Package compaction turns runs of versions into tables of the key index.
//
//	versions in order      Elision       tables                  dead
//	a#9  SET 000041:4096 ─ keep ───────▶ ┐
//	a#7  SET 000040:8192 ─ superseded ─────────────────────────▶ 000040: 7
//	a#2  DEL             ─ superseded     │ 000187.sst
//	b#5  SET "x"         ─ keep ───────▶ ┘
//	------------------------ TableBytes reached: cut between keys
//	c#8  DEL             ─ keep ───────▶ ] 000188.sst
//
// Elision decides and does no I/O; Flush and Merge do, and hold no policy. What
// they made is named nowhere until the caller installs the Result.
//
// What to merge is decided by a Picker, Lazy or Leveled, and what segments of the
// log to collect by PickSegments: state in, job out, no I/O and no clock.
package compaction
