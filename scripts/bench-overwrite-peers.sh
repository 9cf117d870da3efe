#!/bin/bash
# Overwrites of the embedded engine beside Pebble and RocksDB: rates, the worst
# second, stalls, latencies of batches, processor time, bytes written and bytes
# on disk (see bench/peers and docs/measuring.md).
#
#   scripts/bench-overwrite-peers.sh [FLAGS of `peers compare-overwrite`]
#
# Each run is a process of its own in a directory of its own, and the engines
# take turns. A run may take 15 minutes (--run-max). BENCH_DIR says which disk is
# used; nothing else should use it. RocksDB is driven by db_bench, Debian's
# rocksdb-tools; without it: --engines fluxkv,pebble.
set -euo pipefail
cd "$(dirname "$0")/.."
work="$(mktemp -d "${BENCH_DIR:-/var/tmp}/fluxkv-bench.XXXXXX")"
pid=""
cleanup() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true # its runs end with it
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

(cd bench/peers && go build -o "$work/peers" .)
echo "$(nproc) cores, kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work")"
echo
"$work/peers" compare-overwrite --dir "$work" "$@" &
pid=$!
status=0
wait "$pid" || status=$?
pid=""
exit "$status"
