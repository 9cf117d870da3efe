#!/bin/bash
# The embedded engine beside others: `compare` loads (rates, processor time, bytes
# written by cause and on disk), `compare-overwrite` overwrites (the worst second,
# stalls and latencies, too; see bench/peers and docs/measuring.md).
#
#   scripts/bench-peers.sh compare|compare-overwrite [FLAGS of that]
#
# Each run is a process of its own in a directory of its own, the engines take
# turns, and figures are medians. Nothing is printed for a run that had an error.
# BENCH_DIR says which disk is used; nothing else should use it. RocksDB is driven
# by db_bench, Debian's rocksdb-tools; without it: --engines fluxkv,pebble.
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
"$work/peers" "${1:?want compare or compare-overwrite}" --dir "$work" "${@:2}" &
pid=$!
status=0
wait "$pid" || status=$?
pid=""
exit "$status"
