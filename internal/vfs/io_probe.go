//go:build linux

package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"fluxkv/internal/aio"
	"fluxkv/internal/offheap"
)

// engines lists what the kernel may have, best first. docs/io.md has the
// measurements behind the order.
var engines = []string{EngineAIO, EngineURing}

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
		for _, name := range engines {
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
func probeRing(o IOOptions, name string) (_ aio.Ring, err error) {
	ring, err := aio.Open(name, o.Depth)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = ring.Close()
		}
	}()
	file := path.Join(o.Dir, ProbeName)
	if err := o.FS.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("probe: %w", err)
	}
	f, err := o.FS.Create(file, OpenOptions{Write: true, Direct: true})
	if errors.Is(err, ErrDirectUnsupported) && ring.Buffered() {
		f, err = o.FS.Create(file, OpenOptions{Write: true})
	}
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close(), o.FS.Remove(file))
	}()
	buf, err := offheap.AlignedBuffer(2 * BlockBytes)
	if err != nil {
		return nil, err
	}
	defer offheap.FreeAligned(buf)
	wrote, read := buf[:BlockBytes], buf[BlockBytes:]
	for i := range wrote {
		wrote[i] = byte(i) ^ byte(i>>8)
	}
	if _, err := f.WriteAt(wrote, BlockBytes); err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	ops := []aio.Op{{Buf: read, Off: BlockBytes, FD: f.(*osFile).fd}}
	if taken, _ := ring.Submit(ops); taken != 1 {
		return nil, errors.New("probe: the kernel takes no read")
	}
	var events [1]aio.Event
	if ring.Wait(events[:], 1); events[0].Res != BlockBytes || !bytes.Equal(wrote, read) {
		return nil, fmt.Errorf("probe: a read of %d bytes came back with %d, or with other bytes", BlockBytes, events[0].Res)
	}
	return ring, nil
}
