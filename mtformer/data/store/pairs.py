"""Tokenized pairs as Arrow record batches, with the columns src and tgt, and optionally src_text and tgt_text.

Array dimensions: B rows, with N ids or bytes in total.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mtformer.data.data_report import Columns

Ints = NDArray[np.int64]
Lengths = NDArray[np.int32]
Pairs: TypeAlias = pa.RecordBatch
Column: TypeAlias = pa.Array
NAMES = ["src", "tgt", "src_text", "tgt_text"]
"""Names of the columns, in their order."""

SMALL_VOCABULARY = 1 << 16
"""Maximum vocabulary size for which ids are stored in two bytes."""


def make_pairs(*columns: Column) -> Pairs:
    """Return pairs with these columns: ids of sources and targets (without bos and eos), and optionally their text."""
    names = NAMES[: len(columns)]
    return pa.record_batch(list(columns), names=names)


def join(parts: Iterable[Pairs]) -> Pairs:
    """Concatenate one or more sequences of pairs with the same columns."""
    columns = zip(*(part.columns for part in parts), strict=True)
    return make_pairs(*(pa.concat_arrays(column) for column in columns))


def swap(pairs: Pairs) -> Pairs:
    """Return the pairs with sources and targets exchanged."""
    src, tgt, *texts = pairs.columns
    return make_pairs(tgt, src, *texts[::-1])


def text_of(pairs: Pairs) -> Columns:
    """Return the source and target lines of pairs with text."""
    return pairs["src_text"].to_pylist(), pairs["tgt_text"].to_pylist()


def id_column(rows: Sequence[list[int]], vocab_size: int | None = None) -> Column:
    """Return lists of nonnegative ids as a column; the vocabulary size determines the type of the ids."""
    ids = array("I")  # three times as fast as creating a NumPy array from an iterator
    for row in rows:
        ids.fromlist(row)
    is_small = vocab_size is not None and vocab_size <= SMALL_VOCABULARY
    dtype = np.uint16 if is_small else np.int32
    ids_N = np.array(ids, dtype=dtype)
    lengths_B = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
    return _column(ids_N, lengths_B)


def _column(ids_N: NDArray[Any], lengths_B: Lengths) -> Column:
    ends_B = np.cumsum(lengths_B, dtype=np.int32)
    offsets = pa.array(np.append(np.int32(0), ends_B))
    ids = pa.array(ids_N)
    return pa.ListArray.from_arrays(offsets, ids)


def flat(column: Column) -> tuple[NDArray[Any], Lengths]:
    """Return the ids, or the UTF-8 bytes of text, of all rows, and the length of each row, without copying."""
    offset_buffer = column.buffers()[1] or bytes(4)
    first_byte = 4 * column.offset
    offsets = np.frombuffer(offset_buffer, np.int32, len(column) + 1, first_byte)
    if pa.types.is_string(column.type):
        text_buffer = column.buffers()[2] or b""
        values = np.frombuffer(text_buffer, np.uint8)
    else:
        values = column.values.to_numpy()
    start = offsets[0]
    end = offsets[-1]
    return values[start:end], np.diff(offsets)


def lengths(column: Column) -> Lengths:
    """Return the number of ids in each row."""
    return flat(column)[1]


def prefix(column: Column, ids: Sequence[int]) -> Column:
    """Prepend the same ids to each row."""
    ids_N, lengths_B = flat(column)
    starts_B = np.cumsum(lengths_B) - lengths_B
    positions = np.repeat(starts_B, len(ids))
    values = np.tile(ids, len(column))
    all_ids_N = np.insert(ids_N, positions, values)
    return _column(all_ids_N, lengths_B + np.int32(len(ids)))


def count_id(column: Column, number: int) -> Ints:
    """Count the occurrences of an id in each row."""
    ids_N, lengths_B = flat(column)
    num_rows = len(column)
    row_of_id_N = np.repeat(np.arange(num_rows), lengths_B)
    rows_with_id = row_of_id_N[ids_N == number]
    return np.bincount(rows_with_id, minlength=num_rows)
