"""The endpoints that translate and detect languages."""

import asyncio
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter
from starlette.exceptions import HTTPException

from mtformer.decoding.lines.input_watch import InputWatch
from mtformer.decoding.lines.translation import Flag, Translation
from mtformer.documents.document import Document, Written
from mtformer.documents.html_process import HtmlProcess
from mtformer.errors import log
from mtformer.serving.batcher import Batcher, ClosedError, Job
from mtformer.serving.page import line_values
from mtformer.serving.requests import Settings, TextRequest, TranslationRequest, detect, read_request
from mtformer.serving.responsiveness import FullCollectionPause

WATCHED_CHARACTERS = 10_000
"""Number of characters of a line that are compared with the training text."""
ANSWER_SECONDS = 120
"""Maximum time to wait for a translation."""
FREED_AT_ONCE = 1_000
"""Number of rows of attention weights that are freed without a break."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Service:
    """The endpoints, and what they share."""

    batcher: Batcher
    settings: Settings
    hosts: frozenset[str] | None
    """Names of this server; None: any name is accepted."""
    sentences: Counter
    """Counter of translated lines that are not blank."""
    watches: Mapping[tuple[str, str], InputWatch]
    """Comparison of texts with the training text by direction; the source may be `auto`."""
    text_thread: ThreadPoolExecutor
    """Thread that reads and writes texts, while the event loop answers other requests."""
    html_thread: ThreadPoolExecutor
    """Thread that waits for `html_process`, which takes seconds for large HTML."""
    html_process: HtmlProcess
    full_collection_pause: FullCollectionPause = field(default_factory=FullCollectionPause)

    async def check_site(self, request: Request) -> None:
        """Refuse requests that pages of other sites make the user's browser send.

        Browsers send the site of the page in the Origin header; without this check, any site could use this server. The
        Host header reveals a host name of another site that resolves to this machine (DNS rebinding). Starlette's
        TrustedHostMiddleware does not check Origin, and responds in plain text.
        """
        host = request.headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:  # such as an unclosed bracket
            name = None
        if self.hosts is not None and name not in self.hosts:
            remedy = "open the address that the server printed at its start"
            raise HTTPException(403, f"the Host header does not name this server; {remedy}")

        origin = request.headers.get("origin")
        if origin is None:
            return
        _, _, origin_host = origin.partition("://")
        if origin_host != host:
            raise HTTPException(403, "requests from pages of other sites are refused; use the page of this server")

    async def translate(self, request: Request) -> JSONResponse:
        """Translate a text or a list of texts.

        Return translatedText, confidence, alternatives, detectedLanguage and, for text unlike the training text,
        warnings.
        """
        query = await read_request(TranslationRequest, request, self.settings, self.in_thread)
        in_thread = self.in_html_thread if query.is_large_html else self.in_thread
        with self._pause_for(query):
            documents = await in_thread(query.documents, self.html_process)
            warnings = await self.in_thread(self._warnings, query, documents)
            translations = await self._answer(query, documents, request, attention=query.format == "html")
            return await in_thread(_respond, query, documents, translations, self.settings, warnings)

    async def words(self, request: Request) -> Response:
        """Translate a text; return the n best translations of each line with their words and attention."""
        query = await read_request(TranslationRequest, request, self.settings, self.in_thread)
        if query.format == "html":
            raise HTTPException(400, "format html is not supported by /words; use /translate")
        with self._pause_for(query):
            documents = await self.in_thread(query.documents, self.html_process)
            warnings = await self.in_thread(self._warnings, query, documents)
            translations = await self._answer(query, documents, request, attention=True)
            return await self.in_thread(_respond_with_words, query, translations, warnings)

    async def detect(self, request: Request) -> JSONResponse:
        """Return the language of a text, or of each text in a list, with the confidence in percent."""
        query = await read_request(TextRequest, request, self.settings, self.in_thread)
        return await self.in_thread(_respond_with_languages, query, self.settings)

    async def in_thread(self, function: Callable[..., Value], *arguments: Any, **keywords: Any) -> Value:
        """Return the result of a function that may take long, without blocking the event loop."""
        return await _in(self.text_thread, partial(function, *arguments, **keywords))

    async def in_html_thread(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Return the result of a function that waits for `html_process`."""
        return await _in(self.html_thread, partial(function, *arguments))

    def _pause_for(self, query: TranslationRequest) -> AbstractContextManager[None]:
        return self.full_collection_pause() if query.is_large else nullcontext()

    def _warnings(self, query: TranslationRequest, documents: Sequence[Document]) -> list[str]:
        """Return how the texts of a request are unlike the training text, and log what is new for this server."""
        watch = self.watches[query.source, query.target]
        lines: list[str] = []
        for document in documents:
            lines += [line[:WATCHED_CHARACTERS] for line in document.lines]
        news = watch.add(lines)
        if news is not None:
            log.warning("%s", news)
        warning = watch.judge(lines)
        return [] if warning is None else [warning]

    async def _answer(
        self, query: TranslationRequest, documents: Sequence[Document], request: Request, attention: bool
    ) -> list[Translation]:
        """Translate all lines; the job is abandoned if the client disconnects or the job takes too long."""
        lines: list[str] = []
        for document in documents:
            lines += document.lines
        job = Job(lines, query.target, n_best=1 + query.alternatives, attention=attention)
        try:
            self.batcher.submit(job)
        except queue.Full:
            raise HTTPException(503, "too many requests are waiting; send this one again later") from None

        # Wait for the answer, the end of the connection, or the end of the time.
        answer = asyncio.wrap_future(job.answer)
        disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
        events: set[asyncio.Future[Any]] = {answer, disconnected}
        try:
            await asyncio.wait(events, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise HTTPException(503, "the translation took too long; send less text at a time")
            translations = answer.result()
        except asyncio.CancelledError:  # when the server shuts down
            raise ClosedError from None
        finally:
            job.is_abandoned = True
            answer.cancel()
            disconnected.cancel()

        num_sentences = sum(1 for line in job.lines if line.strip())
        self.sentences.inc(num_sentences)
        return translations


async def _in(thread: ThreadPoolExecutor, function: Callable[[], Value]) -> Value:
    """Return the result of a function in a thread."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(thread, function)
    except asyncio.CancelledError:  # when the server shuts down
        raise ClosedError from None


async def _wait_for_disconnect(request: Request) -> None:
    is_connected = True
    while is_connected:
        message = await request.receive()
        is_connected = message["type"] != "http.disconnect"


def _respond(
    query: TranslationRequest,
    documents: list[Document],
    translations: list[Translation],
    settings: Settings,
    warnings: list[str],
) -> JSONResponse:
    """Return the response of `Service.translate`, and empty the lists of documents and translations.

    To free the memory of large ones takes time, which is spent here and not in the event loop.
    """
    # Each field is a list with a value for each text.
    lines_of_texts = _divide(translations, documents)
    max_ranks = 1 + query.alternatives
    n_bests = []
    for document, lines in zip(documents, lines_of_texts, strict=True):
        n_best = _join(document, lines, max_ranks)
        n_bests.append(n_best)
    fields: dict[str, list[Any]] = {"translatedText": [n_best[0].text for n_best in n_bests]}
    has_confidence = all(translation.confidence is not None for translation in translations)
    if translations and has_confidence:
        fields["confidence"] = [_lowest_confidence(lines) for lines in lines_of_texts]
    if query.alternatives:
        fields["alternatives"] = [_texts_of(n_best[1:]) for n_best in n_bests]
    if query.format == "html":
        rows = zip(documents, lines_of_texts, n_bests, strict=True)
        fields["flags"] = [_flags(document, lines, n_best[0]) for document, lines, n_best in rows]
        _warn_of_tags(fields["flags"])
    if query.source == "auto":
        candidates = settings.sources_of(query.target)
        fields["detectedLanguage"] = [detect("\n".join(document.lines), candidates) for document in documents]

    documents.clear()
    translations.clear()
    for lines in lines_of_texts:
        _free(lines)
    answer: dict[str, Any] = fields
    if not isinstance(query.q, list):
        answer = {name: values[0] for name, values in fields.items()}
    if warnings:
        answer["warnings"] = warnings
    return JSONResponse(answer)


def _free(translations: list[Translation]) -> None:
    """Empty a list that has the last references to its items; in steps, between which other threads run."""
    while translations:
        attention = translations.pop().attention
        weights = [] if attention is None else attention.weights
        while weights:
            del weights[-FREED_AT_ONCE:]


def _respond_with_words(query: TranslationRequest, translations: list[Translation], warnings: list[str]) -> Response:
    """Return the response of `Service.words`, and empty the list of translations.

    Each line is encoded alone, because no other thread runs in that time.
    """
    n_best = 1 + query.alternatives
    lines = [JSONResponse(line_values(translation, n_best)).body for translation in translations]
    _free(translations)
    body = b'{"lines":[' + b",".join(lines) + b'],"warnings":' + JSONResponse(warnings).body + b"}"
    return Response(body, media_type=JSONResponse.media_type)


def _respond_with_languages(query: TextRequest, settings: Settings) -> JSONResponse:
    """Return the response of `Service.detect`."""
    languages = [[detect(text, settings.sources)] for text in query.texts]
    if isinstance(query.q, list):
        return JSONResponse(languages)
    return JSONResponse(languages[0])


def _flags(document: Document, lines: Sequence[Translation], written: Written) -> list[str]:
    """Return the flags of a document: those of all its lines, and those of its tags."""
    flags: list[str] = []
    for line in lines:
        flags += line.flags
    if document.is_repaired:
        flags.append(Flag.REPAIRED)
    if written.has_lost_marks:
        flags.append(Flag.LOST_TAG)
    return list(dict.fromkeys(flags))


def _warn_of_tags(flags_of_texts: Sequence[Sequence[str]]) -> None:
    """Log how many texts have repaired or lost tags."""
    num_texts = len(flags_of_texts)
    num_repaired = sum(Flag.REPAIRED in flags for flags in flags_of_texts)
    num_lost = sum(Flag.LOST_TAG in flags for flags in flags_of_texts)
    if num_repaired > 0:
        log.warning("repaired unclosed or wrongly nested tags in %d of %d texts", num_repaired, num_texts)
    if num_lost > 0:
        log.warning("tags in %d of %d texts are empty or around other words", num_lost, num_texts)


def _divide(translations: Sequence[Translation], documents: Sequence[Document]) -> list[list[Translation]]:
    """Return the translations of the lines of each document."""
    parts = []
    start = 0
    for document in documents:
        end = start + len(document.lines)
        parts.append(list(translations[start:end]))
        start = end
    return parts


def _join(document: Document, lines: Sequence[Translation], max_ranks: int) -> list[Written]:
    """Return a document with the best translations of all lines, then that of the second-best ones, and so on.

    Lines with fewer translations use their best one.

    Args:
        document: the document that is translated.
        lines: the translations of its lines, with alternatives.
        max_ranks: maximum number of joined texts.
    """
    n_bests = [[line, *line.alternatives] for line in lines]
    most_translations = max(map(len, n_bests), default=1)
    num_ranks = min(max_ranks, most_translations)
    joined = []
    for rank in range(num_ranks):
        translations = [_of_rank(n_best, rank) for n_best in n_bests]
        joined.append(document.write(translations))
    return joined


def _texts_of(written: Sequence[Written]) -> list[str]:
    return [text.text for text in written]


def _of_rank(n_best: Sequence[Translation], rank: int) -> Translation:
    """Return the translation of this rank, from 0; the best one if there are fewer."""
    return n_best[rank] if rank < len(n_best) else n_best[0]


def _lowest_confidence(lines: Sequence[Translation]) -> float:
    """Return the lowest confidence of the lines of a text; 1 for a text without lines."""
    return min((line.confidence or 0.0 for line in lines), default=1.0)
