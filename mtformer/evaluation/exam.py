"""Behavior test: translates perturbed lines of a test set and measures what changes (Ribeiro et al. 2020).

Each perturbation is a row of the card. A limits file gives the lowest or highest accepted value of some cells:

    caps: {chrf_change: -10, loops: 1}
    urls: {urls: 95}
    batches: {equal: 100}
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import create_model

from mtformer.config.loading import read_tree, validated
from mtformer.config.schema import EvaluationConfig
from mtformer.config.section import Section
from mtformer.data.batching.augment import add_typos, change_case, drop_final_stop, texts_to_copy
from mtformer.data.filters.numbers import values
from mtformer.decoding.lines.postprocessing import EMAIL, URL, addresses
from mtformer.decoding.lines.sentences import join_lines
from mtformer.decoding.lines.translation import Flag, Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation.card import EvalSet
from mtformer.evaluation.scores import score
from mtformer.text.case import title_case

Random = np.random.Generator
Pair = tuple[str, str | None]
"""Source and reference; None: no reference is known."""
Row = dict[str, float | None]
"""Values by column, rounded to two digits; None: the column does not apply."""
LETTER = "\\w\u0900-\u0963\u0966-\u0dff"
"""Characters of words for a regular expression, with the vowel signs of Indic scripts."""
WORD = rf"[{LETTER}][{LETTER}'’-]*"
TAG = re.compile(r"</?\w[^<>]*>")
EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}")
TYPOS = 0.2  # share of words with a typo
RARE_SCRIPT = 0x13A0  # first of the 85 letters of the Cherokee script, which hardly any training corpus contains
WEAK_LINK = 0.2  # largest share of attention on one source word below which an output word counts as unaligned
LONG_RATIO, LONG_MARGIN = 2, 10
"""A translation is too long if it has more than twice the expected number of characters, plus ten."""
SMALL_BATCH = 7  # number of lines per call in the row `batches`


def _add(src: str, ref: str, text: str) -> Pair:
    """Add a text to the end of both sides."""
    return join_lines((src, text)), join_lines((ref, text))


def _change(pattern: re.Pattern[str], src: str, ref: str, text: str) -> Pair:
    """Replace a match that both sides share with the text; without one, add the text to both sides."""
    found = [{match[0] for match in pattern.finditer(line)} for line in (src, ref)]
    if not (shared := sorted(found[0] & found[1])):
        return _add(src, ref, text)
    new_src, new_ref = (pattern.sub(lambda m: text if m[0] == shared[0] else m[0], line) for line in (src, ref))
    return new_src, new_ref


def _mark_up(line: str) -> str:
    """Put tags around the last word."""
    return re.sub(rf"{WORD}(?=\W*$)", r"<b>\g<0></b>", line)


def _rare_script(line: str) -> str:
    return "".join(chr(RARE_SCRIPT + ord(one) % 85) if one.isalpha() else one for one in line)


PERTURBATIONS: dict[str, Callable[[str, str, Random], Pair]] = {
    "plain": lambda src, ref, random: (src, ref),
    "caps": lambda src, ref, random: change_case(src, ref, str.upper),
    "title_case": lambda src, ref, random: change_case(src, ref, title_case),
    "no_final_stop": lambda src, ref, random: drop_final_stop(src, ref),
    "typos": lambda src, ref, random: (add_typos(src, TYPOS, random), ref),
    "spaces": lambda src, ref, random: (src.replace(" ", "  "), ref),
    "emoji": lambda src, ref, random: _add(src, ref, texts_to_copy(random)["emoji"]),
    "urls": lambda src, ref, random: _add(src, ref, texts_to_copy(random)["urls"]),
    "emails": lambda src, ref, random: _add(src, ref, texts_to_copy(random)["emails"]),
    "numbers": lambda src, ref, random: _change(NUMBER, src, ref, texts_to_copy(random)["numbers"]),
    "dates": lambda src, ref, random: _change(DATE, src, ref, texts_to_copy(random)["dates"]),
    "quotes": lambda src, ref, random: (f'"{src}"', f'"{ref}"'),
    "tags": lambda src, ref, random: (_mark_up(src), _mark_up(ref)),
    "words": lambda src, ref, random: (str(random.choice(re.findall(WORD, src) or [src])), None),
    "repeated": lambda src, ref, random: (join_lines((src, src)), join_lines((ref, ref))),
    "two_sentences": lambda src, ref, random: (src, ref),
    "long": lambda src, ref, random: (src, ref),
    "rare_script": lambda src, ref, random: (_rare_script(src), None),
    "empty": lambda src, ref, random: ("", None),
}
"""Changes of a pair by name; the reference is changed as the translation should change (None: unknown)."""
NUM_JOINED = {"two_sentences": 2, "long": 20}
"""Number of adjacent lines that are joined before the change, where it is not 1."""
ROWS = (*PERTURBATIONS, "batches")
ITEMS: dict[str, Callable[[str], Sequence[Hashable]]] = {
    "numbers": values,
    "urls": lambda line: addresses(line, URL),
    "emails": lambda line: addresses(line, EMAIL),
    "emoji": EMOJI.findall,
    "tags": TAG.findall,
}
"""Functions that find what a translation should keep in a casefolded line."""
SHARES = ("loops", "long", "unaligned")
"""Columns in which low values are good, so a limit is the highest accepted value."""
COLUMNS = ("lines", "chrf", "chrf_change", *ITEMS, *SHARES, "equal")


def perturb(name: str, pairs: Sequence[tuple[str, str]]) -> dict[Pair, range]:
    """Return the distinct pairs that differ from the lines, and the numbers of the lines from which each is made."""
    random, size, found = np.random.default_rng([*name.encode()]), NUM_JOINED.get(name, 1), dict[Pair, range]()
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        src, ref = (join_lines(side) for side in zip(*some, strict=True))
        pair = PERTURBATIONS[name](src, ref, random)
        if pair[0] != some[0][0] or name == "plain":
            found.setdefault(pair, range(start, start + len(some)))
    return found


def take_exam(translator: Translator, test: EvalSet, num_lines: int) -> Iterator[tuple[str, Row]]:
    """Translate each perturbation of the first lines of a test set, and yield the rows of the card by name.

    - chrf, chrf_change: chrF2++, ignoring tags, and its difference from the plain row on the same lines.
    - numbers, urls, emails, emoji, tags: percentage of those in both source and reference that the translation has.
    - loops, long: percentage of translations with a repetition, and of those that are too long.
    - unaligned: percentage of output words that pay little attention to every source word.
    - equal: percentage of plain lines with the same translation in other, smaller batches.

    Raise DataError if each line is blank in the source or the reference.
    """
    stripped = ([line.strip() for line in lines] for lines in (test.sources, test.references[0]))
    pairs = [pair for pair in dict.fromkeys(zip(*stripped, strict=True)) if all(pair)][:num_lines]
    if not pairs:
        raise DataError(f"test set '{test.name}': each line is blank in the source or the reference")
    ratio = sum(len(ref) for _, ref in pairs) / sum(len(src) for src, _ in pairs)
    plain: list[str] = []
    for name in PERTURBATIONS:  # one call per row keeps attention weights in memory only for its lines
        twins = perturb(name, pairs)
        found = translator.translate([src for src, _ in twins], attention=True)
        plain = plain or [one.text for one in found]
        row = _measure([*twins], found, ratio)
        if (chrf := row["chrf"]) is not None and name != "plain":
            lines = [number for joined in twins.values() for number in joined]
            row["chrf_change"] = chrf - _chrf([plain[n] for n in lines], [pairs[n][1] for n in lines])
        yield name, _rounded(row)
    again = list[str]()
    for start in range(0, len(pairs), SMALL_BATCH):
        some = translator.translate([src for src, _ in pairs[start : start + SMALL_BATCH]], first_line=start)
        again += [one.text for one in some]
    yield "batches", _rounded({"lines": len(pairs), "equal": _percentage(map(str.__eq__, plain, again))})


def _measure(twins: Sequence[Pair], found: Sequence[Translation], ratio: float) -> Row:
    """Return the columns of a row except `chrf_change`; `ratio` is the expected number of characters per source one."""
    texts, references = [one.text for one in found], [ref for _, ref in twins if ref is not None]
    row: Row = {"lines": len(twins), "chrf": _chrf(texts, references) if references else None}
    for column, items in ITEMS.items():
        wanted = [Counter(items(src.casefold())) & Counter(items((ref or "").casefold())) for src, ref in twins]
        kept = [some & Counter(items(text.casefold())) for some, text in zip(wanted, texts, strict=True)]
        num_wanted = sum(some.total() for some in wanted)
        row[column] = 100 * sum(some.total() for some in kept) / num_wanted if num_wanted else None
    expected = [ratio * len(src) if ref is None else len(ref) for src, ref in twins]
    most = [LONG_RATIO * length + (LONG_MARGIN if length else 0) for length in expected]
    links = [link for one in found if one.attention is not None for link in one.attention.links]
    return row | {
        "loops": _percentage(Flag.REPETITION in one.flags for one in found),
        "long": _percentage(len(text) > limit for text, limit in zip(texts, most, strict=True)),
        "unaligned": _percentage(weight < WEAK_LINK for _, _, weight in links),
    }


def _chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    plain, plain_references = ([TAG.sub("", line) for line in lines] for lines in (texts, references))
    return score(plain, plain_references, EvaluationConfig(), ("chrf",))[0].value


def _percentage(values: Iterable[bool]) -> float | None:
    found = list(values)
    return 100 * sum(found) / len(found) if found else None


def _rounded(row: Row) -> Row:
    return {column: None if (value := row.get(column)) is None else round(value, 2) for column in COLUMNS}


_OPTIONAL: Any = dict.fromkeys(COLUMNS, (float, 0.0))
_LIMITS: Any = dict.fromkeys(ROWS, (create_model("Columns", __base__=Section, **_OPTIONAL), None))
LimitsFile = create_model("LimitsFile", __base__=Section, **_LIMITS)


def read_limits(path: Path) -> list[tuple[str, str, float]]:
    """Return the limits in a file as (row, column, value); raise ConfigError with a line for each error."""
    tree, origins = read_tree(str(path), "limits")
    if not isinstance(tree, dict) or not any(tree.values()):
        raise ConfigError(f"{path}: must map rows to limits, as in `caps: {{chrf_change: -10}}`, not {tree!r:.40}")
    limits = validated(tree, origins, LimitsFile).model_dump(exclude_unset=True)
    return [(row, column, limit) for row, columns in limits.items() for column, limit in columns.items()]


def broken_limits(limits: Iterable[tuple[str, str, float]], rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return row, column, value and limit of the cells that break their limits; blank cells break none."""
    return [
        {"row": row, "column": column, "value": value, "limit": limit}
        for row, column, limit in limits
        if (value := rows[row][column]) is not None and (value > limit if column in SHARES else value < limit)
    ]
