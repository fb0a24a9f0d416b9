"""Watching a search."""

import pytest
from toy import random_lines

from mtformer.decoding.translator import Translator
from mtformer.run_dir import RunDir


@pytest.fixture(scope="module")
def translator(run: RunDir) -> Translator:
    return Translator.load(run.path, device="cpu")


def test_greedy_search_is_seen_to_grow_into_the_translation(translator: Translator) -> None:
    lines = random_lines(6, seed=1)
    seen: list[list[str]] = [[] for _ in lines]
    found = translator.translate(lines, beam_size=1, watch=[texts.append for texts in seen])
    for texts, one in zip(seen, found, strict=True):
        assert len(texts) >= one.length
        for before, after in zip(texts, [*texts[1:], one.text], strict=True):
            assert after.startswith(before.rstrip())
        assert texts[0] == ""


@pytest.mark.parametrize(
    "settings",
    [{}, {"sampling": True}, {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.5}, {"no_repeat_ngram_size": 2}],
)
def test_watching_changes_nothing(translator: Translator, settings: dict[str, object]) -> None:
    lines = random_lines(5, seed=2)
    seen: list[str] = []
    found = translator.translate(lines, watch=[None, seen.append, None, None, None], **settings)
    assert found == translator.translate(lines, **settings)
    # A step at least for each token; the beam may have gone on a little.
    assert len(seen) >= found[1].length
    assert len(set(seen)) > 2


def test_only_watched_lines_are_shown(translator: Translator) -> None:
    lines = random_lines(3, seed=4)
    alone: list[str] = []
    translator.translate(lines[1:2], beam_size=1, watch=[alone.append])
    together: list[str] = []
    translator.translate(lines, beam_size=1, watch=[None, together.append, None])
    assert together[: len(alone)] == alone
    assert set(together) == set(alone)


def test_of_a_line_that_is_split_all_parts_are_seen(translator: Translator) -> None:
    line = ". ".join(random_lines(20, seed=5)) + "."
    seen: list[str] = []
    found = translator.translate([line, "", "x"], beam_size=1, watch=[seen.append, seen.append, None])
    assert len(translator.tokenizers.src.encode([line])[0]) > translator.preferred_tokens
    assert seen[-1] == found[0].text
