"""Read datasets from the Hugging Face Hub or local folders with `datasets`."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mtformer.config.data import DataConfig, HubDataset
from mtformer.data.corpus.readers import Faults, Fields, Lines, RawRecords
from mtformer.data.data_report import Columns
from mtformer.errors import DataError

ROWS_AT_ONCE = 1000
OFFLINE = (
    "give a folder of downloaded files as `dataset` (from `hf download --repo-type dataset NAME --local-dir FOLDER` "
    "on another machine), or local files as `src` and `tgt`, `tsv` or `jsonl`"
)


class HubReader:
    """Reader of the rows of a dataset; the first row determines which fields contain the texts."""

    files: Sequence[Lines] = ()
    position = 0

    def __init__(self, source: HubDataset, data: DataConfig) -> None:
        self._source, self._data = source, data
        self._tables = _load(source).with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
        self._rows: Any = None
        """Rows of the current table that have not been returned yet."""
        self._fields: Fields | None = None
        self._number = 0
        """Index of the next row, starting at 0."""

    def take(self, count: int) -> RawRecords:
        """Return the next rows, at most `count`."""
        with _loading(describe(self._source)):
            if self._rows is None or not self._rows.num_rows:
                self._rows = next((table for table in self._tables if table.num_rows), None)
        if self._rows is None:
            return RawRecords(0, lambda faults: ([], []))
        rows, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        if self._fields is None:
            self._fields = Fields.of(self._source, self._data, rows.slice(0, 1).to_pylist()[0])
        first, self._number = self._number, self._number + rows.num_rows
        columns = {self._fields.src[0], self._fields.tgt[0]}
        if columns.issubset(rows.column_names):  # otherwise, the error message names all columns
            rows = rows.select(sorted(columns))
        rows = rows.take(np.arange(rows.num_rows))  # a copy, because pickling a slice would include the whole dataset
        return RawRecords(rows.num_rows, partial(_parse, self._fields, rows, f"{describe(self._source)}, row ", first))


def _parse(fields: Fields, rows: Any, place: str, first: int, faults: Faults) -> Columns:
    return fields.columns(rows.to_pylist(), place, first, faults)


def describe(source: HubDataset) -> str:
    """Return the name of the dataset for messages."""
    return " ".join(filter(None, (source.dataset, source.name, source.split)))


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
        return [*(str(Path(file["filename"]).parent) for file in rows.cache_files), str(len(rows))]
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
        raise DataError(
            f"{where}: the Hugging Face Hub cannot be reached; check the connection, or {OFFLINE}"
        ) from error
    except datasets.exceptions.DatasetNotFoundError as error:
        raise DataError(
            f"{where}: no such dataset on the Hub, and no such folder; check the name, or {OFFLINE}"
        ) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        raise DataError(f"{where}: cannot be loaded: {reason:.300}") from error
