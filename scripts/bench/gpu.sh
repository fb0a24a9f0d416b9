#!/usr/bin/env bash
# On a machine with a CUDA device, in one call of at most 10 minutes: the CUDA tests first, then the measurements.
#
#   bash scripts/bench/gpu.sh [WHEELS]
#
# Writes tests.log, gpu.md, gpu.json and gpu.log into $OUT (default: gpu). PYTHON is the interpreter that has torch
# (default: python3), SECONDS_FOR_TESTS and SECONDS_FOR_SPEED divide the time, SPEED_OPTIONS are further options of
# gpu.py. The exit status is 0 when all tests passed and nothing is missing in the tables.
#
# WHEELS is a folder of packages that the machine lacks, for machines without internet. Where there is, for Python 3.12
# and a machine that has torch, transformers, pyarrow and pandas (together 4 MB):
#
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
#     -d WHEELS pydantic pydantic-core annotated-types typing-inspection typing-extensions \
#     datasets dill multiprocess xxhash
set -uo pipefail
wheels=${1:-}
if [[ -n $wheels ]]; then
  wheels=$(realpath -e -- "$wheels") || exit 2
fi
out=$(realpath -m -- "${OUT:-gpu}")
python=${PYTHON:-python3}
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

if [[ -n $wheels ]]; then
  # Into a folder of their own: a new virtual environment would not see the packages of one that `python3` belongs to.
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --target "$site" "$wheels"/*.whl || exit 2
  export PYTHONPATH=$PYTHONPATH:$site
fi
"$python" -c 'import torch, transformers, mtformer.data.batches' || exit 2

mapfile -t tests < <(grep -rl --include='test_*.py' 'pytest.mark.gpu' tests)
timeout -k 5 "${SECONDS_FOR_TESTS:-170}" "$python" -m pytest -m gpu -rs -q -p no:cacheprovider --durations 10 \
  --continue-on-collection-errors "${tests[@]}" > "$out/tests.log" 2>&1
tested=$?
tail -n 40 "$out/tests.log" | cut -c 1-300

# shellcheck disable=SC2086  # several words
"$python" scripts/bench/gpu.py --out "$out" --seconds "${SECONDS_FOR_SPEED:-370}" ${SPEED_OPTIONS:-} 2> "$out/gpu.log"
measured=$?
[[ $measured -eq 0 ]] || tail -n 20 "$out/gpu.log" | cut -c 1-300
echo "tests ended with status $tested, measurements with $measured"
[[ $tested -eq 0 && $measured -eq 0 ]]
