//go:build linux

package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"fluxkv/internal/aio"
	"fluxkv/internal/offheap"
)

// engines lists what the kernel may have, best first: reads through the page
// cache are asynchronous with io_uring only. docs/io.md has the measurements
// behind the order.
func engines(buffered bool) []string {
	if buffered {
		return []string{EngineURing, EngineAIO}
	}
	return []string{EngineAIO, EngineURing}
}

// openRing returns the ring that o asks for; nil means pread.
func openRing(o IOOptions) (aio.Ring, error) {
	logf := o.Logf
	if logf == nil {
		logf = func(string, ...any) {}
	}
	_, real := o.FS.(OSFS)
	switch o.Engine {
	case EnginePread:
		return nil, nil
	case EngineURing, EngineAIO:
		if !real {
			return nil, nil
		}
		ring, err := probeRing(o, o.Engine)
		if err != nil {
			return nil, fmt.Errorf("I/O engine %s: %w", o.Engine, err)
		}
		return ring, nil
	case "":
		if !real {
			return nil, nil
		}
		for _, name := range engines(o.Buffered) {
			ring, err := probeRing(o, name)
			if err == nil {
				logf("I/O engine: %s", name)
				return ring, nil
			}
			logf("I/O engine %s cannot be used: %v", name, err)
		}
		logf("I/O engine: %s", EnginePread)
		return nil, nil
	}
	return nil, fmt.Errorf("unknown I/O engine %q; there are uring, aio and pread", o.Engine)
}

// probeRing makes a ring and reads a file with it, because kernels and
// sandboxes may offer the calls and refuse the work.
func probeRing(o IOOptions, name string) (aio.Ring, error) {
	ring, err := aio.Open(name, o.Depth)
	if err != nil {
		return nil, err
	}
	if err := tryRing(ring, o); err != nil {
		return nil, errors.Join(fmt.Errorf("probe: %w", err), ring.Close())
	}
	return ring, nil
}

func tryRing(ring aio.Ring, o IOOptions) (err error) {
	file := path.Join(o.Dir, ProbeName)
	if err := o.FS.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) {
		return err
	}
	f, err := o.FS.Create(file, OpenOptions{Write: true, Direct: true})
	if errors.Is(err, ErrDirectUnsupported) && ring.Buffered() {
		f, err = o.FS.Create(file, OpenOptions{Write: true})
	}
	if err == nil {
		defer func() { err = errors.Join(err, f.Close(), o.FS.Remove(file)) }()
		if err := writeProbe(f); !errors.Is(err, ErrNoSpace) {
			return tryRead(ring, f, err)
		}
	} else if !errors.Is(err, ErrNoSpace) && !errors.Is(err, unix.EROFS) {
		return err
	}
	// A full disk must not cost the engine: this program is a file too.
	program, err := o.FS.Open("/proc/self/exe", OpenOptions{})
	if err != nil {
		return err
	}
	return errors.Join(tryRead(ring, program, nil), program.Close())
}

// writeProbe writes two blocks whose bytes are not those of fresh memory.
func writeProbe(f File) error {
	buf, err := offheap.AlignedBuffer(2 * BlockBytes)
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(buf)
	for i := range buf {
		buf[i] = byte(i) ^ byte(i>>8) ^ 0xa5
	}
	_, err = f.WriteAt(buf, 0)
	return err
}

// tryRead reads the second block of f with the ring and without, unless there
// is an error already.
func tryRead(ring aio.Ring, f File, err error) error {
	if err != nil {
		return err
	}
	buf, err := offheap.AlignedBuffer(2 * BlockBytes)
	if err != nil {
		return err
	}
	defer offheap.FreeAligned(buf)
	want, got := buf[:BlockBytes], buf[BlockBytes:]
	if _, err := f.ReadAt(want, BlockBytes); err != nil {
		return err
	}
	ops := []aio.Op{{Buf: got, Off: BlockBytes, FD: f.(*osFile).fd}}
	if taken, _ := ring.Submit(ops); taken != 1 {
		return errors.New("the kernel takes no read")
	}
	var events [1]aio.Event
	if ring.Wait(events[:], 1); events[0].Res < 0 {
		return fmt.Errorf("read: %w", unix.Errno(-events[0].Res))
	}
	if events[0].Res != BlockBytes || !bytes.Equal(want, got) {
		return fmt.Errorf("a read of %d bytes came back with %d, or with other bytes", BlockBytes, events[0].Res)
	}
	return nil
}
