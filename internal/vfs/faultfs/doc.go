// Package faultfs is a disk that fails on request, over another one.
//
//	call -> rules, first match wins -> [latency] -> [fault | inner call]
//
//	rule: kinds {WriteDurable}  name *.seg   calls 1  2  3  4  5 ..
//	      From 3, Once                             .  .  X  .  .
//	      From 3                                   .  .  X  X  X
//
// A fault loop runs a scenario with the first call failing, then the second,
// until it runs untouched; once with Once and once without:
//
//	for n := 1; ; n++ {
//		disk := faultfs.Wrap(memfs.New())
//		disk.Add(faultfs.Rule{From: n, Fault: faultfs.EIO, Once: true})
//		run(disk)
//		check(disk)
//		if disk.Injected() == 0 {
//			break
//		}
//	}
//
// A rule counts only the calls that its fault can hit: a short write needs a
// write.
package faultfs
