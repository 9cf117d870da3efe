package compaction

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/memtable"
	"fluxkv/sstable"
)

func TestFlush(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	expiring := set("e", 4, "old")
	expiring.Meta.Expiry = 50
	m := fill(t, []memtable.Op{
		doc("a", 9, 41), doc("a", 7, 40), doc("a", 5, 41), set("a", 3, "x"),
		set("b", 8, ""), del("c", 6), doc("c", 2, 40), doc("d", 12, 41), doc("d", 11, 41), expiring,
	})
	defer m.Free()
	o := options(fs)
	o.Policy = Policy{Horizon: 10, Now: 100}
	o.Versions = uint64(m.Len())
	paced := 0
	o.Pace = func(n int) { paced += n }
	r, err := Flush(t.Context(), m.NewIter(nil, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "tables", contents(t, fs, r.Tables), []string{
		`1/a#9 SET 000041:36864+300 {CAS:0 Flags:0 Expiry:0 Datatype:0}`,
		`1/b#8 SET "" {CAS:0 Flags:0 Expiry:0 Datatype:0}`,
		`1/c#6 DEL "" {CAS:0 Flags:0 Expiry:0 Datatype:0}`,
		`1/d#12 SET 000041:49152+300 {CAS:0 Flags:0 Expiry:0 Datatype:0}`,
		`1/d#11 SET 000041:45056+300 {CAS:0 Flags:0 Expiry:0 Datatype:0}`,
		`1/e#4 DEL "" {CAS:0 Flags:0 Expiry:0 Datatype:0}`,
	})
	if want := []Dead{{40, 2, 300}, {40, 7, 300}, {41, 5, 300}}; !slices.Equal(r.Dead, want) {
		t.Errorf("dead %v, want %v", r.Dead, want)
	}
	if r.In != 10 || r.Out != 6 || r.Dropped != 4 || r.Buried != 1 || r.DecidedAt != 100 {
		t.Errorf("counts of %+v", r)
	}
	size, err := fs.Size(r.Tables[0].Name)
	if err != nil || size != r.Tables[0].FileBytes || size != r.Bytes || int64(paced) != size {
		t.Errorf("file of %d bytes (%v), told %d and %d, paced %d", size, err, r.Tables[0].FileBytes, r.Bytes, paced)
	}
	if p := r.Tables[0].Properties; p.KVStore != 3 || p.Number != r.Tables[0].Number || p.HighestSeqno != 12 {
		t.Errorf("properties %+v", p)
	}
}

func TestFlushNothingLeft(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	m := fill(t, []memtable.Op{doc("a", 2, 7), doc("b", 1, 7)})
	defer m.Free()
	for _, c := range []struct {
		name string
		src  entry.Iterator
		dead int
	}{
		{"all cleared", m.NewIter(nil, nil), 2},
		{"empty source", m.NewIter([]byte("zz"), nil), 0},
	} {
		o := options(fs)
		o.Policy = Policy{Horizon: 3, Clear: 3}
		r, err := Flush(t.Context(), c.src, o)
		if err != nil || len(r.Tables) != 0 || len(r.Dead) != c.dead || len(list(t, fs)) != 0 {
			t.Errorf("%s: %+v, %v, files %v", c.name, r, err, list(t, fs))
		}
	}
}

// TestC04_VersionsOfAKeyStayTogether cuts small tables: none is larger than
// asked for unless it ends with the key of many versions, and no key is in two.
func TestC04_VersionsOfAKeyStayTogether(t *testing.T) {
	for _, compression := range []sstable.Compression{sstable.NoCompression, sstable.Snappy} {
		t.Run(compression.String(), func(t *testing.T) {
			fs := memfs.New()
			mkdir(t, fs)
			var ops []memtable.Op
			seqno := 0
			for k := range 1200 {
				versions := 1 + k%5
				if k == 200 {
					versions = 3000
				}
				for range versions {
					seqno++
					op := set(fmt.Sprintf("key%05d", k), seqno, fmt.Sprintf("%x", sha256.Sum256([]byte{byte(seqno), byte(seqno >> 8)})))
					if seqno%3 == 0 {
						op = doc(fmt.Sprintf("key%05d", k), seqno, entry.SegmentID(1+seqno%7))
					}
					ops = append(ops, op)
				}
			}
			m := fill(t, ops)
			defer m.Free()
			o := options(fs)
			o.TableBytes = 32 << 10
			o.Compression = compression
			o.Versions = uint64(m.Len())
			r, err := Flush(t.Context(), m.NewIter(nil, nil), o)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "tables", contents(t, fs, r.Tables), walk(t, m.NewIter(nil, nil)))
			if len(r.Tables) < 3 {
				t.Errorf("%d tables", len(r.Tables))
			}
			for i, x := range r.Tables {
				p := x.Properties
				if x.FileBytes > o.TableBytes && !bytes.HasSuffix(p.Largest, []byte("key00200")) {
					t.Errorf("table %d of %d bytes, %q to %q", i, x.FileBytes, p.Smallest, p.Largest)
				}
				if i > 0 && bytes.Compare(r.Tables[i-1].Properties.Largest, p.Smallest) >= 0 {
					t.Errorf("table %d begins with %q", i, p.Smallest)
				}
			}
		})
	}
}

// TestS03_SyncOrder: each file is synced before the directory, that once, and
// then all survives a power cut.
func TestS03_SyncOrder(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	m := fill(t, manyOps(3000))
	defer m.Free()
	o := options(fs)
	o.TableBytes = 32 << 10
	var calls []string
	fs.SetHook(func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpSync, vfs.OpSyncDir, vfs.OpWriteAt:
			calls = append(calls, op.Kind.String())
		}
		return nil
	})
	r, err := Flush(t.Context(), m.NewIter(nil, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	fs.SetHook(nil)
	syncs := 0
	for _, c := range calls[:len(calls)-1] {
		if c == vfs.OpSync.String() {
			syncs++
		}
		if c == vfs.OpSyncDir.String() {
			t.Errorf("the directory is synced before the end: %v", calls)
		}
	}
	if syncs != len(r.Tables) || syncs < 2 || calls[len(calls)-1] != vfs.OpSyncDir.String() {
		t.Errorf("%d tables, calls %v", len(r.Tables), calls)
	}
	after := fs.CrashCopy(1, memfs.DropAll)
	equal(t, "after a power cut", contents(t, after, r.Tables), walk(t, m.NewIter(nil, nil)))
}

// manyOps are n versions of n keys, inline and addressed.
func manyOps(n int) []memtable.Op {
	var ops []memtable.Op
	for i := range n {
		if i%2 == 0 {
			ops = append(ops, set(fmt.Sprintf("key%06d", i), i+1, fmt.Sprintf("value%060d", i)))
		} else {
			ops = append(ops, doc(fmt.Sprintf("key%06d", i), i+1, 9))
		}
	}
	return ops
}

// TestS06_NewTableVerified damages a table between its sync and its reading.
func TestS06_NewTableVerified(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(f vfs.File) error
		want   error
	}{
		{"a byte of a block", func(f vfs.File) error { _, err := f.WriteAt([]byte{0xff, 0xff}, 1000); return err }, sstable.ErrCorrupt},
		{"cut", func(f vfs.File) error { return f.Truncate(4096) }, sstable.ErrCorrupt},
		{"empty", func(f vfs.File) error { return f.Truncate(0) }, sstable.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := memfs.New()
			mkdir(t, fs)
			m := fill(t, manyOps(500))
			defer m.Free()
			fs.SetHook(func(op vfs.Op) error {
				if op.Kind != vfs.OpOpen {
					return nil
				}
				fs.SetHook(nil)
				f, err := fs.Open(op.Name, vfs.OpenOptions{Write: true})
				if err != nil {
					return err
				}
				return errors.Join(c.damage(f), f.Close())
			})
			r, err := Flush(t.Context(), m.NewIter(nil, nil), options(fs))
			if !errors.Is(err, c.want) || len(r.Tables) != 0 || len(list(t, fs)) != 0 {
				t.Errorf("%v, %d tables, files %v", err, len(r.Tables), list(t, fs))
			}
		})
	}
}

// TestS06_AnotherTable: a sound table of the same number that is not the one
// that was written, and counts that do not add up.
func TestS06_AnotherTable(t *testing.T) {
	other := memfs.New()
	mkdir(t, other)
	few := fill(t, manyOps(499))
	defer few.Free()
	made, err := Flush(t.Context(), few.NewIter(nil, nil), options(other))
	if err != nil {
		t.Fatal(err)
	}
	f, err := other.Open(made.Tables[0].Name, vfs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	image := make([]byte, made.Bytes)
	if _, err := f.ReadAt(image, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	m := fill(t, manyOps(500))
	defer m.Free()
	fs := memfs.New()
	mkdir(t, fs)
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind != vfs.OpOpen {
			return nil
		}
		fs.SetHook(nil)
		f, err := fs.Open(op.Name, vfs.OpenOptions{Write: true})
		if err != nil {
			return err
		}
		_, werr := f.WriteAt(image, 0)
		return errors.Join(werr, f.Truncate(int64(len(image))), f.Close())
	})
	r, err := Flush(t.Context(), m.NewIter(nil, nil), options(fs))
	if !errors.Is(err, ErrCounts) || len(r.Tables) != 0 || len(list(t, fs)) != 0 {
		t.Errorf("another table: %v, files %v", err, list(t, fs))
	}

	lost := builder{o: options(fs).Output, result: Result{In: 3, Out: 1, Dropped: 1}}
	if err := lost.finish(t.Context()); !errors.Is(err, ErrCounts) {
		t.Errorf("a version lost: %v", err)
	}
}

// TestS06_AnyByteVerified changes a byte here and there in the whole file: it
// is noticed, or it was padding and all versions are there.
func TestS06_AnyByteVerified(t *testing.T) {
	m := fill(t, manyOps(500))
	defer m.Free()
	want := walk(t, m.NewIter(nil, nil))
	noticed, size := map[int64]bool{}, int64(1)
	for off := int64(0); off < size; off += 61 {
		fs := memfs.New()
		mkdir(t, fs)
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind != vfs.OpOpen {
				return nil
			}
			fs.SetHook(nil)
			var err error
			if size, err = fs.Size(op.Name); err != nil {
				return err
			}
			f, err := fs.Open(op.Name, vfs.OpenOptions{Write: true})
			if err != nil {
				return err
			}
			b := make([]byte, 1)
			_, rerr := f.ReadAt(b, off)
			b[0] ^= 0x10
			_, werr := f.WriteAt(b, off)
			return errors.Join(rerr, werr, f.Close())
		})
		r, err := Flush(t.Context(), m.NewIter(nil, nil), options(fs))
		switch {
		case err == nil:
			equal(t, fmt.Sprint("byte ", off), contents(t, fs, r.Tables), want)
		case !errors.Is(err, sstable.ErrCorrupt) || len(list(t, fs)) != 0:
			t.Errorf("byte %d: %v, files %v", off, err, list(t, fs))
		default:
			noticed[off/4096] = true
		}
	}
	// Every page has bytes that count, the filter's among them.
	if pages := int(size / 4096); len(noticed) != pages {
		t.Errorf("noticed in %d of %d pages", len(noticed), pages)
	}
}

// broken gives versions and then an error, or ends early.
type broken struct {
	vs  []entry.Version
	at  int
	err error
}

func (b *broken) First() bool                     { b.at = 0; return len(b.vs) > 0 }
func (b *broken) SeekGE([]byte, entry.Seqno) bool { panic("not used") }
func (b *broken) Next() bool                      { b.at++; return b.at < len(b.vs) }
func (b *broken) Version() *entry.Version         { return &b.vs[b.at] }
func (b *broken) Error() error                    { return b.err }
func (b *broken) Close() error                    { return nil }

func TestS07_ErrorLeavesNothing(t *testing.T) {
	version := func(key string, seqno entry.Seqno) entry.Version {
		return entry.Version{Key: []byte("\x00\x01" + key), Seqno: seqno, Value: entry.Value{HasBytes: true}}
	}
	two := []entry.Version{version("a", 2), version("b", 1)}
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		src    broken
		change func(o *FlushOptions)
		want   error
	}{
		{"source fails", broken{vs: two, err: boom}, nil, boom},
		{"source ends early", broken{vs: two}, func(o *FlushOptions) { o.Versions = 3 }, ErrCounts},
		{"source has too many", broken{vs: two}, func(o *FlushOptions) { o.Versions = 1 }, ErrCounts},
		{"keys out of order", broken{vs: []entry.Version{two[1], two[0]}}, nil, sstable.ErrOrder},
		{"seqnos out of order", broken{vs: []entry.Version{version("a", 1), version("a", 2)}}, nil, sstable.ErrOrder},
		{
			"a dropped version twice",
			broken{vs: []entry.Version{version("a", 3), version("a", 2), version("a", 2)}},
			func(o *FlushOptions) { o.Policy.Horizon = 9 }, sstable.ErrOrder,
		},
		{
			"another hash", broken{vs: two},
			func(o *FlushOptions) { o.Hash = func(k []byte) uint64 { return uint64(k[0]) * 7919 } }, sstable.ErrCorrupt,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := memfs.New()
			mkdir(t, fs)
			o := options(fs)
			if c.change != nil {
				c.change(&o)
			}
			r, err := Flush(t.Context(), &c.src, o)
			if !errors.Is(err, c.want) || len(r.Tables)+len(r.Dead) != 0 || r.In != 0 || len(list(t, fs)) != 0 {
				t.Errorf("%v, %+v, files %v", err, r, list(t, fs))
			}
		})
	}
}

// A file that is there already is somebody else's: it stays.
func TestFlushNameTaken(t *testing.T) {
	fs := memfs.New()
	mkdir(t, fs)
	f, err := fs.Create(testDir+"/"+sstable.Name(1), vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	m := fill(t, manyOps(3))
	defer m.Free()
	_, err = Flush(t.Context(), m.NewIter(nil, nil), options(fs))
	if !errors.Is(err, os.ErrExist) || len(list(t, fs)) != 1 {
		t.Errorf("%v, files %v", err, list(t, fs))
	}
}

func TestFlushCancelled(t *testing.T) {
	m := fill(t, manyOps(3000))
	defer m.Free()
	// Cancelled before each write in turn; the last one is followed by checks
	// of the context still.
	for n := 0; ; n++ {
		fs := memfs.New()
		mkdir(t, fs)
		ctx, cancel := context.WithCancel(t.Context())
		o := options(fs)
		o.TableBytes = 32 << 10
		writes := 0
		o.Pace = func(int) {
			if writes == n {
				cancel()
			}
			writes++
		}
		r, err := Flush(ctx, m.NewIter(nil, nil), o)
		cancel()
		if writes <= n {
			if err != nil || n < 10 {
				t.Fatalf("after %d writes: %v", n, err)
			}
			return
		}
		if !errors.Is(err, context.Canceled) || len(r.Tables) != 0 || len(list(t, fs)) != 0 {
			t.Fatalf("at write %d: %v, %d tables, files %v", n, err, len(r.Tables), list(t, fs))
		}
	}
}

func TestOutputValidate(t *testing.T) {
	err := (&Output{TableBytes: -1, Boundaries: [][]byte{[]byte("b"), []byte("a")}}).Validate()
	for _, want := range []string{"FS", "NextNumber", "Hash", "TableBytes", "boundary 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: nothing about %s", err, want)
		}
	}
	m := fill(t, manyOps(3))
	defer m.Free()
	if _, err := Flush(t.Context(), m.NewIter(nil, nil), FlushOptions{}); err == nil {
		t.Error("flush without options")
	}
}
