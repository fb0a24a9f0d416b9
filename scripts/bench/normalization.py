"""Models with different normalizations of text, trained with equal steps: BLEU, significance and vocabulary.

python scripts/bench/normalization.py CONFIG FOLDER --name kftt --seeds 1 2 [OVERRIDES...]

For each normalization and seed, `mtformer train` trains CONFIG, and `mtformer eval` scores its test sets with the
settings of `decoding`. An interrupted benchmark resumes: finished runs are kept in FOLDER. The table has a row per run,
with the p-value of paired approximate randomization between the normalizations for each seed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from mtformer.config.loading import load_config
from mtformer.data.corpus.readers import read_lines
from mtformer.text.normalization import Normalizer
from mtformer.text.tokenizer import TokenizerPair

NORMALIZATIONS = ("nmt_nfkc", "compose")
MAX_LINES = 20_000
"""Number of lines of each side whose tokens are counted."""


def mtformer(*arguments: str) -> str:
    """Run a command and return what it prints to stdout."""
    command = [sys.executable, "-m", "mtformer", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train(arguments: argparse.Namespace, normalization: str, seed: int) -> Path:
    """Train a run, or resume or keep an earlier one, and evaluate it on its test sets."""
    run = arguments.folder / f"{arguments.name}-{normalization}-{seed}"
    settings = [f"tokenizer.normalization={normalization}", f"training.seed={seed}", *arguments.overrides]
    mtformer("train", arguments.config, "--run-dir", str(run), "--resume", "auto", *settings)
    mtformer("eval", str(run))
    return run


def first_lines(path: str) -> list[str]:
    """Return the first lines of a text file, plain or gzip."""
    return read_lines(path)[:MAX_LINES]


def describe_text(run: Path) -> str:
    """Return what the tokenizer of a run makes of its training text."""
    [source] = load_config(run / "config.yaml").config.data.train
    tokenizers = TokenizerPair.load(run / "tokenizer")
    parts = []
    for tokenizer, path in zip(tokenizers, (source.src, source.tgt), strict=True):
        lines = first_lines(path)
        normalizer = Normalizer.of_model(tokenizer.model)
        mean_length = sum(map(len, tokenizer.encode(lines))) / len(lines)
        num_characters = len(set("".join(normalizer(lines))))
        num_changed = len(normalizer.changes(lines))
        parts.append(
            f"{Path(path).name}: {mean_length:.2f} tokens per line, {num_characters:,} distinct characters, "
            f"{num_changed:,} of {len(lines):,} lines changed"
        )
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("overrides", nargs="*", help="as for mtformer train")
    parser.add_argument("--name", required=True, help="name of the corpus, for the folders of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_intermixed_args()

    for seed in arguments.seeds:
        runs = [train(arguments, normalization, seed) for normalization in NORMALIZATIONS]
        for run in runs:
            for card in sorted(run.glob("eval/*/scores.json")):
                scores = json.loads(card.read_text(encoding="utf-8"))["scores"]
                print(f"{run.name}: {card.parent.name}: {json.dumps(scores)}", flush=True)
        print(mtformer("compare", *map(str, runs)), flush=True)
        if seed == arguments.seeds[0]:
            print("\n".join(f"{run.name}: {describe_text(run)}" for run in runs), flush=True)


if __name__ == "__main__":
    main()
