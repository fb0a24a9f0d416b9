"""Tests of functions that watch the progress of a search."""

import pytest
from toy import random_lines

from mtformer.decoding.translator import Translator
from mtformer.run_dir import RunDir


@pytest.fixture(scope="module")
def translator(run: RunDir) -> Translator:
    return Translator.load(run.path, device="cpu")


def test_watching_greedy_search_reports_growing_prefixes_of_the_translation(translator: Translator) -> None:
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
def test_watching_does_not_change_translations(translator: Translator, settings: dict[str, object]) -> None:
    lines = random_lines(5, seed=2)
    seen: list[str] = []
    found = translator.translate(lines, watch=[None, seen.append, None, None, None], **settings)
    assert found == translator.translate(lines, **settings)
    # At least one step per token; the beam may have continued for a few more.
    assert len(seen) >= found[1].length
    assert len(set(seen)) > 2


def test_only_watched_lines_are_reported(translator: Translator) -> None:
    lines = random_lines(3, seed=4)
    alone: list[str] = []
    translator.translate(lines[1:2], beam_size=1, watch=[alone.append])
    together: list[str] = []
    translator.translate(lines, beam_size=1, watch=[None, together.append, None])
    assert together[: len(alone)] == alone
    assert set(together) == set(alone)


def test_all_parts_of_a_split_line_are_reported(translator: Translator) -> None:
    line = ". ".join(random_lines(20, seed=5)) + "."
    seen: list[str] = []
    found = translator.translate([line, "", "x"], beam_size=1, watch=[seen.append, seen.append, None])
    assert len(translator.tokenizers.src.encode([line])[0]) > translator.preferred_tokens
    assert seen[-1] == found[0].text
