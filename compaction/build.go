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

// Output says where a job writes its tables and what they look like. FS, Dir,
// NextNumber and Hash must be set.
type Output struct {
	FS  vfs.FS
	Dir string // of the tables; it exists
	// Direct writes and verifies past the page cache.
	Direct bool
	// NextNumber returns a number that no table has had, above 0.
	NextNumber func() uint64
	// Hash is xxhash64 (seed 0) of a user key. A different one is found when
	// the table is verified.
	Hash func(userKey []byte) uint64
	// TableBytes is the largest size of a table. Only the versions of its last
	// key, which stay together, make a larger one, and keys of many KiB. Where
	// the number of versions is known, tables are made about equal: the last
	// one is not what happened to be left. Default 64 MiB.
	TableBytes int64
	// Boundaries are internal keys, ascending: a table that holds a key in
	// front of one holds none at or behind it. They are only read.
	Boundaries [][]byte
	// LeaveDirSync leaves the sync of Dir to the caller, who makes more tables
	// there. Without that sync the names of the Result's tables may not survive
	// a power cut.
	LeaveDirSync bool

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
	// Warm, if set, is handed each data block of each table as it is written, as
	// sstable.WriterOptions.Warm is, with the table's number.
	Warm func(table, offset uint64, data []byte)
}

const tableBytesDefault = 64 << 20

func (o *Output) withDefaults() {
	if o.TableBytes == 0 {
		o.TableBytes = tableBytesDefault
	}
}

// Validate reports all that is wrong with o.
func (o *Output) Validate() error {
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
	for i, b := range o.Boundaries {
		if len(b) == 0 || i > 0 && bytes.Compare(o.Boundaries[i-1], b) >= 0 {
			bad("boundary %d, %q: want keys in ascending order", i, b)
		}
	}
	return errors.Join(all...)
}

// ErrCounts: the versions that went in are not those that came out.
var ErrCounts = errors.New("versions lost or made up")

// contextEvery is how many versions are written between two looks at the
// context.
const contextEvery = 1024

// resolver replaces addresses, as MergeOptions.Resolve.
type resolver func(entry.Address, entry.Seqno) (entry.Address, bool, error)

// builder is one job under way: it writes what Elision keeps of a source.
type builder struct {
	o        Output
	policy   Policy
	versions uint64   // the source must have, 0 when unknown
	inBytes  int64    // about what they take in tables, 0 when unknown
	resolve  resolver // nil: addresses stay as they are
	result   Result
	made     []string // every file that was created

	// The open table; w is nil between tables.
	w      *sstable.Writer
	file   vfs.File
	number uint64
	// room is how many bytes surely fit in before the size is looked at again.
	room int64
	// bounds are the boundaries behind the key of the version before.
	bounds [][]byte

	key     []byte // of the version before
	seqno   entry.Seqno
	altered entry.Version // what is written in place of a version
}

// build runs the job. On any error what was made is removed.
func (b *builder) build(ctx context.Context, src entry.Iterator, what string) (Result, error) {
	b.bounds = b.o.Boundaries
	err := b.run(ctx, src)
	if err == nil {
		return b.result, nil
	}
	err = fmt.Errorf("%s of kvstore %d: %w", what, b.o.KVStore, err)
	return Result{}, errors.Join(err, b.abandon())
}

func (b *builder) run(ctx context.Context, src entry.Iterator) error {
	elision := NewElision(b.policy)
	for ok := src.First(); ok; ok = src.Next() {
		if b.result.In%contextEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		v := src.Version()
		fresh, err := b.follow(v)
		if err != nil {
			return err
		}
		verdict := elision.Decide(v, fresh)
		b.result.count(v, verdict)
		if verdict.Drops() {
			continue
		}
		if verdict == Bury {
			b.altered = entry.Version{Key: v.Key, Seqno: v.Seqno, Kind: entry.KindDelete}
			v = &b.altered
		} else if b.resolve != nil && !v.Value.Address.IsZero() {
			if v, err = b.refresh(v); err != nil {
				return err
			}
		}
		if err := b.add(ctx, v, fresh); err != nil {
			return err
		}
	}
	if err := src.Error(); err != nil {
		return err
	}
	if err := b.cut(ctx); err != nil {
		return err
	}
	return b.finish(ctx)
}

// follow checks that v goes on behind the version before and reports whether
// its key is another one. Dropped versions are checked too: the writer does
// not see them.
func (b *builder) follow(v *entry.Version) (fresh bool, err error) {
	switch c := bytes.Compare(v.Key, b.key); {
	case c > 0:
		b.key = append(b.key[:0], v.Key...)
		fresh = true
	case c < 0 || v.Seqno >= b.seqno:
		return false, fmt.Errorf("%w: %q at seqno %d after %q at %d", sstable.ErrOrder, v.Key, v.Seqno, b.key, b.seqno)
	}
	b.seqno = v.Seqno
	return fresh, nil
}

// slackBytes is what a table may grow beyond the writer's estimate: two pages
// begun for its filter and its end, and its properties.
const slackBytes = 12 << 10

// entryBytesMax is more than an entry costs beside key and inline value, index
// and filter included.
const entryBytesMax = 96

// add writes v. Tables are cut in front of a key, never inside one.
func (b *builder) add(ctx context.Context, v *entry.Version, fresh bool) error {
	need := int64(len(v.Key)) + entryBytesMax
	if v.Value.Address.IsZero() {
		need += int64(len(v.Value.Bytes))
	}
	if cut := fresh && b.crosses(v.Key); fresh && b.w != nil {
		if !cut && need > b.room {
			b.room = b.space()
			cut = need > b.room
		}
		if cut {
			if err := b.cut(ctx); err != nil {
				return err
			}
		}
	}
	if b.w == nil {
		if err := b.begin(); err != nil {
			return err
		}
	}
	b.room -= need
	return b.w.Add(v, b.o.Hash(v.Key[entry.VBucketBytes:]))
}

// refresh returns v with the address that its document has now.
func (b *builder) refresh(v *entry.Version) (*entry.Version, error) {
	a, ok, err := b.resolve(v.Value.Address, v.Seqno)
	if err != nil {
		return nil, fmt.Errorf("%q at seqno %d: %w", v.Key, v.Seqno, err)
	}
	if !ok || a == v.Value.Address {
		return v, nil
	}
	b.altered = *v
	b.altered.Value.Address = a
	b.result.Readdressed++
	return &b.altered, nil
}

// crosses reports whether a boundary lies behind the key of the version before
// and at or in front of key.
func (b *builder) crosses(key []byte) bool {
	n := 0
	for n < len(b.bounds) && bytes.Compare(b.bounds[n], key) <= 0 {
		n++
	}
	b.bounds = b.bounds[n:]
	return n > 0
}

// sampleVersions is how many versions tell what one takes in this job's tables.
const sampleVersions = 4096

// space returns how many bytes the open table may still grow. What is left of
// the source is shared out: without that, the last table is whatever remains,
// on average half a table and often a few blocks.
//
//	TableBytes 32, 70 to come:   32 32 6    ->   24 23 23
func (b *builder) space() int64 {
	size := b.w.EstimatedBytes()
	full := b.o.TableBytes - slackBytes
	left := b.left(size)
	// A sixteenth less, so that a table takes in the rest when the estimate
	// was too low.
	aim := full - full/16
	if total := size + left; left > 0 && aim > 0 && total > full {
		tables := (total + aim - 1) / aim
		return total/tables - size
	}
	return full - size
}

// left is about what the rest of the source will take, 0 when unknown; size is
// that of the open table.
func (b *builder) left(size int64) int64 {
	seen := b.result.In
	if b.versions <= seen {
		return 0
	}
	rest := float64(b.versions - seen)
	if seen >= sampleVersions {
		return int64(rest / float64(seen) * float64(b.result.Bytes+size))
	}
	return int64(rest / float64(b.versions) * float64(b.inBytes))
}

// path is the name of table number.
func (b *builder) path(number uint64) string { return path.Join(b.o.Dir, sstable.Name(number)) }

func (b *builder) begin() error {
	b.number = b.o.NextNumber()
	name := b.path(b.number)
	file, err := b.o.FS.Create(name, vfs.OpenOptions{Write: true, Direct: b.o.Direct})
	if err != nil {
		return fmt.Errorf("create table %s: %w", name, err)
	}
	b.made = append(b.made, name)
	b.file = file
	var warm func(offset uint64, data []byte)
	if b.o.Warm != nil {
		number := b.number
		warm = func(offset uint64, data []byte) { b.o.Warm(number, offset, data) }
	}
	w, err := sstable.NewWriter(file, sstable.WriterOptions{
		Number: b.number, StoreID: b.o.StoreID, KVStore: b.o.KVStore,
		BlockBytes: b.o.BlockBytes, Compression: b.o.Compression, BloomBits: b.o.BloomBits,
		WriteBufferBytes: b.o.WriteBufferBytes, Pace: b.o.Pace, Warm: warm,
	})
	if err != nil {
		return err
	}
	b.w, b.room = w, 0
	return nil
}

// cut finishes the open table, if there is one, and verifies it.
func (b *builder) cut(ctx context.Context) error {
	if b.w == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p, size, err := b.w.Finish()
	if err != nil {
		return err
	}
	b.w.Close()
	file := b.file
	b.w, b.file = nil, nil
	if err := file.Close(); err != nil {
		return fmt.Errorf("close table %s: %w", file.Name(), err)
	}
	t, err := b.verify(p, size)
	if err != nil {
		return err
	}
	b.result.Tables = append(b.result.Tables, t)
	b.result.Out += t.Properties.Entries
	b.result.Bytes += t.FileBytes
	return nil
}

// finish checks the whole and makes the names durable.
func (b *builder) finish(ctx context.Context) error {
	r := &b.result
	if r.In != r.Out+r.Dropped || b.versions != 0 && r.In != b.versions {
		return fmt.Errorf("%w: %d in, %d expected, %d out, %d dropped", ErrCounts, r.In, b.versions, r.Out, r.Dropped)
	}
	if r.By[Bury]+r.By[Expired] > 0 {
		r.DecidedAt = b.policy.Now
	}
	r.sortDead()
	if len(r.Tables) == 0 || b.o.LeaveDirSync {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.o.FS.SyncDir(b.o.Dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", b.o.Dir, err)
	}
	return nil
}

// abandon gives up whatever is open and removes every file that was made.
func (b *builder) abandon() error {
	if b.w != nil {
		b.w.Close()
	}
	if b.file != nil {
		_ = b.file.Close() // of a file that goes
	}
	var all []error
	for _, name := range b.made {
		if err := b.o.FS.Remove(name); err != nil {
			all = append(all, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	return errors.Join(all...)
}
