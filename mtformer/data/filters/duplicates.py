"""Duplicate pairs: compute keys of pairs, and find repeated keys in corpora of any size."""

import hashlib
import mmap
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mtformer.data.data_report import Columns

BUCKET_KEYS = 1 << 20
"""Number of keys compared in memory at a time (40 MB); larger in corpora of more than 500 million pairs."""

MOST_IN_MEMORY = 1 << 18
"""Maximum length of a sorted array of keys in memory."""

MERGED_AT_ONCE = 1 << 13
"""Number of keys of the first array in a write: Linux caches larger writes in larger parts, and maps whole parts."""

KEYS_AT_ONCE = 512
"""Number of keys that are looked up before memory is released; each may load 64 KB of a file."""

MOST_BUCKETS = 512
"""Maximum number of open files."""

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]


def duplicate_keys(texts: Columns, *, is_normalized: bool) -> Keys:
    """Return a key for each pair; duplicates have equal keys. `is_normalized` ignores case, punctuation and spaces."""
    src, tgt = texts
    if is_normalized:
        src = [normalize(line) for line in src]
        tgt = [normalize(line) for line in tgt]
    pairs = zip(src, tgt, strict=True)
    # The length separates the sides: ("a", "bc") is not a duplicate of ("ab", "c").
    return hash_keys(f"{len(src_line)} {src_line}{tgt_line}" for src_line, tgt_line in pairs)


def hash_keys(texts: Iterable[str]) -> Keys:
    """Return 64-bit BLAKE2 hashes of texts; the probability of a collision among a billion texts is 3 percent."""
    hashes = (hashlib.blake2b(text.encode(), digest_size=8) for text in texts)
    digests = b"".join(text_hash.digest() for text_hash in hashes)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False)


def normalize(line: str) -> str:
    """Fold case and remove punctuation and whitespace; if nothing is left, only strip whitespace at both ends."""
    return _dropped().sub("", line).casefold() or line.strip()


@cache
def _dropped() -> re.Pattern[str]:
    """Return a pattern for all characters to drop: all except letters, marks, digits, and characters between digits."""
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(filter(_is_mark, characters))
    return re.compile(rf"[^\w{marks}.,]+|_+|[.,](?!\d)|(?<!\d)[.,]")


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


# ---- keys that were seen before -------------------------------------------------------------------------------------


class SeenKeys:
    """Set of keys, stored as a few sorted arrays, each at least twice as large as the next one.

    Arrays of more than `MOST_IN_MEMORY` keys are in temporary files (8 bytes per key).
    """

    def __init__(self) -> None:
        self._arrays: list[Keys] = []

    def add(self, keys: Keys) -> Mask:
        """Add keys; return True for each key that occurred before, in this call or an earlier one."""
        is_repeated = _repeats(keys) | self.contains(keys)
        new_keys = np.sort(keys[~is_repeated])
        if not len(new_keys):
            return is_repeated

        # Merge them with the arrays that are not at least twice as large.
        while self._arrays:
            smallest = self._arrays[-1]
            if len(smallest) >= 2 * len(new_keys):
                break
            self._arrays.pop()
            new_keys = _merge(smallest, new_keys)
        self._arrays.append(new_keys)
        return is_repeated

    def contains(self, keys: Keys) -> Mask:
        """Return True for each key that was added earlier."""
        is_known = np.zeros(len(keys), dtype=np.bool_)
        order = np.argsort(keys)  # sorted keys are found several times as fast
        for array in self._arrays:
            for start in range(0, len(keys), KEYS_AT_ONCE):
                rows = order[start : start + KEYS_AT_ONCE]
                wanted = keys[rows]
                positions = np.searchsorted(array, wanted)
                positions = np.minimum(positions, len(array) - 1)
                is_known[rows] |= array[positions] == wanted
                _unload(array)
        return is_known


def _merge(first: Keys, second: Keys) -> Keys:
    """Merge two sorted arrays, in memory or piece by piece into a temporary file."""
    if len(first) + len(second) <= MOST_IN_MEMORY:
        # Timsort merges sorted arrays; `np.union1d` hashes all keys in NumPy 2.3 and later, which is slower.
        return np.sort(np.concatenate([first, second]), kind="stable")

    second_start = 0
    with tempfile.TemporaryFile(buffering=0) as file:
        for first_start in range(0, len(first), MERGED_AT_ONCE):
            first_end = first_start + MERGED_AT_ONCE
            first_piece = first[first_start:first_end]
            second_piece = second[second_start:]
            if first_end < len(first):
                size = int(np.searchsorted(second_piece, first_piece[-1]))
                second_piece = second_piece[:size]
            both = np.concatenate([first_piece, second_piece])
            np.sort(both, kind="stable").tofile(file)
            second_start += len(second_piece)
            _unload(first)
            _unload(second)
        return np.memmap(file, dtype=np.uint64, mode="r")


def _unload(array: Keys) -> None:
    """Release the memory of an array in a file."""
    if isinstance(array, np.memmap) and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # not public


# ---- repeated keys of a corpus --------------------------------------------------------------------------------------


def repeated(shards: Iterable[Keys], num_keys: int, folder: Path | None = None) -> Iterator[Mask]:
    """Yield a mask of repeated keys for each shard, with one byte of memory per key.

    The keys are distributed over temporary files by their first bits, so that equal keys are in one file, which fits in
    memory.

    Args:
        shards: the keys of each shard.
        num_keys: number of keys in all shards, which may be approximate.
        folder: folder of the temporary files; None: the system's temporary folder.
    """
    num_buckets = min(MOST_BUCKETS, 1 + num_keys // BUCKET_KEYS)
    sizes: list[int] = []
    with ExitStack() as stack:
        files: list[IO[bytes]] = []
        for _ in range(num_buckets):
            bucket = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed with the stack
            files.append(stack.enter_context(bucket))

        for keys in shards:
            _distribute(keys, sum(sizes), files)
            sizes.append(len(keys))

        is_repeated = np.zeros(sum(sizes), dtype=np.bool_)
        for file in files:
            file.seek(0)
            numbers = np.fromfile(file, dtype=np.uint64)
            keys, rows = numbers.reshape(-1, 2).T
            is_repeated[rows] = _repeats(keys)

        start = 0
        for size in sizes:
            yield is_repeated[start : start + size]
            start += size


def _distribute(keys: Keys, first_row: int, files: Sequence[IO[bytes]]) -> None:
    """Append each key with its row number to the file of its bucket; `first_row` is the row number of the first key."""
    rows = np.uint64(first_row) + np.arange(len(keys), dtype=np.uint64)
    first_bits = keys >> np.uint64(32)
    buckets = first_bits % np.uint64(len(files))
    for number in np.unique(buckets).tolist():
        is_in_bucket = buckets == number
        bucket_keys = keys[is_in_bucket]
        bucket_rows = rows[is_in_bucket]
        entries = np.stack([bucket_keys, bucket_rows], axis=1)
        entries.tofile(files[number])


def _repeats(keys: Keys) -> Mask:
    """Return True for each key that occurred earlier in the array."""
    is_repeated = np.ones(len(keys), dtype=np.bool_)
    _, first_rows = np.unique(keys, return_index=True)
    is_repeated[first_rows] = False
    return is_repeated
