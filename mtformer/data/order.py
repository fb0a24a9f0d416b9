"""Permutations that take no memory: where a number goes is computed, not looked up.

A Feistel network over the bits of a number is a bijection whatever its round function is (Luby and Rackoff 1988);
numbers that leave the range are sent through it again until they are back ("cycle walking", Black and Rogaway 2002).
"""

import hashlib

import numpy as np

from mtformer.data.ragged import Ints

ROUNDS = 6


def permuted(numbers: Ints, size: int, *key: int | str) -> Ints:
    """The places of numbers from 0 to size - 1 in a random order, which depends on the key alone.

    Args:
        numbers: which.
        size: of the range, at least 1.
        key: such as seed, name and epoch.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * ROUNDS).digest()
    round_keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    found = numbers.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        found[outside] = _network(found[outside], half_bits, round_keys)
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _network(numbers: np.ndarray, half_bits: int, round_keys: np.ndarray) -> np.ndarray:
    half, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = numbers >> half, numbers & mask
    for key in round_keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): each bit of x turns about half of the bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
