#!/usr/bin/env bash
# Run all attacks of tests/robustness at full size, and print how many of each kind passed:
#     bash scripts/robustness.sh            all attacks, including at least 100 kills and 1,000,000 lines of noise
#     bash scripts/robustness.sh 0.1        a tenth of them
# For the attacks and the criteria see docs/robustness.md. The output is saved in runs/robustness.log.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

share=${1:-1}
if [[ $# -gt 1 || ! $share =~ ^[0-9]*\.?[0-9]+$ ]]; then
    echo "usage: bash scripts/robustness.sh [SHARE]" >&2
    exit 2
fi
make_environment .venv-test '.[test]'
python=.venv-test/bin/python
export OMP_NUM_THREADS=1
log=runs/robustness.log
mkdir -p runs
: >"$log"

# attack FACTOR TESTS...: run these tests with FACTOR times the number of attacks in the default test suite.
attack() {
    local factor=$1
    shift
    factor=$("$python" -c 'import sys; print(float(sys.argv[1]) * float(sys.argv[2]))' "$factor" "$share")
    "$python" -m pytest --quiet --numprocesses auto --maxprocesses 4 --dist loadfile --attacks "$factor" "$@" 2>&1 |
        tee -a "$log"
}

folder=tests/robustness
several=(test_kill.py test_kill_phases.py test_full_disk.py test_damaged_inputs.py test_noise_lines.py)
failed=0
attack 8 "$folder"/test_kill.py || failed=1            # 40 kills of training runs
attack 4 "$folder"/test_kill_phases.py || failed=1     # 92 kills of all other commands that write
attack 10 "$folder"/test_full_disk.py || failed=1      # 160 full disks, for all commands that write
attack 8 "$folder"/test_damaged_inputs.py || failed=1  # 8 for each kind of file that a command reads
attack 166 "$folder"/test_noise_lines.py || failed=1   # 1,005,960 lines
attack 25 "$folder" "${several[@]/#/--ignore=$folder/}" || failed=1  # everything else

echo
echo "Passed attacks:"
grep -E ' passed$' "$log" | sort -u
exit "$failed"
