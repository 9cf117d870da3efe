#!/bin/bash
# Random tests with new seeds, round after round, for the given time:
#   scripts/soak.sh 30m
# A round is the model test with more steps, the linearizability test, readers and
# writers under merges and collections with the race detector, and 2
# SIGKILLs of the built server under load for each set of flags. With 1h or more the exhaustive crash,
# fault and kill loops come first. A failure ends the soak and shows its seed.
set -euo pipefail
cd "$(dirname "$0")/.."
duration="${1:-30m}"
case "$duration" in
    *h) seconds=$((${duration%h} * 3600)) ;;
    *m) seconds=$((${duration%m} * 60)) ;;
    *s) seconds=${duration%s} ;;
    *) echo "soak: time $duration: want 90s, 30m or 2h" >&2; exit 2 ;;
esac
if [ "$seconds" -ge 3600 ]; then
    FLUXKV_SOAK=1 go test -v -count 1 -timeout 12h -run 'Loop|Rot' ./lsm
fi
rounds=0
until [ "$SECONDS" -ge "$seconds" ] && [ "$rounds" -gt 0 ]; do
    go test -count 1 -timeout 1h -run 'TestModel|TestLinear' ./lsm -rapid.checks=200
    FLUXKV_STRESS_ROUNDS=100 go test -race -count 1 -timeout 1h -run 'TestReadersAndWritersUnderGC' ./lsm
    FLUXKV_KILL_ROUNDS=2 go test -count 1 -timeout 1h -run 'TestKill$' ./cmd/fluxkv
    rounds=$((rounds + 1))
    echo "soak: round $rounds done after ${SECONDS}s"
done
