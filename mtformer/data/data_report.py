"""Report on a prepared corpus: numbers of pairs read, kept, and removed by reason."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.errors import DataError
from mtformer.text.normalization import Normalizer

Pair = tuple[str, str]
Columns = tuple[list[str], list[str]]
"""Source lines and target lines: the format in which text is passed between modules."""

UNUSUAL = {
    "carriage return": "\r",
    "NUL": "\0",
    "line feed inside a field": "\n",
    "line or paragraph separator (U+2028, U+2029)": "\u2028\u2029",
    "other line break (U+000B, U+000C, U+001C-U+001E, U+0085)": "\x0b\x0c\x1c\x1d\x1e\x85",
    "replacement character (U+FFFD)": "\ufffd",
}
"""Characters that break lines in other tools or indicate damage; lines that contain one are counted."""

MAX_EXAMPLES = 2
"""Maximum number of examples of lines that normalization changes."""

MAX_NORMALIZED = 2500
"""Number of lines from which only some are normalized a second time, because that takes as long as tokenizing them."""


@dataclass
class NormalizedLines:
    """Lines that the normalization of the tokenizer changes, apart from their spaces, among some lines of a corpus."""

    examined: int = 0
    changed: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)
    """Up to `MAX_EXAMPLES` changed lines, before and after normalization."""

    def __add__(self, lines: "NormalizedLines") -> "NormalizedLines":
        examples = self.examples + lines.examples
        return NormalizedLines(
            examined=self.examined + lines.examined,
            changed=self.changed + lines.changed,
            examples=examples[:MAX_EXAMPLES],
        )


@dataclass
class DataReport:
    """Counts of a prepared corpus, in pairs unless stated otherwise."""

    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of removed pairs by reason, without zeros."""
    blank: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Number of blank lines in kept pairs by side; only counted if filters are off."""
    tokens: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Number of tokens in kept pairs by side, excluding eos."""
    unknown: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Number of unknown tokens in kept pairs by side."""
    unusual: dict[str, dict[str, int]] = field(default_factory=lambda: {"src": {}, "tgt": {}})
    """Number of lines with an unusual character by side and name of the character."""
    normalized: dict[str, NormalizedLines] = field(
        default_factory=lambda: {"src": NormalizedLines(), "tgt": NormalizedLines()}
    )
    """Lines that the tokenizer's normalization changes, by side."""

    @property
    def left_out_share(self) -> float:
        """Share of pairs that were removed."""
        return 1 - self.kept / self.read if self.read else 0.0

    def unknown_rate(self, side: str) -> float:
        """Return the share of unknown tokens on a side (`src` or `tgt`)."""
        num_tokens = max(1, self.tokens[side])
        return self.unknown[side] / num_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return all counts and rates."""
        unknown_rate = {"src": self.unknown_rate("src"), "tgt": self.unknown_rate("tgt")}
        return {**asdict(self), "unknown_rate": unknown_rate}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DataReport":
        """Restore a report from the result of `to_dict`; unknown keys are ignored."""
        names = {field.name for field in fields(cls)}
        known = {name: value for name, value in values.items() if name in names}
        if "normalized" in known:
            sides = known["normalized"].items()
            known["normalized"] = {side: NormalizedLines(**counts) for side, counts in sides}
        return cls(**known)

    def leave_out(self, counts: Mapping[str, int]) -> None:
        """Count removed pairs by reason."""
        self.left_out = _sum(self.left_out, counts)

    def count_kept(self, counts: NDArray[np.int32]) -> None:
        """Count kept pairs and their tokens (see `TokenCounts`)."""
        self.kept += len(counts)
        totals = counts.sum(axis=0, dtype=np.int64)
        src_tokens, tgt_tokens, src_unknown, tgt_unknown = totals.tolist()
        self.tokens = _sum(self.tokens, {"src": src_tokens, "tgt": tgt_tokens})
        self.unknown = _sum(self.unknown, {"src": src_unknown, "tgt": tgt_unknown})

    def count_unusual(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        """Count the lines with unusual characters."""
        for side, lines in (("src", src), ("tgt", tgt)):
            # A single search over all lines is fast, and usually finds nothing.
            all_lines = " ".join(lines)
            counts = self.unusual[side]
            for name, characters in UNUSUAL.items():
                present = [character for character in characters if character in all_lines]
                if present:
                    num_lines = _num_containing(lines, present)
                    counts[name] = num_lines + counts.get(name, 0)

    def count_normalized(self, side: str, lines: Sequence[str], normalizer: Normalizer) -> None:
        """Count the lines that normalization changes; of many lines, an evenly spaced sample is examined.

        Args:
            side: src or tgt.
            lines: lines of this side.
            normalizer: normalization of the tokenizer of this side.
        """
        step = max(1, len(lines) // MAX_NORMALIZED)
        examined = lines[::step]
        changes = normalizer.changes(examined)
        first_changes = islice(changes.items(), MAX_EXAMPLES)
        examples = [(examined[row], changed) for row, changed in first_changes]
        normalized = NormalizedLines(len(examined), len(changes), examples)
        self.normalized[side] += normalized

    def __add__(self, report: "DataReport") -> "DataReport":
        total = _sum(vars(self), vars(report))
        return DataReport(**total)

    def lines(self) -> list[str]:
        """Format the report as lines of text."""
        lines = [f"pairs read     {self.read:>13,}", f"pairs kept     {self.kept:>13,}"]
        for reason, count in self.left_out.items():
            lines.append(f"  removed      {count:>13,}  {reason}")
        lines += self._side_lines("src", "source")
        lines += self._side_lines("tgt", "target")
        return lines

    def _side_lines(self, side: str, title: str) -> list[str]:
        num_tokens = self.tokens[side]
        mean = num_tokens / max(1, self.kept)
        unknown = f"{100 * self.unknown_rate(side):.3g} % unknown"
        lines = [f"{title} tokens  {num_tokens:>13,}  {mean:.1f} per line, {unknown}"]
        num_blank = self.blank[side]
        if num_blank:
            lines.append(f"  blank        {num_blank:>13,}  {title} lines without tokens")
        for name, count in self.unusual[side].items():
            lines.append(f"  check        {count:>13,}  {title} lines with {name}")
        return lines

    def check(self, filters: FilterConfig, where: str) -> None:
        """Raise DataError if no pair was kept, or the share of removed pairs exceeds `max_filtered_share`."""
        if self.kept and self.left_out_share <= filters.max_filtered_share:
            return

        reasons = [f"{reason} {count:,}" for reason, count in self.left_out.items()]
        num_removed = self.read - self.kept
        counts = f"{where}: {num_removed:,} of {self.read:,} pairs were removed ({', '.join(reasons)})"
        if not self.kept:
            raise DataError(f"{counts}; no training data is left; check the files and data.filters")
        limit = f"data.filters.max_filtered_share {filters.max_filtered_share:g}"
        raise DataError(f"{counts}, more than {limit}; fix the files, change data.filters, or raise this limit")


def _num_containing(lines: Sequence[str], characters: Sequence[str]) -> int:
    """Return the number of lines with at least one of these characters."""
    count = 0
    for line in lines:
        if any(character in line for character in characters):
            count += 1
    return count


def _sum(left: Any, right: Any) -> Any:
    """Return the sum of two counts or, of dictionaries, the sum of the counts under each key."""
    if not isinstance(left, dict):
        return left + right
    total = dict(left)
    for key, value in right.items():
        if key in total:
            value = _sum(total[key], value)
        total[key] = value
    return total
