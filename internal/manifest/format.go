package manifest

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/mutant"
	"fluxkv/internal/vfs"
)

// The FORMAT file, 64 bytes, little-endian.
//
//	 0  magic     8 bytes  "fluxkvst"
//	 8  version   u16      1
//	10  kvstores  u16
//	12  vbuckets  u16
//	14  zero      u16
//	16  storeID   16 bytes
//	32  secret    16 bytes
//	48  created   i64      Unix nanoseconds
//	56  sum       u64      xxhash64 of [0, 56)
const (
	formatBytes   = 64
	formatMagic   = "fluxkvst"
	formatVersion = 1

	// KVStoresMax bounds Format.KVStores: more would turn one sync into many.
	KVStoresMax = 16
	// VBucketsMax bounds Format.VBuckets: the protocol hashes keys to 15 bits.
	VBucketsMax = 1 << 15
)

// Format is what is fixed when a store is created.
type Format struct {
	StoreID  [16]byte  // random; names the store
	Secret   [16]byte  // random; seeds the checksums of log and manifest
	VBuckets uint16    // 1..VBucketsMax
	KVStores uint16    // 1..KVStoresMax, at most VBuckets
	Created  time.Time // nanoseconds, UTC
}

// NewFormat returns the Format of a store created at now, with a fresh id and
// secret.
func NewFormat(vbuckets, kvstores int, now time.Time) (Format, error) {
	if vbuckets < 1 || vbuckets > VBucketsMax {
		return Format{}, fmt.Errorf("vbuckets %d: must be 1 to %d", vbuckets, VBucketsMax)
	}
	if kvstores < 1 || kvstores > KVStoresMax || kvstores > vbuckets {
		return Format{}, fmt.Errorf("kvstores %d: must be 1 to %d and at most the number of vbuckets (%d)", kvstores, KVStoresMax, vbuckets)
	}
	f := Format{VBuckets: uint16(vbuckets), KVStores: uint16(kvstores), Created: time.Unix(0, now.UnixNano()).UTC()}
	// crypto/rand.Read never fails: it ends the process instead.
	rand.Read(f.StoreID[:])
	rand.Read(f.Secret[:])
	return f, nil
}

func (f *Format) encode() []byte {
	b := make([]byte, formatBytes)
	copy(b, formatMagic)
	le := binary.LittleEndian
	le.PutUint16(b[8:], formatVersion)
	le.PutUint16(b[10:], f.KVStores)
	le.PutUint16(b[12:], f.VBuckets)
	copy(b[16:], f.StoreID[:])
	copy(b[32:], f.Secret[:])
	le.PutUint64(b[48:], uint64(f.Created.UnixNano()))
	le.PutUint64(b[56:], xxhash.Sum64(b[:56]))
	return b
}

func decodeFormat(name string, b []byte) (Format, error) {
	if len(b) != formatBytes {
		return Format{}, corruptf(name, 0, "%d bytes long, want %d", len(b), formatBytes)
	}
	if string(b[:8]) != formatMagic {
		return Format{}, corruptf(name, 0, "not a fluxkv FORMAT file (magic %q)", b[:8])
	}
	le := binary.LittleEndian
	if xxhash.Sum64(b[:56]) != le.Uint64(b[56:]) {
		return Format{}, corruptf(name, 0, "checksum mismatch")
	}
	if v := le.Uint16(b[8:]); v != formatVersion {
		return Format{}, versionError(name, 8, "format version %d, this program reads %d", v, formatVersion)
	}
	f := Format{
		KVStores: le.Uint16(b[10:]),
		VBuckets: le.Uint16(b[12:]),
		StoreID:  [16]byte(b[16:32]),
		Secret:   [16]byte(b[32:48]),
		Created:  time.Unix(0, int64(le.Uint64(b[48:]))).UTC(),
	}
	if f.KVStores < 1 || f.KVStores > KVStoresMax || f.VBuckets < f.KVStores || f.VBuckets > VBucketsMax {
		return Format{}, corruptf(name, 10, "%d kvstores over %d vbuckets", f.KVStores, f.VBuckets)
	}
	return f, nil
}

// CreateFormat writes FORMAT into dir, durably. It fails with os.ErrExist when
// there is one. A temporary file left by a crash is replaced.
func CreateFormat(fs vfs.FS, dir string, f Format) error {
	name := path.Join(dir, FormatName)
	if _, err := fs.Size(name); err == nil {
		return fmt.Errorf("create %s: %w", name, os.ErrExist)
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("create %s: %w", name, err)
	}
	renamed, err := replaceFile(fs, dir, formatTempName, FormatName, f.encode())
	if err != nil && !renamed {
		_ = fs.Remove(path.Join(dir, formatTempName)) // best effort: a leftover is replaced next time
	}
	return err
}

// ReadFormat reads and checks FORMAT. A missing file is os.ErrNotExist.
func ReadFormat(fs vfs.FS, dir string) (Format, error) {
	name := path.Join(dir, FormatName)
	b, err := readWhole(fs, name, formatBytes)
	if err != nil {
		return Format{}, err
	}
	f, err := decodeFormat(name, b)
	if errors.Is(err, ErrCorrupt) {
		// One more look (F5): the flip may have been on the way to memory.
		if b, err = readWhole(fs, name, formatBytes); err != nil {
			return Format{}, err
		}
		return decodeFormat(name, b)
	}
	return f, err
}

// Stage says how far the creation of a store in a directory got.
type Stage int

const (
	// StageNone: no file of this package is there.
	StageNone Stage = iota
	// StageUnfinished: FORMAT exists, CURRENT does not. The store may be
	// created again with this FORMAT if, and only if, no segment file exists:
	// segments are created after CURRENT.
	StageUnfinished
	// StageCreated: FORMAT and CURRENT exist.
	StageCreated
)

// FindStage looks at the names in dir. A manifest or CURRENT without FORMAT is
// a *CorruptError: FORMAT is written first.
func FindStage(fs vfs.FS, dir string) (Stage, error) {
	names, err := fs.List(dir)
	if err != nil {
		return StageNone, fmt.Errorf("list %s: %w", dir, err)
	}
	var format, current bool
	other := ""
	for _, name := range names {
		switch _, ok := ParseName(name); {
		case name == FormatName:
			format = true
		case name == CurrentName:
			current = true
			other = name
		case ok:
			other = name
		}
	}
	switch {
	case !format && other != "":
		return StageNone, corruptf(path.Join(dir, FormatName), 0, "missing, but %s exists", other)
	case !format:
		return StageNone, nil
	case !current:
		return StageUnfinished, nil
	}
	return StageCreated, nil
}

// replaceFile writes content under tempName, syncs it, renames it to base and
// syncs dir. renamed reports that the rename was attempted: after an error it
// is then unknown which content base has.
func replaceFile(fs vfs.FS, dir, tempName, base string, content []byte) (renamed bool, err error) {
	temp, name := path.Join(dir, tempName), path.Join(dir, base)
	if err := fs.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("remove old %s: %w", temp, err)
	}
	f, err := fs.Create(temp, vfs.OpenOptions{Write: true})
	if err != nil {
		return false, fmt.Errorf("create %s: %w", temp, err)
	}
	if _, err = f.WriteAt(content, 0); err == nil {
		err = mutant.Skip(mutant.SkipCurrentSync && base == CurrentName, f.Sync)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return false, fmt.Errorf("write %s: %w", temp, err)
	}
	if err := fs.Rename(temp, name); err != nil {
		return true, fmt.Errorf("rename %s: %w", temp, err)
	}
	syncDir := func() error { return fs.SyncDir(dir) }
	if err := mutant.Skip(mutant.SkipCurrentDirSync && base == CurrentName, syncDir); err != nil {
		return true, fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return true, nil
}

// readWhole reads a file of at most max bytes.
func readWhole(fs vfs.FS, name string, max int64) ([]byte, error) {
	f, err := fs.Open(name, vfs.OpenOptions{})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", name, err)
	}
	if size > max {
		return nil, corruptf(name, max, "%d bytes long, at most %d are possible", size, max)
	}
	b := make([]byte, size)
	// An error of the device is never taken for the end of the file (F6).
	if n, err := f.ReadAt(b, 0); err != nil && !(err == io.EOF && n == len(b)) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}
