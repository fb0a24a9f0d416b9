"""Web page that translates text as it is typed, with scores of the n-best list and the attention of each word."""

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import regex
from fastapi.responses import HTMLResponse

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.serving.requests import Settings
from mtformer.templating import render
from mtformer.text.characters import IS_MARK, JOINED, WITHOUT_SPACES
from mtformer.text.tokenizer import BYTE_PIECE, SPACE

MAX_ALTERNATIVES = 4
"""Maximum number of alternatives that the page shows."""
MIN_WEIGHT = 0.01
"""Smallest attention weight that the page shows."""
UNSPACED = regex.compile(rf"[{WITHOUT_SPACES}{JOINED}]", regex.V1)
"""A character of a script without spaces between words."""

POLICY = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of a page; `digest` is the checksum of its script."""
PRIVATE_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
"""Headers that keep a page and its address on the browser."""


class Unit(NamedTuple):
    """Consecutive tokens that the page shows as one: a word, or the bytes of a letter."""

    start: int
    end: int

    def of(self, pieces: Sequence[str]) -> Sequence[str]:
        """Return the pieces of its tokens."""
        return pieces[self.start : self.end]


def make_page(title: str, settings: Settings) -> HTMLResponse:
    """Return the translation page."""
    names = {}
    targets = {}
    for language in settings.languages():
        code = language["code"]
        names[code] = language["name"]
        if language["targets"]:
            targets[code] = language["targets"]
    values = {
        "names": names,
        "targets": targets,
        "characters": settings.max_characters,
        "alternatives": min(settings.max_alternatives, MAX_ALTERNATIVES),
        "keyed": settings.api_key is not None,
    }
    html = render("serve.html", title=f"Translate: {title}", model=title, settings=values)
    return respond_with(html)


def respond_with(html: str) -> HTMLResponse:
    """Return a page as a response, with headers that let the browser run only the page's own script."""
    [script] = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    sha256 = hashlib.sha256(script.encode()).digest()
    digest = base64.b64encode(sha256).decode()
    policy = POLICY.format(digest=digest)
    headers = {"Content-Security-Policy": policy, **PRIVATE_HEADERS}
    return HTMLResponse(html, headers=headers)


def line_values(translation: Translation, n_best: int) -> dict[str, Any]:
    """Return the source tokens of a line, and its n best translations with words and attention, for the page."""
    src_pieces = [] if translation.attention is None else translation.attention.src_pieces
    src_units = _units(src_pieces, joins_words=False)
    hypotheses = [translation, *translation.alternatives]
    return {
        "source": [_text(unit.of(src_pieces)) for unit in src_units],
        "hypotheses": [_hypothesis_values(hypothesis, src_units) for hypothesis in hypotheses[:n_best]],
    }


def _hypothesis_values(hypothesis: Translation, src_units: Sequence[Unit]) -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "score": round(hypothesis.score, 4),
        "confidence": hypothesis.confidence,
        "flags": list(hypothesis.flags),
        "words": _words(hypothesis, src_units),
    }


def _words(translation: Translation, src_units: Sequence[Unit]) -> list[dict[str, Any]]:
    """Return the text and [source unit number, weight] pairs of each word; weights are means over its tokens."""
    attention = translation.attention
    if attention is None:
        return []

    number_of_unit = _numbers_by_position(src_units)
    words = []
    for unit in _units(attention.tgt_pieces, joins_words=True):
        weights = _unit_weights(attention, unit, number_of_unit)
        visible = []
        for number, weight in weights.items():
            if weight >= MIN_WEIGHT:
                visible.append([number, round(weight, 3)])
        text = _text(unit.of(attention.tgt_pieces))
        words.append({"text": text, "attention": visible})
    return words


def _numbers_by_position(units: Sequence[Unit]) -> dict[int, int]:
    """Return the number of the unit of each token."""
    number_of_unit = {}
    for number, unit in enumerate(units):
        for position in range(unit.start, unit.end):
            number_of_unit[position] = number
    return number_of_unit


def _unit_weights(attention: Attention, unit: Unit, number_of_unit: Mapping[int, int]) -> dict[int, float]:
    """Return the attention of a target unit on each source unit: means over its tokens."""
    weights: dict[int, float] = defaultdict(float)
    num_tokens = unit.end - unit.start
    for row in range(unit.start, unit.end):
        for position, weight in enumerate(attention.weights[row], start=attention.src_starts[row]):
            number = number_of_unit[position]
            weights[number] += weight / num_tokens
    return weights


def _units(pieces: Sequence[str], joins_words: bool) -> list[Unit]:
    """Return the units: a token, the bytes of a letter or, with `joins_words`, a word."""
    starts = [0] if pieces else []
    for position in range(1, len(pieces)):
        before = pieces[position - 1]
        piece = pieces[position]
        is_byte = _is_byte(before) and _is_byte(piece)
        is_inside_word = joins_words and not _begins_word(before, piece)
        if not (is_byte or is_inside_word or before == SPACE):
            starts.append(position)
    borders = [*starts, len(pieces)]
    return [Unit(start, end) for start, end in pairwise(borders)]


def _begins_word(before: str, piece: str) -> bool:
    """Return True if a word begins with a token; in scripts without spaces, each token that begins with a letter."""
    if piece.startswith(SPACE):
        return True
    return UNSPACED.search(before + piece) is not None and not IS_MARK.match(piece)


def _is_byte(piece: str) -> bool:
    return BYTE_PIECE.fullmatch(piece) is not None


def _text(pieces: Sequence[str]) -> str:
    """Return the text of tokens, some of which may be single bytes of a letter."""
    text = b""
    for piece in pieces:
        byte = BYTE_PIECE.fullmatch(piece)
        if byte is not None:
            text += bytes([int(byte[1], 16)])
        else:
            text += piece.replace(SPACE, " ").encode()
    return text.decode("utf-8", "replace")
