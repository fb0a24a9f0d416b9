"""Duplicates through files: what a set of all keys would say."""

from random import Random

import numpy as np
import pytest

from mtformer.data import duplicates
from mtformer.data.duplicates import hash_keys, repeated


@pytest.mark.parametrize("bucket_keys", [1 << 22, 50])
def test_as_a_set_would_say(bucket_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "BUCKET_KEYS", bucket_keys)
    random, seen, expected, parts = Random(3), set(), [], []
    for _ in range(30):
        texts = [str(random.randint(0, 900)) for _ in range(random.randint(0, 40))]
        for text in texts:
            expected.append(text in seen)
            seen.add(text)
        parts.append(hash_keys(texts))
    found = list(repeated(parts, sum(map(len, parts))))
    assert list(map(len, found)) == list(map(len, parts))
    assert np.concatenate(found).tolist() == expected
    assert 100 < sum(expected) < len(expected)


def test_nothing_and_empty_parts() -> None:
    assert list(repeated([], 0)) == []
    empty = hash_keys([])
    assert [one.tolist() for one in repeated([empty, hash_keys(["a"]), empty, hash_keys(["b", "a"])], 3)] == [
        [], [False], [], [False, True],
    ]  # fmt: skip


def test_keys_hang_on_the_text_alone() -> None:
    assert hash_keys(["a", "b", "a"]).tolist()[::2] == hash_keys(["a", "a"]).tolist()
    assert len(set(hash_keys(map(str, range(10_000))).tolist())) == 10_000
