package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"fluxkv/lsm"
	"fluxkv/mcbp"
)

// config is what the flags say.
type config struct {
	port       uint16
	host       string
	unixSocket string
	dataDir    string
	httpPort   uint16

	vbuckets int
	kvstores int

	memQuota    size
	writeCache  size
	durable     bool
	asyncWindow time.Duration
	overload    choice
	inlineLimit size
	compression choice
	segmentSize size
	logAlign    size
	logInflight int
	directIO    bool

	flushers         int
	tableSize        size
	tableWriteBuffer size
	keyBlockSize     size
	bloomBits        int
	indexCompression choice
	cacheSize        size
	cachePolicy      choice

	compactors      int
	spaceAmp        float64
	keyShape        choice
	mergeShare      float64
	levelMultiplier int
	l0Tables        int
	baseLevelSize   size

	ioEngine      choice
	ioQueueDepth  int
	blockCache    size
	warmNewTables bool

	maxItemSize size
	maxConns    int

	version bool
}

// choice is one word of a few.
type choice struct {
	word  string
	words []string
}

func (c *choice) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return errors.New("want " + strings.Join(c.words, " or "))
	}
	c.word = text
	return nil
}

func (c *choice) String() string { return c.word }

// Type is part of pflag.Value.
func (c *choice) Type() string { return "word" }

// unitOf is the annotation that carries a flag's unit to docs/flags.md.
const unitOf = "unit"

// flagSet returns the flags with their defaults, which fill c.
func flagSet(c *config) *pflag.FlagSet {
	*c = config{
		memQuota:    1 << 30,
		inlineLimit: 255,
		compression: choice{word: "none", words: []string{"none", "snappy"}},
		segmentSize: 128 << 20,
		logAlign:    4096,
		maxItemSize: 20 << 20,
		cachePolicy: choice{word: "s3fifo", words: []string{"s3fifo"}},
		overload:    choice{word: "stall", words: []string{"stall", "reject"}},

		tableSize:        32 << 20,
		tableWriteBuffer: 1 << 20,
		keyBlockSize:     4 << 10,
		indexCompression: choice{word: "none", words: []string{"none", "snappy"}},

		keyShape:      choice{word: "lazy", words: []string{"lazy", "leveled"}},
		baseLevelSize: 64 << 20,

		ioEngine: choice{word: "auto", words: []string{"auto", "uring", "aio", "pread"}},
	}
	f := pflag.NewFlagSet("fluxkv", pflag.ContinueOnError)
	f.SortFlags = false
	unit := func(name, unit string) {
		if err := f.SetAnnotation(name, unitOf, []string{unit}); err != nil {
			panic(err) // a name that is not registered: a mistake in this function
		}
	}
	f.Uint16Var(&c.port, "port", 11210, "TCP port of the memcached binary protocol; 0 picks a free one, which the ready line names")
	unit("port", "port")
	f.StringVar(&c.host, "host", "127.0.0.1", "address to listen on, for the protocol and for HTTP; there is no authentication, so think before you leave the loopback interface")
	unit("host", "address")
	f.StringVar(&c.unixSocket, "unix-socket", "", "path of a unix socket to listen on as well; its file gets mode 0600")
	unit("unix-socket", "path")
	f.StringVar(&c.dataDir, "data-dir", "./data", "directory of the store; created when missing")
	unit("data-dir", "path")
	f.Uint16Var(&c.httpPort, "http-port", 0, "TCP port of the operators' pages: /stats as JSON, /debug/pprof/ for profiles; 0 is off")
	unit("http-port", "port")
	f.IntVar(&c.vbuckets, "vbuckets", 16, "partitions of the keys that the protocol sees, 1 to 32768; fixed when a store is created, and an existing store keeps its own when the flag is not given")
	unit("vbuckets", "count")
	f.IntVar(&c.kvstores, "kvstores", 16, "partitions of the engine, 1 to 16 and at most --vbuckets; fixed like --vbuckets")
	unit("kvstores", "count")
	f.Var(&c.memQuota, "mem-quota", "memory of the store outside the Go heap; the limits of the Go heap follow it unless GOGC or GOMEMLIMIT are set")
	unit("mem-quota", "size")
	f.Var(&c.writeCache, "write-cache", "memory for documents that are in no table yet, at most --mem-quota; 0 is a quarter of it. From 5/8 of it on the largest parts are flushed, above 3/4 writers slow down, and at it they meet --overload. More of it means fewer tables and a longer replay at restart")
	unit("write-cache", "size")
	f.Var(&c.cacheSize, "cache-size", "memory for documents that were read from the device, a part of --mem-quota that filters and indexes of tables do not have then; 0 is off. It pays where few documents take most of the reads and blocks of tables would keep too many others beside them; documents up to 32KiB are kept, larger ones up to 256KiB in a large cache")
	unit("cache-size", "size")
	f.Var(&c.cachePolicy, "cache-policy", "what the document cache gives up first: s3fifo, which keeps what is read again out of the way of what is read once")
	unit("cache-policy", "s3fifo")
	f.BoolVar(&c.durable, "durable", true, "answer a write when it survives a power cut; false: when it is in memory, and a kill or power cut loses at most --async-window")
	unit("durable", "true or false")
	f.DurationVar(&c.asyncWindow, "async-window", 10*time.Millisecond, "longest time that a write waits for its sync when nobody waits for it, up to 1m")
	unit("async-window", "duration, as 10ms or 1.5s")
	f.Var(&c.overload, "overload", "what a writer meets when the write cache is full and flush cannot keep up, or the disk is full and space is being reclaimed: stall (it waits) or reject (it is answered \"out of memory\" at once)")
	unit("overload", "stall or reject")
	f.Var(&c.inlineLimit, "inline-limit", "largest value that is kept beside its key, up to 64KiB; larger ones live in the log. Raising it saves reads and adds writing")
	unit("inline-limit", "size")
	f.Var(&c.compression, "compression", "compression of documents in the log, those above --inline-limit: none or snappy, which is kept for each document of 128 bytes or more that it makes 12 % smaller. It saves space and writing where documents repeat themselves, and costs processor time when they are written and when they are read from the device")
	unit("compression", "none or snappy")
	f.Var(&c.segmentSize, "segment-size", "cap on the size of a log segment, 4MiB to 2GiB")
	unit("segment-size", "size")
	f.Var(&c.logAlign, "log-align", "granularity of log writes, a power of two from 512 to 64KiB; below the device's physical block a torn write may damage what was acknowledged")
	unit("log-align", "size")
	f.IntVar(&c.logInflight, "log-inflight", 1, "log writes in flight at once, 1 to 8; more than 1 buys little on most devices")
	unit("log-inflight", "count")
	f.IntVar(&c.flushers, "flushers", 1, "memtables written to tables at once, 1 to 16; more empty the write cache sooner while there are processors to spare, at the cost of readers and writers that want them too")
	unit("flushers", "count")
	f.Var(&c.tableSize, "sstable-size", "size at which a table of the key index is cut, 1MiB to 2GiB; larger tables are fewer files, smaller ones give back their space in smaller steps")
	unit("sstable-size", "size")
	f.Var(&c.tableWriteBuffer, "sstable-write-buffer", "size of one write of a table, 4KiB to 64MiB; larger ones suit the device, and each flusher holds one in memory")
	unit("sstable-write-buffer", "size")
	f.Var(&c.keyBlockSize, "key-block-size", "size of a data block of a table, 512 to 1MiB, the unit of reading; larger blocks need less memory for their index and more of the device for each GET that is not cached")
	unit("key-block-size", "size")
	f.IntVar(&c.bloomBits, "bloom-bits", 10, "bits a key in the filters of tables of the last level, 6 more above it; 0 makes no filters, and a GET then reads a block of every table that may have the key. 10 bits let about 1 in 100 keys that a table does not have through")
	unit("bloom-bits", "count")
	f.Var(&c.indexCompression, "index-compression", "compression of a table's data blocks: none or snappy, which saves space where keys or inline values repeat themselves and costs processor time when they are written and read")
	unit("index-compression", "none or snappy")
	f.IntVar(&c.compactors, "compactors", 2, "merges of tables that run at once, 1 to 16; more keep up with more writing and empty the levels sooner, at the cost of processors and of the device for everyone else")
	unit("compactors", "count")
	f.Float64Var(&c.spaceAmp, "space-amp", 1.5, "space on disk, as a multiple of what is live, from which garbage is collected, 1.1 to 4. Less of it saves space, and what is still live is copied more often: every step towards 1 costs more writing than the one before, and writers are slowed to what collection can win")
	unit("space-amp", "ratio")
	f.Var(&c.keyShape, "key-shape", "how the key index is kept: lazy (runs side by side above one sorted level, the least writing) or leveled (every level but the first sorted: fewer tables for each GET to look into and less garbage in the index, for about three times its writing)")
	unit("key-shape", "lazy or leveled")
	f.Float64Var(&c.mergeShare, "key-merge-share", 0, "with --key-shape lazy: entries above the last level, as a share of those in it, from which they are merged into it, 0.01 to 2; 0 is by --space-amp. A smaller share finds garbage sooner and rewrites the last level more often")
	unit("key-merge-share", "ratio")
	f.IntVar(&c.levelMultiplier, "key-level-multiplier", 10, "with --key-shape leveled: how much larger each level is than the one above, 2 to 100; more makes fewer levels to read, and each merge rewrites more")
	unit("key-level-multiplier", "count")
	f.IntVar(&c.l0Tables, "l0-tables", 4, "with --key-shape leveled: flushes that lie side by side before they are merged into the first level, 1 to 64; more are merged together for less writing, and meanwhile each GET looks into all of them")
	unit("l0-tables", "count")
	f.Var(&c.baseLevelSize, "base-level-size", "with --key-shape leveled: size of the first sorted level of each of the --kvstores, at least 1MiB; larger saves a level, and merges of flushes into it rewrite more")
	unit("base-level-size", "size")
	f.BoolVar(&c.directIO, "direct-io", true, "bypass the page cache; where the file system cannot, the log says so and the page cache is used")
	unit("direct-io", "true or false")
	f.Var(&c.ioEngine, "io-engine", "what reads documents and blocks that memory does not have: uring (io_uring), aio (Linux native AIO) or pread (a pool of threads); auto is the best of them that a probe at start finds usable, which the log names")
	unit("io-engine", "word")
	f.IntVar(&c.ioQueueDepth, "io-queue-depth", 128, "reads in flight at the device, of all connections together, 1 to 1024; each gets its turn. More of them help devices that do more at once, and make each read wait longer")
	unit("io-queue-depth", "count")
	f.Var(&c.blockCache, "block-cache", "memory for filters, indexes and blocks of tables, at least 1MiB and at most what --mem-quota leaves; 0 is all that it leaves. Filters and indexes come first, blocks that were read have the rest")
	unit("block-cache", "size")
	f.BoolVar(&c.warmNewTables, "key-warm-new-tables", false, "put the data blocks of tables into the block cache as flushes and merges write them: GETs of what was just written find them there, and what was there before leaves sooner")
	unit("key-warm-new-tables", "true or false")
	f.Var(&c.maxItemSize, "max-item-size", "largest key + value, up to 64MiB; a larger one is answered \"too large\"")
	unit("max-item-size", "size")
	f.IntVar(&c.maxConns, "max-conns", 4096, "connections served at once; one more is closed as soon as it is accepted")
	unit("max-conns", "count")
	f.BoolVar(&c.version, "version", false, "print the version and exit")
	unit("version", "true or false")
	return f
}

// parse reads args into c. It returns an exit status and false when there is
// nothing to run.
func parse(c *config, args []string, stdout, stderr io.Writer) (lo lsm.Options, po mcbp.Options, status int, ok bool) {
	f := flagSet(c)
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "usage: fluxkv [flags]\n\nSizes: KiB MiB GiB = 1024, kB MB GB = 1000, bare = bytes. Durations: 10ms, 1.5s.\nExit status: 0 drained, 1 failed, 2 usage.\n\n%s", f.FlagUsages())
		return lo, po, exitDrained, false
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if err == nil {
		lo, po, err = c.options(f.Changed)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fluxkv: %v\n", err)
		return lo, po, exitUsage, false
	}
	return lo, po, 0, true
}

// options turns flags into the options of the engine and of the server, and
// names the flag of every value that one of them refuses.
func (c *config) options(given func(name string) bool) (lo lsm.Options, po mcbp.Options, err error) {
	lo = lsm.Options{
		MemQuota:           int64(c.memQuota),
		WriteCache:         int64(c.writeCache),
		DocumentCacheBytes: int64(c.cacheSize),
		NonDurable:         !c.durable,
		AsyncWindow:        c.asyncWindow,
		Reject:             c.overload.word == "reject",
		InlineLimit:        int(c.inlineLimit),
		SegmentBytes:       int64(c.segmentSize),
		LogAlign:           int(c.logAlign),
		LogInflight:        c.logInflight,
		BufferedIO:         !c.directIO,
		MaxItemBytes:       int(c.maxItemSize),

		CompressDocuments: c.compression.word == "snappy",

		Flushers:         c.flushers,
		TableBytes:       int64(c.tableSize),
		TableWriteBuffer: int(c.tableWriteBuffer),
		BlockBytes:       int(c.keyBlockSize),
		BloomBits:        c.bloomBits,
		CompressIndex:    c.indexCompression.word == "snappy",

		Compactors:      c.compactors,
		SpaceAmp:        c.spaceAmp,
		MergeShare:      c.mergeShare,
		Leveled:         c.keyShape.word == "leveled",
		LevelMultiplier: c.levelMultiplier,
		L0Tables:        c.l0Tables,
		BaseLevelBytes:  int64(c.baseLevelSize),

		BlockCacheBytes: int64(c.blockCache),
		WarmNewTables:   c.warmNewTables,
		IOQueueDepth:    c.ioQueueDepth,
	}
	if c.ioEngine.word != "auto" {
		lo.IOEngine = c.ioEngine.word
	}
	if given("vbuckets") {
		lo.VBuckets = c.vbuckets
	}
	if given("kvstores") {
		lo.KVStores = c.kvstores
	}
	// In Options 0 is the default.
	if c.inlineLimit == 0 {
		lo.InlineLimit = -1
	}
	if c.bloomBits == 0 {
		lo.BloomBits = -1
	}
	po = mcbp.Options{
		MaxConns:      c.maxConns,
		MaxItemBytes:  int(c.maxItemSize),
		BatchBytesMax: lo.BatchBytesMax(),
		BufferBytes:   max(128<<20, int64(c.memQuota)/4),
	}
	var errs []error
	// What Options would take for "the default" is a mistake as a flag.
	for _, z := range []struct {
		name string
		zero bool
	}{
		{"vbuckets", c.vbuckets == 0}, {"kvstores", c.kvstores == 0}, {"mem-quota", c.memQuota == 0},
		{"async-window", c.asyncWindow == 0}, {"segment-size", c.segmentSize == 0}, {"log-align", c.logAlign == 0},
		{"log-inflight", c.logInflight == 0}, {"flushers", c.flushers == 0}, {"sstable-size", c.tableSize == 0},
		{"sstable-write-buffer", c.tableWriteBuffer == 0}, {"key-block-size", c.keyBlockSize == 0}, {"max-item-size", c.maxItemSize == 0}, {"max-conns", c.maxConns == 0},
		{"compactors", c.compactors == 0}, {"space-amp", c.spaceAmp == 0}, {"key-level-multiplier", c.levelMultiplier == 0},
		{"l0-tables", c.l0Tables == 0}, {"io-queue-depth", c.ioQueueDepth == 0}, {"base-level-size", c.baseLevelSize == 0},
	} {
		if z.zero {
			errs = append(errs, fmt.Errorf("--%s 0: want at least 1", z.name))
		}
	}
	if c.bloomBits < 0 {
		errs = append(errs, fmt.Errorf("--bloom-bits %d: want 0, for no filters, or more", c.bloomBits))
	}
	if c.host == "" {
		errs = append(errs, errors.New("--host: want an address; 0.0.0.0 or :: is every one this machine has"))
	}
	if c.dataDir == "" {
		errs = append(errs, errors.New("--data-dir: want a path"))
	}
	if err := lo.Validate(); err != nil {
		errs = append(errs, flagError(err))
	} else if err := po.Validate(); err != nil { // it repeats limits of lo
		errs = append(errs, flagError(err))
	}
	return lo, po, errors.Join(errs...)
}

// optionFlags says which flag fills an option that Validate may name.
var optionFlags = map[string]string{
	"VBuckets":         "vbuckets",
	"KVStores":         "kvstores",
	"MemQuota":         "mem-quota",
	"WriteCache":       "write-cache",
	"AsyncWindow":      "async-window",
	"InlineLimit":      "inline-limit",
	"SegmentBytes":     "segment-size",
	"LogAlign":         "log-align",
	"LogInflight":      "log-inflight",
	"Flushers":         "flushers",
	"TableBytes":       "sstable-size",
	"TableWriteBuffer": "sstable-write-buffer",
	"BlockBytes":       "key-block-size",
	"BloomBits":        "bloom-bits",
	"Compactors":       "compactors",
	"SpaceAmp":         "space-amp",
	"MergeShare":       "key-merge-share",
	"LevelMultiplier":  "key-level-multiplier",
	"L0Tables":         "l0-tables",
	"BaseLevelBytes":   "base-level-size",
	"BlockCacheBytes":  "block-cache",
	"IOQueueDepth":     "io-queue-depth",
	"MaxItemBytes":     "max-item-size",
	"MaxConns":         "max-conns",

	"DocumentCacheBytes": "cache-size",
}

// flagError puts the names of flags where Validate has those of options.
func flagError(err error) error {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		words := strings.Split(line, " ")
		for j, w := range words {
			if name, ok := optionFlags[w]; ok {
				words[j] = "--" + name
			}
		}
		// What 0 is on the command line is -1 in Options.
		lines[i] = strings.Replace(strings.Join(words, " "), "want -1 to", "want 0 to", 1)
	}
	return errors.New(strings.Join(lines, "\n"))
}

func (c *config) address(port uint16) string {
	return net.JoinHostPort(c.host, strconv.Itoa(int(port)))
}
