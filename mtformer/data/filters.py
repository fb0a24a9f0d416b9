"""What is left out of the training data and why, and the report of it."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.schema import FilterConfig
from mtformer.errors import DataError

EMPTY, IDENTICAL, DUPLICATE, TOO_LONG, RATIO = "empty", "identical", "duplicate", "too long", "length ratio"
REASONS = (EMPTY, IDENTICAL, DUPLICATE, TOO_LONG, RATIO)
"""In the order in which they are looked at; a pair is counted under the first that fits."""

RATIO_FROM_TOKENS = 10
"""The length ratio is checked when the longer side has more tokens than this."""

UNUSUAL = {
    "carriage return": "\r",
    "NUL": "\0",
    "line feed inside a field": "\n",
    "line or paragraph separator (U+2028, U+2029)": "\u2028\u2029",
    "other line break (U+000B, U+000C, U+001C-U+001E, U+0085)": "\x0b\x0c\x1c\x1d\x1e\x85",
    "replacement character (U+FFFD)": "\ufffd",
}
"""Characters that other tools take for the end of a line, or that tell of damage; lines that hold them are counted."""

Pair = tuple[str, str]


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
        values = json.loads(text)
        del values["unknown_rate"]
        return cls(**values)

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


class Filter:
    """Takes chunks of a corpus in order, says what to keep, and counts.

    Args:
        config: None keeps everything (dev and test).
    """

    def __init__(self, config: FilterConfig | None) -> None:
        self.config = config
        self.report = DataReport()
        self._seen = SeenPairs()

    def by_text(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs that pass the checks that need no tokens."""
        self.report.read += len(pairs)
        self._count_unusual(pairs)
        if self.config is None:
            return list(pairs)
        kept = [pair for pair in pairs if _has_text(pair[0]) and _has_text(pair[1])]
        self._left_out(EMPTY, len(pairs) - len(kept))
        if self.config.drop_identical:
            before = len(kept)
            kept = [pair for pair in kept if pair[0].strip() != pair[1].strip()]
            self._left_out(IDENTICAL, before - len(kept))
        if self.config.drop_duplicates:
            is_new = self._seen.add(kept).tolist()
            self._left_out(DUPLICATE, len(kept) - sum(is_new))
            kept = [pair for pair, new in zip(kept, is_new, strict=True) if new]
        return kept

    def by_length(self, src_lengths: NDArray[np.int32], tgt_lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """True for each pair whose token counts pass; with filters, a side without tokens counts as empty."""
        keep = np.ones(len(src_lengths), dtype=bool)
        if self.config is None:
            self.report.blank["src"] += int((src_lengths == 0).sum())
            self.report.blank["tgt"] += int((tgt_lengths == 0).sum())
            return keep
        shorter, longer = np.minimum(src_lengths, tgt_lengths), np.maximum(src_lengths, tgt_lengths)
        failures = {EMPTY: shorter == 0, TOO_LONG: longer > self.config.max_tokens}
        if self.config.max_length_ratio is not None:
            is_long = longer > RATIO_FROM_TOKENS
            failures[RATIO] = is_long & (longer > self.config.max_length_ratio * shorter)
        for reason, fails in failures.items():
            self._left_out(reason, int((keep & fails).sum()))
            keep &= ~fails
        return keep

    def _left_out(self, reason: str, count: int) -> None:
        if count:
            counts = Counter(self.report.left_out)
            counts[reason] += count
            self.report.left_out = {name: counts[name] for name in REASONS if counts[name]}

    def _count_unusual(self, pairs: Sequence[Pair]) -> None:
        for number, side in enumerate(("src", "tgt")):
            # One search over all lines is quick and nearly always enough.
            together = " ".join(pair[number] for pair in pairs)
            counts = self.report.unusual[side]
            for name, characters in UNUSUAL.items():
                present = [character for character in characters if character in together]
                if present:
                    found = sum(any(character in pair[number] for character in present) for pair in pairs)
                    counts[name] = counts.get(name, 0) + found


class SeenPairs:
    """Hashes of all pairs so far, 8 bytes each, in a few sorted arrays whose sizes at least double."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.uint64]] = []

    def add(self, pairs: Sequence[Pair]) -> NDArray[np.bool_]:
        """True for each pair that has not stood before, neither in an earlier call nor earlier in this one."""
        digests = b"".join(hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest() for pair in pairs)
        hashes = np.frombuffer(digests, dtype=np.uint64)
        unique, first = np.unique(hashes, return_index=True)
        is_new = np.zeros(len(hashes), dtype=bool)
        is_new[first] = True
        for array in self._arrays:
            at = np.minimum(np.searchsorted(array, hashes), len(array) - 1)
            is_new &= array[at] != hashes
        if len(unique):
            while self._arrays and len(self._arrays[-1]) < 2 * len(unique):
                unique = np.union1d(unique, self._arrays.pop())
            self._arrays.append(unique)
        return is_new


def _has_text(line: str) -> bool:
    return bool(line) and not line.isspace()
