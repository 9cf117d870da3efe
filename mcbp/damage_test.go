package mcbp

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/lsm"
)

// TestOneDamagedDocumentCostsItsKeyAlone: 0x84 for it, in a batch and alone, and
// everything else is answered as before.
func TestOneDamagedDocumentCostsItsKeyAlone(t *testing.T) {
	fs := memfs.New()
	options := func(o *lsm.Options) { o.WriteCache, o.InlineLimit = 4<<20, -1 }
	db := testStore(t, fs, options)
	d := newDriver(t, testServer(t, db, Options{}))
	keys := []string{"a", "b", "c", "d", "e"}
	value := func(key string) string { return strings.Repeat(key, 8000) }
	for _, k := range keys {
		if r := d.ask(setRequest(OpSet, k, value(k), 0, 0)); r.Status != StatusSuccess {
			t.Fatalf("set %s: %v", k, r.Status)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	var last atomic.Pointer[vfs.Op]
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpReadAt {
			last.Store(&op)
		}
		return nil
	})
	if r := d.ask(keyRequest(OpGet, "c")); r.Status != StatusSuccess {
		t.Fatalf("get c: %v", r.Status)
	}
	fs.SetHook(nil)
	at := last.Load()
	f, err := fs.Open(at.Name, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at.Off+4096); err != nil { // well within the document
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at.Off+4096); err != nil {
		t.Fatal(err)
	}

	var in []byte
	for _, k := range keys {
		r := keyRequest(OpGet, k)
		in = r.Append(in)
	}
	for round := range 2 {
		all := responses(t, d.feed(in))
		if len(all) != len(keys) {
			t.Fatalf("%d answers to %d GETs", len(all), len(keys))
		}
		for i, k := range keys {
			switch r := all[i]; {
			case k == "c" && r.Status != StatusInternal:
				t.Errorf("round %d: the damaged one is answered %v", round, r.Status)
			case k != "c" && (r.Status != StatusSuccess || !bytes.Equal(r.Value, []byte(value(k)))):
				t.Errorf("round %d: %s is answered %v, %d bytes", round, k, r.Status, len(r.Value))
			}
		}
	}
	if r := d.ask(keyRequest(OpGet, "c")); r.Status != 0x84 {
		t.Errorf("alone it is answered %v", r.Status)
	}
	// What is written again is whole again.
	if r := d.ask(setRequest(OpSet, "c", "new", 0, 0)); r.Status != StatusSuccess {
		t.Fatalf("set: %v", r.Status)
	}
	if r := d.ask(keyRequest(OpGet, "c")); r.Status != StatusSuccess || string(r.Value) != "new" {
		t.Errorf("written again: %v %q", r.Status, r.Value)
	}
}
