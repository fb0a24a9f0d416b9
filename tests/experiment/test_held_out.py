"""Pairs that are held out: their number, their choice, and what is left for training."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mtformer.config.data import DataConfig, TextFiles
from mtformer.data.data_report import Columns
from mtformer.errors import DataError
from mtformer.experiment.held_out import choose_held_out, pair_keys
from mtformer.experiment.new_config import create_config

LANGUAGES = DataConfig(src_lang="en", tgt_lang="ja")


def pairs_of(count: int, first: int = 0) -> list[tuple[str, str]]:
    """Return different pairs that the filters keep."""
    kana = "あいうえおかきくけこ"
    letters = "abcdefghij"
    pairs = []
    for number in range(first, first + count):
        digits = [int(digit) for digit in f"{number:05d}"]
        src = "the word " + "".join(letters[digit] for digit in digits) + " is here"
        tgt = "".join(kana[digit] for digit in digits) + "という言葉はここです"
        pairs.append((src, tgt))
    return pairs


def chosen(pairs: list[tuple[str, str]], *names: str) -> dict[str, set[int]]:
    def read() -> Iterator[Columns]:
        for start in range(0, len(pairs), 100):
            src, tgt = zip(*pairs[start : start + 100], strict=True)
            yield list(src), list(tgt)

    keys = choose_held_out(read, LANGUAGES, names or ["dev", "test"])
    return {name: set(set_keys.tolist()) for name, set_keys in keys.items()}


def write(folder: Path, pairs: list[tuple[str, str]]) -> TextFiles:
    folder.joinpath("c.en").write_text("".join(f"{src}\n" for src, _ in pairs), encoding="utf-8")
    folder.joinpath("c.ja").write_text("".join(f"{tgt}\n" for _, tgt in pairs), encoding="utf-8")
    return TextFiles(src=str(folder / "c.en"), tgt=str(folder / "c.ja"))


def read_set(folder: Path, name: str) -> list[tuple[str, str]]:
    sides = [
        folder.joinpath(f"{name}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "ja")
    ]
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize(("count", "size"), [(40, 2), (1000, 50), (30_000, 1000)])
def test_a_set_has_one_pair_in_twenty_and_at_most_a_thousand(count: int, size: int) -> None:
    sets = chosen(pairs_of(count))
    assert {name: len(keys) for name, keys in sets.items()} == {"dev": size, "test": size}
    assert sets["dev"].isdisjoint(sets["test"])
    assert chosen(pairs_of(count), "test").keys() == {"test"}


def test_the_choice_depends_on_the_text_only() -> None:
    pairs = pairs_of(2000)
    shuffled = [*pairs, *pairs[:500]]
    Random(1).shuffle(shuffled)
    shouted = [(src.upper() + " !", tgt + "。") for src, tgt in pairs]
    assert chosen(pairs) == chosen(shuffled) == chosen(shouted)


def test_pairs_that_share_a_side_with_another_pair_are_not_chosen_if_there_are_others() -> None:
    pairs = pairs_of(1000)
    sources = [(src, f"別の{tgt}") for src, tgt in pairs[:400]]
    targets = [(f"also {src}", tgt) for src, tgt in pairs[400:800]]
    sets = chosen([*pairs, *sources, *targets])
    alone = set(pair_keys(([src for src, _ in pairs[800:]], [tgt for _, tgt in pairs[800:]])).tolist())
    assert sets["dev"] | sets["test"] <= alone
    assert len(chosen(pairs[:400] + sources)["dev"]) == 40, "there are no others"


def test_pairs_that_the_filters_remove_are_not_chosen() -> None:
    bad = [(src, src) for src, _ in pairs_of(300, first=5000)]
    sets = chosen([*pairs_of(700), *bad])
    bad_keys = set(pair_keys(([src for src, _ in bad], [tgt for _, tgt in bad])).tolist())
    assert len(sets["dev"]) == 50
    assert (sets["dev"] | sets["test"]).isdisjoint(bad_keys)


def test_files_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"the filters would remove 400 of 400 pairs .* because of 'script'; check that"
    ):
        chosen([(tgt, src) for src, tgt in pairs_of(1000)])


def test_a_corpus_that_is_too_small_is_refused() -> None:
    with pytest.raises(DataError, match="has 39 different pairs, and at least 40 are needed to hold out dev and test"):
        chosen(pairs_of(39) * 3)


def test_no_copy_of_a_pair_that_is_held_out_is_left_for_training(tmp_path: Path) -> None:
    pairs = pairs_of(400) + [(src.title(), f"{tgt}！") for src, tgt in pairs_of(400)]
    new = create_config(tmp_path / "x.yaml", {"train": write(tmp_path, pairs)}, LANGUAGES)
    sets = {name: read_set(tmp_path / "x_data", name) for name in ("train", "dev", "test")}
    assert {name: len(text) for name, text in sets.items()} == new.sizes == {"train": 720, "dev": 20, "test": 20}
    assert set().union(*sets.values()) <= set(pairs)
    keys = [pair_keys(([src for src, _ in text], [tgt for _, tgt in text])).tolist() for text in sets.values()]
    assert len(set(keys[0])) == 360
    assert len({*keys[0], *keys[1], *keys[2]}) == 400
