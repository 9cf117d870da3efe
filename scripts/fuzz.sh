#!/bin/bash
# Runs every fuzzer of the module for the given time, one after another.
#   scripts/fuzz.sh 60s
set -euo pipefail
cd "$(dirname "$0")/.."
# Minimizing takes nearly all the time of a run by default.
duration="${1:-60s}"
count=0
for package in $(go list ./...); do
    names="$(go test -list '^Fuzz' "$package")" # a package that does not build ends the run
    for fuzzer in $(grep '^Fuzz' <<<"$names" || true); do
        echo "== $package $fuzzer, $duration"
        go test -run '^$' -fuzz "^$fuzzer\$" -fuzztime "$duration" -fuzzminimizetime 10x "$package"
        count=$((count + 1))
    done
done
echo "$count fuzzers ran for $duration each"
[ "$count" -gt 0 ]
