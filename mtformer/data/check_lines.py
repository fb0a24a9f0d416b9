"""What a look at one chunk of a corpus finds; chunks can be looked at in any order and in any process."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.characters import FIRST_SCRIPT, SCRIPTS, kinds, scripts_of
from mtformer.data.check_findings import NUM_EXAMPLES, Example, Findings, Lengths, LogRatios
from mtformer.data.check_reading import Chunk, decode
from mtformer.data.duplicates import Keys, hash_keys
from mtformer.data.filters import KEPT, REASONS, Codes, Filter, duplicate_key, is_blank
from mtformer.data.report import UNUSUAL
from mtformer.text.tokenizer import UNK, TokenizerPair

SIDES = ("src", "tgt")
INVALID, SHORT, BROKEN = "invalid UTF-8", "missing column", "broken JSON line"
WINDOWS = "line end \\r\\n"
COMPOSED, DECOMPOSED = "composed characters (NFC)", "decomposed characters (NFD)"
EMPTY, COPY, UNKNOWN = "empty side", "copy", "unknown tokens"
FOREIGN, OTHER_SCRIPT = "letters of another script", "mostly in another script"
LONG, LOW_RATIO, HIGH_RATIO = "long line", "target short for its source", "target long for its source"
LEFT_OUT = "left out: "
"""Before the reason of a filter."""

FAULTS = {
    **UNUSUAL,
    "byte order mark inside (U+FEFF)": "\ufeff",
    "control character": "".join(
        chr(point) for point in (*range(1, 9), *range(0x0E, 0x1C), 0x1F, *range(0x7F, 0x85), *range(0x86, 0xA0))
    ),
}
"""Characters that break lines elsewhere or tell of damage."""
FAULT_OF = {character: name for name, characters in FAULTS.items() for character in characters}
ANY_FAULT = re.compile(f"[{re.escape(''.join(FAULTS.values()))}]")
WITHOUT_SPACES = frozenset(["bo", "dz", "ja", "khb", "km", "lo", "lzh", "my", "nod", "th", "wuu", "yue", "zh"])
"""Languages whose words are not counted, since no spaces stand between them."""
RATIO_FROM_CHARACTERS = 20
"""The ratio of lengths is looked at when the longer side has more characters than this."""
AS_IT_IS, NORMALISED = FilterConfig(normalise_duplicates=False), FilterConfig(normalise_duplicates=True)
NO_HASH = np.uint64(0)
"""In place of the hash of a blank line."""


@dataclass(frozen=True)
class Task:
    """What to look with."""

    filters: FilterConfig
    tokenizers: TokenizerPair | None


@dataclass
class Totals:
    """What adds up from chunk to chunk."""

    pairs: int = 0
    findings: Findings = field(default_factory=Findings)
    lengths: dict[tuple[str, str], Lengths] = field(default_factory=dict)
    """By unit (characters, words, tokens) and side."""
    ratios: LogRatios = field(default_factory=LogRatios)
    """Target characters per source character of all but short pairs."""
    tokens_in_words: Counter[str] = field(default_factory=Counter)
    """By side, tokens of the languages whose words are counted."""
    unknown: Counter[str] = field(default_factory=Counter)
    """By side, tokens that are unk."""
    faulty: Counter[str] = field(default_factory=Counter)
    """By side, lines with one of `FAULTS` or more."""

    def merge(self, other: "Totals") -> None:
        """Adds those of the next chunk."""
        self.pairs += other.pairs
        self.findings.merge(other.findings)
        for key, lengths in other.lengths.items():
            self.lengths.setdefault(key, Lengths()).update(lengths)
        self.ratios.update(other.ratios)
        self.tokens_in_words.update(other.tokens_in_words)
        self.unknown.update(other.unknown)
        self.faulty.update(other.faulty)


@dataclass
class Seen:
    """What was seen in one chunk: what adds up, and of each pair what needs the whole corpus."""

    totals: Totals
    src: Keys
    tgt: Keys
    pair: Keys
    near: Keys
    """Hashes; `near` of the letters and digits only, without case."""
    is_kept: NDArray[np.bool_]
    """Whether the filters leave it in, duplicates aside."""


class Looker:
    """Looks at one chunk after the other.

    Args:
        task: what to look with.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._filters: dict[tuple[bool, tuple[str, str]], Filter] = {}

    def __call__(self, chunk: Chunk) -> Seen:
        look = _Look(chunk)
        look.at_reading()
        for side, lines, language in zip(SIDES, look.lines, chunk.languages, strict=True):
            look.at_characters(side, lines)
            look.at_forms(side, lines)
            look.at_scripts(side, lines, language)
        look.at_sides()
        look.at_lengths()
        tokens = look.at_tokens(self.task.tokenizers) if self.task.tokenizers is not None else None
        codes = look.at_filters(self._filter(chunk), tokens)
        blank = [is_blank(src) and is_blank(tgt) for src, tgt in look.pairs]
        src, tgt = (_hashes(lines, map(is_blank, lines)) for lines in look.lines)
        return Seen(
            look.totals,
            src,
            tgt,
            pair=_hashes((duplicate_key(pair, AS_IT_IS) for pair in look.pairs), blank),
            near=_hashes((duplicate_key(pair, NORMALISED) for pair in look.pairs), blank),
            is_kept=codes == KEPT,
        )

    def _filter(self, chunk: Chunk) -> Filter:
        key = (chunk.is_training, chunk.languages)
        if key not in self._filters:
            filters = self.task.filters if chunk.is_training else None
            self._filters[key] = Filter(filters, *chunk.languages)
        return self._filters[key]


class _Look:
    """One look; what it finds stands in `totals`."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.decoded = chunk, decode(chunk)
        self.lines = (self.decoded.src, self.decoded.tgt)
        self.pairs = list(zip(*self.lines, strict=True))
        self.totals = Totals(pairs=len(self.pairs))
        self.words: list[NDArray[np.int64] | None] = []
        """Of each side the words of each line, where they are counted."""

    def found(self, kind: str, side: str, numbers: Sequence[int], notes: Sequence[str] = ()) -> None:
        """The pairs with these numbers in the chunk; of equally bad ones the first are examples."""
        first = zip(numbers[:NUM_EXAMPLES], notes or [""] * NUM_EXAMPLES, strict=False)
        examples = [self.example(number, note=note) for number, note in first]
        self.totals.findings.add(kind, side, len(numbers), examples)

    def ranked(self, kind: str, side: str, numbers: NDArray[np.int64], ranks: NDArray[Any], note: str) -> None:
        """The same, but the examples are those of the highest rank; `note` says what the rank is."""
        worst = numbers[np.argsort(-ranks[numbers], kind="stable")[:NUM_EXAMPLES]].tolist()
        examples = [self.example(number, float(ranks[number]), note.format(ranks[number])) for number in worst]
        self.totals.findings.add(kind, side, len(numbers), examples)

    def example(self, number: int, rank: float = 0.0, note: str = "") -> Example:
        return Example.cut(self.chunk.start + number, *self.pairs[number], rank, note)

    def at_reading(self) -> None:
        """What was wrong with the lines as bytes."""
        for side, numbers in self.decoded.invalid.items():
            self.found(INVALID, side, numbers)
        for side, numbers in self.decoded.windows.items():
            self.found(WINDOWS, side, numbers)
        self.found(SHORT, "pair", self.decoded.short)
        self.found(BROKEN, "pair", list(self.decoded.broken), list(self.decoded.broken.values()))

    def at_characters(self, side: str, lines: list[str]) -> None:
        """Characters to look out for; U+FFFD that stands for invalid bytes is counted with those."""
        if not ANY_FAULT.search(" ".join(lines)):
            return
        damaged = {*self.decoded.invalid.get(side, ()), *self.decoded.invalid.get("pair", ())}
        found: dict[str, list[int]] = {name: [] for name in FAULTS}
        notes: dict[str, list[str]] = {name: [] for name in FAULTS}
        faulty = 0
        for number, line in enumerate(lines):
            names: dict[str, str] = {}
            for match in ANY_FAULT.finditer(line):
                if match[0] != "\ufffd" or number not in damaged:
                    names.setdefault(FAULT_OF[match[0]], f"character {match.start() + 1}")
            for name, note in names.items():
                found[name].append(number)
                notes[name].append(note)
            faulty += bool(names)
        for name, numbers in found.items():
            self.found(name, side, numbers, notes[name])
        self.totals.faulty[side] += faulty

    def at_forms(self, side: str, lines: list[str]) -> None:
        """Lines with characters that Unicode's two forms of normalisation write differently."""
        unlike = [number for number, line in enumerate(lines) if not line.isascii()]
        self.found(COMPOSED, side, [number for number in unlike if _is_composed(lines[number])])
        decomposed = [number for number in unlike if _is_decomposed(lines[number])]
        notes = [f"character {_first_decomposed(lines[number]) + 1}" for number in decomposed[:NUM_EXAMPLES]]
        self.found(DECOMPOSED, side, decomposed, notes)

    def at_scripts(self, side: str, lines: list[str], language: str) -> None:
        """Letters of scripts that the language is not written in; Latin ones are at home in any line."""
        letters, own, foreign = _letters(lines, language)
        self.ranked(FOREIGN, side, np.flatnonzero(foreign), foreign, "{} letters of another script")
        mostly = np.flatnonzero(own < letters / 2)
        self.ranked(OTHER_SCRIPT, side, mostly, letters - own, "{} letters of another script")

    def at_sides(self) -> None:
        """What one side is beside the other."""
        empty = {side: [number for number, line in enumerate(lines) if is_blank(line)] for side, lines in self.sides()}
        for side, numbers in empty.items():
            self.found(EMPTY, side, numbers)
        copies = [n for n, (src, tgt) in enumerate(self.pairs) if src.strip() == tgt.strip() and not is_blank(src)]
        self.found(COPY, "pair", copies)

    def sides(self) -> Iterable[tuple[str, list[str]]]:
        return zip(SIDES, self.lines, strict=True)

    def at_lengths(self) -> None:
        """Characters and words, and the sides' ratio."""
        characters = [np.fromiter(map(len, lines), np.int64, len(lines)) for lines in self.lines]
        for (side, lines), lengths, language in zip(self.sides(), characters, self.chunk.languages, strict=True):
            self.count("characters", side, lengths)
            self.ranked(LONG, side, np.arange(len(lines)), lengths, "{:,} characters")
            words = None
            if not has_no_spaces(language):
                words = np.fromiter((len(line.split()) for line in lines), np.int64, len(lines))
                self.count("words", side, words)
            self.words.append(words)
        src, tgt = characters
        both = np.flatnonzero((np.minimum(src, tgt) > 0) & (np.maximum(src, tgt) > RATIO_FROM_CHARACTERS))
        ratios = np.divide(tgt, src, where=src > 0, out=np.ones(len(src)))
        self.totals.ratios.update(map(LogRatios.key, ratios[both].tolist()))
        self.ranked(HIGH_RATIO, "pair", both, ratios, "{:.3g} target characters per source character")
        inverse = 1 / np.where(ratios > 0, ratios, 1)
        self.ranked(LOW_RATIO, "pair", both, inverse, "{:.3g} source characters per target character")

    def count(self, unit: str, side: str, lengths: NDArray[np.int64]) -> None:
        values, counts = np.unique(lengths, return_counts=True)
        self.totals.lengths[unit, side] = Lengths(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def at_tokens(self, tokenizers: TokenizerPair) -> list[NDArray[np.int64]]:
        """Of each side the tokens of each line."""
        all_lengths = []
        for (side, lines), tokenizer, words in zip(
            self.sides(), (tokenizers.src, tokenizers.tgt), self.words, strict=True
        ):
            ids = tokenizer.encode(lines)
            lengths = np.fromiter(map(len, ids), np.int64, len(lines))
            unknown = np.fromiter((line.count(UNK) for line in ids), np.int64, len(lines))
            self.count("tokens", side, lengths)
            self.ranked(UNKNOWN, side, np.flatnonzero(unknown), unknown, "{} unknown")
            self.totals.unknown[side] += int(unknown.sum())
            self.totals.tokens_in_words[side] += int(lengths.sum()) if words is not None else 0
            all_lengths.append(lengths)
        return all_lengths

    def at_filters(self, filter_: Filter, tokens: list[NDArray[np.int64]] | None) -> Codes:
        """What the filters leave out; those of length only where there are tokens."""
        codes = filter_.by_text(self.pairs)
        if tokens is not None:
            src, tgt = (lengths.astype(np.int32) for lengths in tokens)
            codes = np.where(codes == KEPT, filter_.by_length(src, tgt), codes)
        for number, reason in enumerate(REASONS, start=1):
            self.found(LEFT_OUT + reason, "pair", np.flatnonzero(codes == number).tolist())
        return codes


def has_no_spaces(language: str) -> bool:
    """Is it written without spaces between words?"""
    return re.split("[-_]", language.lower())[0] in WITHOUT_SPACES


def _letters(lines: list[str], language: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each line the letters, those of the language's scripts, and those of scripts neither its own nor Latin.

    In a language that is not known all scripts are at home.
    """
    scripts = scripts_of(language) or frozenset(SCRIPTS)
    is_own = np.array([False] * FIRST_SCRIPT + [script in scripts for script in SCRIPTS])
    is_letter = np.arange(len(is_own)) >= FIRST_SCRIPT
    is_foreign = is_letter & ~is_own & (np.arange(len(is_own)) != FIRST_SCRIPT + SCRIPTS.index("Latin"))
    # A line's end of its own gives every line a character.
    points = np.frombuffer("\n".join([*lines, ""]).encode("utf-32-le"), dtype="<u4")
    found = kinds()[points]
    starts = np.cumsum([0, *(len(line) + 1 for line in lines[:-1])])
    letters, own, foreign = (
        np.add.reduceat(table[found], starts, dtype=np.int64) for table in (is_letter, is_own, is_foreign)
    )
    return letters, own, foreign


def _is_composed(line: str) -> bool:
    return not unicodedata.is_normalized("NFD", line) and len(unicodedata.normalize("NFD", line)) > len(line)


def _is_decomposed(line: str) -> bool:
    return not unicodedata.is_normalized("NFC", line) and len(unicodedata.normalize("NFC", line)) < len(line)


def _first_decomposed(line: str) -> int:
    composed = unicodedata.normalize("NFC", line)
    return next((place for place, pair in enumerate(zip(line, composed, strict=False)) if len(set(pair)) == 2), 0)


def _hashes(texts: Iterable[str], blank: Iterable[bool]) -> Keys:
    hashes = hash_keys(texts).copy()
    hashes[np.fromiter(blank, np.bool_, len(hashes))] = NO_HASH
    return hashes
