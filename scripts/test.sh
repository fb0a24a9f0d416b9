#!/usr/bin/env bash
# Lint, types and all tests in an environment of their own; what is given goes to pytest: bash scripts/test.sh -k beam
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

make_environment .venv-test '.[test]'
python=.venv-test/bin/python
"$python" -m ruff check mtformer tests scripts
"$python" -m ruff format --check mtformer tests scripts
"$python" -m mypy
# A process for each core, up to four, of one thread each: more threads than cores wait for each other most of the time.
export OMP_NUM_THREADS=1
exec "$python" -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile "$@"
