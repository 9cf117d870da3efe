package mcbp

import "time"

// Stats is a snapshot of what the server counts since New, or since a client's
// STAT reset.
type Stats struct {
	Version     string        `json:"version"`
	Uptime      time.Duration `json:"uptime_nanoseconds"`
	Connections int64         `json:"curr_connections"`
	BufferBytes int64         `json:"buffer_bytes"` // large buffers in use

	TotalConnections    uint64 `json:"total_connections"`
	RejectedConnections uint64 `json:"rejected_connections"`

	Gets         uint64 `json:"cmd_get"`
	GetHits      uint64 `json:"get_hits"`
	GetMisses    uint64 `json:"get_misses"`
	Sets         uint64 `json:"cmd_set"`
	CASHits      uint64 `json:"cas_hits"`
	CASMisses    uint64 `json:"cas_misses"`
	CASBadval    uint64 `json:"cas_badval"`
	DeleteHits   uint64 `json:"delete_hits"`
	DeleteMisses uint64 `json:"delete_misses"`
	Flushes      uint64 `json:"cmd_flush"`
	Noops        uint64 `json:"cmd_noop"`
	Stats        uint64 `json:"cmd_stat"`
	ErrorAnswers uint64 `json:"error_answers"` // misses of GETs are none
	BytesRead    uint64 `json:"bytes_read"`
	BytesWritten uint64 `json:"bytes_written"`
	Passes       uint64 `json:"passes"`
}

// Stats returns the counters. It takes no lock.
func (s *Server) Stats() Stats {
	n := func(c counter) uint64 { return s.counters[c].Load() }
	return Stats{
		Version:     Version,
		Uptime:      time.Since(s.started),
		Connections: s.conns.Load(),
		BufferBytes: s.frames.Used() + s.buffers.Used(),

		TotalConnections:    n(totalConnections),
		RejectedConnections: n(rejectedConnections),

		Gets:         n(cmdGet),
		GetHits:      n(getHits),
		GetMisses:    n(getMisses),
		Sets:         n(cmdSet),
		CASHits:      n(casHits),
		CASMisses:    n(casMisses),
		CASBadval:    n(casBadval),
		DeleteHits:   n(deleteHits),
		DeleteMisses: n(deleteMisses),
		Flushes:      n(cmdFlush),
		Noops:        n(cmdNoop),
		Stats:        n(cmdStat),
		ErrorAnswers: n(answerErrors),
		BytesRead:    n(bytesRead),
		BytesWritten: n(bytesWritten),
		Passes:       n(passes),
	}
}
