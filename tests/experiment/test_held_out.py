"""Pairs that are held out: their number, their choice, and what is left for training."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mtformer.config.data import DataConfig, TextFiles
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import normalize
from mtformer.errors import DataError
from mtformer.experiment.held_out import choose_held_out
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


def text_of(pair: tuple[str, str]) -> tuple[str, str]:
    """Return what two copies of a pair have in common."""
    return normalize(pair[0]), normalize(pair[1])


def chosen(pairs: list[tuple[str, str]], *names: str) -> list[set[tuple[str, str]]]:
    """Return the text of the pairs of each set."""

    def read() -> Iterator[Columns]:
        for start in range(0, len(pairs), 100):
            src, tgt = zip(*pairs[start : start + 100], strict=True)
            yield list(src), list(tgt)

    sets = names or ("dev", "test")
    numbers = choose_held_out(read, LANGUAGES, sets).tolist()
    assert len(numbers) == len(pairs)
    return [
        {text_of(pair) for pair, number in zip(pairs, numbers, strict=True) if number == 1 + position}
        for position in range(len(sets))
    ]


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
    dev, test = chosen(pairs_of(count))
    assert (len(dev), len(test)) == (size, size)
    assert dev.isdisjoint(test)
    assert chosen(pairs_of(count), "test") == [dev]


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
    dev, test = chosen([*pairs, *sources, *targets])
    assert len(dev | test) == 180
    assert dev | test <= set(map(text_of, pairs[800:]))
    assert len(chosen(pairs[:400] + sources, "dev")[0]) == 40, "there are no others"


def test_pairs_that_the_filters_remove_are_not_chosen() -> None:
    bad = [(src, src) for src, _ in pairs_of(300, first=5000)]
    dev, test = chosen([*pairs_of(700), *bad])
    assert (len(dev), len(test)) == (50, 50)
    assert (dev | test).isdisjoint(map(text_of, bad))


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
    texts = {name: set(map(text_of, text)) for name, text in sets.items()}
    assert {name: len(text) for name, text in texts.items()} == {"train": 360, "dev": 20, "test": 20}
    assert len(set().union(*texts.values())) == 400
