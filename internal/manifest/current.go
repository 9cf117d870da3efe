package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"

	"fluxkv/internal/vfs"
)

// currentBytesMax: name (up to 29), two spaces, length (10), sum (16), newline.
const currentBytesMax = 64

// current is the content of CURRENT.
//
//	MANIFEST-000007 1432 0b54e1a5c3f1d9aa\n
type current struct {
	number uint64 // the manifest in force
	synced int64  // its length when CURRENT was written, all of it synced
}

func (c current) encode(secret [16]byte) []byte {
	b := fmt.Appendf(nil, "%s %d ", Name(c.number), c.synced)
	return fmt.Appendf(b, "%016x\n", sum(seed(secret, 0, 0), b))
}

func decodeCurrent(name string, b []byte, secret [16]byte) (current, error) {
	if len(b) == 0 {
		return current{}, corruptf(name, 0, "empty")
	}
	parts := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte(" "))
	if len(parts) != 3 {
		return current{}, corruptf(name, 0, "not a line of manifest name, length and checksum: %q", b)
	}
	number, ok := ParseName(string(parts[0]))
	if !ok {
		return current{}, corruptf(name, 0, "%q names no manifest", parts[0])
	}
	synced, err := strconv.ParseInt(string(parts[1]), 10, 64)
	if err != nil || synced < headerBytes || synced > manifestBytesMax {
		return current{}, corruptf(name, int64(len(parts[0])+1), "length %q", parts[1])
	}
	c := current{number: number, synced: synced}
	// One spelling only, so nothing in the file is outside the checksum.
	if !bytes.Equal(c.encode(secret), b) {
		return current{}, corruptf(name, int64(len(parts[0])+len(parts[1])+2), "checksum mismatch")
	}
	return c, nil
}

// readCurrent returns ErrNoCurrent when the file is missing.
func readCurrent(fs vfs.FS, dir string, secret [16]byte) (current, error) {
	name := path.Join(dir, CurrentName)
	b, err := readWhole(fs, name, currentBytesMax)
	if errors.Is(err, os.ErrNotExist) {
		return current{}, fmt.Errorf("%s: %w", dir, ErrNoCurrent)
	}
	if err != nil {
		return current{}, err
	}
	return decodeCurrent(name, b, secret)
}

// writeCurrent switches to c, durably; renamed as in replaceFile.
func writeCurrent(fs vfs.FS, dir string, secret [16]byte, c current) (renamed bool, err error) {
	return replaceFile(fs, dir, currentTempName, CurrentName, c.encode(secret))
}
