package wal

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// survival is what a power cut left of a group.
type survival int

const (
	whole survival = iota
	nothing
	headerOnly
	bodyOnly
	sectors
)

// survive damages group g accordingly and reports whether its header is valid.
func (b *logBuilder) survive(t *rapid.T, g *builtGroup, s survival) (header bool) {
	at := int64(g.Offset)
	switch s {
	case nothing:
		b.overwrite(g.Segment, at, make([]byte, g.padded))
	case headerOnly:
		if g.Bytes > GroupHeaderBytes {
			b.overwrite(g.Segment, at+GroupHeaderBytes, make([]byte, g.padded-GroupHeaderBytes))
		}
		return true
	case bodyOnly:
		b.overwrite(g.Segment, at, make([]byte, GroupHeaderBytes))
	case sectors:
		header = true
		for off := 0; off < g.padded; off += 512 {
			if rapid.Bool().Draw(t, "sector lost") {
				b.overwrite(g.Segment, at+int64(off), make([]byte, 512))
				header = header && off > 0
			}
		}
		return header
	default:
		return true
	}
	return false
}

// intact reports whether a group is on the disk as it was written.
func (b *logBuilder) intact(g *builtGroup) bool {
	buf := b.peek(g.Segment, int64(g.Offset), g.padded)
	h, ok := DecodeGroupHeader(buf, &testSecret, g.Segment, g.Offset)
	return ok && VerifyGroup(buf, &h, &testSecret)
}

// TestR11_RandomTails writes random logs with one to three groups in flight,
// cuts the power, and then damages one more group. A torn tail must end the
// log quietly behind everything durable; damage that a valid header knows
// about must be refused with the seqno that is missing.
func TestR11_RandomTails(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newMemBuilder(t, 512, 1<<17)
		defer b.closeFile()
		inflight := rapid.IntRange(1, 3).Draw(rt, "in flight")
		b.lag = inflight - 1
		segment := entry.SegmentID(1)
		b.roll(segment)
		for range rapid.IntRange(1, 25).Draw(rt, "groups") {
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				b.group(GroupPromise)
			case 1:
				record := rapid.Bool().Draw(rt, "recorded") // only when all before it is durable
				b.seal(record, record)
				segment += entry.SegmentID(rapid.IntRange(1, 3).Draw(rt, "id gap"))
				b.roll(segment)
			default:
				if b.off+8192 < 1<<17 {
					b.sets(rapid.IntRange(1, 4).Draw(rt, "documents"), rapid.SampledFrom([]int{0, 10, 300, 1500}).Draw(rt, "value bytes"))
				}
			}
		}
		// The power cut: the last groups in flight survive in any way, unless
		// something later knows that they were durable.
		n := len(b.groups)
		headers := make([]bool, n)
		firstTorn := n
		for i := range b.groups {
			g := &b.groups[i]
			headers[i] = true
			if i < n-inflight || g.Flags&GroupSeal != 0 || b.recorded(g) {
				continue
			}
			headers[i] = b.survive(rt, g, survival(rapid.IntRange(0, 4).Draw(rt, "survival")))
		}
		for i := range b.groups {
			if !b.intact(&b.groups[i]) {
				firstTorn = i
				break
			}
		}
		promised := b.promised(headers)
		got := collect(t, b.options())
		wantLast := entry.Seqno(0)
		if firstTorn > 0 {
			wantLast = b.lasts[firstTorn-1]
		}
		if promised > wantLast { // a seal wrote its promise after the torn group
			if !errors.Is(got.err, ErrCorrupt) {
				rt.Fatalf("%d promised, log ends at %d: %v", promised, wantLast, got.err)
			}
			return
		}
		if got.err != nil {
			rt.Fatalf("torn tail at group %d of %d: %v", firstTorn, n, got.err)
		}
		if got.res.Last != wantLast || int(wantLast) != len(got.seqnos) {
			rt.Fatalf("log ends at %d with %d records, want %d", got.res.Last, len(got.seqnos), wantLast)
		}

		// Bit rot in one of the groups that were found.
		if firstTorn == 0 {
			return
		}
		i := rapid.IntRange(0, firstTorn-1).Draw(rt, "damaged group")
		g := &b.groups[i]
		at := int64(rapid.IntRange(0, int(g.Bytes)-1).Draw(rt, "damaged byte"))
		old := b.peek(g.Segment, int64(g.Offset)+at, 1)
		b.overwrite(g.Segment, int64(g.Offset)+at, []byte{old[0] ^ 1<<rapid.IntRange(0, 7).Draw(rt, "bit")})
		headers[i] = at < 8 || at >= GroupHeaderBytes
		got = collect(t, b.options())
		wantLast = 0
		if i > 0 {
			wantLast = b.lasts[i-1]
		}
		if b.promised(headers) > wantLast || b.recorded(g) || b.recordedAfter(g) {
			var corrupt *CorruptError
			if !errors.As(got.err, &corrupt) || corrupt.Offset != int64(g.Offset) || corrupt.Missing != wantLast+1 {
				rt.Fatalf("damaged group %d with a witness: %v", i, got.err)
			}
			return
		}
		if got.err != nil || got.res.Last != wantLast {
			rt.Fatalf("damaged group %d without a witness: ends at %d, want %d: %v", i, got.res.Last, wantLast, got.err)
		}
	})
}

// recorded reports whether g lies before a recorded end of its segment.
func (b *logBuilder) recorded(g *builtGroup) bool {
	for _, s := range b.segments {
		if s.ID == g.Segment {
			return s.End != 0
		}
	}
	return false
}

// recordedAfter reports whether a segment behind that of g has a recorded end.
func (b *logBuilder) recordedAfter(g *builtGroup) bool {
	for _, s := range b.segments {
		if s.ID > g.Segment && s.End != 0 {
			return true
		}
	}
	return false
}

// promised is the highest seqno promised by the valid headers.
func (b *logBuilder) promised(headers []bool) entry.Seqno {
	var d entry.Seqno
	for i, g := range b.groups {
		if headers[i] {
			d = max(d, g.Durable)
		}
	}
	return d
}

// FuzzScan overwrites a piece of a good log. Without resum no damage may be
// taken for a record: what is read is a beginning of what was written. With
// resum the sums of the group there are made right again, so that the fuzzer
// gets behind them; then nothing may panic or leave its bounds.
func FuzzScan(f *testing.F) {
	fs := memfs.New()
	b := newLogBuilder(f, fs, 512, 16384)
	b.roll(1)
	b.sets(3, 10)
	b.sets(2, 700)
	b.seal(true, true)
	b.roll(2)
	b.sets(1, 300)
	b.group(GroupPromise)
	b.sets(2, 0)
	b.closeFile()
	whole := collect(f, b.options())
	if whole.err != nil || len(whole.keys) != 8 {
		f.Fatalf("%d records: %v", len(whole.keys), whole.err)
	}
	g := b.groups[3]
	f.Add(uint8(2), uint16(g.Offset), b.peek(2, int64(g.Offset), 80), true)
	f.Add(uint8(2), uint16(g.Offset+16), []byte{0xff, 0xff, 0xff, 0xff}, true)
	f.Add(uint8(1), uint16(b.groups[1].Offset+80), []byte{1}, false)
	f.Add(uint8(1), uint16(0), make([]byte, 512), false)
	f.Add(uint8(2), uint16(512), make([]byte, 4096), false)
	f.Fuzz(func(t *testing.T, segment uint8, off uint16, p []byte, resum bool) {
		id := entry.SegmentID(1 + segment&1)
		bad := *b
		bad.t, bad.fs = t, fs.CrashCopy(1, memfs.KeepAll)
		file, err := bad.fs.Open(bad.name(id), vfs.OpenOptions{Write: true})
		bad.ok(err)
		defer file.Close()
		size, err := file.Size()
		bad.ok(err)
		if int64(off)+int64(len(p)) > size {
			return
		}
		_, err = file.WriteAt(p, int64(off))
		bad.ok(err)
		if resum {
			resumGroup(t, file, id, uint32(off)&^511, size)
		}
		got := collectAny(t, bad.options())
		if got.err != nil && !errors.Is(got.err, ErrCorrupt) {
			t.Fatal(got.err)
		}
		if resum {
			return
		}
		for i, key := range got.keys {
			if i >= len(whole.keys) || key != whole.keys[i] {
				t.Fatalf("record %d is %q", i, key)
			}
		}
	})
}

// collectAny is collect for logs whose records may be nonsense.
func collectAny(t testing.TB, o ScanOptions) scanned {
	var got scanned
	got.res, got.err = Scan(t.Context(), o, func(c *Chunk) error {
		defer c.Release()
		var rr RecordReader
		var r Record
		for h, payload := range c.Groups() {
			rr.Reset(payload, h)
			for rr.Next(&r) {
				got.keys = append(got.keys, string(r.Key))
			}
			if rr.Err() != nil {
				return rr.Err()
			}
		}
		return nil
	})
	return got
}

func resumGroup(t testing.TB, file vfs.File, id entry.SegmentID, off uint32, size int64) {
	buf := make([]byte, size-int64(off))
	if len(buf) < GroupHeaderBytes {
		return
	}
	if _, err := file.ReadAt(buf, int64(off)); err != nil {
		t.Fatal(err)
	}
	p := place(&testSecret, id, off)
	le.PutUint32(buf[8:], uint32(sum64(mix64(p^domainGroupHeader), buf[12:GroupHeaderBytes])))
	if n := le.Uint32(buf[16:]); n >= GroupHeaderBytes && int64(n) <= int64(len(buf)) {
		le.PutUint64(buf, sum64(mix64(p^domainGroup), buf[8:n]))
	}
	if _, err := file.WriteAt(buf[:GroupHeaderBytes], int64(off)); err != nil {
		t.Fatal(err)
	}
}
