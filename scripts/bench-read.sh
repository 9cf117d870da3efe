#!/bin/bash
# What GETs cost that memory does not answer, and those that it does: device reads,
# rates, processor time and resident memory (see docs/measuring.md).
#
#   scripts/bench-read.sh [PART...]     default: reads depth io cache peers
#
#   reads   device reads a GET, with less memory than data
#   depth   one connection beside what fio gets from the device
#   io      I/O engines, direct and buffered, at a peak and at a moderate load
#   cache   the document cache: all hits, half of the keys
#   peers   the embedded engine beside Pebble and RocksDB with the same memory
#
# Environment, all optional:
#   SCALE        times all data, and the memory of peers and of the document cache, default 1
#   KEYS_8B, KEYS_1K    documents of 8 B and of 1 KB, default 20000000 and 4000000
#   PEERS_8B, PEERS_1K  those of peers, default 30000000 and 3000000
#   T            time of a row in whole seconds, default 10s
#   WARMUP       time before it, default 20s
#   ROUNDS       of depth and of peers, default 3 and 2
#   LEAVES       share of the leaves that the smallest block cache has room for, default 0.04
#   REFILL       of the connection of depth: fluxbench --refill, default 1
#   MINUTES      the longest that everything may take, default 40 for each part, 120 for peers
#   FLAGS        more flags of the server
#   PEERS_FLAGS  more flags of peers compare-read
#   BENCH_DIR    where data goes: the disk that is measured, and that nothing else should use
#
# Exit status: 0 when every row is valid and every limit holds, otherwise 1.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(reads depth io cache peers)
minutes=0
for part in "${parts[@]}"; do
    case "$part" in
        reads | depth | io | cache) minutes=$((minutes + 40)) ;;
        peers) minutes=$((minutes + 120)) ;;
        *) echo "bench-read: $part is not reads, depth, io, cache or peers" >&2; exit 2 ;;
    esac
done
source scripts/bench-lib.sh

scale="${SCALE:-1}" t="${T:-10s}" warmup="${WARMUP:-20s}" key_bytes=12 mib=1048576
minutes="${MINUTES:-$minutes}"
bound=$((SECONDS + minutes * 60))
keys_8b="$(between 1000 1e12 "${KEYS_8B:-20000000} * $scale")"
keys_1k="$(between 1000 1e12 "${KEYS_1K:-4000000} * $scale")"
# Files shrink with the data: a few of full size would be most of it.
segment="$(between 4096 131072 "131072 * $scale")"
table="$(between 1024 32768 "32768 * $scale")"
write_cache=$((16 * mib)) buffers=$((8 * mib)) # of each server that reads
invalid=0 missed=0

out_of_time() {
    echo "NOT DONE: the $minutes minutes are over (MINUTES=)" >&2
    exit 1
}

# bounded COMMAND...: runs it, and ends it and everything when the time is over. It
# has a process group of its own, which ends with this script; and signals are
# handled while it runs.
job=""
bounded() {
    local left=$((bound - SECONDS)) status=0
    [ "$left" -gt 0 ] || out_of_time
    timeout -k 5 "$left" "$@" &
    job=$!
    wait "$job" || status=$?
    job=""
    [ "$SECONDS" -lt "$bound" ] || out_of_time
    return "$status"
}
trap '[ -z "$job" ] || kill -KILL -- "-$job" 2>/dev/null || true; cleanup' EXIT

# serve DIR QUOTA FLAGS...: starts a server, waits until it rests, and sets $reads
# and $served, flags of fluxbench that name it, and $stats
serve() {
    local dir=$1 quota=$2 http
    shift 2
    free_port
    http=$port
    start_server "$dir" --http-port "$http" --durable=false --mem-quota "$quota" --max-item-size 64KiB \
        --segment-size "${segment}KiB" --sstable-size "${table}KiB" "$@" ${FLAGS:-}
    served=(--addr "127.0.0.1:$port")
    stats="http://127.0.0.1:$http/stats"
    reads=("${served[@]}" --stats "$stats" --server-pid "$pid" --dir "$dir" --quota "$quota")
    bounded "$bench" settle --stats "$stats" --quiet 1s --timeout 10m >/dev/null
}

# serve_reads DIR BLOCK_CACHE DOCUMENT_CACHE FLAGS...: one that has so many bytes
# of memory for these, and no more
serve_reads() {
    local dir=$1 blocks=$2 documents=$3 caches=() quota
    shift 3
    # Beside a document cache, tables keep a sixteenth of the quota.
    [ "$documents" = 0 ] || blocks="$(between "$blocks" 1e12 "($write_cache + $buffers + $documents) / 14")"
    ! knows block-cache || caches+=(--block-cache "$blocks")
    [ "$documents" = 0 ] || caches+=(--cache-size "$documents")
    quota=$((write_cache + buffers + blocks + documents))
    serve "$dir" "$((quota > 32 * mib ? quota : 32 * mib))" --write-cache "$write_cache" ${caches[@]+"${caches[@]}"} "$@"
}

# row NAME FLAGS...: measures and prints a row, counts what is wrong with it, and
# leaves its figures in $work/line
row() {
    local status=0
    rm -f "$work/line"
    bounded "$bench" read "${reads[@]}" --line-file "$work/line" --key-size "$key_bytes" --runtime "$t" --name "$@" || status=$?
    case "$status" in
        0) ;;
        3) missed=$((missed + 1)) ;;
        1) invalid=$((invalid + 1)) ;;
        *) exit "$status" ;;
    esac
}

head_of_table() {
    echo
    "$bench" read --head
}

# write_all DIR VALUE KEYS: sets every key once and waits until all is in tables
write_all() {
    local dir=$1 value=$2 keys=$3 quota=$((2048 * mib)) began=$SECONDS loaded peak verdict=valid
    serve "$dir" "$quota"
    if ! bounded "$bench" run "${served[@]}" --load --runtime 0 --key-size "$key_bytes" --value-size "$value" --keys "$keys" \
        --conns 16 --pipeline 256 >"$work/load" 2>&1; then
        cat "$work/load" >&2
        exit 1
    fi
    loaded=$((SECONDS - began))
    bounded "$bench" settle --stats "$stats" --empty --timeout 30m >/dev/null
    peak="$(awk '/^VmHWM/ { printf "%d", $2 / 1024 }' "/proc/$pid/status")"
    if [ "$peak" -gt $((quota / mib + 150)) ]; then
        verdict="MISSED: more than $((quota / mib + 150))"
        missed=$((missed + 1))
    fi
    echo "$keys documents of $value B: written in $loaded s, at rest after $((SECONDS - began)) s, $(du -sm "$dir" | cut -f1) MiB;" \
        "resident memory reached $peak MiB: $verdict"
    stop_server
    weigh "$dir" "$value" "$keys"
}

# weigh DIR VALUE KEYS: sets leaves_NAME and pinned_NAME, the bytes of tables, and
# of filters and indexes in memory when every table is open
weigh() {
    local sizes name leaves pinned
    name="$(basename "$1")"
    serve_reads "$1" $((1024 * mib)) 0
    bounded "$bench" run "${served[@]}" --runtime 3s --key-size "$key_bytes" --value-size "$2" --keys "$3" --conns 16 --pipeline 64 >/dev/null
    sizes="$(bounded "$bench" settle --stats "$stats" --quiet 1s)"
    leaves="$(cut -f1 <<<"$sizes")" pinned="$(cut -f3 <<<"$sizes")"
    stop_server
    declare -g "leaves_$name=$leaves" "pinned_$name=$pinned"
    echo "tables of $name: $((leaves / 1024)) KiB, filters and indexes $((pinned / 1024)) KiB"
}

# Loaded once, for all parts.
need_8b() { [ -d "$work/8b" ] || write_all "$work/8b" 8 "$keys_8b"; }
need_1k() { [ -d "$work/1k" ] || write_all "$work/1k" 1024 "$keys_1k"; }

# Block caches, in bytes: of PINNED and LEAVES. Leaves have a sixteenth at least.
no_leaves() { between $mib 1e12 "$1 * 16 / 15 + 65536"; }
few_leaves() { between "$(no_leaves "$1")" 1e12 "$1 + ${LEAVES:-0.04} * $2"; }
all_leaves() { between $((4 * mib)) 1e12 "$1 + 1.5 * $2 + 4 * $mib"; }

serve_8b() { serve_reads "$work/8b" "$(few_leaves "$pinned_8b" "$leaves_8b")" 0; }
serve_1k() { serve_reads "$work/1k" "$(all_leaves "$pinned_1k" "$leaves_1k")" 0; }

part_reads() {
    local shape=(--conns 16 --pipeline 32 --warmup "$warmup")
    echo "## Device reads of a GET"
    echo
    need_8b
    need_1k
    head_of_table
    serve_8b
    row "8 B, few leaves cached" --keys "$keys_8b" --value-size 8 "${shape[@]}" --reads-max 1.05 --leaf-hits-max 0.1
    stop_server
    serve_1k
    row "1 KB, key index cached" --keys "$keys_1k" --value-size 1024 "${shape[@]}" --reads-max 1.02
    stop_server
    serve_reads "$work/1k" "$(no_leaves "$pinned_1k")" 0
    row "1 KB, filters and indexes cached" --keys "$keys_1k" --value-size 1024 "${shape[@]}" --reads-max 2.02
    stop_server
    echo
    write_all "$work/1k" 1024 "$keys_1k"
    head_of_table
    serve_1k
    row "1 KB, all overwritten, key index cached" --keys "$keys_1k" --value-size 1024 "${shape[@]}" --reads-max 1.02
    stop_server
}

# fio_reads DEPTH FILE: adds reads/s, p50 in us and us of CPU a read to FILE
fio_reads() {
    bounded fio --name=reads --filename="$work/fio" --rw=randread --bs=4k --direct=1 --ioengine=io_uring --iodepth="$1" --norandommap \
        --time_based --runtime="${t%s}" --output-format=terse --terse-version=3 >"$work/fio.out"
    awk -F';' '$1 == 3 { for (i = 1; i <= NF; i++) if ($i ~ /^50\.000000%=/) { split($i, p, "="); break }
        user = $88; system_ = $89; sub("%", "", user); sub("%", "", system_); rate = $8
        printf "%.0f\t%.1f\t%.2f\n", rate, p[2], (rate > 0 ? (user + system_) * 1e4 / rate : 0); found = 1 }
        END { exit !found }' "$work/fio.out" >>"$2"
}

# need_fio MIB: a file of which every block was written
need_fio() {
    scripts/install-test-deps.sh fio=fio
    [ -e "$work/fio" ] || bounded fio --name=fill --filename="$work/fio" --rw=write --bs=1M --direct=1 --end_fsync=1 --refill_buffers \
        --size="${1}M" --output="$work/fio.out"
}

# check WORDS X OP LIMIT: says whether a ratio holds
check() {
    if awk "BEGIN { exit !($2 $3 $4) }"; then
        echo "$1: $2, wanted $3 $4: reached"
    else
        echo "$1: $2, wanted $3 $4: MISSED"
        missed=$((missed + 1))
    fi
}

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", (b > 0 ? a / b : 0) }'; }

# note FILE: adds the figures of the last row to FILE
note() { [ ! -e "$work/line" ] || cat "$work/line" >>"$1"; }

part_depth() {
    local rounds="${ROUNDS:-3}" r name get device cpu sum what
    echo "## One connection, and the device alone"
    echo
    need_8b
    need_1k
    need_fio "$(du -sm "$work/1k" | cut -f1)"
    echo "fio: io_uring, direct random reads of 4 KiB in a file of $(du -sm "$work/fio" | cut -f1) MiB; by turns, $rounds rounds"
    head_of_table
    for ((r = 0; r < rounds; r++)); do
        for name in 8b 1k; do
            if [ "$name" = 8b ]; then
                what=("8 B" --keys "$keys_8b" --value-size 8 --conns 1)
            else
                what=("1 KB" --keys "$keys_1k" --value-size 1024 --conns 1)
            fi
            "serve_$name"
            fio_reads 128 "$work/fio.128.$name"
            row "${what[@]}" --pipeline 128 --refill "${REFILL:-1}" --warmup "$warmup" --seed $((r + 1))
            note "$work/get.128.$name"
            fio_reads 1 "$work/fio.1.$name"
            row NOOP --workload noop --conns 1 --pipeline 1 --warmup 1s
            note "$work/noop.1.$name"
            row "${what[@]}" --pipeline 1 --warmup 1s --seed $((r + 50))
            note "$work/get.1.$name"
            stop_server
        done
    done
    echo
    for name in 8b 1k; do
        touch "$work/get.128.$name" "$work/noop.1.$name" "$work/get.1.$name"
        get="$(median "$work/get.128.$name" 1)" cpu="$(median "$work/get.128.$name" 4)" device="$(median "$work/fio.128.$name" 1)"
        echo "$name, 128 in flight: fio $device reads/s with $(median "$work/fio.128.$name" 3) us of CPU each; $get GETs/s with $cpu us," \
            "so that the server alone uses $(ratio "$(between 0 1e12 "$get * $cpu / 1000")" 1000) of $(nproc) cores"
        check "$name, GETs/s over reads/s" "$(ratio "$get" "$device")" ">=" 0.85
        sum="$(awk -v a="$(median "$work/fio.1.$name" 2)" -v b="$(median "$work/noop.1.$name" 2)" 'BEGIN { print a + b }')"
        echo "$name, one in flight: p50 of fio $(median "$work/fio.1.$name" 2) us, of a NOOP $(median "$work/noop.1.$name" 2) us," \
            "of a GET $(median "$work/get.1.$name" 2) us"
        check "$name, p50 of a GET over that of a read and a NOOP" "$(ratio "$(median "$work/get.1.$name" 2)" "$sum")" "<=" 1.25
    done
    rm -f "$work/fio"
}

part_io() {
    local engines=(default) engine direct rate="" blocks held args name
    echo "## I/O engines"
    echo
    need_1k
    ! knows io-engine || engines=(uring aio pread)
    blocks="$(all_leaves "$pinned_1k" "$leaves_1k")"
    # What a server may take beside its quota is all that the page cache can have.
    memory_group $((write_cache + buffers + blocks + 150 * mib))
    held=$group group=""
    if [ -z "$held" ]; then
        echo "INVALID: no control group to be had, so the page cache has all the memory of the machine"
        invalid=$((invalid + 1))
    fi
    echo "1 KB, key index cached; a server with its page cache has its quota and 150 MiB"
    head_of_table
    for direct in true false; do
        for engine in "${engines[@]}"; do
            name="$engine, direct" args=(--direct-io="$direct")
            [ "$direct" = true ] || name="$engine, buffered"
            [ "$engine" = default ] || args+=(--io-engine "$engine")
            bounded "$bench" drop --dir "$work/1k"
            group=$held
            serve_reads "$work/1k" "$blocks" 0 "${args[@]}"
            group=""
            args=(--keys "$keys_1k" --value-size 1024 --conns 32 --pipeline 8)
            [ "$direct" = true ] || args+=(--buffered)
            row "$name, peak" "${args[@]}" --warmup "$warmup"
            # One rate for all, so that latencies can be compared.
            if [ -z "$rate" ] && [ -e "$work/line" ]; then
                rate="$(between 10 1e9 "0.4 * $(cut -f1 "$work/line")")"
            fi
            row "$name, moderate" "${args[@]}" --rate "${rate:-10}" --seed 2
            stop_server
        done
    done
}

part_cache() {
    local value dir keys loaded cache shape blocks name zipf
    echo "## Document cache"
    echo
    if ! knows cache-size; then
        echo "INVALID: the server has no --cache-size"
        invalid=$((invalid + 1))
        return
    fi
    need_8b
    need_1k
    head_of_table
    cache="$(between $((8 * mib)) 1e12 "64 * $mib * $scale")"
    for value in 8 1024; do
        if [ "$value" = 8 ]; then
            dir="$work/8b" loaded=$keys_8b name="8 B" blocks="$(few_leaves "$pinned_8b" "$leaves_8b")"
        else
            dir="$work/1k" loaded=$keys_1k name="1 KB" blocks="$(no_leaves "$pinned_1k")"
        fi
        # A document in the cache takes about 100 B beside its value.
        keys="$(between 1000 "$loaded" "0.6 * $cache / ($value + 100)")"
        serve_reads "$dir" "$blocks" "$cache"
        row "$name, all fit" --keys "$keys" --value-size "$value" --conns 32 --pipeline 8 --warmup "$warmup" --reads-max 0.01
        for shape in 1x1 112x128 112x512; do
            row "$name, all fit" --keys "$keys" --value-size "$value" --conns "${shape%x*}" --pipeline "${shape#*x}" --warmup 1s --reads-max 0.01
        done
        stop_server
        keys="$(between 2000 "$loaded" "2 * $cache / ($value + 100)")"
        for zipf in 0 0.99; do
            serve_reads "$dir" "$blocks" "$cache"
            row "$name, half fits, zipf $zipf" --keys "$keys" --value-size "$value" --zipf "$zipf" --conns 32 --pipeline 8 --warmup "$warmup"
            stop_server
        done
    done
}

# peers_of VALUE DOCUMENTS MEMORY
peers_of() {
    local memory status=0 args=()
    memory="$(between $((64 * mib)) 1e12 "$3 * $scale")"
    memory_group "$memory"
    [ -z "$group" ] || args=(--cgroup "$group")
    mkdir -p "$work/stores"
    bounded "$work/peers" compare-read --dir "$work/stores" --documents "$2" --value-size "$1" --memory "$memory" --rounds "${ROUNDS:-2}" \
        --runtime "$t" --warmup "$t" ${args[@]+"${args[@]}"} ${PEERS_FLAGS:-} || status=$?
    [ "$status" -eq 0 ] || missed=$((missed + 1))
    [ -z "$group" ] || remove_group "$group"
    group=""
    rm -rf "$work/stores"
    echo
}

part_peers() {
    echo "## The embedded engine beside others with the same memory"
    echo
    scripts/install-test-deps.sh db_bench=rocksdb-tools fio=fio
    rm -rf "$work/8b" "$work/1k" # the space is needed
    (cd bench/peers && go build -o "$work/peers" .)
    peers_of 1024 "$(between 1000 1e12 "${PEERS_1K:-3000000} * $scale")" $((600 * mib))
    peers_of 8 "$(between 1000 1e12 "${PEERS_8B:-30000000} * $scale")" $((400 * mib))
}

echo "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), kernel $(uname -r), $(go version | cut -d' ' -f3), data in $(dirname "$work");" \
    "at most $minutes minutes"
for part in "${parts[@]}"; do
    echo
    began=$SECONDS
    "part_$part"
    echo
    echo "$part took $((SECONDS - began)) s"
done
if [ $((invalid + missed + unclean)) -gt 0 ]; then
    echo "$invalid rows are invalid, $missed limits missed or comparisons failed: see above" >&2
    exit 1
fi
