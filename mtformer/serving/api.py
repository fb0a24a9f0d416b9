"""The web application: a page, what it asks for, and an API in the form of LibreTranslate's."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from mtformer.decoding.inputs import one_line
from mtformer.decoding.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import MtformerError
from mtformer.serving.batching import Batcher, BusyError, ClosedError, Job
from mtformer.serving.guard import Guard
from mtformer.serving.languages import Languages, detect, name
from mtformer.serving.page import make_page
from mtformer.serving.requests import Asked, Limits, RefusedError, Text, read_asked, read_fields, read_texts
from mtformer.serving.words import shown_line

log = logging.getLogger("mtformer")
ANSWER_SECONDS = 120
"""Longest time to wait for a translation."""
RETRY_SECONDS = 2
"""After which a client that came while all places were taken may come again."""


def create_app(
    translator: Translator,
    title: str,
    max_characters: int,
    most_waiting: int,
    api_key: str | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """The application.

    Args:
        translator: from `Translator.load`; nothing else may use it meanwhile.
        title: what the page calls the model.
        max_characters: of the texts of a request together.
        most_waiting: requests that may wait.
        api_key: that requests must name; None: none.
        hosts: see `Guard`.
    """
    assert translator.data is not None, "a translator that was loaded has its config"
    languages = Languages.of(translator.data)
    limits = Limits(max_characters, translator.decoding.num_rows - 1, api_key)
    targets = {target for _, target in languages.directions}
    batcher = Batcher({target: translator.into(target) for target in targets}, most_waiting)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.close()

    # The pages of documentation that FastAPI makes load from a network.
    app = FastAPI(title="mtformer", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _no_such_place)
    app.add_exception_handler(Exception, _failed)
    service = _Service(batcher, languages, limits)
    page, headers = make_page(title, languages, limits)

    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    app.add_api_route("/", show_page, methods=["GET"])
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204), methods=["GET"])
    app.add_api_route("/stream", service.stream, methods=["POST"])
    app.add_api_route("/translate", service.translate, methods=["POST"])
    app.add_api_route("/detect", service.detect, methods=["POST"])
    app.add_api_route("/languages", service.describe_languages, methods=["GET", "POST"])
    app.add_api_route("/frontend/settings", service.describe_settings, methods=["GET"])
    app.add_api_route("/health", service.tell_health, methods=["GET"])
    return app


@dataclass(frozen=True)
class _Service:
    """What the addresses answer."""

    batcher: Batcher
    languages: Languages
    limits: Limits

    async def translate(self, request: Request) -> JSONResponse:
        """POST /translate."""
        asked = read_asked(await read_fields(request, self.limits), self.limits, self.languages)
        job = Job(asked.lines, asked.target, n_best=1 + asked.alternatives)
        return JSONResponse(_answer(asked, await self._translated(job, request)))

    async def stream(self, request: Request) -> StreamingResponse:
        """POST /stream: JSON lines, of which those but the last are what there is so far."""
        asked = read_asked(await read_fields(request, self.limits), self.limits, self.languages)
        loop, news, so_far = asyncio.get_running_loop(), asyncio.Event(), dict[int, str]()

        def watch(line: int, text: str) -> None:
            so_far[line] = text
            loop.call_soon_threadsafe(news.set)

        job = Job(asked.lines, asked.target, 1 + asked.alternatives, attention=True, watch=watch)
        self._submit(job)
        return StreamingResponse(_events(job, news, so_far), media_type="application/x-ndjson")

    async def detect(self, request: Request) -> JSONResponse:
        """POST /detect."""
        texts, is_list = read_texts(await read_fields(request, self.limits), self.limits)
        found = [[_detected(*detect(text.text, self.languages.sources))] for text in texts]
        return JSONResponse(found if is_list else found[0])

    async def describe_languages(self) -> JSONResponse:
        """GET /languages."""
        return JSONResponse(self.languages.described())

    async def describe_settings(self) -> JSONResponse:
        """GET /frontend/settings."""
        source, target = self.languages.directions[0]
        return JSONResponse(
            {
                "apiKeys": self.limits.api_key is not None,
                "keyRequired": self.limits.api_key is not None,
                "charLimit": self.limits.characters,
                "frontendTimeout": 500,
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "language": {
                    "source": {"code": source, "name": name(source)},
                    "target": {"code": target, "name": name(target)},
                },
            }
        )

    async def tell_health(self) -> JSONResponse:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    def _submit(self, job: Job) -> None:
        try:
            self.batcher.submit(job)
        except BusyError:
            wait = {"Retry-After": str(RETRY_SECONDS)}
            raise RefusedError(503, "too many requests are waiting; send this one again in a while", wait) from None
        except ClosedError:
            raise _as_refusal(ClosedError()) from None

    async def _translated(self, job: Job, request: Request) -> list[Translation]:
        """The answer to a job, which is given up when the client goes away or it takes too long."""
        self._submit(job)
        answer = asyncio.wrap_future(job.answer)
        gone = asyncio.ensure_future(_gone(request))
        either: set[asyncio.Future[Any]] = {answer, gone}
        try:
            await asyncio.wait(either, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise RefusedError(503, "the translation took too long; send less at a time")
            return answer.result()
        except (ClosedError, MtformerError) as error:
            raise _as_refusal(error) from error
        except asyncio.CancelledError:  # when the server ends and has waited long enough
            raise _as_refusal(ClosedError()) from None
        finally:
            job.is_abandoned = True
            answer.cancel()
            gone.cancel()


async def _gone(request: Request) -> None:
    """Returns when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(job: Job, news: asyncio.Event, so_far: dict[int, str]) -> AsyncIterator[str]:
    """The lines of a stream."""
    answer = asyncio.wrap_future(job.answer)
    answer.add_done_callback(lambda _: news.set())
    try:
        ends = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while not answer.done():
            await asyncio.wait_for(news.wait(), ends - asyncio.get_running_loop().time())
            news.clear()
            while so_far and not answer.done():
                line, text = so_far.popitem()
                yield _json_line({"line": line, "so_far": text})
        yield _json_line({"lines": [shown_line(one, job.n_best) for one in answer.result()]})
    except asyncio.TimeoutError:
        yield _json_line({"error": "the translation took too long; send less at a time"})
    except Exception as error:
        if not isinstance(error, (ClosedError, MtformerError)):
            _log(error)
        yield _json_line({"error": _as_refusal(error).message})
    finally:
        job.is_abandoned = True
        answer.cancel()


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _answer(asked: Asked, translations: list[Translation]) -> dict[str, Any]:
    """As LibreTranslate gives it: texts for a text, lists for a list."""
    by_text = list(zip(asked.texts, asked.per_text(translations), strict=True))
    fields: dict[str, list[Any]] = {"translatedText": [_join(text, of_lines, 0) for text, of_lines in by_text]}
    if asked.alternatives:
        fields["alternatives"] = [_alternatives(text, of_lines, asked.alternatives) for text, of_lines in by_text]
    if asked.detected is not None:
        fields["detectedLanguage"] = [_detected(*one) for one in asked.detected]
    return fields if asked.is_list else {key: values[0] for key, values in fields.items()}


def _alternatives(text: Text, of_lines: list[Translation], wanted: int) -> list[str]:
    """Of a text of several lines: the second best of each, then the third best."""
    num_found = max(len(line.alternatives) for line in of_lines)
    return [_join(text, of_lines, rank) for rank in range(1, 1 + min(wanted, num_found))]


def _join(text: Text, of_lines: list[Translation], rank: int) -> str:
    """The lines' translations of a rank (0: the best) as one text; where a line has fewer, its best."""
    ranked = [[line, *line.alternatives] for line in of_lines]
    return text.join([n_best[rank if rank < len(n_best) else 0].text for n_best in ranked])


def _detected(language: str, confidence: float) -> dict[str, Any]:
    return {"confidence": confidence, "language": language}


def _as_refusal(error: Exception) -> RefusedError:
    if isinstance(error, ClosedError):
        return RefusedError(503, "the server ends")
    if isinstance(error, MtformerError):  # out of memory, or a model whose scores are not finite
        return RefusedError(503, str(error))
    return RefusedError(500, "this is a bug in mtformer; the server's log says more")


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": one_line(error.message)[:500]}, error.status, error.headers)


async def _no_such_place(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> JSONResponse:
    _log(error)
    return JSONResponse({"error": _as_refusal(error).message}, 500)


def _log(error: Exception) -> None:
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    log.error("%s; this is a bug in mtformer, please report it", what)
