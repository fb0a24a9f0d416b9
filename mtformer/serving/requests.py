"""What a request asks for: its body read within bounds, its fields checked."""

import asyncio
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Request
from starlette.requests import ClientDisconnect

from mtformer.serving.languages import Languages, detect

BODY_SECONDS = 30
"""In which a body must have come."""
MOST_LINES = 1000
"""Of one request."""
BREAK = re.compile(r"(\r\n|\r|\n)")
FORM = "application/x-www-form-urlencoded"
T = TypeVar("T")


class RefusedError(Exception):
    """An answer other than 200.

    Args:
        status: of HTTP.
        message: what is wrong, and what to do.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


@dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Args:
        characters: of the texts of a request together.
        alternatives: besides the best translation; more are cut, for `alternatives` is a wish.
        api_key: that a request must name; None: none.
    """

    characters: int
    alternatives: int
    api_key: str | None

    @property
    def body(self) -> int:
        """Bytes: a character has up to 12 in JSON and in forms, and there is room for the other fields."""
        return 12 * self.characters + 4096


class Text:
    """A text as lines and what stood between them."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts = BREAK.split(text)
        self.lines = parts[::2]
        self.breaks = [*parts[1::2], ""]

    def join(self, lines: Sequence[str]) -> str:
        """Other lines with the same breaks."""
        return "".join(line + end for line, end in zip(lines, self.breaks, strict=True))


@dataclass(frozen=True)
class Asked:
    """A request to translate.

    Args:
        texts: what to translate.
        is_list: whether the answer is a list.
        target: the language to translate into.
        alternatives: to give besides the best translation.
        detected: with source `auto`: the language and the confidence of each text.
    """

    texts: list[Text]
    is_list: bool
    target: str
    alternatives: int
    detected: list[tuple[str, float]] | None

    @property
    def lines(self) -> list[str]:
        """Of all texts."""
        return [line for text in self.texts for line in text.lines]

    def per_text(self, of_lines: Sequence[T]) -> list[list[T]]:
        """What belongs to the lines, by text."""
        rest = iter(of_lines)
        return [[next(rest) for _ in text.lines] for text in self.texts]


async def read_fields(request: Request, limits: Limits) -> dict[str, Any]:
    """The fields of a JSON object or a form, after the key among them was checked; raises RefusedError."""
    try:
        body = await asyncio.wait_for(_read(request, limits.body), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RefusedError(408, f"the request did not come within {BODY_SECONDS} seconds; send it again") from None
    except ClientDisconnect:
        raise RefusedError(400, "the request broke off") from None
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    fields = _form(body) if kind == FORM else _json(body, kind)
    _check_key(fields, limits.api_key)
    return fields


def read_texts(fields: dict[str, Any], limits: Limits) -> tuple[list[Text], bool]:
    """The field q, and whether it is a list; raises RefusedError."""
    q = fields.get("q")
    if q is None:
        raise RefusedError(400, "q is missing; put the text to translate there")
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise RefusedError(400, "q is neither a text nor a list of texts")
    num_characters = sum(map(len, texts))
    if num_characters > limits.characters:
        raise RefusedError(
            400, f"q has {num_characters:,} characters; this server takes {limits.characters:,} a request: send less"
        )
    split = [Text(text) for text in texts]
    num_lines = sum(len(text.lines) for text in split)
    if num_lines > MOST_LINES:
        raise RefusedError(400, f"q has {num_lines:,} lines; this server takes {MOST_LINES:,} a request: send fewer")
    return split, isinstance(q, list)


def read_asked(fields: dict[str, Any], limits: Limits, languages: Languages) -> Asked:
    """The fields of a request to translate; raises RefusedError."""
    texts, is_list = read_texts(fields, limits)
    source, target = _language(fields, "source"), _language(fields, "target")
    if (fields.get("format") or "text") != "text":
        raise RefusedError(400, 'format: only "text" is translated here; take the tags out of HTML first')
    candidates = languages.sources_of(target)
    if not candidates or (source != "auto" and source not in candidates):
        known = ", ".join(f"{one} to {other}" for one, other in languages.directions)
        raise RefusedError(400, f"this model does not translate {source} to {target}; it translates {known}")
    detected = None
    if source == "auto":
        detected = [detect(text.text, candidates) for text in texts]
    return Asked(texts, is_list, target, min(_count(fields, "alternatives"), limits.alternatives), detected)


async def _read(request: Request, most_bytes: int) -> bytes:
    """The body; one that is larger is refused before it is in memory."""
    told = request.headers.get("content-length", "")
    body = bytearray()
    too_large = RefusedError(413, f"the request is larger than {most_bytes:,} bytes; send less at a time")
    if told.isdecimal() and int(told[:20]) > most_bytes:
        raise too_large
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise too_large
    return bytes(body)


def _form(body: bytes) -> dict[str, Any]:
    """A field that comes several times is a list."""
    if body.lstrip().startswith(b"{"):
        raise RefusedError(400, "this is JSON sent as a form; send the header Content-Type: application/json with it")
    try:
        found = parse_qs(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MOST_LINES)
    except UnicodeDecodeError:
        raise RefusedError(400, "the form is not UTF-8") from None
    except ValueError:
        raise RefusedError(400, f"the form has more than {MOST_LINES:,} fields") from None
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _json(body: bytes, kind: str) -> dict[str, Any]:
    if kind.startswith("multipart/"):
        raise RefusedError(400, f"{kind} is not read here; send JSON, or a form as {FORM}")
    try:
        found = json.loads(body)
    except RecursionError:
        raise RefusedError(400, "the request is not valid JSON: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise RefusedError(400, "the request is not valid JSON: it is not UTF-8") from None
    except ValueError as error:  # of the JSON, or of a number with thousands of digits
        raise RefusedError(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError(400, 'the request is not a JSON object; send {"q": ..., "source": ..., "target": ...}')
    return found


def _check_key(fields: dict[str, Any], api_key: str | None) -> None:
    if api_key is None:
        return
    given = fields.get("api_key") or ""
    if not given:
        raise RefusedError(403, "api_key is missing; this server answers only those who have its key")
    if not hmac.compare_digest(str(given).encode("utf-8", "surrogatepass"), api_key.encode("utf-8", "surrogatepass")):
        raise RefusedError(403, "api_key is not this server's")


def _language(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not value or not isinstance(value, str):
        raise RefusedError(400, f"{key} is missing; put the code of a language there, such as those of GET /languages")
    return value


def _count(fields: dict[str, Any], key: str) -> int:
    """A number from 0, which forms give as text."""
    value = fields.get(key) or 0
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:9])
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RefusedError(400, f"{key} is not a number from 0")
    return value
