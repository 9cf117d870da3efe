package manifest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"sync"
	"sync/atomic"

	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
)

// keptRecordBytes bounds the buffer that is kept for the next record.
const keptRecordBytes = 1 << 20

// Log is the manifest of an open store. It is safe for concurrent use.
type Log struct {
	fs     vfs.FS
	dir    string
	secret [16]byte

	// nextFile is the number NextFileNumber hands out next. It is outside mu so
	// that nobody who needs a file number waits for a sync.
	nextFile atomic.Uint64
	length   atomic.Int64 // of the file in force
	written  atomic.Int64 // bytes, of all manifests since Open

	// run starts the work of a rotation: in a goroutine, unless a test wants to
	// know when it happens.
	run func(work func())

	// mu guards the fields below. It is last in the lock order and the only
	// lock that may be held across I/O.
	mu    sync.Mutex
	state State
	// file is the manifest being appended to; nil after Open until the first
	// Apply has started a new one (W6: its old tail may be torn).
	file      vfs.File
	end       int64  // where the next record goes; all bytes before it are synced
	rotateAt  int64  // length at which the file is replaced
	rotateMin int64  // in place of rotateBytesMin, unless 0
	promised  bool   // the last record is a bare promise, or the first one
	rec       []byte // the last record, kept for its space
	poison    error  // the cause, once a write to the manifest failed half-way
	closed    bool
	rotation  *rotation  // under way, nil when none is
	rotated   *sync.Cond // on mu: rotation became nil
}

func newLog(fs vfs.FS, dir string, secret [16]byte) *Log {
	l := &Log{fs: fs, dir: dir, secret: secret, run: func(work func()) { go work() }}
	l.rotated = sync.NewCond(&l.mu)
	return l
}

// Create makes the first manifest of a store in dir, holding initial applied to
// an empty state, and makes it current, durably. FORMAT must have been written
// before (CreateFormat). It fails with os.ErrExist when CURRENT exists; other
// leftovers of a creation that was cut short are replaced or stepped over.
func Create(fs vfs.FS, dir string, secret [16]byte, initial Edit) (*Log, error) {
	name := path.Join(dir, CurrentName)
	if _, err := fs.Size(name); err == nil {
		return nil, fmt.Errorf("create %s: %w", name, os.ErrExist)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	l := newLog(fs, dir, secret)
	l.nextFile.Store(1)
	if err := l.seeManifests(); err != nil {
		return nil, err
	}
	st, err := emptyState().Apply(&initial)
	if err != nil {
		return nil, err
	}
	l.SeenFile(st.NextFileNumber - 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.replaceLocked(st); err != nil {
		return nil, err
	}
	return l, nil
}

// Open reads the manifest that CURRENT names. It writes nothing (M5): the first
// Apply starts a new manifest file instead of appending to this one.
//
// Errors: ErrNoCurrent, ErrCorrupt, ErrVersion, or what the file system said.
func Open(fs vfs.FS, dir string, secret [16]byte) (*Log, State, error) {
	r, err := load(fs, dir, secret)
	if errors.Is(err, ErrCorrupt) || err == nil && r.torn {
		// One more look (F5): a flip on the way to memory must neither be
		// called damage nor cut off the last edit.
		r, err = load(fs, dir, secret)
	}
	if err != nil {
		return nil, State{}, err
	}
	l := newLog(fs, dir, secret)
	l.state = r.state
	l.nextFile.Store(r.state.NextFileNumber)
	l.SeenFile(r.state.Manifest)
	if err := l.seeManifests(); err != nil {
		return nil, State{}, err
	}
	return l, r.state, nil
}

func load(fs vfs.FS, dir string, secret [16]byte) (replayed, error) {
	c, err := readCurrent(fs, dir, secret)
	if err != nil {
		return replayed{}, err
	}
	name := path.Join(dir, Name(c.number))
	b, err := readWhole(fs, name, manifestBytesMax)
	if errors.Is(err, os.ErrNotExist) {
		return replayed{}, corruptf(path.Join(dir, CurrentName), 0, "names %s, which does not exist", name)
	}
	if err != nil {
		return replayed{}, err
	}
	return replay(name, b, secret, c.number, c.synced)
}

// seeManifests steps over the number of every manifest in the directory, also
// of those no edit ever named (M6).
func (l *Log) seeManifests() error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", l.dir, err)
	}
	for _, name := range names {
		if n, ok := ParseName(name); ok {
			l.SeenFile(n)
		}
	}
	return nil
}

// NextFileNumber hands out a number for a new file. Numbers are never handed
// out twice, provided that SeenFile was told of every file in the directories
// after Open. It does not wait for a running Apply.
func (l *Log) NextFileNumber() uint64 { return l.nextFile.Add(1) - 1 }

// SeenFile makes NextFileNumber return only numbers above n.
func (l *Log) SeenFile(n uint64) {
	for {
		old := l.nextFile.Load()
		if n < old || l.nextFile.CompareAndSwap(old, n+1) {
			return
		}
	}
}

// WrittenBytes is what this Log has written so far, snapshots included.
func (l *Log) WrittenBytes() int64 { return l.written.Load() }

// FileBytes is the length of the manifest in force. It waits for nothing.
func (l *Log) FileBytes() int64 { return l.length.Load() }

// State returns the state after the last successful Apply.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Err returns the cause that poisoned the manifest, nil while it works.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.poison
}

// Apply makes e durable and returns the new state. The file numbers handed out
// so far are recorded with it. When the file has grown long, a rotation starts
// in the background (R26); the first Apply after Open waits for its own.
//
// Errors: ErrInvalidEdit (nothing was written), vfs.ErrNoSpace without
// ErrPoisoned (nothing was written; may be tried again), ErrPoisoned (the
// edit may or may not be there after a restart; final), ErrClosed. After an
// error the state is what it was.
func (l *Log) Apply(e *Edit) (State, error) {
	st, r, err := l.apply(e)
	if r != nil {
		l.run(func() { l.rotate(r) })
	}
	return st, err
}

// apply is Apply without the rotation that may follow.
func (l *Log) apply(e *Edit) (State, *rotation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usableLocked(); err != nil {
		return l.state, nil, err
	}
	edit := *e
	if n := l.nextFile.Load(); n > l.state.NextFileNumber {
		edit.NextFile = max(edit.NextFile, n)
	}
	next, err := l.state.Apply(&edit)
	if err != nil {
		return l.state, nil, err
	}
	l.SeenFile(next.NextFileNumber - 1)
	if l.file == nil {
		err := l.replaceLocked(next)
		return l.state, nil, err
	}
	if err := l.appendLocked(&edit); err != nil {
		return l.state, nil, err
	}
	l.state = next
	if l.end < l.rotateAt || l.rotation != nil {
		return l.state, nil, nil
	}
	return l.state, l.beginLocked(), nil
}

// Promise appends a bare record that vouches for all records before it, unless
// the last one is such a record. Without it, damage to the last edit would be
// taken for a torn tail. Call it when the store has been idle; Close does.
// Before the first Apply after Open it does nothing.
func (l *Log) Promise() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usableLocked(); err != nil {
		return err
	}
	return l.promiseLocked()
}

func (l *Log) promiseLocked() error {
	if l.file == nil || l.promised {
		return nil
	}
	return l.appendLocked(nil)
}

// Close waits for a rotation under way, writes the last promise and closes the
// file. A poisoned manifest is closed without writing, and that is no error
// here: it was reported before. A second Close does nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := l.closed
	l.closed = true
	for l.rotation != nil {
		l.rotated.Wait()
	}
	if again {
		return nil
	}
	var err error
	if l.poison == nil {
		err = l.promiseLocked()
	}
	if l.file != nil {
		if cerr := l.file.Close(); err == nil && cerr != nil && l.poison == nil {
			err = fmt.Errorf("close %s: %w", l.file.Name(), cerr)
		}
		l.file = nil
	}
	return err
}

func (l *Log) usableLocked() error {
	switch {
	case l.closed:
		return ErrClosed
	case l.poison != nil:
		return l.poisonedLocked()
	}
	return nil
}

func (l *Log) poisonedLocked() error { return fmt.Errorf("%w: %w", ErrPoisoned, l.poison) }

// appendLocked writes and syncs one record; e nil writes a bare promise.
func (l *Log) appendLocked(e *Edit) error {
	rec := appendRecord(l.rec[:0], l.secret, l.state.Manifest, l.end, l.end, e)
	l.rec = rec
	if cap(rec) > keptRecordBytes {
		l.rec = nil
	}
	if l.end+int64(len(rec)) > manifestBytesMax {
		return fmt.Errorf("append to %s: it would pass %d bytes", l.file.Name(), manifestBytesMax)
	}
	if n, err := l.file.WriteAt(rec, l.end); err != nil {
		err = fmt.Errorf("append to %s: %w", l.file.Name(), err)
		if n == 0 && errors.Is(err, vfs.ErrNoSpace) {
			return err // the file is as it was; space may come back
		}
		// A part may be there. Another record behind it, or over it, could
		// leave a bad record in the middle (M3).
		l.poison = err
		return l.poisonedLocked()
	}
	if err := mutant.Skip(mutant.SkipManifestSync, l.file.Sync); err != nil {
		l.poison = fmt.Errorf("sync %s: %w", l.file.Name(), err)
		return l.poisonedLocked()
	}
	l.end += int64(len(rec))
	l.length.Store(l.end)
	l.written.Add(int64(len(rec)))
	l.promised = e == nil
	if l.rotation != nil && e != nil {
		l.rotation.remember(rec)
	}
	return nil
}
