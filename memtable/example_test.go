package memtable_test

import (
	"fmt"
	"hash/fnv"

	"fluxkv/internal/entry"
	"fluxkv/memtable"
)

func hash(key string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	return h.Sum64()
}

func Example() {
	t, err := memtable.New(memtable.Options{Capacity: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer t.Free() // when nobody reads any more

	// A writer numbers its batch and reserves its place under one lock ...
	rnd := uint64(1)
	ops := []memtable.Op{
		{Key: []byte("pear"), Seqno: 1, HasValue: true, Value: []byte("green")},
		{Key: []byte("apple"), Seqno: 2, HasValue: true, Value: []byte("red")},
		{Key: []byte("pear"), Seqno: 3, Kind: entry.KindDelete},
	}
	size := 0
	for i := range ops {
		ops[i].Hash = hash(string(ops[i].Key))
		ops[i].Height = memtable.RandomHeight(&rnd)
		size += ops[i].NodeBytes()
	}
	t.Prepare(len(ops))
	place, ok := t.Reserve(size)
	if !ok {
		panic("full: seal the table and take another")
	}
	// ... and fills it beside other writers.
	var scratch memtable.Scratch
	t.InsertBatch(place, ops, &scratch)

	var v memtable.View
	if t.Get(hash("pear"), 0, []byte("pear"), 2, &v) {
		fmt.Printf("pear at 2: %s\n", v.Value.Bytes)
	}
	it := t.NewIter(nil, nil)
	for ok := it.First(); ok; ok = it.Next() {
		_, key := entry.SplitKey(it.Version().Key)
		fmt.Printf("%s#%d %s\n", key, it.Version().Seqno, it.Version().Kind)
	}
	// Output:
	// pear at 2: green
	// apple#2 SET
	// pear#3 DEL
	// pear#1 SET
}
