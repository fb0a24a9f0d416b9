"""Web application: the translation page, its endpoints, and an API compatible with LibreTranslate."""

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.exceptions import HTTPException

from mtformer.config.languages import language_name
from mtformer.decoding.lines.inputs import one_line
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.documents.html import Fragment
from mtformer.errors import MtformerError, log
from mtformer.serving import requests
from mtformer.serving.batcher import Batcher, ClosedError, Job
from mtformer.serving.page import line_values, make_page, respond_with
from mtformer.serving.requests import Settings, Text, TextRequest, TranslationRequest, describe_body, read_request
from mtformer.serving.server import explain_loop_error
from mtformer.templating import render
from mtformer.version import __version__

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
ANSWER_SECONDS = 120  # maximum time to wait for a translation
RETRY_SECONDS = 2  # time after which a client can retry a request that got status 503


def create_app(
    translator: Translator,
    title: str,
    max_characters: int,
    queue_size: int,
    api_key: str | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """Create the application.

    The translator comes from `Translator.load` and must not be used elsewhere at the same time. `max_characters` is for
    all texts of a request. Requests to names other than `hosts`, which have no ports, are refused; None: accept all.
    """
    assert translator.data is not None, "a loaded translator has a data config"
    directions, decoding = translator.data.directions, translator.decoding
    settings = Settings(directions, max_characters, decoding.num_rows - 1, decoding.n_best - 1, api_key)
    batcher = Batcher({target: translator.into(target) for _, target in directions}, queue_size)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(explain_loop_error)
        batcher.start()
        yield
        batcher.close()

    registry = CollectorRegistry()
    Gauge("mtformer_queue", "Number of waiting requests.", registry=registry).set_function(batcher.waiting.qsize)
    sentences = Counter("mtformer_sentences", "Number of translated non-blank lines.", registry=registry)
    service = _Service(batcher, settings, hosts, sentences)
    languages, frontend = settings.languages(), _frontend(settings)

    # FastAPI's own documentation pages need network access, and its own /openapi.json does not check the origin.
    app = _App(
        title="mtformer", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None,
        dependencies=[Depends(service.check_site)],
    )  # fmt: skip
    figures = Instrumentator(should_group_status_codes=False, registry=registry)
    figures.instrument(app, metric_namespace="mtformer").expose(app)
    for kind in (HTTPException, MtformerError, Exception):
        app.add_exception_handler(kind, _refuse)

    text, translation = describe_body(TextRequest), describe_body(TranslationRequest)
    app.add_api_route("/translate", service.translate, methods=["POST"], openapi_extra=translation)
    app.add_api_route("/words", service.words, methods=["POST"], openapi_extra=translation)
    app.add_api_route("/detect", service.detect, methods=["POST"], openapi_extra=text)
    get = partial(app.add_api_route, methods=["GET"])
    get("/languages", lambda: JSONResponse(languages), description="List the languages, with the targets of each.")
    get("/frontend/settings", lambda: JSONResponse(frontend), description="Return settings for clients.")
    get("/health", lambda: JSONResponse({"status": "ok"}), description="Return the status ok.")
    schema, hidden = app.openapi(), partial(get, include_in_schema=False)
    page = make_page(title, settings)
    docs = respond_with(render("docs.html", title=f"API: {title}", model=title, paths=schema["paths"]))
    hidden("/", lambda: page)
    hidden("/docs", lambda: docs)
    hidden("/openapi.json", lambda: JSONResponse(schema))
    hidden("/favicon.ico", lambda: Response(status_code=204))
    hidden("/languages", lambda: JSONResponse(languages), methods=["POST"])
    return app


class _App(FastAPI):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") not in (None, "GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"):
            scope = {**scope, "method": "OTHER"}  # each method has its own counter in /metrics
        await super().__call__(scope, receive, send)


@dataclass(frozen=True)
class _Service:
    batcher: Batcher
    settings: Settings
    hosts: frozenset[str] | None
    sentences: Counter

    async def check_site(self, request: Request) -> None:
        """Refuse requests that pages of other sites make the user's browser send.

        Browsers send the site of the page in the Origin header; without this check, any site could use this server. The
        Host header reveals a host name of another site that resolves to this machine (DNS rebinding). Starlette's
        TrustedHostMiddleware does not check Origin, and responds in plain text.
        """
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:  # such as an unclosed bracket
            name = None
        if self.hosts is not None and name not in self.hosts:
            raise HTTPException(403, "the Host header does not name this server; open the address that it prints")
        if origin is not None and origin.partition("://")[2] != host:
            raise HTTPException(403, "requests from pages of other sites are refused; use the page of this server")

    async def translate(self, request: Request) -> JSONResponse:
        """Translate a text or a list of texts; return translatedText, confidence, alternatives and detectedLanguage."""
        query = await read_request(TranslationRequest, request, self.settings)
        translations = await self._answer(query, request, attention=query.format == "html")
        rest = iter(translations)
        by_text = [(text, [next(rest) for _ in text.lines]) for text in query.texts]
        n_bests = [_join(text, lines, 1 + query.alternatives) for text, lines in by_text]
        fields: dict[str, list[Any]] = {"translatedText": [n_best[0] for n_best in n_bests]}
        if num_repaired := sum(isinstance(text, Fragment) and text.is_repaired for text in query.texts):
            log.warning("repaired unclosed or wrongly nested tags in %d of %d texts", num_repaired, len(query.texts))
        if translations and all(one.confidence is not None for one in translations):
            fields["confidence"] = [min((one.confidence or 0.0 for one in lines), default=1.0) for _, lines in by_text]
        if query.alternatives:
            fields["alternatives"] = [n_best[1:] for n_best in n_bests]
        if query.source == "auto":
            sources = self.settings.sources_of(query.target)
            fields["detectedLanguage"] = [requests.detect("\n".join(text.lines), sources) for text in query.texts]
        is_list = isinstance(query.q, list)
        return JSONResponse(fields if is_list else {key: values[0] for key, values in fields.items()})

    async def words(self, request: Request) -> JSONResponse:
        """Translate a text; return the n best translations of each line with their words and attention."""
        query = await read_request(TranslationRequest, request, self.settings)
        if query.format == "html":
            raise HTTPException(400, "format html is not supported by /words; use /translate")
        translations = await self._answer(query, request, attention=True)
        return JSONResponse({"lines": [line_values(one, 1 + query.alternatives) for one in translations]})

    async def detect(self, request: Request) -> JSONResponse:
        """Return the language of a text, or of each text in a list, with the confidence in percent."""
        query = await read_request(TextRequest, request, self.settings)
        found = [[requests.detect(text.text, self.settings.sources)] for text in query.texts]
        return JSONResponse(found if isinstance(query.q, list) else found[0])

    async def _answer(self, query: TranslationRequest, request: Request, attention: bool) -> list[Translation]:
        """Translate all lines; the job is abandoned if the client disconnects or the job takes too long."""
        job = Job(query.lines, query.target, 1 + query.alternatives, attention)
        try:
            self.batcher.submit(job)
        except queue.Full:
            raise HTTPException(503, "too many requests are waiting; send this one again later") from None
        answer = asyncio.wrap_future(job.answer)
        disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
        either: set[asyncio.Future[Any]] = {answer, disconnected}
        try:
            await asyncio.wait(either, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise HTTPException(503, "the translation took too long; send less text at a time")
            translations = answer.result()
        except asyncio.CancelledError:  # when the server shuts down
            raise ClosedError from None
        finally:
            job.is_abandoned = True
            answer.cancel()
            disconnected.cancel()
        self.sentences.inc(sum(bool(line.strip()) for line in job.lines))
        return translations


def _frontend(settings: Settings) -> dict[str, Any]:
    """Return the settings for clients in LibreTranslate's format."""
    source, target = ({"code": code, "name": language_name(code)} for code in settings.directions[0])
    return {
        **dict.fromkeys(("apiKeys", "keyRequired"), settings.api_key is not None),
        "charLimit": settings.max_characters,
        "frontendTimeout": 500,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {"source": source, "target": target},
    }


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _join(text: Text | Fragment, of_lines: list[Translation], max_ranks: int) -> list[str]:
    """Return the text of the best translations of all lines, then that of the second-best ones, and so on.

    Lines with fewer translations use their best one.
    """
    n_bests = [[line, *line.alternatives] for line in of_lines]
    num_ranks = min(max_ranks, max(map(len, n_bests), default=1))
    by_rank = ([n_best[rank if rank < len(n_best) else 0] for n_best in n_bests] for rank in range(num_ranks))
    return [type(text)(text.text).join(translations) for translations in by_rank]


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    """Return the error response for an exception; log unexpected exceptions as bugs."""
    if isinstance(error, MtformerError):  # the server shuts down, out of memory, or the model's scores are not finite
        error = HTTPException(503, str(error))
    elif not isinstance(error, HTTPException):
        summary = f"{type(error).__name__}: {error}".splitlines()[0]
        log.error("%s; this is a bug in mtformer, please report it", summary)
        error = HTTPException(500, "this is a bug in mtformer; see the log of the server")
    wait = {"Retry-After": str(RETRY_SECONDS)} if error.status_code == 503 else None
    return JSONResponse({"error": one_line(error.detail)[:500]}, error.status_code, error.headers or wait)
