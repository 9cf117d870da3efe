package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return c, err
	}
	_, rest, ok := bytes.Cut(b, []byte("\nwrite_bytes: "))
	text, _, _ := bytes.Cut(rest, []byte("\n"))
	if c.process, err = strconv.ParseInt(string(text), 10, 64); !ok || err != nil {
		return c, fmt.Errorf("/proc/self/io has no write_bytes: %v", err)
	}
	c.device, err = deviceBytes(w.dir)
	return c, err
}

// deviceBytes returns how much was written to the device of dir since it came
// up.
func deviceBytes(dir string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/diskstats")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	// major minor name, then reads completed, merged, sectors, ms, writes
	// completed, merged, sectors of 512 bytes
	major, minor := fmt.Sprint(unix.Major(st.Dev)), fmt.Sprint(unix.Minor(st.Dev))
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) >= 10 && fields[0] == major && fields[1] == minor {
			sectors, err := strconv.ParseInt(fields[9], 10, 64)
			return sectors * 512, err
		}
	}
	return 0, fmt.Errorf("device %s:%s of %s is not in /proc/diskstats", major, minor, dir)
}

// syncDirectory writes back all that the file system of dir holds in memory.
func syncDirectory(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
