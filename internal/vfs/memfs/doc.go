// Package memfs is a disk in memory that forgets what was not synced.
//
//	file     durable content   |####....####|      survives every crash
//	         pending           w(3) g(5) w(8)      unsynced writes and sizes, in order
//	         current content   |####ww..##ww|      what reads see
//	name     durable entries   {CURRENT: a}
//	         pending           +b(4) CURRENT=b(6)  made durable by SyncDir
//
// A power cut is CrashCopy: a new disk of the durable state plus whatever a
// Damage lets survive of the pending one. The original goes on undisturbed.
// What makes things durable:
//
//   - WriteDurable: the bytes it wrote, and the size when it extended the file
//   - Sync: all writes, allocations and truncations of the file
//   - SyncDir: creates, links, renames and removes in the directory. A rename is one
//     step, also between directories, as in every journaling file system
//   - MkdirAll: the directories it made
//
// # Crash loops
//
// CrashAt(n, Within) stops the disk at call n: that call, and every later one,
// returns ErrCrashed. With Before, call n did nothing; with Within it was under
// way, and its bytes or names are pending: the damage decides about them. So
// a test that must hold for a crash anywhere is
//
//	for n := int64(1); ; n++ {
//		disk := memfs.New()
//		disk.CrashAt(n, memfs.Within)
//		run(disk) // the scenario; it notes what was acknowledged
//		for _, damage := range memfs.Damages() {
//			check(disk.CrashCopy(seed, damage)) // reopen, compare, crash again
//		}
//		if _, crashed := disk.Crashed(); !crashed {
//			break // n is past the last call: all crash points are done
//		}
//	}
//
// Count tells which calls a scenario crossed, so that it can assert that it
// tests what it says.
//
// Contents are pages shared between a disk and its copies, so a copy costs by
// the number of files and of pending writes, not by bytes. Pending writes are
// kept until synced: a scenario that never syncs keeps them all.
package memfs
