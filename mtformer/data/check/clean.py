"""Clean a corpus: separate pairs that the filters and translation models accept from pairs that they reject.

OUT/kept.SRC_LANG, OUT/kept.TGT_LANG   the accepted pairs, in order
OUT/removed.tsv                        reason, number of the pair (from 1), source, target
OUT/report.json                        counts
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import compress
from pathlib import Path
from typing import IO

import numpy as np

from mtformer.cluster.workers import Workers
from mtformer.data.corpus.readers import Faults, RawRecords, create_bytes
from mtformer.data.data_report import Columns, DataReport
from mtformer.data.filters.duplicates import Keys, SeenKeys
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

    If `is_compressed`, all files except report.json become `.gz`. `progress` is called with numbers of pairs.

    Raises DataError if the folder exists or cannot be written, or the corpus is empty.
    """
    if folder.is_file():
        raise DataError(f"{folder}: is a file; name the output folder after the config or files")
    if folder.exists():
        raise DataError(f"{folder}: already exists; choose another folder, or delete it")
    src, tgt = pipeline.languages if len(set(pipeline.languages)) == 2 else ("src", "tgt")
    names = [name + ".gz" * is_compressed for name in (f"kept.{src}", f"kept.{tgt}", "removed.tsv")]
    report, seen = DataReport(), SeenKeys()
    with explain_write_errors(f"{folder}:", "choose another folder"), atomic_folder(folder) as temporary:
        with ExitStack() as stack:
            files = [stack.enter_context(create_bytes(temporary / name)) for name in names]
            workers = stack.enter_context(Workers(partial(_filter, pipeline), num_workers))
            for records, (texts, codes, counts, keys, unusual) in workers.map(corpus):
                if keys is not None:
                    kept = np.flatnonzero(codes == KEPT)
                    codes[kept[seen.add(keys)]] = Reason.DUPLICATE.code
                _write(files, texts, codes, report.read + 1)
                report += unusual
                report.leave_out(count_reasons(codes))
                report.count_kept(counts[codes == KEPT])
                progress(records.size)
        if not report.read:
            raise DataError("the corpus is empty: no lines were read")
        report.left_out = in_order(report.left_out)
        write_json(temporary / "report.json", report.to_dict(), indent=2)
    return report


def _filter(
    pipeline: Pipeline, records: RawRecords, num_threads: int
) -> tuple[Columns, Codes, TokenCounts, Keys | None, DataReport]:
    """Return pairs, their codes without duplicates, token counts, keys of kept pairs, and unusual characters."""
    report, faults = DataReport(read=records.size), Faults()
    texts = records.parse(faults)
    report.count_unusual(*texts)
    codes, counts, _ = pipeline.run(texts, num_threads)
    codes[list(faults.errors)] = Reason.INVALID.code
    return texts, codes, counts, pipeline.keys(take(texts, np.flatnonzero(codes == KEPT))), report


def _write(files: Sequence[IO[bytes]], texts: Columns, codes: Codes, first: int) -> None:
    """Write the kept sources, kept targets and removed pairs of a chunk; `first` is the number of its first pair."""
    # A line break inside a line (possible in JSON) would split it into two lines.
    src, tgt = ([line.replace("\n", " ") for line in lines] for lines in texts)
    is_kept = codes == KEPT
    removed = []
    for row in np.flatnonzero(~is_kept).tolist():
        fields = (reason_of(codes[row]), str(first + row), src[row], tgt[row])
        removed.append("\t".join(field.replace("\t", " ") for field in fields))
    for file, lines in zip(files, (compress(src, is_kept), compress(tgt, is_kept), removed), strict=True):
        file.write("".join(f"{line}\n" for line in lines).encode())
