#!/bin/bash
# How long durable SETs take while data is overwritten at half of the highest rate,
# with merges and collections going on: a durable server that starts empty is
# loaded, overwritten, driven as fast as it answers, and then in an open loop
# (see docs/measuring.md).
#
#   scripts/bench-overwrite-latency.sh
#
# Environment, all optional:
#   VALUE_SIZE   bytes of a value, default 1024
#   LIVE         live keys and values in MB, default 2000
#   WRITE_CACHE  in KiB, default 100 MiB
#   SCALE        times LIVE and WRITE_CACHE, default 1
#   MEM_QUOTA    --mem-quota, default 1GiB
#   W            how often the data is overwritten before, default 1
#   MAX_T        time in which the highest rate is measured, default 60s
#   T            time in which latencies are measured, default 3m
#   WARMUP       time at that rate before, default 15s
#   SHARE        of the highest rate, default 0.5
#   BURST        requests that become due together, default 8
#   CONNS, PIPELINE  of the client, default 16 and 64
#   FLAGS        more flags of the server
#   BENCH_DIR    where data goes: the disk that is measured, and that nothing else should use
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/bench-lib.sh

scale="${SCALE:-1}" value="${VALUE_SIZE:-1024}" key_bytes=12
keys="$(between 1 1e12 "${LIVE:-2000} * 1e6 * $scale / ($value + $key_bytes)")"
cache="$(between 1024 1e9 "${WRITE_CACHE:-102400} * $scale")"
# Files shrink with the data: a few of full size would be most of it.
segment="$(between 4096 131072 "131072 * $scale")"
table="$(between 1024 32768 "32768 * $scale")"
flags=(--durable=true --mem-quota "${MEM_QUOTA:-1GiB}" --write-cache "${cache}KiB" --max-item-size 64KiB
    --segment-size "${segment}KiB" --sstable-size "${table}KiB" ${FLAGS:-})

echo "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work")"
free_port
http=$port
start_server "$work/data" --http-port "$http" "${flags[@]}"
echo "values of $value B, keys of $key_bytes B, $keys of them; server ${flags[*]}"
echo
if ! "$bench" latency --addr "127.0.0.1:$port" --stats "http://127.0.0.1:$http/stats" --server-pid "$pid" --dir "$work/data" \
    --keys "$keys" --key-size "$key_bytes" --value-size "$value" --times "${W:-1}" --max-runtime "${MAX_T:-60s}" --runtime "${T:-3m}" \
    --warmup "${WARMUP:-15s}" --share "${SHARE:-0.5}" --burst "${BURST:-8}" --conns "${CONNS:-16}" --pipeline "${PIPELINE:-64}"; then
    tail -n 20 "$work/server.log" >&2
    exit 1
fi
