"""What can be counted in parts and added up: findings with a few examples, and lengths."""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NUM_EXAMPLES = 10
"""Kept of each kind."""
TEXT_LENGTH = 300
"""Characters kept of an example's lines."""
OUTLIER_DEVIATIONS = 3.5
"""Robust standard deviations (1.4826 times the median absolute deviation; Iglewicz and Hoaglin 1993)."""
SMALLEST_FACTOR = 2.0
"""What is less than this many times off the median is no outlier, however alike the others are."""


@dataclass(frozen=True)
class Example:
    """A pair that shows what was found.

    Args:
        index: its number in its set, from 0.
        src: the source line, cut to `TEXT_LENGTH`.
        tgt: the target line, likewise.
        rank: the larger, the worse; of equal ones the first are kept.
        note: what is to be seen in it.
    """

    index: int
    src: str
    tgt: str
    rank: float = 0.0
    note: str = ""

    @classmethod
    def cut(cls, index: int, src: str, tgt: str, rank: float = 0.0, note: str = "") -> "Example":
        """With as much of the lines as is kept."""
        return cls(index, src[:TEXT_LENGTH], tgt[:TEXT_LENGTH], rank, note)


@dataclass
class Finding:
    """How often something was found, and the worst of it."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)

    def add(self, count: int, examples: Iterable[Example] = ()) -> None:
        """Of the examples, the worst stay."""
        self.count += count
        self.examples = heapq.nsmallest(NUM_EXAMPLES, [*self.examples, *examples], key=lambda e: (-e.rank, e.index))


class Findings(dict[tuple[str, str], Finding]):
    """By kind and side (src, tgt, or pair)."""

    def add(self, kind: str, side: str, count: int, examples: Iterable[Example] = ()) -> None:
        """Nothing stands for what was not found."""
        if count:
            self.setdefault((kind, side), Finding()).add(count, examples)

    def merge(self, other: "Findings") -> None:
        for (kind, side), finding in other.items():
            self.add(kind, side, finding.count, finding.examples)

    def count(self, kind: str, *sides: str) -> int:
        """Of a kind on these sides together."""
        return sum(self[kind, side].count for side in sides if (kind, side) in self)


class Lengths(Counter[int]):
    """How often each length comes."""

    def sum(self) -> int:
        """All lengths together."""
        return sum(length * count for length, count in self.items())

    def percentile(self, percent: float) -> int:
        """The smallest length that at least so many percent do not surpass; 0 of nothing."""
        wanted, seen = percent / 100 * self.total(), 0
        for length in sorted(self):
            seen += self[length]
            if seen >= wanted:
                return length
        return 0

    def above(self, limit: float) -> int:
        """How many are longer."""
        return sum(count for length, count in self.items() if length > limit)

    def histogram(self, num_bins: int = 40) -> tuple[list[float], list[int]]:
        """Equal bins up to the 99th percentile; the last one holds all that is longer."""
        width = max(1, math.ceil((self.percentile(99) + 1) / num_bins))
        counts = [0] * num_bins
        for length, count in self.items():
            counts[min(num_bins - 1, length // width)] += count
        edges = [float(width * number) for number in range(num_bins)]
        return [*edges, max(edges[-1] + width, max(self, default=0) + 1.0)], counts


class LogRatios(Counter[int]):
    """How often each ratio comes, in steps of 2 percent: the keys are `round(log(ratio) / STEP)`."""

    STEP = 0.02

    @classmethod
    def key(cls, ratio: float) -> int:
        """The step that is next to a ratio."""
        return round(math.log(ratio) / cls.STEP)

    def ratios(self) -> dict[float, int]:
        """How often each ratio comes."""
        return {math.exp(key * self.STEP): count for key, count in self.items()}


def outlier_limits(values: Mapping[int, int] | Mapping[float, int]) -> tuple[float, float]:
    """Below and above which a value is an outlier, by the median and the median absolute deviation of the logarithms.

    Args:
        values: how often each one comes; all above 0.
    """
    logs = {math.log(value): count for value, count in values.items()}
    median = _median(logs)
    deviations: Counter[float] = Counter()
    for value, count in logs.items():
        deviations[abs(value - median)] += count
    width = max(math.log(SMALLEST_FACTOR), OUTLIER_DEVIATIONS * 1.4826 * _median(deviations))
    return math.exp(median - width), math.exp(median + width)


def _median(values: Mapping[float, int]) -> float:
    half, seen = sum(values.values()) / 2, 0
    for value in sorted(values):
        seen += values[value]
        if seen >= half:
            return value
    return 0.0
