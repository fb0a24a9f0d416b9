"""What a look at the corpora found, as it is written.

The names of the fields are those of the JSON file; they stay as they are.
"""

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ExampleReport(_Part):
    """A pair that shows what was found."""

    file: str
    """The file that holds the line; for pairs that of the source."""
    line: int
    """Counted from 1, as lines end at \\n alone; rows of a data set likewise."""
    src: str
    """The source line, cut to 300 characters."""
    tgt: str
    """The target line, likewise."""
    note: str
    """What is to be seen in it; may be empty."""


class FindingReport(_Part):
    """Lines or pairs that have something in common."""

    kind: str
    """What they have in common."""
    side: str
    """src or tgt; pair when it concerns both."""
    count: int
    """How many there are."""
    share: float
    """Of the set's pairs."""
    rule: str
    """How it was told, where that depends on the corpus; may be empty. Lengths and ratios (of pairs above 20
    characters) are outliers 3.5 robust standard deviations of the logarithms away from the median, and at least twice
    or half it."""
    examples: list[ExampleReport]
    """Up to 10, the worst first, else in their order."""


class HistogramReport(_Part):
    """`counts[i]` values lie from `edges[i]` to below `edges[i + 1]`."""

    edges: list[float]
    """One more than counts; the last bin reaches to the longest line."""
    counts: list[int]
    """One for each bin."""


class LengthReport(_Part):
    """How long the lines of one side are, in one unit."""

    total: int
    """All lines together."""
    mean: float
    """Of a line."""
    longest: int
    """The longest line."""
    percentiles: dict[int, int]
    """The length that so many percent of the lines do not surpass."""
    above: dict[int, int]
    """Lines that are longer than so many."""
    histogram: HistogramReport
    """Of the lines."""


class SideReport(_Part):
    """The source or target side of a set."""

    language: str
    """Its code; of the first source, where there are several languages."""
    characters: LengthReport
    """Characters of each line, spaces included."""
    words: LengthReport | None
    """What stands between spaces; null for languages without spaces."""
    tokens: LengthReport | None
    """Of the tokenizer, eos not counted; null without one."""
    tokens_per_word: float | None
    """The tokenizer's fertility; null where there are no tokens or no words."""
    tokens_per_character: float | None
    """Fertility for languages without spaces; null without a tokenizer."""
    unknown_rate: float | None
    """Share of the tokens that are unk; null without a tokenizer."""
    faulty_lines: int
    """Lines with characters that break lines elsewhere or tell of damage, each counted once."""


class SourceReport(_Part):
    """One source of a set."""

    name: str
    """As messages call it."""
    pairs: int
    """Pairs read: where files are of unequal length, as many as the shorter one has lines."""
    lines: list[int]
    """Of each file; empty for sources that are not files of lines."""


class LeftOutReport(_Part):
    """What the config's filters would leave out of train."""

    count: int
    """Pairs."""
    share: float
    """Of the set's pairs."""
    reasons: dict[str, int]
    """By reason; a pair is counted once."""
    examples: dict[str, list[ExampleReport]]
    """By reason; none of duplicates, which stand among the findings."""


class SetReport(_Part):
    """Train, dev, or a test set."""

    name: str
    """train, dev, or test.NAME."""
    pairs: int
    """Pairs read."""
    sources: list[SourceReport]
    """Where from."""
    src: SideReport
    """The source side."""
    tgt: SideReport
    """The target side."""
    ratio: HistogramReport
    """Target characters per source character, of pairs with a side above 20 characters."""
    findings: list[FindingReport]
    """What was found at least once."""
    left_out: LeftOutReport | None
    """Of train; null for others, which are never filtered."""

    def side(self, name: str) -> SideReport:
        """src or tgt."""
        return self.src if name == "src" else self.tgt

    def count(self, kind: str, *sides: str) -> int:
        """Of a kind of findings, on these sides or on all."""
        return sum(one.count for one in self.findings if one.kind == kind and (not sides or one.side in sides))


class OverlapReport(_Part):
    """What two sets have in common; blank lines do not count."""

    of: str
    """dev or test.NAME."""
    within: str
    """train or dev."""
    size: int
    """Pairs of the first set."""
    pairs: int
    """Pairs of the first set that stand in the second."""
    sources: int
    """Pairs of the first set whose source stands in the second."""
    targets: int
    """Pairs of the first set whose target stands in the second."""
    examples: dict[str, list[ExampleReport]]
    """By pairs, sources and targets: lines of the second set."""


class CorpusReport(_Part):
    """The whole file."""

    src_lang: str
    """Of the config."""
    tgt_lang: str
    """Of the config."""
    has_tokenizer: bool
    """Without one nothing is counted in tokens, and the filters of length do not judge."""
    sets: list[SetReport]
    """Train, dev and test sets; those there are."""
    overlaps: list[OverlapReport]
    """Of dev and test sets within train, and of test sets within dev."""

    def set(self, name: str) -> SetReport | None:
        """train, dev, or test.NAME."""
        return next((one for one in self.sets if one.name == name), None)

    def to_json(self) -> str:
        """The JSON file."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "CorpusReport":
        """What `to_json` wrote."""
        return cls.model_validate_json(text)
