"""Comparison of the input of a model with its training text, so that input of another style is noticed.

A model that was trained on tokenized or lowercased text translates usual text badly, and the reverse. Nothing is said
about a few short lines: `mtformer.text.style` judges a text only from a number of lines or letters on.
"""

from collections.abc import Sequence

from mtformer.decoding.lines.inputs import check_lines
from mtformer.text.normalization import Normalizer
from mtformer.text.style import TOKENIZED, Difference, StyleCounts, describe_differences, differences

ALL_LINES = 1000
"""Number of lines at the start that are all examined; differences are visible after a few dozen."""
LINE_STEP = 20
"""After `ALL_LINES`, every 20th line is examined, for input that changes later."""
WINDOW = 1000
"""Number of examined lines that are judged together."""
INPUT = "the input"
"""Name of the input in messages."""


class InputWatch:
    """Measures the style of input, and returns differences from the training text once: tokenization, case and scripts.

    Args:
        training: style of the training text in each language that the input may have; empty: nothing is compared.
        normalizer: normalization of the source tokenizer; differences that it removes do not count.
        accepts_any_case: the case of the training text was changed at random.
    """

    def __init__(self, training: Sequence[StyleCounts], normalizer: Normalizer, *, accepts_any_case: bool) -> None:
        self._training = training
        self._normalizer = normalizer
        self._accepts_any_case = accepts_any_case
        self._num_lines = 0
        self._counts = StyleCounts()
        """Counts of the current window."""
        self._told: set[str] = set()
        """Topics of the differences that were returned."""

    def add(self, lines: Sequence[str]) -> str | None:
        """Examine the next lines; return a message about the differences that are new, or None."""
        if not self._training:
            return None
        self._counts += self._measure(self._examined(lines))
        found = self._differences(self._counts)
        if self._counts.lines >= WINDOW:
            self._counts = StyleCounts()

        new = {name: kind for name, kind in found.items() if _topic(name) not in self._told}
        self._told.update(map(_topic, new))
        return _message(new, INPUT)

    def judge(self, lines: Sequence[str], text: str = INPUT) -> str | None:
        """Return a message about the differences of these lines alone, or None; `text` names them."""
        return self.judge_counts(self._measure(lines[:ALL_LINES]), text)

    def judge_counts(self, counts: StyleCounts, text: str) -> str | None:
        """Return a message about the differences of a text with these counts, or None; `text` names it."""
        if not self._training:
            return None
        return _message(self._differences(counts), text)

    def _examined(self, lines: Sequence[str]) -> list[str]:
        """Return those of the next lines that are examined."""
        examined = []
        for number, line in enumerate(lines, start=self._num_lines):
            if number < ALL_LINES or number % LINE_STEP == 0:
                examined.append(line)
        self._num_lines += len(lines)
        return examined

    def _measure(self, lines: Sequence[str]) -> StyleCounts:
        return StyleCounts.of_lines(self._normalizer(check_lines(lines))) if lines else StyleCounts()

    def _differences(self, counts: StyleCounts) -> dict[str, Difference]:
        """Return how the input differs from the training text in all languages that are written in its script."""
        found_by_language = [
            differences(counts, training, ignores_case=self._accepts_any_case) for training in self._training
        ]
        of_same_script = [found for found in found_by_language if Difference.SCRIPT not in found.values()]
        first, *others = of_same_script or found_by_language
        for found in others:
            first = {name: kind for name, kind in first.items() if name in found}
        return first


def _topic(name: str) -> str:
    """Return the topic of a difference; all signs of tokenized text, which are found one by one, have the same."""
    return "tokenized" if name in TOKENIZED else name


def _message(found: dict[str, Difference], text: str) -> str | None:
    if not found:
        return None
    remedy = f"give {text.removeprefix('the ')} in the style of the training text, or train on text like it"
    return f"{text} is unlike the training text: {describe_differences(found, text)}; {remedy}"
