// Package bench drives a memcached-protocol server over sockets and reports
// what it saw, and measures the disk that a durable server is limited by.
//
//	            loop (one thread, one epoll set)
//	            +--------------------------------------------+
//	keys ---->  | conn: [request|request|..] -> write(2)      | --> server
//	values -->  |       window of --pipeline open requests    |
//	            |       read(2) -> count headers, check bytes | <-- answers
//	            +--------------------------------------------+
//	                       | counters, histograms
//	                       v
//	            Report: rate, errors by status, percentiles, CPU
//
// The loop is closed: a connection keeps up to a window of requests open and
// refills it when half of it has been answered. A latency runs from the moment
// a batch of requests was made to the read that returned the answer, so the
// time spent waiting in socket buffers is part of it.
//
// A rate is worth nothing when answers were errors or misses, or when the
// bytes were wrong: those are counted apart, and Report.Trouble names them.
package bench
