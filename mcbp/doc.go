// Package mcbp puts the memcached binary protocol in front of the engine.
//
//	client bytes     [GET][GET][SETQ][SETQ][NOOP][GE|      one read of a connection
//	one pass         └ GetMany ┘└── Apply ──┘└ now ┘└ waits for its rest
//	answer bytes     [hit][hit]              [NOOP]       one write, after one WaitDurable
//
// The codec (Header, Request, Response) knows no engine and serves clients
// too. A pass cuts the complete frames of a buffer into runs: consecutive
// reads become one lsm.GetMany, consecutive blind writes one lsm.Apply, and
// everything else runs alone, all in the order of arrival. A pass does not
// know how bytes arrive: it is handed a slice and returns how much of it is
// done, the answers, and the seqno that must be durable before they may leave.
//
// Reads at the end of the input that memory cannot answer are left under way
// (roll): the connection sends what is ready from the first request on, takes what
// has come meanwhile without waiting for it, and starts that too, so that one
// connection keeps a device as busy as it has requests open.
//
// # Order
//
// Answers leave in the order of the requests. A run of reads is started behind the
// one before it, at the same state of the store or a later one; everything that is
// no read runs when all reads before it have ended.
//
// # Bounds
//
// Nothing is allocated by a length that a client announces: a frame is judged
// by its header, a body that is too large or that belongs to a refused frame
// is skipped in small reads, and a buffer grows only as bytes arrive. A pass
// ends at 1 MiB of writes and at 8 MiB of answers. At most 8 runs and 1,024 keys of a
// connection are under way, with 8 MiB from the device for the first run and 1 MiB
// for each other one. A client that does not read
// its answers is not read from either, and is closed after a deadline; reads under
// way behind them let go of the store after 100 ms and are read again. An idle
// connection holds a goroutine and no buffer.
package mcbp
