"""Ragged arrays: lists of numbers of different lengths, concatenated in one array."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Ints = NDArray[np.int64]


class Ragged:
    """Ragged array of B rows with N numbers in total."""

    def __init__(self, ids_N: NDArray[Any], lengths_B: NDArray[np.int32]) -> None:
        self.ids_N = ids_N
        self.lengths_B = lengths_B

    @classmethod
    def of(cls, rows: Sequence[list[int]], dtype: DTypeLike = np.int32) -> Ragged:
        """Create a ragged array from lists of nonnegative numbers."""
        numbers = array("I")  # three times as fast as creating a NumPy array from an iterator
        for row in rows:
            numbers.fromlist(row)
        return cls(np.array(numbers, dtype=dtype), np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)))

    @classmethod
    def joined(cls, parts: Iterable[Ragged]) -> Ragged:
        """Concatenate one or more ragged arrays."""
        parts = list(parts)
        return cls(np.concatenate([part.ids_N for part in parts]), np.concatenate([part.lengths_B for part in parts]))

    def __len__(self) -> int:
        return len(self.lengths_B)

    @cached_property
    def starts(self) -> Ints:
        """Start index of each row."""
        return np.cumsum(self.lengths_B, dtype=np.int64) - self.lengths_B

    def take(self, indices: Ints) -> Ragged:
        """Return these rows, in this order."""
        lengths = self.lengths_B[indices]
        ends = np.cumsum(lengths, dtype=np.int64)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts[indices] - ends + lengths, lengths)
        return Ragged(self.ids_N[places], lengths)

    def prefixed(self, ids: Sequence[int]) -> Ragged:
        """Prepend the same ids to each row."""
        places = np.repeat(self.starts, len(ids))
        return Ragged(np.insert(self.ids_N, places, np.tile(ids, len(self))), self.lengths_B + np.int32(len(ids)))

    def cut(self, size: int) -> Iterator[Ragged]:
        """Yield slices of `size` rows; the last one may be shorter."""
        for start in range(0, len(self), size):
            lengths_B = self.lengths_B[start : start + size]
            first = int(self.starts[start])
            yield Ragged(self.ids_N[first : first + int(lengths_B.sum())], lengths_B)

    def shortened(self, longest: int) -> Ragged:
        """Truncate each row to `longest` numbers."""
        if self.lengths_B.max(initial=0) <= longest:
            return self
        place_N = np.arange(len(self.ids_N)) - np.repeat(self.starts, self.lengths_B)
        return Ragged(self.ids_N[place_N < longest], np.minimum(self.lengths_B, longest))

    def count(self, number: int) -> Ints:
        """Count the occurrences of a number in each row."""
        positions = np.flatnonzero(self.ids_N == number)
        rows = np.searchsorted(self.starts + self.lengths_B, positions, side="right")
        return np.bincount(rows, minlength=len(self))

    def rows(self) -> list[NDArray[Any]]:
        """Return the rows as a list of arrays."""
        return np.split(self.ids_N, self.starts[1:]) if len(self) else []


def text_of(side: Ragged) -> list[str]:
    """Decode rows of UTF-8 bytes to text."""
    whole, ends = side.ids_N.tobytes(), (side.starts + side.lengths_B).tolist()
    return [whole[start:end].decode("utf-8") for start, end in zip(side.starts.tolist(), ends, strict=True)]


def bytes_of(lines: Sequence[str]) -> Ragged:
    """Encode lines as rows of UTF-8 bytes."""
    encoded = [line.encode("utf-8") for line in lines]
    lengths_B = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded))
    return Ragged(np.frombuffer(b"".join(encoded), dtype=np.uint8), lengths_B)
