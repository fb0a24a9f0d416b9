"""Create kftt_lengths.json: the lengths of real training batches, for benchmarks on machines without the corpus.

    python scripts/bench/kftt_lengths.py configs/kftt_ja_en.yaml tokenizer.vocab_size=32000 training.batch_tokens=32768

Prepares the data of a config as for training, and divides an epoch into batches. The batches are sorted by their
longest side, and evenly spaced ones are written as runs of [source tokens, target tokens, number of consecutive pairs],
without eos.
"""

import argparse
import itertools
import json
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from peers import PAD

from mtformer.config.loading import load_config
from mtformer.experiment.prepare import prepare_experiment

NUM_BATCHES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    config = load_config(options.config, options.overrides).config
    with tempfile.TemporaryDirectory() as folder:
        training = prepare_experiment(config, Path(folder, "tokenizer")).batches
        with closing(training.start(max_epochs=1)) as batches:
            lengths = [torch.stack([b.src_lengths_B, (b.tgt_out_BT != PAD).sum(1)], dim=1) - 1 for b in batches]
    lengths.sort(key=lambda pairs: int(pairs.max()))
    chosen = np.linspace(0, len(lengths) - 1, 2 * NUM_BATCHES + 1).astype(int)[1::2]
    runs = [[[*pair, len(list(run))] for pair, run in itertools.groupby(lengths[n].tolist())] for n in chosen]
    about = (
        f"[source tokens, target tokens, consecutive pairs], without eos, of {NUM_BATCHES} evenly spaced batches from "
        f"{len(lengths)} batches of {config.training.batch_tokens} tokens in an epoch over {options.config.stem} "
        f"({sum(map(len, lengths))} pairs, vocabulary of {config.tokenizer.vocab_size})"
    )
    lines = ",\n".join(json.dumps(batch, separators=(",", ":")) for batch in runs)
    options.out.write_text(f'{{"about": {json.dumps(about)},\n"batches": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
