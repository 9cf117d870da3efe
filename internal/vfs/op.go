package vfs

import (
	"fmt"
	"path"
	"sync"
)

// OpKind is one kind of call to a file system or a file; test disks count and
// fail calls by it.
type OpKind uint8

// The calls of FS and File. OpSize is both FS.Size and File.Size. File.Name
// and releasing a lock reach no disk and have no kind.
const (
	OpCreate OpKind = iota
	OpOpen
	OpRemove
	OpRename
	OpLink
	OpLinks
	OpMkdirAll
	OpList
	OpSize
	OpSyncDir
	OpLock
	OpFreeBytes
	OpReadAt
	OpWriteAt
	OpWriteDurable
	OpSync
	OpAllocate
	OpTruncate
	OpClose
	// OpKinds is how many kinds there are.
	OpKinds
)

var opNames = [OpKinds]string{"Create", "Open", "Remove", "Rename", "Link", "Links", "MkdirAll", "List", "Size", "SyncDir", "Lock",
	"FreeBytes", "ReadAt", "WriteAt", "WriteDurable", "Sync", "Allocate", "Truncate", "Close"}

func (k OpKind) String() string {
	if k < OpKinds {
		return opNames[k]
	}
	return fmt.Sprintf("OpKind(%d)", uint8(k))
}

// Op is one call. Name is the file or directory, the old name for a rename or a link.
// Off and Len are set for reads and writes; Len is the new size for Allocate
// and Truncate. N counts the calls of the file system from 1.
type Op struct {
	Kind OpKind
	Name string
	Off  int64
	Len  int64
	N    int64
}

func (o Op) String() string {
	switch o.Kind {
	case OpReadAt, OpWriteAt, OpWriteDurable:
		return fmt.Sprintf("%d %s %s [%d,%d)", o.N, o.Kind, o.Name, o.Off, o.Off+o.Len)
	case OpAllocate, OpTruncate:
		return fmt.Sprintf("%d %s %s %d", o.N, o.Kind, o.Name, o.Len)
	}
	return fmt.Sprintf("%d %s %s", o.N, o.Kind, o.Name)
}

// MatchName reports whether name, or its base name, matches pattern in the
// sense of path.Match. The empty pattern matches all. A malformed pattern
// panics: it is the test's mistake.
func MatchName(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	whole, err := path.Match(pattern, name)
	if err != nil {
		panic(fmt.Sprintf("vfs: pattern %q: %v", pattern, err))
	}
	if whole {
		return true
	}
	base, _ := path.Match(pattern, path.Base(name))
	return base
}

// OpCounts counts calls by kind and name. The zero value is ready; it is safe
// for concurrent use. It keeps one number per kind and name ever seen.
type OpCounts struct {
	mu     sync.Mutex
	counts map[opKey]int
}

type opKey struct {
	kind OpKind
	name string
}

// Add counts one call.
func (c *OpCounts) Add(kind OpKind, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[opKey]int)
	}
	c.counts[opKey{kind, name}]++
}

// Count returns how many calls of these kinds, of all kinds when there are
// none, had a name that matches pattern (see MatchName).
func (c *OpCounts) Count(pattern string, kinds ...OpKind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for key, count := range c.counts {
		if MatchKind(kinds, key.kind) && MatchName(pattern, key.name) {
			n += count
		}
	}
	return n
}

// Reset forgets all counts.
func (c *OpCounts) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
}

// MatchKind reports whether kind is among kinds; no kinds mean all.
func MatchKind(kinds []OpKind, kind OpKind) bool {
	for _, k := range kinds {
		if k == kind {
			return true
		}
	}
	return len(kinds) == 0
}
