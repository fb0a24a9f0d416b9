"""Where sentence pairs come from: parallel text files, TSV, JSONL, and Hugging Face `datasets`.

A line ends at \\n and nowhere else; a \\r before it (files from Windows) and a byte order mark at the start of a file
are taken off. What else looks odd inside a line stays there and is counted in the data report.
"""

import contextlib
import gzip
import hashlib
import json
import logging
import lzma
import os
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from mtformer.config.data import DataConfig, HubDataset, JsonlFile, Source, TextFiles, TsvFile
from mtformer.data.compressed import BLOCK_BYTES, open_bytes
from mtformer.data.report import Pair
from mtformer.data.rows import Fields, RowError, parse_row
from mtformer.errors import DataError
from mtformer.rundir import file_sha256

ROWS_AT_ONCE = 1000
OFFLINE = (
    "give a folder of downloaded files as `dataset` (made elsewhere by `hf download --repo-type dataset NAME "
    "--local-dir FOLDER`), or local files as `src` and `tgt`, `tsv` or `jsonl`"
)


def read_pairs(source: Source, data: DataConfig) -> Iterator[Pair]:
    """All pairs of a source, in their order, read as they are asked for.

    Args:
        source: where from.
        data: the languages, whose codes are the default fields.

    Raises:
        DataError: a file is missing, damaged, or not UTF-8; files of unequal length; a column or field is not there;
            the hub cannot be reached.
    """
    return _read(source, data, 0, is_streamed=False)


def stream_pairs(source: Source, data: DataConfig, start: int = 0) -> Generator[Pair, None, int]:
    """The pairs of a source from number `start` on, counted from 0; those before are passed over without a look.

    Of a Hugging Face data set nothing is kept on the disk. When it is at its end, the generator returns how many pairs
    the source has.

    Raises:
        DataError: as `read_pairs`.
    """
    return _read(source, data, start, is_streamed=True)


def _read(source: Source, data: DataConfig, start: int, is_streamed: bool) -> Generator[Pair, None, int]:
    if isinstance(source, TextFiles):
        return _read_text_files(source, start)
    if isinstance(source, TsvFile):
        return _read_tsv(source, start)
    if isinstance(source, JsonlFile):
        return _read_jsonl(source, data, start)
    return _read_hub(source, data, start, is_streamed)


def languages(source: Source, data: DataConfig) -> tuple[str, str]:
    """Codes of its source and target language."""
    return source.src_lang or data.src_lang, source.tgt_lang or data.tgt_lang


def describe(source: Source) -> str:
    """The source in a few words, for messages."""
    if isinstance(source, TextFiles):
        return f"{source.src} and {source.tgt}"
    if isinstance(source, TsvFile):
        return source.tsv
    if isinstance(source, JsonlFile):
        return source.jsonl
    return " ".join(filter(None, (source.dataset, source.name, source.split)))


def files_of(source: Source) -> list[str]:
    """The files of lines that a source is; none of a data set."""
    return [getattr(source, key) for key in ("src", "tgt", "tsv", "jsonl") if hasattr(source, key)]


def require_files(sources: Iterable[Source]) -> None:
    """Opens each file, so that one that is missing is told before a long work begins.

    Raises:
        DataError: when one cannot be opened.
    """
    for path in (path for source in sources for path in files_of(source)):
        with told(path), open_bytes(path):
            pass


def require_sources(data: DataConfig) -> None:
    """Reads the first pair of each training source and all of dev, so that mistakes are told before a long work begins.

    Raises:
        DataError: as `read_pairs`, for what shows there; when a file of train, dev or test is missing.
    """
    require_files([*data.sources, *data.dev, *data.test.values()])
    for source in data.sources:
        next(_read(source, data, 0, is_streamed=data.streaming), None)
    for source in data.dev:
        deque(read_pairs(source, data), maxlen=0)


def source_fingerprint(source: Source, data: DataConfig) -> str:
    """A hash of what a source holds and how it is read; the names and times of files do not matter.

    Raises:
        DataError: as `read_pairs`, for what shows without reading.
    """
    if isinstance(source, TextFiles):
        what: list[Any] = [_sha256(source.src), _sha256(source.tgt)]
    elif isinstance(source, TsvFile):
        what = [_sha256(source.tsv), source.src_column, source.tgt_column]
    elif isinstance(source, JsonlFile):
        what = [_sha256(source.jsonl), source.src_field, source.tgt_field, *languages(source, data)]
    else:
        # `datasets` names its Arrow files by a hash of what they were made from.
        rows = _load_hub(source)
        made_from = [str(Path(file["filename"]).parent) for file in rows.cache_files]
        fields = [source.src_field, source.tgt_field, *languages(source, data)]
        what = [*made_from, source.dataset, source.name, source.split, source.revision, len(rows), *fields]
    return hashlib.sha256(json.dumps([type(source).__name__, *what]).encode()).hexdigest()


def stream_fingerprint(source: Source, data: DataConfig) -> str:
    """As `source_fingerprint`, without reading: of files their paths, sizes and times, of data sets their names.

    Raises:
        DataError: when a file is missing.
    """
    what: list[Any] = [source.model_dump(), *languages(source, data)]
    for path in files_of(source):
        with told(path):
            status = os.stat(path)
        what += [status.st_size, status.st_mtime_ns]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _sha256(path: str) -> str:
    with told(path):
        return file_sha256(path)


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Turns what goes wrong in reading a file into one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path in the config's data section") from error
    except IsADirectoryError as error:
        raise DataError(
            f"{path}: is a folder, not a file; for a Hugging Face data set use `dataset: {path}`"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: the compressed file is damaged or cut short ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Lines:
    """Lines of a UTF-8 file, without their ends, from number `start` on, counted from 0."""

    def __init__(self, path: str, start: int = 0) -> None:
        self.path, self.start = path, start
        self.number = 0
        """At the end, lines of the file."""

    def __iter__(self) -> Iterator[str]:
        with told(self.path), open_bytes(self.path) as file:
            self.number = sum(1 for _ in islice(file, self.start))
            # Many lines at once: each alone would take twice as long.
            while block := file.read(BLOCK_BYTES) + file.readline():
                if self.number == 0:
                    block = block.removeprefix(b"\xef\xbb\xbf")
                lines = self._decoded(block).removesuffix("\n").split("\n")
                yield from [line.removesuffix("\r") for line in lines] if b"\r" in block else lines
                self.number += len(lines)

    def _decoded(self, block: bytes) -> str:
        try:
            return block.decode("utf-8")
        except UnicodeDecodeError as error:
            number = self.number + 1 + block.count(b"\n", 0, error.start)
            column = error.start - block.rfind(b"\n", 0, error.start)
            raise DataError(
                f"{self.path}:{number}: not UTF-8 (byte {block[error.start]:#04x} at column {column}); convert the "
                "file with iconv, or mend the line"
            ) from error


def _read_text_files(source: TextFiles, start: int) -> Generator[Pair, None, int]:
    src, tgt = _Lines(source.src, start), _Lines(source.tgt, start)
    src_lines, tgt_lines = iter(src), iter(tgt)
    for src_line, tgt_line in zip_longest(src_lines, tgt_lines):
        if src_line is None or tgt_line is None:
            deque(src_lines if tgt_line is None else tgt_lines, maxlen=0)
            break
        yield src_line, tgt_line
    if src.number != tgt.number:
        raise DataError(
            f"{source.src} has {src.number:,} lines but {source.tgt} has {tgt.number:,}; parallel files need as many "
            "lines, which end at \\n alone"
        )
    return src.number


def _read_tsv(source: TsvFile, start: int) -> Generator[Pair, None, int]:
    src, tgt, lines = source.src_column, source.tgt_column, _Lines(source.tsv, start)
    for number, line in enumerate(lines, start + 1):
        columns = line.split("\t")
        if len(columns) < max(src, tgt):
            asked = "src_column" if src > len(columns) else "tgt_column"
            raise DataError(
                f"{source.tsv}:{number}: {asked} asks for column {getattr(source, asked)}, but the line has "
                f"{len(columns)} (split at tabs, counted from 1)"
            )
        yield columns[src - 1], columns[tgt - 1]
    return lines.number


def _read_jsonl(source: JsonlFile, data: DataConfig, start: int) -> Generator[Pair, None, int]:
    lines, fields = _Lines(source.jsonl, start), None
    for number, line in enumerate(lines, start + 1):
        try:
            row = parse_row(line)
            fields = fields or Fields.of(source, data, row)
            pair = fields.pair(row)
        except RowError as error:
            raise DataError(f"{source.jsonl}:{number}: {error}") from error
        yield pair
    return lines.number


def _read_hub(source: HubDataset, data: DataConfig, start: int, is_streamed: bool) -> Generator[Pair, None, int]:
    where, number, fields = describe(source), 0, None
    with _told_of_hub(where):
        # As Arrow tables, of which rows are passed over without a look.
        for table in _load_hub(source, is_streamed).with_format("arrow").iter(batch_size=ROWS_AT_ONCE):
            num_before = min(table.num_rows, max(0, start - number))
            number += num_before
            for row in table.slice(num_before).to_pylist():
                number += 1
                fields = fields or Fields.of(source, data, row)
                try:
                    pair = fields.pair(row)
                except RowError as error:
                    raise DataError(f"{where}, row {number}: {error}") from error
                yield pair
    return number


def _load_hub(source: HubDataset, is_streamed: bool = False) -> Any:
    """The split as a `datasets.Dataset`, or as an `IterableDataset`."""
    import datasets  # takes a second to import

    was_shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    # It warns of each of its five attempts to reach the hub; what comes of them is told here.
    log_of_hub = logging.getLogger("huggingface_hub")
    level = log_of_hub.level
    log_of_hub.setLevel(logging.ERROR)
    try:
        with _told_of_hub(describe(source)):
            return datasets.load_dataset(
                source.dataset, source.name, split=source.split, revision=source.revision, streaming=is_streamed
            )
    finally:
        log_of_hub.setLevel(level)
        if was_shown:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _told_of_hub(where: str) -> Iterator[None]:
    """Turns what goes wrong in loading or reading a data set into one line."""
    import datasets

    try:
        yield
    except ConnectionError as error:
        raise DataError(
            f"{where}: the Hugging Face hub cannot be reached; check the connection, or {OFFLINE}"
        ) from error
    except datasets.exceptions.DatasetNotFoundError as error:
        raise DataError(
            f"{where}: no such data set on the hub, and no such folder; check the name, or {OFFLINE}"
        ) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        raise DataError(f"{where}: cannot be loaded: {reason:.300}") from error
