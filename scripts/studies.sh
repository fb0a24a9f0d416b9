#!/usr/bin/env bash
# Run the studies in configs/studies on Multi30k en-de: bash scripts/studies.sh FOLDER [STUDY ...]
# FOLDER contains {train,val,test_2016_flickr}.{en,de}, plain or .gz. Trains unfinished runs, two at a time, then writes
# runs/studies/STUDY.txt (scores and significance) and runs/studies/STUDY.html (the report).
set -euo pipefail
if [[ $# == 0 || ! -d $1 ]]; then
    echo "usage: bash scripts/studies.sh FOLDER [STUDY ...]" >&2
    exit 2
fi
folder=$(CDPATH='' cd -- "$1" && pwd)
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
studies=("${@:2}")
if [[ $# == 1 ]]; then
    studies=(positions norm vocabulary averaging optimizer)
fi

sources_of "$folder"
make_environment .venv .
for study in "${studies[@]}"; do
    .venv/bin/mtformer sweep "configs/studies/$study.yaml" --jobs 2 --resume "${sources[@]}"
    .venv/bin/mtformer compare "runs/studies/$study"/*/ --sentences 0 | tee "runs/studies/$study.txt"
    .venv/bin/mtformer report "runs/studies/$study"/*/ --out "runs/studies/$study.html"
done
