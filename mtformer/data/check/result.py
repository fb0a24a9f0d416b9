"""Results of checking corpora: counts, which are added chunk by chunk, and derived statistics."""

import heapq
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mtformer.data.corpus.readers import FaultKind
from mtformer.data.data_report import UNUSUAL
from mtformer.text.normalization import CHANGED_SHARE

NUM_EXAMPLES = 10  # maximum number of examples per finding
OUTLIER_DEVIATIONS = 3.5
"""Outlier limit in robust standard deviations (1.4826 x median absolute deviation; Iglewicz and Hoaglin 1993)."""
MIN_OUTLIER_FACTOR = 2.0  # values within this factor of the median are never outliers
RATIO_STEP = 0.02  # bin width of the logarithm of length ratios
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
NUM_BINS, RATIO_STEPS_PER_BIN = 40, 6
UNITS = ("characters", "words", "tokens")
SIDES = ("src", "tgt")

EMPTY, COPY, DUPLICATE, NEAR_DUPLICATE = "empty side", "copy", "exact duplicate", "near duplicate"
SEVERAL_TARGETS, LONG, UNKNOWN = "several targets", "long line", "unknown tokens"
LOW_RATIO, HIGH_RATIO = "target short for its source", "target long for its source"
FOREIGN, OTHER_SCRIPT = "letters of another script", "mostly in another script"
MIXED, COMPOSED, DECOMPOSED = "mixed normalization (NFC and NFD)", "composed (NFC)", "decomposed (NFD)"
NORMALIZED = "changed by normalization"
FAULTS = {
    **UNUSUAL,
    "byte order mark inside (U+FEFF)": "\ufeff",
    "control character": "".join(
        chr(point) for point in (*range(1, 9), *range(0x0E, 0x1C), 0x1F, *range(0x7F, 0x85), *range(0x86, 0xA0))
    ),
}
"""Characters that break lines in other tools or indicate damage."""
ORDER = (
    *FaultKind, *FAULTS, MIXED, NORMALIZED, EMPTY, COPY, DUPLICATE, NEAR_DUPLICATE, SEVERAL_TARGETS,
    LONG, LOW_RATIO, HIGH_RATIO, FOREIGN, OTHER_SCRIPT, UNKNOWN,
)  # fmt: skip
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
    side: str
    """src or tgt; pair if the finding is about both sides."""
    count: int = 0
    rule: str = ""
    """Description of the limit, if it depends on the corpus."""
    examples: list[Example] = field(default_factory=list)
    """Examples, worst first; examples with the same rank are in order of occurrence."""

    def add(self, count: int, examples: Iterable[Example]) -> None:
        """Add the count and examples of later lines."""
        self.count += count
        self.examples = heapq.nsmallest(NUM_EXAMPLES, [*self.examples, *examples], key=lambda example: -example.rank)


class Lengths(Counter[int]):
    """Number of lines per length, or of pairs per length ratio."""

    def sum(self) -> int:
        """Return the total length of all lines."""
        return sum(length * count for length, count in self.items())

    def bins(self, first: int, width: int) -> list[int]:
        """Return the counts of `NUM_BINS` bins; the first and last bin also count all values below and above."""
        counts = [0] * NUM_BINS
        for value, count in self.items():
            counts[min(NUM_BINS - 1, max(0, (value - first) // width))] += count
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        percentiles = {percent: percentile(self, percent) for percent in PERCENTILES}
        mean, longest = self.sum() / max(1, self.total()), max(self, default=0)
        counts = {length: self[length] for length in sorted(self)}
        return {"total": self.sum(), "mean": mean, "longest": longest, "percentiles": percentiles, "counts": counts}

    def histogram(self) -> tuple[list[float], list[int]]:
        """Return the starts and counts of bins up to the 99th percentile; the last bin counts all longer lines."""
        width = max(1, math.ceil((percentile(self, 99) + 1) / NUM_BINS))
        return [float(width * number) for number in range(NUM_BINS)], self.bins(0, width)


@dataclass
class Side:
    """Counts of one side of a set."""

    language: str
    lengths: dict[str, Lengths] = field(default_factory=dict)
    """Lengths in characters, in words (if separated by spaces in the language) and in tokens (with a tokenizer)."""
    unknown: int = 0
    word_tokens: int = 0
    """Number of tokens in the lines whose words are counted."""
    faulty_lines: int = 0
    """Number of lines with at least one character of `FAULTS`."""

    def merge(self, other: "Side") -> None:
        """Add the counts of another chunk."""
        for unit, lengths in other.lengths.items():
            self.lengths.setdefault(unit, Lengths()).update(lengths)
        self.unknown += other.unknown
        self.word_tokens += other.word_tokens
        self.faulty_lines += other.faulty_lines

    def rates(self) -> dict[str, float | None]:
        """Return tokens per word, tokens per character and the share of unknown tokens; None if not counted."""
        characters, words, tokens = (self.lengths.get(unit, Lengths()) for unit in UNITS)
        num_tokens, has_tokens = max(1, tokens.sum()), "tokens" in self.lengths
        return {
            "tokens_per_word": self.word_tokens / words.sum() if has_tokens and words.sum() else None,
            "tokens_per_character": num_tokens / max(1, characters.sum()) if has_tokens else None,
            "unknown_rate": self.unknown / num_tokens if has_tokens else None,
        }

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
    src: Side
    tgt: Side
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

    def side(self, name: str) -> Side:
        """Return the counts of src or tgt."""
        return self.src if name == "src" else self.tgt

    def find(self, kind: str, side: str, count: int, examples: Iterable[Example] = ()) -> None:
        """Add lines or pairs to a finding."""
        if count:
            self.findings.setdefault((kind, side), Finding(kind, side)).add(count, examples)

    def merge(self, other: "SetCheck") -> None:
        """Add the counts of the next chunk."""
        self.pairs += other.pairs
        self.src.merge(other.src)
        self.tgt.merge(other.tgt)
        self.log_ratios.update(other.log_ratios)
        for finding in other.findings.values():
            self.find(finding.kind, finding.side, finding.count, finding.examples)

    def finish(self) -> None:
        """Select outliers and mixed normalization forms, which depend on the whole set, and sort the findings."""
        for side in SIDES:
            logs = {math.log(n): count for n, count in self.side(side).lengths.get("characters", {}).items() if n}
            limit = outlier_limits(logs)[1]
            self._keep_outliers(LONG, side, logs, limit, f"over {limit:,.0f} characters")
            forms = [self.findings.pop((form, side), Finding(form, side)) for form in (DECOMPOSED, COMPOSED)]
            rarer = min(forms, key=lambda finding: finding.count)
            if rarer.count:
                rule = f"the less frequent form: {rarer.kind}"
                self.findings[MIXED, side] = Finding(MIXED, side, rarer.count, rule, rarer.examples)
            normalized = self.findings.get((NORMALIZED, side))
            if normalized is not None and normalized.count <= CHANGED_SHARE * self.pairs:
                del self.findings[NORMALIZED, side]
        logs = {key * RATIO_STEP: count for key, count in self.log_ratios.items()}
        low, high = outlier_limits(logs)
        inverse = {-value: count for value, count in logs.items()}
        self._keep_outliers(LOW_RATIO, "pair", inverse, 1 / low, f"below {low:.3g} characters per source character")
        self._keep_outliers(HIGH_RATIO, "pair", logs, high, f"above {high:.3g} characters per source character")
        order = sorted(self.findings, key=lambda key: (ORDER.index(key[0]), key[1]))
        self.findings = {key: self.findings[key] for key in order}

    def _keep_outliers(self, kind: str, side: str, logs: Mapping[float, int], limit: float, rule: str) -> None:
        """Keep the examples ranked above a limit; `logs` maps the logarithm of each rank to its frequency."""
        candidates = self.findings.pop((kind, side), Finding(kind, side)).examples
        if count := sum(number for value, number in logs.items() if value > math.log(limit)):
            examples = [example for example in candidates if example.rank > limit]
            self.findings[kind, side] = Finding(kind, side, count, rule, examples)

    def num_removed(self) -> int:
        """Return the number of pairs that the filters remove."""
        return sum((self.removed or {}).values())

    def ratios(self) -> tuple[list[float], list[int]]:
        """Return the starts and counts of length-ratio bins around the median, with equal widths on a log scale."""
        first = percentile(self.log_ratios, 50) - NUM_BINS * RATIO_STEPS_PER_BIN // 2
        # A bin extends from half a step below its key to half a step above it.
        starts = [math.exp((first + RATIO_STEPS_PER_BIN * n - 0.5) * RATIO_STEP) for n in range(NUM_BINS)]
        return starts, self.log_ratios.bins(first, RATIO_STEPS_PER_BIN)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        values = {key: value for key, value in vars(self).items() if key != "log_ratios"}
        ratios = {f"{math.exp(key * RATIO_STEP):.4g}": self.log_ratios[key] for key in sorted(self.log_ratios)}
        return {**values, "findings": list(self.findings.values()), "ratios": ratios}


@dataclass
class Overlap:
    """Overlap of two sets; blank lines are ignored."""

    of: str
    """First set: dev, dev.NAME or test.NAME."""
    within: str
    """Second set: train, dev or dev.NAME."""
    size: int = 0
    """Number of pairs in the first set."""
    found: dict[str, Finding] = field(default_factory=lambda: {c: Finding("overlap", c) for c in ("pair", *SIDES)})
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
    return value.to_dict() if hasattr(value, "to_dict") else vars(value)


def outlier_limits(logs: Mapping[float, int]) -> tuple[float, float]:
    """Return the lowest and highest value that is not an outlier; `logs` maps the logarithms of values to counts."""
    median = percentile(logs, 50)
    deviations: Counter[float] = Counter()
    for value, count in logs.items():
        deviations[abs(value - median)] += count
    width = max(math.log(MIN_OUTLIER_FACTOR), OUTLIER_DEVIATIONS * 1.4826 * percentile(deviations, 50))
    return math.exp(median - width), math.exp(median + width)


def percentile(counts: Mapping[Number, int], percent: float) -> Number:
    """Return a percentile by the nearest-rank method; 0 if there are no values."""
    threshold, seen = percent / 100 * sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= threshold:
            return value
    return 0
