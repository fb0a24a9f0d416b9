"""Read datasets from the Hugging Face Hub or local folders with `datasets`."""

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mtformer.config.data import HubDataset
from mtformer.data.corpus.readers import Faults, RawRecords, field_of, parse_rows
from mtformer.data.data_report import Columns
from mtformer.errors import DataError

ROWS_AT_ONCE = 1000
"""Number of rows that are loaded together."""

OFFLINE = (
    "give a folder of downloaded files as `dataset` (from `hf download --repo-type dataset NAME --local-dir FOLDER` "
    "on another machine), or local files as `src` and `tgt`, `tsv` or `jsonl`"
)
"""Remedy without a connection to the Hub."""


class HubReader:
    """Reader of the rows of a dataset; raises DataError if it cannot be loaded."""

    position = 0
    """Number of bytes read from disk, which is unknown."""

    def __init__(self, source: HubDataset, languages: tuple[str, str]) -> None:
        self._source = source
        self._languages = languages
        self._tables = _load(source).with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
        self._rows: Any = None
        """Rows of the current table that have not been returned yet."""
        self._number = 0
        """Index of the next row, starting at 0."""

    def take(self, count: int) -> RawRecords:
        """Return the next rows, at most `count`."""
        with _loading(describe(self._source)):
            if self._rows is None or not self._rows.num_rows:
                tables = (table for table in self._tables if table.num_rows)
                self._rows = next(tables, None)
        if self._rows is None:
            return RawRecords(0, lambda faults: ([], []))

        rows = self._rows.slice(0, count)
        self._rows = self._rows.slice(count)
        first = self._number
        self._number += rows.num_rows

        rows = self._select_fields(rows)
        rows = rows.take(np.arange(rows.num_rows))  # a copy, because pickling a slice would include the whole dataset
        parse = partial(_parse, self._source, self._languages, rows, first)
        return RawRecords(rows.num_rows, parse)

    def _select_fields(self, rows: Any) -> Any:
        """Return the rows without the columns that contain no text, according to the first row."""
        example = rows.slice(0, 1).to_pylist()[0]
        src_lang, tgt_lang = self._languages
        src_keys = field_of(example, self._source.src_field, src_lang)
        tgt_keys = field_of(example, self._source.tgt_field, tgt_lang)
        columns = {src_keys[0], tgt_keys[0]}
        if not columns.issubset(rows.column_names):
            return rows  # so that the error message lists all columns
        return rows.select(sorted(columns))


def _parse(source: HubDataset, languages: tuple[str, str], rows: Any, first: int, faults: Faults) -> Columns:
    place = f"{describe(source)}, row "
    return parse_rows(source, languages, rows.to_pylist(), place, first, faults)


def describe(source: HubDataset) -> str:
    """Return the name of the dataset for messages."""
    parts = (source.dataset, source.name, source.split)
    return " ".join(filter(None, parts))


def _load(source: HubDataset) -> Any:
    """Return the split as a `datasets.Dataset`, or as an `IterableDataset` if it is streamed."""
    with _loading(describe(source)) as datasets:
        return datasets.load_dataset(
            source.dataset, source.name, split=source.split, revision=source.revision, streaming=source.stream
        )


def version(source: HubDataset) -> list[str]:
    """Return strings that identify the contents of a dataset: they depend on the commit or the local files."""
    if not source.stream:
        # `datasets` names its Arrow files after a hash of their source.
        rows = _load(source)
        folders = [str(Path(file["filename"]).parent) for file in rows.cache_files]
        return [*folders, str(len(rows))]

    with _loading(describe(source)) as datasets:
        builder = datasets.load_dataset_builder(source.dataset, source.name, revision=source.revision)
        # `hash` is the resolved commit; the folder name contains commits or modification times of the files.
        return [str(builder.hash), str(builder.cache_dir)]


@contextlib.contextmanager
def _loading(where: str) -> Iterator[Any]:
    """Yield the `datasets` module; convert its errors to DataError; disable progress bars and retry warnings."""
    import datasets  # importing takes a second

    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield datasets
    except ConnectionError as error:
        message = "the Hugging Face Hub cannot be reached; check the connection"
        raise DataError(f"{where}: {message}, or {OFFLINE}") from error
    except datasets.exceptions.DatasetNotFoundError as error:
        message = "no such dataset on the Hub, and no such folder; check the name"
        raise DataError(f"{where}: {message}, or {OFFLINE}") from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        words = f"{error} {error.__cause__ or ''}".split()
        reason = " ".join(words)
        raise DataError(f"{where}: cannot be loaded: {reason:.300}; check its name, split and revision") from error
