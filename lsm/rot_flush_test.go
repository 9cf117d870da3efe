package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// damaged compares a store of which one file is damaged with the history: a key
// has its value, or an error that names the file and the place; never a miss
// that is none, nor an older version. An iterator stops where it cannot go on
// and shows everything before (S7). It returns how many keys were served and
// how many were not.
func (h *history) damaged(db *DB, file string) (served, refused int, err error) {
	now := uint32(db.o.Now().Unix())
	want := map[string]doc{}
	keys := map[string]bool{}
	for _, c := range h.clients {
		maps.Copy(want, c.after(len(c.ops), now))
		for _, k := range c.keys() {
			keys[k] = true
		}
	}
	right := func(how, k string, it Item, err error) error {
		d, there := want[k]
		switch {
		case errors.Is(err, ErrNotFound):
			if there {
				return fmt.Errorf("%s of %s: not found", how, k)
			}
		case err != nil:
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "offset") {
				return fmt.Errorf("%s of %s: the error does not say what is damaged where: %w", how, k, err)
			}
		case !there:
			return fmt.Errorf("%s of %s: %s, want nothing", how, k, short(it.Value))
		case !bytes.Equal(it.Value, d.value):
			return fmt.Errorf("%s of %s: %s, want %s", how, k, short(it.Value), short(d.value))
		}
		return nil
	}
	var b ReadBatch
	defer b.Release()
	order := slices.Sorted(maps.Keys(keys))
	for _, k := range order {
		b.Add([]byte(k))
	}
	if err := db.GetMany(&b); err != nil {
		return 0, 0, err
	}
	for i, k := range order {
		it, err := db.Get(nil, []byte(k))
		if err := errors.Join(right("Get", k, it, err), right("GetMany", k, *b.Item(i), b.Err(i))); err != nil {
			return 0, 0, err
		}
		if err == nil || errors.Is(err, ErrNotFound) {
			served++
		} else {
			refused++
		}
	}
	it, err := db.NewIter(nil, nil, IterOptions{})
	if err != nil {
		return 0, 0, err
	}
	defer it.Close()
	left := slices.Sorted(maps.Keys(want))
	for ok := it.First(); ok; ok = it.Next() {
		k := string(it.Key())
		if len(left) == 0 || left[0] != k {
			return 0, 0, fmt.Errorf("an iterator shows %s, next is %q", k, left)
		}
		left = left[1:]
		got, err := it.Item()
		if err := right("Item", k, got, err); err != nil {
			return 0, 0, err
		}
	}
	if err := it.Error(); err != nil {
		return served, refused, right("iterator at the end", "", Item{}, err)
	}
	if len(left) != 0 {
		return 0, 0, fmt.Errorf("an iterator ends without an error before %q", left)
	}
	return served, refused, nil
}

// tableDamage is a damage to a table.
type tableDamage struct {
	name string
	do   func(t *testing.T, disk *memfs.FS, file string, size, off int64)
	// whole says that the file changes its length, or goes: off does not
	// matter, and open must refuse (M8).
	whole bool
}

func alter(t *testing.T, disk *memfs.FS, file string, fn func(f vfs.File) error) {
	t.Helper()
	f, err := disk.Open(file, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fn(f), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func flip(at int64) func(*testing.T, *memfs.FS, string, int64, int64) {
	return func(t *testing.T, disk *memfs.FS, file string, size, off int64) {
		alter(t, disk, file, func(f vfs.File) error {
			var b [1]byte
			if _, err := f.ReadAt(b[:], off+at); err != nil {
				return err
			}
			b[0] ^= 0x10
			_, err := f.WriteAt(b[:], off+at)
			return err
		})
	}
}

func truncateTo(length func(size int64) int64) func(*testing.T, *memfs.FS, string, int64, int64) {
	return func(t *testing.T, disk *memfs.FS, file string, size, _ int64) {
		alter(t, disk, file, func(f vfs.File) error { return f.Truncate(length(size)) })
	}
}

var tableDamages = []tableDamage{
	{"bit flipped in the first byte", flip(0), false},
	{"bit flipped at 17", flip(17), false},
	{"bit flipped at 1500", flip(1500), false},
	{"bit flipped in the last byte", flip(vfs.BlockBytes - 1), false},
	{"zeros", func(t *testing.T, disk *memfs.FS, file string, size, off int64) {
		alter(t, disk, file, func(f vfs.File) error {
			_, err := f.WriteAt(make([]byte, vfs.BlockBytes), off)
			return err
		})
	}, false},
	{"missing", func(t *testing.T, disk *memfs.FS, file string, _, _ int64) {
		if err := errors.Join(disk.Remove(file), disk.SyncDir(path.Dir(file))); err != nil {
			t.Fatal(err)
		}
	}, true},
	{"cut to nothing", truncateTo(func(int64) int64 { return 0 }), true},
	{"cut by a byte", truncateTo(func(size int64) int64 { return size - 1 }), true},
	{"cut by half", truncateTo(func(size int64) int64 { return size / 2 }), true},
	{"longer by a block", truncateTo(func(size int64) int64 { return size + vfs.BlockBytes }), true},
}

// TestRotOfTables damages every block of every table of stores that were closed
// in order, and every table's length.
func TestRotOfTables(t *testing.T) {
	damages, refusedOpens, refusedKeys, servedKeys := 0, 0, 0, 0
	for _, sc := range flushScenarios {
		if sc.overtake || sc.sparse && !soak() {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			l := newLoop(t, sc, new(tally))
			p, disk := l.player()
			sc.play(p)
			p.close()
			if p.dead != nil {
				t.Fatal(p.dead)
			}
			dir := path.Join("data", TablesDir)
			names, err := disk.List(dir)
			if err != nil || len(names) == 0 {
				t.Fatal("no tables", err)
			}
			for _, base := range names {
				file := path.Join(dir, base)
				size, err := disk.Size(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range tableDamages {
					for off := int64(0); off < size; off += vfs.BlockBytes {
						damages++
						where := fmt.Sprintf("%s: %s at %d of %d", file, d.name, off, size)
						rotten := disk.CrashCopy(0, memfs.KeepAll)
						d.do(t, rotten, file, size, off)
						db := openRotten(t, rotten, p, file, where, d.whole)
						if db == nil {
							refusedOpens++
						} else {
							served, refused := useRotten(t, db, p, file, where)
							servedKeys += served
							refusedKeys += refused
							if err := db.Close(); err != nil {
								t.Errorf("%s: close: %v", where, err)
							}
						}
						if t.Failed() {
							return
						}
						if d.whole {
							break
						}
					}
				}
			}
		})
	}
	t.Logf("%d damages; %d starts refused, %d keys refused, %d keys served", damages, refusedOpens, refusedKeys, servedKeys)
	if refusedKeys == 0 || servedKeys == 0 || refusedOpens == 0 {
		t.Error("not all kinds of damage were met")
	}
}

// openRotten returns the store, or nil when it refused to open as it should.
func openRotten(t *testing.T, disk *memfs.FS, p *player, file, where string, whole bool) *DB {
	o := p.options()
	o.FS = disk
	db, err := Open("data", o)
	switch {
	case whole && err == nil:
		t.Errorf("%s: the store opens", where)
	case whole && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file)):
		t.Errorf("%s: %v", where, err)
	case !whole && err != nil:
		t.Errorf("%s: one damaged block of a table keeps the store from opening: %v", where, err)
	}
	return db
}

// useRotten reads a store with a damaged table, writes over what it cannot
// read, flushes, and reads again.
func useRotten(t *testing.T, db *DB, p *player, file, where string) (served, refused int) {
	served, refused, err := p.h.damaged(db, file)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return 0, 0
	}
	if refused > 0 && db.Stats().CorruptReads == 0 {
		t.Errorf("%s: refused reads are not counted", where)
	}
	// Writes go on, over damage too, and what is new is found before it.
	h := p.h.clone()
	q := &player{o: p.o, h: h, db: db, halted: func() bool { return false }}
	q.clock.Store(p.clock.Load())
	for i, c := range h.clients {
		if keys := c.keys(); len(keys) > 1 {
			q.write(i, keys[0]+":33", keys[len(keys)-1]+":333")
		}
	}
	for range 2 {
		for i, c := range h.clients {
			for _, d := range c.ops[len(c.ops)-1].docs {
				if it, err := db.Get(nil, []byte(d.key)); err != nil || !bytes.Equal(it.Value, d.value) {
					t.Errorf("%s: %s of client %d was written again, and holds %s, %v", where, d.key, i, short(it.Value), err)
				}
			}
		}
		if _, _, err := h.damaged(db, file); err != nil {
			t.Errorf("%s, after more writes: %v", where, err)
		}
		q.flush(0)
	}
	if q.dead != nil {
		t.Errorf("%s: %v", where, q.dead)
	}
	return served, refused
}
