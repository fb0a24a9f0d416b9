"""Web application: the translation page, its endpoints, and an API compatible with LibreTranslate."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.exceptions import HTTPException

from mtformer.config.languages import language_name
from mtformer.decoding.lines.input_watch import InputWatch
from mtformer.decoding.lines.inputs import one_line
from mtformer.decoding.translator import Translator
from mtformer.documents.html_process import HtmlProcess
from mtformer.errors import MtformerError, log
from mtformer.serving.batcher import Batcher
from mtformer.serving.page import make_page, respond_with
from mtformer.serving.requests import Settings, TextRequest, TranslationRequest, describe_body
from mtformer.serving.server import explain_loop_error
from mtformer.serving.service import Service
from mtformer.templating import render
from mtformer.version import __version__

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names by which a server that only this machine can reach is called."""
RETRY_SECONDS = 2
"""Time after which a client can retry a request that got status 503."""
MAX_DETAIL = 500
"""Maximum number of characters of an error message."""
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH")
"""Methods that have their own counters in /metrics."""


def create_app(
    translator: Translator,
    title: str,
    max_characters: int,
    queue_size: int,
    api_key: str | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """Create the application.

    Args:
        translator: result of `Translator.load`, which must not be used elsewhere at the same time.
        title: name of the model on the pages.
        max_characters: maximum number of characters in all texts of a request.
        queue_size: maximum number of waiting requests; others get status 503.
        api_key: key that requests must contain; None: no key is required.
        hosts: names of the server, without ports; requests to other names are refused. None: accept all.
    """
    assert translator.data is not None, "a loaded translator has a data config"
    directions = translator.data.directions
    decoding = translator.decoding
    settings = Settings(
        directions,
        max_characters,
        max_alternatives=decoding.num_rows - 1,
        default_alternatives=decoding.n_best - 1,
        api_key=api_key,
    )

    # The thread that translates, those for the texts around the lines, and the endpoints, which use all.
    translators = {target: translator.into(target) for _, target in directions}
    batcher = Batcher(translators, queue_size)
    registry = CollectorRegistry()
    waiting = Gauge("mtformer_queue", "Number of waiting requests.", registry=registry)
    waiting.set_function(batcher.waiting.qsize)
    sentences = Counter("mtformer_sentences", "Number of translated non-blank lines.", registry=registry)
    text_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="texts")
    html_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="html")
    html_process = HtmlProcess()
    watches = _watches(translators, directions)
    service = Service(batcher, settings, hosts, sentences, watches, text_thread, html_thread, html_process)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(explain_loop_error)
        batcher.start()
        yield
        batcher.close()
        html_process.close()
        for thread in (text_thread, html_thread):
            thread.shutdown(cancel_futures=True)

    # FastAPI's own documentation pages need network access, and its own /openapi.json does not check the origin.
    app = _App(
        title="mtformer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(service.check_site)],
    )
    metrics = Instrumentator(should_group_status_codes=False, registry=registry)
    metrics.instrument(app, metric_namespace="mtformer").expose(app)
    for kind in (HTTPException, MtformerError, Exception):
        app.add_exception_handler(kind, _refuse)
    _add_api(app, service)
    _add_pages(app, title, settings)
    return app


def _watches(
    translators: Mapping[str, Translator], directions: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], InputWatch]:
    """Return the comparison with the training text for each direction, and for `auto` into each target language."""
    watches = {(source, target): translators[target].watch_input(source) for source, target in directions}
    for target, translator in translators.items():
        watches["auto", target] = translator.watch_input()
    return watches


class _App(FastAPI):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] not in METHODS:
            scope = {**scope, "method": "OTHER"}  # so that clients cannot add any number of counters
        await super().__call__(scope, receive, send)


def _add_api(app: FastAPI, service: Service) -> None:
    """Add the endpoints of the API, which GET /docs describes."""
    text_body = describe_body(TextRequest)
    translation_body = describe_body(TranslationRequest)
    app.add_api_route("/translate", service.translate, methods=["POST"], openapi_extra=translation_body)
    app.add_api_route("/words", service.words, methods=["POST"], openapi_extra=translation_body)
    app.add_api_route("/detect", service.detect, methods=["POST"], openapi_extra=text_body)

    languages = service.settings.languages()
    _add_constant(app, "/languages", languages, "List the languages, with the targets of each.")
    client_settings = _frontend(service.settings)
    _add_constant(app, "/frontend/settings", client_settings, "Return settings for clients.")
    _add_constant(app, "/health", {"status": "ok"}, "Return the status ok.")


def _add_constant(app: FastAPI, path: str, content: Any, description: str) -> None:
    """Add an endpoint that always returns the same JSON value."""

    async def respond() -> JSONResponse:
        return JSONResponse(content)

    app.add_api_route(path, respond, methods=["GET"], description=description)


def _add_pages(app: FastAPI, title: str, settings: Settings) -> None:
    """Add the pages for browsers, and endpoints that the schema of the API does not contain."""
    schema = app.openapi()
    docs = render("docs.html", title=f"API: {title}", model=title, paths=schema["paths"])
    responses: dict[str, Response] = {
        "/": make_page(title, settings),
        "/docs": respond_with(docs),
        "/openapi.json": JSONResponse(schema),
        "/favicon.ico": Response(status_code=204),
    }
    for path, response in responses.items():
        _add_hidden(app, path, response, "GET")
    languages = JSONResponse(settings.languages())
    _add_hidden(app, "/languages", languages, "POST")


def _add_hidden(app: FastAPI, path: str, response: Response, method: str) -> None:
    """Add an endpoint that always returns the same response."""

    async def respond() -> Response:
        return response

    app.add_api_route(path, respond, methods=[method], include_in_schema=False)


def _frontend(settings: Settings) -> dict[str, Any]:
    """Return the settings for clients in LibreTranslate's format."""
    source, target = settings.directions[0]
    has_key = settings.api_key is not None
    return {
        "apiKeys": has_key,
        "keyRequired": has_key,
        "charLimit": settings.max_characters,
        "frontendTimeout": 500,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": source, "name": language_name(source)},
            "target": {"code": target, "name": language_name(target)},
        },
    }


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    """Return the error response for an exception; log unexpected exceptions as bugs."""
    if isinstance(error, HTTPException):
        http_error = error
    elif isinstance(error, MtformerError):  # the server shuts down, out of memory, or the scores are not finite
        http_error = HTTPException(503, str(error))
    else:
        summary = f"{type(error).__name__}: {error}".splitlines()[0]
        log.error("%s; this is a bug in mtformer, please report it", summary)
        http_error = HTTPException(500, "this is a bug in mtformer; see the log of the server")

    headers = http_error.headers
    if http_error.status_code == 503 and not headers:
        headers = {"Retry-After": str(RETRY_SECONDS)}
    message = one_line(http_error.detail)[:MAX_DETAIL]
    return JSONResponse({"error": message}, http_error.status_code, headers)
