"""Both methods of finding duplicates agree with a Python set for any shards and any number of keys per bucket."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtformer.data.filters import duplicates
from mtformer.data.filters.duplicates import SeenKeys, duplicate_keys, hash_keys, repeated


@pytest.mark.parametrize("bucket_keys", [1 << 22, 5])
@given(shards=st.lists(st.lists(st.integers(0, 40).map(str), max_size=30), max_size=12))
def test_both_methods_agree_with_a_set(shards: list[list[str]], bucket_keys: int) -> None:
    texts: set[str] = set()
    expected = [[text in texts or bool(texts.add(text)) for text in shard] for shard in shards]
    keys, seen = [hash_keys(shard) for shard in shards], SeenKeys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "BUCKET_KEYS", bucket_keys)
        assert [one.tolist() for one in repeated(keys, sum(map(len, keys)))] == expected
        patch.setattr(duplicates, "MOST_IN_MEMORY", bucket_keys)
        patch.setattr(duplicates, "KEYS_AT_ONCE", 7)
        patch.setattr(duplicates, "MERGED_AT_ONCE", 3)
        assert [seen.add(some).tolist() for some in keys] == expected
    assert seen.contains(hash_keys(map(str, range(41)))).tolist() == [str(n) in texts for n in range(41)]


def test_temporary_files_are_in_the_given_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    keys = hash_keys(["a", "b", "a"])
    assert [one.tolist() for one in repeated([keys], 3, tmp_path)] == [[False, False, True]]


def test_keys_depend_on_the_text_only() -> None:
    assert hash_keys(["a", "b", "a"]).tolist()[::2] == hash_keys(["a", "a"]).tolist()
    assert len(set(hash_keys(map(str, range(10_000))).tolist())) == 10_000


@pytest.mark.parametrize(("pairs", "is_normalized", "num_keys"), [
    ([("a b", "c"), ("a", "b c"), ("b c", "a"), ("a b", "c "), ("A b", "c"), ("a b ", "c")], False, 6),
    ([("a b", "c"), ("A, b!", "C."), ("ab", " c ")], True, 1),
    ([("a b", "c"), ("a", "b c"), ("c", "a b"), ("a b 1", "c"), ("a b", "ç"), ("!", "c"), ("?", "c")], True, 7),
])  # fmt: skip
def test_keys_depend_on_the_pair_and_not_on_the_joined_text(
    pairs: list[tuple[str, str]], is_normalized: bool, num_keys: int
) -> None:
    texts = [src for src, _ in pairs], [tgt for _, tgt in pairs]
    assert len(np.unique(duplicate_keys(texts, is_normalized=is_normalized))) == num_keys
