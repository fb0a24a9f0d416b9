"""Where sentence pairs come from: parallel text files, TSV, JSONL, and Hugging Face `datasets`.

What looks odd inside a line stays there and is counted in the data report.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mtformer.config.data import DataConfig, JsonlFile, Source, TextFiles, TsvFile
from mtformer.data import hub
from mtformer.data.compressed import open_bytes
from mtformer.data.records import JsonlRecords, Lines, Records, TextRecords, TsvRecords, told
from mtformer.data.report import Pair
from mtformer.errors import DataError
from mtformer.files import file_sha256

RECORDS_AT_ONCE = 1000


def read_pairs(source: Source, data: DataConfig) -> Iterator[Pair]:
    """All pairs of a source, in their order, read as they are asked for.

    Args:
        source: where from.
        data: the languages, whose codes are the default fields.

    Raises:
        DataError: a file is missing, damaged, or not UTF-8; files of unequal length; a column or field is not there;
            the hub cannot be reached.
    """
    with open_records(source, data) as records:
        while (some := records.take(RECORDS_AT_ONCE)).size:
            yield from zip(*some.parse(), strict=True)


@contextmanager
def open_records(source: Source, data: DataConfig, *, is_lenient: bool = False) -> Iterator[Records]:
    """Open the records of a source.

    Args:
        source: where from.
        data: the languages, whose codes are the default fields.
        is_lenient: Accept files of unequal length, and a first JSON line that cannot be parsed.

    Raises:
        DataError: a file is missing, or its packing damaged; the hub cannot be reached.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(Lines(path)) for path in files_of(source)]
        if isinstance(source, TextFiles):
            yield TextRecords(source, *files, is_lenient=is_lenient)
        elif isinstance(source, TsvFile):
            yield TsvRecords(source, *files)
        elif isinstance(source, JsonlFile):
            yield JsonlRecords(source, data, *files, is_lenient=is_lenient)
        else:
            yield hub.HubRecords(source, data)


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
    return hub.describe(source)


def files_of(source: Source) -> list[str]:
    """The files of lines that a source is; none of a data set."""
    return [getattr(source, key) for key in ("src", "tgt", "tsv", "jsonl") if hasattr(source, key)]


def bytes_on_disk(source: Source) -> int:
    """How much there is to read; 0 where that is not known."""
    return sum(os.path.getsize(path) for path in files_of(source) if os.path.isfile(path))


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
        with open_records(source, data) as records:
            records.take(1).parse()
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
        fields = [source.src_field, source.tgt_field, *languages(source, data)]
        what = [*hub.version(source), source.dataset, source.name, source.split, source.revision, *fields]
    return hashlib.sha256(json.dumps([type(source).__name__, *what]).encode()).hexdigest()


def file_states(sources: Iterable[Source]) -> dict[str, tuple[int, int, int]]:
    """Return the size, modification time and inode of each file of the sources.

    Raises:
        DataError: when a file is missing.
    """
    states = {}
    for path in (path for source in sources for path in files_of(source)):
        with told(path):
            status = os.stat(path)
        states[path] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return states


def require_unchanged(sources: Iterable[Source], states: dict[str, tuple[int, int, int]]) -> None:
    """Raise DataError if a file of the sources was changed or replaced since `file_states` returned `states`."""
    for path, state in file_states(sources).items():
        if state != states[path]:
            raise DataError(changed(path))


def changed(what: str) -> str:
    """Return the error message for a file or data set that changed while it was being read."""
    return f"{what} changed while it was being read; run the command again"


def _sha256(path: str) -> str:
    with told(path):
        return file_sha256(path)
