package sstable_test

import (
	"fmt"

	"github.com/cespare/xxhash/v2"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/sstable"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A table is written in order, opened, and asked by internal key, hash and
// seqno.
func Example() {
	fs := memfs.New()
	name := sstable.Name(187)
	f, err := fs.Create(name, vfs.OpenOptions{Write: true, Direct: true})
	check(err)
	w, err := sstable.NewWriter(f, sstable.WriterOptions{Number: 187, BloomBits: 10})
	check(err)
	for _, v := range []entry.Version{
		{Key: entry.AppendKey(nil, 3, []byte("apple")), Seqno: 12, Kind: entry.KindDelete},
		{Key: entry.AppendKey(nil, 3, []byte("apple")), Seqno: 9, Value: entry.Value{Bytes: []byte("red"), HasBytes: true}},
		{Key: entry.AppendKey(nil, 3, []byte("pear")), Seqno: 10, Value: entry.Value{Address: entry.Address{Segment: 41, Offset: 4168, Length: 1043}}},
	} {
		_, user := entry.SplitKey(v.Key)
		check(w.Add(&v, xxhash.Sum64(user)))
	}
	p, size, err := w.Finish()
	check(err)
	w.Close()
	check(f.Close())
	fmt.Println(p.Entries, "entries,", size, "bytes")

	f, err = fs.Open(name, vfs.OpenOptions{Direct: true})
	check(err)
	r, err := sstable.Open(f, sstable.ReaderOptions{Number: 187, PinIndex: true, PinFilter: true})
	check(err)
	defer r.Close()
	check(r.Verify())
	var buf sstable.Buffer
	defer buf.Free()
	for _, at := range []entry.Seqno{entry.MaxSeqno, 11, 8} {
		var v entry.Version
		found, err := r.Get(xxhash.Sum64([]byte("apple")), entry.AppendKey(nil, 3, []byte("apple")), at, &buf, &v)
		check(err)
		if found {
			fmt.Printf("%d %v %q\n", v.Seqno, v.Kind, v.Value.Bytes)
		} else {
			fmt.Println("nothing")
		}
	}
	// Output:
	// 3 entries, 12288 bytes
	// 12 DEL ""
	// 9 SET "red"
	// nothing
}
