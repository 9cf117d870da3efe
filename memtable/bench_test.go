package memtable

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/offheap"
)

// The shape of the engine: a million random keys over 16 kvstores, a memtable
// each, chosen by the key's vbucket.
const (
	benchKeys   = 1_000_000
	benchTables = 16
	benchBatch  = 128
)

var benchValues = []int{8, 100, 1000}

type benchStore struct {
	tables [benchTables]*Table
	keys   []byte // 12 bytes each, in random order
	value  []byte
	rnd    uint64
}

func newBenchStore(tb testing.TB, value int) *benchStore {
	st := &benchStore{value: make([]byte, value), rnd: 1}
	for i := range st.tables {
		st.tables[i] = newTable(tb, min(benchKeys/benchTables*(value+80)*3/2, offheap.ArenaBytesMax))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range benchKeys {
		st.keys = fmt.Appendf(st.keys, "%012x", r.Uint64()>>16)
	}
	return st
}

func (st *benchStore) key(i int) []byte { return st.keys[12*i:][:12:12] }

func place(key []byte) (vbucket uint16, table int) {
	vb := uint16(crc32.ChecksumIEEE(key)>>16) & 1023
	return vb, int(vb % benchTables)
}

func (st *benchStore) reset(tb testing.TB) {
	for _, t := range st.tables {
		if err := t.Reset(); err != nil {
			tb.Fatal(err)
		}
	}
}

// benchEach runs f for each length of value, with setup of its own.
func benchEach(b *testing.B, f func(b *testing.B, value int)) {
	for _, value := range benchValues {
		b.Run(fmt.Sprintf("value=%d", value), func(b *testing.B) { f(b, value) })
	}
}

// benchWriter is one goroutine's memory.
type benchWriter struct {
	scratch Scratch
	ops     [benchTables][]Op
	parts   []Part
	rnd     uint64
}

// insert does what the engine does with a batch: split, reserve, insert.
func (st *benchStore) insert(w *benchWriter, from, to int, together bool) {
	for i := range w.ops {
		w.ops[i] = w.ops[i][:0]
	}
	for i := from; i < to; i++ {
		key := st.key(i)
		vb, k := place(key)
		w.ops[k] = append(w.ops[k], Op{VBucket: vb, Hash: hashOf(key), Key: key, Seqno: entry.Seqno(i + 1),
			HasValue: true, Value: st.value, Height: RandomHeight(&w.rnd)})
	}
	w.parts = w.parts[:0]
	for i, ops := range w.ops {
		if len(ops) == 0 {
			continue
		}
		size := 0
		for j := range ops {
			size += ops[j].NodeBytes()
		}
		st.tables[i].Prepare(len(ops))
		place, ok := st.tables[i].Reserve(size)
		if !ok {
			panic("benchmark: full")
		}
		w.parts = append(w.parts, Part{Table: st.tables[i], Place: place, Ops: ops})
	}
	if together {
		InsertParts(w.parts, &w.scratch)
		return
	}
	for _, p := range w.parts {
		p.Table.InsertBatch(p.Place, p.Ops, &w.scratch)
	}
}

func (st *benchStore) fill(w *benchWriter) {
	for i := 0; i < benchKeys; i += benchBatch {
		st.insert(w, i, min(i+benchBatch, benchKeys), true)
	}
}

// BenchmarkInsert fills the 16 tables with the million keys; an operation is a
// key. batch=1 is what single writes pay; apart inserts a batch table by table.
func BenchmarkInsert(b *testing.B) {
	benchEach(b, func(b *testing.B, value int) {
		st := newBenchStore(b, value)
		w := &benchWriter{rnd: 1}
		for i := range w.ops {
			w.ops[i] = make([]Op, 0, benchBatch)
		}
		st.fill(w) // pages and index are there, as in reused tables
		for _, c := range []struct {
			name     string
			batch    int
			together bool
		}{{"batch=128", 128, true}, {"batch=128,apart", 128, false}, {"batch=32", 32, true}, {"batch=1", 1, true}} {
			b.Run(c.name, func(b *testing.B) {
				b.ReportAllocs()
				at := benchKeys
				for done := 0; done < b.N; done += c.batch {
					if at+c.batch > benchKeys {
						b.StopTimer()
						st.reset(b)
						at = 0
						b.StartTimer()
					}
					st.insert(w, at, at+c.batch, c.together)
					at += c.batch
				}
			})
		}
	})
}

// BenchmarkInsertFresh is Insert into memory that was never touched.
func BenchmarkInsertFresh(b *testing.B) {
	for _, value := range benchValues {
		b.Run(fmt.Sprintf("value=%d/batch=128", value), func(b *testing.B) {
			b.ReportAllocs()
			w := &benchWriter{rnd: 1}
			b.StopTimer()
			at, st := benchKeys, (*benchStore)(nil)
			for done := 0; done < b.N; done += benchBatch {
				if at+benchBatch > benchKeys {
					b.StopTimer()
					if st != nil {
						for _, t := range st.tables {
							t.Free()
						}
					}
					st = newBenchStore(b, value)
					at = 0
					b.StartTimer()
				}
				st.insert(w, at, at+benchBatch, true)
				at += benchBatch
			}
		})
	}
}

// BenchmarkInsertTwo has two goroutines insert batches of 128.
func BenchmarkInsertTwo(b *testing.B) {
	for _, value := range benchValues {
		b.Run(fmt.Sprintf("value=%d/batch=128", value), func(b *testing.B) {
			st := newBenchStore(b, value)
			st.fill(&benchWriter{rnd: 1})
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += benchKeys {
				b.StopTimer()
				st.reset(b)
				n := min(benchKeys, b.N-done) / 2
				b.StartTimer()
				var wg sync.WaitGroup
				for g := range 2 {
					wg.Go(func() {
						w := &benchWriter{rnd: uint64(g + 1)}
						for i := 0; i+benchBatch <= n; i += benchBatch {
							st.insert(w, g*benchKeys/2+i, g*benchKeys/2+i+benchBatch, true)
						}
					})
				}
				wg.Wait()
			}
		})
	}
}

// BenchmarkGet looks keys up in a random order other than that of inserts; an
// operation is a key.
func BenchmarkGet(b *testing.B) {
	benchEach(b, func(b *testing.B, value int) {
		st := newBenchStore(b, value)
		st.fill(&benchWriter{rnd: 1})
		keys := make([]byte, 0, len(st.keys))
		for _, i := range rand.New(rand.NewPCG(3, 4)).Perm(benchKeys) {
			keys = append(keys, st.key(i)...)
		}
		gets := make([]Get, 128)
		prepare := func(g *Get, i int) {
			key := keys[i%benchKeys*12:][:12:12] // in the cache, as off a socket
			vb, k := place(key)
			*g = Get{Table: st.tables[k], VBucket: vb, Key: key, Hash: hashOf(key), At: entry.MaxSeqno}
		}
		b.Run("one", func(b *testing.B) {
			b.ReportAllocs()
			var v View
			g := &gets[0]
			for i := range b.N {
				prepare(g, i)
				if !g.Table.Get(g.Hash, g.VBucket, g.Key, g.At, &v) {
					b.Fatal("missing")
				}
			}
		})
		for _, n := range []int{32, 128} {
			b.Run(fmt.Sprintf("many=%d", n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; i < b.N; i += n {
					for j := range n {
						prepare(&gets[j], i+j)
					}
					GetAcross(gets[:n])
					if !gets[n-1].Found {
						b.Fatal("missing")
					}
				}
			})
			b.Run(fmt.Sprintf("misses=%d", n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; i < b.N; i += n {
					for j := range n {
						prepare(&gets[j], i+j)
						gets[j].Hash ^= 1 << 40 // as if it were another key's
					}
					GetAcross(gets[:n])
				}
			})
		}
		b.Run("list", func(b *testing.B) {
			b.ReportAllocs()
			g := &gets[0]
			for i := range b.N {
				prepare(g, i)
				to := makeTarget(g.VBucket, g.Key, g.At)
				if g.Table.find(&to) == 0 {
					b.Fatal("missing")
				}
			}
		})
		b.Run("iterate", func(b *testing.B) {
			b.ReportAllocs()
			it := st.tables[0].NewIter(nil, nil)
			it.First()
			for range b.N {
				_ = it.Version()
				if !it.Next() {
					it.First()
				}
			}
		})
	})
}

// BenchmarkLoad loads the million keys into 16 tables on one goroutine; an
// operation is a key. add copies into the arena, finish sorts, links and fills
// the index.
func BenchmarkLoad(b *testing.B) {
	for _, value := range benchValues {
		for _, part := range []string{"add", "finish"} {
			b.Run(fmt.Sprintf("value=%d/%s", value, part), func(b *testing.B) {
				st := newBenchStore(b, value)
				st.fill(&benchWriter{rnd: 1})
				b.ReportAllocs()
				b.ResetTimer()
				done := 0
				for done < b.N {
					b.StopTimer()
					st.reset(b)
					runtime.GC()
					var workers [benchTables]*LoadWorker
					var loaders [benchTables]*Loader
					for i, t := range st.tables {
						loaders[i] = t.NewLoader()
						workers[i] = loaders[i].Worker()
					}
					op := Op{HasValue: true, Value: st.value}
					if part == "add" {
						b.StartTimer()
					}
					for i := range benchKeys {
						key := st.key(i)
						vb, k := place(key)
						op.VBucket, op.Key, op.Hash, op.Seqno = vb, key, hashOf(key), entry.Seqno(i+1)
						if err := workers[k].Add(&op); err != nil {
							b.Fatal(err)
						}
					}
					if part == "finish" {
						b.StartTimer()
					} else {
						b.StopTimer()
					}
					for _, l := range loaders {
						if err := l.Finish(); err != nil {
							b.Fatal(err)
						}
					}
					b.StartTimer()
					done += benchKeys
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(done), "ns/key")
			})
		}
	}
}
