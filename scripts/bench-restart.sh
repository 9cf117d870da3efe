#!/bin/bash
# Restart with a log of 300 MB: loads it, kills the server with SIGKILL, and
# times exec to the line that says it listens.
#
#   scripts/bench-restart.sh [RUNS]     default 5
#
# Every restart is killed again, so each reads the same log. Documents are
# counted and compared after the last one.
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${1:-5}"
source scripts/bench-lib.sh
key_bytes=16
log_bytes=300000000

flags=(--mem-quota 2GiB --write-cache 1GiB)
echo "$(nproc) cores, kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work")"
echo
echo "| values | documents | log on disk | restart: median (all), seconds |"
echo "|---|---|---|---|"
for value in 1024 100; do
    keys=$((log_bytes / (value + key_bytes + 4))) # 3 or 6 bytes of record, 8 of checksum where separated
    start_server "$work/data" "${flags[@]}"
    "$bench" run --addr "127.0.0.1:$port" --key-size "$key_bytes" --value-size "$value" --keys "$keys" \
        --load --runtime 0 --conns 16 >"$work/load" || { cat "$work/load" >&2; exit 1; }
    end_server
    size="$(du -sm "$work/data/log" | cut -f1)"
    times=()
    for ((r = 0; r < runs; r++)); do
        start_server "$work/data" "${flags[@]}"
        times+=("$(awk -v us="$ready_us" 'BEGIN { printf "%.3f", us / 1e6 }')")
        [ "$r" -eq $((runs - 1)) ] || end_server
    done
    measure "$work/after" --addr "127.0.0.1:$port" --value-size "$value" --keys "$keys" \
        --workload get --verify --conns 16 --pipeline 64 --runtime 2s
    end_server
    rm -rf "$work/data"
    printf '%s\n' "${times[@]}" >"$work/times"
    echo "| $value B | $keys | ${size} MiB | $(median "$work/times" 1) (${times[*]}) |"
done
[ "$unclean" -eq 0 ] || { echo "documents were missing or wrong: see above" >&2; exit 1; }
