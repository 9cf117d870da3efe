package sstable

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fluxkv/internal/entry"
)

func TestTablesAnswerWhatWasWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	keys := 3000
	if testing.Short() {
		keys = 500
	}
	for _, shape := range []string{"hex", "decimal", "mixed"} {
		var vs []entry.Version
		for i, k := range keysOf(shape, keys, rnd) {
			switch i % 7 {
			case 0:
				vs = append(vs, set(k, entry.Seqno(rnd.Uint64N(1<<40)), "12345678"))
			case 1:
				vs = append(vs, del(k, entry.Seqno(rnd.Uint64N(1<<20))))
			case 2:
				vs = append(vs, at(k, entry.Seqno(rnd.Uint64N(1<<30)), entry.SegmentID(1+rnd.Uint32N(400)), rnd.Uint32(), rnd.Uint32()))
			case 3:
				v := set(k, 77, fmt.Sprint(rnd.Uint64()))
				v.Meta = entry.Meta{Flags: rnd.Uint32N(2), Expiry: rnd.Uint32N(3), Datatype: uint8(rnd.UintN(2)), CAS: uint64(rnd.UintN(2))}
				vs = append(vs, v)
			default:
				for j := range i % 5 {
					vs = append(vs, set(k, entry.Seqno(1000-j), "v"))
				}
			}
		}
		vs = sortVersions(vs)
		for _, c := range []Compression{NoCompression, Snappy} {
			for _, pin := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/pin=%v", shape, c, pin), func(t *testing.T) {
					o, ro := testOptions(), readerOptions()
					o.Compression = c
					ro.PinIndex, ro.PinFilter = pin, pin
					r := memTable(t, o, ro, vs)
					if err := r.Verify(); err != nil {
						t.Fatal(err)
					}
					var buf Buffer
					defer buf.Free()
					for i := range vs {
						checkGet(t, r, &buf, vs, vs[i].Key, vs[i].Seqno)
						checkGet(t, r, &buf, vs, vs[i].Key, entry.MaxSeqno)
						checkGet(t, r, &buf, vs, vs[i].Key, vs[i].Seqno-1)
						checkGet(t, r, &buf, vs, append(vs[i].Key[:len(vs[i].Key):len(vs[i].Key)], 0), entry.MaxSeqno)
						checkGet(t, r, &buf, vs, vs[i].Key[:len(vs[i].Key)-1], entry.MaxSeqno)
					}
					for _, ahead := range []int{0, 5000, 64 << 10} {
						it := r.NewIter(IterOptions{ReadAheadBytes: ahead})
						checkScan(t, it, vs)
						it.Close()
					}
					p := r.Properties()
					t.Logf("%d blocks, %d levels, %d bytes stored, %d plain, filter %d", p.DataBlocks, p.IndexLevels, p.DataStored, p.DataPlain, p.Filter.Pieces)
				})
			}
		}
	}
}
