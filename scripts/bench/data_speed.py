"""Speed of the data's road: preparing beside SentencePiece alone, then the loader's tokens a second, and padding.

    python scripts/bench/data_speed.py
    python scripts/bench/data_speed.py --src train.en --tgt train.de --sampling-alpha 0.1

Makes a corpus of the two files as `data_size.py` does, and a joint tokenizer. Then, on one core, without filters and
with the default ones, in turns: SentencePiece alone (`encode` of all lines, in calls of the size that `prepare` makes,
without the garbage collector, as `prepare` has it), and `prepare`, from two files to the store. Then goes through whole
epochs as training does, through the prefetch thread, and does nothing with the batches. Source and target tokens are
counted with eos, padding is not. `data_size.py` does the same with large corpora and several processes.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from data_size import bare_seconds, config, lines, make_corpus

from mtformer.config.data import DataConfig
from mtformer.config.schema import TokenizerConfig
from mtformer.data.batching.augment import Augmentation
from mtformer.data.batching.batches import TrainingBatches
from mtformer.data.batching.mixture import Corpus, Mixture, SamplerState
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import Store
from mtformer.experiment.prepare import AUGMENTED_WINDOW_PAIRS
from mtformer.text.tokenizer import JOINT, TokenizerPair
from mtformer.text.train import train_tokenizer

DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=DEFAULT_DATA / "train.en.gz", help="file of source sentences")
    parser.add_argument("--tgt", type=Path, default=DEFAULT_DATA / "train.de.gz", help="file of target sentences")
    parser.add_argument("--pairs", type=int, default=400_000, help="size of the corpus made of them")
    parser.add_argument("--repeats", type=int, default=5, help="preparations of each kind")
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
    """Corpus, tokenizer, store and batches, with the time that each takes."""
    source = make_corpus(options, options.pairs, folder)
    data = config(source, folder / "cache").model_copy(update={"num_workers": 1})
    section = TokenizerConfig(model_type=options.model_type, vocab_size=options.vocab_size)
    begin = time.perf_counter()
    train_tokenizer(lines(options.src) + lines(options.tgt), section, folder / JOINT)
    print(f"tokenizer trained in {time.perf_counter() - begin:.1f} s")
    tokenizers = TokenizerPair.load(folder)
    for name, is_training in (("without filters", False), ("with the default filters", True)):
        shares = []
        for number in range(options.repeats):
            cached = data.model_copy(update={"cache_dir": str(folder / f"{number} {name}")})
            bare = bare_seconds(source, folder, options.pairs)
            store, spent = prepared(cached, tokenizers, is_training, keep_text=options.sampling_alpha > 0)
            shares.append(bare / spent)
            print(
                f"prepared {name}: {1e6 * spent / options.pairs:.2f} us of processor time a pair, SentencePiece alone "
                f"{1e6 * bare / options.pairs:.2f}: {shares[-1]:.1%} of its rate"
            )
        print(f"prepared {name}: median {statistics.median(shares):.1%} of SentencePiece's rate")
    print("\n".join(store.report.lines()))
    mixture, changes = Mixture([Corpus("train", store)], 1), None
    if options.sampling_alpha:
        mixture = Mixture(mixture.corpora, 1, window_pairs=AUGMENTED_WINDOW_PAIRS)
        changes = Augmentation(tokenizers, options.sampling_alpha, data.noise, data.filters.max_tokens)
    return TrainingBatches(mixture, options.batch_tokens, changes)


def prepared(data: DataConfig, tokenizers: TokenizerPair, is_training: bool, keep_text: bool) -> tuple[Store, float]:
    """The store, and seconds of processor time that it took to make it; for subword sampling it keeps the text."""
    begin = time.process_time()
    store = prepare(data.sources, data, tokenizers, is_training=is_training, keep_text=keep_text)
    return store, time.process_time() - begin


def measure(batches: TrainingBatches, epoch: int) -> None:
    """Goes through one epoch and prints its figures."""
    tokens = cells = num_batches = 0
    begin = time.perf_counter()
    with batches.start(SamplerState(epoch), max_epochs=epoch + 1) as stream:
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
