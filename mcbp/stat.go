package mcbp

import (
	"os"
	"runtime"
	"strconv"
	"time"

	"fluxkv/lsm"
)

// statTextMax cuts the text of one statistic, so that it stays below the 349
// bytes that libmemcached has room for, its name included.
const statTextMax = 300

// stat answers one packet a statistic (key = name, value = text) and an empty
// one behind the last.
func (p *pipeline) stat(s *session) {
	p.tally[cmdStat]++
	// What this pass counted so far belongs to the answer.
	p.srv.counters.add(&p.tally)
	switch group := string(p.f.key); group {
	case "":
		p.generalStats()
	case "settings":
		p.settingsStats()
	case "reset":
		p.srv.counters.reset()
	default:
		p.refuse(p.f.Opcode, p.f.Opaque, StatusNotFound)
		return
	}
	p.succeed()
}

func (p *pipeline) statText(name, value string) {
	p.out = appendPair(p.out, p.f.Opcode, StatusSuccess, p.f.Opaque, []byte(name), []byte(value))
}

func (p *pipeline) statUint(name string, n uint64) {
	p.statText(name, strconv.FormatUint(n, 10))
}

func (p *pipeline) statInt(name string, n int64) {
	p.statText(name, strconv.FormatInt(n, 10))
}

// generalStats has the names that clients and test suites read, then the
// engine's own.
func (p *pipeline) generalStats() {
	srv := p.srv
	p.inEngine = true
	engine := srv.db.Stats()
	p.inEngine = false
	p.statInt("pid", int64(os.Getpid()))
	p.statInt("uptime", int64(time.Since(srv.started)/time.Second))
	p.statInt("time", srv.now().Unix())
	p.statText("version", Version)
	p.statInt("pointer_size", strconv.IntSize)
	p.statInt("threads", int64(runtime.GOMAXPROCS(0)))
	p.statInt("curr_connections", srv.conns.Load())
	for i, name := range counterNames {
		p.statUint(name, srv.counters[i].Load())
	}
	p.statUint("cmd_touch", 0)
	p.statUint("evictions", 0)
	p.engineStats(&engine)
}

func (p *pipeline) settingsStats() {
	o := &p.srv.opts
	p.statInt("maxconns", int64(o.MaxConns))
	p.statText("domain_socket", p.srv.socketPath())
	p.statText("evictions", "off")
	p.statText("cas_enabled", "yes")
	p.statText("flush_enabled", "yes")
	p.statText("auth_enabled_sasl", "no")
	p.statText("binding_protocol", "binary")
	p.statInt("item_size_max", int64(o.MaxItemBytes))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// engineStats has memcached's names for what the engine knows, as near as its
// notions come, then the engine's own under the names of /stats.
func (p *pipeline) engineStats(e *lsm.Stats) {
	p.statInt("curr_items", e.Entries+e.TableEntries) // versions, tombstones included
	p.statInt("total_items", e.Writes)
	p.statInt("bytes", e.WriteCacheUsed)
	p.statInt("limit_maxbytes", e.MemQuota)

	p.statText("durable", yesNo(e.Durable))
	if e.ReadOnly != "" {
		p.statText("read_only", e.ReadOnly[:min(len(e.ReadOnly), statTextMax)])
	}
	p.statUint("visible_seqno", uint64(e.VisibleSeqno))
	p.statUint("durable_seqno", uint64(e.DurableSeqno))
	p.statUint("clear_seqno", uint64(e.ClearSeqno))
	p.statInt("vbuckets", int64(e.VBuckets))
	p.statInt("kvstores", int64(e.KVStores))
	p.statInt("user_bytes", e.UserBytes)
	p.statInt("compression_tried_documents", e.Compression.Tried)
	p.statInt("compression_kept_documents", e.Compression.Kept)
	p.statInt("compression_raw_bytes", e.Compression.Raw)
	p.statInt("compression_stored_bytes", e.Compression.Stored)
	c := &e.DocumentCache
	p.statInt("document_cache_limit", c.Limit)
	p.statInt("document_cache_bytes", c.Bytes)
	p.statInt("document_cache_documents", c.Documents)
	p.statInt("document_cache_hits", c.Hits)
	p.statInt("document_cache_negative_hits", c.NegativeHits)
	p.statInt("document_cache_misses", c.Misses)
	p.statInt("document_cache_misses_newer", c.MissesNewer)
	p.statInt("document_cache_fills", c.Fills)
	p.statInt("document_cache_refused_fills", c.Refused)
	p.statInt("document_cache_refreshed", c.Refreshed)
	p.statInt("document_cache_dropped", c.Dropped)
	p.statInt("document_cache_too_large", c.TooLarge)
	p.statInt("document_cache_evicted", c.Evicted)
	p.statInt("document_cache_ghost_hits", c.GhostHits)
	p.statInt("document_reads", e.DocumentReads)
	p.statInt("corrupt_reads", e.CorruptReads)
	p.statInt("update_retries", e.UpdateRetries)
	p.statInt("write_cache_used", e.WriteCacheUsed)
	p.statInt("write_cache_limit", e.WriteCacheLimit)
	p.statInt("memtables", int64(e.Memtables))
	p.statInt("tables", int64(e.Tables))
	p.statInt("table_bytes", e.TableBytes)
	p.statInt("table_entries", e.TableEntries)
	p.statInt("tables_open", int64(e.TablesOpen))
	p.statInt("tables_fenced", int64(e.TablesFenced))
	p.statInt("table_memory", e.TableMemory)
	p.statInt("runs_max", int64(e.RunsMax))
	p.statInt("log_bytes", e.LogBytes)
	p.statInt("garbage_documents", e.GarbageKnown)
	p.statInt("block_reads", e.BlockReads)
	p.statInt("index_reads", e.IndexReads)
	p.statInt("block_cache_limit", e.BlockCache.Limit)
	p.statInt("block_cache_bytes", e.BlockCache.Bytes)
	p.statInt("block_cache_data_hits", int64(e.BlockCache.Hits[0]))
	p.statInt("block_cache_index_hits", int64(e.BlockCache.Hits[1]))
	p.statInt("block_cache_misses", int64(e.BlockCache.Misses))
	p.statInt("device_reads", int64(e.Reads.Reads))
	p.statText("io_engine", e.IOEngine)
	p.statInt("read_runs_under_way", p.srv.rolls.Load())
	p.statInt("flushes", e.Flushes)
	p.statInt("flushes_failed", e.FlushesFailed)
	if e.FlushError != "" {
		p.statText("flush_error", e.FlushError[:min(len(e.FlushError), statTextMax)])
	}
	p.statInt("compactions", e.Compactions)
	p.statInt("compactions_failed", e.CompactionsFailed)
	if e.CompactionError != "" {
		p.statText("compaction_error", e.CompactionError[:min(len(e.CompactionError), statTextMax)])
	}
	p.statInt("compaction_fenced_tables", int64(e.CompactionFenced))
	p.statInt("collections", e.Collections)
	p.statInt("collections_failed", e.CollectionsFailed)
	if e.CollectionError != "" {
		p.statText("collection_error", e.CollectionError[:min(len(e.CollectionError), statTextMax)])
	}
	p.statInt("gc_fenced_segments", int64(e.GCFenced))
	p.statInt("allocated_bytes", e.Allocated)
	p.statInt("live_bytes", e.Live)
	w := &e.Written
	p.statInt("written_log", w.Log)
	p.statInt("written_log_padding", w.LogPadding)
	p.statInt("written_log_prewrite", w.LogPrewrite)
	p.statInt("written_log_footers", w.LogFooters)
	p.statInt("written_flush", w.Flush)
	p.statInt("written_gc", w.GC)
	merged := int64(0)
	for _, n := range w.Compaction {
		merged += n
	}
	p.statInt("written_compaction", merged)
	p.statInt("written_manifest", w.Manifest)
	p.statInt("slowed_writes", e.Slowed)
	p.statInt("slowed_nanoseconds", int64(e.SlowedTime))
	p.statInt("stalled_writes", e.Stalled)
	p.statInt("stalled_nanoseconds", int64(e.StalledTime))
	p.statInt("stalled_now", e.StalledNow)
	p.statInt("paced_writes", e.Paced)
	p.statInt("paced_nanoseconds", int64(e.PacedTime))
	p.statInt("space_rate", e.SpaceRate)
	if e.StallCause != "" {
		p.statText("stall_cause", e.StallCause)
	}
	p.statInt("rejected_writes", e.Rejected)
	p.statInt("disk_full_writes", e.DiskFull)
	p.statInt("recovered_records", e.Recovery.Records)
	p.statInt("recovered_bytes", e.Recovery.Bytes)
	p.statInt("recovery_nanoseconds", int64(e.Recovery.Duration))
}
