package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"time"
)

// engineStats is the part of /stats that Overwrite and Read need. Counters count from
// the start of the server.
type engineStats struct {
	Durable     bool          `json:"durable"`
	ReadOnly    string        `json:"read_only"`
	UserBytes   int64         `json:"user_bytes"`
	Writes      int64         `json:"writes"`
	Written     engineWritten `json:"written_bytes"`
	Slowed      int64         `json:"slowed_writes"`
	SlowedTime  time.Duration `json:"slowed_nanoseconds"`
	Stalled     int64         `json:"stalled_writes"`
	StalledTime time.Duration `json:"stalled_nanoseconds"`
	PacedTime   time.Duration `json:"paced_nanoseconds"`

	Flushes     int64 `json:"flushes"`
	Compactions int64 `json:"compactions"`
	Collections int64 `json:"collections"`

	FlushesNow        int    `json:"flushes_now"`
	FlushesFailed     int64  `json:"flushes_failed"`
	FlushError        string `json:"flush_error"`
	CompactionsNow    int    `json:"compactions_now"`
	CompactionsFailed int64  `json:"compactions_failed"`
	CompactionError   string `json:"compaction_error"`
	CollectingNow     bool   `json:"collecting_now"`
	CollectionsFailed int64  `json:"collections_failed"`
	CollectionError   string `json:"collection_error"`

	Gets          int64 `json:"gets"`
	BlockReads    int64 `json:"block_reads"`
	IndexReads    int64 `json:"index_reads"`
	DocumentReads int64 `json:"document_reads"`
	CorruptReads  int64 `json:"corrupt_reads"`
	// DeviceReads is what the I/O engine did, where the server shows it.
	DeviceReads struct {
		Reads int64 `json:"reads"`
		Bytes int64 `json:"bytes"`
	} `json:"device_reads"`
	IOEngine   string `json:"io_engine"`
	BlockCache struct {
		Hits perPriority `json:"hits"`
	} `json:"block_cache"`
	DocumentCache struct {
		Hits         int64 `json:"hits"`
		NegativeHits int64 `json:"negative_hits"`
	} `json:"document_cache"`
	TableMemory  int64 `json:"table_memory"`
	TableBytes   int64 `json:"table_bytes"`
	TableEntries int64 `json:"table_entries"`

	MemtableEntries int64 `json:"memtable_entries"`
	Log             struct {
		Groups          int64         `json:"groups"`
		ActiveBytes     int64         `json:"active_bytes"`
		PreparedBytes   int64         `json:"prepared_bytes"`
		PooledBytes     int64         `json:"pooled_bytes"`
		WaitTime        time.Duration `json:"wait_nanoseconds"`
		SegmentWaitTime time.Duration `json:"segment_wait_nanoseconds"`
	} `json:"log"`
}

// perPriority is a counter of a cache, by priority: of blocks with data, then of
// indexes and filters. A server without such a cache shows none.
type perPriority []int64

func (p perPriority) data() int64 {
	if len(p) == 0 {
		return 0
	}
	return p[0]
}

// heldUp is the time of all writers that were held up, by cause.
type heldUp struct {
	Slowed  time.Duration `json:"slowed_nanoseconds"`  // by a write cache that fills, or by merges that lag
	Stalled time.Duration `json:"stalled_nanoseconds"` // by a write cache that is full
	Paced   time.Duration `json:"paced_nanoseconds"`   // by space that collection has not freed yet
	Log     time.Duration `json:"log_nanoseconds"`     // by writes to the log, which they may have done
	Segment time.Duration `json:"segment_nanoseconds"` // by a segment that was not ready
}

func (s *engineStats) heldUp() heldUp {
	return heldUp{
		Slowed: s.SlowedTime, Stalled: s.StalledTime, Paced: s.PacedTime,
		Log: s.Log.WaitTime - s.Log.SegmentWaitTime, Segment: s.Log.SegmentWaitTime,
	}
}

// add returns h with times the durations of o.
func (h heldUp) add(o heldUp, times time.Duration) heldUp {
	return heldUp{
		Slowed: h.Slowed + times*o.Slowed, Stalled: h.Stalled + times*o.Stalled, Paced: h.Paced + times*o.Paced,
		Log: h.Log + times*o.Log, Segment: h.Segment + times*o.Segment,
	}
}

// fixedBytes is what files take whatever is live, by kind.
type fixedBytes struct {
	Active   int64 `json:"active"`   // the segment that is written to
	Prepared int64 `json:"prepared"` // the next one
	Pooled   int64 `json:"pooled"`   // freed ones that are used again
	Manifest int64 `json:"manifest"`
}

func (f *fixedBytes) total() int64 { return f.Active + f.Prepared + f.Pooled + f.Manifest }

// engineWritten is what the engine wrote to the device, by cause, in bytes.
type engineWritten struct {
	Log         int64   `json:"log"`
	LogPadding  int64   `json:"log_padding"`
	LogPrewrite int64   `json:"log_prewrite"`
	LogFooters  int64   `json:"log_footers"`
	Flush       int64   `json:"flush"`
	GC          int64   `json:"gc"`
	Compaction  []int64 `json:"compaction"` // by the level written to
	Manifest    int64   `json:"manifest"`
}

func (w *engineWritten) merges() (n int64) {
	for _, x := range w.Compaction {
		n += x
	}
	return n
}

func (w *engineWritten) total() int64 {
	return w.Log + w.LogPadding + w.LogPrewrite + w.LogFooters + w.Flush + w.GC + w.Manifest + w.merges()
}

// add returns w with times the bytes of o.
func (w engineWritten) add(o engineWritten, times int64) engineWritten {
	sum := engineWritten{
		Log: w.Log + times*o.Log, LogPadding: w.LogPadding + times*o.LogPadding, LogPrewrite: w.LogPrewrite + times*o.LogPrewrite,
		LogFooters: w.LogFooters + times*o.LogFooters, Flush: w.Flush + times*o.Flush, GC: w.GC + times*o.GC,
		Manifest: w.Manifest + times*o.Manifest, Compaction: make([]int64, max(len(w.Compaction), len(o.Compaction))),
	}
	copy(sum.Compaction, w.Compaction)
	for i, n := range o.Compaction {
		sum.Compaction[i] += times * n
	}
	return sum
}

// idle reports whether no flush, merge or collection runs.
func (s *engineStats) idle() bool {
	return s.FlushesNow == 0 && s.CompactionsNow == 0 && !s.CollectingNow
}

// trouble says what keeps figures from being those of a healthy store.
func (s *engineStats) trouble() error {
	switch {
	case s.ReadOnly != "":
		return fmt.Errorf("the store is read-only: %s", s.ReadOnly)
	case s.FlushesFailed+s.CompactionsFailed+s.CollectionsFailed > 0:
		return fmt.Errorf("%d flushes failed (%s), %d merges (%s), %d collections (%s)", s.FlushesFailed, s.FlushError,
			s.CompactionsFailed, s.CompactionError, s.CollectionsFailed, s.CollectionError)
	}
	return nil
}

// counters is one look at everything that counts bytes.
type counters struct {
	engine  engineStats
	device  int64 // written to the device of the directory, by anyone
	process int64 // charged to the server by the kernel
	disk    int64 // that the directory takes
	// manifest is what the manifests of it take.
	manifest int64
}

func (c *counters) fixed() fixedBytes {
	l := &c.engine.Log
	return fixedBytes{Active: l.ActiveBytes, Prepared: l.PreparedBytes, Pooled: l.PooledBytes, Manifest: c.manifest}
}

// source is a server on this machine.
type source struct {
	stats string // URL of /stats
	pid   int
	dir   string
}

func (s source) look(ctx context.Context) (c counters, err error) {
	// What the file system still holds in memory belongs to what was done until
	// now.
	err = SyncDirectory(s.dir)
	var errs [5]error
	c.engine, errs[0] = s.engine(ctx)
	c.device, errs[1] = DeviceBytes(s.dir)
	c.process, errs[2] = ProcessBytes(s.pid)
	c.disk, errs[3] = s.disk()
	c.manifest, errs[4] = manifestBytes(s.dir)
	return c, errors.Join(err, errors.Join(errs[:]...))
}

func (s source) disk() (int64, error) { return DirectoryBytes(s.dir) }

// manifestBytes returns what the manifests in a store's directory take.
func manifestBytes(dir string) (n int64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	for _, name := range names {
		one, e := DirectoryBytes(name)
		if !errors.Is(e, fs.ErrNotExist) { // the next one has taken over
			n, err = n+one, errors.Join(err, e)
		}
	}
	return n, err
}

func (s source) engine(ctx context.Context) (e engineStats, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.stats, nil)
	if err != nil {
		return e, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return e, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return e, fmt.Errorf("%s: %s", s.stats, resp.Status)
	}
	var page struct {
		Engine *engineStats `json:"engine"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || page.Engine == nil {
		return e, fmt.Errorf("%s: no statistics of an engine: %v", s.stats, err)
	}
	return *page.Engine, nil
}
