package sstable

import (
	"bytes"

	"fluxkv/internal/entry"
)

// Lookup is one point read that stops wherever it needs a block that is not in
// memory, so that a batch can read the blocks of many lookups together:
//
//	for done := l.Start(r, hash, key, at); !done; {
//		data := ... block l.Need(), from a cache or by Plan, a read, and Finish
//		done = l.Feed(data)
//	}
//	if l.Found() { use l.Version() }
//
// The zero Lookup is ready for Start, and may be started again when done or
// abandoned. It keeps no block but the data block that answers it, in
// Version.
type Lookup struct {
	r       *Reader
	hash    uint64
	key     []byte
	at      entry.Seqno
	ref     BlockRef
	level   int // of the index block in ref
	found   bool
	err     error
	version entry.Version
}

// Start begins to look for the newest version of key, an internal key, with a
// seqno of at most at; hash is xxhash64 (seed 0) of the user key. It goes on
// as far as blocks in memory lead and reports whether the lookup is done. key
// is kept until then.
func (l *Lookup) Start(r *Reader, hash uint64, key []byte, at entry.Seqno) (done bool) {
	l.r, l.hash, l.key, l.at = r, hash, key, at
	l.found, l.err = false, nil
	p := r.props
	if at < p.LowestSeqno || bytes.Compare(key, p.Smallest) < 0 || bytes.Compare(key, p.Largest) > 0 {
		return true
	}
	if r.foot.pieces > 0 {
		l.ref = r.piece(pieceOf(hash, r.foot.pieces))
		if b := r.pinned(l.ref); b != nil {
			return l.Feed(b)
		}
		return false
	}
	l.ref, l.level = r.foot.root, int(p.IndexLevels)-1
	return l.Feed(r.base)
}

// Need is the block that a lookup which is not done waits for.
func (l *Lookup) Need() BlockRef { return l.ref }

// Feed gives the lookup the decoded block it needs, as Finish returned it, and
// reports whether the lookup is done. The block must stay as it is while
// Version is used when it is a data block; others are not kept.
func (l *Lookup) Feed(data []byte) (done bool) {
	r := l.r
	for {
		switch l.ref.Kind {
		case FilterPiece:
			if !pieceHas(data, l.hash, int(r.props.Filter.Probes)) {
				return true
			}
			l.ref, l.level = r.foot.root, int(r.props.IndexLevels)-1
			data = r.base
			continue
		case DataBlock:
			l.answer(data)
			return true
		}
		if !l.descend(data) {
			return true
		}
		if data = r.pinned(l.ref); data == nil {
			return false
		}
	}
}

// descend moves ref from an index block to the block below it that can hold
// the answer; it reports false when there is none.
func (l *Lookup) descend(data []byte) bool {
	var b block
	var c columns
	if !l.take(data, &b, &c) {
		return false
	}
	i, _ := b.seek(l.key, l.at)
	if i == b.count {
		// Only the root may end before the key: below it, the separator that
		// led here is the last one.
		if l.ref != l.r.foot.root {
			l.err = corrupt(l.r.file.Name(), int64(l.ref.Offset), "index block ends before the separator above it")
		}
		return false
	}
	l.ref, l.err = l.r.child(&b, &c, i, l.level)
	l.level--
	return l.err == nil
}

func (l *Lookup) answer(data []byte) {
	var b block
	var c columns
	if !l.take(data, &b, &c) {
		return
	}
	i, found := b.seek(l.key, l.at)
	if !found {
		return
	}
	l.found = true
	b.version(&c, b.place(&c, i), i, &l.version)
	l.version.Key = l.key
}

func (l *Lookup) take(data []byte, b *block, c *columns) bool {
	err := b.parse(data)
	if err == nil {
		err = b.columns(c)
	}
	if err != nil {
		l.err = corrupt(l.r.file.Name(), int64(l.ref.Offset), "%v: %v", l.ref.Kind, err)
	}
	return err == nil
}

// Found reports whether a lookup that is done found a version.
func (l *Lookup) Found() bool { return l.found && l.err == nil }

// Err returns why a lookup could not be done, a *CorruptError, or nil.
func (l *Lookup) Err() error { return l.err }

// Version is what was found. Its Key is the key of Start, its value aliases
// the data block that was fed last. Kind tells a tombstone.
func (l *Lookup) Version() *entry.Version { return &l.version }
