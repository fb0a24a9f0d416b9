"""Clean a corpus: separate pairs that the filters and translation models accept from pairs that they reject.

OUT/kept.SRC_LANG, OUT/kept.TGT_LANG   the accepted pairs, in order
OUT/removed.tsv                        reason, number of the pair (from 1), source, target
OUT/report.json                        counts
"""

import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from mtformer.data.corpus.readers import Faults, RawRecords, create_bytes
from mtformer.data.data_report import Columns, DataReport
from mtformer.data.filters.duplicates import Keys, SeenKeys
from mtformer.data.filters.filters import DUPLICATE, INVALID, KEPT, REASONS, code, count_reasons, in_order
from mtformer.data.store.pipeline import Pipeline, TokenCounts, take
from mtformer.data.workers import Workers
from mtformer.errors import DataError, explain_write_errors
from mtformer.files import atomic_folder

log = logging.getLogger("mtformer")


class _Chunk(NamedTuple):
    """Consecutive pairs with the codes of their reasons for removal."""

    texts: Columns
    codes: NDArray[np.uint8]
    counts: TokenCounts


def clean(
    corpus: Iterable[RawRecords],
    pipeline: Pipeline,
    folder: Path,
    *,
    is_compressed: bool = False,
    num_workers: int | None = 1,
    progress: Callable[[int], object] = lambda count: None,
) -> DataReport:
    """Read a corpus once and write the output folder atomically. This needs 8 bytes of memory per pair.

    If `is_compressed`, all files except report.json are written as
    `.gz`. `progress` is called with the number of pairs processed since the last call.

    Raises DataError if the folder exists or cannot be written, or the corpus is empty.
    """
    if folder.exists():
        raise DataError(f"{folder}: already exists; choose another folder, or delete it")
    report = DataReport()
    with explain_write_errors(f"{folder}:", "choose another folder"), atomic_folder(folder) as temporary:
        with (
            _open_files(temporary, pipeline.languages, is_compressed) as write,
            Workers(partial(_filter, pipeline), num_workers) as workers,
        ):
            for chunk in _filtered(workers.map(corpus), report, progress):
                write(chunk, report.read + 1)
                report.read += len(chunk.codes)
                report.leave_out(count_reasons(chunk.codes))
                report.count_kept(chunk.counts[chunk.codes == KEPT])
        if not report.read:
            raise DataError("the corpus is empty: no lines were read")
        report.left_out = in_order(report.left_out)
        counts = json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
        (temporary / "report.json").write_text(counts + "\n", encoding="utf-8")
    return report


_FilterResult = tuple[_Chunk, Keys | None, DataReport]
"""A chunk, the duplicate keys of the kept pairs, and a report on unusual characters."""


def _filter(pipeline: Pipeline, records: RawRecords, num_threads: int) -> _FilterResult:
    report, faults = DataReport(), Faults()
    texts = records.parse(faults)
    report.count_unusual(*texts)
    filtered = pipeline.run(texts, num_threads)
    filtered.codes[list(faults.errors)] = code(INVALID)
    kept = take(texts, np.flatnonzero(filtered.codes == KEPT))
    return _Chunk(texts, filtered.codes, filtered.counts), pipeline.keys(kept), report


def _filtered(
    results: Iterable[tuple[RawRecords, _FilterResult]], report: DataReport, progress: Callable[[int], object]
) -> Iterator[_Chunk]:
    """Yield the filtered chunks in order, with duplicates marked."""
    seen = SeenKeys()
    for records, (chunk, keys, unusual) in results:
        report.unusual = (report + unusual).unusual
        if keys is not None:
            chunk.codes[np.flatnonzero(chunk.codes == KEPT)[seen.add(keys)]] = code(DUPLICATE)
        yield chunk
        progress(records.size)


@contextmanager
def _open_files(
    folder: Path, languages: tuple[str, str], is_compressed: bool
) -> Iterator[Callable[[_Chunk, int], None]]:
    """Create the files and yield a function that writes a chunk, given the number of its first pair."""
    with ExitStack() as stack:

        def create(name: str) -> TextIO:
            raw = stack.enter_context(create_bytes(folder / (f"{name}.gz" if is_compressed else name)))
            return stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))

        ends = languages if languages[0] != languages[1] else ("src", "tgt")
        kept_files = [create(f"kept.{end}") for end in ends]
        removed = create("removed.tsv")

        def write(chunk: _Chunk, first: int) -> None:
            is_kept = chunk.codes == KEPT
            for lines, file in zip(chunk.texts, kept_files, strict=True):
                # A line break inside a line (possible in JSON) would split it into two lines.
                file.writelines(line.replace("\n", " ") + "\n" for line in compress(lines, is_kept.tolist()))
            for row in np.flatnonzero(~is_kept).tolist():
                pair = [lines[row].replace("\n", " ").replace("\t", " ") for lines in chunk.texts]
                removed.write("\t".join([REASONS[chunk.codes[row] - 1], str(first + row), *pair]) + "\n")

        yield write
