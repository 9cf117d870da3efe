package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"fluxkv/internal/vfs"
)

// ErrInjected marks every error that a rule made.
var ErrInjected = errors.New("injected fault")

// FS is a file system that passes calls to another, or fails them. It is safe
// for concurrent use; the order of concurrent calls decides which one a rule
// counts first.
type FS struct {
	inner  vfs.FS
	counts vfs.OpCounts

	// mu guards the fields below. Nothing is called under it.
	mu       sync.Mutex
	rules    []*activeRule
	calls    int64
	injected int64
	first    vfs.Op // the first that met a fault
	hook     func(vfs.Op) error
}

// Wrap returns inner with no rules.
func Wrap(inner vfs.FS) *FS { return &FS{inner: inner} }

// Add adds a rule behind the others. Every rule counts every call it is about;
// of those that apply the first decides.
func (f *FS) Add(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &activeRule{Rule: r})
}

// Clear removes all rules: the disk heals.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// SetHook has fn called before each call, and before rules look at it; an error
// of fn fails the call without effect. fn holds no lock and may block, to hold
// one call while others go on. Nil removes it.
func (f *FS) SetHook(fn func(vfs.Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = fn
}

// Calls returns how many calls there were.
func (f *FS) Calls() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Injected returns how many calls met a fault other than None.
func (f *FS) Injected() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected
}

// FirstInjected returns the first call that met a fault other than None; the
// zero Op, whose N is 0, when none did.
func (f *FS) FirstInjected() vfs.Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first
}

// Count returns how many calls of these kinds, of any when there are none, had
// a name or base name that matches pattern, failed ones included.
func (f *FS) Count(pattern string, kinds ...vfs.OpKind) int { return f.counts.Count(pattern, kinds...) }

// ResetCounts forgets what Count counted.
func (f *FS) ResetCounts() { f.counts.Reset() }

// meet counts a call and returns the fault it meets; err is the hook's.
func (f *FS) meet(op vfs.Op) (Fault, error) {
	f.counts.Add(op.Kind, op.Name)
	f.mu.Lock()
	f.calls++
	op.N = f.calls
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		if err := hook(op); err != nil {
			return None, err
		}
	}
	fault, latency := f.decide(op)
	if latency > 0 {
		time.Sleep(latency)
	}
	return fault, nil
}

func (f *FS) decide(op vfs.Op) (Fault, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var first *activeRule
	for _, r := range f.rules {
		if r.meets(op.Kind, op.Name) && first == nil {
			first = r
		}
	}
	if first == nil {
		return None, 0
	}
	if first.Fault != None {
		if f.injected == 0 {
			f.first = op
		}
		f.injected++
	}
	return first.Fault, first.Latency
}

// fail returns the error of a fault that fails the call as a whole, or nil.
func (f *FS) fail(op vfs.Op) error {
	fault, err := f.meet(op)
	if err != nil {
		return err
	}
	return faultError(fault, op)
}

func faultError(fault Fault, op vfs.Op) error {
	var err error
	switch fault {
	case None, BitFlip:
		return nil
	case ENOSPC:
		err = fmt.Errorf("%w: %w: %w", ErrInjected, vfs.ErrNoSpace, syscall.ENOSPC)
	case ShortWrite:
		err = fmt.Errorf("%w: %w", ErrInjected, io.ErrShortWrite)
	default:
		err = fmt.Errorf("%w: %w", ErrInjected, syscall.EIO)
	}
	return &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: err}
}

// Create implements vfs.FS.
func (f *FS) Create(name string, o vfs.OpenOptions) (vfs.File, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpCreate, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(o)(f.inner.Create(name, o))
}

// Open implements vfs.FS.
func (f *FS) Open(name string, o vfs.OpenOptions) (vfs.File, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpOpen, Name: name}); err != nil {
		return nil, err
	}
	return f.wrap(o)(f.inner.Open(name, o))
}

func (f *FS) wrap(o vfs.OpenOptions) func(vfs.File, error) (vfs.File, error) {
	return func(inner vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		return &file{fs: f, inner: inner, direct: o.Direct}, nil
	}
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	if err := f.fail(vfs.Op{Kind: vfs.OpRemove, Name: name}); err != nil {
		return err
	}
	return f.inner.Remove(name)
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	if err := f.fail(vfs.Op{Kind: vfs.OpRename, Name: oldName}); err != nil {
		return err
	}
	return f.inner.Rename(oldName, newName)
}

// Link implements vfs.FS.
func (f *FS) Link(oldName, newName string) error {
	if err := f.fail(vfs.Op{Kind: vfs.OpLink, Name: oldName}); err != nil {
		return err
	}
	return f.inner.Link(oldName, newName)
}

// Links implements vfs.FS.
func (f *FS) Links(name string) (int, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpLinks, Name: name}); err != nil {
		return 0, err
	}
	return f.inner.Links(name)
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string) error {
	if err := f.fail(vfs.Op{Kind: vfs.OpMkdirAll, Name: dir}); err != nil {
		return err
	}
	return f.inner.MkdirAll(dir)
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpList, Name: dir}); err != nil {
		return nil, err
	}
	return f.inner.List(dir)
}

// Size implements vfs.FS.
func (f *FS) Size(name string) (int64, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpSize, Name: name}); err != nil {
		return 0, err
	}
	return f.inner.Size(name)
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	if err := f.fail(vfs.Op{Kind: vfs.OpSyncDir, Name: dir}); err != nil {
		return err
	}
	return f.inner.SyncDir(dir)
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpLock, Name: name}); err != nil {
		return nil, err
	}
	return f.inner.Lock(name)
}

// FreeBytes implements vfs.FS.
func (f *FS) FreeBytes(dir string) (int64, error) {
	if err := f.fail(vfs.Op{Kind: vfs.OpFreeBytes, Name: dir}); err != nil {
		return 0, err
	}
	return f.inner.FreeBytes(dir)
}
