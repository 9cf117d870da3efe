# Shared by the bench scripts: builds the programs, starts and ends servers,
# keeps all data in one directory that disappears at exit. Source it from the
# root of the checkout with bash and `set -euo pipefail`.

# BENCH_DIR is where data goes; it must be on the disk to be measured.
work="$(mktemp -d "${BENCH_DIR:-/var/tmp}/fluxkv-bench.XXXXXX")"
server="$work/fluxkv"
bench="$work/fluxbench"
pids=() # started here and not ended yet
unclean=0

end() { # PID: ends a process that this script started
    local pid=$1 left=()
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    for p in "${pids[@]}"; do
        [ "$p" = "$pid" ] || left+=("$p")
    done
    pids=(${left[@]+"${left[@]}"})
}

cleanup() {
    local p
    for p in ${pids[@]+"${pids[@]}"}; do
        kill -KILL "$p" 2>/dev/null || true
        wait "$p" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

go build -o "$work/" ./cmd/fluxkv ./cmd/fluxbench

free_port() { # sets $port to one that nobody listens on
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
    done
}

# start_server DIR FLAGS...: starts fluxkv on DIR; sets $pid, $port, and
# $ready_us, the microseconds from exec to the line that says it listens.
start_server() {
    local dir=$1 line began
    shift
    rm -f "$work/output"
    mkfifo "$work/output"
    began=${EPOCHREALTIME/[.,]/}
    "$server" --port 0 --data-dir "$dir" "$@" >"$work/output" 2>&1 &
    pid=$!
    pids+=("$pid")
    exec 4<"$work/output"
    ready_line=""
    while IFS= read -r -t 120 line <&4; do
        echo "$line" >>"$work/server.log"
        if [[ $line =~ "ready on 127.0.0.1:"([0-9]+) ]]; then
            port=${BASH_REMATCH[1]}
            ready_us=$((${EPOCHREALTIME/[.,]/} - began))
            ready_line=$line
            break
        fi
    done
    if [ -z "$ready_line" ]; then
        echo "the server did not listen:" >&2
        tail -n 20 "$work/server.log" >&2 || true
        exit 1
    fi
    cat <&4 >>"$work/server.log" & # so that the server never waits for a reader
    drain=$!
    exec 4<&-
}

end_server() {
    end "$pid"
    wait "$drain" 2>/dev/null || true
}

# measure FILE FLAGS...: adds one line of figures to FILE; a run with errors or
# misses is named, and fails the script at its end.
measure() {
    local file=$1
    shift
    if ! "$bench" run --line --key-size "${key_bytes:-8}" "$@" >>"$file" 2>"$work/trouble"; then
        echo "NOT CLEAN: fluxbench run $*" >&2
        cat "$work/trouble" >&2
        unclean=1
    fi
}

median() { # FILE COLUMN: the median of a column of tab-separated lines
    cut -f "$2" "$1" | sort -g | awk '{ v[NR] = $1 } END {
        if (NR == 0) print 0; else if (NR % 2) print v[(NR + 1) / 2]; else print (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# between MIN MAX FORMULA: the formula as a whole number, kept between the two
between() { awk "BEGIN { x = $3; printf \"%.0f\", (x < $1 ? $1 : (x > $2 ? $2 : x)) }"; }
