#!/bin/bash
# Durable SET beside the disk, async SET and in-memory GET beside memcached.
#
#   scripts/bench-first.sh [TIME [ROUNDS]]     default 3s 3
#
# A and B take turns in each round (the disk or the peer first, then fluxkv),
# and every figure is the median of the rounds. Each fluxkv SET run has a
# server and a directory of its own. BENCH_DIR says which disk is used.
set -euo pipefail
cd "$(dirname "$0")/.."
time="${1:-3s}"
rounds="${2:-3}"
source scripts/bench-lib.sh

memory=(--mem-quota "${BENCH_MEM_QUOTA:-12GiB}" --write-cache "${BENCH_WRITE_CACHE:-10GiB}")

us() { awk -v x="$1" 'BEGIN { printf((x < 10 ? "%.2f" : "%.0f"), x) }'; }
thousands() { awk -v x="$1" 'BEGIN { if (x >= 999500) printf "%.2fM", x / 1e6; else printf "%.1fK", x / 1e3 }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf("%.2f", a / b); else printf("-") }'; }

echo "$(nproc) cores, kernel $(uname -r), $(go version | cut -d' ' -f3), $rounds rounds of $time, data in $(dirname "$work")"
echo
echo "Durable SET, keys of 8 bytes, values of 8 bytes; the disk does synced direct 4 KiB overwrites, one in flight."
echo
echo "| shape | disk: writes/s; p50 us | fluxkv: SETs/s | to the disk | p50 / p99 us | server CPU us/SET |"
echo "|---|---|---|---|---|---|"
for shape in 1x1 8x1 32x1 32x8 112x128; do
    for ((r = 0; r < rounds; r++)); do
        "$bench" device --line --dir "$work" --runtime "$time" >>"$work/device.$shape"
        start_server "$work/data" "${memory[@]}"
        measure "$work/durable.$shape" --addr "127.0.0.1:$port" --server-pid "$pid" --workload set \
            --conns "${shape%x*}" --pipeline "${shape#*x}" --runtime "$time" --warmup 500ms --seed "$((r + 1))"
        end_server
        rm -rf "$work/data"
    done
    d="$(median "$work/device.$shape" 1)"
    s="$(median "$work/durable.$shape" 1)"
    echo "| $shape | $(thousands "$d"); $(us "$(median "$work/device.$shape" 2)") | $(thousands "$s") | $(ratio "$s" "$d") |" \
        "$(us "$(median "$work/durable.$shape" 2)") / $(us "$(median "$work/durable.$shape" 3)") | $(us "$(median "$work/durable.$shape" 4)") |"
done

if ! command -v memcached >/dev/null; then
    echo "memcached is missing: run scripts/install-test-deps.sh" >&2
    exit 1
fi
free_port
peer_port=$port
memcached -u "$(id -un)" -l 127.0.0.1 -p "$peer_port" -U 0 -t 2 -m 4096 -c 4096 >>"$work/peer.log" 2>&1 &
peer=$!
pids+=("$peer")
until (exec 3<>"/dev/tcp/127.0.0.1/$peer_port") 2>/dev/null; do
    kill -0 "$peer" 2>/dev/null || { cat "$work/peer.log" >&2; exit 1; }
    sleep 0.05
done

deep=(--conns 112 --pipeline 128 --runtime "$time" --warmup 500ms)
for ((r = 0; r < rounds; r++)); do
    measure "$work/set.peer" --addr "127.0.0.1:$peer_port" --server-pid "$peer" --workload set "${deep[@]}" --seed "$((r + 1))"
    start_server "$work/data" "${memory[@]}" --durable=false
    measure "$work/set.fluxkv" --addr "127.0.0.1:$port" --server-pid "$pid" --workload set "${deep[@]}" --seed "$((r + 1))"
    end_server
    rm -rf "$work/data"
done
start_server "$work/data" "${memory[@]}" --durable=false
"$bench" run --key-size 8 --addr "127.0.0.1:$peer_port" --load --runtime 0 --conns 8 >/dev/null
"$bench" run --key-size 8 --addr "127.0.0.1:$port" --load --runtime 0 --conns 8 >/dev/null
for ((r = 0; r < rounds; r++)); do
    measure "$work/get.peer" --addr "127.0.0.1:$peer_port" --server-pid "$peer" --workload get "${deep[@]}" --seed "$((r + 1))"
    measure "$work/get.fluxkv" --addr "127.0.0.1:$port" --server-pid "$pid" --workload get "${deep[@]}" --seed "$((r + 1))"
done
end_server

echo
echo "112x128, 1,000,000 keys of 8 bytes, values of 8 bytes, beside memcached $(memcached -V | cut -d' ' -f2) -t 2; CPU in us an operation."
echo
echo "| | memcached/s; CPU | fluxkv/s; CPU | ratio | fluxkv p50 / p99 us |"
echo "|---|---|---|---|---|"
for what in set get; do
    m="$(median "$work/$what.peer" 1)"
    f="$(median "$work/$what.fluxkv" 1)"
    name="in-memory GET"
    [ "$what" = set ] && name="async SET"
    echo "| $name | $(thousands "$m"); $(us "$(median "$work/$what.peer" 4)") | $(thousands "$f"); $(us "$(median "$work/$what.fluxkv" 4)") |" \
        "$(ratio "$f" "$m") | $(us "$(median "$work/$what.fluxkv" 2)") / $(us "$(median "$work/$what.fluxkv" 3)") |"
done
if [ "$unclean" -ne 0 ]; then
    echo "some runs had errors or misses: see above" >&2
    exit 1
fi
