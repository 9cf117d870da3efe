package vfs

// Read is one positional read: File, Buf and Off are the caller's, N and Err
// the answer, as File.ReadAt returns them, except that Err is nil whenever Buf
// was filled. It may be used again, and copied while it is not under way.
type Read struct {
	File File
	Buf  []byte
	Off  int64
	N    int
	Err  error
	// Tag is the caller's: nothing here looks at it.
	Tag int

	// While it is under way; the queue's, or guarded by IO.mu.
	next  *Read      // in the list it is in
	queue *ReadQueue // that it was added to
	async *osFile    // whose descriptor the kernel uses
	again bool       // N bytes came asynchronously; the rest must be read by File.ReadAt
}

// do reads synchronously.
func (r *Read) do() {
	r.N, r.Err = r.File.ReadAt(r.Buf, r.Off)
	if r.N == len(r.Buf) {
		r.Err = nil
	}
}

// readAgain reads what an asynchronous read left out. File.ReadAt tells the end
// of the file from an error and from a device that stopped in the middle. It
// begins at a whole block, because a direct read must.
func (r *Read) readAgain() {
	r.again = false
	start := r.N / BlockBytes * BlockBytes
	n, err := r.File.ReadAt(r.Buf[start:], r.Off+int64(start))
	if r.N, r.Err = start+n, err; r.N == len(r.Buf) {
		r.Err = nil
	}
}

// startAsync reports whether e's ring can do the read, and if so keeps the
// file's descriptor open for it.
func (r *Read) startAsync(e *IO) bool {
	f, ok := r.File.(*osFile)
	if !ok || len(r.Buf) == 0 || r.Off < 0 || !f.direct && !e.ring.Buffered() || !f.acquireRead(e) {
		return false
	}
	r.async = f
	return true
}
