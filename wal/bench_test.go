package wal

import (
	"context"
	"fmt"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
)

// BenchmarkScan reads a log of 64 MiB segments in groups of 32 KiB from a file
// system in memory and parses every record, on one goroutine.
func BenchmarkScan(b *testing.B) {
	for _, size := range []int{8, 100, 1000} {
		for _, parse := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dB/parse=%v", size, parse), func(b *testing.B) {
				o, bytes := benchLog(b, size)
				b.SetBytes(bytes)
				b.ReportAllocs()
				var records int64
				for b.Loop() {
					res, err := Scan(context.Background(), o, func(c *Chunk) error {
						defer c.Release()
						if !parse {
							return nil
						}
						var rr RecordReader
						var r Record
						for h, payload := range c.Groups() {
							rr.Reset(payload, h)
							for rr.Next(&r) {
							}
							if rr.Err() != nil {
								return rr.Err()
							}
						}
						return nil
					})
					if err != nil {
						b.Fatal(err)
					}
					records = res.Records
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(records), "ns/record")
			})
		}
	}
}

// imageFS serves one segment from memory, as fast as memory copies.
type imageFS struct {
	vfs.FS // nil: only Open is used
	file   *imageFile
}

func (f *imageFS) Open(string, vfs.OpenOptions) (vfs.File, error) { return f.file, nil }

func (f *imageFile) Close() error { return nil }

func benchLog(b *testing.B, valueBytes int) (ScanOptions, int64) {
	const segmentBytes = 64 << 20
	image := make([]byte, segmentBytes)
	h := SegmentHeader{Kind: SegmentLog, Align: 4096, ID: 1, Size: segmentBytes, StoreID: testStoreID}
	h.Encode(image)
	off, next, prevEnd := uint32(4096), entry.Seqno(1), uint32(0)
	key := []byte("0123456789abcdef")
	value := make([]byte, valueBytes)
	var group []byte
	for {
		g := GroupHeader{Segment: 1, Offset: off, First: next, Durable: next - 1, PrevLast: next - 1, PrevEnd: prevEnd}
		if prevEnd != 0 {
			g.PrevSegment = 1
		}
		group = append(group[:0], make([]byte, GroupHeaderBytes)...)
		for len(group) < 32<<10-valueBytes-64 {
			group = AppendSet(group, key, entry.Meta{}, value, valueBytes > 255)
			g.Count++
		}
		g.Bytes = uint32(len(group))
		if int64(g.End(4096)) > segmentBytes {
			break
		}
		g.Encode(group, &testSecret)
		copy(image[off:], group)
		off = g.End(4096)
		prevEnd = off
		next += entry.Seqno(g.Count)
	}
	return ScanOptions{
		FS: &imageFS{file: &imageFile{image: image}}, Dir: "db", Secret: testSecret, StoreID: testStoreID,
		From:     entry.Position{Segment: 1, Offset: 4096, Seqno: 1},
		Segments: []ScanSegment{{ID: 1}},
	}, int64(off)
}
