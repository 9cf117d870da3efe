package wal

import "fluxkv/internal/vfs"

// testIO reads for tests: by goroutines, through File.ReadAt.
var testIO = func() *vfs.IO {
	io, err := vfs.NewIO(vfs.IOOptions{})
	if err != nil {
		panic(err)
	}
	return io
}()
