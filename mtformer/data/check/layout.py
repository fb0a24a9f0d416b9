"""Find faults of whole files: column names, line numbers, CSV quotes, swapped sides, shifted lines, tokenized text.

Worker processes measure each chunk (`measure`); `SourceLayout` adds up the measures of a source in order, so that the
result does not depend on the chunks.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtformer.config.languages import NAMES, base_code, is_language
from mtformer.data.check.result import NUM_EXAMPLES, SIDE_NAMES, SIDES, Example, Finding, FindingKind
from mtformer.data.check.shift import WINDOW, Shift, ShiftDetector
from mtformer.data.data_report import Columns
from mtformer.data.filters.language import LETTERS, words_of
from mtformer.data.filters.scripts import Alphabet, scripts_of
from mtformer.data.store.pairs import Ints
from mtformer.text.characters import all_characters
from mtformer.text.style import TOKENIZED, Sign, StyleCounts, signs_of

Votes = NDArray[np.int8]
"""A small number for each row."""

MakeExample = Callable[..., Example]
"""Function of (row, side, note) that returns a pair of the chunk as an example."""

_COLUMN_WORDS = (
    "source src target trg tgt text sentence sentences segment seg translation translated original reference ref "
    "hypothesis hyp mt human input output string line label score id lang language column col field value pair "
    "parallel gold"
)
COLUMN_WORDS = frozenset(_COLUMN_WORDS.split())
"""Words of which the column names of corpora consist, besides the names and codes of languages."""

NAME_SEPARATORS = re.compile(r"[\s\d!-/:-@\[-`{-~]+")
"""White space, digits and ASCII punctuation between the parts of a column name such as `sentence_en`."""

CASE_PARTS = re.compile("[A-Z]?[^A-Z]+|[A-Z]+")
"""Parts of a column name such as `sourceText`."""

MAX_NAME_LENGTH = 40
"""Maximum number of characters of a column name."""

MIN_NUMBERED_SHARE = 0.9
"""Minimum share of lines with a number, and of these with a larger number than the line before."""

MIN_CONSECUTIVE = 3
"""Minimum number of lines with line numbers that increase by one."""

MIN_INCREASING = 20
"""Minimum number of lines with identifiers that increase, possibly by more than one."""

PLAIN_QUOTES = 1
"""A cell in quotes, which may also be direct speech."""

DOUBLED_QUOTES = 2
"""A cell in quotes with doubled quotes inside, as in CSV (RFC 4180)."""

MIN_QUOTED_SHARE = 0.5
"""Minimum share of cells in quotes for cells without doubled quotes to count as CSV."""

STYLES = {
    FindingKind.TOKENIZED: TOKENIZED,
    FindingKind.LOWERCASED: (Sign.SMALL,),
    FindingKind.CAPITALS: (Sign.CAPITALS,),
}
"""Signs that lead to a finding about a whole side."""

CONSEQUENCES = {
    "src": "a model learns to read only such text: change all its input in the same way, or train on the original text",
    "tgt": "a model learns to write only such text: change its translations back, or train on the original text",
}
"""Meaning of a style for the model, and the remedy, by side."""

STRAIGHT = 1
"""The sides of a pair are in the expected languages."""

SWAPPED = -1
"""Each side of a pair is in the language of the other side."""

MIN_SWAPPED = 3
"""Minimum number of swapped pairs for a finding."""

ALL_ROWS = 2000
"""Number of pairs of a source whose languages are all compared."""

ROW_STEP = 20
"""After `ALL_ROWS`, the languages of every 20th pair are compared."""

RECENT_ROWS = 4 * WINDOW
"""Number of rows in which a shift may start that is found later."""


class ChunkLayout(NamedTuple):
    """Measures of a chunk."""

    is_header: bool
    """True if the first row of a source has column names."""
    lengths: tuple[Ints, Ints]
    """Number of characters of the source and target of each row."""
    numbers: tuple[Ints, Ints]
    """Number before each line, by side; -1 without one."""
    quotes: tuple[Votes, Votes]
    """PLAIN_QUOTES or DOUBLED_QUOTES for each line, by side; 0 without quotes."""
    sides: Votes
    """STRAIGHT or SWAPPED for each row; 0 if it is unknown."""
    styles: tuple["SideStyle", "SideStyle"]
    """Style of the lines, by side."""


@dataclass(frozen=True)
class SideStyle:
    """Style of the lines of one side."""

    counts: StyleCounts
    rows: dict[FindingKind, list[int]]
    """Rows that show each style."""


class UnusualStyle(NamedTuple):
    """Style of a side of a source."""

    kind: FindingKind
    side: str
    evidence: str

    @property
    def title(self) -> str:
        """Side and kind in words."""
        return f"{SIDE_NAMES[self.side]}: {self.kind}"


# ---- measures of a chunk --------------------------------------------------------------------------------------------


def measure(texts: Columns, languages: tuple[str, str], first_row: int) -> ChunkLayout:
    """Measure a chunk.

    Args:
        texts: source and target lines.
        languages: source and target language codes.
        first_row: index of its first row in the source.
    """
    src_lines, tgt_lines = texts
    is_header = False
    if not first_row and src_lines:
        is_header = is_column_names(src_lines[0], tgt_lines[0], languages)
    return ChunkLayout(
        is_header,
        lengths=(_lengths(src_lines), _lengths(tgt_lines)),
        numbers=(_numbers(src_lines), _numbers(tgt_lines)),
        quotes=(_quotes(src_lines), _quotes(tgt_lines)),
        sides=_sides(texts, languages, first_row),
        styles=(_style(src_lines), _style(tgt_lines)),
    )


def is_column_names(src: str, tgt: str, languages: tuple[str, str]) -> bool:
    """Return True if the cells of a row are two different names of columns, such as `en` and `de`."""
    if _are_codes(src.strip(), tgt.strip(), languages):
        return True
    src_name = _column_name(src, languages)
    tgt_name = _column_name(tgt, languages)
    # `German` and `Deutsch` are the same name in two languages, which may be a pair of a dictionary.
    return bool(src_name) and bool(tgt_name) and src_name != tgt_name


def _are_codes(src: str, tgt: str, languages: tuple[str, str]) -> bool:
    """Return True for two codes of any languages, except for words such as `it` and `es`, which are also codes."""
    if base_code(src) == base_code(tgt) or not _is_known_code(src) or not _is_known_code(tgt):
        return False
    src_words, tgt_words = map(words_of, languages)
    return src.lower() not in src_words or tgt.lower() not in tgt_words


def _is_known_code(text: str) -> bool:
    has_script = re.fullmatch("[a-z]{3}[-_][A-Z][a-z]{3}", text) is not None
    return has_script or (is_language(text) and base_code(text) in NAMES)


def _column_name(cell: str, languages: tuple[str, str]) -> tuple[str, ...]:
    """Return the parts of a column name, with codes instead of names of languages; empty for any other text."""
    cell = cell.strip()
    codes = {base_code(language) for language in languages}
    if is_language(cell) and base_code(cell) in codes:
        return (base_code(cell),)
    if len(cell) > MAX_NAME_LENGTH:
        return ()

    parts: list[str] = []
    for text in NAME_SEPARATORS.split(cell):
        for part in CASE_PARTS.findall(text):
            word = part.casefold()
            code = _CODES_OF_NAMES.get(word) or base_code(word)
            if word not in COLUMN_WORDS and word not in _CODES_OF_NAMES and code not in codes:
                return ()
            parts.append(code)
    digits = re.sub(r"\D", "", cell)
    return (*parts, digits) if parts else ()


def _codes_of_names() -> dict[str, str]:
    """Return the language codes by names of languages that cannot be taken for codes or common words."""
    codes: dict[str, str] = {}
    for code, names in NAMES.items():
        for name in names:
            is_distinct = len(name) > 3 or not name.isascii()
            if is_distinct and " " not in name:
                codes[name.casefold()] = code
    return codes


_CODES_OF_NAMES = _codes_of_names()


def _lengths(lines: Sequence[str]) -> Ints:
    return np.fromiter(map(len, lines), np.int64, len(lines))


def _numbers(lines: Sequence[str]) -> Ints:
    """Return the number before each line; -1 without one."""
    numbers = np.full(len(lines), -1, np.int64)
    line_number = _line_number()
    for row, line in enumerate(lines):
        match = line_number.match(line)
        if match is not None:
            numbers[row] = int(match[1] or match[2])
    return numbers


@cache
def _line_number() -> re.Pattern[str]:
    """Return a pattern for a number before a line, such as `12.`, `[12]` or `12` and a tab, in any script.

    It also finds an identifier that ends with a number. For this pattern, `re` is six times as fast as `regex`.
    """
    before = re.escape(all_characters(r"[\p{Open_Punctuation}<#]"))
    after = re.escape(all_characters(r"[\p{Terminal_Punctuation}\p{Close_Punctuation}>|]"))
    dash = re.escape(all_characters(r"\p{Dash_Punctuation}"))
    return re.compile(
        rf"\s*[{before}]?(?:(\d{{1,18}})(?:[{after}]|[{dash}]?\s|[{dash}]?$)"
        rf"|[\w.:/#-]{{0,40}}?(\d{{1,18}})[{after}]?(?:\s|$))"
    )


def _quotes(lines: Sequence[str]) -> Votes:
    """Return the kind of the quotes around each line."""
    quotes = np.zeros(len(lines), np.int8)
    for row, line in enumerate(lines):
        if len(line) > 1 and line[0] == line[-1] == '"':
            inside = line[1:-1]
            if '"' not in inside:
                quotes[row] = PLAIN_QUOTES
            elif '"' not in inside.replace('""', ""):
                quotes[row] = DOUBLED_QUOTES
    return quotes


def _style(lines: Sequence[str]) -> SideStyle:
    """Return the style of some lines, with the rows that show it."""
    counts = StyleCounts()
    rows: dict[FindingKind, list[int]] = {kind: [] for kind in STYLES}
    for row, line in enumerate(lines):
        num_before = _num_of_style(counts)
        counts.add_line(line)
        for kind, number in _num_of_style(counts).items():
            if number > num_before[kind]:
                rows[kind].append(row)
    return SideStyle(counts, rows)


def _num_of_style(counts: StyleCounts) -> dict[FindingKind, int]:
    """Return the number of places that show each style."""
    return {
        FindingKind.TOKENIZED: counts.num_tokenized,
        FindingKind.LOWERCASED: counts.small_lines,
        FindingKind.CAPITALS: counts.capital_lines,
    }


def _sides(texts: Columns, languages: tuple[str, str], first_row: int) -> Votes:
    """Return for some rows if their sides are swapped, by scripts, or by function words in the same script."""
    src_lines, tgt_lines = texts
    sides = np.zeros(len(src_lines), np.int8)
    row_numbers = np.arange(first_row, first_row + len(src_lines))
    rows = np.flatnonzero((row_numbers < ALL_ROWS) | (row_numbers % ROW_STEP == 0))
    examined = ([src_lines[row] for row in rows], [tgt_lines[row] for row in rows])
    src_lang, tgt_lang = languages
    src_scripts = scripts_of(src_lang)
    tgt_scripts = scripts_of(tgt_lang)
    if src_scripts and tgt_scripts and src_scripts.isdisjoint(tgt_scripts):
        sides[rows] = _sides_by_script(examined, languages)
    else:
        sides[rows] = _sides_by_words(examined, languages)
    return sides


def _sides_by_script(texts: Columns, languages: tuple[str, str]) -> Votes:
    src_alphabet, tgt_alphabet = map(Alphabet, languages)
    is_src = [2 * counts.own > counts.weight for counts in map(src_alphabet.count, texts)]
    is_tgt = [2 * counts.own > counts.weight for counts in map(tgt_alphabet.count, texts)]
    is_straight = is_src[0] & is_tgt[1]
    is_swapped = is_tgt[0] & is_src[1]
    return np.where(is_straight, STRAIGHT, np.where(is_swapped, SWAPPED, 0)).astype(np.int8)


def _sides_by_words(texts: Columns, languages: tuple[str, str]) -> Votes:
    src_words, tgt_words = map(words_of, languages)
    only_src = src_words - tgt_words
    only_tgt = tgt_words - src_words
    sides = np.zeros(len(texts[0]), np.int8)
    if not only_src or not only_tgt:
        return sides
    for row, (src, tgt) in enumerate(zip(*texts, strict=True)):
        src_side = _side_of(src, only_src, only_tgt)
        tgt_side = _side_of(tgt, only_src, only_tgt)
        if src_side * tgt_side == -1:
            sides[row] = STRAIGHT if src_side == 1 else SWAPPED
    return sides


def _side_of(line: str, only_src: frozenset[str], only_tgt: frozenset[str]) -> int:
    """Return 1 for a line with words of the source language only, -1 for those of the target language; otherwise 0."""
    words = set(LETTERS.findall(line.lower()))
    has_src = not words.isdisjoint(only_src)
    has_tgt = not words.isdisjoint(only_tgt)
    return int(has_src) - int(has_tgt)


# ---- a whole source -------------------------------------------------------------------------------------------------


@dataclass
class _Numbered:
    """Line numbers of one side."""

    num_lines: int = 0
    num_increasing: int = 0
    """Number of lines with a larger number than the line before."""
    num_consecutive: int = 0
    """Number of lines whose number is one larger than that of the line before."""
    last: int = -1
    """Number of the last line."""

    def add(self, numbers: Ints) -> None:
        """Add the numbers of the next lines."""
        previous = np.concatenate([[self.last], numbers[:-1]])
        is_numbered = numbers >= 0
        self.num_lines += int(is_numbered.sum())
        self.num_increasing += int((is_numbered & (numbers > previous)).sum())
        self.num_consecutive += int((is_numbered & (numbers == previous + 1)).sum())
        self.last = int(numbers[-1])

    def is_found(self, num_rows: int) -> bool:
        """Return True if these are line numbers or identifiers, in a source with this number of rows."""
        limit = MIN_NUMBERED_SHARE * num_rows
        # The first line has no line before it.
        is_consecutive = num_rows >= MIN_CONSECUTIVE and self.num_consecutive >= min(limit, num_rows - 1)
        is_increasing = num_rows >= MIN_INCREASING and self.num_increasing >= limit
        return self.num_lines >= limit and (is_consecutive or is_increasing)


class _Part(NamedTuple):
    """Rows of a chunk, as indices in the source, and the function that returns them as examples."""

    first: int
    end: int
    example: MakeExample


class SourceLayout:
    """Faults of a source as a whole, from the measures of its chunks in order."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._examples: dict[str, list[Example]] = {}
        """First examples of each kind of measure."""
        self._is_header = False
        self._numbered = (_Numbered(), _Numbered())
        self._num_quoted = np.zeros((2, DOUBLED_QUOTES + 1), np.int64)
        """Number of lines by side and kind of quotes."""
        self._num_straight = 0
        self._num_swapped = 0
        self._styles = [StyleCounts(), StyleCounts()]
        """Style of the lines by side."""
        self._num_of_style: Counter[tuple[str, str]] = Counter()
        """Number of lines by kind of finding and side."""
        self._shifts = ShiftDetector()
        self._parts: list[_Part] = []
        """Chunks in which a shift may start."""

    def add(self, layout: ChunkLayout, example: MakeExample) -> None:
        """Add the measures of the next chunk.

        Args:
            layout: the measures.
            example: function that returns a row of the chunk as an example.
        """
        num_rows = len(layout.sides)
        if layout.is_header:
            self._is_header = True
            self._keep("header", [0], example)

        for index, side in enumerate(SIDES):
            self._numbered[index].add(layout.numbers[index])
            self._keep(f"numbers {side}", np.flatnonzero(layout.numbers[index] >= 0).tolist(), example, side)
            quotes = layout.quotes[index]
            self._num_quoted[index] += np.bincount(quotes, minlength=DOUBLED_QUOTES + 1)
            self._keep(f"quotes {side}", np.flatnonzero(quotes).tolist(), example, side)
            self._keep(f"doubled {side}", np.flatnonzero(quotes == DOUBLED_QUOTES).tolist(), example, side)

            style = layout.styles[index]
            self._styles[index] += style.counts
            for kind, rows in style.rows.items():
                self._num_of_style[kind, side] += len(rows)
                self._keep(f"{kind} {side}", rows, example, side)

        swapped_rows = np.flatnonzero(layout.sides == SWAPPED).tolist()
        self._num_swapped += len(swapped_rows)
        self._num_straight += int((layout.sides == STRAIGHT).sum())
        self._keep("swapped", swapped_rows, example)
        self._add_lengths(layout.lengths, example)
        self._num_rows += num_rows

    def _keep(self, name: str, rows: Sequence[int], example: MakeExample, side: str = "pair") -> None:
        """Keep the first examples of a measure."""
        examples = self._examples.setdefault(name, [])
        for row in rows[: NUM_EXAMPLES - len(examples)]:
            examples.append(example(row, side))

    def _add_lengths(self, lengths: tuple[Ints, Ints], example: MakeExample) -> None:
        """Add the lengths of the next rows, and keep the chunks in which a shift may start."""
        self._shifts.add(*lengths)
        end = self._num_rows + len(lengths[0])
        self._parts.append(_Part(self._num_rows, end, example))

        starts = self._shifts.starts()
        self._parts = [part for part in self._parts if part.end > end - RECENT_ROWS or _is_needed(part, starts)]

    def findings(self) -> list[Finding]:
        """Return the findings after the last chunk."""
        return [*self._line_findings(), *self._style_findings(), *self._pair_findings()]

    def _line_findings(self) -> Iterator[Finding]:
        for index, side in enumerate(SIDES):
            if self._numbered[index].is_found(self._num_rows):
                rule = f"they increase from line to line; remove them, or set {side}_column to the column of the text"
                examples = self._examples[f"numbers {side}"]
                yield Finding(FindingKind.LINE_NUMBERS, side, self._numbered[index].num_lines, rule, examples)

            _, num_plain, num_doubled = self._num_quoted[index].tolist()
            num_quoted = num_plain + num_doubled
            remedy = "convert the file with a program that reads CSV"
            if num_doubled and num_quoted < MIN_QUOTED_SHARE * self._num_rows:
                examples = self._examples[f"doubled {side}"]
                rule = f"with doubled quotes inside; {remedy}"
                yield Finding(FindingKind.QUOTED, side, num_doubled, rule, examples)
            elif num_quoted >= max(MIN_CONSECUTIVE, MIN_QUOTED_SHARE * self._num_rows):
                yield Finding(FindingKind.QUOTED, side, num_quoted, remedy, self._examples[f"quotes {side}"])

    def styles(self) -> Iterator[UnusualStyle]:
        """Yield each style of a side that is not that of usual text."""
        for side, counts in zip(SIDES, self._styles, strict=True):
            signs = signs_of(counts)
            for kind, signs_of_kind in STYLES.items():
                evidence = [signs[sign] for sign in signs_of_kind if sign in signs]
                if evidence:
                    yield UnusualStyle(kind, side, ", ".join(evidence))

    def _style_findings(self) -> Iterator[Finding]:
        for kind, side, evidence in self.styles():
            rule = f"{evidence}; {CONSEQUENCES[side]}"
            yield Finding(kind, side, self._num_of_style[kind, side], rule, self._examples[f"{kind} {side}"])

    def _pair_findings(self) -> Iterator[Finding]:
        if self._is_header:
            rule = "remove the line, or it becomes a training pair"
            yield Finding(FindingKind.HEADER, "pair", 1, rule, self._examples["header"])
        if self._num_swapped >= MIN_SWAPPED and self._num_swapped > self._num_straight:
            rule = f"{self._num_straight:,} pairs are not; exchange src and tgt, or their columns"
            yield Finding(FindingKind.SWAPPED, "pair", self._num_swapped, rule, self._examples["swapped"])
        shift = self._shifts.find()
        if shift is not None:
            yield self._shift_finding(shift)

    def _shift_finding(self, shift: Shift) -> Finding:
        [part] = [part for part in self._parts if part.first <= shift.first < part.end]
        start = part.example(shift.first - part.first)
        direction = "below" if shift.distance > 0 else "above"
        cause = "source" if shift.distance > 0 else "target"
        num_lines = "1 line" if abs(shift.distance) == 1 else f"{abs(shift.distance)} lines"
        note = f"from about this line on, the target is {num_lines} {direction} its source"
        rule = (
            f"from about line {start.line:,} of {start.file} on, the target is {num_lines} {direction} its source; "
            f"insert the missing {cause} there, or remove the line without one"
        )
        example = replace(start, note=note)
        return Finding(FindingKind.SHIFTED, "pair", shift.last - shift.first, rule, [example])


def _is_needed(part: _Part, starts: Iterable[int]) -> bool:
    """Return True if a shift may start in a part, that is, near one of these rows."""
    return any(part.first <= start + WINDOW and start - 2 * WINDOW < part.end for start in starts)
