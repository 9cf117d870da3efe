package vfs

import (
	"sync"
	"sync/atomic"
)

const (
	// A flash device reaches its best rate at 32 to 64 reads in flight; more
	// from one caller only make the others wait.
	readsPerCallMax = 64
	// Every read in flight holds a thread of the system while it waits. 256
	// threads are 4 devices' worth and 2 MiB of stacks in the kernel.
	readHelpersMax = 256
)

// readHelpers counts the goroutines that help callers of ReadMany.
var readHelpers atomic.Int64

// readBatch is what the caller of ReadMany and its helpers share.
type readBatch struct {
	reads []Read
	next  atomic.Int64
	wg    sync.WaitGroup
	help  func() // starting a kept func allocates nothing
}

var readBatches = sync.Pool{New: func() any {
	b := new(readBatch)
	b.help = func() {
		b.run()
		readHelpers.Add(-1)
		b.wg.Done()
	}
	return b
}}

func (b *readBatch) run() {
	for {
		i := b.next.Add(1) - 1
		if i >= int64(len(b.reads)) {
			return
		}
		b.reads[i].do()
	}
}

// ReadMany does all reads, many at once, and returns when the last is done.
// Files may repeat; buffers must not overlap. The caller's goroutine reads
// too, so it makes progress when all helpers are busy with other callers. It
// may be called concurrently and keeps no slice.
func ReadMany(reads []Read) {
	if len(reads) == 1 {
		reads[0].do()
		return
	}
	if len(reads) == 0 {
		return
	}
	b := readBatches.Get().(*readBatch)
	b.reads = reads
	b.next.Store(0)
	for range min(len(reads), readsPerCallMax) - 1 {
		if readHelpers.Add(1) > readHelpersMax {
			readHelpers.Add(-1)
			break
		}
		b.wg.Add(1)
		go b.help()
	}
	b.run()
	b.wg.Wait()
	b.reads = nil
	readBatches.Put(b)
}
