package manifest

import (
	"cmp"
	"fmt"
	"path"

	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
)

const (
	// A manifest is replaced when it is longer than both.
	rotateBytesMin     = 1 << 20
	rotateSnapshotsMin = 4

	// rotateRetryBytesMax is the most by which it grows before another try,
	// when one failed.
	rotateRetryBytesMax = 64 << 20
)

// rotation replaces the manifest while edits go on (R26).
//
//	Apply      old: [..][edit][edit][edit]
//	                      |     |     |
//	rotate                |     +--+--+ the tail
//	  without mu          v        |
//	           new: [snapshot]     v        both synced
//	  under mu                 [edit][edit] and only then CURRENT
//
// Until CURRENT is switched the old file is in force and has everything.
type rotation struct {
	snapshot State  // what the new file begins with
	tail     []byte // the records that the old file got since, to be placed anew
	lengths  []int  // of those records
}

// remember notes a record that was appended to the old file.
func (r *rotation) remember(rec []byte) {
	r.tail = append(r.tail, rec...)
	r.lengths = append(r.lengths, len(rec))
}

// place makes the tail follow a snapshot that is synced up to end.
func (r *rotation) place(secret [16]byte, end int64) {
	off := 0
	for _, n := range r.lengths {
		placeRecord(r.tail[off:off+n], secret, r.snapshot.Manifest, end+int64(off), end)
		off += n
	}
}

// beginLocked captures the state for a new file. From here on edits are
// remembered.
func (l *Log) beginLocked() *rotation {
	l.rotation = &rotation{snapshot: l.nextManifestLocked(l.state)}
	return l.rotation
}

// nextManifestLocked returns st as a new file will hold it.
func (l *Log) nextManifestLocked(st State) State {
	st.Manifest = l.NextFileNumber()
	st.NextFileNumber = l.nextFile.Load()
	return st
}

// RotateFrom sets the least length in bytes at which the manifest is replaced by
// a new one, from the next replacement on; 0 is the default, 1 MiB. Tests lower
// it so that a few edits get there.
func (l *Log) RotateFrom(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotateMin = bytes
}

// rotate carries out a rotation. Only its end holds mu.
func (l *Log) rotate(r *rotation) {
	f, end, err := l.writeSnapshot(r.snapshot)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.finishLocked(r, f, end)
	}
	if err != nil {
		// Unless the log is poisoned the old manifest is still current: go
		// on with it, and do not try to replace it at each edit.
		l.rotateAt = l.end + min(l.end, rotateRetryBytesMax)
	}
	l.rotation = nil
	l.rotated.Broadcast()
}

// finishLocked appends the tail to the new file f, of length end, and switches
// to it.
func (l *Log) finishLocked(r *rotation, f vfs.File, end int64) error {
	if l.poison != nil {
		// Whether the edit that failed is there is for the next start to
		// find out, in the file that CURRENT names now. Nothing names f.
		_ = f.Close()
		return l.poison
	}
	snapshotEnd := end
	if len(r.tail) > 0 && !mutant.RotationLosesTail {
		r.place(l.secret, end)
		if err := l.appendTail(f, r.tail, end); err != nil {
			_ = f.Close()
			_ = l.fs.Remove(path.Join(l.dir, Name(r.snapshot.Manifest)))
			return err
		}
		end += int64(len(r.tail))
	}
	st := l.state
	st.Manifest = r.snapshot.Manifest
	st.NextFileNumber = max(st.NextFileNumber, r.snapshot.NextFileNumber)
	return l.switchLocked(st, f, end, snapshotEnd)
}

func (l *Log) appendTail(f vfs.File, tail []byte, end int64) error {
	if end+int64(len(tail)) > manifestBytesMax {
		return fmt.Errorf("append to %s: it would pass %d bytes", f.Name(), manifestBytesMax)
	}
	l.written.Add(int64(len(tail)))
	if _, err := f.WriteAt(tail, end); err != nil {
		return fmt.Errorf("append to %s: %w", f.Name(), err)
	}
	if err := mutant.Skip(mutant.SkipTailSync, f.Sync); err != nil {
		return fmt.Errorf("sync %s: %w", f.Name(), err)
	}
	return nil
}

// replaceLocked starts a new manifest that begins with st and switches to it.
func (l *Log) replaceLocked(st State) error {
	st = l.nextManifestLocked(st)
	f, end, err := l.writeSnapshot(st)
	if err != nil {
		return err
	}
	return l.switchLocked(st, f, end, end)
}

// switchLocked makes f, whose end bytes hold st and are synced, the current
// manifest (M2). When it fails before CURRENT was touched, the old manifest
// stays in force, the log stays as it was and f is removed; later, it is unknown
// which one CURRENT names, so the log is poisoned and nothing removed.
func (l *Log) switchLocked(st State, f vfs.File, end, snapshotEnd int64) error {
	if renamed, err := writeCurrent(l.fs, l.dir, l.secret, current{number: st.Manifest, synced: end}); err != nil {
		_ = f.Close()
		if renamed {
			l.poison = err
			return l.poisonedLocked()
		}
		// CURRENT was not touched, so nothing names the new file.
		_ = l.fs.Remove(path.Join(l.dir, currentTempName))
		_ = l.fs.Remove(path.Join(l.dir, Name(st.Manifest)))
		return err
	}
	old := l.state.Manifest
	if l.file != nil {
		_ = l.file.Close() // every record in it was synced, and the new file holds them
	}
	l.state, l.file, l.end, l.promised = st, f, end, true
	l.length.Store(end)
	l.rotateAt = max(cmp.Or(l.rotateMin, rotateBytesMin), rotateSnapshotsMin*snapshotEnd)
	if old != 0 {
		// A leftover is found by Obsolete at the next open.
		_ = l.fs.Remove(path.Join(l.dir, Name(old)))
	}
	return nil
}

// writeSnapshot writes and syncs a new file that begins with st, and its
// directory entry. It returns the file and its length. After an error the file
// is gone, or an orphan that nothing names. It needs no lock: st is immutable.
func (l *Log) writeSnapshot(st State) (vfs.File, int64, error) {
	name := path.Join(l.dir, Name(st.Manifest))
	snapshot := st.edit()
	b := appendHeader(nil, l.secret, st.Manifest)
	b = appendRecord(b, l.secret, st.Manifest, headerBytes, headerBytes, &snapshot)
	if len(b) > manifestBytesMax {
		return nil, 0, fmt.Errorf("write %s: %d bytes, at most %d are possible", name, len(b), manifestBytesMax)
	}
	f, err := l.fs.Create(name, vfs.OpenOptions{Write: true})
	if err != nil {
		return nil, 0, fmt.Errorf("create %s: %w", name, err)
	}
	l.written.Add(int64(len(b)))
	if _, err = f.WriteAt(b, 0); err != nil {
		err = fmt.Errorf("write %s: %w", name, err)
	} else if err = mutant.Skip(mutant.SkipNewManifestSync, f.Sync); err != nil {
		err = fmt.Errorf("sync %s: %w", name, err)
	} else if err = l.fs.SyncDir(l.dir); err != nil {
		err = fmt.Errorf("sync directory %s: %w", l.dir, err)
	} else {
		return f, int64(len(b)), nil
	}
	_ = f.Close()
	_ = l.fs.Remove(name)
	return nil, 0, err
}
