# The commands of the project. `make run` and `make test` need Go, make and, for
# the clients that the tests drive, apt-get.

GO          ?= go
T           ?= 60s
BENCH_T     ?= 3s
ROUNDS      ?= 3
SIZE        ?= 1GB
VALUE_SIZES ?= 1024,8
KILLS       ?= 50
SCALE       ?= 1
OVERWRITE_SIZES ?= 1024 512 256 64 8
OVERWRITES  ?= 3
WRITERS     ?= 8
BATCH       ?= 128
LATENCY_T   ?= 3m
VALUE_SIZE  ?= 1024
READ_PARTS  ?= reads depth io cache peers
ENGINES     ?= fluxkv,pebble,rocksdb
TESTFLAGS   ?= -timeout 18m
BENCH       ?= .
DOCS_1K     ?= 2000000
DOCS_8B     ?= 5000000
LARGE_QUOTA ?= 256MiB
LARGE_CACHE ?= 64MiB
LARGE_KILLS ?= 2
LARGE_FLAGS ?=
SPACE_MB    ?= 4000
REWRITES    ?= 10000
SPACE_FLAGS ?=
DATA        ?= data
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Packages in which goroutines meet; `make check` runs their tests with -race.
CONCURRENT = ./internal/... ./memtable/... ./wal/... ./sstable/... ./compaction/... ./lsm/... ./mcbp/...

.PHONY: run test check build bench bench-go bench-restart bench-load bench-overwrite bench-overwrite-peers bench-overwrite-latency bench-read kill test-large test-space fuzz mutants soak clean

# run: build the server and start it on ./data (RUNFLAGS="--port 11311" adds flags)
run: build
	@exec ./bin/fluxkv --data-dir $(DATA) $(RUNFLAGS)

# test: everything a change must pass; installs the clients the tests drive, if missing
test:
	@scripts/install-test-deps.sh
	@FLUXKV_REQUIRE_CLIENTS=1 $(GO) test $(TESTFLAGS) ./...

# check: format, vet, static analysis, tidy module file, race tests of concurrent packages
check:
	@unformatted="$$(gofmt -l .)"; if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags invariants ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	$(GO) test -race -short -timeout 30m $(CONCURRENT)

# build: bin/ with one program for each folder of cmd/
build:
	@mkdir -p bin
	@$(GO) build -o bin/ ./cmd/...

# bench: the server beside the disk and beside memcached, BENCH_T a run, ROUNDS rounds
bench: build
	@scripts/install-test-deps.sh
	@scripts/bench-first.sh $(BENCH_T) $(ROUNDS)

# bench-restart: time from SIGKILL to ready with a log of 300 MB, ROUNDS times
bench-restart: build
	@scripts/bench-restart.sh $(ROUNDS)

# bench-load: the engine beside Pebble, SIZE of documents loaded, ROUNDS times each, values of VALUE_SIZES bytes
bench-load:
	@scripts/bench-peers.sh compare --size $(SIZE) --rounds $(ROUNDS) --value-sizes $(VALUE_SIZES)

# bench-overwrite: write and space amplification of overwrites, values of OVERWRITE_SIZES bytes, SCALE times the data
bench-overwrite:
	@SCALE=$(SCALE) scripts/bench-overwrite.sh $(OVERWRITE_SIZES)

# bench-overwrite-latency: how long durable SETs take while data is overwritten at half of the highest rate, measured for LATENCY_T
bench-overwrite-latency:
	@SCALE=$(SCALE) T=$(LATENCY_T) scripts/bench-overwrite-latency.sh

# bench-overwrite-peers: overwrites of the embedded engine beside Pebble and RocksDB: SIZE of documents, overwritten OVERWRITES
# times by WRITERS in batches of BATCH, ROUNDS runs of each of ENGINES
bench-overwrite-peers:
	@case ",$(ENGINES)," in *,rocksdb,*) scripts/install-test-deps.sh db_bench=rocksdb-tools ;; esac
	@scripts/bench-peers.sh compare-overwrite --size $(SIZE) --times $(OVERWRITES) --rounds $(ROUNDS) --writers $(WRITERS) --batch $(BATCH) \
		--value-size $(VALUE_SIZE) --engines $(ENGINES) $(PEERS_FLAGS)

# bench-read: what GETs cost that memory does not answer, and those that it does, beside the device and other engines; the parts
# are READ_PARTS, with SCALE times the data
bench-read:
	@SCALE=$(SCALE) scripts/bench-read.sh $(READ_PARTS)

# bench-go: Go benchmarks of the packages, with allocations (BENCH=regexp selects)
bench-go:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

# kill: KILLS rounds of SIGKILL under load with each set of flags, each followed by a check of every acknowledged write
kill:
	FLUXKV_KILL_ROUNDS=$(KILLS) $(GO) test -count=1 -run 'TestKill$$' -v -timeout 60m ./cmd/fluxkv

# test-large: more documents than fit in memory, each read back after load, restart and SIGKILL; TMPDIR says where
test-large:
	FLUXKV_LARGE_1K=$(DOCS_1K) FLUXKV_LARGE_8B=$(DOCS_8B) FLUXKV_LARGE_QUOTA=$(LARGE_QUOTA) FLUXKV_LARGE_CACHE=$(LARGE_CACHE) \
	FLUXKV_LARGE_ROUNDS=$(LARGE_KILLS) FLUXKV_LARGE_FLAGS="$(LARGE_FLAGS)" \
		$(GO) test -count=1 -run 'TestLarge$$' -v -timeout 3h ./cmd/fluxkv

# test-space: what a store must give back by itself: of SPACE_MB that are deleted, or expire, and of one document written REWRITES times
test-space:
	FLUXKV_SPACE_MB=$(SPACE_MB) FLUXKV_SPACE_REWRITES=$(REWRITES) FLUXKV_SPACE_FLAGS="$(SPACE_FLAGS)" \
		$(GO) test -count=1 -run 'TestSpace' -v -timeout 3h ./cmd/fluxkv

# fuzz: run every fuzzer for T, one after another
fuzz:
	@scripts/fuzz.sh $(T)

# mutants: deliberate defects, each of which the crash, kill and fault loops must notice
mutants:
	$(GO) test -v -count 1 ./internal/mutant

# soak: random tests with new seeds for T; from T=1h on, first the loops with every recovery cut at every call
soak:
	@scripts/soak.sh $(T)

# clean: remove what build made; ./data is yours and stays
clean:
	rm -rf bin
