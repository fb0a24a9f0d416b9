"""Reading and writing HTML takes linear time: steps are counted for documents of one and two sizes."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.documents import html_tokens
from mtformer.documents.html import Fragment
from mtformer.text.tokenizer import SPACE

SMALL = 2_500
MAX_RATIO = 2.5
MAX_READS = 12
"""Maximum number of times that patterns read each character."""


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "bench" / "html_speed.py"
    spec = importlib.util.spec_from_file_location("html_speed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = _benchmark()
KINDS = [*BENCH.REPEATED, *BENCH.NESTED, *BENCH.AROUND]


def write_again(html: str, change: Callable[[list[int]], list[int]] = list) -> None:
    """Read HTML, and write it with its pieces in another order and attention from each to its source."""
    fragment = Fragment(html)
    translations = []
    for line in fragment.lines:
        attention = BENCH.identity(line).attention
        numbers = change(list(range(len(attention.src_pieces))))
        pieces = [attention.src_pieces[number] for number in numbers]
        text = "".join(pieces).replace(SPACE, " ").strip()
        changed = Attention(attention.src_pieces, pieces, [[1.0]] * len(numbers), numbers)
        translations.append(Translation(text, 0.0, [], attention=changed))
    fragment.write(translations)


def num_calls(function: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions."""
    count = 0

    def hook(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(hook)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def even_first(items: list[int]) -> list[int]:
    return items[::2] + items[1::2]


def backwards(items: list[int]) -> list[int]:
    return items[::-1]


def first_tenth(items: list[int]) -> list[int]:
    return items[: len(items) // 10]


@pytest.mark.parametrize("change", [list, even_first, backwards, first_tenth], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_text_needs_twice_the_steps(kind: str, change: Callable[[list[int]], list[int]]) -> None:
    counts = []
    for size in (SMALL, 2 * SMALL):
        html = BENCH.document(kind, size)
        counts.append(num_calls(lambda html=html: write_again(html, change)))
    assert counts[1] < MAX_RATIO * counts[0]


class CountingPattern:
    """A pattern that counts the characters that it reads."""

    num_read = 0

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def search(self, text: str, position: int = 0) -> Any:
        match = self.pattern.search(text, position)
        CountingPattern.num_read += (len(text) if match is None else match.end()) - position
        return match

    def match(self, text: str, position: int = 0) -> Any:
        match = self.pattern.match(text, position)
        CountingPattern.num_read += 1 if match is None else match.end() - position
        return match


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_read_each_character_a_few_times(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in vars(html_tokens).items():
        if isinstance(value, re.Pattern) and name not in ("AMPERSAND", "LONG_NUMBER", "ENCODING"):
            monkeypatch.setattr(html_tokens, name, CountingPattern(value))
    ends = {name: CountingPattern(pattern) for name, pattern in html_tokens.RAW_TEXT_ENDS.items()}
    monkeypatch.setattr(html_tokens, "RAW_TEXT_ENDS", ends)
    html = BENCH.document(kind, 20_000)
    CountingPattern.num_read = 0
    html_tokens.tokenize(html)
    assert CountingPattern.num_read < MAX_READS * len(html)
