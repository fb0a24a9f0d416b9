"""Data sets of the Hugging Face hub, or folders like them, read by `datasets`."""

import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mtformer.config.data import DataConfig, HubDataset
from mtformer.data.records import NOTHING, Faults, Records, Unparsed
from mtformer.data.report import Sides
from mtformer.data.rows import Fields, RowError
from mtformer.errors import DataError

ROWS_AT_ONCE = 1000
OFFLINE = (
    "give a folder of downloaded files as `dataset` (made elsewhere by `hf download --repo-type dataset NAME "
    "--local-dir FOLDER`), or local files as `src` and `tgt`, `tsv` or `jsonl`"
)


class HubRecords(Records):
    """Rows of a data set; the first one taken tells where the texts stand in it.

    Args:
        source: where from.
        data: the languages, whose codes are the default fields.

    Raises:
        DataError: when it cannot be loaded.
    """

    def __init__(self, source: HubDataset, data: DataConfig) -> None:
        self._source, self._data = source, data
        self._tables = load(source).with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
        self._rows: Any = None
        """Of the table read last those not taken yet."""
        self._fields: Fields | None = None
        self._number = 0

    @property
    def number(self) -> int:
        return self._number

    @property
    def position(self) -> int:
        return 0

    def take(self, count: int) -> Unparsed:
        self._read_on()
        if self._rows is None:
            return NOTHING
        rows, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        if self._fields is None:
            self._fields = Fields.of(self._source, self._data, rows.slice(0, 1).to_pylist()[0])
        first, self._number = self._number, self._number + rows.num_rows
        parse = partial(_parse, describe(self._source), first, _packed(rows, self._fields), self._fields)
        return Unparsed(rows.num_rows, parse)

    def _read_on(self) -> None:
        """The next table, when all rows of the last one are taken."""
        with _told(describe(self._source)):
            while self._rows is None or not self._rows.num_rows:
                self._rows = next(self._tables, None)
                if self._rows is None:
                    return


def _packed(table: Any, fields: Fields) -> bytes:
    """The columns that hold the texts, or all where those are not there, in Arrow's format for sending them on."""
    import pyarrow as pa

    columns = {fields.src[0], fields.tgt[0]}
    if columns.issubset(table.column_names):
        table = table.select(sorted(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _parse(where: str, first: int, packed: bytes, fields: Fields, faults: Faults | None = None) -> Sides:
    import pyarrow as pa

    sides: Sides = [], []
    for number, row in enumerate(pa.ipc.open_stream(packed).read_all().to_pylist()):
        try:
            src, tgt = fields.pair(row)
        except RowError as error:
            if faults is None:
                raise DataError(f"{where}, row {first + number + 1}: {error}") from error
            faults.broken[number] = str(error)
            src = tgt = ""
        sides[0].append(src)
        sides[1].append(tgt)
    return sides


def describe(source: HubDataset) -> str:
    """The data set in a few words, for messages."""
    return " ".join(filter(None, (source.dataset, source.name, source.split)))


def load(source: HubDataset) -> Any:
    """Return the split as a `datasets.Dataset`, or as an `IterableDataset` if it is to be read as a stream.

    Raises:
        DataError: when it does not exist or cannot be reached.
    """
    with _reading(describe(source)):
        import datasets

        return datasets.load_dataset(
            source.dataset, source.name, split=source.split, revision=source.revision, streaming=source.stream
        )


def version(source: HubDataset) -> list[str]:
    """Return what identifies the content of a data set; it changes with the commit on the hub, or with a local file.

    Raises:
        DataError: as `load`.
    """
    if not source.stream:
        # `datasets` names its Arrow files by a hash of what they were made from.
        rows = load(source)
        return [*(str(Path(file["filename"]).parent) for file in rows.cache_files), str(len(rows))]
    with _reading(describe(source)):
        import datasets

        builder = datasets.load_dataset_builder(source.dataset, source.name, revision=source.revision)
        # The resolved commit is part of `hash`; the files' commits or modification times are part of the folder's name.
        return [str(builder.hash), str(builder.cache_dir)]


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Load without progress bars and without warnings of each of its attempts to reach the hub; see `_told`."""
    import datasets  # takes a second to import

    was_shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    log_of_hub = logging.getLogger("huggingface_hub")
    level = log_of_hub.level
    log_of_hub.setLevel(logging.ERROR)
    try:
        with _told(where):
            yield
    finally:
        log_of_hub.setLevel(level)
        if was_shown:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
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
