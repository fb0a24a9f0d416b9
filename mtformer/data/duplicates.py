"""Which pairs of a corpus of any size stood before: found through files, in bounded memory."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

BUCKET_KEYS = 1 << 20
"""Keys that are compared in memory at a time, up to some hundred million in all: 40 MB."""
MOST_BUCKETS = 512
"""So many files are open at once."""

Keys = NDArray[np.uint64]


def hash_keys(texts: Iterable[str]) -> Keys:
    """64 bits of each text's BLAKE2 hash. Of a billion texts, two that differ share one with a chance of 3 percent."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64, copy=False)


class SeenKeys:
    """The set of all keys added so far: 8 bytes each, in a few sorted arrays whose sizes at least double."""

    def __init__(self) -> None:
        self._arrays: list[Keys] = []

    def add(self, keys: Keys) -> NDArray[np.bool_]:
        """Return True for each key that occurred before, in an earlier call or earlier in this one."""
        first = np.unique(keys, return_index=True)[1]
        is_repeated = np.ones(len(keys), dtype=np.bool_)
        is_repeated[first] = False
        is_repeated |= self.contains(keys)
        new = np.sort(keys[~is_repeated])
        if len(new):
            while self._arrays and len(self._arrays[-1]) < 2 * len(new):
                new = np.union1d(new, self._arrays.pop())
            self._arrays.append(new)
        return is_repeated

    def contains(self, keys: Keys) -> NDArray[np.bool_]:
        """Return True for each key that was added before."""
        is_known = np.zeros(len(keys), dtype=np.bool_)
        for array in self._arrays:
            at = np.minimum(np.searchsorted(array, keys), len(array) - 1)
            is_known |= array[at] == keys
        return is_known


def repeated(parts: Iterable[Keys], num_keys: int) -> Iterator[NDArray[np.bool_]]:
    """For each part, which of its keys stood before, in it or in an earlier part.

    The keys are spread over files by their first bits, so that equal ones meet in one file, which fits the memory.

    Args:
        parts: the keys, in order; gone through once.
        num_keys: of all parts, about.
    """
    num_buckets = min(MOST_BUCKETS, 1 + num_keys // BUCKET_KEYS)
    sizes: list[int] = []
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_buckets)]
        for keys in parts:
            places = np.arange(len(keys), dtype=np.uint64) + np.uint64(sum(sizes))
            bucket = (keys >> np.uint64(32)) % np.uint64(num_buckets)
            for number in np.unique(bucket).tolist():
                mine = bucket == number
                np.stack([keys[mine], places[mine]], axis=1).tofile(files[number])
            sizes.append(len(keys))
        marks = stack.enter_context(tempfile.TemporaryFile())
        marks.truncate(max(1, sum(sizes)))
        is_repeated = np.memmap(marks, dtype=np.bool_, shape=sum(sizes)) if sum(sizes) else np.zeros(0, np.bool_)
        for file in files:
            file.seek(0)
            keys, places = np.fromfile(file, dtype=np.uint64).reshape(-1, 2).T
            is_repeated[places] = True
            is_repeated[places[np.unique(keys, return_index=True)[1]]] = False
        for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
            yield np.asarray(is_repeated[end - size : end])
