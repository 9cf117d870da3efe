//go:build race

package vfs

import (
	"runtime"
	"unsafe"
)

// raceWrote tells the race detector that the kernel wrote to buf, before this
// moment and after the read was submitted.
func raceWrote(buf []byte) {
	runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(buf)), len(buf))
}
