"""Sources of sentence pairs: parallel text files, TSV, JSONL and Hugging Face datasets.

Unusual characters in a line are kept and counted in the data report.
"""

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from mtformer.config.data import DataConfig, HubDataset, JsonlFile, Source, TextFiles, TsvFile
from mtformer.data.corpus import hub, readers
from mtformer.data.corpus.formats import Content
from mtformer.data.data_report import Pair
from mtformer.errors import DataError, log
from mtformer.files import (
    MADE_FROM,
    TEACHER,
    DamagedError,
    FileState,
    file_sha256,
    file_state,
    json_sha256,
    read_json,
    read_meta,
    require_file,
)

CHANGED = "{} changed while it was being read; run the command again"
"""Message for a file or dataset, whose name is to be inserted."""

RECORDS = {"distilled.tsv": TEACHER, "train.tsv": MADE_FROM, "dev.tsv": MADE_FROM, "replay.tsv": MADE_FROM}
"""Files in NEW/corpus that `distill` and `adapt` write for the training, and the records with their checksums."""
OLD_TEACHER_KEYS = {"teachers", "corpora", "monolingual"}
"""Keys of a record that `distill` wrote in version 0.3."""

_warn_once = cache(log.warning)


def read_pairs(source: Source, data: DataConfig) -> Iterator[Pair]:
    """Yield all pairs of a source in order; the language codes in `data` determine the default fields.

    Raises DataError if the source is missing or damaged, a line is faulty, or files have different numbers of lines.
    """
    for records in read_raw_records(source, data, readers.LINES_AT_ONCE):
        yield from zip(*records.texts(), strict=True)


def read_raw_records(source: Source, data: DataConfig, size: int) -> Iterator[readers.RawRecords]:
    """Yield the records of a source in order; raise DataError like `read_pairs`, but not for faults inside lines.

    A source without records is an error.

    Args:
        source: the source.
        data: the `data` section, whose language codes determine the default fields.
        size: maximum number of records at a time.
    """
    with open_reader(source, data) as reader:
        records = reader.take(size)
        if not records.size:
            refuse_empty(source)
        while records.size:
            yield records
            records = reader.take(size)


def refuse_empty(source: Source) -> NoReturn:
    """Raise DataError for a source without records; DamagedError for text of `distill` or `adapt` that was emptied."""
    for path in files_of(source):
        if os.path.isfile(path):
            require_recorded(Path(path), file_sha256(path))
    raise DataError(f"{describe(source)}: the corpus is empty: no lines were read; check its files")


@contextmanager
def open_reader(source: Source, data: DataConfig) -> Iterator[readers.FileReader | hub.HubReader]:
    """Open a reader for a source; raise DataError if a file is missing or damaged, or the Hub cannot be reached."""
    with ExitStack() as stack:
        accepted = _accepted(source)
        files = [stack.enter_context(readers.Lines(path, accepted)) for path in files_of(source)]
        languages = data.languages(source)
        if isinstance(source, TextFiles):
            yield readers.FileReader(partial(readers.parse_text, source), *files)
        elif isinstance(source, TsvFile):
            _warn_of_other_columns(source, files[0].head)
            yield readers.FileReader(partial(readers.parse_tsv, source), *files)
        elif isinstance(source, JsonlFile):
            yield readers.FileReader(partial(readers.parse_jsonl, source, languages), *files)
        else:
            yield hub.HubReader(source, languages)


def _warn_of_other_columns(source: TsvFile, head: bytes) -> None:
    """Log a warning if a file has more columns than are read, and the config does not name the columns."""
    first_line, _, _ = head.partition(b"\n")
    num_columns = first_line.count(b"\t") + 1
    is_chosen = not source.model_fields_set.isdisjoint(("src_column", "tgt_column"))
    if num_columns > max(source.src_column, source.tgt_column) and not is_chosen:
        _warn_once(
            "%s: has %d columns, of which %d (source) and %d (target) are read; set src_column and tgt_column in a "
            "config if these are not the sentences",
            source.tsv,
            num_columns,
            source.src_column,
            source.tgt_column,
        )


def _accepted(source: Source) -> Collection[Content]:
    """Return the contents other than plain text that the files of a source may have."""
    if isinstance(source, TsvFile):
        return ()
    if isinstance(source, JsonlFile):
        return (Content.JSON_LINES, *readers.TEXT)
    return readers.TEXT


def describe(source: Source) -> str:
    """Return the names of the files or the dataset for messages."""
    if isinstance(source, HubDataset):
        return hub.describe(source)
    return " and ".join(files_of(source))


def files_of(source: Source) -> list[str]:
    """Return the files of a source; empty for a dataset."""
    if isinstance(source, TextFiles):
        return [source.src, source.tgt]
    if isinstance(source, TsvFile):
        return [source.tsv]
    if isinstance(source, JsonlFile):
        return [source.jsonl]
    return []


def _all_files(sources: Iterable[Source]) -> Iterator[str]:
    for source in sources:
        yield from files_of(source)


def bytes_on_disk(source: Source) -> int:
    """Return the size of the files in bytes; 0 if unknown."""
    paths = filter(os.path.isfile, files_of(source))
    return sum(map(os.path.getsize, paths))


def require_files(sources: Iterable[Source]) -> None:
    """Open each file, so that a missing or wrong one is reported early; raise DataError if one cannot be opened.

    Pipes are not opened, because closing one would terminate the process that writes to it.
    """
    for source in sources:
        for path in files_of(source):
            if not Path(path).is_fifo():
                with readers.reading(path), readers.open_text(path, _accepted(source)):
                    pass


def require_sources(data: DataConfig) -> None:
    """Read the first pair of each training source and the whole dev set, to report user errors early.

    Raises DataError like `read_pairs`, and if a training, dev or test file is missing or is a pipe.
    """
    all_sources = [*data.sources, *data.dev_sources, *data.test.values()]
    file_states(all_sources)  # reports missing files and pipes
    for source in data.sources:
        with open_reader(source, data) as reader:
            first = reader.take(1)
            first.texts()
        if not first.size:
            refuse_empty(source)
    for source in data.dev_sources:
        deque(read_pairs(source, data), maxlen=0)


def source_fingerprint(source: Source, data: DataConfig) -> str:
    """Return a hash of the contents and settings of a source; raise DataError if it is missing or cannot be loaded.

    Raise DamagedError for text of `distill` or `adapt` that has changed.
    """
    content: list[Any] = []
    for path in files_of(source):
        with readers.reading(path):
            sha256 = file_sha256(path)
        require_recorded(Path(path), sha256)
        content.append(sha256)

    if isinstance(source, TsvFile):
        content += [source.src_column, source.tgt_column]
    elif isinstance(source, HubDataset):
        content += hub.version(source)
        content += [source.dataset, source.name, source.split, source.revision]
    if isinstance(source, (JsonlFile, HubDataset)):
        content += [source.src_field, source.tgt_field, *data.languages(source)]
    return json_sha256([type(source).__name__, *content])


def require_recorded(path: Path, sha256: str) -> None:
    """Raise DamagedError if `distill` or `adapt` wrote a file with another SHA-256 than this, or its record is damaged.

    Any other file, and one that version 0.3 wrote, has no recorded checksum and is not checked.
    """
    record = RECORDS.get(path.name)
    if record is None:
        return
    record_file = path.parent / record
    if not record_file.exists() or is_without_checksums(record_file):
        return

    recorded = read_meta(path.parent, record)["sha256"]
    if recorded.get(path.name) != sha256:
        raise DamagedError(path, "truncated or changed since it was saved", record)


def is_without_checksums(record: Path) -> bool:
    """Return True for a record of `distill` or `adapt` that version 0.3 wrote; log a warning for it."""
    try:
        value = read_json(record)
    except (OSError, ValueError):
        return False  # damaged

    is_old_adaptation = isinstance(value, list)
    is_old_teacher = isinstance(value, dict) and value.keys() == OLD_TEACHER_KEYS
    is_old = is_old_adaptation or is_old_teacher
    if is_old:
        _warn_once("%s: has no checksums, because version 0.3 wrote it; its text is not verified", record)
    return is_old


def path_states(paths: Iterable[str]) -> dict[str, FileState]:
    """Return the state of each file; raise DataError if it is missing, or is a pipe."""
    states: dict[str, FileState] = {}
    for path in paths:
        with readers.reading(path):
            require_file(path)
            states[path] = file_state(path)
    return states


def require_same_states(states: dict[str, FileState]) -> None:
    """Raise DataError if a file was changed or replaced since `path_states` returned `states`."""
    for path, state in path_states(states).items():
        if state != states[path]:
            raise DataError(CHANGED.format(path))


def file_states(sources: Iterable[Source]) -> dict[str, FileState]:
    """Return the state of each file of the sources; see `path_states`."""
    return path_states(_all_files(sources))


def require_unchanged(sources: Iterable[Source], states: dict[str, FileState]) -> None:
    """Raise DataError if a file was changed or replaced since `file_states` returned `states`."""
    states_of_sources = {path: states[path] for path in _all_files(sources)}
    require_same_states(states_of_sources)


def require_same_version(source: Source, data: DataConfig, fingerprint: str) -> None:
    """Raise DataError if a Hugging Face dataset has changed; for arguments see `require_same_contents`."""
    if isinstance(source, HubDataset):
        require_same_contents(source, data, fingerprint)


def require_same_contents(source: Source, data: DataConfig, fingerprint: str) -> None:
    """Raise DataError if the contents of a source have changed.

    Args:
        source: the source.
        data: the `data` section, which has the language codes.
        fingerprint: earlier result of `source_fingerprint`.
    """
    if source_fingerprint(source, data) != fingerprint:
        raise DataError(CHANGED.format(describe(source)))
