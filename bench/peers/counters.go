package main

import (
	"os"

	"golang.org/x/sys/unix"

	"fluxkv/bench"
)

// counters are what the kernel counts.
type counters struct {
	cpu     float64 // seconds of the process
	memory  int64   // most resident, bytes
	process int64   // bytes
	device  int64   // bytes
}

// measure reads the counters of this process and of the device of its
// directory.
func (w *writing) measure() (c counters, err error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return c, err
	}
	c.cpu = float64(unix.TimevalToNsec(u.Utime)+unix.TimevalToNsec(u.Stime)) / 1e9
	c.memory = u.Maxrss << 10
	if c.process, err = bench.ProcessBytes(os.Getpid()); err != nil {
		return c, err
	}
	c.device, err = bench.DeviceBytes(w.dir)
	return c, err
}
