#!/usr/bin/env bash
# Lint, check types and run all tests in a separate environment. Arguments are passed to pytest, such as -k beam.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

make_environment .venv-test '.[test]'
python=.venv-test/bin/python
"$python" -m ruff check mtformer tests scripts
"$python" -m ruff format --check mtformer tests scripts
"$python" -m mypy
# One process per core, up to four, with one thread each: more threads than cores slow each other down.
export OMP_NUM_THREADS=1
exec "$python" -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile "$@"
