package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"fluxkv/internal/offheap"
)

// ProbeName is the base name of the file that ProbeDirect makes and removes. A
// crash may leave one; it holds nothing.
const ProbeName = "PROBE"

// ProbeDirect learns whether files in dir can be opened Direct, by writing one
// block and reading it back. It returns ErrDirectUnsupported when the file
// system refuses O_DIRECT or blocks of BlockBytes, and other errors as they
// come. The file it makes is gone when it returns.
func ProbeDirect(fsys FS, dir string) (err error) {
	name := path.Join(dir, ProbeName)
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("probe direct I/O: %w", err)
	}
	f, err := fsys.Create(name, OpenOptions{Write: true, Direct: true})
	if err != nil {
		return fmt.Errorf("probe direct I/O: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close(), fsys.Remove(name))
	}()
	buf, err := offheap.AlignedBuffer(2 * BlockBytes)
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(buf)
	wrote, read := buf[:BlockBytes], buf[BlockBytes:]
	for i := range wrote {
		wrote[i] = byte(i) ^ byte(i>>8)
	}
	// The second block, so that the offset's alignment is tried as well.
	if _, err := f.WriteAt(wrote, BlockBytes); err != nil {
		return probeError(err)
	}
	if _, err := f.ReadAt(read, BlockBytes); err != nil {
		return probeError(err)
	}
	if !bytes.Equal(wrote, read) {
		return fmt.Errorf("probe direct I/O: %s reads back other bytes than written", name)
	}
	return nil
}

func probeError(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("probe direct I/O: %w: blocks of %d bytes: %w", ErrDirectUnsupported, BlockBytes, err)
	}
	return fmt.Errorf("probe direct I/O: %w", err)
}
