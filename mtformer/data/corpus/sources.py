"""Sources of sentence pairs: parallel text files, TSV, JSONL and Hugging Face datasets.

Unusual characters in a line are kept and counted in the data report.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mtformer.config.data import DataConfig, HubDataset, JsonlFile, Source, TextFiles, TsvFile
from mtformer.data.corpus import hub, readers
from mtformer.data.data_report import Pair
from mtformer.errors import DataError
from mtformer.files import file_sha256, json_sha256, require_file

CHANGED = "{} changed while it was being read; run the command again"


def read_pairs(source: Source, data: DataConfig) -> Iterator[Pair]:
    """Yield all pairs of a source in order; the language codes in `data` determine the default fields.

    Raises DataError if the source is missing or damaged, a line is faulty, or files have different numbers of lines.
    """
    for records in read_records(source, data, readers.LINES_AT_ONCE):
        yield from zip(*records.texts(), strict=True)


def read_records(source: Source, data: DataConfig, size: int) -> Iterator[readers.RawRecords]:
    """Yield up to `size` records at a time; raise DataError like `read_pairs`, but not for faults inside lines."""
    with open_reader(source, data) as reader:
        while (records := reader.take(size)).size:
            yield records


@contextmanager
def open_reader(source: Source, data: DataConfig) -> Iterator[readers.FileReader | hub.HubReader]:
    """Open a reader for a source; raise DataError if a file is missing or damaged, or the Hub cannot be reached."""
    with ExitStack() as stack:
        files = [stack.enter_context(readers.Lines(path)) for path in files_of(source)]
        if isinstance(source, TextFiles):
            yield readers.FileReader(partial(readers.parse_text, source), *files)
        elif isinstance(source, TsvFile):
            yield readers.FileReader(partial(readers.parse_tsv, source), *files)
        elif isinstance(source, JsonlFile):
            yield readers.FileReader(partial(readers.parse_jsonl, source, data.languages(source)), *files)
        else:
            yield hub.HubReader(source, data.languages(source))


def describe(source: Source) -> str:
    """Return the names of the files or the dataset for messages."""
    return hub.describe(source) if isinstance(source, HubDataset) else " and ".join(files_of(source))


def files_of(source: Source) -> list[str]:
    """Return the files of a source; empty for a dataset."""
    return [getattr(source, key) for key in ("src", "tgt", "tsv", "jsonl") if hasattr(source, key)]


def bytes_on_disk(source: Source) -> int:
    """Return the size of the files in bytes; 0 if unknown."""
    return sum(os.path.getsize(path) for path in files_of(source) if os.path.isfile(path))


def require_files(sources: Iterable[Source]) -> None:
    """Open each file, so that a missing one is reported early; raise DataError if one cannot be opened.

    Pipes are not opened, because closing one would terminate the process that writes to it.
    """
    for path in (path for source in sources for path in files_of(source)):
        if not Path(path).is_fifo():
            with readers.reading(path), readers.open_bytes(path):
                pass


def require_sources(data: DataConfig) -> None:
    """Read the first pair of each training source and the whole dev set, to report user errors early.

    Raises DataError like `read_pairs`, and if a training, dev or test file is missing or is a pipe.
    """
    sources = [*data.sources, *data.dev_sources, *data.test.values()]
    file_states(sources)
    for source in data.sources:
        with open_reader(source, data) as reader:
            reader.take(1).texts()
    for source in data.dev_sources:
        deque(read_pairs(source, data), maxlen=0)


def source_fingerprint(source: Source, data: DataConfig) -> str:
    """Return a hash of the contents and settings of a source; raise DataError if it is missing or cannot be loaded."""
    content: list[Any] = []
    for path in files_of(source):
        with readers.reading(path):
            content.append(file_sha256(path))
    if isinstance(source, TsvFile):
        content += [source.src_column, source.tgt_column]
    elif isinstance(source, HubDataset):
        content += [*hub.version(source), source.dataset, source.name, source.split, source.revision]
    if isinstance(source, (JsonlFile, HubDataset)):
        content += [source.src_field, source.tgt_field, *data.languages(source)]
    return json_sha256([type(source).__name__, *content])


def file_states(sources: Iterable[Source]) -> dict[str, tuple[int, int, int]]:
    """Return the size, modification time and inode number of each file; raise DataError if it is missing or a pipe."""
    states = {}
    for path in (path for source in sources for path in files_of(source)):
        with readers.reading(path):
            require_file(path)
            status = os.stat(path)
        states[path] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return states


def require_unchanged(sources: Iterable[Source], states: dict[str, tuple[int, int, int]]) -> None:
    """Raise DataError if a file was changed or replaced since `file_states` returned `states`."""
    for path, state in file_states(sources).items():
        if state != states[path]:
            raise DataError(CHANGED.format(path))


def require_same_version(source: Source, data: DataConfig, fingerprint: str) -> None:
    """Raise DataError if a Hugging Face dataset has changed since its fingerprint was computed."""
    if isinstance(source, HubDataset) and source_fingerprint(source, data) != fingerprint:
        raise DataError(CHANGED.format(describe(source)))
