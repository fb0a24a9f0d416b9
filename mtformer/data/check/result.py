"""Results of checking corpora: counts, which are added chunk by chunk, and derived statistics."""

import heapq
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

from mtformer.data.corpus.readers import FaultKind
from mtformer.data.data_report import UNUSUAL
from mtformer.enums import StrEnum
from mtformer.text.normalization import CHANGED_SHARE

NUM_EXAMPLES = 10
"""Maximum number of examples per finding."""

OUTLIER_DEVIATIONS = 3.5
"""Outlier limit in robust standard deviations (1.4826 x median absolute deviation; Iglewicz and Hoaglin 1993)."""

MIN_OUTLIER_FACTOR = 2.0
"""Values within this factor of the median are never outliers."""

RATIO_STEP = 0.02
"""Bin width of the logarithm of length ratios."""

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
"""Percentiles of line lengths in the JSON report."""

NUM_BINS = 40
"""Number of bins of a histogram."""

RATIO_STEPS_PER_BIN = 6
"""Width of a bin in the histogram of length ratios, in units of `RATIO_STEP`."""

UNITS = ("characters", "words", "tokens")
"""Units of line lengths."""

SIDES = ("src", "tgt")
"""Sides of a pair."""

SIDE_NAMES = {"src": "source", "tgt": "target", "pair": ""}
"""Names of the sides in the report."""

CONTROL_POINTS = (*range(1, 9), *range(0x0E, 0x1C), 0x1F, *range(0x7F, 0x85), *range(0x86, 0xA0))
"""Code points of control characters, except for those of `UNUSUAL`, tabs and line ends."""

FAULTS = {
    **UNUSUAL,
    "byte order mark inside (U+FEFF)": "\ufeff",
    "control character": "".join(map(chr, CONTROL_POINTS)),
}
"""Characters that break lines in other tools or indicate damage."""


class FindingKind(StrEnum):
    """Property of a line or pair, other than a `FaultKind` or an unusual character of `FAULTS`."""

    HEADER = "column names in the first line"
    SHIFTED = "target lines are shifted"
    SWAPPED = "source and target are swapped"
    LINE_NUMBERS = "line numbers or identifiers"
    QUOTED = "cells in CSV quotes"
    TOKENIZED = "tokenized text"
    LOWERCASED = "no capital letters"
    CAPITALS = "only capital letters"
    EMPTY = "empty side"
    COPY = "copy"
    DUPLICATE = "exact duplicate"
    NEAR_DUPLICATE = "near duplicate"
    SEVERAL_TARGETS = "several targets"
    LONG = "long line"
    UNKNOWN = "unknown tokens"
    LOW_RATIO = "target short for its source"
    HIGH_RATIO = "target long for its source"
    FOREIGN = "letters of another script"
    OTHER_SCRIPT = "mostly in another script"
    MIXED = "mixed normalization (NFC and NFD)"
    COMPOSED = "composed (NFC)"
    DECOMPOSED = "decomposed (NFD)"
    NORMALIZED = "changed by normalization"


ORDER: tuple[str, ...] = (
    *FaultKind,
    *FAULTS,
    FindingKind.HEADER,
    FindingKind.SHIFTED,
    FindingKind.SWAPPED,
    FindingKind.LINE_NUMBERS,
    FindingKind.QUOTED,
    FindingKind.TOKENIZED,
    FindingKind.LOWERCASED,
    FindingKind.CAPITALS,
    FindingKind.MIXED,
    FindingKind.NORMALIZED,
    FindingKind.EMPTY,
    FindingKind.COPY,
    FindingKind.DUPLICATE,
    FindingKind.NEAR_DUPLICATE,
    FindingKind.SEVERAL_TARGETS,
    FindingKind.LONG,
    FindingKind.LOW_RATIO,
    FindingKind.HIGH_RATIO,
    FindingKind.FOREIGN,
    FindingKind.OTHER_SCRIPT,
    FindingKind.UNKNOWN,
)
"""Order of findings in the report."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Example:
    """Example pair of a finding, with texts truncated to 300 characters."""

    file: str
    """File that contains the line (the source file if the finding is about both sides), or name of the dataset."""
    line: int
    """Line number, starting at 1."""
    src: str
    tgt: str
    note: str = ""
    rank: float = 0.0
    """Severity; higher is worse."""


@dataclass
class Finding:
    """Lines or pairs with the same property, such as a kind of fault."""

    kind: str
    """A `FindingKind` or `FaultKind`, or the name of an unusual character."""
    side: str
    """src or tgt; pair if the finding is about both sides."""
    count: int = 0
    rule: str = ""
    """Description of the limit, if it depends on the corpus."""
    examples: list[Example] = field(default_factory=list)
    """Examples, worst first; examples with the same rank are in order of occurrence."""

    @property
    def title(self) -> str:
        """Side and kind in words."""
        return f"{SIDE_NAMES[self.side]}: {self.kind}".removeprefix(": ")

    def add(self, count: int, examples: Iterable[Example]) -> None:
        """Add the count and examples of later lines."""
        self.count += count
        candidates = [*self.examples, *examples]
        self.examples = heapq.nlargest(NUM_EXAMPLES, candidates, key=attrgetter("rank"))


class Lengths(Counter[int]):
    """Number of lines per length, or of pairs per length ratio."""

    def sum(self) -> int:
        """Return the total length of all lines."""
        return sum(length * count for length, count in self.items())

    def mean(self) -> float:
        """Return the mean length of a line."""
        return self.sum() / max(1, self.total())

    def bins(self, first: int, width: int) -> list[int]:
        """Return the counts of `NUM_BINS` bins; the first and last bin also count all values below and above."""
        counts = [0] * NUM_BINS
        for value, count in self.items():
            number = (value - first) // width
            number = max(0, min(NUM_BINS - 1, number))
            counts[number] += count
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        percentiles = {percent: percentile(self, percent) for percent in PERCENTILES}
        counts = {length: self[length] for length in sorted(self)}
        return {
            "total": self.sum(),
            "mean": self.mean(),
            "longest": max(self, default=0),
            "percentiles": percentiles,
            "counts": counts,
        }

    def histogram(self) -> tuple[list[float], list[int]]:
        """Return the starts and counts of bins up to the 99th percentile; the last bin counts all longer lines."""
        end = percentile(self, 99) + 1
        width = max(1, math.ceil(end / NUM_BINS))
        starts = [float(width * number) for number in range(NUM_BINS)]
        return starts, self.bins(0, width)


@dataclass
class SideCounts:
    """Counts of one side of a set."""

    language: str
    lengths: dict[str, Lengths] = field(default_factory=dict)
    """Lengths in characters, in words (if separated by spaces in the language) and in tokens (with a tokenizer)."""
    unknown: int = 0
    """Number of unknown tokens."""
    word_tokens: int = 0
    """Number of tokens in the lines whose words are counted."""
    faulty_lines: int = 0
    """Number of lines with at least one character of `FAULTS`."""

    def merge(self, chunk: "SideCounts") -> None:
        """Add the counts of the next chunk."""
        for unit, chunk_lengths in chunk.lengths.items():
            lengths = self.lengths.setdefault(unit, Lengths())
            lengths.update(chunk_lengths)
        self.unknown += chunk.unknown
        self.word_tokens += chunk.word_tokens
        self.faulty_lines += chunk.faulty_lines

    def rates(self) -> dict[str, float | None]:
        """Return tokens per word, tokens per character and the share of unknown tokens; None if not counted."""
        if "tokens" not in self.lengths:
            return dict.fromkeys(("tokens_per_word", "tokens_per_character", "unknown_rate"))
        num_characters = max(1, self._total("characters"))
        num_words = self._total("words")
        num_tokens = max(1, self._total("tokens"))
        tokens_per_word = self.word_tokens / num_words if num_words else None
        return {
            "tokens_per_word": tokens_per_word,
            "tokens_per_character": num_tokens / num_characters,
            "unknown_rate": self.unknown / num_tokens,
        }

    def _total(self, unit: str) -> int:
        return self.lengths.get(unit, Lengths()).sum()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        lengths = {unit: lengths.to_dict() for unit, lengths in self.lengths.items()}
        return {"language": self.language, **lengths, **self.rates(), "faulty_lines": self.faulty_lines}


@dataclass
class SourceCount:
    """Number of pairs of a source."""

    name: str
    pairs: int = 0


@dataclass
class SetCheck:
    """Counts of a set, or of a chunk of it."""

    name: str
    """train, dev, dev.NAME, or test.NAME."""
    src: SideCounts
    tgt: SideCounts
    pairs: int = 0
    sources: list[SourceCount] = field(default_factory=list)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    """Findings by kind and side."""
    log_ratios: Lengths = field(default_factory=Lengths)
    """Number of pairs, except short ones, by `round(log(target characters / source characters) / RATIO_STEP)`."""
    removed: dict[str, int] | None = None
    """Number of pairs that the filters remove, by reason; None for sets that are not filtered."""
    sample: dict[str, list[Example]] = field(default_factory=dict)
    """Random pairs by reason for removal ("" for kept pairs), with random ranks."""

    def side(self, name: str) -> SideCounts:
        """Return the counts of src or tgt."""
        return self.src if name == "src" else self.tgt

    def find(self, kind: str, side: str, count: int, examples: Iterable[Example] = ()) -> None:
        """Add lines or pairs to a finding.

        Args:
            kind: kind of the finding, see `Finding`.
            side: src, tgt or pair, see `Finding`.
            count: number of lines or pairs; 0: nothing is added.
            examples: examples of these lines or pairs.
        """
        if count:
            new_finding = Finding(kind, side)
            finding = self.findings.setdefault((kind, side), new_finding)
            finding.add(count, examples)

    def add_finding(self, finding: Finding) -> None:
        """Add a finding of one of the sources; of several with the same kind and side, the first rule is kept."""
        self.find(finding.kind, finding.side, finding.count, finding.examples)
        combined = self.findings[finding.kind, finding.side]
        combined.rule = combined.rule or finding.rule

    def merge(self, chunk: "SetCheck") -> None:
        """Add the counts of the next chunk."""
        self.pairs += chunk.pairs
        self.src.merge(chunk.src)
        self.tgt.merge(chunk.tgt)
        self.log_ratios.update(chunk.log_ratios)
        for finding in chunk.findings.values():
            self.find(finding.kind, finding.side, finding.count, finding.examples)

    def finish(self) -> None:
        """Select outliers and mixed normalization forms, which depend on the whole set, and sort the findings."""
        for side in SIDES:
            self._keep_long_lines(side)
            self._keep_rarer_form(side)
            self._drop_rare_changes(side)
        self._keep_ratio_outliers()

        findings = sorted(self.findings.values(), key=_place)
        self.findings = {(finding.kind, finding.side): finding for finding in findings}

    def _keep_long_lines(self, side: str) -> None:
        """Keep the lines whose length is an outlier."""
        lengths = self.side(side).lengths.get("characters", Lengths())
        logs: dict[float, int] = {}
        for length, count in lengths.items():
            if length:
                logs[math.log(length)] = count
        _, limit = outlier_limits(logs)
        rule = f"over {limit:,.0f} characters"
        self._keep_outliers(FindingKind.LONG, side, logs, limit, rule)

    def _keep_rarer_form(self, side: str) -> None:
        """If there are lines in both normalization forms, keep those in the less frequent one."""
        decomposed = self._pop(FindingKind.DECOMPOSED, side)
        composed = self._pop(FindingKind.COMPOSED, side)
        rarer = decomposed if decomposed.count <= composed.count else composed
        if rarer.count:
            mixed = replace(rarer, kind=FindingKind.MIXED, rule=f"the less frequent form: {rarer.kind}")
            self.findings[mixed.kind, side] = mixed

    def _drop_rare_changes(self, side: str) -> None:
        """Ignore changes by the normalization if only a few lines are changed."""
        key = (FindingKind.NORMALIZED, side)
        changed = self.findings.get(key)
        if changed is not None and changed.count <= CHANGED_SHARE * self.pairs:
            del self.findings[key]

    def _keep_ratio_outliers(self) -> None:
        """Keep the pairs whose length ratio is an outlier."""
        logs = {key * RATIO_STEP: count for key, count in self.log_ratios.items()}
        inverse_logs = {-value: count for value, count in logs.items()}
        low, high = outlier_limits(logs)
        low_rule = f"below {low:.3g} characters per source character"
        high_rule = f"above {high:.3g} characters per source character"
        self._keep_outliers(FindingKind.LOW_RATIO, "pair", inverse_logs, 1 / low, low_rule)
        self._keep_outliers(FindingKind.HIGH_RATIO, "pair", logs, high, high_rule)

    def _keep_outliers(self, kind: FindingKind, side: str, logs: Mapping[float, int], limit: float, rule: str) -> None:
        """Keep the examples ranked above a limit.

        Args:
            kind: kind of the finding.
            side: side of the finding.
            logs: number of lines or pairs by the logarithm of their rank.
            limit: highest rank that is not an outlier.
            rule: description of the limit.
        """
        candidates = self._pop(kind, side).examples
        log_limit = math.log(limit)
        outlier_counts = [count for log, count in logs.items() if log > log_limit]
        num_outliers = sum(outlier_counts)
        if num_outliers:
            examples = [example for example in candidates if example.rank > limit]
            self.findings[kind, side] = Finding(kind, side, num_outliers, rule, examples)

    def _pop(self, kind: FindingKind, side: str) -> Finding:
        """Remove a finding and return it; if there is none, return an empty one."""
        return self.findings.pop((kind, side), Finding(kind, side))

    def num_removed(self) -> int:
        """Return the number of pairs that the filters remove."""
        if self.removed is None:
            return 0
        return sum(self.removed.values())

    def ratios(self) -> tuple[list[float], list[int]]:
        """Return the starts and counts of length-ratio bins around the median, with equal widths on a log scale."""
        median = percentile(self.log_ratios, 50)
        num_steps = NUM_BINS * RATIO_STEPS_PER_BIN
        first = median - num_steps // 2
        first_keys = range(first, first + num_steps, RATIO_STEPS_PER_BIN)  # of each bin
        # The ratios of a key extend from half a step below it to half a step above it.
        starts = [math.exp((key - 0.5) * RATIO_STEP) for key in first_keys]
        return starts, self.log_ratios.bins(first, RATIO_STEPS_PER_BIN)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        ratios: dict[str, int] = {}
        for key in sorted(self.log_ratios):
            ratio = math.exp(key * RATIO_STEP)
            ratios[f"{ratio:.4g}"] = self.log_ratios[key]

        values = dict(vars(self))
        del values["log_ratios"]
        values["findings"] = list(self.findings.values())
        values["ratios"] = ratios
        return values


def _place(finding: Finding) -> tuple[int, str]:
    """Return the sort key of a finding in the report."""
    return ORDER.index(finding.kind), finding.side


@dataclass
class Overlap:
    """Overlap of two sets; blank lines are ignored."""

    of: str
    """First set: dev, dev.NAME or test.NAME."""
    within: str
    """Second set: train, dev or dev.NAME."""
    size: int = 0
    """Number of pairs in the first set."""
    found: dict[str, Finding] = field(
        default_factory=lambda: {side: Finding("overlap", side) for side in ("pair", *SIDES)}
    )
    """Pairs, sources and targets of the first set that also occur in the second one."""


@dataclass
class CorpusCheck:
    """Result of checking a corpus."""

    src_lang: str
    tgt_lang: str
    has_tokenizer: bool
    """False if no tokenizer is given: tokens are not counted, and length filters do not apply."""
    sets: list[SetCheck] = field(default_factory=list)
    """Results for train, dev and the test sets, in this order, if present."""
    overlaps: list[Overlap] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(self, default=_json_object, indent=2, ensure_ascii=False) + "\n"


def _json_object(value: Any) -> dict[str, Any]:
    if hasattr(value, "to_dict"):
        values: dict[str, Any] = value.to_dict()
        return values
    return vars(value)


def outlier_limits(logs: Mapping[float, int]) -> tuple[float, float]:
    """Return the lowest and highest value that is not an outlier; `logs` maps the logarithms of values to counts."""
    median = percentile(logs, 50)
    deviations: Counter[float] = Counter()
    for value, count in logs.items():
        deviations[abs(value - median)] += count
    standard_deviation = 1.4826 * percentile(deviations, 50)
    min_width = math.log(MIN_OUTLIER_FACTOR)
    width = max(min_width, OUTLIER_DEVIATIONS * standard_deviation)
    return math.exp(median - width), math.exp(median + width)


def percentile(counts: Mapping[Number, int], percent: float) -> Number:
    """Return a percentile by the nearest-rank method; 0 if there are no values."""
    threshold = percent / 100 * sum(counts.values())
    num_values = 0
    for value in sorted(counts):
        num_values += counts[value]
        if num_values >= threshold:
            return value
    return 0
