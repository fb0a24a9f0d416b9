"""Speed of the loader alone: how many tokens a second it delivers, and how much of the batches is padding.

    python scripts/bench/data_speed.py
    python scripts/bench/data_speed.py --src train.en --tgt train.de --sampling-alpha 0.1

Trains a joint tokenizer and tokenises the two files into a temporary folder, then goes through whole epochs as training
does, through the prefetch thread, and does nothing with the batches. Source and target tokens are counted with eos,
padding is not.
"""

import argparse
import tempfile
import time
from pathlib import Path

from mtformer.config.data import DataConfig, TextFiles
from mtformer.config.schema import TokenizerConfig
from mtformer.data.batches import TrainingBatches
from mtformer.data.changes import Changes
from mtformer.data.mixture import Corpus, Mixture, Place
from mtformer.data.preparing import prepare
from mtformer.data.sources import read_pairs
from mtformer.experiment.prepare import CHANGED_WINDOW_PAIRS
from mtformer.text.tokenizer import JOINT, TokenizerPair
from mtformer.text.train import train_tokenizer

DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=DEFAULT_DATA / "train.en.gz", help="file of source sentences")
    parser.add_argument("--tgt", type=Path, default=DEFAULT_DATA / "train.de.gz", help="file of target sentences")
    parser.add_argument("--model-type", choices=("unigram", "bpe"), default="unigram")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--sampling-alpha", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    for file in (options.src, options.tgt):
        if not file.is_file():
            parser.error(f"{file}: no such file; name two parallel files by --src and --tgt")
    return options


def make_batches(options: argparse.Namespace, folder: Path) -> TrainingBatches:
    """Tokenizer, store and batches, with the time that each takes."""
    data = DataConfig(
        src_lang="src",
        tgt_lang="tgt",
        train=[TextFiles(src=str(options.src), tgt=str(options.tgt))],
        cache_dir=str(folder / "cache"),
    )
    section = TokenizerConfig(model_type=options.model_type, vocab_size=options.vocab_size)
    begin = time.perf_counter()
    train_tokenizer((line for pair in read_pairs(data.train[0], data) for line in pair), section, folder / JOINT)
    tokenizers = TokenizerPair.load(folder)
    trained = time.perf_counter()
    store = prepare(data.train, data, tokenizers, is_training=True)
    prepared = time.perf_counter()
    print("\n".join(store.report.lines()))
    print(f"tokenizer trained in {trained - begin:.1f} s, corpus tokenised in {prepared - trained:.1f} s")
    mixture, changes = Mixture([Corpus("train", store)], 1), None
    if options.sampling_alpha:
        mixture = Mixture(mixture.corpora, 1, window_pairs=CHANGED_WINDOW_PAIRS)
        changes = Changes(tokenizers, options.sampling_alpha, data.noise, data.filters.max_tokens)
    return TrainingBatches(mixture, options.batch_tokens, changes)


def measure(batches: TrainingBatches, epoch: int) -> None:
    """Goes through one epoch and prints its figures."""
    tokens = cells = num_batches = 0
    begin = time.perf_counter()
    with batches.start(Place(epoch), max_epochs=epoch + 1) as stream:
        for batch in stream:
            tokens += batch.num_src_tokens + batch.num_tgt_tokens
            cells += batch.src_BS.numel() + batch.tgt_in_BT.numel()
            num_batches += 1
    seconds = time.perf_counter() - begin
    print(
        f"epoch {epoch}: {num_batches:,} batches, {tokens:,} tokens, {tokens / seconds:,.0f} tokens/s, "
        f"padding {1 - tokens / cells:.2%}"
    )


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        batches = make_batches(options, Path(folder))
        for epoch in range(options.epochs):
            measure(batches, epoch)


if __name__ == "__main__":
    main()
