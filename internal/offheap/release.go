package offheap

import "fmt"

// Release gives the pages of b, a part of a Map that starts and ends at
// multiples of AlignBytes, back to the kernel. The memory stays mapped and is
// zero when it is next touched. In race builds it does nothing: OnGoHeap tells
// that old bytes remain.
func Release(b []byte) {
	checkPages(b)
	releasePages(b)
}

// SmallPages takes back the wish of Map for huge pages for b, whole pages of a
// Map: memory that is touched in pieces, here and there, must not take 2 MiB
// for each.
func SmallPages(b []byte) { smallPages(b) }

func checkPages(b []byte) {
	if len(b)%AlignBytes != 0 {
		panic(fmt.Sprintf("offheap: %d bytes are not whole pages", len(b)))
	}
}
