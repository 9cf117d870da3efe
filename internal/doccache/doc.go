// Package doccache is bounded memory for documents that were read from the
// device: of each key at most one version, and never one that a visible version
// has replaced.
//
//	key --> [shard: lock | words of its stripes | S3-FIFO of internal/s3fifo]
//
//	Write  before a write is visible: word = its seqno; replace or drop what is there
//	Fill   after a read at a seqno:   refused below the word; else keep it
//	Get    by a read at a seqno:      a version above it is not there
//
// Each is one step under the lock of the shard. That is the whole of rule R16:
//
//   - A version v of a key that is found at or below the read seqno is the newest
//     at or below it. Assume a newer one, w, with v < w <= at. It is visible,
//     because readers do not read above the visible seqno, so its Write came
//     before the look-up, and left the key without v. After that, v cannot have
//     come by a Fill at a seqno below the word, which is at least w; nor by one at
//     or above it, which found w or newer; nor by the Write of v, which is below
//     the word.
//   - A Fill at a seqno at which the caller's read was right before the Write of w
//     is right until then: w is not visible yet.
//
// Stripes are shared by keys, so a Fill may be refused for another key's sake,
// and a Write whose word another has overtaken drops what it could refresh. What
// is absent is always right. Words are never taken back: they are about writes,
// not about what is kept.
//
// The words are the cache's own, beside those of the store's commits (rule R17):
// they move under the lock that a fill takes anyway, and the short lock of
// commits is left alone. An empty cache needs none of what came before it.
package doccache
