package wal

import (
	"context"
	"errors"
	"fmt"
	"io"

	"fluxkv/internal/vfs"
)

// scanReadsInFlight: two reads of 1 MiB keep a device busy while the groups
// of a third are checked; four were no faster (0.135 s for 345 MB each).
const scanReadsInFlight = 2

// readahead reads [next, limit) of one file in order, a buffer at a time,
// ahead of its user. It is not safe for concurrent use.
type readahead struct {
	ctx     context.Context
	pool    *scanPool
	file    vfs.File
	next    int64 // offset of the next read, a multiple of vfs.BlockBytes
	limit   int64 // no byte at or behind it is asked for, but for alignment
	pending []*scanBuffer
	ready   *scanBuffer // given back by unread
}

func newReadahead(ctx context.Context, pool *scanPool, file vfs.File, from, limit int64) *readahead {
	return &readahead{ctx: ctx, pool: pool, file: file, next: from &^ (vfs.BlockBytes - 1), limit: limit}
}

// issue starts reads while there are buffers for them. With nothing in
// flight it waits for a buffer if told to.
func (r *readahead) issue(wait bool) error {
	for len(r.pending) < scanReadsInFlight && r.next < r.limit {
		b := r.pool.tryGet()
		if b == nil {
			if len(r.pending) > 0 || !wait {
				return nil
			}
			var err error
			if b, err = r.pool.get(r.ctx); err != nil {
				return err
			}
		}
		want := min(int64(len(b.mem)-b.headroom), roundUp(r.limit-r.next, vfs.BlockBytes))
		b.base = r.next
		b.start = b.headroom
		b.end = b.headroom + int(min(want, r.limit-r.next))
		r.next += want
		r.pending = append(r.pending, b)
		go func(file vfs.File, p []byte, off int64) {
			b.n, b.err = file.ReadAt(p, off)
			b.done <- struct{}{}
		}(r.file, b.mem[b.headroom:b.headroom+int(want)], b.base)
	}
	return nil
}

// take returns the next piece, which the caller must release, or nil at limit.
func (r *readahead) take() (*scanBuffer, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	if b := r.ready; b != nil {
		r.ready = nil
		return b, nil
	}
	if err := r.issue(true); err != nil {
		return nil, err
	}
	if len(r.pending) == 0 {
		return nil, nil
	}
	b := r.pending[0]
	r.pending = append(r.pending[:0], r.pending[1:]...)
	<-b.done
	if b.n < b.end-b.start {
		err := b.err
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the file was longer a moment ago
		}
		err = fmt.Errorf("read %s at %d: %w", r.file.Name(), b.base+int64(b.n), err)
		b.release()
		return nil, err
	}
	// The caller has b to work on; it must not wait for another buffer here.
	return b, r.issue(false)
}

// unread makes b, which take returned last, the piece that take returns next.
func (r *readahead) unread(b *scanBuffer) { r.ready = b }

// close waits for the reads in flight.
func (r *readahead) close() {
	for _, b := range r.pending {
		<-b.done
		b.release()
	}
	r.pending = nil
	if r.ready != nil {
		r.ready.release()
		r.ready = nil
	}
}
