package wal

import (
	"sync"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestR03_NothingBeforeTheStartIsRead: replay of a store with hundreds of sealed
// segments opens and reads those from its start on, and no others.
func TestR03_NothingBeforeTheStartIsRead(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(b *logBuilder) // of what is behind the start
		clean bool
	}{
		{"closed", func(b *logBuilder) { b.durable = b.last; b.group(GroupSeal | GroupClose) }, true},
		{"torn", func(*logBuilder) {}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fs := memfs.New()
			b := newLogBuilder(t, fs, 512, 8192)
			for id := entry.SegmentID(1); id <= 300; id++ {
				b.roll(id)
				b.sets(2, 300)
				b.seal(id%3 > 0, id%2 > 0)
			}
			b.roll(301)
			b.sets(3, 300)
			from := entry.Position{Segment: 301, Offset: b.off, Seqno: b.next}
			b.sets(2, 300)
			b.seal(true, true)
			b.roll(302)
			b.sets(1, 300)
			test.spoil(b)
			b.closeFile()
			fs.ResetCounts()
			o := b.options()
			o.From = from
			got := collect(t, o)
			wantSeqnos(t, got, from.Seqno, from.Seqno+2)
			if got.res.Clean != test.clean {
				t.Errorf("clean: %v", got.res.Clean)
			}
			if n := fs.Count("", vfs.OpOpen); n != 2 {
				t.Errorf("%d files opened, want 2", n)
			}
			for _, kind := range []vfs.OpKind{vfs.OpReadAt, vfs.OpSize} {
				if all, two := fs.Count("", kind), fs.Count("00030[12].seg", kind); all != two || all > 10 {
					t.Errorf("%v: %d calls, %d of the two segments", kind, all, two)
				}
			}
		})
	}
}

// TestHighestSeqnoIsBounded: a file that nobody names is read once, piece by
// piece; of one with a footer only that.
func TestHighestSeqnoIsBounded(t *testing.T) {
	for _, footer := range []bool{true, false} {
		fs := memfs.New()
		b := newLogBuilder(t, fs, 512, 2<<20)
		b.roll(1)
		for range 100 {
			b.sets(10, 1000)
		}
		b.seal(false, footer)
		last := b.last
		b.closeFile()
		o := b.indexOptions()
		fs.ResetCounts()
		var mu sync.Mutex // reads run ahead
		var bytes, largest int64
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpReadAt {
				mu.Lock()
				bytes += op.Len
				largest = max(largest, op.Len)
				mu.Unlock()
			}
			return nil
		})
		got, err := HighestSeqno(t.Context(), o, 1)
		if got != last || err != nil {
			t.Errorf("highest seqno %d, want %d: %v", got, last, err)
		}
		want := int64(2<<20) + 4*vfs.BlockBytes
		if footer {
			want = 3 * vfs.BlockBytes
		}
		if bytes > want || largest > AlignMax {
			t.Errorf("footer %v: %d bytes read, at most %d at once", footer, bytes, largest)
		}
	}
}
