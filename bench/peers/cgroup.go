package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryGroup is a control group with a limit of memory, which counts the page
// cache of what its processes read, too. Its directory is made, and removed, by
// whoever started this program. The files are those of version 1 of control
// groups, or of version 2.
type memoryGroup struct {
	dir string
	v2  bool
}

// openMemoryGroup looks what a directory has.
func openMemoryGroup(dir string) (*memoryGroup, error) {
	g := &memoryGroup{dir: dir}
	_, err := os.Stat(filepath.Join(dir, "memory.limit_in_bytes"))
	if errors.Is(err, os.ErrNotExist) {
		g.v2 = true
		_, err = os.Stat(filepath.Join(dir, "memory.max"))
	}
	if err != nil {
		return nil, fmt.Errorf("%s is no group with a limit of memory: %w", dir, err)
	}
	return g, nil
}

func (g *memoryGroup) file(v1, v2 string) string {
	if g.v2 {
		return filepath.Join(g.dir, v2)
	}
	return filepath.Join(g.dir, v1)
}

func (g *memoryGroup) set(file string, n int64) error {
	return os.WriteFile(file, []byte(strconv.FormatInt(n, 10)), 0)
}

func (g *memoryGroup) get(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// limit sets the limit, in bytes, and reads it back: the kernel rounds it to
// pages, and may have refused it.
func (g *memoryGroup) limit(n int64) error {
	file := g.file("memory.limit_in_bytes", "memory.max")
	if err := g.set(file, n); err != nil {
		return err
	}
	got, err := g.get(file)
	if err == nil && (got > n || got < n-1<<20) {
		err = fmt.Errorf("%s is %d, want %d", file, got, n)
	}
	return err
}

// join puts a process into the group; what it has in memory already is not
// counted.
func (g *memoryGroup) join(pid int) error {
	return g.set(filepath.Join(g.dir, "cgroup.procs"), int64(pid))
}

// fresh empties the group, which has no process, of what others left in the page
// cache, and forgets its peak where it can.
func (g *memoryGroup) fresh() error {
	if g.v2 {
		return nil // its peak stays; pages of files are dropped by name
	}
	return errors.Join(g.set(filepath.Join(g.dir, "memory.force_empty"), 0), g.set(filepath.Join(g.dir, "memory.max_usage_in_bytes"), 0))
}

// peak is the most that was in the group, page cache included.
func (g *memoryGroup) peak() (int64, error) {
	return g.get(g.file("memory.max_usage_in_bytes", "memory.peak"))
}
