#!/usr/bin/env bash
# Train and evaluate on Multi30k en-de: bash scripts/multi30k.sh FOLDER [CONFIG] [option or section.key=value ...]
# FOLDER contains {train,val,test_2016_flickr}.{en,de}, plain or .gz. Prints the scores on test_2016_flickr.
set -euo pipefail
if [[ $# == 0 || ! -d $1 ]]; then
    echo "usage: bash scripts/multi30k.sh FOLDER [CONFIG] [option or section.key=value ...]" >&2
    exit 2
fi
folder=$(CDPATH='' cd -- "$1" && pwd)
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
config=${2:-configs/multi30k_en_de.yaml}

sources_of "$folder"
make_environment .venv .
exec .venv/bin/mtformer train "$config" "${@:3}" "${sources[@]}"
