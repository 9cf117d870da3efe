//go:build linux

package aio

import "fmt"

// DepthMax bounds the reads in flight of one ring. io_uring has no larger ones.
const DepthMax = 32768

// Open makes a ring of one kind, "uring" or "aio", for up to depth reads in
// flight. That the kernel has the calls does not say that reads
// work: try one.
func Open(name string, depth int) (Ring, error) {
	if depth < 1 || depth > DepthMax {
		return nil, fmt.Errorf("aio: depth %d is not within 1 to %d", depth, DepthMax)
	}
	switch name {
	case "uring":
		return openURing(depth)
	case "aio":
		return openAIO(depth)
	}
	return nil, fmt.Errorf("aio: unknown ring %q", name)
}
