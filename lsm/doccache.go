package lsm

import (
	"math"

	"fluxkv/internal/doccache"
	"fluxkv/internal/entry"
	"fluxkv/memtable"
)

// The document cache answers reads before the memtables do (design R16).
//
//	commit   number, insert into memtables, refresh (here), publish
//	read     view and read seqno (pinAt), cached (here), memtables, tables, log, fill (here)
//
// It holds of each key at most one version, and never one that a published
// version has replaced: each commit notes its seqno in the cache's word for the
// stripe of its key and drops or refreshes the key, in one step under the lock
// of a shard and before V reaches the commit; and a fill is refused, under the
// same lock, when it comes from a read below that word. So a version that is
// found at or below a read seqno is the newest at or below it, because no read
// seqno is above V. That holds for every reader:
//
//   - plain reads at D or V, and those of a connection at its own last write;
//   - snapshots, far below: a newer version in the cache is a miss to them;
//   - Update, which reads as of its stripe's word, above D but not above V. What it
//     brings into the cache above D is a miss to readers at D;
//   - readers of a store whose log failed, which are at D for ever: what was
//     visible and not durable is a miss to them.
//
// Iterators neither ask nor fill: they read in order what lies together, once.
// Merges and collections change no version and know nothing of the cache. A
// clear is judged when a version is found, as it is for memtables and tables:
// one at or below the reader's clear seqno is absent. So is expiry. Recovery
// starts with an empty cache.

// openDocs makes the cache, if there is to be one.
func (db *DB) openDocs() (err error) {
	if db.o.DocumentCacheBytes > 0 {
		db.docs, err = doccache.New(doccache.Options{Bytes: db.o.DocumentCacheBytes})
	}
	return err
}

// endDocs is told that a view has gone. With the last one go the readers that
// Close does not wait for, and the cache's memory.
func (db *DB) endDocs() {
	if db.docViews.Add(-1) == 0 && db.docs != nil {
		db.docs.Close()
	}
}

// docTouched is how many keys of a batch are touched before the first is looked
// up, so that their cache misses overlap.
const docTouched = 32

func docKey(hash uint64, vbucket uint16, key []byte) doccache.Key {
	return doccache.Key{Hash: hash, VBucket: vbucket, User: key}
}

// cached answers keys of b that the document cache has; memory and the device
// are not asked for them any more. Values are copied into the batch's buffer, as
// many as the batch may read from the device, and count as that.
func (db *DB) cached(b *ReadBatch) {
	c := db.docs
	if c == nil {
		return
	}
	var d doccache.Doc
	for from := 0; from < len(b.gets); from += docTouched {
		gets, errs := b.gets[from:], b.errs[from:]
		gets = gets[:min(len(gets), docTouched)]
		for i := range gets {
			if errs[i] == nil {
				k := docKey(gets[i].Hash, gets[i].VBucket, gets[i].Key)
				c.Touch(&k)
			}
		}
		for i := range gets {
			g := &gets[i]
			if errs[i] != nil {
				continue
			}
			limit := int(max(b.limit-b.bytes, 0))
			if from+i == 0 {
				limit = math.MaxInt
			}
			n := len(b.buf)
			k := docKey(g.Hash, g.VBucket, g.Key)
			if b.buf, g.Found = c.Get(&k, g.At, b.buf, limit, &d); !g.Found {
				continue
			}
			b.bytes += int64(len(b.buf) - n)
			b.values += int64(len(b.buf) - n)
			g.Table = nil
			cachedView(&g.View, &d)
		}
	}
}

// cachedView gives what the cache had the form in which memtables answer.
func cachedView(m *memtable.View, d *doccache.Doc) {
	m.Seqno, m.Kind, m.Meta = d.Seqno, d.Kind, d.Meta
	m.Value = entry.Value{Bytes: d.Value, HasBytes: d.Kind == entry.KindSet}
}

// findCached is cached for one key: the value, if it is wanted, is appended to
// dst, and g.copied says so.
func (db *DB) findCached(g *get, dst []byte, value bool) []byte {
	c := db.docs
	if c == nil {
		return dst
	}
	var d doccache.Doc
	k := docKey(g.hash, g.vbucket, g.key)
	limit := math.MaxInt
	if !value {
		limit = doccache.NoValue
	}
	if dst, g.found = c.Get(&k, g.at, dst, limit, &d); g.found {
		cachedView(&g.m, &d)
		g.copied = len(d.Value)
	}
	return dst
}

// complete reports whether m tells all of a version: a document that is in the
// log alone lacks its value.
func complete(m *memtable.View) bool { return m.Value.HasBytes || m.Kind == entry.KindDelete }

// fill offers the cache what a read at seqno at brought from tables or the log: a
// tombstone, or a document with its value.
func (db *DB) fill(hash uint64, vbucket uint16, key []byte, at Seqno, m *memtable.View, value []byte) {
	if c := db.docs; c != nil {
		k := docKey(hash, vbucket, key)
		c.Fill(&k, at, &doccache.Doc{Seqno: m.Seqno, Kind: m.Kind, Meta: m.Meta, Value: value})
	}
}

// fillFound is fill for key i of a batch, which was found in a table.
func (db *DB) fillFound(b *ReadBatch, i int) {
	if g := &b.gets[i]; db.docs != nil && complete(&g.View) {
		db.fill(g.Hash, g.VBucket, g.Key, g.At, &g.View, g.View.Value.Bytes)
	}
}

// fillDocument is fill for key i of a batch, whose value came from the log.
func (db *DB) fillDocument(b *ReadBatch, i int, value []byte) {
	g := &b.gets[i]
	db.fill(g.Hash, g.VBucket, g.Key, g.At, &g.View, value)
}

// refresh tells the cache of a batch that is numbered and not yet visible. Keys
// that it holds get their new versions, the others stay out, so that a load does
// not flood it. It allocates nothing and waits for nothing but the short locks
// of shards (design R19).
func (db *DB) refresh(b *Batch) {
	c := db.docs
	if c == nil {
		return
	}
	for from := 0; from < len(b.ops); from += docTouched {
		at := b.at[from:]
		at = at[:min(len(at), docTouched)]
		for _, j := range at {
			k := docKey(b.sorted[j].Hash, b.sorted[j].VBucket, b.sorted[j].Key)
			c.Touch(&k)
		}
		for _, j := range at {
			m := &b.sorted[j]
			k := docKey(m.Hash, m.VBucket, m.Key)
			c.Write(&k, &doccache.Doc{Seqno: m.Seqno, Kind: m.Kind, Meta: m.Meta, Value: m.Value})
		}
	}
}
