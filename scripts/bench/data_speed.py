"""Measure the speed and memory of preparing data, compared to SentencePiece alone, and of loading it.

    python scripts/bench/data_speed.py
    python scripts/bench/data_speed.py --src train.en --tgt train.de
    python scripts/bench/data_speed.py --pairs 400000 20000000 --workers 0 --batches 3000 --folder /some/disk

Creates corpora by repeating the lines of the two files, with a number added to each line and words removed so that all
pairs differ, and trains a joint tokenizer. Then measures in turn, without filters and with the default ones,
SentencePiece alone (`encode` with as many lines per call as in `prepare`, and also without garbage collection), and
`prepare`, which reads two files and writes the store. Then iterates over epochs as in training, with the prefetch
thread but without using the batches, and resumes in the middle of an epoch. Finally iterates over epochs with noise,
which is added by a thread and then by two processes. Source and target tokens are
counted, including eos and excluding padding. Each kind of measurement runs in a separate process. A folder given by
--folder is kept.
"""

import argparse
import gc
import multiprocessing
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from mtformer.config.data import DataConfig, NoiseConfig, TextFiles
from mtformer.config.schema import TokenizerConfig
from mtformer.data.store.pipeline import PAIRS_AT_ONCE
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import Store
from mtformer.text.tokenizer import JOINT, TokenizerPair
from mtformer.text.train import train_tokenizer

# Modules that need PyTorch are imported where they are used, so that the processes of `prepare` start without it, as
# with the command line.

DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"
BARE_LINES = 1_000_000
"""Maximum number of lines per file when SentencePiece is measured alone."""
LINES_AT_ONCE = 20 * PAIRS_AT_ONCE
"""Number of lines in memory in this case; a fifth or twice as many give the same speed, but all at once are slower."""
NOISE = NoiseConfig(case=0.1, final_stop=0.05, typos=0.05, copies=0.1)
"""Noise of configs/multi30k_en_de.yaml."""
MAX_TOKENS = 250
"""Maximum number of tokens of a noisy line."""
Figures = dict[str, Any]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=DEFAULT_DATA / "train.en.gz", help="file of source sentences")
    parser.add_argument("--tgt", type=Path, default=DEFAULT_DATA / "train.de.gz", help="file of target sentences")
    parser.add_argument("--pairs", type=int, nargs="+", default=[400_000], help="sizes of the corpora")
    parser.add_argument("--repeats", type=int, default=5, help="number of preparations of each kind")
    parser.add_argument("--workers", type=int, default=1, help="processes for preparation; 0: one per core")
    parser.add_argument("--model-type", choices=("unigram", "bpe"), default="unigram")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, help="maximum number of batches per epoch")
    parser.add_argument("--folder", type=Path, help="folder for corpora and caches; default: a temporary folder")
    options = parser.parse_args()
    for file in (options.src, options.tgt):
        if not file.is_file():
            parser.error(f"{file}: no such file; give two parallel files with --src and --tgt")
    return options


def make_corpus(options: argparse.Namespace, num_pairs: int, folder: Path) -> TextFiles:
    """Create two text files with this number of pairs, and a tokenizer, unless they exist."""
    from peers import read_lines

    paths = [folder / f"{num_pairs}.{side}" for side in ("src", "tgt")]
    folder.mkdir(parents=True, exist_ok=True)
    sides, draw = [read_lines(path) for path in (options.src, options.tgt)], random.Random(1)
    if not all(path.is_file() for path in paths):
        with paths[0].open("w", encoding="utf-8") as src, paths[1].open("w", encoding="utf-8") as tgt:
            for number in range(num_pairs):
                which = number % len(sides[0])
                for file, side in zip((src, tgt), sides, strict=True):
                    words = side[which].split(" ")
                    if number >= len(sides[0]):
                        words.pop(draw.randrange(len(words)))
                        words.insert(draw.randrange(len(words) + 1), str(number))
                    file.write(" ".join(words) + "\n")
    if not (folder / JOINT).is_file():
        section = TokenizerConfig(model_type=options.model_type, vocab_size=options.vocab_size)
        train_tokenizer(sides[0] + sides[1], section, folder / JOINT)
    return TextFiles(src=str(paths[0]), tgt=str(paths[1]))


def bare_seconds(source: TextFiles, tokenizer_folder: Path, num_lines: int) -> float:
    """Return the CPU time of SentencePiece alone for the first lines of both files."""
    tokenizer, spent, was_on = TokenizerPair.load(tokenizer_folder).src, 0.0, gc.isenabled()
    gc.disable()
    for path in (source.src, source.tgt):
        with open(path, encoding="utf-8") as file:
            for start in range(0, num_lines, LINES_AT_ONCE):
                texts = [line.rstrip("\n") for line in islice(file, min(LINES_AT_ONCE, num_lines - start))]
                begin = time.process_time()
                for first in range(0, len(texts), PAIRS_AT_ONCE):
                    tokenizer.encode(texts[first : first + PAIRS_AT_ONCE])
                spent += time.process_time() - begin
    if was_on:
        gc.enable()
    return spent


def bare_seconds_of_pair(source: TextFiles, folder: Path, num_lines: int, num_workers: int) -> float:
    """Return `bare_seconds` per pair while all workers are busy and slow each other down on shared hardware."""
    if num_workers == 1:
        return bare_seconds(source, folder, num_lines) / num_lines
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn")) as pool:
        found = [pool.submit(bare_seconds, source, folder, num_lines) for _ in range(num_workers)]
        return sum(one.result() for one in found) / num_workers / num_lines


def build_preparing(
    options: argparse.Namespace,
    source: TextFiles,
    folder: Path,
    num_pairs: int,
    has_filters: bool,
    keep_text: bool = False,
) -> Callable[[], Figures]:
    """Return a function that prepares the corpus once, with or without the default filters; called in a worker."""
    num_workers, num_lines = options.workers or os.cpu_count() or 1, min(num_pairs, BARE_LINES)
    data = DataConfig.model_validate(
        {"src_lang": "en", "tgt_lang": "de", "train": [source.model_dump()], "cache_dir": str(folder / "cache"),
         "num_workers": num_workers, "filters": {"max_filtered_share": 1.0}}
    )  # fmt: skip
    tokenizers = TokenizerPair.load(folder)

    def prepare_once() -> Figures:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        bare = bare_seconds_of_pair(source, folder, num_lines, num_workers)
        begin, begin_cpu = time.time(), cpu_seconds()
        store = prepare(data.sources, data, tokenizers, is_training=has_filters, keep_text=keep_text)
        seconds, cpu = time.time() - begin, (cpu_seconds() - begin_cpu) / num_pairs
        size = sum(path.stat().st_size for path in store.folder.iterdir()) / len(store)
        text = (
            f"{1e6 * cpu:.2f} us of CPU time per pair, SentencePiece alone {1e6 * bare:.2f}: {bare / cpu:.1%} of "
            f"its rate; {num_pairs / seconds:,.0f} pairs/s; {len(store):,} pairs kept, {size:.0f} bytes each; {peaks()}"
        )
        return {"text": text, "share": bare / cpu, "folder": store.folder, "report": store.report.lines()}

    return prepare_once


def cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    return sum(os.times()[:4])


def peaks() -> str:
    both = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return "peak {:.0f} MB, workers {:.0f} MB".format(*both)


def build_loading(
    options: argparse.Namespace, store_folder: Path, tokenizers: Path | None = None
) -> Callable[[int, bool, int], str]:
    """Return a function that iterates over an epoch or its second half and reports on it; called in a worker.

    With a folder of tokenizers, the pairs get noise.
    """
    from mtformer.data.batching.augment import Augmentation
    from mtformer.data.batching.batches import TrainingBatches
    from mtformer.data.batching.mixture import Corpus, Mixture, SamplerState

    def load(epoch: int, from_middle: bool, num_processes: int = 1) -> str:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        store = Store(store_folder)
        noise = Augmentation(TokenizerPair.load(tokenizers), NOISE, MAX_TOKENS) if tokenizers is not None else None
        mixture = Mixture([Corpus("train", store)], 1)
        batches = TrainingBatches(mixture, options.batch_tokens, noise, num_processes)
        tokens = cells = num_batches = num_pairs = 0
        with closing(
            batches.start(SamplerState(epoch, len(store) // 2 if from_middle else 0), max_epochs=epoch + 1)
        ) as stream:
            for batch in islice(stream, options.batches):
                if not num_batches:
                    first = time.perf_counter() - begin
                tokens += batch.num_src_tokens + batch.num_tgt_tokens
                cells += batch.src_BS.numel() + batch.tgt_in_BT.numel()
                num_batches += 1
                num_pairs += batch.num_pairs
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        return (
            f"{1e6 * cpu / num_pairs:.1f} us of CPU time of this process per pair, {num_batches:,} batches, "
            f"{tokens:,} tokens, {num_pairs / seconds:,.0f} pairs/s, "
            f"{tokens / seconds:,.0f} tokens/s, padding {1 - tokens / cells:.2%}; "
            f"first batch after {first:.2f} s; {peaks()}"
        )

    return load


def measure(options: argparse.Namespace, num_pairs: int, folder: Path) -> Iterator[str]:
    """Yield a line for each measurement of a corpus of this size."""
    from turns import Worker

    source = make_corpus(options, num_pairs, folder)
    for name, has_filters in (("without filters", False), ("with the default filters", True)):
        preparing = build_preparing, options, source, folder, num_pairs, has_filters
        with closing(Worker(*preparing, starts_processes=True)) as worker:
            made = []
            for _ in range(options.repeats):
                made.append(worker.ask())
                yield f"prepared {name}: {made[-1]['text']}"
        share = statistics.median(one["share"] for one in made)
        yield f"prepared {name}: median {share:.1%} of SentencePiece's rate"
    yield from made[-1]["report"]
    loading = build_loading, options, made[-1]["folder"]
    with closing(Worker(*loading)) as worker:
        for epoch in range(options.epochs):
            yield f"epoch {epoch}: {worker.ask(epoch, False)}"
    with closing(Worker(*loading)) as worker:
        yield f"resumed in the middle of epoch 1: {worker.ask(1, True)}"

    prepare_with_text = build_preparing, options, source, folder, num_pairs, True, True
    with closing(Worker(*prepare_with_text, starts_processes=True)) as worker:
        store_folder = worker.ask()["folder"]
    noisy_loading = build_loading, options, store_folder, folder
    for num_processes in (1, 2):
        with closing(Worker(*noisy_loading, starts_processes=True)) as worker:
            for epoch in range(options.epochs):
                yield f"epoch {epoch} with noise, {num_processes} processes: {worker.ask(epoch, False, num_processes)}"


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as temporary:
        for num_pairs in options.pairs:
            print(f"## {num_pairs:,} pairs\n", flush=True)
            for line in measure(options, num_pairs, (options.folder or Path(temporary)) / str(num_pairs)):
                print(line, flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
