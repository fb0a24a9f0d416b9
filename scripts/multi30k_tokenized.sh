#!/usr/bin/env bash
# Compare with published figures on Multi30k en-de: bash scripts/multi30k_tokenized.sh FOLDER [OUTPUT] [section.key=value ...]
# Trains configs/multi30k_en_de_best.yaml with seed 1 on the lowercased, Moses-tokenized files of the data set, and scores
# test_2016_flickr with tokenized BLEU (no tokenizer), beam 5: the protocol of Wu et al. 2021 (arXiv 2105.14462).
# FOLDER contains {train,val,test_2016_flickr}.{en,de}, plain or .gz. The same command resumes an interrupted one.
set -euo pipefail
if [[ $# == 0 || ! -d $1 ]]; then
    echo "usage: bash scripts/multi30k_tokenized.sh FOLDER [OUTPUT] [section.key=value ...]" >&2
    exit 2
fi
folder=$(CDPATH='' cd -- "$1" && pwd)
output=$(mkdir -p -- "${2:-runs/multi30k_tokenized}" && CDPATH='' cd -- "${2:-runs/multi30k_tokenized}" && pwd)
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

make_environment .venv .
.venv/bin/python -m pip install --quiet 'sacremoses>=0.1.1'
.venv/bin/python scripts/moses_lowercase.py "$folder" "$output/corpus"
sources_of "$output/corpus"
exec .venv/bin/mtformer train configs/multi30k_en_de_best.yaml "${sources[@]}" --run-dir "$output/run" --resume auto \
    training.seed=1 evaluation.bleu_tokenizer=none "${@:3}"
