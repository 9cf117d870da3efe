# The commands of the project. `make run` and `make test` need Go, make and, for
# the clients that the tests drive, apt-get.

GO          ?= go
T           ?= 60s
TESTFLAGS   ?= -timeout 18m
BENCH       ?= .
DATA        ?= data
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Packages in which goroutines meet; `make check` runs their tests with -race.
CONCURRENT = ./internal/... ./memtable/... ./wal/... ./lsm/... ./mcbp/...

.PHONY: run test check build bench fuzz clean

# run: build the server and start it on ./data (RUNFLAGS="--port 11311" adds flags)
run: build
	@exec ./bin/fluxkv --data-dir $(DATA) $(RUNFLAGS)

# test: everything a change must pass; installs the clients the tests drive, if missing
test:
	@scripts/install-test-deps.sh
	@$(GO) test $(TESTFLAGS) ./...

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

# bench: Go benchmarks of the packages, with allocations (BENCH=regexp selects)
bench:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

# fuzz: run every fuzzer for T, one after another
fuzz:
	@scripts/fuzz.sh $(T)

# clean: remove what build made; ./data is yours and stays
clean:
	rm -rf bin
