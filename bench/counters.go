package bench

import (
	"bufio"
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
	name := fmt.Sprintf("/proc/%d/io", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(b, []byte("\nwrite_bytes: "))
	text, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.ParseInt(string(text), 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s has no write_bytes: %v", name, err)
	}
	return n, nil
}

// DeviceBytes returns how many bytes anyone wrote to the device of dir since it
// came up. Memory and network file systems have none: an error.
func DeviceBytes(dir string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
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
