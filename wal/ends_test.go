package wal

import (
	"errors"
	"syscall"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
)

// TestR04_EndOfASegmentWithoutOne: the end of a full segment is found from
// whatever a kill left of it, and never before a record that was durable.
func TestR04_EndOfASegmentWithoutOne(t *testing.T) {
	tests := []struct {
		name   string
		seal   bool
		footer bool
		next   entry.Seqno // 0: the seqno behind it
		spoil  func(b *logBuilder)
		error  int // 1 + number of the group without which there is no end
	}{
		{name: "footer", seal: true, footer: true},
		{name: "footer, replay far behind", seal: true, footer: true, next: 100},
		{name: "seal", seal: true},
		{name: "seal, replay far behind", seal: true, next: 100},
		{name: "seal lost, replay right behind"},
		{name: "seal lost, replay elsewhere", next: 100, error: 4},
		{name: "last records lost with the seal", error: 3, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[2].Offset)+80, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged group", seal: true, error: 1, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[0].Offset)+80, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged group, footer whole", seal: true, footer: true, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[0].Offset)+80, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged seal", seal: true, next: 100, error: 4, spoil: func(b *logBuilder) {
			b.overwrite(9, int64(b.groups[3].Offset)+20, []byte{0xff, 0xff, 0xff})
		}},
		{name: "damaged footer", seal: true, footer: true, spoil: func(b *logBuilder) {
			size, err := b.fs.Size(b.name(9))
			b.ok(err)
			b.overwrite(9, size-50, []byte{0xff, 0xff, 0xff})
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newMemBuilder(t, 512, 1<<17)
			b.roll(8)
			b.sets(2, 400)
			b.seal(true, true)
			b.groups = b.groups[:0]
			b.roll(9)
			b.sets(3, 1000)
			b.group(GroupPromise)
			b.sets(40, 2000) // larger than a buffer
			end := b.off
			if test.seal {
				b.seal(false, test.footer)
				end = b.off
			}
			if test.spoil != nil {
				test.spoil(b)
			}
			next := b.next
			if test.next != 0 {
				next = test.next
			}
			got, err := FindEnd(t.Context(), b.indexOptions(), 9, next)
			if test.error > 0 {
				at := int64(end)
				if test.error <= len(b.groups) {
					at = int64(b.groups[test.error-1].Offset)
				}
				var corrupt *CorruptError
				if !errors.As(err, &corrupt) || corrupt.File != b.name(9) || corrupt.Offset != at {
					t.Fatalf("%+v, %v; want damage at %d", got, err, at)
				}
				return
			}
			want := SegmentEnd{ID: 9, End: end, Last: b.last, Next: b.next}
			if err != nil || got != want {
				t.Fatalf("%+v, %v; want %+v", got, err, want)
			}
			// A scan that reads it to its end says the same.
			if test.seal && test.spoil == nil {
				res, err := Scan(t.Context(), b.options(), func(c *Chunk) error { c.Release(); return nil })
				if err != nil || len(res.Sealed) != 1 || res.Sealed[0] != want {
					t.Fatalf("a scan says %+v, %v; want %+v", res.Sealed, err, want)
				}
			}
		})
	}
}

func TestFindEndPassesErrorsOn(t *testing.T) {
	b := newMemBuilder(t, 512, 1<<17)
	b.roll(9)
	b.sets(40, 2000)
	b.seal(false, false)
	for from := 1; ; from++ {
		fs := faultfs.Wrap(b.fs)
		fs.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpOpen, vfs.OpSize, vfs.OpReadAt}, From: from, Once: true, Fault: faultfs.EIO})
		o := b.indexOptions()
		o.FS = fs
		_, err := FindEnd(t.Context(), o, 9, 0)
		if fs.Injected() == 0 {
			b.ok(err)
			break
		}
		if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
			t.Errorf("call %d: %v", from, err)
		}
	}
}
