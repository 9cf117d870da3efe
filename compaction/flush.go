package compaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/sstable"
)

// FlushOptions say what a flush writes and where. FS, Dir, NextNumber and Hash
// must be set.
type FlushOptions struct {
	FS  vfs.FS
	Dir string // of the kvstore's tables; it exists
	// Direct writes and verifies past the page cache.
	Direct bool
	// NextNumber returns a number that no table has had, above 0.
	NextNumber func() uint64
	// Hash is xxhash64 (seed 0) of a user key. A different one is found when
	// the table is verified.
	Hash func(userKey []byte) uint64
	// Policy decides which versions go.
	Policy Policy
	// TableBytes is the largest size of a table. Only the versions of its last
	// key, which stay together, make a larger one, and keys of many KiB.
	// Default 64 MiB.
	TableBytes int64
	// LeaveDirSync leaves the sync of Dir to the caller, who flushes more than
	// one kvstore there. Without it the names of the Result's tables may not
	// survive a power cut.
	LeaveDirSync bool
	// Versions is how many versions the source must have, 0 when unknown: a
	// source that ends early is an error.
	Versions uint64

	// StoreID, KVStore, BlockBytes, Compression, BloomBits and
	// WriteBufferBytes are those of sstable.WriterOptions, Pace too: it is
	// called before each write with its bytes and may sleep.
	StoreID          [16]byte
	KVStore          uint16
	BlockBytes       int
	Compression      sstable.Compression
	BloomBits        int
	WriteBufferBytes int
	Pace             func(bytes int)
}

const tableBytesDefault = 64 << 20

func (o *FlushOptions) withDefaults() {
	if o.TableBytes == 0 {
		o.TableBytes = tableBytesDefault
	}
}

// Validate reports all that is wrong with o.
func (o *FlushOptions) Validate() error {
	var all []error
	bad := func(format string, args ...any) {
		all = append(all, fmt.Errorf("compaction: "+format, args...))
	}
	if o.FS == nil {
		bad("FS is not set")
	}
	if o.NextNumber == nil {
		bad("NextNumber is not set")
	}
	if o.Hash == nil {
		bad("Hash is not set")
	}
	if o.TableBytes < 0 {
		bad("TableBytes %d: want 1 or more", o.TableBytes)
	}
	return errors.Join(all...)
}

// ErrCounts: the versions that went in are not those that came out.
var ErrCounts = errors.New("versions lost or made up")

// contextEvery is how many versions are written between two looks at the
// context.
const contextEvery = 1024

// Flush writes the versions of src, all of a sealed memtable from First on,
// to tables. A document that has an address is written by it, even when its
// bytes are at hand.
//
// Each table is synced, opened again and verified before the next begins; the
// directory is synced once, at the end, unless LeaveDirSync. On any error, cancelling included,
// every file that was made is removed and the Result is zero; a file that
// could not be removed is named in the error. The caller keeps src, and must
// not move it meanwhile.
func Flush(ctx context.Context, src entry.Iterator, o FlushOptions) (Result, error) {
	o.withDefaults()
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	f := flusher{o: o}
	err := f.run(ctx, src)
	if err == nil {
		return f.result, nil
	}
	err = fmt.Errorf("flush of kvstore %d: %w", o.KVStore, err)
	return Result{}, errors.Join(err, f.abandon())
}

// flusher is one Flush under way.
type flusher struct {
	o      FlushOptions
	result Result
	made   []string // every file that was created

	// The open table; w is nil between tables.
	w      *sstable.Writer
	file   vfs.File
	number uint64
	// room is how many bytes surely fit in before the size is looked at again.
	room int64

	key    []byte // of the version before
	seqno  entry.Seqno
	tomb   entry.Version
	inputs uint64 // versions until the context is looked at
}

func (f *flusher) run(ctx context.Context, src entry.Iterator) error {
	elision := NewElision(f.o.Policy)
	for ok := src.First(); ok; ok = src.Next() {
		if f.inputs%contextEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		f.inputs++
		v := src.Version()
		fresh, err := f.follow(v)
		if err != nil {
			return err
		}
		verdict := elision.Decide(v, fresh)
		f.result.count(v, verdict)
		if verdict.Drops() {
			continue
		}
		if verdict == Bury {
			f.tomb = entry.Version{Key: v.Key, Seqno: v.Seqno, Kind: entry.KindDelete}
			v = &f.tomb
		}
		if err := f.add(ctx, v, fresh); err != nil {
			return err
		}
	}
	if err := src.Error(); err != nil {
		return err
	}
	if err := f.cut(ctx); err != nil {
		return err
	}
	return f.finish(ctx)
}

// follow checks that v goes on behind the version before and reports whether
// its key is another one. Dropped versions are checked too: the writer does
// not see them.
func (f *flusher) follow(v *entry.Version) (fresh bool, err error) {
	switch c := bytes.Compare(v.Key, f.key); {
	case c > 0:
		f.key = append(f.key[:0], v.Key...)
		fresh = true
	case c < 0 || v.Seqno >= f.seqno:
		return false, fmt.Errorf("%w: %q at seqno %d after %q at %d", sstable.ErrOrder, v.Key, v.Seqno, f.key, f.seqno)
	}
	f.seqno = v.Seqno
	return fresh, nil
}

// slackBytes is what a table may grow beyond the writer's estimate: two pages
// begun for its filter and its end, and its properties.
const slackBytes = 12 << 10

// entryBytesMax is more than an entry costs beside key and inline value, index
// and filter included.
const entryBytesMax = 96

// add writes v. Tables are cut in front of a key, never inside one.
func (f *flusher) add(ctx context.Context, v *entry.Version, fresh bool) error {
	need := int64(len(v.Key)) + entryBytesMax
	if v.Value.Address.IsZero() {
		need += int64(len(v.Value.Bytes))
	}
	if fresh && f.w != nil && need > f.room {
		if f.room = f.o.TableBytes - slackBytes - f.w.EstimatedBytes(); need > f.room {
			if err := f.cut(ctx); err != nil {
				return err
			}
		}
	}
	if f.w == nil {
		if err := f.begin(); err != nil {
			return err
		}
	}
	f.room -= need
	return f.w.Add(v, f.o.Hash(v.Key[entry.VBucketBytes:]))
}

// path is the name of table number.
func (f *flusher) path(number uint64) string { return path.Join(f.o.Dir, sstable.Name(number)) }

func (f *flusher) begin() error {
	f.number = f.o.NextNumber()
	name := f.path(f.number)
	file, err := f.o.FS.Create(name, vfs.OpenOptions{Write: true, Direct: f.o.Direct})
	if err != nil {
		return fmt.Errorf("create table %s: %w", name, err)
	}
	f.made = append(f.made, name)
	f.file = file
	w, err := sstable.NewWriter(file, sstable.WriterOptions{
		Number: f.number, StoreID: f.o.StoreID, KVStore: f.o.KVStore,
		BlockBytes: f.o.BlockBytes, Compression: f.o.Compression, BloomBits: f.o.BloomBits,
		WriteBufferBytes: f.o.WriteBufferBytes, Pace: f.o.Pace,
	})
	if err != nil {
		return err
	}
	f.w, f.room = w, 0
	return nil
}

// cut finishes the open table, if there is one, and verifies it.
func (f *flusher) cut(ctx context.Context) error {
	if f.w == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p, size, err := f.w.Finish()
	if err != nil {
		return err
	}
	f.w.Close()
	file := f.file
	f.w, f.file = nil, nil
	if err := file.Close(); err != nil {
		return fmt.Errorf("close table %s: %w", file.Name(), err)
	}
	t, err := f.verify(p, size)
	if err != nil {
		return err
	}
	f.result.Tables = append(f.result.Tables, t)
	f.result.Out += t.Properties.Entries
	f.result.Bytes += t.FileBytes
	return nil
}

// finish checks the whole and makes the names durable.
func (f *flusher) finish(ctx context.Context) error {
	r := &f.result
	if r.In != r.Out+r.Dropped || f.o.Versions != 0 && r.In != f.o.Versions {
		return fmt.Errorf("%w: %d in, %d expected, %d out, %d dropped", ErrCounts, r.In, f.o.Versions, r.Out, r.Dropped)
	}
	if r.By[Bury]+r.By[Expired] > 0 {
		r.DecidedAt = f.o.Policy.Now
	}
	r.sortDead()
	if len(r.Tables) == 0 || f.o.LeaveDirSync {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f.o.FS.SyncDir(f.o.Dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", f.o.Dir, err)
	}
	return nil
}

// abandon gives up whatever is open and removes every file that was made.
func (f *flusher) abandon() error {
	if f.w != nil {
		f.w.Close()
	}
	if f.file != nil {
		_ = f.file.Close() // of a file that goes
	}
	var all []error
	for _, name := range f.made {
		if err := f.o.FS.Remove(name); err != nil {
			all = append(all, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	return errors.Join(all...)
}
