"""Duplicate pairs: the key that they share, and which keys of a corpus of any size occurred before."""

import hashlib
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mtformer.data.data_report import Columns

BUCKET_KEYS = 1 << 20
"""Keys that are compared in memory at a time, up to some hundred million in all: 40 MB."""
MOST_BUCKETS = 512
"""Files that are open at once."""

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]


def duplicate_keys(texts: Columns, *, is_normalized: bool) -> Keys:
    """Return the key that two pairs share when one is a duplicate of the other.

    Args:
        texts: the pairs.
        is_normalized: pairs that differ only in case, punctuation and white space are duplicates too.
    """
    src, tgt = ([normalize(line) for line in lines] if is_normalized else lines for lines in texts)
    return hash_keys(f"{len(s)} {s}{t}" for s, t in zip(src, tgt, strict=True))


def hash_keys(texts: Iterable[str]) -> Keys:
    """Return 64 bits of each text's BLAKE2 hash. In a billion texts, two share one with a probability of 3 percent."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False)


def normalize(line: str) -> str:
    """Return a line without case, punctuation and white space; if nothing else is left, only its ends are stripped."""
    return _dropped().sub("", line).casefold() or line.strip()


@cache
def _dropped() -> re.Pattern[str]:
    """Match all but letters, their accents and vowel signs, digits, and what is between digits."""
    marks = "".join(chr(point) for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == "M")
    return re.compile(rf"[^\w{marks}.,]+|_+|[.,](?!\d)|(?<!\d)[.,]")


class SeenKeys:
    """The set of all keys added so far: 8 bytes each, in a few sorted arrays whose sizes at least double."""

    def __init__(self) -> None:
        self._arrays: list[Keys] = []

    def add(self, keys: Keys) -> Mask:
        """Return True for each key that occurred before, in an earlier call or earlier in this one."""
        is_repeated = _repeats(keys) | self.contains(keys)
        new = np.sort(keys[~is_repeated])
        if len(new):
            while self._arrays and len(self._arrays[-1]) < 2 * len(new):
                new = np.union1d(new, self._arrays.pop())
            self._arrays.append(new)
        return is_repeated

    def contains(self, keys: Keys) -> Mask:
        """Return True for each key that was added before."""
        is_known = np.zeros(len(keys), dtype=np.bool_)
        for array in self._arrays:
            at = np.minimum(np.searchsorted(array, keys), len(array) - 1)
            is_known |= array[at] == keys
        return is_known


def repeated(shards: Iterable[Keys], num_keys: int) -> Iterator[Mask]:
    """Yield for each shard which of its keys occurred before, in it or in an earlier one; memory stays bounded.

    The keys are distributed over files by their first bits, so that equal ones meet in one file, which fits the memory.

    Args:
        shards: the keys, in order; iterated once.
        num_keys: number of keys in all shards, about.
    """
    num_buckets = min(MOST_BUCKETS, 1 + num_keys // BUCKET_KEYS)
    sizes: list[int] = []
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_buckets)]
        for keys in shards:
            rows = np.arange(len(keys), dtype=np.uint64) + np.uint64(sum(sizes))
            bucket = (keys >> np.uint64(32)) % np.uint64(num_buckets)
            for number in np.unique(bucket).tolist():
                in_bucket = bucket == number
                np.stack([keys[in_bucket], rows[in_bucket]], axis=1).tofile(files[number])
            sizes.append(len(keys))
        marks = stack.enter_context(tempfile.TemporaryFile())
        marks.truncate(max(1, sum(sizes)))
        is_repeated = np.memmap(marks, dtype=np.bool_, shape=sum(sizes)) if sum(sizes) else np.zeros(0, np.bool_)
        for file in files:
            file.seek(0)
            keys, rows = np.fromfile(file, dtype=np.uint64).reshape(-1, 2).T
            is_repeated[rows] = _repeats(keys)
        for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
            yield np.asarray(is_repeated[end - size : end])


def _repeats(keys: Keys) -> Mask:
    """Return True for each key that occurred earlier in the array."""
    is_repeated = np.ones(len(keys), dtype=np.bool_)
    is_repeated[np.unique(keys, return_index=True)[1]] = False
    return is_repeated
