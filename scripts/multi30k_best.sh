#!/usr/bin/env bash
# Train the best Multi30k en-de model of 2.5 million parameters: bash scripts/multi30k_best.sh FOLDER [OUTPUT]
# FOLDER contains {train,val,test_2016_flickr}.{en,de}, plain or .gz. Trains two teachers and, on their translations, a
# student, all with configs/multi30k_en_de_best.yaml, in OUTPUT (default: runs/multi30k_best); prints the scores on
# test_2016_flickr. The same command resumes an interrupted one.
set -euo pipefail
if [[ $# == 0 || ! -d $1 ]]; then
    echo "usage: bash scripts/multi30k_best.sh FOLDER [OUTPUT]" >&2
    exit 2
fi
folder=$(CDPATH='' cd -- "$1" && pwd)
output=$(mkdir -p -- "${2:-runs/multi30k_best}" && CDPATH='' cd -- "${2:-runs/multi30k_best}" && pwd)
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

sources_of "$folder"
make_environment .venv .
config=$output/multi30k_en_de_best.yaml
.venv/bin/mtformer config show configs/multi30k_en_de_best.yaml "${sources[@]}" >"$config"
for seed in 1 2; do
    .venv/bin/mtformer train "$config" --run-dir "$output/teacher$seed" --resume auto "training.seed=$seed"
done
exec .venv/bin/mtformer distill "$output"/teacher{1,2} --config "$config" --run-dir "$output/student"
