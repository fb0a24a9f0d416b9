"""Duplicate pairs: compute keys of pairs, and find repeated keys in corpora of any size."""

import hashlib
import mmap
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtformer.data.data_report import Columns

BUCKET_KEYS = 1 << 20
"""Number of keys compared in memory at a time (40 MB); larger in corpora of more than 500 million pairs."""
MOST_IN_MEMORY = 1 << 18  # maximum length of a sorted array of keys in memory
MERGED_AT_ONCE = 1 << 13
"""Number of keys of the first array in a write: Linux caches larger writes in larger parts, and maps whole parts."""
KEYS_AT_ONCE = 512  # number of keys that are looked up before memory is released; each may load 64 KB of a file
MOST_BUCKETS = 512  # maximum number of open files

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]


def duplicate_keys(texts: Columns, *, is_normalized: bool) -> Keys:
    """Return a key for each pair; duplicates have equal keys. `is_normalized` ignores case, punctuation and spaces."""
    src, tgt = ([normalize(line) for line in lines] if is_normalized else lines for lines in texts)
    return hash_keys(f"{len(s)} {s}{t}" for s, t in zip(src, tgt, strict=True))


def hash_keys(texts: Iterable[str]) -> Keys:
    """Return 64-bit BLAKE2 hashes of texts; the probability of a collision among a billion texts is 3 percent."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False)


def normalize(line: str) -> str:
    """Fold case and remove punctuation and whitespace; if nothing is left, only strip whitespace at both ends."""
    return _dropped().sub("", line).casefold() or line.strip()


@cache
def _dropped() -> re.Pattern[str]:
    """Return a pattern for all characters to drop: all except letters, marks, digits, and characters between digits."""
    marks = "".join(chr(point) for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == "M")
    return re.compile(rf"[^\w{marks}.,]+|_+|[.,](?!\d)|(?<!\d)[.,]")


class SeenKeys:
    """Set of keys, stored as a few sorted arrays, each at least twice as large as the next one.

    Arrays of more than `MOST_IN_MEMORY` keys are in temporary files (8 bytes per key).
    """

    def __init__(self) -> None:
        self._arrays: list[Keys] = []

    def add(self, keys: Keys) -> Mask:
        """Add keys; return True for each key that occurred before, in this call or an earlier one."""
        is_repeated = _repeats(keys) | self.contains(keys)
        new = np.sort(keys[~is_repeated])
        if len(new):
            while self._arrays and len(self._arrays[-1]) < 2 * len(new):
                new = _merge(self._arrays.pop(), new)
            self._arrays.append(new)
        return is_repeated

    def contains(self, keys: Keys) -> Mask:
        """Return True for each key that was added earlier."""
        is_known = np.zeros(len(keys), dtype=np.bool_)
        order = np.argsort(keys)  # sorted keys are found several times as fast
        for array in self._arrays:
            for start in range(0, len(keys), KEYS_AT_ONCE):
                rows = order[start : start + KEYS_AT_ONCE]
                at = np.minimum(np.searchsorted(array, keys[rows]), len(array) - 1)
                is_known[rows] |= array[at] == keys[rows]
                _unload(array)
        return is_known


def _merge(first: Keys, second: Keys) -> Keys:
    """Merge two sorted arrays, in memory or piece by piece into a temporary file."""
    if len(first) + len(second) <= MOST_IN_MEMORY:
        # Timsort merges sorted arrays; `np.union1d` hashes all keys in NumPy 2.3 and later, which is slower.
        return np.sort(np.concatenate([first, second]), kind="stable")
    place = 0
    with tempfile.TemporaryFile(buffering=0) as file:
        for start in range(0, len(first), MERGED_AT_ONCE):
            piece = first[start : start + MERGED_AT_ONCE]
            end = len(second)
            if start + MERGED_AT_ONCE < len(first):
                end = place + int(np.searchsorted(second[place:], piece[-1]))
            np.sort(np.concatenate([piece, second[place:end]]), kind="stable").tofile(file)
            place = end
            _unload(first)
            _unload(second)
        return np.memmap(file, dtype=np.uint64, mode="r")


def _unload(array: Keys) -> None:
    """Release the memory of an array in a file."""
    if isinstance(array, np.memmap) and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # not public


def repeated(shards: Iterable[Keys], num_keys: int, folder: Path | None = None) -> Iterator[Mask]:
    """Yield a mask of repeated keys for each shard, with one byte of memory per key; `num_keys` may be approximate.

    The keys are distributed over temporary files by their first bits, so that equal keys are in one file, which fits in
    memory. `folder` is where they are written; None: the system's temporary folder.
    """
    num_buckets = min(MOST_BUCKETS, 1 + num_keys // BUCKET_KEYS)
    sizes: list[int] = []
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(num_buckets)]
        for keys in shards:
            rows = np.arange(len(keys), dtype=np.uint64) + np.uint64(sum(sizes))
            bucket = (keys >> np.uint64(32)) % np.uint64(num_buckets)
            for number in np.unique(bucket).tolist():
                in_bucket = bucket == number
                np.stack([keys[in_bucket], rows[in_bucket]], axis=1).tofile(files[number])
            sizes.append(len(keys))
        is_repeated = np.zeros(sum(sizes), dtype=np.bool_)
        for file in files:
            file.seek(0)
            keys, rows = np.fromfile(file, dtype=np.uint64).reshape(-1, 2).T
            is_repeated[rows] = _repeats(keys)
        for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
            yield is_repeated[end - size : end]


def _repeats(keys: Keys) -> Mask:
    """Return True for each key that occurred earlier in the array."""
    is_repeated = np.ones(len(keys), dtype=np.bool_)
    is_repeated[np.unique(keys, return_index=True)[1]] = False
    return is_repeated
