# Shared by the bench scripts: builds the programs, starts and ends servers,
# keeps all data in one directory that disappears at exit. Source it from the
# root of the checkout with bash and `set -euo pipefail`.

# BENCH_DIR is where data goes; it must be on the disk to be measured.
work="$(mktemp -d "${BENCH_DIR:-/var/tmp}/fluxkv-bench.XXXXXX")"
server="$work/fluxkv"
bench="$work/fluxbench"
pids=() # started here and not ended yet
groups=() # control groups made here
group=""  # the one that start_server puts servers into, if any
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
    for p in ${groups[@]+"${groups[@]}"}; do remove_group "$p"; done
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
    ${group:+"$work/in-group" "$group"} "$server" --port 0 --data-dir "$dir" "$@" >"$work/output" 2>&1 &
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

# in-group GROUP COMMAND...: becomes the command, inside a control group
cat >"$work/in-group" <<'END'
#!/bin/sh
echo $$ >"$1/cgroup.procs" || exit 1
shift
exec "$@"
END
chmod +x "$work/in-group"

# memory_group BYTES: makes a control group with a limit of memory, which counts
# page cache, too, and sets $group; it is empty where there is none to be had.
memory_group() {
    local root dir
    group=""
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup /sys/fs/cgroup/unified; do
        if [ ! -e "$root/memory.limit_in_bytes" ]; then # not of version 1
            grep -qw memory "$root/cgroup.controllers" 2>/dev/null || continue
            echo +memory 2>/dev/null >"$root/cgroup.subtree_control" || continue
        fi
        dir="$root/$(basename "$work").${#groups[@]}"
        mkdir "$dir" 2>/dev/null || continue
        groups+=("$dir")
        for limit in memory.limit_in_bytes memory.max; do
            [ -e "$dir/$limit" ] || continue
            if echo "$1" 2>/dev/null >"$dir/$limit"; then
                group=$dir
                return 0
            fi
        done
    done
}

remove_group() { # GROUP: removes it when its last process has gone
    local i
    for ((i = 0; i < 50; i++)); do
        [ -d "$1" ] || return 0
        ! rmdir "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    echo "control group $1 is left" >&2
}

knows() { # FLAG: whether the server has it
    grep -q -- "  --$1 " <<<"$("$server" --help)"
}

stop_server() { # ends it in order, so that the next one has nothing to replay
    local i
    kill -TERM "$pid" 2>/dev/null || true
    for ((i = 0; i < 300; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    end_server
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
