"""Tokenised corpora in memory-mapped Arrow files, made once and found again by what they were made from.

    CACHE/FINGERPRINT/pairs.arrow   src and tgt (lists of ids without bos or eos), and src_text and tgt_text if asked
    CACHE/FINGERPRINT/report.json   what was read and left out

The fingerprint is a hash of the content of the files (not of their names or times: a copied corpus is found, a changed
one is not), the tokenizers, the filters, and the version of this format. A folder is renamed to its name when it is
whole, and the first one stays: processes that make the same corpus at once do not harm each other.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtformer.config.schema import DataConfig, Source
from mtformer.data.filters import DataReport, Filter, Pair
from mtformer.data.sources import describe, read_pairs, source_fingerprint
from mtformer.errors import DataError
from mtformer.rundir import atomic_folder
from mtformer.text.tokenizer import UNK, TokenizerPair

FORMAT_VERSION = 1
CHUNK_PAIRS = 20_000
PAIRS, REPORT = "pairs.arrow", "report.json"
log = logging.getLogger("mtformer")

Ints = NDArray[np.int64]


class Ragged(NamedTuple):
    """Lists of ids, one behind the other."""

    ids_N: NDArray[np.int32]
    lengths_B: NDArray[np.int32]


class Store:
    """A tokenised corpus. Only what is gathered is read from disk."""

    def __init__(self, folder: Path) -> None:
        import datasets  # takes a second to import

        self.folder = folder
        self.fingerprint = folder.name
        self.report = DataReport.from_json((folder / REPORT).read_text(encoding="utf-8"))
        table = datasets.Dataset.from_file(str(folder / PAIRS)).data
        self.has_text = "src_text" in table.column_names
        self._src, self._tgt = (_Column(table.column(side), np.int32) for side in ("src", "tgt"))
        if self.has_text:
            self._texts = [_Column(table.column(side), np.uint8) for side in ("src_text", "tgt_text")]

    def __len__(self) -> int:
        return len(self._src.lengths)

    @property
    def src_lengths(self) -> NDArray[np.int32]:
        """Source tokens of each pair, eos not counted."""
        return self._src.lengths

    @property
    def tgt_lengths(self) -> NDArray[np.int32]:
        """Target tokens of each pair, bos and eos not counted."""
        return self._tgt.lengths

    def gather(self, indices: Ints) -> tuple[Ragged, Ragged]:
        """Source and target ids of these pairs, in this order."""
        return self._src.gather(indices), self._tgt.gather(indices)

    def text(self, indices: Sequence[int] | Ints) -> tuple[list[str], list[str]]:
        """Source and target lines of these pairs, as they were read; only when the store keeps text."""
        assert self.has_text, "prepared without keep_text"
        src, tgt = (
            [column.row(index).tobytes().decode("utf-8") for index in map(int, indices)] for column in self._texts
        )
        return src, tgt


class _Column:
    """All values of a column of lists or strings as one flat numpy view of the memory-mapped file."""

    def __init__(self, column: Any, dtype: type) -> None:
        # The last buffer of a list array is that of its values, of a string array that of its bytes.
        buffers = [(chunk.buffers()[1], chunk.buffers()[-1], len(chunk)) for chunk in column.chunks if len(chunk)]
        values = [value for _, value, _ in buffers if value is not None and value.size]
        base = min((value.address for value in values), default=0)
        end = max((value.address + value.size for value in values), default=0)
        itemsize = np.dtype(dtype).itemsize
        # The record batches lie in one mapping of one file, so one view reaches from the first to the last.
        whole = pa.foreign_buffer(base, end - base, base=column) if values else b""
        self.flat: NDArray[Any] = np.frombuffer(whole, dtype)
        starts, lengths = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int32)]
        for offsets_buffer, value, rows in buffers:
            offsets = np.frombuffer(offsets_buffer, np.int32, count=rows + 1)
            first = (value.address - base) // itemsize if value is not None and value.size else 0
            starts.append(offsets[:-1] + np.int64(first))
            lengths.append(np.diff(offsets))
        self.starts, self.lengths = np.concatenate(starts), np.concatenate(lengths)

    def row(self, index: int) -> NDArray[Any]:
        start = self.starts[index]
        return self.flat[start : start + self.lengths[index]]

    def gather(self, indices: Ints) -> Ragged:
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths, dtype=np.int64)
        positions = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts[indices] - ends + lengths, lengths)
        return Ragged(self.flat[positions], lengths)


def prepare(
    sources: Sequence[Source],
    data: DataConfig,
    tokenizers: TokenizerPair,
    *,
    is_training: bool,
    keep_text: bool = True,
) -> Store:
    """Reads, filters and tokenises a corpus, or finds it in the cache.

    Args:
        sources: read one after the other.
        data: languages, filters, cache and workers.
        tokenizers: whose ids are stored.
        is_training: leave out what data.filters says; dev and test keep everything.
        keep_text: also store the lines themselves, for `Store.text`.

    Raises:
        DataError: when a source is missing, damaged or empty, more than filters.max_filtered_share is left out, or
            the cache cannot be written.
    """
    settings = {
        "version": FORMAT_VERSION,
        "sources": [source_fingerprint(source, data) for source in sources],
        "tokenizers": [tokenizers.src.sha256, tokenizers.tgt.sha256],
        "filters": data.filters.model_dump(exclude={"max_filtered_share"}) if is_training else None,
        "keep_text": keep_text,
    }
    fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(data) / fingerprint
    where = ", ".join(describe(source) for source in sources)
    if folder.is_dir():
        log.info("%s: tokenised before, found in %s", where, folder)
    else:
        log.info("%s: tokenising into %s", where, folder)
        pairs = chain.from_iterable(read_pairs(source, data) for source in sources)
        filter_ = Filter(data.filters if is_training else None)
        _make(folder, where, lambda file: _write_pairs(file, pairs, tokenizers, filter_, data.num_workers, keep_text))
    store = Store(folder)
    if is_training:
        store.report.check(data.filters, where)
    return store


def cache_folder(data: DataConfig) -> Path:
    """data.cache_dir, else the environment's MTFORMER_CACHE, else ~/.cache/mtformer."""
    return Path(data.cache_dir or os.environ.get("MTFORMER_CACHE") or "~/.cache/mtformer").expanduser()


def _make(folder: Path, where: str, write: Callable[[Path], DataReport]) -> None:
    """Writes the folder whole or not at all."""
    try:
        # What another process that was quicker has made is the same, and may be open already.
        with atomic_folder(folder, replaces=False) as temporary:
            report = write(temporary / PAIRS)
            if not report.read:
                raise DataError(f"{where}: the corpus is empty: not one line was read")
            (temporary / REPORT).write_text(report.to_json(), encoding="utf-8")
    except OSError as error:
        if not folder.is_dir():  # else another process came in between
            raise DataError(
                f"{folder.parent}: the tokenised corpus cannot be written: {error.strerror or error}; "
                "make room, or name another folder by data.cache_dir"
            ) from error


def _write_pairs(
    file: Path,
    pairs: Iterator[Pair],
    tokenizers: TokenizerPair,
    filter_: Filter,
    num_workers: int | None,
    keep_text: bool,
) -> DataReport:
    """Filters, tokenises and writes chunk by chunk; threads of SentencePiece do the work, so nothing has to start."""
    num_threads = num_workers or os.cpu_count() or 1
    ids_type, text_type = pa.list_(pa.int32()), pa.string()
    texts = [("src_text", text_type), ("tgt_text", text_type)] if keep_text else []
    schema = pa.schema([("src", ids_type), ("tgt", ids_type), *texts])
    report, next_note = filter_.report, 1_000_000
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while chunk := list(islice(pairs, CHUNK_PAIRS)):
            kept = filter_.by_text(chunk)
            src, tgt = ([pair[side] for pair in kept] for side in (0, 1))
            src_ids, tgt_ids = tokenizers.src.encode(src, num_threads), tokenizers.tgt.encode(tgt, num_threads)
            keep = filter_.by_length(_lengths(src_ids), _lengths(tgt_ids)).tolist()
            columns = [_list_array(list(compress(src_ids, keep)), "src", report)]
            columns.append(_list_array(list(compress(tgt_ids, keep)), "tgt", report))
            if keep_text:
                columns += [pa.array(list(compress(side, keep)), type=text_type) for side in (src, tgt)]
            report.kept += sum(keep)
            writer.write_batch(pa.record_batch(columns, schema=schema))
            if report.read >= next_note:
                log.info("%s pairs tokenised", f"{report.read:,}")
                next_note += 1_000_000
    return report


def _lengths(rows: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    return np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))


def _list_array(rows: Sequence[Sequence[int]], side: str, report: DataReport) -> Any:
    """The rows as one Arrow array; counts their tokens."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(_lengths(rows), out=offsets[1:])
    ids_N = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
    report.tokens[side] += len(ids_N)
    report.unknown[side] += int((ids_N == UNK).sum())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids_N))
