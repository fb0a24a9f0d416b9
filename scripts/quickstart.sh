#!/usr/bin/env bash
# Install mtformer in .venv, create the demo corpus, train, evaluate and translate. Run it again to resume an
# interrupted training run; bash scripts/quickstart.sh --overwrite starts a new one.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

say() { printf '\n== %s\n' "$*"; }

options=("$@")
if [[ $# == 0 && -d runs/demo ]]; then
    # Without a checkpoint, there is nothing to resume or lose.
    options=(--overwrite)
    compgen -G 'runs/demo/checkpoints/step-*' >/dev/null && options=(--resume)
fi

say 'Environment: .venv'
make_environment .venv .
mtformer=.venv/bin/mtformer

say 'Corpus: mtformer data demo demo'
"$mtformer" data demo demo

say "Training: mtformer train configs/demo.yaml --run-dir runs/demo ${options[*]-}"
"$mtformer" train configs/demo.yaml --run-dir runs/demo ${options[@]+"${options[@]}"}

say 'Scores on the test set: mtformer eval runs/demo'
"$mtformer" eval runs/demo

say 'Translations: mtformer translate runs/demo'
sentences='Yesterday the old woman bought a beautiful lamp.
The key is small, but I cannot find it.
If the dog is tired, it does not run into the garden.
I hope that the teacher will invite our friends.'
translations=$(printf '%s\n' "$sentences" | "$mtformer" translate runs/demo)
paste -d '\n' <(printf '%s\n' "$sentences") <(printf '    %s\n' "${translations//$'\n'/$'\n'    }")

cat <<'END'

== What to try next
source .venv/bin/activate
mtformer translate runs/demo                  translate your own sentences, with words in demo/train.en
mtformer eval runs/demo --src FILE --ref FILE evaluate on other text
mtformer config show configs/demo.yaml        show all settings and their origins
mtformer train configs/demo.yaml --run-dir runs/wider model.d_model=192
mtformer init SRC TGT                         write a config with recommended sizes for your own two files
END
