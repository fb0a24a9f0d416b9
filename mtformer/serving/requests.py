"""Requests and their languages: read bodies up to a maximum size, and validate fields with pydantic.

FastAPI does not limit the size of a body or accept the same fields as JSON and as a form; `read_request` does both.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import unquote_to_bytes

import pydantic
from fastapi import HTTPException, Request
from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from mtformer.config.languages import language_name
from mtformer.data.filters.language import LETTERS, probabilities, words_of
from mtformer.decoding.lines.inputs import one_line
from mtformer.decoding.lines.translation import Translation
from mtformer.documents.document import Document, Written
from mtformer.documents.html import Fragment
from mtformer.documents.html_process import FragmentInProcess, HtmlProcess
from mtformer.files import parse_json

BODY_SECONDS = 30
"""Maximum time in which the body of a request must arrive."""
MAX_LINES = 1000
"""Maximum number of lines in all texts of a request, and of fields in a form."""
BYTES_PER_CHARACTER = 12
"""Maximum number of bytes of a character in JSON and forms."""
OTHER_BYTES = 4096
"""Maximum number of bytes of a request besides its text."""
MAX_NUMBER_DIGITS = 9
"""Number of digits of a number in a form that are read."""
MAX_SMALL = 10_000
"""Maximum number of characters of a small request. A thread reads and writes such HTML in at most 20 ms."""
UNQUOTED_AT_ONCE = 10_000
"""Number of bytes of a form that are read without a break."""
BREAK = re.compile(r"(\r\n|\r|\n)")
"""Line breaks."""
FORM = "application/x-www-form-urlencoded"
"""Content type of a form without files."""
MULTIPART = "multipart/form-data"
"""Content type of a form that may have files."""
PROBLEMS = {
    "q": "q is missing, or is not a string or a list of strings",
    "source": "source is missing; give a language code (see GET /languages)",
    "target": "target is missing; give a language code (see GET /languages)",
    "format": "format must be text or html",
    "alternatives": "alternatives must be an integer of at least 0",
}
"""Messages for missing or wrong fields."""
Str = pydantic.InstanceOf[str]
"""A string. pydantic's `str` rejects lone surrogates, which JSON can contain; the translator replaces them."""


@dataclass(frozen=True)
class Settings:
    """Languages of the server, and limits on requests."""

    directions: Sequence[tuple[str, str]]
    """Translation directions, as (source, target)."""
    max_characters: int
    """Maximum number of characters in all texts of a request."""
    max_alternatives: int = 0
    """Maximum number of translations besides the best one; a request for more gets this number."""
    default_alternatives: int = 0
    """Number of translations besides the best one if the request does not specify it."""
    api_key: str | None = None
    """Key that a request must contain; None: no key is required."""

    @property
    def sources(self) -> list[str]:
        """Source languages."""
        return list(dict.fromkeys(source for source, _ in self.directions))

    def sources_of(self, target: str) -> list[str]:
        """Return the source languages that are available for a target language."""
        return [source for source, direction_target in self.directions if direction_target == target]

    def targets_of(self, source: str) -> list[str]:
        """Return the target languages that are available for a source language."""
        return [target for direction_source, target in self.directions if direction_source == source]

    def languages(self) -> list[dict[str, Any]]:
        """Return each language once, with the languages it can be translated into, in LibreTranslate's format."""
        targets = [target for _, target in self.directions]
        codes = dict.fromkeys([*self.sources, *targets])
        languages = []
        for code in codes:
            language = {"code": code, "name": language_name(code), "targets": self.targets_of(code)}
            languages.append(language)
        return languages


def detect(text: str, candidates: Sequence[str]) -> dict[str, object]:
    """Return which of the candidate languages a text is in, and the confidence in percent.

    The confidence is py3langid's probability, assuming that the text is in one of the candidates; it is 100 if there is
    only one. Without py3langid, or if it does not support a candidate, the language is the one with the most function
    words in the text, and the confidence is its share of them. Without any, it is the first one, with confidence 0.
    """
    if len(candidates) == 1:
        return {"confidence": 100.0, "language": candidates[0]}
    shares = probabilities(text, candidates)
    if shares is None:
        shares = _shares_of_function_words(text, candidates)
    largest_share = max(shares)
    language = candidates[shares.index(largest_share)]
    return {"confidence": round(100 * largest_share, 1), "language": language}


def _shares_of_function_words(text: str, candidates: Sequence[str]) -> list[float]:
    """Return the share of each language among all function words in a text."""
    words = LETTERS.findall(text.lower())
    counts = []
    for code in candidates:
        function_words = words_of(code)
        counts.append(sum(1 for word in words if word in function_words))
    total = max(1, sum(counts))
    return [count / total for count in counts]


class Text:
    """A text, split into lines and the line breaks between them."""

    is_repaired = False

    def __init__(self, text: str) -> None:
        parts = BREAK.split(text)
        self.lines = parts[::2]
        self.breaks = [*parts[1::2], ""]

    def write(self, translations: Sequence[Translation]) -> Written:
        """Join the translations of the lines with the same line breaks."""
        pairs = zip(translations, self.breaks, strict=True)
        text = "".join(f"{translation.text}{line_break}" for translation, line_break in pairs)
        return Written(text, has_lost_marks=False)


class TextRequest(BaseModel):
    """A request with texts, such as POST /detect. Pass `Settings` as the validation context."""

    q: Annotated[Str | list[Str], Field(description="The text, or a list of texts.")]
    api_key: Annotated[Any, WithJsonSchema({"type": "string", "description": "Key, if the server needs one."})] = None

    @property
    def texts(self) -> list[str]:
        """All texts; a single one if `q` is not a list."""
        return [self.q] if isinstance(self.q, str) else self.q

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, fields: dict[str, Any]) -> dict[str, Any]:
        with_value = {key: value for key, value in fields.items() if value is not None}
        return {key: value for key, value in with_value.items() if key == "q" or value != ""}

    @pydantic.field_validator("q")
    @classmethod
    def _check_size(cls, q: str | list[str], info: ValidationInfo) -> str | list[str]:
        settings = cast(Settings, info.context)
        texts = [q] if isinstance(q, str) else q
        num_characters = sum(map(len, texts))
        _require_at_most(settings.max_characters, num_characters, "characters")
        num_lines = sum(map(_num_lines, texts))
        _require_at_most(MAX_LINES, num_lines, "lines")
        return q


def _num_lines(text: str) -> int:
    """Return the number of lines, without lists of them: a text may have any number."""
    return 1 + text.count("\n") + text.count("\r") - text.count("\r\n")


def _require_at_most(limit: int, number: int, unit: str) -> None:
    if number > limit:
        raise ValueError(f"q has {number:,} {unit}; the maximum for a request is {limit:,}: send less text")


def _number_in_form(value: object) -> object:
    """Return a string of digits, which a form contains, as a number; return other values unchanged."""
    if isinstance(value, str) and value.isdecimal():
        return int(value[:MAX_NUMBER_DIGITS])
    return value


Number = Annotated[int, BeforeValidator(_number_in_form)]
"""An integer in JSON or in a form."""


class TranslationRequest(TextRequest):
    """A request to translate."""

    source: Annotated[Str, Field(description="Language of the text, or auto.")]
    target: Annotated[Str, Field(description="Language of the translation.")]
    format: Annotated[Literal["text", "html"], Field(description="Format of q: text or html.")] = "text"
    alternatives: Annotated[Number, Field(ge=0, strict=True, description="Number of other translations.")] = 0

    @pydantic.model_validator(mode="after")
    def _check_values(self, info: ValidationInfo) -> "TranslationRequest":
        settings = cast(Settings, info.context)
        is_set = "alternatives" in self.model_fields_set
        alternatives = self.alternatives if is_set else settings.default_alternatives
        self.alternatives = min(alternatives, settings.max_alternatives)

        candidates = settings.sources_of(self.target)
        is_available = self.source in candidates
        is_detectable = self.source == "auto" and len(candidates) > 0
        if not (is_available or is_detectable):
            known = ", ".join(f"{source} to {target}" for source, target in settings.directions)
            pair = one_line(f"{self.source} to {self.target}")
            raise ValueError(f"this model does not translate {pair}; it translates {known}")
        return self

    @property
    def is_large(self) -> bool:
        """True if its texts have more than `MAX_SMALL` characters."""
        return sum(map(len, self.texts)) > MAX_SMALL

    @property
    def is_large_html(self) -> bool:
        """True if its texts are read and written in a process of their own."""
        return self.format == "html" and self.is_large

    def documents(self, html_process: HtmlProcess) -> list[Document]:
        """Return a document for each text; those of `is_large_html` are read by the process."""
        if self.is_large_html:
            return [FragmentInProcess(text, html_process) for text in self.texts]
        kind = Fragment if self.format == "html" else Text
        return [kind(text) for text in self.texts]


Kind = TypeVar("Kind", bound=TextRequest)
InThread = Callable[..., Awaitable[Any]]
"""Function that calls another one, with the given arguments, outside of the event loop."""


async def read_request(kind: type[Kind], request: Request, settings: Settings, in_thread: InThread) -> Kind:
    """Read a JSON object, a form or a query string, check the key and other fields; raise HTTPException on errors."""
    max_bytes = BYTES_PER_CHARACTER * settings.max_characters + OTHER_BYTES
    try:
        body = await asyncio.wait_for(_read_body(request, max_bytes), BODY_SECONDS)
    except (asyncio.TimeoutError, asyncio.CancelledError):  # the latter when the server shuts down
        raise HTTPException(408, "the request was not complete in time; send it again") from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed before the request was complete") from None

    fields = await _parse(body, request, in_thread)
    if settings.api_key is not None:
        _check_key(fields.get("api_key"), settings.api_key)
    try:
        query: Kind = await in_thread(kind.model_validate, fields, context=settings)
    except pydantic.ValidationError as error:
        raise HTTPException(400, _first_problem(error)) from None
    return query


def describe_body(kind: type[TextRequest]) -> dict[str, Any]:
    """Describe the request body for an OpenAPI schema; the fields may also be sent in the query string."""
    schema = {"schema": kind.model_json_schema()}
    content = dict.fromkeys(("application/json", FORM, MULTIPART), schema)
    return {"requestBody": {"content": content}}


def _check_key(key: object, expected: str) -> None:
    """Refuse a request with another key, in a time that does not depend on where the keys differ."""
    if not key:
        raise HTTPException(403, "api_key is missing; this server requires one, so add this field to the request")
    if not hmac.compare_digest(_key_bytes(str(key)), _key_bytes(expected)):
        raise HTTPException(403, "api_key is wrong; ask whoever runs this server for its key")


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _first_problem(error: pydantic.ValidationError) -> str:
    """Return the message for the first wrong field."""
    details = error.errors(include_url=False)[0]
    if details["type"] == "value_error":  # raised by a validator of this module
        return str(details["ctx"]["error"])
    return PROBLEMS[str(details["loc"][0])]


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body; refuse one of more than `max_bytes` before all of it is in memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(413, f"the request is larger than {max_bytes:,} bytes; send less text at a time")
    return bytes(body)


async def _parse(body: bytes, request: Request, in_thread: InThread) -> dict[str, Any]:
    """Return the fields of a JSON object, or of the query string and form, where repeated fields become lists."""
    media_type = request.headers.get("content-type", "").partition(";")[0]
    content_type = media_type.strip().lower()
    if body and content_type not in (FORM, MULTIPART):
        fields_of_object: dict[str, Any] = await in_thread(_parse_object, body)
        return fields_of_object
    if content_type == FORM and body.lstrip().startswith(b"{"):
        raise HTTPException(400, "the body is JSON but sent as a form; set the header Content-Type: application/json")

    try:
        fields = _parse_form(request.scope["query_string"])
        if content_type == MULTIPART:
            fields |= await _parse_multipart(body, request.scope)
        else:
            fields |= await in_thread(_parse_form, body)
    except UnicodeDecodeError:
        raise HTTPException(400, "the form is not UTF-8; encode it as UTF-8") from None
    except ValueError:
        raise HTTPException(400, f"the form has more than {MAX_LINES:,} fields; send less text at a time") from None

    single_or_list = {}
    for name, values in fields.items():
        single_or_list[name] = values[0] if len(values) == 1 else values
    return single_or_list


def _parse_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        value = parse_json(body)
    except ValueError as error:  # also for bytes that are not UTF-8, or a number with thousands of digits
        raise HTTPException(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise HTTPException(400, 'the request is not a JSON object; send {"q": ..., "source": ..., "target": ...}')
    return value


def _parse_form(form: bytes) -> dict[str, list[Any]]:
    """Return the values of each field of a form or query string; raise ValueError if it is not UTF-8 or has too many.

    `parse_qs` of the standard library makes a list of all parts between percent signs at once, which takes 0.1 s for a
    text of 1 MB. No other thread runs in this time.
    """
    if form.count(b"&") >= MAX_LINES:
        raise ValueError("too many fields")
    fields: dict[str, list[Any]] = {}
    for field in form.split(b"&"):
        name, _, value = field.partition(b"=")
        if field:
            fields.setdefault(_unquoted(name), []).append(_unquoted(value))
    return fields


def _unquoted(quoted: bytes) -> str:
    """Return a name or a value in a form."""
    with_spaces = quoted.replace(b"+", b" ")
    parts = []
    start = 0
    while start < len(with_spaces):
        end = start + UNQUOTED_AT_ONCE
        cut_escape = with_spaces.rfind(b"%", end - 2, end)
        end = end if cut_escape == -1 else cut_escape
        parts.append(unquote_to_bytes(with_spaces[start:end]))
        start = end
    return b"".join(parts).decode("utf-8")


async def _parse_multipart(body: bytes, scope: Scope) -> dict[str, list[Any]]:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    body.decode("utf-8")  # Starlette reads other bytes as Latin-1.
    request = Request(scope, receive)
    form = await request.form(max_files=0, max_fields=MAX_LINES, max_part_size=len(body))
    return {key: form.getlist(key) for key in form}
