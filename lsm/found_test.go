package lsm

import (
	"testing"

	"fluxkv/internal/vfs/memfs"
)

// What the crash and fault loops found, each as the shortest story that shows
// it.

// TestR4_SeqnosAfterACleanStartAreNotGivenTwice: a store that was closed in
// order is opened, hands out a seqno, and loses the power before the write
// reaches the device. The last group in the log is then still the one that says
// "closed in order", and the next start took that at its word and handed out
// the same seqno, and with it the same CAS, for another document. The end that
// the start in between recorded for the closed log tells.
func TestR4_SeqnosAfterACleanStartAreNotGivenTwice(t *testing.T) {
	disk := memfs.New()
	o := tinyOptions()
	o.NonDurable = true
	o.AsyncWindow = 1e10 // nothing is written by itself
	o.FS = disk
	db := mustOpen(t, "data", o)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = mustOpen(t, "data", o)
	first, err := db.Set([]byte("k"), []byte("lost"), Meta{})
	if err != nil {
		t.Fatal(err)
	}
	after := disk.CrashCopy(1, memfs.DropAll)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	o.FS = after
	db = mustOpen(t, "data", o)
	defer db.Close()
	second, err := db.Set([]byte("k"), []byte("another"), Meta{})
	if err != nil {
		t.Fatal(err)
	}
	if second <= first {
		t.Errorf("seqno %d was given to a document, then %d to another", first, second)
	}
	if db.Stats().Recovery.Clean {
		t.Error("the start says that the store was closed in order")
	}
}
