"""Speed of the data's road: preparing beside SentencePiece alone, then the loader's tokens a second, and padding.

    python scripts/bench/data_speed.py
    python scripts/bench/data_speed.py --src train.en --tgt train.de --sampling-alpha 0.1

Trains a joint tokenizer and tokenises the two files into a temporary folder, on one core, without filters and with
the default ones; then goes through whole epochs as training does, through the prefetch thread, and does nothing with
the batches. Source and target tokens are counted with eos, padding is not. `data_size.py` does the same with large
corpora and several processes.
"""

import argparse
import tempfile
import time
from pathlib import Path

from data_size import config

from mtformer.config.data import TextFiles
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
    source = TextFiles(src=str(options.src), tgt=str(options.tgt))
    data = config(source, folder / "cache").model_copy(update={"num_workers": 1})
    section = TokenizerConfig(model_type=options.model_type, vocab_size=options.vocab_size)
    begin = time.perf_counter()
    train_tokenizer((line for pair in read_pairs(source, data) for line in pair), section, folder / JOINT)
    print(f"tokenizer trained in {time.perf_counter() - begin:.1f} s")
    tokenizers = TokenizerPair.load(folder)
    lines = [line for pair in read_pairs(source, data) for line in pair]
    begin = time.process_time()
    tokenizers.src.encode(lines)
    bare = time.process_time() - begin
    print(f"SentencePiece alone: {bare:.2f} s of processor time for {len(lines) // 2:,} pairs")
    for name, filtered in (("without filters", False), ("with the default filters", True)):
        begin = time.process_time()
        store = prepare(data.train, data, tokenizers, is_training=filtered, keep_text=False)
        spent = time.process_time() - begin
        print(f"prepared {name}: {spent:.2f} s, {bare / spent:.0%} of SentencePiece's rate")
    print("\n".join(store.report.lines()))
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
