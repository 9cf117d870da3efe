package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"

	"pgregory.net/rapid"
)

// degenerateKeys are keys that code about keys gets wrong: shortest and longest,
// all bits clear and set, zero bytes inside, prefixes of each other, and
// neighbours with nothing between them.
func degenerateKeys() (keys []string) {
	long := strings.Repeat("\xff", KeyBytesMax)
	keys = []string{
		"\x00", "\x00\x00", "\x00\x00\x00", "\x00\x01", "\x01", "\x01\x00",
		"a", "a\x00", "a\x00\x00", "a\x00b", "a\x01", "aa", "b", "b\x00",
		"\xfe\xff", "\xff", "\xff\x00", "\xff\xff", "\xff\xff\xff",
		long[:KeyBytesMax-1], long, long[:KeyBytesMax-1] + "\xfe",
		strings.Repeat("\x00", KeyBytesMax), strings.Repeat("a", 4096), strings.Repeat("a", 4095),
	}
	slices.Sort(keys)
	return keys
}

// TestC11_DegenerateKeys: each of them is what it is after flushes, merges and
// collections, in point reads, snapshots, and iterators with any bounds; tables
// begin and end with them, and ranges part at them.
func TestC11_DegenerateKeys(t *testing.T) {
	keys := degenerateKeys()
	rapid.Check(t, func(rt *rapid.T) {
		o := gcOptions(memfs.New())
		o.TableBytes, o.tableBytesMin = 4*kib, 4*kib // a table for each key
		db := mustOpen(t, "data", o)
		defer func() { db.Close() }()
		h := byHand(db, rapid.SampledFrom([]int64{8 * kib, 40 * kib, mib}).Draw(rt, "range"))
		truth := map[string]string{}
		var snap *Snapshot
		var then map[string]string
		for step := range rapid.IntRange(4, 16).Draw(rt, "steps") {
			switch rapid.IntRange(0, 8).Draw(rt, "step") {
			default:
				for range rapid.IntRange(1, 12).Draw(rt, "writes") {
					key := rapid.SampledFrom(keys).Draw(rt, "key")
					switch rapid.IntRange(0, 3).Draw(rt, "kind") {
					case 0:
						del(t, db, key)
						delete(truth, key)
					case 1:
						truth[key] = fmt.Sprint(step)
						set(t, db, key, truth[key])
					default:
						truth[key] = fmt.Sprint(step) + strings.Repeat("v", 400)
						set(t, db, key, truth[key])
					}
				}
				mustFlush(t, db)
			case 4, 5:
				if _, _, err := h.merge(rapid.Bool().Draw(rt, "idle")); err != nil {
					rt.Fatal(err)
				}
			case 6:
				once, again := collectable(db)
				if len(once)+len(again) == 0 {
					break
				}
				if err := collectByHand(db, once, again); err != nil {
					rt.Fatal(err)
				}
			case 7:
				if snap != nil {
					snap.Close()
				}
				var err error
				if snap, err = db.NewSnapshot(); err != nil {
					rt.Fatal(err)
				}
				then = maps.Clone(truth)
			case 8:
				if snap != nil {
					snap.Close()
					snap = nil
				}
				db.Close()
				db = mustOpen(t, "data", o)
				h = &handPicker{db: db, picker: h.picker}
				db.picker = h.picker
			}
			lower, upper := rapid.SampledFrom(append(keys, "")).Draw(rt, "lower"), rapid.SampledFrom(append(keys, "")).Draw(rt, "upper")
			at := rapid.SampledFrom(keys).Draw(rt, "at")
			if err := sameKeys(db.Get, db.NewIter, keys, truth, lower, upper, at); err != nil {
				rt.Fatal(err)
			}
			if snap != nil {
				if err := sameKeys(snap.Get, snap.NewIter, keys, then, lower, upper, at); err != nil {
					rt.Fatalf("snapshot: %v", err)
				}
			}
			if err := errors.Join(checkAges(db), checkAddresses(db)); err != nil {
				rt.Fatal(err)
			}
		}
		if snap != nil {
			snap.Close()
		}
		verified(t, db)
	})
}

// sameKeys compares point reads, a walk between two keys, "" for no bound, and a
// walk from a third on.
func sameKeys(get func(dst, key []byte) (Item, error), iterate func(lower, upper []byte, o IterOptions) (*Iterator, error),
	keys []string, truth map[string]string, lower, upper, at string) error {
	for _, key := range keys {
		it, err := get(nil, []byte(key))
		if v, ok := truth[key]; ok != (err == nil) || string(it.Value) != v || err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("%.10q of %d bytes is %.10q, %v, want %.10q", key, len(key), it.Value, err, v)
		}
	}
	var from, to []byte
	if lower != "" {
		from = []byte(lower)
	}
	if upper != "" {
		to = []byte(upper)
	}
	it, err := iterate(from, to, IterOptions{})
	if err != nil {
		return err
	}
	defer it.Close()
	for _, seek := range []bool{false, true} {
		var want []string
		for _, key := range keys {
			if _, ok := truth[key]; ok && key >= lower && (upper == "" || key < upper) && (!seek || key >= at) {
				want = append(want, key)
			}
		}
		n := 0
		ok := it.First()
		if seek {
			ok = it.SeekGE([]byte(at))
		}
		for ; ok; ok = it.Next() {
			x, err := it.Item()
			if err != nil || n >= len(want) || !bytes.Equal(x.Key, []byte(want[n])) || string(x.Value) != truth[want[n]] {
				return fmt.Errorf("iterator from %.10q to %.10q: %.10q of %d bytes, %v, comes as number %d of %d", lower, upper, x.Key, len(x.Key), err, n, len(want))
			}
			n++
		}
		if it.Error() != nil || n != len(want) {
			return fmt.Errorf("iterator from %.10q to %.10q: %d keys, %v, want %d", lower, upper, n, it.Error(), len(want))
		}
	}
	return nil
}

// TestC11_NoEmptyKeys, and none that is too long: nothing of a store is made for
// them.
func TestC11_NoEmptyKeys(t *testing.T) {
	db := mustOpen(t, "data", gcOptions(memfs.New()))
	defer db.Close()
	for _, key := range []string{"", strings.Repeat("k", KeyBytesMax+1)} {
		var b Batch
		_, updated := db.Update([]byte(key), func(*Item) (UpdateOp, []byte, Meta, error) { return UpdateSet, nil, Meta{}, nil })
		_, got := db.Get(nil, []byte(key))
		for _, err := range []error{b.Set([]byte(key), nil, Meta{}), b.Delete([]byte(key)), updated, got} {
			if !errors.Is(err, ErrKeySize) {
				t.Errorf("key of %d bytes: %v", len(key), err)
			}
		}
	}
	if n := db.Stats().Entries; n != 0 {
		t.Errorf("%d versions", n)
	}
}

// TestC10_OpeningReadsNoTable: a start looks at the size of each table, and reads
// none of them: not even one that the next read needs, and however many there
// are.
func TestC10_OpeningReadsNoTable(t *testing.T) {
	for _, n := range []int{5, 300} {
		fs := memfs.New()
		o := gcOptions(fs)
		db := mustOpen(t, "data", o)
		for i := range n {
			set(t, db, fmt.Sprintf("key%03d", i), "v")
			if err := db.flush(t.Context(), []int{0}); err != nil {
				t.Fatal(err)
			}
		}
		set(t, db, "last", "v")
		db.Close()
		var opened, read atomic.Int32
		fs.SetHook(func(op vfs.Op) error {
			if strings.HasSuffix(op.Name, ".sst") {
				switch op.Kind {
				case vfs.OpOpen:
					opened.Add(1)
				case vfs.OpReadAt:
					read.Add(1)
				}
			}
			return nil
		})
		db = mustOpen(t, "data", o)
		if st := db.edits.log.State(); len(st.Tables) != n {
			t.Fatalf("%d tables, want %d", len(st.Tables), n)
		}
		if opened.Load()+read.Load() > 0 {
			t.Errorf("a start with %d tables opens %d and reads %d times", n, opened.Load(), read.Load())
		}
		// A read opens those that may have the key.
		want(t, db, "key003", "v")
		if opened.Load() != 1 {
			t.Errorf("a read among %d tables opens %d", n, opened.Load())
		}
		fs.SetHook(nil)
		db.Close()
	}
}
