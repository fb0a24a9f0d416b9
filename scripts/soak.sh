#!/usr/bin/env bash
# Serve a model to 1,000 clients on this machine for 10 minutes; print answers, latencies and the memory of the server:
#     bash scripts/soak.sh RUN [--clients 1000] [--minutes 10] [--queue 200]
# The exit code is 1 if a request got another answer than 200, or 503 with Retry-After, or none at all.
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: bash scripts/soak.sh RUN [--clients N] [--minutes N] [--queue N]" >&2; exit 2; }
run=$(realpath -- "$1")
shift
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment .venv-test '.[test]'
# Each client has a connection; the server has one too.
ulimit -n "$(ulimit -H -n)"
exec .venv-test/bin/python scripts/bench/soak.py "$run" "$@"
