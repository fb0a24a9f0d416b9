"""What was read of a corpus, what was kept, and what was left out why."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mtformer.config.data import FilterConfig
from mtformer.errors import DataError

Pair = tuple[str, str]
Sides = tuple[list[str], list[str]]
"""All sources, and all targets."""

UNUSUAL = {
    "carriage return": "\r",
    "NUL": "\0",
    "line feed inside a field": "\n",
    "line or paragraph separator (U+2028, U+2029)": "\u2028\u2029",
    "other line break (U+000B, U+000C, U+001C-U+001E, U+0085)": "\x0b\x0c\x1c\x1d\x1e\x85",
    "replacement character (U+FFFD)": "\ufffd",
}
"""Characters that other tools take for the end of a line, or that tell of damage; lines that hold them are counted."""


def sides(pairs: Sequence[Pair]) -> Sides:
    """All sources, and all targets."""
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@dataclass
class DataReport:
    """What was read, what was kept, and what was left out why. Counts are of pairs unless they say otherwise."""

    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """By reason, those that happened."""
    blank: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Kept pairs with a side that has no token; only where nothing is filtered."""
    tokens: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Of the kept pairs, eos not counted."""
    unknown: dict[str, int] = field(default_factory=lambda: {"src": 0, "tgt": 0})
    """Tokens of the kept pairs that are unk."""
    unusual: dict[str, dict[str, int]] = field(default_factory=lambda: {"src": {}, "tgt": {}})
    """Lines read that hold a character to look out for, by its name."""

    @property
    def left_out_share(self) -> float:
        """Between 0 and 1."""
        return 1 - self.kept / self.read if self.read else 0.0

    def unknown_rate(self, side: str) -> float:
        """Share of unk among a side's tokens; `side` is src or tgt."""
        return self.unknown[side] / max(1, self.tokens[side])

    def to_dict(self) -> dict[str, Any]:
        """All figures, the rates too."""
        return {**asdict(self), "unknown_rate": {side: self.unknown_rate(side) for side in ("src", "tgt")}}

    def to_json(self) -> str:
        """The figures as a JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "DataReport":
        """What `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DataReport":
        """What `to_dict` gave."""
        return cls(**{name: value for name, value in values.items() if name != "unknown_rate"})

    def leave_out(self, reason: str, count: int) -> None:
        """Counts pairs under a reason."""
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + count

    def count_unusual(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        """Looks for unusual characters in lines as they were read."""
        for side, lines in (("src", src), ("tgt", tgt)):
            # One search over all lines is quick and nearly always enough.
            together = " ".join(lines)
            for name, characters in UNUSUAL.items():
                present = [character for character in characters if character in together]
                if present:
                    found = sum(any(character in line for character in present) for line in lines)
                    self.unusual[side][name] = self.unusual[side].get(name, 0) + found

    def __add__(self, other: "DataReport") -> "DataReport":
        """Of both parts of a corpus together."""
        return DataReport(**{name: _sum(mine, getattr(other, name)) for name, mine in vars(self).items()})

    def lines(self) -> list[str]:
        """One screen for a person."""
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
        """Raises DataError when nothing was kept, or a larger share left out than `max_filtered_share`."""
        if self.kept and self.left_out_share <= filters.max_filtered_share:
            return
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.left_out.items())
        told = f"{where}: {self.read - self.kept:,} of {self.read:,} pairs are left out ({reasons})"
        if not self.kept:
            raise DataError(f"{told}; nothing is left to train on: look at the files and at data.filters")
        limit = f"data.filters.max_filtered_share {filters.max_filtered_share:g}"
        raise DataError(f"{told}, more than {limit}; mend the files, or raise that limit")


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, dict):
        return {
            key: _sum(left[key], right[key]) if key in left and key in right else left.get(key, right.get(key))
            for key in {**left, **right}
        }
    return left + right
