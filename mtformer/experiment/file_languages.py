"""The languages of a corpus by the names of its files, such as `train.en` and `train.de.gz`, or `corpus.en-de.tsv`."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import regex

from mtformer.config.languages import base_code, code_of_name, is_language
from mtformer.data.corpus.readers import SUFFIXES
from mtformer.data.filters.scripts import SUBTAGS, scripts_of

FORMATS = (".txt", ".text", ".tsv", ".jsonl", ".json", ".tmx", ".csv")
"""Suffixes of formats, which say nothing about the language."""
ROLES = frozenset(["src", "tgt", "trg", "ref", "hyp", "out", "raw", "tok", "bpe", "dev", "val", "low", "new", "old"])
"""Usual words for the role of a file that look like three-letter language codes."""
SEPARATORS = "[-_]"
"""Characters between the parts of a language code, or between a word and a language code."""
BETWEEN_LANGUAGES = re.compile("[-_]to[-_]|[-_]|2")
"""Text between two languages in the name of a file with both, as in `en-de`, `en_de`, `en2de` and `en-to-de`."""


def languages_of_files(files: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the language codes of both sides by the names of the files; None for one that cannot be determined.

    Args:
        files: a source file and a target file, or a single file with both sides.
    """
    if len(files) == 1:
        return _languages_of_file(files[0])

    src_parts = _name_parts(files[0])
    tgt_parts = _name_parts(files[1])
    # The other parts say nothing about one side, such as `en-de` in corpus.en-de.en.
    src_candidates = [part for part in src_parts if part not in tgt_parts]
    tgt_candidates = [part for part in tgt_parts if part not in src_parts]
    src = _first_language(src_candidates)
    tgt = _first_language(tgt_candidates)

    # There are thousands of three-letter codes, so a rare one counts only beside a well-known language.
    if src is not None and tgt is None:
        tgt = _rare_language(tgt_candidates)
    if tgt is not None and src is None:
        src = _rare_language(src_candidates)
    return (None, None) if src == tgt else (src, tgt)


def _name_parts(path: str) -> list[str]:
    """Return the parts of a name between dots, from the last one to the first, and those of the name of its folder."""
    parts = _stem(path).split(".")
    folder_parts = Path(path).parent.name.split(".")
    return [part for part in (*reversed(parts), *reversed(folder_parts)) if part]


def _stem(path: str) -> str:
    """Return the name of a file without the suffixes of its compression and format."""
    name = Path(path).name
    suffix = Path(name).suffix.lower()
    while suffix in (*SUFFIXES, *FORMATS):
        name = Path(name).stem
        suffix = Path(name).suffix.lower()
    return name


def _first_language(parts: Sequence[str]) -> str | None:
    """Return the language of the first part that has one."""
    for part in parts:
        for words in _pieces(part):
            code = _known_language(words)
            if code is not None:
                return code
    return None


def _pieces(part: str) -> Iterator[str]:
    """Yield a part, then its ends and its starts at each separator, longest first: pt_BR is an end of train_pt_BR."""
    separators = list(re.finditer(SEPARATORS, part))
    yield part
    for separator in separators:
        yield part[separator.end() :]
    for separator in reversed(separators):
        yield part[: separator.start()]


def _known_language(text: str) -> str | None:
    """Return the code of a language: of a well-known code with or without script and region, or of a name."""
    base, *subtags = re.split(SEPARATORS, text)
    if is_language(text) and _is_well_known(base) and all(map(_is_script_or_region, subtags)):
        return text if subtags else text.lower()
    return code_of_name(text)


def _is_well_known(base: str) -> bool:
    """Return True for a code with two letters, the three-letter code of such a language, or one with a known script."""
    return len(base_code(base)) == 2 or bool(scripts_of(base))


def _is_script_or_region(subtag: str) -> bool:
    is_region = re.fullmatch("[A-Za-z]{2}|[0-9]{3}", subtag) is not None
    return is_region or subtag.lower() in SUBTAGS or _is_script(subtag)


def _is_script(subtag: str) -> bool:
    """Return True for the code of a script in Unicode's property value aliases, such as Beng and Ethi."""
    if re.fullmatch("[A-Za-z]{4}", subtag) is None:
        return False
    try:
        regex.compile(rf"\p{{Script={subtag}}}")
    except regex.error:
        return False
    return True


def _rare_language(parts: Sequence[str]) -> str | None:
    """Return the last part of a name if it may be a three-letter code."""
    if not parts:
        return None
    code = parts[0].lower()
    is_code = is_language(code) and code not in ROLES
    return code if is_code else None


def _languages_of_file(path: str) -> tuple[str | None, str | None]:
    """Return the two languages in the name of a file with both sides, the last pair first."""
    for part in _name_parts(path):
        for piece in _pieces(part):
            pairs = _language_pairs(piece)
            if len(pairs) == 1:
                return pairs[0]
            if pairs:
                break  # such as en-pt-br, where br is a region or Breton
    return None, None


def _language_pairs(text: str) -> list[tuple[str, str]]:
    """Return all pairs of different languages that a text may mean."""
    pairs: list[tuple[str, str]] = []
    for between in BETWEEN_LANGUAGES.finditer(text):
        src = _known_language(text[: between.start()])
        tgt = _known_language(text[between.end() :])
        if src is not None and tgt is not None and src != tgt:
            pairs.append((src, tgt))
    return pairs
