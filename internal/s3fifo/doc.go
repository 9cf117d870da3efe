// Package s3fifo is a sharded cache of byte strings outside the Go heap that
// evicts by S3-FIFO.
//
//	            insert            used again              FIFO, used ones
//	tag ------> [small, 10 %] ---------------> [main .................] <-+
//	   |             | not used again            ^   |  |    go round      |
//	   |             v                           |   |  +-----------------+
//	   |        [ghost: 4 bytes each]  ----------+   v
//	   |                                 seen again  evicted
//	   +--High--> [high ......] goes round, evicts only beyond its share
//
// Memory of one shard, all of it counted against its limit:
//
//	data    [chunk: slots of one class][chunk: another class][free chunk] ...
//	slot    [header 48][bytes ..............][unused]
//	table   [fingerprint 32 | slot 32] ...   open addressing, doubled as it fills
//	ghosts  [16 fingerprints] ...            a cache line is a FIFO of its own
//
// The algorithm is that of Yang, Zhang, Qiu, Yue and Vigfusson, "FIFO queues
// are all you need for cache eviction", SOSP 2023. Objects have different sizes
// here, so queues are measured in bytes, and objects are evicted until a
// slot that fits is free; when eight evictions freed none, the emptiest chunk of
// another class is emptied (what has a free slot elsewhere moves there) and
// changes its class, so that a change of sizes does not strand memory.
//
// Objects of high priority have chunks of their own. They may take all but a
// sixteenth of the chunks: then, and when no chunk of low priority is left,
// they evict each other, oldest first and used ones later. Objects of low
// priority never push one out, unless no chunk is left for them at all.
//
// Two things are not in the paper: a pinned object at the end of a queue goes
// round, and the ghosts are a hash table of small FIFOs, about as many entries
// as the cache holds objects.
package s3fifo
