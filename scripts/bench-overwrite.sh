#!/bin/bash
# What is written, and what the directory takes, while data is overwritten:
# write and space amplification of a server that starts empty, is loaded once and
# then overwritten W times (see docs/measuring.md).
#
#   scripts/bench-overwrite.sh [VALUE_SIZE[:NAME=VALUE[,NAME=VALUE...]]...]
#
# The default is 1024 512 256 64 8. A run may differ from the others by the first
# four of the names below, as 64:SHAPE=leveled or 1024:ZIPF=0.99,SPACE_AMP=2.
#
# Environment, all optional:
#   SHAPE        --key-shape, default lazy
#   SPACE_AMP    --space-amp, default 1.5
#   ZIPF         skew of the overwrites, default 0 (uniform)
#   KEY_FORMAT   hex (hashed) or decimal (dense), default hex
#   SCALE        times the live data and the write cache of every size, default 1
#   LIVE         live keys and values in MB: 4000 for values of 1024, else 1000
#   WRITE_CACHE  in KiB: 100 MiB for values of 1024, else 26 MiB
#   MEM_QUOTA    --mem-quota, default 1GiB
#   W            how often the data is overwritten: 3 for values of 1024, else 2
#   WINDOWS      rows, default 8
#   CONNS, PIPELINE  of the client, default 16 and 64
#   FLAGS        more flags of the server
#   IDLE         0: do not wait for what an idle store does
#   BENCH_DIR    where data goes: the disk that is measured, and that nothing else should use
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/bench-lib.sh

scale="${SCALE:-1}"
runs=("$@")
[ ${#runs[@]} -gt 0 ] || runs=(1024 512 256 64 8)
key_bytes=12

idle=()
[ "${IDLE:-1}" != 0 ] || idle=(--skip-idle)

echo "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work")"
for run in "${runs[@]}"; do
    value="${run%%:*}" differs=()
    [ "$value" = "$run" ] || IFS=, read -ra differs <<<"${run#*:}"
    shape="${SHAPE:-lazy}" space_amp="${SPACE_AMP:-1.5}" zipf="${ZIPF:-0}" key_format="${KEY_FORMAT:-hex}"
    for pair in ${differs[@]+"${differs[@]}"}; do
        case "$pair" in
            SHAPE=*) shape="${pair#*=}" ;;
            SPACE_AMP=*) space_amp="${pair#*=}" ;;
            ZIPF=*) zipf="${pair#*=}" ;;
            KEY_FORMAT=*) key_format="${pair#*=}" ;;
            *) echo "bench-overwrite: $run: $pair is not SHAPE, SPACE_AMP, ZIPF or KEY_FORMAT" >&2; exit 2 ;;
        esac
    done
    live=1000 cache=$((26 * 1024)) w=2
    if [ "$value" -ge 1024 ]; then
        live=4000 cache=$((100 * 1024)) w=3
    fi
    live="${LIVE:-$live}" cache="${WRITE_CACHE:-$cache}" w="${W:-$w}"
    keys="$(between 1 1e12 "$live * 1e6 * $scale / ($value + $key_bytes)")"
    cache="$(between 1024 1e9 "$cache * $scale")"
    # Files shrink with the data: a few of full size would be most of it.
    segment="$(between 4096 131072 "131072 * $scale")"
    table="$(between 1024 32768 "32768 * $scale")"
    flags=(--durable=false --mem-quota "${MEM_QUOTA:-1GiB}" --write-cache "${cache}KiB" --max-item-size 64KiB
        --segment-size "${segment}KiB" --sstable-size "${table}KiB"
        --key-shape "$shape" --space-amp "$space_amp" ${FLAGS:-})
    free_port
    http=$port
    start_server "$work/data" --http-port "$http" "${flags[@]}"
    echo
    echo "values of $value B, keys of $key_bytes B ($key_format), $keys of them, zipf $zipf, overwritten $w times;" \
        "server ${flags[*]}"
    echo
    if ! "$bench" overwrite --addr "127.0.0.1:$port" --stats "http://127.0.0.1:$http/stats" --server-pid "$pid" --dir "$work/data" \
        --keys "$keys" --key-size "$key_bytes" --key-format "$key_format" --value-size "$value" --zipf "$zipf" \
        --times "$w" --windows "${WINDOWS:-8}" --conns "${CONNS:-16}" --pipeline "${PIPELINE:-64}" ${idle[@]+"${idle[@]}"}; then
        tail -n 20 "$work/server.log" >&2
        unclean=1
    fi
    end_server
    rm -rf "$work/data"
done
[ "$unclean" -eq 0 ] || { echo "some runs failed: see above" >&2; exit 1; }
