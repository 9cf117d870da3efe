package lsm_test

import (
	"fmt"
	"os"

	"fluxkv/lsm"
)

func mustOpen() (*lsm.DB, func()) {
	dir, err := os.MkdirTemp("", "fluxkv")
	if err != nil {
		panic(err)
	}
	db, err := lsm.Open(dir, lsm.Options{})
	if err != nil {
		panic(err)
	}
	return db, func() { db.Close(); os.RemoveAll(dir) }
}

func Example() {
	db, done := mustOpen()
	defer done()
	db.Set([]byte("greeting"), []byte("hello"), lsm.Meta{Flags: 7}) // durable when it returns
	item, err := db.Get(nil, []byte("greeting"))
	fmt.Printf("%s %d %v\n", item.Value, item.Flags, err)
	// Output: hello 7 <nil>
}

func ExampleDB_Apply() {
	db, done := mustOpen()
	defer done()
	var b lsm.Batch
	b.Set([]byte("from"), []byte("60"), lsm.Meta{})
	b.Set([]byte("to"), []byte("40"), lsm.Meta{})
	if _, err := db.Apply(&b, lsm.WriteOptions{}); err != nil { // both or none
		fmt.Println(err)
	}
	var r lsm.ReadBatch
	r.Add([]byte("from"))
	r.Add([]byte("to"))
	if err := db.GetMany(&r); err != nil {
		fmt.Println(err)
	}
	defer r.Release() // the values live in the store until then
	fmt.Printf("%s %s\n", r.Item(0).Value, r.Item(1).Value)
	// Output: 60 40
}

func ExampleDB_Update() {
	db, done := mustOpen()
	defer done()
	increment := func(old *lsm.Item) (lsm.UpdateOp, []byte, lsm.Meta, error) {
		n := 0
		if old != nil {
			fmt.Sscan(string(old.Value), &n)
		}
		return lsm.UpdateSet, fmt.Append(nil, n+1), lsm.Meta{}, nil
	}
	for range 3 {
		seen, err := db.Update([]byte("visits"), increment)
		if err == nil {
			err = db.WaitDurable(seen) // before telling anyone
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	item, _ := db.Get(nil, []byte("visits"))
	fmt.Printf("%s\n", item.Value)
	// Output: 3
}
