package memfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"fluxkv/internal/vfs"
)

// ErrCrashed is the answer of every call from the crash on.
var ErrCrashed = errors.New("memfs: the power is off")

// Op is one call, as hooks get it.
type Op = vfs.Op

// When says how far a call came before the crash.
type When int

const (
	// Before: the call did nothing.
	Before When = iota
	// Within: the call was under way. What it changes is pending, never
	// durable, whatever the call promises: the damage decides.
	Within
)

const (
	// spaceBytes is the disk's size until SetFree: more than any test fills.
	spaceBytes = 1 << 50
	// gravesMax bounds the removed contents kept for OldContent. Recycled
	// blocks of the last few files are what engines trip over.
	gravesMax = 16
)

// FS is a disk in memory. It is safe for concurrent use.
type FS struct {
	counts vfs.OpCounts

	// mu guards the fields below and every inode. No hook runs under it.
	mu       sync.Mutex
	root     *inode
	pending  []dirChange // unsynced changes of names, oldest first
	graves   []content   // contents of removed and cut files, oldest first
	locks    map[*inode]bool
	nextID   uint64
	clock    int64 // orders pending changes
	used     int64 // bytes of allocated blocks
	capacity int64
	noDirect bool
	hook     func(Op) error

	calls   int64
	crashAt int64 // 0: never
	when    When
	crashed bool
	crashOp Op
}

// New returns an empty disk with a root directory.
func New() *FS {
	f := &FS{locks: make(map[*inode]bool), capacity: spaceBytes}
	f.root = f.newDirLocked()
	return f
}

// SetHook has fn called before each call is carried out; an error of fn fails
// the call without effect. fn runs in the caller's goroutine, holds no lock,
// and may use the disk, except that its own calls run it again. Nil removes it.
func (f *FS) SetHook(fn func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = fn
}

// SetFree sets the space left on the disk in bytes. Blocks of 4 KiB count when
// first written or allocated; calls that need more fail with ErrNoSpace
// without effect.
func (f *FS) SetFree(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = f.used + bytes
}

// SetDirect says whether Direct opens are supported; they are at first.
func (f *FS) SetDirect(supported bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noDirect = !supported
}

// Calls returns how many calls there were since New or CrashCopy.
func (f *FS) Calls() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Count returns how many calls of these kinds, of any when there are none, had
// a name or base name that matches pattern (vfs.MatchName; "" matches all).
func (f *FS) Count(pattern string, kinds ...vfs.OpKind) int { return f.counts.Count(pattern, kinds...) }

// ResetCounts forgets what Count counted. The numbers of calls go on.
func (f *FS) ResetCounts() { f.counts.Reset() }

// CrashAt cuts the power at call number n, counted from 1 since New or
// CrashCopy: that call and all later ones return ErrCrashed. Calls that other
// goroutines have under way are treated as the call n is. n of 0 takes an
// earlier CrashAt back.
func (f *FS) CrashAt(n int64, when When) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt, f.when = n, when
}

// Crash cuts the power now, between two calls.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.crashed {
		f.crashed, f.when = true, Before
	}
}

// Crashed returns the call that CrashAt stopped at, and whether the power is
// off.
func (f *FS) Crashed() (Op, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashOp, f.crashed
}

// call numbers and counts a call, lets the hook see it, and carries it out.
// apply runs under mu; live is false when the power goes out during the call.
func (f *FS) call(op Op, apply func(live bool) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return f.off(op)
	}
	f.calls++
	op.N = f.calls
	f.counts.Add(op.Kind, op.Name)
	if op.N == f.crashAt {
		f.crashed, f.crashOp = true, op
		return f.crash(op, apply)
	}
	if hook := f.hook; hook != nil {
		f.mu.Unlock()
		err := hook(op)
		f.mu.Lock()
		if err != nil {
			return err
		}
		if f.crashed {
			return f.crash(op, apply)
		}
	}
	return apply(true)
}

func (f *FS) crash(op Op, apply func(live bool) error) error {
	if f.when == Within {
		_ = apply(false)
	}
	return f.off(op)
}

func (f *FS) off(op Op) error {
	return &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: ErrCrashed}
}

func fail(op vfs.OpKind, name string, err error) error {
	return &fs.PathError{Op: op.String(), Path: name, Err: err}
}

func full(op vfs.OpKind, name string) error {
	return fail(op, name, fmt.Errorf("%w: %w", vfs.ErrNoSpace, syscall.ENOSPC))
}

func (f *FS) nowLocked() int64 {
	f.clock++
	return f.clock
}

func (f *FS) newInodeLocked() *inode {
	f.nextID++
	return &inode{id: f.nextID}
}

func (f *FS) newDirLocked() *inode {
	d := f.newInodeLocked()
	d.isDir = true
	d.entries, d.durable = make(map[string]*inode), make(map[string]*inode)
	return d
}

// split cuts a cleaned path into its names; the root has none.
func split(name string) []string {
	clean := strings.Trim(path.Clean(name), "/")
	if clean == "" || clean == "." {
		return nil
	}
	return strings.Split(clean, "/")
}

// findLocked returns what name names.
func (f *FS) findLocked(name string) (*inode, error) {
	at := f.root
	for _, part := range split(name) {
		if !at.isDir {
			return nil, syscall.ENOTDIR
		}
		if at = at.entries[part]; at == nil {
			return nil, syscall.ENOENT
		}
	}
	return at, nil
}

// parentLocked returns the directory of name, and name's last part.
func (f *FS) parentLocked(name string) (*inode, string, error) {
	clean := path.Clean(name)
	dir, err := f.findLocked(path.Dir(clean))
	switch {
	case err != nil:
		return nil, "", err
	case !dir.isDir:
		return nil, "", syscall.ENOTDIR
	case len(split(clean)) == 0:
		return nil, "", syscall.EISDIR
	}
	return dir, path.Base(clean), nil
}

func (f *FS) fileLocked(name string) (*inode, error) {
	n, err := f.findLocked(name)
	if err == nil && n.isDir {
		err = syscall.EISDIR
	}
	return n, err
}

// changeNamesLocked carries out a change of names and notes it as pending.
func (f *FS) changeNamesLocked(node *inode, entries ...entry) {
	for i := range entries {
		e := &entries[i]
		if old := e.dir.entries[e.name]; old != nil && old != node && e.to != nil {
			f.unlinkLocked(old)
		}
		e.apply(e.dir.entries)
	}
	f.pending = append(f.pending, dirChange{time: f.nowLocked(), node: node, entries: entries})
}

func (f *FS) unlinkLocked(n *inode) {
	if n.links--; n.links > 0 {
		return
	}
	f.buryLocked(n)
	f.releaseLocked(n)
}

// buryLocked keeps the content for OldContent.
func (f *FS) buryLocked(n *inode) {
	if n.cur.blocks == 0 {
		return
	}
	if len(f.graves) == gravesMax {
		f.graves = append(f.graves[:0:0], f.graves[1:]...)
	}
	f.graves = append(f.graves, n.cur.clone())
}

// releaseLocked gives the blocks of a file back that nobody can reach.
func (f *FS) releaseLocked(n *inode) {
	if n.links == 0 && n.opens == 0 {
		f.used -= n.cur.blocks * pageBytes
	}
}

// fitsLocked reports whether so many more blocks fit.
func (f *FS) fitsLocked(blocks int64) bool {
	return blocks == 0 || blocks*pageBytes <= f.capacity-f.used
}

func (f *FS) createLocked(kind vfs.OpKind, name string) (*inode, error) {
	dir, base, err := f.parentLocked(name)
	if err != nil {
		return nil, fail(kind, name, err)
	}
	if dir.entries[base] != nil {
		return nil, fail(kind, name, syscall.EEXIST)
	}
	if f.capacity <= f.used {
		return nil, full(kind, name)
	}
	n := f.newInodeLocked()
	n.links = 1
	f.changeNamesLocked(n, entry{dir, base, n})
	return n, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string, o vfs.OpenOptions) (vfs.File, error) {
	var out vfs.File
	err := f.call(Op{Kind: vfs.OpCreate, Name: name}, func(bool) error {
		if o.Direct && f.noDirect {
			return fail(vfs.OpCreate, name, vfs.ErrDirectUnsupported)
		}
		n, err := f.createLocked(vfs.OpCreate, name)
		if err != nil {
			return err
		}
		n.opens++
		out = &file{fs: f, n: n, name: name, write: true, direct: o.Direct}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string, o vfs.OpenOptions) (vfs.File, error) {
	var out vfs.File
	err := f.call(Op{Kind: vfs.OpOpen, Name: name}, func(bool) error {
		n, err := f.fileLocked(name)
		if err == nil && o.Direct && f.noDirect {
			err = vfs.ErrDirectUnsupported
		}
		if err != nil {
			return fail(vfs.OpOpen, name, err)
		}
		n.opens++
		out = &file{fs: f, n: n, name: name, write: o.Write, direct: o.Direct}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.call(Op{Kind: vfs.OpRemove, Name: name}, func(bool) error {
		n, err := f.fileLocked(name)
		if err != nil {
			return fail(vfs.OpRemove, name, err)
		}
		dir, base, err := f.parentLocked(name)
		if err != nil {
			return fail(vfs.OpRemove, name, err)
		}
		f.changeNamesLocked(n, entry{dir, base, nil})
		f.unlinkLocked(n)
		return nil
	})
}

// Rename implements vfs.FS for files.
func (f *FS) Rename(oldName, newName string) error {
	return f.call(Op{Kind: vfs.OpRename, Name: oldName}, func(bool) error {
		n, err := f.fileLocked(oldName)
		if err != nil {
			return fail(vfs.OpRename, oldName, err)
		}
		oldDir, oldBase, err := f.parentLocked(oldName)
		if err != nil {
			return fail(vfs.OpRename, oldName, err)
		}
		dir, base, err := f.parentLocked(newName)
		if err != nil {
			return fail(vfs.OpRename, newName, err)
		}
		target := dir.entries[base]
		switch {
		case target == n:
			return nil
		case target != nil && target.isDir:
			return fail(vfs.OpRename, newName, syscall.EISDIR)
		}
		f.changeNamesLocked(n, entry{oldDir, oldBase, nil}, entry{dir, base, n})
		return nil
	})
}

// Link implements vfs.FS. The new name is durable after SyncDir of its
// directory.
func (f *FS) Link(oldName, newName string) error {
	return f.call(Op{Kind: vfs.OpLink, Name: oldName}, func(bool) error {
		n, err := f.fileLocked(oldName)
		if err != nil {
			return fail(vfs.OpLink, oldName, err)
		}
		dir, base, err := f.parentLocked(newName)
		switch {
		case err != nil:
			return fail(vfs.OpLink, newName, err)
		case dir.entries[base] != nil:
			return fail(vfs.OpLink, newName, syscall.EEXIST)
		case f.capacity <= f.used:
			return full(vfs.OpLink, newName)
		}
		n.links++
		f.changeNamesLocked(n, entry{dir, base, n})
		return nil
	})
}

// Links implements vfs.FS.
func (f *FS) Links(name string) (int, error) {
	links := 0
	err := f.call(Op{Kind: vfs.OpLinks, Name: name}, func(bool) error {
		n, err := f.fileLocked(name)
		if err != nil {
			return fail(vfs.OpLinks, name, err)
		}
		links = n.links
		return nil
	})
	return links, err
}

// MkdirAll implements vfs.FS. The directories it makes are durable when it
// returns.
func (f *FS) MkdirAll(dir string) error {
	return f.call(Op{Kind: vfs.OpMkdirAll, Name: dir}, func(live bool) error {
		at := f.root
		for _, part := range split(dir) {
			next := at.entries[part]
			switch {
			case next == nil:
				next = f.newDirLocked()
				f.changeNamesLocked(next, entry{at, part, next})
				if live {
					f.syncDirLocked(at)
				}
			case !next.isDir:
				return fail(vfs.OpMkdirAll, dir, syscall.ENOTDIR)
			}
			at = next
		}
		return nil
	})
}

func (f *FS) dirLocked(kind vfs.OpKind, name string) (*inode, error) {
	d, err := f.findLocked(name)
	if err == nil && !d.isDir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, fail(kind, name, err)
	}
	return d, nil
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	var names []string
	err := f.call(Op{Kind: vfs.OpList, Name: dir}, func(bool) error {
		d, err := f.dirLocked(vfs.OpList, dir)
		if err != nil {
			return err
		}
		for name := range d.entries {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil
	})
	return names, err
}

// Size implements vfs.FS.
func (f *FS) Size(name string) (int64, error) {
	var size int64
	err := f.call(Op{Kind: vfs.OpSize, Name: name}, func(bool) error {
		n, err := f.fileLocked(name)
		if err != nil {
			return fail(vfs.OpSize, name, err)
		}
		size = n.cur.size
		return nil
	})
	return size, err
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	return f.call(Op{Kind: vfs.OpSyncDir, Name: dir}, func(live bool) error {
		d, err := f.dirLocked(vfs.OpSyncDir, dir)
		if err == nil && live {
			f.syncDirLocked(d)
		}
		return err
	})
}

// syncDirLocked makes pending changes of d's names durable. A rename takes its
// other directory with it, and with that everything older there: changes of
// one directory never overtake each other.
func (f *FS) syncDirLocked(d *inode) {
	dirs := map[*inode]bool{d: true}
	durable := make([]bool, len(f.pending))
	for i := len(f.pending) - 1; i >= 0; i-- {
		if c := &f.pending[i]; c.touches(dirs) {
			durable[i] = true
			for _, e := range c.entries {
				dirs[e.dir] = true
			}
		}
	}
	var kept []dirChange
	for i := range f.pending {
		c := &f.pending[i]
		if !durable[i] {
			kept = append(kept, *c)
			continue
		}
		for j := range c.entries {
			c.entries[j].apply(c.entries[j].dir.durable)
		}
	}
	f.pending = kept
}

// lock is a held lock.
type lock struct {
	fs     *FS
	n      *inode
	closed bool // guarded by fs.mu
}

// Lock implements vfs.FS. Locks are the process's: none survives a crash.
func (f *FS) Lock(name string) (io.Closer, error) {
	var out *lock
	err := f.call(Op{Kind: vfs.OpLock, Name: name}, func(bool) error {
		n, err := f.fileLocked(name)
		if errors.Is(err, fs.ErrNotExist) {
			n, err = f.createLocked(vfs.OpLock, name)
		} else if err != nil {
			err = fail(vfs.OpLock, name, err)
		}
		if err != nil {
			return err
		}
		if f.locks[n] {
			return fail(vfs.OpLock, name, vfs.ErrLocked)
		}
		f.locks[n] = true
		out = &lock{fs: f, n: n}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Close releases the lock, on a crashed disk as well.
func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.closed {
		return fs.ErrClosed
	}
	l.closed = true
	delete(l.fs.locks, l.n)
	return nil
}

// FreeBytes implements vfs.FS.
func (f *FS) FreeBytes(dir string) (int64, error) {
	var free int64
	err := f.call(Op{Kind: vfs.OpFreeBytes, Name: dir}, func(bool) error {
		if _, err := f.findLocked(dir); err != nil {
			return fail(vfs.OpFreeBytes, dir, err)
		}
		free = max(0, f.capacity-f.used)
		return nil
	})
	return free, err
}
