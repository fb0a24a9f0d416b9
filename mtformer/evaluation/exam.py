"""Behavior test: translates perturbed lines of a test set and measures what changes (Ribeiro et al. 2020).

Each perturbation is a row of the card. A limits file gives the lowest or highest accepted value of some cells:

    caps: {chrf_change: -10, loops: 1}
    urls: {urls: 95}
    batches: {equal: 100}
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex
from pydantic import create_model

from mtformer.config.loading import read_tree
from mtformer.config.schema import EvaluationConfig
from mtformer.config.section import Section
from mtformer.config.validation import validated
from mtformer.data.batching.augment import add_typos, change_case, drop_final_stop, texts_to_copy
from mtformer.data.filters.numbers import values
from mtformer.decoding.lines.postprocessing import EMAIL, URL, addresses
from mtformer.decoding.lines.sentences import join_lines
from mtformer.decoding.lines.translation import Flag, Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation.card import EvalSet
from mtformer.evaluation.scores import score
from mtformer.text.case import title_case, upper_case

Pair = tuple[str, str | None]
"""Source and reference; None: no reference is known."""
Row = dict[str, float | None]
"""Values by column, rounded to two digits; None: the column does not apply."""
WORD = regex.compile(r"[\w\p{M}][\w\p{M}\p{Pd}'’]*+")
LAST_WORD = regex.compile(rf"{WORD.pattern}(?=[^\w\p{{M}}]*$)")
TAG = re.compile(r"</?\w[^<>]*>")
EMOJI = regex.compile(r"[\p{Extended_Pictographic}--[©®™‼⁉]]", regex.V1)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}")
TYPOS = 0.2
"""Share of words with a typo."""
RARE_SCRIPT = 0x13A0
"""First letter of the Cherokee script, which hardly any training corpus contains."""
NUM_RARE_LETTERS = 85
"""Number of letters of this script."""
WEAK_LINK = 0.2
"""Largest share of attention on one source word below which an output word counts as unaligned."""
LONG_RATIO = 2
"""A translation is too long if it has more than this many times the expected number of characters, plus a margin."""
LONG_MARGIN = 10
"""Margin in characters, see `LONG_RATIO`."""
SMALL_BATCH = 7
"""Number of lines per call in the row `batches`."""


class Limit(NamedTuple):
    """Lowest or highest accepted value of a cell of the card."""

    row: str
    column: str
    value: float


def _add(src: str, ref: str, text: str) -> Pair:
    """Add a text to the end of both sides."""
    return join_lines((src, text)), join_lines((ref, text))


def _change(pattern: re.Pattern[str], src: str, ref: str, text: str) -> Pair:
    """Replace a match that both sides share with the text; without one, add the text to both sides."""
    src_matches = {match[0] for match in pattern.finditer(src)}
    ref_matches = {match[0] for match in pattern.finditer(ref)}
    shared_matches = src_matches & ref_matches
    if not shared_matches:
        return _add(src, ref, text)
    first_match = min(shared_matches)

    def replacement(match: re.Match[str]) -> str:
        return text if match[0] == first_match else match[0]

    return pattern.sub(replacement, src), pattern.sub(replacement, ref)


def _mark_up(line: str) -> str:
    """Put tags around the last word."""
    return LAST_WORD.sub(r"<b>\g<0></b>", line)


def _rare_script(line: str) -> str:
    """Replace each letter with one of a rare script."""

    def replacement(character: str) -> str:
        if not character.isalpha():
            return character
        number = ord(character) % NUM_RARE_LETTERS
        return chr(RARE_SCRIPT + number)

    return "".join(map(replacement, line))


class Setting(NamedTuple):
    """Inputs of a perturbation besides the pair."""

    random: np.random.Generator
    languages: tuple[str, str]
    """Language codes of the source and the reference; empty if unknown."""


PERTURBATIONS: dict[str, Callable[[str, str, Setting], Pair]] = {
    "plain": lambda src, ref, setting: (src, ref),
    "caps": lambda src, ref, setting: change_case(src, ref, upper_case, setting.languages),
    "title_case": lambda src, ref, setting: change_case(src, ref, title_case, setting.languages),
    "no_final_stop": lambda src, ref, setting: drop_final_stop(src, ref),
    "typos": lambda src, ref, setting: (add_typos(src, TYPOS, setting.random), ref),
    "spaces": lambda src, ref, setting: (src.replace(" ", "  "), ref),
    "emoji": lambda src, ref, setting: _add(src, ref, texts_to_copy(setting.random)["emoji"]),
    "urls": lambda src, ref, setting: _add(src, ref, texts_to_copy(setting.random)["urls"]),
    "emails": lambda src, ref, setting: _add(src, ref, texts_to_copy(setting.random)["emails"]),
    "numbers": lambda src, ref, setting: _change(NUMBER, src, ref, texts_to_copy(setting.random)["numbers"]),
    "dates": lambda src, ref, setting: _change(DATE, src, ref, texts_to_copy(setting.random)["dates"]),
    "quotes": lambda src, ref, setting: (f'"{src}"', f'"{ref}"'),
    "tags": lambda src, ref, setting: (_mark_up(src), _mark_up(ref)),
    "words": lambda src, ref, setting: (str(setting.random.choice(WORD.findall(src) or [src])), None),
    "repeated": lambda src, ref, setting: (join_lines((src, src)), join_lines((ref, ref))),
    "two_sentences": lambda src, ref, setting: (src, ref),
    "long": lambda src, ref, setting: (src, ref),
    "rare_script": lambda src, ref, setting: (_rare_script(src), None),
    "empty": lambda src, ref, setting: ("", None),
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


def perturb(name: str, pairs: Sequence[tuple[str, str]], languages: tuple[str, str] = ("", "")) -> dict[Pair, range]:
    """Return the distinct pairs that differ from the lines, and the numbers of the lines from which each is made.

    Args:
        name: key of `PERTURBATIONS`.
        pairs: source and reference of each line.
        languages: their language codes; empty if unknown.
    """
    setting = Setting(np.random.default_rng([*name.encode()]), languages)
    num_joined = NUM_JOINED.get(name, 1)
    perturbed: dict[Pair, range] = {}
    for start in range(0, len(pairs), num_joined):
        joined_pairs = pairs[start : start + num_joined]
        src = join_lines(src for src, _ in joined_pairs)
        ref = join_lines(ref for _, ref in joined_pairs)

        new_pair = PERTURBATIONS[name](src, ref, setting)
        new_src, _ = new_pair
        first_src, _ = joined_pairs[0]
        has_changed = new_src != first_src
        if has_changed or name == "plain":
            end = start + len(joined_pairs)
            perturbed.setdefault(new_pair, range(start, end))
    return perturbed


def take_exam(translator: Translator, test: EvalSet, num_lines: int) -> Iterator[tuple[str, Row]]:
    """Translate each perturbation of the first lines of a test set, and yield the rows of the card by name.

    The columns are:

    - chrf, chrf_change: chrF2++, ignoring tags, and its difference from the plain row on the same lines.
    - numbers, urls, emails, emoji, tags: percentage of those in both source and reference that the translation has.
    - loops, long: percentage of translations with a repetition, and of those that are too long.
    - unaligned: percentage of output words that pay little attention to every source word.
    - equal: percentage of plain lines with the same translation in other, smaller batches.

    Args:
        translator: the model to examine.
        test: the test set; lines that are repeated, or blank on one side, are left out.
        num_lines: maximum number of lines.

    Raises:
        DataError: if each line is blank in the source or the reference.
    """
    pairs = _distinct_pairs(test)[:num_lines]
    if not pairs:
        raise DataError(f"test set '{test.name}': each line is blank in the source or the reference; check its files")

    sources = [src for src, _ in pairs]
    references = [ref for _, ref in pairs]
    length_ratio = sum(map(len, references)) / sum(map(len, sources))
    languages = (test.src_lang or "", test.tgt_lang or "")

    plain_texts: list[str] = []
    for name in PERTURBATIONS:  # one call per row keeps attention weights in memory only for its lines
        perturbed = perturb(name, pairs, languages)
        new_sources = [src for src, _ in perturbed]
        translations = translator.translate(new_sources, attention=True)
        if name == "plain":
            plain_texts = [translation.text for translation in translations]

        row = _measure(list(perturbed), translations, length_ratio)
        chrf = row["chrf"]
        if chrf is not None and name != "plain":
            # A perturbation may leave out lines; the plain score is that of the others.
            lines = list(itertools.chain.from_iterable(perturbed.values()))
            plain_chrf = _chrf([plain_texts[line] for line in lines], [references[line] for line in lines])
            row["chrf_change"] = chrf - plain_chrf
        yield name, _rounded(row)

    texts = _translate_in_small_batches(translator, sources)
    share_equal = _percentage(map(str.__eq__, plain_texts, texts))
    yield "batches", _rounded({"lines": len(pairs), "equal": share_equal})


def _translate_in_small_batches(translator: Translator, sources: Sequence[str]) -> list[str]:
    """Return the translations of the lines, `SMALL_BATCH` lines per call."""
    texts: list[str] = []
    for start in range(0, len(sources), SMALL_BATCH):
        batch = sources[start : start + SMALL_BATCH]
        translations = translator.translate(batch, first_line=start)
        texts += [translation.text for translation in translations]
    return texts


def _distinct_pairs(test: EvalSet) -> list[tuple[str, str]]:
    """Return the distinct pairs of stripped lines, without those that are blank on one side."""
    sources = [line.strip() for line in test.sources]
    references = [line.strip() for line in test.references[0]]
    distinct = dict.fromkeys(zip(sources, references, strict=True))
    return [(src, ref) for src, ref in distinct if src and ref]


def _measure(pairs: Sequence[Pair], translations: Sequence[Translation], length_ratio: float) -> Row:
    """Return the columns of a row except `chrf_change`.

    Args:
        pairs: sources and, where they are known, references.
        translations: the translations of the sources.
        length_ratio: expected number of characters of a translation, divided by that of its source.
    """
    texts = [translation.text for translation in translations]
    references = [ref for _, ref in pairs if ref is not None]
    chrf = _chrf(texts, references) if references else None
    row: Row = {"lines": len(pairs), "chrf": chrf}
    for column, find_items in ITEMS.items():
        row[column] = _percentage_kept(find_items, pairs, texts)

    has_loop = [Flag.REPETITION in translation.flags for translation in translations]
    is_too_long = [_is_too_long(text, pair, length_ratio) for text, pair in zip(texts, pairs, strict=True)]
    is_weak: list[bool] = []
    """For each output word, whether it pays little attention to every source word."""
    for translation in translations:
        if translation.attention is not None:
            is_weak += [weight < WEAK_LINK for _, _, weight in translation.attention.links]

    row["loops"] = _percentage(has_loop)
    row["long"] = _percentage(is_too_long)
    row["unaligned"] = _percentage(is_weak)
    return row


def _percentage_kept(
    find_items: Callable[[str], Sequence[Hashable]], pairs: Sequence[Pair], texts: Sequence[str]
) -> float | None:
    """Return which percentage of the items in both source and reference the translations have; None without items."""

    def count_items(line: str) -> Counter[Hashable]:
        return Counter(find_items(line.casefold()))

    num_wanted = 0
    num_kept = 0
    for (src, ref), text in zip(pairs, texts, strict=True):
        wanted = count_items(src) & count_items(ref or "")
        kept = wanted & count_items(text)
        num_wanted += wanted.total()
        num_kept += kept.total()
    return 100 * num_kept / num_wanted if num_wanted else None


def _is_too_long(text: str, pair: Pair, length_ratio: float) -> bool:
    """Return True if a translation is much longer than its reference or, without one, than its source suggests."""
    src, ref = pair
    expected_length = length_ratio * len(src) if ref is None else len(ref)
    if not expected_length:
        return text != ""
    max_length = LONG_RATIO * expected_length + LONG_MARGIN
    return len(text) > max_length


def _chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return chrF2++ without tags."""
    plain_texts = [TAG.sub("", line) for line in texts]
    plain_references = [TAG.sub("", line) for line in references]
    [chrf] = score(plain_texts, plain_references, EvaluationConfig(), ("chrf",))
    return chrf.value


def _percentage(values: Iterable[bool]) -> float | None:
    """Return the percentage of true values; None without values."""
    all_values = list(values)
    return 100 * sum(all_values) / len(all_values) if all_values else None


def _rounded(row: Row) -> Row:
    """Return a value rounded to two digits for each column."""
    rounded = dict.fromkeys(COLUMNS)
    for column, value in row.items():
        rounded[column] = None if value is None else round(value, 2)
    return rounded


_OPTIONAL: Any = dict.fromkeys(COLUMNS, (float, 0.0))
_LIMITS: Any = dict.fromkeys(ROWS, (create_model("Columns", __base__=Section, **_OPTIONAL), None))
LimitsFile = create_model("LimitsFile", __base__=Section, **_LIMITS)


def read_limits(path: Path) -> list[Limit]:
    """Return the limits in a file; raise ConfigError with a line for each error."""
    tree, origins = read_tree(str(path), "limits")
    if not isinstance(tree, dict) or not any(tree.values()):
        raise ConfigError(f"{path}: must map rows to limits, as in `caps: {{chrf_change: -10}}`, not {tree!r:.40}")
    limits_by_row = validated(tree, origins, LimitsFile).model_dump(exclude_unset=True)
    limits = []
    for row, limits_of_row in limits_by_row.items():
        limits += [Limit(row, column, value) for column, value in limits_of_row.items()]
    return limits


def broken_limits(limits: Iterable[Limit], rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return row, column, value and limit of the cells that break their limits; blank cells break none."""
    broken = []
    for limit in limits:
        value = rows[limit.row][limit.column]
        if value is None:
            continue
        is_broken = value > limit.value if limit.column in SHARES else value < limit.value
        if is_broken:
            broken.append({"row": limit.row, "column": limit.column, "value": value, "limit": limit.value})
    return broken
