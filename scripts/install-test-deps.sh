#!/bin/bash
# Installs, if missing, the Debian packages that tests with real clients need, or
# those given. Quiet when there is nothing to do.
#
#   scripts/install-test-deps.sh [COMMAND=PACKAGE...]
set -euo pipefail

missing=()
need() { # command package
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}
if [ $# -gt 0 ]; then
    for pair in "$@"; do
        need "${pair%%=*}" "${pair#*=}"
    done
else
    need memccat libmemcached-tools
    need memcached memcached # the peer of comparisons
    need strace strace
    # Debian's own interpreter sees Debian's modules; another python3 in PATH may not.
    /usr/bin/python3 -c 'import bmemcached' >/dev/null 2>&1 || missing+=(python3 python3-binary-memcached)
fi

[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "no apt-get here; please install: ${missing[*]}" >&2
    exit 1
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "neither root nor sudo; please install: ${missing[*]}" >&2
        exit 1
    fi
    root=(sudo)
fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
apt() {
    if ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >"$log" 2>&1 </dev/null; then
        echo "apt-get $* failed:" >&2
        cat "$log" >&2
        exit 1
    fi
}
apt update
apt install --no-install-recommends "${missing[@]}"
