"""Clean a corpus: separate pairs that the filters and translation models accept from pairs that they reject.

OUT/kept.SRC_LANG, OUT/kept.TGT_LANG   the accepted pairs, in order
OUT/removed.tsv                        reason, number of the pair (from 1), source, target
OUT/report.json                        counts
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import IO

import numpy as np

from mtformer.cluster.workers import Workers
from mtformer.data.corpus.readers import Faults, RawRecords, create_bytes
from mtformer.data.data_report import Columns, DataReport
from mtformer.data.filters.duplicates import Keys, Mask, SeenKeys
from mtformer.data.filters.filters import KEPT, Codes, Reason, count_reasons, in_order, reason_of
from mtformer.data.store.pipeline import Pipeline, TokenCounts, take
from mtformer.errors import DataError, explain_write_errors
from mtformer.files import atomic_folder, write_json


def clean(
    corpus: Iterable[RawRecords],
    pipeline: Pipeline,
    folder: Path,
    *,
    is_compressed: bool = False,
    num_workers: int | None = 1,
    progress: Callable[[int], object] = lambda count: None,
) -> DataReport:
    """Read a corpus once and write the output folder atomically.

    Args:
        corpus: the records of the corpus.
        pipeline: filters and tokenizers.
        folder: the output folder, which must not exist.
        is_compressed: compress all files except report.json; their names end with `.gz`.
        num_workers: number of processes; None: number of cores.
        progress: function that is called with the number of pairs of each chunk.

    Raises DataError if the folder exists or cannot be written, or the corpus is empty.
    """
    if folder.is_file():
        raise DataError(f"{folder}: is a file, not a folder; give the folder to write as the last argument")
    if folder.exists():
        raise DataError(f"{folder}: already exists; choose another folder, or delete it")

    report = DataReport()
    seen = SeenKeys()
    filter_chunk = partial(_filter, pipeline)
    with explain_write_errors(f"{folder}:", "choose another folder"), atomic_folder(folder) as temporary:
        with (
            _open_outputs(temporary, pipeline.languages, is_compressed) as outputs,
            Workers(filter_chunk, num_workers) as workers,
        ):
            for records, chunk in workers.map(corpus):
                if chunk.keys is not None:
                    is_repeated = seen.add(chunk.keys)
                    chunk.mark_repeated(is_repeated)
                outputs.write(chunk, first=report.read + 1)

                report += chunk.report
                report.leave_out(count_reasons(chunk.codes))
                kept_counts = chunk.counts[chunk.codes == KEPT]
                report.count_kept(kept_counts)
                progress(records.size)

        if not report.read:
            raise DataError("the corpus is empty: no lines were read; check its files")
        report.left_out = in_order(report.left_out)
        write_json(temporary / "report.json", report.to_dict(), indent=2)
    return report


# ---- worker processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FilteredChunk:
    """Pairs of a chunk with the results of the filters."""

    texts: Columns
    codes: Codes
    """Codes of the reasons for removal."""
    counts: TokenCounts
    keys: Keys | None
    """Keys of the pairs that were kept by the filters; None if duplicates are not removed."""
    report: DataReport
    """Number of pairs and unusual characters."""

    def mark_repeated(self, is_repeated: Mask) -> None:
        """Remove duplicates; `is_repeated` is True for each kept pair that occurred before."""
        kept = np.flatnonzero(self.codes == KEPT)
        self.codes[kept[is_repeated]] = Reason.DUPLICATE.code


def _filter(pipeline: Pipeline, records: RawRecords, num_threads: int) -> _FilteredChunk:
    """Parse and filter a chunk, without looking for duplicates."""
    faults = Faults()
    texts = records.parse(faults)
    report = DataReport(read=records.size)
    report.count_unusual(*texts)

    filtered = pipeline.run(texts, num_threads)
    codes = filtered.codes
    codes[list(faults.errors)] = Reason.INVALID.code
    kept_rows = np.flatnonzero(codes == KEPT)
    kept_texts = take(texts, kept_rows)
    keys = pipeline.keys(kept_texts)
    return _FilteredChunk(texts, codes, filtered.counts, keys, report)


# ---- output files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outputs:
    """Output files, which are open."""

    src: IO[bytes]
    """Sources of the kept pairs."""
    tgt: IO[bytes]
    """Targets of the kept pairs."""
    removed: IO[bytes]
    """Removed pairs."""

    def write(self, chunk: _FilteredChunk, first: int) -> None:
        """Write a chunk; `first` is the number of its first pair."""
        # A line break inside a line (possible in JSON) would split it into two lines.
        src_lines, tgt_lines = chunk.texts
        src = [line.replace("\n", " ") for line in src_lines]
        tgt = [line.replace("\n", " ") for line in tgt_lines]
        is_kept = chunk.codes == KEPT
        _write_lines(self.src, compress(src, is_kept))
        _write_lines(self.tgt, compress(tgt, is_kept))

        removed: list[str] = []
        for row in np.flatnonzero(~is_kept).tolist():
            reason = reason_of(chunk.codes[row])
            pair_number = first + row
            src_cell = src[row].replace("\t", " ")
            tgt_cell = tgt[row].replace("\t", " ")
            removed.append(f"{reason}\t{pair_number}\t{src_cell}\t{tgt_cell}")
        _write_lines(self.removed, removed)


@contextmanager
def _open_outputs(folder: Path, languages: tuple[str, str], is_compressed: bool) -> Iterator[_Outputs]:
    """Create the output files in a folder."""
    src_lang, tgt_lang = languages
    if src_lang == tgt_lang:
        src_lang = "src"
        tgt_lang = "tgt"
    suffix = ".gz" if is_compressed else ""
    src_file = folder / f"kept.{src_lang}{suffix}"
    tgt_file = folder / f"kept.{tgt_lang}{suffix}"
    removed_file = folder / f"removed.tsv{suffix}"
    with create_bytes(src_file) as src, create_bytes(tgt_file) as tgt, create_bytes(removed_file) as removed:
        yield _Outputs(src, tgt, removed)


def _write_lines(file: IO[bytes], lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    file.write(text.encode())
