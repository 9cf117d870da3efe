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

const (
	// A manifest is replaced when it is longer than both.
	rotateBytesMin     = 1 << 20
	rotateSnapshotsMin = 4

	// keptRecordBytes bounds the buffer that is kept for the next record.
	keptRecordBytes = 1 << 20
)

// Log is the manifest of an open store. It is safe for concurrent use.
type Log struct {
	fs     vfs.FS
	dir    string
	secret [16]byte

	// nextFile is the number NextFileNumber hands out next. It is outside mu so
	// that nobody who needs a file number waits for a sync.
	nextFile atomic.Uint64
	written  atomic.Int64 // bytes, of all manifests since Open

	// mu guards the fields below. It is last in the lock order and the only
	// lock that may be held across I/O.
	mu    sync.Mutex
	state State
	// file is the manifest being appended to; nil after Open until the first
	// Apply has started a new one (W6: its old tail may be torn).
	file     vfs.File
	end      int64  // where the next record goes; all bytes before it are synced
	rotateAt int64  // length at which the file is replaced
	promised bool   // the last record is a bare promise, or the first one
	rec      []byte // the last record, kept for its space
	poison   error  // the cause, once a write to the manifest failed half-way
	closed   bool
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
	l := &Log{fs: fs, dir: dir, secret: secret}
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
	if err := l.rotateLocked(st); err != nil {
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
	l := &Log{fs: fs, dir: dir, secret: secret, state: r.state}
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
// so far are recorded with it.
//
// Errors: ErrInvalidEdit (nothing was written), vfs.ErrNoSpace without
// ErrPoisoned (nothing was written; may be tried again), ErrPoisoned (the
// edit may or may not be there after a restart; final), ErrClosed. After an
// error the state is what it was.
func (l *Log) Apply(e *Edit) (State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usableLocked(); err != nil {
		return l.state, err
	}
	edit := *e
	if n := l.nextFile.Load(); n > l.state.NextFileNumber {
		edit.NextFile = max(edit.NextFile, n)
	}
	next, err := l.state.Apply(&edit)
	if err != nil {
		return l.state, err
	}
	l.SeenFile(next.NextFileNumber - 1)
	if l.file == nil || l.end >= l.rotateAt {
		err := l.rotateLocked(next)
		if err == nil {
			return l.state, nil
		}
		if l.poison != nil || l.file == nil {
			return l.state, err
		}
		// The old manifest is untouched and still current: use it, and do
		// not try to replace it at each edit.
		l.rotateAt = 2 * l.end
	}
	if err := l.appendLocked(&edit); err != nil {
		return l.state, err
	}
	next.Manifest = l.state.Manifest
	l.state = next
	return l.state, nil
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

// Close writes the last promise and closes the file. A poisoned manifest is
// closed without writing, and that is no error here: it was reported before.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
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
	l.written.Add(int64(len(rec)))
	l.promised = e == nil
	return nil
}

// rotateLocked starts a new manifest that begins with st and makes it current
// (M2). When it fails before CURRENT was touched, the old manifest stays in
// force, the log stays as it was and the new file is removed; later, it is
// unknown which one CURRENT names, so the log is poisoned and nothing removed.
func (l *Log) rotateLocked(st State) error {
	number := l.NextFileNumber()
	st.NextFileNumber = l.nextFile.Load()
	st.Manifest = number
	name := path.Join(l.dir, Name(number))
	snapshot := st.edit()
	b := appendHeader(nil, l.secret, number)
	b = appendRecord(b, l.secret, number, headerBytes, headerBytes, &snapshot)
	if len(b) > manifestBytesMax {
		return fmt.Errorf("write %s: %d bytes, at most %d are possible", name, len(b), manifestBytesMax)
	}

	f, err := l.writeNew(name, b)
	if err != nil {
		return err
	}
	end := int64(len(b))
	if renamed, err := writeCurrent(l.fs, l.dir, l.secret, current{number: number, synced: end}); err != nil {
		_ = f.Close()
		if renamed {
			l.poison = err
			return l.poisonedLocked()
		}
		// CURRENT was not touched, so nothing names the new file.
		_ = l.fs.Remove(path.Join(l.dir, currentTempName))
		_ = l.fs.Remove(name)
		return err
	}
	old := l.state.Manifest
	if l.file != nil {
		_ = l.file.Close() // every record in it was synced, and the new file holds them
	}
	l.state, l.file, l.end, l.promised = st, f, end, true
	l.rotateAt = max(rotateBytesMin, rotateSnapshotsMin*end)
	if old != 0 {
		// A leftover is found by Obsolete at the next open.
		_ = l.fs.Remove(path.Join(l.dir, Name(old)))
	}
	return nil
}

// writeNew writes and syncs a new file and its directory entry. After an error
// the file is gone, or an orphan that nothing names.
func (l *Log) writeNew(name string, b []byte) (vfs.File, error) {
	f, err := l.fs.Create(name, vfs.OpenOptions{Write: true})
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	l.written.Add(int64(len(b)))
	if _, err = f.WriteAt(b, 0); err != nil {
		err = fmt.Errorf("write %s: %w", name, err)
	} else if err = mutant.Skip(mutant.SkipNewManifestSync, f.Sync); err != nil {
		err = fmt.Errorf("sync %s: %w", name, err)
	} else if err = l.fs.SyncDir(l.dir); err != nil {
		err = fmt.Errorf("sync directory %s: %w", l.dir, err)
	} else {
		return f, nil
	}
	_ = f.Close()
	_ = l.fs.Remove(name)
	return nil, err
}
