"""Normalization of text by a SentencePiece tokenizer: named rules, rule files, and the lines that they change.

The model learns normalized text, and writes it. So the default, `compose`, changes only what no reader sees: decomposed
characters are composed, control characters removed, and runs of spaces joined. `scripts/normalization_rules.py` makes
its rule file from Unicode's data.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sentencepiece

from mtformer.config.schema import COMPOSE, TokenizerConfig, is_rule_file
from mtformer.errors import DataError
from mtformer.files import read_bytes
from mtformer.text.protobuf import LENGTH_DELIMITED, fields, message_fields, set_subfield, without_subfield

COMPOSE_RULES = Path(__file__).with_name("compose.tsv")
"""Rule file of `compose`."""
RULES = "normalization.tsv"
"""Name of the copy of a rule file in a folder of tokenizers."""
CHANGED_SHARE = 1 / 1000
"""Share of changed target lines above which there is a warning."""
NUM_EXAMPLES = 2
"""Number of examples in a warning."""
EXCERPT = 60
"""Maximum number of characters of an example."""
SPACES = re.compile("[ \t]+")
SPACE = "▁"
"""SentencePiece's symbol for a space."""
CODE_POINTS = re.compile("(?:[0-9A-Fa-f]{1,6}(?: +|$))*")
"""Hexadecimal numbers with spaces between them."""
NORMALIZER_SPEC = 3
"""Number of the field of SentencePiece's models with the normalization; see `mtformer.text.protobuf`."""
NAME = 1
"""Number of its subfield with the name of the rules."""
RULE_PATH = 6
"""Number of its subfield with the path of the rule file."""
USER_DEFINED = "user_defined"
"""SentencePiece's name of the rules of a file."""
QUIET = 2
"""Log level of SentencePiece without information and warnings."""


def rules_of(config: TokenizerConfig) -> bytes | None:
    """Return the contents of the rule file of `tokenizer.normalization`; None for SentencePiece's own rules.

    Raise DataError if the file cannot be read or has an invalid line.
    """
    if config.normalization == COMPOSE:
        return COMPOSE_RULES.read_bytes()
    if not is_rule_file(config.normalization):
        return None
    path = config.normalization
    try:
        contents = read_bytes(path)
    except OSError as error:
        raise DataError(
            f"{path}: tokenizer.normalization cannot be read: {error.strerror}; give a file that you can read"
        ) from error
    _parse(path, contents)
    return contents


def _parse(path: str, contents: bytes) -> dict[str, str]:
    """Return the replacement of each sequence of characters in a rule file; raise DataError for an invalid line."""
    try:
        lines = contents.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8; write code points as hexadecimal numbers") from error

    rules: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not _has_rule(line):
            continue
        sequence, replacement, *_ = [*line.split("\t"), ""]
        try:
            rules[_characters(sequence)] = _characters(replacement)
        except ValueError as error:
            form = "write code points in hexadecimal, a tab, and their replacement, as in `69 307<tab>69`"
            raise DataError(f"{path}:{number}: {error}; {form}") from error

    if not rules:
        raise DataError(f"{path}: has no rules; use tokenizer.normalization: identity to change nothing")
    if "" in rules or any("\0" in sequence for sequence in rules):
        raise DataError(f"{path}: a rule replaces nothing, or NUL, which SentencePiece does not support; remove it")
    return rules


def _has_rule(line: str) -> bool:
    """Return False for a blank line or a comment."""
    return line.strip() != "" and not line.startswith("#")


def _characters(code_points: str) -> str:
    if not CODE_POINTS.fullmatch(code_points.strip()):
        raise ValueError(f"{code_points!r:.40} is not a list of code points")
    characters = "".join(chr(int(number, 16)) for number in code_points.split())
    characters.encode("utf-8")  # UnicodeEncodeError, a ValueError, for a surrogate
    return characters


@contextmanager
def trainer_options(config: TokenizerConfig, rules: bytes | None) -> Iterator[dict[str, Any]]:
    """Yield the options of SentencePiece's trainer for `tokenizer.normalization`; `rules` are those of `rules_of`."""
    if rules is None:
        yield {"normalization_rule_name": config.normalization}
        return
    with _rule_file(rules) as path:
        yield {"normalization_rule_tsv": path}


@contextmanager
def _rule_file(contents: bytes) -> Iterator[str]:
    """Yield the path of a file with these rules, without comments, which SentencePiece does not support."""
    lines = [line for line in contents.decode("utf-8-sig").splitlines() if _has_rule(line)]
    with TemporaryDirectory() as folder:
        path = Path(folder, RULES)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield str(path)


def without_rule_path(model: bytes, config: TokenizerConfig) -> bytes:
    """Return a trained model without the path of its rule file, which differs from run to run, and with its name."""
    model = without_subfield(model, NORMALIZER_SPEC, RULE_PATH)
    if config.normalization == COMPOSE:
        model = set_subfield(model, NORMALIZER_SPEC, NAME, COMPOSE)
    return model


@dataclass(frozen=True)
class Normalizer:
    """The normalization of a tokenizer, which is given by its model, by rules, or by the name of rules."""

    name: str
    """Value of `tokenizer.normalization`; `USER_DEFINED` if a model was trained with a rule file."""
    model: bytes | None = None
    rules: bytes | None = None

    @classmethod
    def of_config(cls, config: TokenizerConfig) -> "Normalizer":
        """Return the normalization that a new tokenizer would have; for errors see `rules_of`."""
        return cls(config.normalization, rules=rules_of(config))

    @classmethod
    def of_model(cls, model: bytes) -> "Normalizer":
        """Return the normalization of a SentencePiece model; raise ValueError if the model is damaged."""
        settings: dict[int, bytes] = {}
        for part in fields(model):
            if part.wire_type != LENGTH_DELIMITED:
                raise ValueError(f"field {part.number} of the model is not a message")
            if part.number == NORMALIZER_SPEC:
                settings |= dict(message_fields(part.value))
        name = settings.get(NAME, b"").decode("utf-8")
        return cls(name, model)

    def __call__(self, lines: Sequence[str]) -> list[str]:
        """Return the lines as the model sees them."""
        normalized = _processor(self).Normalize(list(lines))
        return [line.replace(SPACE, " ")[1:] for line in normalized]

    def changes(self, lines: Sequence[str]) -> dict[int, str]:
        """Return the lines that normalization changes, apart from their spaces, by index."""
        changed: dict[int, str] = {}
        pairs = zip(lines, self(lines), strict=True)
        for number, (line, normalized) in enumerate(pairs):
            if line == normalized:
                continue
            with_single_spaces = SPACES.sub(" ", line).strip(" ")
            if with_single_spaces != normalized:
                changed[number] = normalized
        return changed

    def warning(
        self, num_changed: int, num_lines: int, examples: Sequence[Sequence[str]], lines_name: str
    ) -> str | None:
        """Return a message if the normalization changes more than `CHANGED_SHARE` of some lines, else None.

        Args:
            num_changed: number of changed lines.
            num_lines: number of all lines.
            examples: changed lines, each with its normalized text.
            lines_name: what the lines are, for the message.
        """
        if num_changed <= CHANGED_SHARE * num_lines:
            return None
        rules = "the rule file of tokenizer.normalization" if self.is_file else f"tokenizer.normalization {self.name}"
        count = f"{num_changed:,} of {num_lines:,} {lines_name}"
        remedy = f"to keep text as it is, train with tokenizer.normalization: {COMPOSE}"
        if self.name == COMPOSE:
            remedy = "it composes characters (NFC) and removes control characters; do the same in the files"
        return f"{rules} changes {count}, which the model can only write as changed: {describe(examples)}; {remedy}"

    @property
    def is_file(self) -> bool:
        """True if the rules are those of a user's file."""
        return self.name == USER_DEFINED or is_rule_file(self.name)


@lru_cache(maxsize=16)
def _processor(normalizer: Normalizer) -> Any:
    sentencepiece.set_min_log_level(QUIET)
    if normalizer.model is not None:
        return sentencepiece.SentencePieceNormalizer(model_proto=normalizer.model)
    options: dict[str, Any] = {
        "add_dummy_prefix": True,
        "escape_whitespaces": True,
        "remove_extra_whitespaces": True,
    }
    if normalizer.rules is None:
        return sentencepiece.SentencePieceNormalizer(rule_name=normalizer.name, **options)
    with _rule_file(normalizer.rules) as path:
        return sentencepiece.SentencePieceNormalizer(rule_tsv=path, **options)


def describe(examples: Sequence[Sequence[str]]) -> str:
    """Return examples of changed lines, given with their normalized text, for a message."""
    texts = []
    for text, normalized in examples[:NUM_EXAMPLES]:
        changed_part = shown(excerpt(text, normalized))
        new_part = shown(excerpt(normalized, text))
        texts.append(f"'{changed_part}' becomes '{new_part}'")
    return ", ".join(texts)


def excerpt(text: str, other_text: str) -> str:
    """Return the part of a text around its first difference from another one."""
    num_equal = 0
    for character, other_character in zip(text, other_text, strict=False):
        if character != other_character:
            break
        num_equal += 1
    start = max(0, num_equal - EXCERPT // 2)
    return text[start : start + EXCERPT]


def shown(text: str) -> str:
    """Return the text with marks and invisible characters as code points, because they would not be distinguishable."""
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    is_mark = unicodedata.category(character).startswith("M")
    is_visible = character.isprintable() and not is_mark
    return character if is_visible else f"[U+{ord(character):04X}]"
