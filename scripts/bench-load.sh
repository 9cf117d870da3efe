#!/bin/bash
# Load of the embedded engine beside Pebble: rates, processor time, bytes
# written by cause and bytes on disk, with values of 1 KB and of 8 B, from one
# and from eight writers (see bench/peers).
#
#   scripts/bench-load.sh [SIZE [ROUNDS [VALUE_SIZES]]]     default 1GB 3 1024,8
#
# Each load is a process of its own in a directory of its own; engines take
# turns, and figures are medians. Nothing is printed for a load that had an
# error or that reads a document back wrong. BENCH_DIR says which disk is used.
set -euo pipefail
cd "$(dirname "$0")/.."
work="$(mktemp -d "${BENCH_DIR:-/var/tmp}/fluxkv-bench.XXXXXX")"
pid=""
cleanup() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true # its loads end with it
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

(cd bench/peers && go build -o "$work/peers" .)
echo "$(nproc) cores, kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work")"
echo
"$work/peers" compare --dir "$work" --size "${1:-1GB}" --rounds "${2:-3}" --value-sizes "${3:-1024,8}" &
pid=$!
status=0
wait "$pid" || status=$?
pid=""
exit "$status"
