#!/bin/bash
# Restart with a log of 300 MB: loads it, kills the server with SIGKILL, and
# times exec to the line that says it listens. In turn with that, the time Pebble
# takes to open a directory that holds as many documents of the same sizes in
# its log (see bench/peers).
#
#   scripts/bench-restart.sh [RUNS]     default 5
#
# Every restart is killed again, so each reads the same log; Pebble opens a
# fresh copy each time, since it turns its log into tables. Documents are
# counted and compared after the last one. Without a module proxy, and without
# the modules in the cache, Pebble cannot be built: its columns stay empty.
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${1:-5}"
source scripts/bench-lib.sh
key_bytes=16
log_bytes=300000000

peers="$work/peers"
if ! (cd bench/peers && go build -o "$peers" .) 2>"$work/peers.log"; then
    peers=""
    echo "WITHOUT PEBBLE: bench/peers cannot be built: $(tail -n 1 "$work/peers.log")" >&2
fi

seconds() { # VALUES...: the median of them, and all
    printf '%s\n' "$@" >"$work/times"
    echo "$(median "$work/times" 1) ($*)"
}

flags=(--mem-quota 2GiB --write-cache 1GiB)
echo "$(nproc) cores, kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work")"
echo
echo "| values | documents | log on disk | restart: median (all), seconds | pebble open: median (all), seconds | pebble/fluxkv |"
echo "|---|---|---|---|---|---|"
for value in 1024 100; do
    keys=$((log_bytes / (value + key_bytes + 4))) # 3 or 6 bytes of record, 8 of checksum where separated
    start_server "$work/data" "${flags[@]}"
    "$bench" run --addr "127.0.0.1:$port" --key-size "$key_bytes" --value-size "$value" --keys "$keys" \
        --load --runtime 0 --conns 16 >"$work/load" || { cat "$work/load" >&2; exit 1; }
    end_server
    size="$(du -sm "$work/data/log" | cut -f1)"
    same=(--engine pebble --key-size "$key_bytes" --value-size "$value" --documents "$keys")
    [ -z "$peers" ] || "$peers" restart "${same[@]}" --dir "$work/pebble"
    times=()
    opens=()
    for ((r = 0; r < runs; r++)); do
        start_server "$work/data" "${flags[@]}"
        times+=("$(awk -v us="$ready_us" 'BEGIN { printf "%.3f", us / 1e6 }')")
        [ "$r" -lt $((runs - 1)) ] || measure "$work/after" --addr "127.0.0.1:$port" --value-size "$value" --keys "$keys" \
            --workload get --verify --conns 16 --pipeline 64 --runtime 2s
        end_server
        [ -n "$peers" ] || continue
        cp -a "$work/pebble" "$work/copy"
        sync -f "$work/copy" # not written back while the clock runs
        opens+=("$("$peers" open "${same[@]}" --dir "$work/copy" --verify)")
        rm -rf "$work/copy"
    done
    rm -rf "$work/data" "$work/pebble"
    ours="$(seconds "${times[@]}")"
    theirs=-
    ratio=-
    if [ -n "$peers" ]; then
        theirs="$(seconds "${opens[@]}")"
        ratio="$(awk -v a="${theirs%% *}" -v b="${ours%% *}" 'BEGIN { printf "%.2f", a / b }')"
    fi
    echo "| $value B | $keys | ${size} MiB | $ours | $theirs | $ratio |"
done
[ "$unclean" -eq 0 ] || { echo "documents were missing or wrong: see above" >&2; exit 1; }
