#!/usr/bin/env bash
# Run the CUDA tests, checks of the results and then the benchmarks, within 9 minutes, on a machine with a CUDA device.
#
#   bash scripts/bench/gpu.sh [WHEELS]
#
# Writes tests.log, gpu.md, gpu.json and gpu.log to $OUT (default: gpu); an interrupted run keeps its results. Other
# variables: PYTHON is an interpreter with torch (default: python3), KFTT is a folder with train.ja.gz, train.en.gz,
# dev.ja.gz and dev.en.gz (default: ../shared/data/kftt_ja_en), SECONDS_FOR_TESTS limits the tests (default: 190), which
# run at the same time as the checks, SECONDS_IN_ALL limits everything including the installation of WHEELS (default:
# 540), and SPEED_OPTIONS are additional options of gpu.py. The exit code is 0 if all tests and checks pass and no
# result is missing.
#
# WHEELS is a folder of packages to install on machines without internet access. For Python 3.12 and a machine with
# torch, transformers, sentencepiece, pyarrow and pytest, download them (3 MB) on another machine:
#
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
#     -c constraints.txt -d WHEELS pydantic pydantic-core annotated-types typing-inspection typing-extensions
set -uo pipefail
wheels=${1:-}
if [[ -n $wheels ]]; then
  wheels=$(realpath -e -- "$wheels") || exit 2
fi
out=$(realpath -m -- "${OUT:-gpu}")
options=(--out "$out")
if [[ -n ${KFTT:-} ]]; then
  options+=(--kftt "$(realpath -m -- "$KFTT")")
fi
python=${PYTHON:-python3}
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

site=$(mktemp -d) benchmarks=
trap 'rm -rf "$site"; [[ -z $benchmarks ]] || kill "$benchmarks" 2> /dev/null' EXIT
if [[ -n $wheels ]]; then
  # Not into a virtual environment, which would not see the packages of the environment to which `python3` may belong.
  timeout 120 "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl || exit 2
  export PYTHONPATH=$PYTHONPATH:$site
fi
timeout 120 "$python" -c 'import sys, importlib.util, mtformer.data.batching.batches
importlib.util.find_spec("transformers") or sys.exit("transformers is not installed")' || exit 2

# Bash counts SECONDS from the start of this script; gpu.py needs up to 15 seconds to start and exit. It runs in the
# background, because bash makes background processes ignore SIGINT, which ends the tests.
left=$((${SECONDS_IN_ALL:-540} - SECONDS - 15))
rm -f "$out/tests.done"
# shellcheck disable=SC2086  # several words
"$python" scripts/bench/gpu.py "${options[@]}" --seconds "$left" --after "$out/tests.done" ${SPEED_OPTIONS:-} \
  2> "$out/gpu.log" &
benchmarks=$!

mapfile -t tests < <(grep -rl --include='test_*.py' 'pytest.mark.gpu' tests)
# On SIGINT pytest still lists the failures; it has 10 seconds to do so.
timeout -s INT -k 10 "${SECONDS_FOR_TESTS:-190}" "$python" -m pytest -m gpu -rs -v -p no:cacheprovider --durations 10 \
  --continue-on-collection-errors "${tests[@]}" > "$out/tests.log" 2>&1
tested=$?
touch "$out/tests.done"
tail -n 40 "$out/tests.log" | cut -c 1-300

wait "$benchmarks"
measured=$? benchmarks=
rm -f "$out/tests.done"
[[ $measured -eq 0 ]] || tail -n 20 "$out/gpu.log" | cut -c 1-300
echo "exit codes: tests $tested, benchmarks $measured"
[[ $tested -eq 0 && $measured -eq 0 ]]
