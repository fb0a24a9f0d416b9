"""What a corpus of any size costs: preparing, memory, the start of a run, a resume, and the loader's rate.

    python scripts/bench/data_size.py --pairs 400000 20000000 --folder /some/disk

The corpora are made of two parallel files by repetition, with a number in each line and words left out, so that no pair
is like another. Each measurement is made in a process of its own. Delete the folder afterwards.
"""

import argparse
import gc
import gzip
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mtformer.config.data import DataConfig, TextFiles
from mtformer.config.schema import TokenizerConfig
from mtformer.data.store.pipeline import PAIRS_AT_ONCE
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import Store
from mtformer.text.tokenizer import JOINT, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"
BATCH_TOKENS = 4096
BARE_PAIRS = 1_000_000
LINES_AT_ONCE = 20 * PAIRS_AT_ONCE
"""Read to be tokenised by SentencePiece alone."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=DEFAULT_DATA / "train.en.gz", help="file of source sentences")
    parser.add_argument("--tgt", type=Path, default=DEFAULT_DATA / "train.de.gz", help="file of target sentences")
    parser.add_argument("--pairs", type=int, nargs="+", default=[400_000], help="sizes of the corpora")
    parser.add_argument("--repeats", type=int, default=1, help="preparations of each kind")
    parser.add_argument("--vocab-size", type=int, default=8000, help="of the joint tokenizer")
    parser.add_argument("--batches", type=int, default=3000, help="taken from the loader")
    parser.add_argument("--folder", type=Path, required=True, help="where corpora, caches and results go")
    options = parser.parse_args()
    for file in (options.src, options.tgt):
        if not file.is_file():
            parser.error(f"{file}: no such file; name two parallel files by --src and --tgt")
    return options


def lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return file.read().splitlines()


def make_corpus(options: argparse.Namespace, num_pairs: int, folder: Path) -> TextFiles:
    """Two plain files of so many pairs; made once."""
    paths = [folder / f"{num_pairs}.{side}" for side in ("src", "tgt")]
    if not all(path.is_file() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        sides, draw = [lines(path) for path in (options.src, options.tgt)], random.Random(1)
        with paths[0].open("w", encoding="utf-8") as src, paths[1].open("w", encoding="utf-8") as tgt:
            for number in range(num_pairs):
                which = number % len(sides[0])
                for file, side in zip((src, tgt), sides, strict=True):
                    words = side[which].split(" ")
                    if number >= len(sides[0]):
                        words.pop(draw.randrange(len(words)))
                        words.insert(draw.randrange(len(words) + 1), str(number))
                    file.write(" ".join(words) + "\n")
    return TextFiles(src=str(paths[0]), tgt=str(paths[1]))


def config(source: TextFiles, folder: Path) -> DataConfig:
    """The default filters, but the corpus may be as noisy as it will."""
    return DataConfig.model_validate(
        {"src_lang": "en", "tgt_lang": "de", "train": [source.model_dump()], "cache_dir": str(folder),
         "filters": {"max_filtered_share": 1.0}}
    )  # fmt: skip


def in_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What it returns, and the peak of its memory and its processor time, in a new process.

    Raises:
        RuntimeError: if the function fails or its process is killed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(sender, function, *arguments))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        result, error = receiver.recv()
    except EOFError:
        result, error = {}, None
    process.join()
    if not result:
        raise RuntimeError(f"{function.__name__}: {error or f'its process ended with exit code {process.exitcode}'}")
    return result


def _report(sender: Any, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    try:
        result = function(*arguments)
    except Exception as error:
        traceback.print_exc()
        sender.send(({}, f"{type(error).__name__}: {error}"))
        return
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in (own, children))
    peaks = {"peak_mb": own.ru_maxrss / 1024, "workers_peak_mb": children.ru_maxrss / 1024}
    sender.send(({**result, **peaks, "cpu": cpu}, None))


def bare_seconds(source: TextFiles, tokenizer_folder: Path, num_lines: int) -> float:
    """Seconds of processor time that SentencePiece alone takes for so many lines of each file.

    As quick as it can be called: on texts that are in memory, without the garbage collector, and in calls as large as
    those of `prepare`; with a fifth or twice as many lines it is as quick, with all of them it is slower.
    """
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


def bare_tokenising(source: TextFiles, tokenizer_folder: Path, num_lines: int) -> float:
    """`bare_seconds` of a pair, when all cores are at it.

    For two cores that share their parts, as hardware threads do, are slower together than each is alone.
    """
    num_workers = os.cpu_count() or 1
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn")) as pool:
        found = [pool.submit(bare_seconds, source, tokenizer_folder, num_lines) for _ in range(num_workers)]
        return sum(one.result() for one in found) / num_workers / num_lines


class TimedTokenizer(Tokenizer):
    """Notes in a file of each process how long SentencePiece was at it there; `name` is the folder of these files."""

    spent = np.zeros(1)

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        begin = time.process_time()
        ids = super().encode(lines, num_threads)
        note = Path(self.name, str(os.getpid()))
        if not note.exists():
            TimedTokenizer.spent = np.memmap(note, np.float64, "w+", shape=1)
        TimedTokenizer.spent += time.process_time() - begin
        return ids

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, str]]:
        return TimedTokenizer, (self.model, self.name)


def preparing(data: DataConfig, tokenizer_folder: Path, filtered: bool) -> dict[str, Any]:
    """Reads, tokenises and writes all of it; `filtered` also filters it, and finds duplicates."""
    with tempfile.TemporaryDirectory() as notes:
        tokenizer = TimedTokenizer((tokenizer_folder / JOINT).read_bytes(), notes)
        begin = time.perf_counter()
        store = prepare(data.sources, data, TokenizerPair(tokenizer, tokenizer), is_training=filtered, keep_text=False)
        seconds = time.perf_counter() - begin
        in_encode = sum(float(np.fromfile(note)[0]) for note in Path(notes).iterdir())
    size = sum(path.stat().st_size for path in store.folder.iterdir())
    return {
        "seconds": seconds, "in_encode": in_encode, "pairs": len(store), "bytes": size, "folder": str(store.folder)
    }  # fmt: skip


def describe(made: dict[str, Any], num_pairs: int, bare: float) -> str:
    """What `preparing` found, beside the seconds that SentencePiece alone takes for a pair."""
    cpu = made["cpu"] / num_pairs
    return (
        f"{made['seconds']:.0f} s, {num_pairs / made['seconds']:,.0f} pairs/s; processor {1e6 * cpu:.2f} us a pair, "
        f"SentencePiece alone {1e6 * bare:.2f}: {bare / cpu:.1%} of its rate ({made['in_encode'] / made['cpu']:.1%} "
        f"within its calls); peak {made['peak_mb']:.0f} MB, workers {made['workers_peak_mb']:.0f} MB; "
        f"{made['pairs']:,} pairs kept, {made['bytes'] / made['pairs']:.0f} bytes each"
    )


def loading(folder: str, middle: bool, num_batches: int) -> dict[str, Any]:
    """From nothing to the first batch, in the middle of the second epoch or at the start, and then many batches."""
    # Imported here, so that the processes that prepare start without PyTorch, as they do for the command line.
    from mtformer.data.batching.batches import TrainingBatches
    from mtformer.data.batching.mixture import Corpus, Mixture, SamplerState

    begin = time.perf_counter()
    store = Store(Path(folder))
    training = TrainingBatches(Mixture([Corpus("train", store)], 1), BATCH_TOKENS)
    place = SamplerState(1, len(store) // 2) if middle else SamplerState()
    with training.start(place) as batches:
        next(batches)
        first = time.perf_counter() - begin
        begin, tokens = time.perf_counter(), 0
        for _ in range(num_batches):
            batch = next(batches)
            tokens += batch.num_src_tokens + batch.num_tgt_tokens
        rate = tokens / (time.perf_counter() - begin)
    return {"first_batch_seconds": first, "tokens_per_second": rate}


def measure(options: argparse.Namespace, num_pairs: int) -> Iterator[tuple[str, str]]:
    """(what, figure) of one size."""
    folder = options.folder / str(num_pairs)
    source = make_corpus(options, num_pairs, folder)
    tokenizers = folder / "tokenizer"
    if not tokenizers.is_dir():
        tokenizers.mkdir()
        section = TokenizerConfig(vocab_size=options.vocab_size)
        train_tokenizer(lines(options.src) + lines(options.tgt), section, tokenizers / JOINT)
    for name, filtered in (("without filters", False), ("with the default filters", True)):
        for _ in range(options.repeats):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            before = bare_tokenising(source, tokenizers, min(num_pairs, BARE_PAIRS))
            made = in_process(preparing, config(source, folder / "cache"), tokenizers, filtered)
            bare = (before + bare_tokenising(source, tokenizers, min(num_pairs, BARE_PAIRS))) / 2
            yield f"preparing {name}", describe(made, num_pairs, bare)
    for name, middle in (("start", False), ("resume in mid-epoch", True)):
        found = in_process(loading, made["folder"], middle, options.batches)
        yield (
            name,
            f"first batch after {found['first_batch_seconds']:.2f} s; {found['tokens_per_second']:,.0f} tokens/s; "
            f"peak {found['peak_mb']:.0f} MB",
        )


def main() -> None:
    options = parse_options()
    failed = []
    for num_pairs in options.pairs:
        print(f"## {num_pairs:,} pairs\n", flush=True)
        try:
            for what, figure in measure(options, num_pairs):
                print(f"- {what}: {figure}", flush=True)
                with (options.folder / "data_size.jsonl").open("a") as file:
                    file.write(json.dumps({"pairs": num_pairs, "what": what, "figure": figure}) + "\n")
        except RuntimeError as error:
            failed.append(f"error: {num_pairs:,} pairs: {error}")
        print(flush=True)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
