"""Web page that translates text as it is typed, with scores of the n-best list and the attention of each word."""

import base64
import hashlib
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fastapi.responses import HTMLResponse

from mtformer.decoding.lines.sentences import UNSPACED
from mtformer.decoding.lines.translation import Translation
from mtformer.serving.requests import Settings
from mtformer.templating import render
from mtformer.text.tokenizer import BYTE_PIECE, SPACE

MAX_ALTERNATIVES = 4
MIN_WEIGHT = 0.01  # smallest attention weight that the page shows


def make_page(title: str, settings: Settings) -> HTMLResponse:
    """Return the translation page."""
    languages = settings.languages()
    values = {
        "names": {one["code"]: one["name"] for one in languages},
        "targets": {one["code"]: one["targets"] for one in languages if one["targets"]},
        "characters": settings.max_characters,
        "alternatives": min(settings.max_alternatives, MAX_ALTERNATIVES),
        "keyed": settings.api_key is not None,
    }
    return respond_with(render("serve.html", title=f"Translate: {title}", model=title, settings=values))


def respond_with(html: str) -> HTMLResponse:
    """Return a page as a response, with headers that let the browser run only the page's own script."""
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    private = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, **private})


def line_values(translation: Translation, n_best: int) -> dict[str, Any]:
    """Return the source tokens of a line, and its n best translations with words and attention, for the page."""
    pieces = translation.attention.src_pieces if translation.attention is not None else []
    units = _units(pieces, joins_words=False)
    hypotheses = []
    for one in (translation, *translation.alternatives)[:n_best]:
        shown = {"text": one.text, "score": round(one.score, 4), "confidence": one.confidence}
        hypotheses.append({**shown, "flags": list(one.flags), "words": _words(one, units)})
    return {"source": [_text(pieces[start:end]) for start, end in units], "hypotheses": hypotheses}


def _words(translation: Translation, src_units: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the text and [source unit number, weight] pairs of each word; weights are means over its tokens."""
    attention = translation.attention
    if attention is None:
        return []
    unit_of = {position: number for number, (start, end) in enumerate(src_units) for position in range(start, end)}
    words = []
    for start, end in _units(attention.tgt_pieces, joins_words=True):
        sums: dict[int, float] = {}
        for row in range(start, end):
            for position, weight in enumerate(attention.weights[row], start=attention.src_starts[row]):
                sums[unit_of[position]] = sums.get(unit_of[position], 0.0) + weight / (end - start)
        seen = [[number, round(weight, 3)] for number, weight in sums.items() if weight >= MIN_WEIGHT]
        words.append({"text": _text(attention.tgt_pieces[start:end]), "attention": seen})
    return words


def _units(pieces: Sequence[str], joins_words: bool) -> list[tuple[int, int]]:
    """Return the start and end of each unit: a token, the bytes of a letter or, with `joins_words`, a word."""
    starts = []
    for position, piece in enumerate(pieces):
        before = pieces[position - 1] if position else SPACE
        is_byte = BYTE_PIECE.fullmatch(piece) is not None and BYTE_PIECE.fullmatch(before) is not None
        is_inside_word = joins_words and not piece.startswith(SPACE) and not UNSPACED.search(before + piece)
        if not position or not (is_byte or is_inside_word or before == SPACE):
            starts.append(position)
    return list(pairwise([*starts, len(pieces)]))


def _text(pieces: Sequence[str]) -> str:
    each = ((BYTE_PIECE.fullmatch(piece), piece) for piece in pieces)
    text = b"".join(bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode() for byte, piece in each)
    return text.decode("utf-8", "replace")
