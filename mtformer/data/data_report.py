"""The report on a prepared corpus: how many pairs were read, kept, and left out for which reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.errors import DataError

Pair = tuple[str, str]
Columns = tuple[list[str], list[str]]
"""All sources, and all targets: the form in which text travels."""

UNUSUAL = {
    "carriage return": "\r",
    "NUL": "\0",
    "line feed inside a field": "\n",
    "line or paragraph separator (U+2028, U+2029)": "\u2028\u2029",
    "other line break (U+000B, U+000C, U+001C-U+001E, U+0085)": "\x0b\x0c\x1c\x1d\x1e\x85",
    "replacement character (U+FFFD)": "\ufffd",
}
"""Characters that break lines in other tools or indicate damage; lines that contain them are counted."""


@dataclass
class DataReport:
    """Counts of pairs, unless stated otherwise."""

    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Pairs left out by reason, without zeros."""
    blank: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Kept pairs with a side that has no token; counted only if nothing is filtered."""
    tokens: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Tokens of the kept pairs, eos not counted."""
    unknown: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Tokens of the kept pairs that are unk."""
    unusual: dict[str, dict[str, int]] = field(default_factory=lambda: {"src": {}, "tgt": {}})
    """Lines read that contain an unusual character, by its name."""

    @property
    def left_out_share(self) -> float:
        """Share of the pairs read that were left out."""
        return 1 - self.kept / self.read if self.read else 0.0

    def unknown_rate(self, side: str) -> float:
        """Return the share of unk among a side's tokens; `side` is src or tgt."""
        return self.unknown[side] / max(1, self.tokens[side])

    def to_dict(self) -> dict[str, Any]:
        """Return all counts and rates."""
        return {**asdict(self), "unknown_rate": {side: self.unknown_rate(side) for side in ("src", "tgt")}}

    def to_json(self) -> str:
        """Return the figures as a JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DataReport":
        """Return the report of which `to_dict` returned `values`; other keys are ignored."""
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name in values})

    def leave_out(self, counts: Mapping[str, int]) -> None:
        """Count pairs by reason."""
        self.left_out = _sum(self.left_out, counts)

    def count_kept(self, counts: NDArray[np.int32]) -> None:
        """Count kept pairs and their tokens, see `TokenCounts`."""
        self.kept += len(counts)
        totals = counts.sum(axis=0, dtype=np.int64).tolist()
        self.tokens = _sum(self.tokens, {"src": totals[0], "tgt": totals[1]})
        self.unknown = _sum(self.unknown, {"src": totals[2], "tgt": totals[3]})

    def count_unusual(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        """Count the lines with unusual characters."""
        for side, lines in (("src", src), ("tgt", tgt)):
            # One search over all lines is fast and nearly always enough.
            together = " ".join(lines)
            for name, characters in UNUSUAL.items():
                present = [character for character in characters if character in together]
                if present:
                    found = sum(any(character in line for character in present) for line in lines)
                    self.unusual[side][name] = self.unusual[side].get(name, 0) + found

    def __add__(self, other: "DataReport") -> "DataReport":
        """Return the report of both parts of a corpus."""
        return DataReport(**{name: _sum(mine, getattr(other, name)) for name, mine in vars(self).items()})

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [f"pairs read     {self.read:>13,}", f"pairs kept     {self.kept:>13,}"]
        lines += [f"  left out     {count:>13,}  {reason}" for reason, count in self.left_out.items()]
        for side, title in (("src", "source"), ("tgt", "target")):
            tokens, mean = self.tokens[side], self.tokens[side] / max(1, self.kept)
            lines.append(
                f"{title} tokens  {tokens:>13,}  {mean:.1f} a line, {100 * self.unknown_rate(side):.3g} % unknown"
            )
            if self.blank[side]:
                lines.append(f"  blank        {self.blank[side]:>13,}  {title} lines without a token")
            lines += [f"  look at      {n:>13,}  {title} lines with {name}" for name, n in self.unusual[side].items()]
        return lines

    def check(self, filters: FilterConfig, where: str) -> None:
        """Raise DataError if nothing was kept, or a larger share left out than `max_filtered_share`."""
        if self.kept and self.left_out_share <= filters.max_filtered_share:
            return
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.left_out.items())
        counts = f"{where}: {self.read - self.kept:,} of {self.read:,} pairs are left out ({reasons})"
        if not self.kept:
            raise DataError(f"{counts}; nothing is left to train on: check the files and data.filters")
        limit = f"data.filters.max_filtered_share {filters.max_filtered_share:g}"
        raise DataError(f"{counts}, more than {limit}; fix the files, or raise that limit")


def _sum(left: Any, right: Any) -> Any:
    if not isinstance(left, dict):
        return left + right
    return {**left, **{key: _sum(left[key], value) if key in left else value for key, value in right.items()}}
