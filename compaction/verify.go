package compaction

import (
	"bytes"
	"fmt"
	"slices"

	"fluxkv/internal/vfs"
	"fluxkv/sstable"
)

// verify reads the table that was just finished back from its file: every sum,
// the order, that each version is found, and that it is what the writer says
// it wrote.
func (b *builder) verify(wrote *sstable.Properties, size int64) (t Table, err error) {
	name := b.path(b.number)
	file, err := b.o.FS.Open(name, vfs.OpenOptions{Direct: b.o.Direct})
	if err != nil {
		return Table{}, fmt.Errorf("open new table %s: %w", name, err)
	}
	r, err := sstable.Open(file, sstable.ReaderOptions{
		Number: b.number, StoreID: b.o.StoreID,
		PinFilter: true, // it is asked for every key: one read instead of one a key
	})
	if err != nil {
		_ = file.Close() // it was only read
		return Table{}, fmt.Errorf("open new table %s: %w", name, err)
	}
	defer func() {
		if cerr := r.Close(); cerr != nil && err == nil {
			t, err = Table{}, fmt.Errorf("close new table %s: %w", name, cerr)
		}
	}()
	if err := r.Verify(); err != nil {
		return Table{}, fmt.Errorf("verify new table %s: %w", name, err)
	}
	p := r.Properties()
	if r.FileBytes() != size || p.Entries != wrote.Entries || p.Tombstones != wrote.Tombstones ||
		p.KeyBytes != wrote.KeyBytes || p.ValueBytes != wrote.ValueBytes ||
		p.LowestSeqno != wrote.LowestSeqno || p.HighestSeqno != wrote.HighestSeqno ||
		!bytes.Equal(p.Smallest, wrote.Smallest) || !bytes.Equal(p.Largest, wrote.Largest) ||
		!slices.Equal(p.Segments, wrote.Segments) {
		return Table{}, fmt.Errorf("verify new table %s: %w: not the one that was written", name, ErrCounts)
	}
	if n := len(b.result.Tables); n > 0 {
		if last := b.result.Tables[n-1].Properties; bytes.Compare(last.Largest, p.Smallest) >= 0 {
			return Table{}, fmt.Errorf("verify new table %s: %w: begins with %q behind %q", name, sstable.ErrOrder, p.Smallest, last.Largest)
		}
	}
	kept := *wrote // the reader's end with it, and the writer need not stay
	return Table{Number: b.number, Name: name, FileBytes: size, Properties: &kept}, nil
}
