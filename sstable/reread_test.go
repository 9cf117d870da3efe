package sstable

import (
	"errors"
	"testing"

	"fluxkv/internal/entry"
)

// TestF5_ABlockThatFailsItsSumIsReadOnceMore: a flip on the way heals, however
// the block is read, and is counted; damage is read twice and no more.
func TestF5_ABlockThatFailsItsSumIsReadOnceMore(t *testing.T) {
	b, vs := levelsTable(t)
	scan := func(t *testing.T, r *Reader, ahead int) error {
		it := r.NewIter(IterOptions{ReadAheadBytes: ahead})
		defer it.Close()
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			if !sameVersion(it.Version(), &vs[n]) {
				t.Fatalf("entry %d: %s", n, show(it.Version()))
			}
			n++
		}
		return it.Error()
	}
	for _, c := range []struct {
		name string
		ro   func(*ReaderOptions)
		use  func(*testing.T, *Reader) error
	}{
		{name: "get", use: func(t *testing.T, r *Reader) error {
			var buf Buffer
			defer buf.Free()
			for i := range vs {
				var v entry.Version
				found, err := r.Get(hashOf(vs[i].Key), vs[i].Key, vs[i].Seqno, &buf, &v)
				if err != nil {
					return err
				}
				if !found || !sameVersion(&v, &vs[i]) {
					t.Fatalf("get %s: %v", show(&vs[i]), found)
				}
			}
			return nil
		}},
		{name: "scan", use: func(t *testing.T, r *Reader) error { return scan(t, r, 0) }},
		{name: "scan ahead", use: func(t *testing.T, r *Reader) error { return scan(t, r, 16<<10) }},
		{name: "verify", use: func(_ *testing.T, r *Reader) error { return r.Verify() }},
		{name: "open"},
		{name: "pin index", ro: func(o *ReaderOptions) { o.PinIndex = true }},
		{name: "pin filter", ro: func(o *ReaderOptions) { o.PinFilter = true }},
	} {
		use := func(t *testing.T, f *imageFile) (*Reader, error) {
			ro := readerOptions()
			if c.ro != nil {
				c.ro(&ro)
			}
			r, err := Open(f, ro)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { r.Close() })
			if c.use != nil {
				err = c.use(t, r)
			}
			return r, err
		}
		t.Run(c.name, func(t *testing.T) {
			// Every page is wrong when it is first read: every block fails,
			// and is then read alone.
			seen := map[int64]bool{}
			r, err := use(t, &imageFile{name: "t.sst", data: b, onRead: func(_ int, p []byte, off int64) error {
				for ; len(p) > 0; p, off = p[pageBytes:], off+pageBytes {
					if !seen[off] {
						for i := range p[:pageBytes] {
							p[i] ^= 0x40
						}
					}
					seen[off] = true
				}
				return nil
			}})
			if err != nil {
				t.Fatalf("a flip on the way: %v", err)
			}
			if r.Rereads() == 0 {
				t.Fatal("nothing was read again")
			}
		})
		t.Run(c.name+", damaged", func(t *testing.T) {
			// Every read of data, filter and index pages is wrong once the
			// table is open; or of what opening reads.
			f := &imageFile{name: "t.sst", data: b}
			reads := map[int64]int{}
			armed := c.use == nil
			f.onRead = func(_ int, p []byte, off int64) error {
				if armed {
					reads[off]++
					for i := range p {
						p[i] ^= 0x40
					}
				}
				return nil
			}
			ro := readerOptions()
			if c.ro != nil {
				c.ro(&ro)
			}
			r, err := Open(f, ro)
			if err == nil {
				defer r.Close()
				armed = true
				err = c.use(t, r)
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("damage: %v", err)
			}
			for off, n := range reads {
				if n > 2 {
					t.Errorf("the page at %d is read %d times", off, n)
				}
			}
		})
	}
}
