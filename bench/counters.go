package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcessBytes returns how many bytes the kernel charges to a process as written
// to storage, since it began. Only its own user, and root, may ask.
func ProcessBytes(pid int) (int64, error) {
	io, err := ProcessIO(pid)
	return io.WriteBytes, err
}

// IO is what the kernel charges to a process as moved to and from storage, in
// bytes; what the page cache answered is not in it.
type IO struct {
	ReadBytes  int64
	WriteBytes int64
}

// ProcessIO returns what a process has moved since it began. Only its own user,
// and root, may ask.
func ProcessIO(pid int) (io IO, err error) {
	name := fmt.Sprintf("/proc/%d/io", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return io, err
	}
	var errs [2]error
	io.ReadBytes, errs[0] = colonNumber(b, "read_bytes")
	io.WriteBytes, errs[1] = colonNumber(b, "write_bytes")
	if err := errors.Join(errs[:]...); err != nil {
		return IO{}, fmt.Errorf("%s: %w", name, err)
	}
	return io, nil
}

// Memory is what a process has in memory, in bytes.
type Memory struct {
	Resident int64 // now
	Peak     int64 // the most since it began
}

// ProcessMemory returns what a process has in memory.
func ProcessMemory(pid int) (m Memory, err error) {
	name := fmt.Sprintf("/proc/%d/status", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return m, err
	}
	var errs [2]error
	m.Resident, errs[0] = colonNumber(b, "VmRSS")
	m.Peak, errs[1] = colonNumber(b, "VmHWM")
	if err := errors.Join(errs[:]...); err != nil {
		return Memory{}, fmt.Errorf("%s: %w", name, err)
	}
	return Memory{Resident: m.Resident << 10, Peak: m.Peak << 10}, nil // from kB, which are KiB
}

// colonNumber returns the number of a line "name: number" or "name: number kB".
func colonNumber(b []byte, name string) (int64, error) {
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte(name+":"))
		if !ok {
			continue
		}
		text, _ := strings.CutSuffix(string(bytes.TrimSpace(rest)), " kB")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("no %s", name)
}

// DeviceIO is what anyone did to a device since it came up. Requests that the
// kernel merged into another one are counted apart, not as completed.
type DeviceIO struct {
	Reads       int64 // completed
	ReadsMerged int64
	ReadBytes   int64
	Writes      int64 // completed
	WriteBytes  int64
}

// Sub returns what was done between before and d.
func (d DeviceIO) Sub(before DeviceIO) DeviceIO {
	return DeviceIO{
		Reads: d.Reads - before.Reads, ReadsMerged: d.ReadsMerged - before.ReadsMerged, ReadBytes: d.ReadBytes - before.ReadBytes,
		Writes: d.Writes - before.Writes, WriteBytes: d.WriteBytes - before.WriteBytes,
	}
}

// DeviceOf returns the counters of the device of dir. Memory and network file
// systems have none: an error.
func DeviceOf(dir string) (DeviceIO, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return DeviceIO{}, fmt.Errorf("%s: %w", dir, err)
	}
	b, err := os.ReadFile("/proc/diskstats")
	if err != nil {
		return DeviceIO{}, err
	}
	d, err := parseDiskstats(b, unix.Major(st.Dev), unix.Minor(st.Dev))
	if err != nil {
		return DeviceIO{}, fmt.Errorf("%s: %w", dir, err)
	}
	return d, nil
}

// parseDiskstats finds the line of a device. Its fields: major, minor, name, then
// reads completed, merged, sectors, ms, writes completed, merged, sectors; kernels
// add more. A sector has 512 bytes here, whatever the device's is.
func parseDiskstats(b []byte, major, minor uint32) (d DeviceIO, err error) {
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[0] != fmt.Sprint(major) || fields[1] != fmt.Sprint(minor) {
			continue
		}
		var n [10]int64
		for i := 3; i < len(n); i++ {
			if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
				return DeviceIO{}, fmt.Errorf("diskstats %q: %w", line, err)
			}
		}
		return DeviceIO{Reads: n[3], ReadsMerged: n[4], ReadBytes: n[5] * 512, Writes: n[7], WriteBytes: n[9] * 512}, nil
	}
	return DeviceIO{}, fmt.Errorf("device %d:%d is not in /proc/diskstats", major, minor)
}

// DeviceBytes returns how many bytes anyone wrote to the device of dir since it
// came up. Memory and network file systems have none: an error.
func DeviceBytes(dir string) (int64, error) {
	d, err := DeviceOf(dir)
	return d.WriteBytes, err
}

// DropCached takes what the page cache holds of the files below dir out of it,
// after writing back what is dirty: the next reads of them are reads of the
// device. Nobody may write to them meanwhile.
func DropCached(dir string) error {
	if err := SyncDirectory(dir); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
}

// DirectoryBytes returns the bytes that the files below dir take on the disk.
// Files may go meanwhile.
func DirectoryBytes(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		switch {
		case path != dir && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		n += st.Blocks * 512
		return nil
	})
	return n, err
}

// SyncDirectory writes back all that the file system of dir holds in memory, also
// what others wrote.
func SyncDirectory(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
